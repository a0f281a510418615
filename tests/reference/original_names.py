#!/usr/bin/env python3
"""The names that weights have outside diffusers, for tests/parity/test_family_files.c.

    python3 tests/reference/original_names.py          # from the root of the repository; the standard library alone

For each network of the tiny models (tests/data/golden) writes tests/data/names/<table>.txt, a row a tensor of the file:
"THEIRS OURS[,OURS...]", where several names are rows one behind the other, and "~" before THEIRS says that the file holds the
second half of the rows first. The rules go from diffusers' names to the others and share nothing with the library's tables, which
go the other way. Sources: the parameter names of black-forest-labs' flux and flux2, of Wan 2.1 and 2.2 (wan/modules), of CompVis'
autoencoder, and llama.cpp's table of tensor names.

Wan's autoencoders have two resnets a stage where the tiny ones have one, and the original's numbers depend on it: of those two,
manifests with two resnets are written beside the tables.
"""
import json
import os
import re

GOLDEN = "tests/data/golden"
OUT = "tests/data/names"


def manifest(path):
    return json.load(open(f"{GOLDEN}/{path}/weights.json"))


def names_of(path):
    return [t["name"] for t in manifest(path)["tensors"] if "tied_to" not in t]


# ---- transformers of FLUX ----

def flux(name):
    """-> (theirs, which of the fused parts it is)"""
    stem, _, end = name.rpartition(".")
    words = name.split(".")
    embedders = {"timestep_embedder": "time_in", "text_embedder": "vector_in", "guidance_embedder": "guidance_in"}
    if words[0] in ("time_text_embed", "time_guidance_embed"):
        return f"{embedders[words[1]]}.{'in_layer' if words[2] == 'linear_1' else 'out_layer'}.{end}", 0
    top = {"context_embedder": "txt_in", "x_embedder": "img_in", "proj_out": "final_layer.linear",
           "norm_out.linear": "~final_layer.adaLN_modulation.1"}
    if stem in top:
        return f"{top[stem]}.{end}", 0
    if len(words) == 3 and words[1] == "linear":  # FLUX.2's shared modulation
        return f"{words[0]}.lin.{end}", 0
    block, number, rest = words[0], words[1], ".".join(words[2:-1])
    norm = re.fullmatch(r"attn\.norm_(added_)?([qk])", rest)
    side = "txt" if "added" in rest or "add_" in rest or "context" in rest else "img"
    if block == "single_transformer_blocks":
        if norm:
            return f"single_blocks.{number}.norm.{'query' if norm[2] == 'q' else 'key'}_norm.scale", 0
        fused = ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"]
        if rest in fused:
            return f"single_blocks.{number}.linear1.{end}", fused.index(rest)
        own = {"norm.linear": "modulation.lin", "proj_out": "linear2", "attn.to_qkv_mlp_proj": "linear1", "attn.to_out": "linear2"}
        return f"single_blocks.{number}.{own[rest]}.{end}", 0
    if norm:
        return f"double_blocks.{number}.{side}_attn.norm.{'query' if norm[2] == 'q' else 'key'}_norm.scale", 0
    part = re.fullmatch(r"attn\.(?:to|add)_([qkv])(?:_proj)?", rest)
    if part:
        return f"double_blocks.{number}.{side}_attn.qkv.{end}", "qkv".index(part[1])
    if rest in ("attn.to_out.0", "attn.to_add_out"):
        return f"double_blocks.{number}.{side}_attn.proj.{end}", 0
    if rest.startswith("norm1"):
        return f"double_blocks.{number}.{side}_mod.lin.{end}", 0
    first = rest.endswith(("net.0.proj", "linear_in"))
    return f"double_blocks.{number}.{side}_mlp.{0 if first else 2}.{end}", 0


# ---- autoencoders ----

def autoencoder_kl(name):
    m = re.fullmatch(r"(en|de)coder\.(?:down|up)_blocks\.(\d)\.(.*)", name)
    if m:
        side, level, rest = m[1], m[2] if m[1] == "en" else str(3 - int(m[2])), m[3]
        where = f"encoder.down.{level}" if side == "en" else f"decoder.up.{level}"
        rest = re.sub(r"^resnets\.(\d)", r"block.\1", rest).replace("conv_shortcut", "nin_shortcut")
        return f"{where}.{re.sub(r'^(down|up)samplers.0', lambda x: x[1] + 'sample', rest)}", 0
    name = re.sub(r"mid_block\.resnets\.(\d)", lambda x: f"mid.block_{int(x[1]) + 1}", name)
    for ours, theirs in (("group_norm", "norm"), ("to_q", "q"), ("to_k", "k"), ("to_v", "v"), ("to_out.0", "proj_out")):
        name = name.replace(f"mid_block.attentions.0.{ours}.", f"mid.attn_1.{theirs}.")
    name = name.replace("conv_norm_out", "norm_out")
    return re.sub(r"^quant_conv", "encoder.quant_conv", re.sub(r"^post_quant_conv", "decoder.post_quant_conv", name)), 0


