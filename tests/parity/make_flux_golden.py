#!/usr/bin/env python3
"""Thins the stages that the original implementations of FLUX.1 and FLUX.2-klein gave, for test_parity_flux1.c and _flux2.c.

    python3 tests/parity/make_flux_golden.py GOLDEN FAMILY [TOKENIZERS]

GOLDEN holds golden_fp32.safetensors, golden_bf16.safetensors, golden.json and the components' configs and weights.json (name, shape, scale
and offset of every tensor; values follow from the name, tests/support/golden_folder.h), written by diffusers 0.40.dev (August 2026),
transformers 5.24 and torch 2.15 on a CPU. TOKENIZERS: a folder of make_tokenizers.py. Written are tests/data/golden/FAMILY (configs,
manifests, tokenizers that know the prompts' own words) and golden.safetensors in it: "RUN.KEY@N" is every N-th value of stage
KEY of run RUN as omniq --trace names it; "RUN.image", "RUN.image_bf16" are bytes."""
import json, os, re, shutil, sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file
from tokenizers import Tokenizer

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
MOST = 320  # values kept of a stage
golden, family = sys.argv[1], sys.argv[2]
facts = json.load(open(f"{golden}/golden.json"))


def names(rest):
    """The keys of omniq's trace for a golden key of run A to E; several for one that a batch shares."""
    fixed = {"latents_init": "noise", "sigmas": "sigmas", "timesteps": "timesteps", "vae_in": "vae.in", "vae_out": "vae.out",
             "clip_input_ids": "text.pos.0.ids", "t5_input_ids": "text2.pos.0.ids", "input_ids": "text.pos.0.ids", "pooled": "text.pos.0.pooled",
             "clip_last_hidden": "text.pos.0.hidden", "prompt_embeds": "text2.pos.0.embeds" if family == "flux1" else "text.pos.0.embeds",
             "ref0_latents": "input.0.latents", "ref1_latents": "input.1.latents", "ref0_in": "input.0", "ref1_in": "input.1"}
    if rest in fixed: return fixed[rest]
    if rest.startswith("neg/") and rest[4:] in fixed: return fixed[rest[4:]].replace(".pos.", ".neg.")
    m = re.fullmatch(r"(clip|t5|qwen3)\.layer(\d+)", rest)
    if m:
        if m[1] == "qwen3": return f"text.pos.0.hidden.{int(m[2]) + 1}" if int(m[2]) < 3 else None
        return f"text{'2' if m[1] == 't5' else ''}.pos.0.layer{m[2]}"
    m = re.fullmatch(r"step(\d+)/(latents|noise_pred)", rest)
    if m: return f"step.{m[1]}." + {"latents": "latents", "noise_pred": "pred"}[m[2]]
    m = re.fullmatch(r"step(\d+)/(cond|neg)/v", rest)
    if m: return f"step.{m[1]}.model_out.{int(m[2] == 'neg')}"
    m = re.fullmatch(r"step0/neg/(.*)", rest)
    if m: return "dit0.1." + m[1]
    m = re.fullmatch(r"step0/(temb|x_embedder|context_embedder|norm_out|block\d+\.(img|txt)|single\d+|.*modulation.*)", rest)
    return "dit0." + m[1] if m else None


def thin(a, stride):
    every = max(1, -(-a.size // MOST))
    return np.ascontiguousarray(a.reshape(-1)[::every]), stride * every


def collect(kind):
    out = {}
    with safe_open(f"{golden}/golden_{kind}.safetensors", "pt") as f:
        for key in f.keys():
            base, _, stride = key.partition("@")
            run, _, rest = base.partition("/")
            value, stride = f.get_tensor(key), int(stride or 1)
            if rest == "image_u8":
                out[f"{run}.image" + ("" if kind == "fp32" else "_bf16")] = value.numpy().reshape(-1)
                continue
            name = ("" + rest if run in ("vae", "schnell", "dev") else names(rest))
            if not name or (run == "D" and name not in ("noise", "random")) or rest in ("mu",): continue
            if kind == "bf16" and not re.match(r"noise$|step\.0\.(latents|pred)|vae\.in", name): continue
            value = value.numpy() if str(value.dtype) in ("torch.int32", "torch.float64") else value.float().numpy()
            if value.dtype == np.float64: continue
            value, every = thin(value, stride)
            out[f"{run}.{name}" + ("_bf16" if kind == "bf16" else "") + (f"@{every}" if every > 1 else "")] = value
    return out


def prompts():
    texts = []
    for run in facts["runs"].values():
        for t in ([run["prompt"]] if isinstance(run["prompt"], str) else run["prompt"]) + [run.get("negative_prompt", "")]:
            if t not in texts: texts.append(t)
    return texts


def known_merges(tok, words):
    """Merges of a BPE tokenizer that occur in the words (lists of symbols), in order of rank."""
    model = json.loads(tok.to_str())["model"]
    merges = [tuple(m) if isinstance(m, list) else tuple(m.split(" ")) for m in model["merges"]]
    rank, used = {m: i for i, m in enumerate(merges)}, set()
    for symbols in words:
        symbols = list(symbols)
        while True:
            best = min(((rank[p], i) for i, p in enumerate(zip(symbols, symbols[1:])) if p in rank), default=None)
            if best is None: break
            pair = merges[best[0]]; used.add(best[0]); symbols[best[1]:best[1] + 2] = ["".join(pair)]
    return [merges[i] for i in sorted(used)], model["vocab"]


def shrink_bpe(path, out, texts, suffix=""):
    """The tokenizer with the vocabulary and merges that the texts need."""
    tok = Tokenizer.from_file(path)
    full = json.loads(tok.to_str())
    alphabet = {chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256)) + list(range(256, 324))}
    words = []
    for t in texts:
        normal = tok.normalizer.normalize_str(t) if tok.normalizer else t
        for w, _ in tok.pre_tokenizer.pre_tokenize_str(normal): words.append(list(w[:-1]) + [w[-1] + suffix] if w else [])
    merges, vocab = known_merges(tok, words)
    keep = alphabet | {a + suffix for a in alphabet} | {"".join(m) for m in merges} | {x for m in merges for x in m} | {a["content"] for a in full["added_tokens"]}
    full["model"]["vocab"] = {k: v for k, v in sorted(vocab.items(), key=lambda x: x[1]) if k in keep}
    full["model"]["merges"] = [f"{a} {b}" for a, b in merges]
    full["decoder"] = None
    json.dump(full, open(out, "w"), ensure_ascii=False, separators=(",", ":"))
    small = Tokenizer.from_file(out)
    for t in texts: assert small.encode(t).ids == tok.encode(t).ids, t


