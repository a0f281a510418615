#!/usr/bin/env python3
"""Thins the stages that a family's original implementation gave, for test_parity_<family>.c.

    python3 tests/parity/make_family_golden.py GOLDEN FAMILY [TOKENIZER.json[.gz]]      # qwen-image, wan2.2/t2v-a14b, ...

GOLDEN holds golden_fp32.safetensors, golden_bf16.safetensors, golden.json (runs and strides) and the components' configs and
weights.json: name, shape, scale and offset of every tensor; values follow from the name (tests/support/golden_folder.h). They
were written by diffusers 0.40.dev (August 2026), transformers 5.24 and torch 2.15 on a CPU. Written are
tests/data/golden/FAMILY: configs, manifests, with TOKENIZER a tokenizer of the prompts' own words, and golden.safetensors, where
"RUN.KEY@N" is every N-th value of stage KEY of run RUN as omniq --trace names it; "RUN.image", "RUN.image_bf16" are bytes."""
import gzip
import json
import os
import re
import shutil
import sys
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MOST = 256  # values kept of a stage
WAN = r"timestep_in|hidden_in|patch_embedding|text_embedder|block0\.(norm1|attn1|norm2|attn2.*|ffn)"
UNTRACED = {  # stages of the first forward that omniq does not hand out (or, with a time for each token, not in this shape)
    "qwen-image": r"timestep_in|hidden_in", "wan2.2/t2v-a14b": WAN, "wan2.2/i2v-a14b": WAN,
    "wan2.2/ti2v-5b": WAN + "|time_sinusoid|temb|time_proj"}
FIXED = {"prompt_embeds": "text.pos.0.embeds", "negative_prompt_embeds": "text.neg.0.embeds", "prompt_embeds.valid": "text.pos.0.embeds",
         "negative_prompt_embeds.valid": "text.neg.0.embeds", "latents_init": "noise", "vae.z": "vae.in", "vae.raw": "vae.out",
         "sigmas": "sigmas", "timesteps": "timesteps", "condition": "condition"}


def stage_name(family, key, layers):
    """The key of omniq's trace, or None: not kept."""
    if key in FIXED:
        return FIXED[key]
    m = re.fullmatch(r"step(\d+)\.(cond|uncond)\.noise", key)
    if m:
        return f"step.{m[1]}.model_out.{int(m[2] == 'uncond')}"
    m = re.fullmatch(r"step(\d+)\.(pred|latents|x0|corrected)", key)
    if m:
        return f"step.{m[1]}.{m[2]}"
    m = re.fullmatch(r"step0\.cond\.(.*)", key)
    if m:
        return "dit0." + m[1] if not re.fullmatch(UNTRACED[family], m[1]) else None
    m = re.fullmatch(r"text(_neg)?\.(layer(\d+)|norm)", key)
    if m:
        if m[3] is not None and int(m[3]) + 1 >= layers:
            return None
        return f"text.{'neg' if m[1] else 'pos'}.0.hidden.{int(m[3]) + 1 if m[3] is not None else layers}"
    m = re.fullmatch(r"text(_neg)?\.block(\d+)", key)
    if m:
        return f"text.{'neg' if m[1] else 'pos'}.0.layer{m[2]}"
    return key if re.fullmatch(r"vae\.(chunk[01]\.)?(conv_in|mid|up\d)", key) else None


def thin(values, stride):
    every = max(1, -(-values.numel() // MOST))
    return values.reshape(-1)[::every].contiguous(), stride * every


def collect(family, golden, kind, layers):
    info = json.load(open(f"{golden}/golden.json"))["tensors"][kind]
    out = {}
    with safe_open(f"{golden}/golden_{kind}.safetensors", "pt") as f:
        for key in f.keys():
            run, rest = key.split(".", 1)
            value, stride = f.get_tensor(key), info[key]["stride"]
            if rest in ("image", "frames"):
                name = f"{run}.image" + ("" if kind == "fp32" else "_bf16")
                value, every = thin(value.reshape(-1), stride) if value.numel() > 40000 else (value.reshape(-1), stride)
                out[name + (f"@{every}" if every > 1 else "")] = value
                continue
            name = stage_name(family, rest, layers)
            if run == "V" and kind == "fp32":
                name = rest
            elif name is None or (kind == "bf16" and not re.match(r"noise|step\.\d+\.(latents|model_out\.0)", name)):
                continue
            value, every = thin(value.float(), stride)
            out[f"{run}.{name}" + ("_bf16" if kind == "bf16" else "") + (f"@{every}" if every > 1 else "")] = value
    return out


def words(golden, source, out):
    """A tokenizer of added tokens alone: each token of the golden prompts by its text."""
    from tokenizers import Tokenizer
    tok = Tokenizer.from_str((gzip.open(source).read() if source.endswith(".gz") else open(source, "rb").read()).decode())
    pieces = {}
    for run in json.load(open(f"{golden}/golden.json"))["runs"].values():
        for side in ("text", "text_neg"):
            t = run.get(side)
            for ids, mask in zip(t["input_ids"], t["attention_mask"]) if t else ():
                pieces.update({tok.decode([i], skip_special_tokens=False): i for i, m in zip(ids, mask) if m})
    added = [dict(id=i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=s.startswith("<|"))
             for s, i in sorted(pieces.items(), key=lambda x: x[1])]
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False,
                 byte_fallback=False, vocab={}, merges=[])
    json.dump(dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=None,
                   post_processor=None, decoder=None, model=model), open(out, "w"), ensure_ascii=False, indent=0)


def main():
    golden, family = sys.argv[1], sys.argv[2]
    data = f"{ROOT}/tests/data/golden/{family}"
    for folder, _, files in os.walk(golden):
        to = os.path.join(data, os.path.relpath(folder, golden))
        for name in files:
            if name.endswith(".json") and name not in ("golden.json", "generation_config.json"):
                os.makedirs(to, exist_ok=True)
                shutil.copyfile(os.path.join(folder, name), os.path.join(to, name))
                os.chmod(os.path.join(to, name), 0o644)
    manifest = f"{data}/text_encoder/weights.json"
    lines = [l for l in open(manifest) if not re.search(r'"name":"(lm_head|visual)', l)]  # large, and not read
    open(manifest, "w").write("".join(lines).replace("},\n]}", "}\n]}"))
    if len(sys.argv) > 3:
        words(golden, sys.argv[3], f"{data}/tokenizer/tokenizer.json")
    config = json.load(open(f"{golden}/text_encoder/config.json"))
    layers = config.get("text_config", config).get("num_hidden_layers", 0) or config.get("num_layers", 0)
    out = collect(family, golden, "fp32", layers)
    out.update(collect(family, golden, "bf16", layers))
    ids = {f"{run}.{side}.ids": torch.tensor(facts[side]["input_ids"], dtype=torch.int32)
           for run, facts in json.load(open(f"{golden}/golden.json"))["runs"].items() for side in ("text", "text_neg")
           if side in facts and "valid" in facts[side]}
    out.update(ids)  # prompts of families whose tests give ids
    save_file(out, f"{data}/golden.safetensors")
    os.chmod(f"{data}/golden.safetensors", 0o644)
    print(len(out), "tensors,", os.path.getsize(f"{data}/golden.safetensors"), "bytes")


main()