RESNET = {"norm1": "residual.0", "conv1": "residual.2", "norm2": "residual.3", "conv2": "residual.6", "conv_shortcut": "shortcut"}


def autoencoder_wan(name, nested):
    """Two resnets a stage of the encoder, three of the decoder, then the change of resolution."""
    for ours, theirs in (("quant_conv.", "conv1."), ("post_quant_conv.", "conv2.")):
        if name.startswith(ours):
            return theirs + name[len(ours):], 0
    side, rest = name.split(".", 1)
    for ours, theirs in (("conv_in.", "conv1."), ("norm_out.", "head.0."), ("conv_out.", "head.2."),
                         ("mid_block.attentions.0.", "middle.1.")):
        if rest.startswith(ours):
            return f"{side}.{theirs}{rest[len(ours):]}", 0

    def resnet(text):
        part, tail = text.split(".", 1)
        return f"{RESNET[part]}.{tail}"
    m = re.fullmatch(r"mid_block\.resnets\.([01])\.(.*)", rest)
    if m:
        return f"{side}.middle.{2 * int(m[1])}.{resnet(m[2])}", 0
    words, per = ("downsamples", 2) if side == "encoder" else ("upsamples", 3)
    if side == "encoder" and not nested:  # one list there as here
        m = re.fullmatch(r"down_blocks\.(\d+)\.(.*)", rest)
        own = m[2] if m[2].startswith(("resample", "time_conv")) else resnet(m[2])
        return f"encoder.downsamples.{m[1]}.{own}", 0
    m = re.fullmatch(r"(?:down|up)_blocks\.(\d+)\.(?:resnets\.(\d+)|downsampler|upsampler|upsamplers\.0)\.(.*)", rest)
    index = per if m[2] is None else int(m[2])
    own = m[3] if m[2] is None else resnet(m[3])
    return (f"{side}.{words}.{m[1]}.{words}.{index}.{own}" if nested else f"{side}.{words}.{(per + 1) * int(m[1]) + index}.{own}"), 0


def two_resnets(source, out, nested):
    """The manifest with another resnet in each stage; a stage's later resnets have its own width on both sides."""
    whole = manifest(source)
    rows = []
    for t in whole["tensors"]:
        name = t["name"]
        if not nested and (m := re.fullmatch(r"encoder\.down_blocks\.(\d+)\.(.*)", name)):
            stage, is_change = divmod(int(m[1]), 2)  # resnet, change, resnet, change, ...
            rows.append(dict(t, name=f"encoder.down_blocks.{3 * stage + (2 if is_change else 0)}.{m[2]}"))
            again = None if is_change else f"encoder.down_blocks.{3 * stage + 1}.{m[2]}"
        else:
            rows.append(t)
            last = 0 if name.startswith("encoder") else 1
            is_last = re.match(rf"(encoder\.down|decoder\.up)_blocks\.\d+\.resnets\.{last}\.", name)
            again = name.replace(f".resnets.{last}.", f".resnets.{last + 1}.") if is_last else None
        if not again or "shortcut" in again:
            continue
        width = t["shape"][0]
        shape = [width, width] + t["shape"][2:] if again.endswith("weight") else t["shape"]
        if again.endswith("norm1.gamma"):  # as wide as what the stage gives
            prefix = name[: -len("norm1.gamma")]
            width = next(x["shape"][0] for x in whole["tensors"] if x["name"] == prefix + "conv1.weight")
            shape = [width] + t["shape"][1:]
        rows.append(dict(t, name=again, shape=shape))
    os.makedirs(f"{OUT}/{out}/vae", exist_ok=True)
    with open(f"{OUT}/{out}/vae/weights.json", "w") as f:
        f.write('{"rule":"name_weights v1","tensors":[\n' + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]}\n")
    config = json.load(open(f"{GOLDEN}/{source}/config.json"))
    config["num_res_blocks"] = 2
    json.dump(config, open(f"{OUT}/{out}/vae/config.json", "w"), indent=1)
    return [r["name"] for r in rows]


# ---- Wan and text encoders ----

def wan(name):
    stem, _, end = name.rpartition(".")
    top = {"condition_embedder.time_embedder.linear_1": "time_embedding.0", "condition_embedder.time_embedder.linear_2": "time_embedding.2",
           "condition_embedder.time_proj": "time_projection.1", "condition_embedder.text_embedder.linear_1": "text_embedding.0",
           "condition_embedder.text_embedder.linear_2": "text_embedding.2", "proj_out": "head.head", "patch_embedding": "patch_embedding"}
    if name == "scale_shift_table":
        return "head.modulation", 0
    if stem in top:
        return f"{top[stem]}.{end}", 0
    _, number, rest = name.split(".", 2)
    if rest == "scale_shift_table":
        return f"blocks.{number}.modulation", 0
    rest = rest.replace("attn1.", "self_attn.").replace("attn2.", "cross_attn.").replace(".to_out.0.", ".o.")
    rest = re.sub(r"\.to_([qkv])\.", r".\1.", rest)
    rest = rest.replace("norm2.", "norm3.").replace("ffn.net.0.proj.", "ffn.0.").replace("ffn.net.2.", "ffn.2.")
    return f"blocks.{number}.{rest}", 0


