#!/usr/bin/env python3
"""Runs a tiny FLUX.2-dev pipeline of the original implementation and keeps its stages for test_parity_flux2_dev.c.

    python3 tests/parity/make_flux2_dev_golden.py        # from the root; diffusers 0.42, transformers 5, torch 2.15 on a CPU

The transformer is that of tests/data/golden/flux2-klein/transformer_dev, the autoencoder that family's, the encoder a small Mistral 3 with
padding on the left; values of weights follow from their names (tests/support/golden_folder.h). Written are tests/data/golden/flux2-dev:
configs, manifests, a tokenizer of the prompts' own words, and golden.safetensors, where "RUN.KEY@N" is every N-th value of stage
KEY of run RUN as omniq --trace names it; "RUN.image", "RUN.image_bf16" are bytes."""
import json, math, os, shutil
import numpy as np
import PIL.Image
import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux2Pipeline, Flux2Transformer2DModel
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import Mistral3Config, Mistral3ForConditionalGeneration, PreTrainedTokenizerFast

GOLDEN, OUT, MOST = "tests/data/golden", "tests/data/golden/flux2-dev", 320
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "<pad>"]
TEMPLATE = ("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'system' %}[SYSTEM_PROMPT]{{ m['content'][0]['text'] }}[/SYSTEM_PROMPT]"
            "{% else %}[INST]{{ m['content'][0]['text'] }}[/INST]{% endif %}{% endfor %}")
RUNS = {"A": dict(prompt="a small red ball to the left of a blue star", height=64, width=64, num_inference_steps=3, guidance_scale=4.0,
                  max_sequence_length=512, seed=42),
        "B": dict(prompt="a teal ring on a [IMG]charcoal background", height=80, width=112, num_inference_steps=2, guidance_scale=2.5,
                  max_sequence_length=96, seed=7),
        "E": dict(prompt="make the ball green", height=64, width=64, num_inference_steps=2, guidance_scale=4.0, max_sequence_length=96,
                  seed=9, image=("image.ref0", 80, 64))}


def uniform(name, n):
    h = 0xCBF29CE484222325
    for b in name.encode():
        h = ((h ^ b) * 0x100000001B3) & (1 << 64) - 1
    with np.errstate(over="ignore"):
        z = np.uint64(h) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return ((z >> np.uint64(48)).astype(np.float32) / np.float32(32768.0)) - np.float32(1.0)


def values(entry):
    u = uniform(entry["name"], math.prod(entry["shape"]) if entry["shape"] else 1)
    return torch.from_numpy((np.float32(entry["offset"]) + np.float32(entry["scale"]) * u).reshape(entry["shape"]))


def fill(model, manifest, rename=lambda n: n):
    state = model.state_dict()
    for entry in manifest["tensors"]:
        state[rename(entry["name"])].copy_(values(entry))
    return model.eval()


def component(folder, cls, source):
    os.makedirs(f"{OUT}/{folder}", exist_ok=True)
    for name in ("config.json", "weights.json"):
        shutil.copyfile(f"{GOLDEN}/flux2-klein/{source}/{name}", f"{OUT}/{folder}/{name}")
    model = cls.from_config(json.load(open(f"{OUT}/{folder}/config.json")))
    return fill(model, json.load(open(f"{OUT}/{folder}/weights.json")))


def text_encoder():
    text = dict(model_type="mistral", vocab_size=4352, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=6,
                num_key_value_heads=2, head_dim=64, max_position_embeddings=4096, rms_norm_eps=1e-5, rope_theta=1e9, sliding_window=None,
                hidden_act="silu")
    config = dict(architectures=["Mistral3ForConditionalGeneration"], model_type="mistral3", text_config=text, image_token_index=10,
                  vision_config=dict(model_type="pixtral", hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=1,
                                     head_dim=64, image_size=28, patch_size=14))
    os.makedirs(f"{OUT}/text_encoder", exist_ok=True)
    json.dump(config, open(f"{OUT}/text_encoder/config.json", "w"), indent=1)
    for_model = Mistral3Config(**{k: v for k, v in config.items() if k != "architectures"})
    model = Mistral3ForConditionalGeneration(for_model)
    rows = []
    for name, p in model.state_dict().items():
        if not name.startswith("model.language_model."): continue
        name = name.replace("model.language_model.", "language_model.model.")  # as files of transformers 4 have it
        shape = list(p.shape)
        scale, offset = (1.0, 0.0) if "embed_tokens" in name else \
            (2.0 ** round(math.log2(math.sqrt(3.0 / shape[1]))), 0.0) if len(shape) == 2 else (0.25, 1.0)
        rows.append(dict(name=name, shape=shape, scale=scale, offset=offset))
    with open(f"{OUT}/text_encoder/weights.json", "w") as f:
        f.write('{"rule":"name_weights v1","tensors":[\n' + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]}\n")
    return fill(model, dict(tensors=rows), lambda n: n.replace("language_model.model.", "model.language_model.")), for_model


def tokenizer():
    tok = Tokenizer.from_file("models/toybox/tokenizer/tokenizer.json")
    tok.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
                                   padding_side="left", chat_template=TEMPLATE)