def shrink_unigram(path, out, texts):
    """A BPE tokenizer with the ids that a unigram tokenizer gives the texts: whole words are pieces of their own, other words are put
    together from merges that lead to their pieces."""
    tok = Tokenizer.from_file(path)
    vocab, merges, spare = {"<pad>": 0, "</s>": 1, "<unk>": 2}, [], 40000
    words = {}
    for t in texts:
        for w, _ in tok.pre_tokenizer.pre_tokenize_str(tok.normalizer.normalize_str(t)):
            words[w] = [(x.value, x.id) for x in tok.model.tokenize(w)]
    unknown = {c for pieces in words.values() for p, i in pieces if i == 2 for c in p}
    for w, pieces in words.items():
        pieces = [x for x in pieces if x[1] != 2]
        for c in w:
            if c not in vocab and c not in unknown:
                i = tok.token_to_id(c)
                if i is None: i, spare = spare, spare + 1
                vocab[c] = i
        for p, i in pieces: vocab[p] = i
        if len(words[w]) == 1: continue
        for p, _ in pieces:
            for k in range(1, len(p)):
                if p[:k + 1] not in vocab: vocab[p[:k + 1]] = tok.token_to_id(p[:k + 1]) or spare; spare += 1
                if (p[:k], p[k]) not in merges: merges.append((p[:k], p[k]))
    full = json.loads(tok.to_str())
    full["added_tokens"] = full["added_tokens"][:3]
    full["normalizer"]["normalizers"] = [n for n in full["normalizer"]["normalizers"] if n["type"] != "Precompiled"]
    full["decoder"] = None
    full["model"] = dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True, byte_fallback=False,
                         ignore_merges=True, vocab=vocab, merges=[f"{a} {b}" for a, b in merges])
    json.dump(full, open(out, "w"), ensure_ascii=False, separators=(",", ":"))
    small = Tokenizer.from_file(out)
    for t in texts:
        assert small.encode(t).ids == tok.encode(t).ids, (t, small.encode(t).tokens, tok.encode(t).tokens)


data = f"{ROOT}/tests/data/golden/{family}"
for folder, _, files in os.walk(golden):
    to = os.path.join(data, os.path.relpath(folder, golden))
    for name in files:
        if not name.endswith(".json") or name == "golden.json": continue
        os.makedirs(to, exist_ok=True)
        shutil.copyfile(os.path.join(folder, name), os.path.join(to, name)); os.chmod(os.path.join(to, name), 0o644)
        if name != "weights.json": continue
        lines = [l for l in open(f"{to}/{name}") if '"tied_to"' not in l]
        open(f"{to}/{name}", "w").write("".join(lines).replace("},\n]}", "}\n]}"))
texts = prompts()
if family == "flux1":
    from transformers import CLIPTokenizer
    CLIPTokenizer.from_pretrained(f"{sys.argv[3]}/clip").backend_tokenizer.save("/tmp/clip-tokenizer.json")
    shrink_bpe("/tmp/clip-tokenizer.json", f"{data}/tokenizer/tokenizer.json", texts, "</w>")
    shrink_unigram(f"{sys.argv[3]}/t5-tokenizer.json", f"{data}/tokenizer_2/tokenizer.json", texts)
else:
    around = [f"<|im_start|>user\n{t}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n" for t in texts]
    parts = [x for t in around for x in re.split(r"<\|[a-z_]+\|>", t)]
    shrink_bpe(f"{ROOT}/models/toybox/tokenizer/tokenizer.json", f"{data}/tokenizer/tokenizer.json", parts)
    tok, small = (Tokenizer.from_file(p) for p in (f"{ROOT}/models/toybox/tokenizer/tokenizer.json", f"{data}/tokenizer/tokenizer.json"))
    for t in around: assert tok.encode(t).tokens == small.encode(t).tokens  # tokenizers renumbers the added ones
out = collect("fp32")
out.update(collect("bf16"))
save_file(out, f"{data}/golden.safetensors")
print(len(out), "tensors,", os.path.getsize(f"{data}/golden.safetensors"), "bytes")