def t5_parts(name, block, table):
    m = re.fullmatch(r"encoder\.block\.(\d+)\.layer\.[01]\.(.*)\.weight", name)
    if not m:
        return None
    which = m[2] if m[2] != "layer_norm" else ("norm1" if ".layer.0." in name else "norm2")
    return f"{block}.{m[1]}.{table[which.split('.')[-1]]}.weight"


def umt5_of_wan(name):
    top = {"shared.weight": "token_embedding.weight", "encoder.final_layer_norm.weight": "norm.weight"}
    table = {"q": "attn.q", "k": "attn.k", "v": "attn.v", "o": "attn.o", "relative_attention_bias": "pos_embedding.embedding",
             "norm1": "norm1", "norm2": "norm2", "wi_0": "ffn.gate.0", "wi_1": "ffn.fc1", "wo": "ffn.fc2"}
    return top.get(name) or t5_parts(name, "blocks", table), 0


def t5_gguf(name):
    top = {"shared.weight": "token_embd.weight", "encoder.final_layer_norm.weight": "enc.output_norm.weight"}
    table = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_o", "relative_attention_bias": "attn_rel_b",
             "norm1": "attn_norm", "norm2": "ffn_norm", "wi_0": "ffn_gate", "wi_1": "ffn_up", "wo": "ffn_down"}
    return top.get(name) or t5_parts(name, "enc.blk", table), 0


def qwen_gguf(name):
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in top:
        return top[name], 0
    _, _, number, rest = name.split(".", 3)
    for ours, theirs in (("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"), ("self_attn.v_proj", "attn_v"),
                         ("self_attn.o_proj", "attn_output"), ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
                         ("mlp.down_proj", "ffn_down"), ("self_attn.q_norm", "attn_q_norm"),
                         ("self_attn.k_norm", "attn_k_norm"), ("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm")):
        rest = rest.replace(ours, theirs)
    return f"blk.{number}.{rest}", 0


def qwen_vl_of_transformers5(name):
    return ("model." + name if name.startswith("visual.") else re.sub(r"^model\.", "model.language_model.", name)), 0


def write(table, names, rule):
    rows = {}
    for name in names:
        theirs, part = rule(name)
        rows.setdefault(theirs, {})[part] = name
    with open(f"{OUT}/{table}.txt", "w") as f:
        for theirs, parts in rows.items():
            f.write(f"{theirs} {','.join(parts[i] for i in sorted(parts))}\n")
    print(table, len(names), "tensors as", len(rows))


def main():
    os.makedirs(OUT, exist_ok=True)
    write("flux1_transformer", names_of("flux1/transformer"), flux)
    write("flux2_transformer", names_of("flux2-klein/transformer"), flux)
    write("flux2_dev_transformer", names_of("flux2-dev/transformer"), flux)
    write("mistral_of_comfy", names_of("flux2-dev/text_encoder"), lambda n: (n.replace("language_model.model.", "model."), 0))
    write("flux1_vae", names_of("flux1/vae"), autoencoder_kl)
    write("flux2_vae", names_of("flux2-klein/vae"), autoencoder_kl)
    write("flux1_t5_gguf", names_of("flux1/text_encoder_2"), t5_gguf)
    write("wan_transformer", names_of("wan2.2/i2v-a14b/transformer"), wan)
    write("wan_5b_transformer", names_of("wan2.2/ti2v-5b/transformer"), wan)
    write("wan21_vae", two_resnets("wan2.2/t2v-a14b/vae", "wan21", False), lambda n: autoencoder_wan(n, False))
    write("wan22_vae", two_resnets("wan2.2/ti2v-5b/vae", "wan22", True), lambda n: autoencoder_wan(n, True))
    write("umt5_of_wan", names_of("wan2.2/ti2v-5b/text_encoder"), umt5_of_wan)
    write("umt5_gguf", names_of("wan2.2/ti2v-5b/text_encoder"), t5_gguf)
    write("qwen3_gguf", names_of("flux2-klein/text_encoder"), qwen_gguf)
    write("qwen25_gguf", names_of("qwen-image/text_encoder"), qwen_gguf)
    write("qwen25_vl_of_transformers5", names_of("qwen-image-edit/text_encoder"), qwen_vl_of_transformers5)


main()