def small_tokenizer(tok, texts):
    """Added tokens alone: each token of the prompts by its text."""
    pieces = {s: tok.convert_tokens_to_ids(s) for s in SPECIAL}
    for ids in texts.values():
        pieces.update({tok.decode([i], skip_special_tokens=False): i for i in ids})
    added = [dict(id=i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=s in SPECIAL)
             for s, i in sorted(pieces.items(), key=lambda x: x[1])]
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
                 byte_fallback=False, vocab={}, merges=[])
    os.makedirs(f"{OUT}/tokenizer", exist_ok=True)
    json.dump(dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=None,
                   post_processor=None, decoder=None, model=model), open(f"{OUT}/tokenizer/tokenizer.json", "w"), ensure_ascii=False, indent=0)
    json.dump(dict(padding_side="left", bos_token="<s>", pad_token="<pad>"), open(f"{OUT}/tokenizer/tokenizer_config.json", "w"))


def picture(name, width, height):
    u = uniform(name, width * height * 3)
    return PIL.Image.fromarray(np.floor((u + 1) * 128).astype(np.uint8).reshape(height, width, 3))


def run(pipe, facts):
    kept = {}
    facts = dict(facts)
    if "image" in facts: facts["image"] = picture(*facts["image"])
    seed = facts.pop("seed")
    step, decode, forward, prepare = pipe.scheduler.step, pipe.vae.decode, pipe.text_encoder.forward, pipe.prepare_latents
    counter = [0]

    def on_step(pred, t, latents, **kw):
        i = counter[0]; counter[0] += 1
        out = step(pred, t, latents, **kw)
        kept[f"step.{i}.model_out.0"] = pred[0]
        kept[f"step.{i}.latents"] = out[0]
        return out

    def on_decode(z, **kw):
        out = decode(z, **kw)
        kept["vae.in"], kept["vae.out"] = z, out[0]
        return out

    def on_forward(*a, **kw):
        out = forward(*a, **kw)
        kept["text.pos.0.ids"] = kw["input_ids"][0].to(torch.int32)
        kept["valid"] = kw["attention_mask"].sum()
        for i in (1, 2, 3): kept[f"text.pos.0.hidden.{i}"] = out.hidden_states[i][0]
        kept["text.pos.0.embeds"] = torch.cat([out.hidden_states[i][0] for i in (1, 2, 3)], dim=-1)
        return out

    def on_prepare(*a, **kw):
        out = prepare(*a, **kw)
        kept["noise"] = out[0]
        return out
    pipe.scheduler.step, pipe.vae.decode, pipe.text_encoder.forward, pipe.prepare_latents = on_step, on_decode, on_forward, on_prepare
    image = pipe(generator=torch.Generator().manual_seed(seed), output_type="np", text_encoder_out_layers=(1, 2, 3), **facts).images[0]
    pipe.scheduler.step, pipe.vae.decode, pipe.text_encoder.forward, pipe.prepare_latents = step, decode, forward, prepare
    kept["sigmas"], kept["timesteps"] = pipe.scheduler.sigmas, pipe.scheduler.timesteps
    kept["image"] = torch.from_numpy((image * 255).round().astype(np.uint8))
    return kept


def main():
    torch.manual_seed(0)
    os.makedirs(OUT, exist_ok=True)
    encoder, _ = text_encoder()
    tok = tokenizer()
    os.makedirs(f"{OUT}/scheduler", exist_ok=True)
    shutil.copyfile(f"{GOLDEN}/flux2-klein/scheduler/scheduler_config.json", f"{OUT}/scheduler/scheduler_config.json")
    scheduler = FlowMatchEulerDiscreteScheduler.from_config(json.load(open(f"{OUT}/scheduler/scheduler_config.json")))
    pipe = Flux2Pipeline(scheduler=scheduler, vae=component("vae", AutoencoderKLFlux2, "vae"), text_encoder=encoder, tokenizer=tok,
                         transformer=component("transformer", Flux2Transformer2DModel, "transformer_dev"))
    pipe.set_progress_bar_config(disable=True)
    index = dict(_class_name="Flux2Pipeline", scheduler=["diffusers", "FlowMatchEulerDiscreteScheduler"],
                 text_encoder=["transformers", "Mistral3ForConditionalGeneration"], tokenizer=["transformers", "PixtralProcessor"],
                 transformer=["diffusers", "Flux2Transformer2DModel"], vae=["diffusers", "AutoencoderKLFlux2"])
    json.dump(index, open(f"{OUT}/model_index.json", "w"), indent=1)
    out, ids = {}, {}
    for kind in ("fp32", "bf16"):
        if kind == "bf16": pipe.to(torch.bfloat16)
        for name, facts in RUNS.items():
            kept = run(pipe, facts)
            valid = int(kept.pop("valid"))
            ids[name] = kept["text.pos.0.ids"][-valid:].tolist()
            for key, value in kept.items():
                if key == "image":
                    out[f"{name}.image" + ("" if kind == "fp32" else "_bf16")] = value.reshape(-1).clone()
                    continue
                if kind == "bf16" and key not in ("noise", "step.0.latents", "vae.in", "text.pos.0.embeds"): continue
                value = value if value.dtype == torch.int32 else value.float()
                every = 1 if key == "text.pos.0.ids" else max(1, -(-value.numel() // MOST))
                out[f"{name}.{key}" + ("_bf16" if kind == "bf16" else "") + (f"@{every}" if every > 1 else "")] = value.reshape(-1)[::every].clone()
    small_tokenizer(tok, ids)
    small = Tokenizer.from_file(f"{OUT}/tokenizer/tokenizer.json")
    for name, facts in RUNS.items():
        text = tok.decode(ids[name], skip_special_tokens=False)
        assert [small.token_to_id(t) or 0 for t in small.encode(text).tokens] == [small.token_to_id(tok.decode([i])) or 0 for i in ids[name]], name
    save_file(out, f"{OUT}/golden.safetensors")
    print(len(out), "tensors,", os.path.getsize(f"{OUT}/golden.safetensors"), "bytes")


main()
