#!/usr/bin/env python3
"""Components that omniq writes, loaded by the libraries that load models: diffusers takes the transformer, transformers the text
encoder, each by `from_pretrained` on the folder as it is, GGUF by `from_single_file`. What each linear layer then holds, or makes
of the unit matrix where it does not tell, is held against `omniq dequantize`.

    tests/interop/loaders_check.py build/omniq          (needs torch, diffusers, transformers, bitsandbytes, torchao,
                                                         compressed-tensors, gguf)"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

import torch
from safetensors import safe_open

warnings.filterwarnings("ignore")
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "toybox")
FP8 = {"method": "fp8", "weight_strategy": "channel"}
INT4 = {"method": "w4a16", "group_size": 32}


def plain(path):
    with safe_open(path, "pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}


def by_diffusers(path):
    from diffusers import ZImageTransformer2DModel
    return ZImageTransformer2DModel.from_pretrained(path, torch_dtype=torch.bfloat16)


def by_diffusers_file(path):
    from diffusers import GGUFQuantizationConfig, ZImageTransformer2DModel
    return ZImageTransformer2DModel.from_single_file(
        path, quantization_config=GGUFQuantizationConfig(compute_dtype=torch.bfloat16), config=MODEL, subfolder="transformer",
        torch_dtype=torch.bfloat16)


def by_transformers(path):
    from transformers import AutoModel, CompressedTensorsConfig
    said = json.load(open(os.path.join(path, "config.json")))["quantization_config"]
    how = {"quantization_config": CompressedTensorsConfig(run_compressed=False)} if said["quant_method"] == "compressed-tensors" else {}
    return AutoModel.from_pretrained(path, dtype=torch.bfloat16, **how)


def gguf(name):
    return {"method": "gguf", "type": name}


CASES = [  # component, layout, quantization, names, loader
    ("transformer", "bitsandbytes", "bitsandbytes", None, by_diffusers),
    ("transformer", "bitsandbytes", {"method": "bitsandbytes", "quant_type": "fp4"}, None, by_diffusers),
    ("transformer", "torchao", "int8", None, by_diffusers),
    ("transformer", "torchao", FP8, None, by_diffusers),
    ("transformer", "torchao", INT4, None, by_diffusers),
    ("transformer", "torchao", "mxfp8", None, by_diffusers),
    ("transformer", "torchao", "nvfp4", None, by_diffusers),
    ("transformer", "gguf", gguf("Q8_0"), "source", by_diffusers_file),
    ("transformer", "gguf", gguf("Q8_0"), "original", by_diffusers_file),
    ("transformer", "gguf", gguf("Q4_K"), "original", by_diffusers_file),
    ("text_encoder", "bitsandbytes", "bitsandbytes", None, by_transformers),
    ("text_encoder", "torchao", "int8", None, by_transformers),
    ("text_encoder", "torchao", FP8, None, by_transformers),
    ("text_encoder", "torchao", INT4, None, by_transformers),
    ("text_encoder", "compressed-tensors", "int8", None, by_transformers),
    ("text_encoder", "compressed-tensors", "fp8", None, by_transformers),
    ("text_encoder", "compressed-tensors", FP8, None, by_transformers),
    ("text_encoder", "compressed-tensors", INT4, None, by_transformers),
    ("text_encoder", "compressed-tensors", "nvfp4", None, by_transformers),
]


def omniq(program, *words):
    done = subprocess.run([program, *words, "--force", "-q"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())


def weight_of(module):
    w = module.weight
    if type(w).__name__ == "GGUFParameter":
        from diffusers.quantizers.gguf.utils import dequantize_gguf_tensor
        return dequantize_gguf_tensor(w)
    if getattr(w, "quant_state", None) is not None:
        from bitsandbytes.functional import dequantize_4bit
        return dequantize_4bit(w.data, w.quant_state)
    if type(w).__module__.startswith("torchao"):
        return w.dequantize()
    rows = torch.eye(module.in_features, dtype=torch.bfloat16)  # whatever the module does with its weight
    return module(rows).T - (0 if module.bias is None else module.bias[:, None])


def check(program, folder, component, layout, spec, names, load):
    out = os.path.join(folder, "out.gguf" if layout == "gguf" else "out")
    back = os.path.join(folder, "back.safetensors" if layout == "gguf" else "back")
    spec = spec if isinstance(spec, str) else json.dumps(spec)
    omniq(program, "quantize", os.path.join(MODEL, component), "--quantization", spec, "--layout", layout, "-o", out,
          *(["--names", names] if names else []))
    # what the layers are in the loader's names: those of the source
    named = out
    if names == "original":
        named = os.path.join(folder, "named.gguf")
        omniq(program, "quantize", os.path.join(MODEL, component), "--quantization", spec, "--layout", layout, "-o", named)
    omniq(program, "dequantize", named, "--dtype", "f32", "-o", back)
    want = {}
    for path in [back] if os.path.isfile(back) else [os.path.join(back, n) for n in os.listdir(back) if n.endswith(".safetensors")]:
        want.update(plain(path))
    model, n, worst = load(out), 0, (0.0, "")
    with torch.no_grad():
        for name, module in model.named_modules():
            key = next((k for k in (name + ".weight", "model." + name + ".weight") if k in want), None)
            if not isinstance(module, torch.nn.Linear) and not hasattr(module, "in_features") or key is None:
                continue
            got, ours = weight_of(module).float(), want[key].float()
            off = ((got - ours).abs().max() / ours.abs().max()).item() if got.shape == ours.shape else float("inf")
            worst, n = max(worst, (off, name)), n + 1
    if n < 20:
        return f"only {n} layers are known by name"
    return f"{n} layers, at most {worst[0]:.1e} of the largest weight apart" + ("" if worst[0] < 2 ** -6 else f" ({worst[1]}): TOO FAR")


def main():
    bad = 0
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                said = check(sys.argv[1], folder, *case)
            except Exception as e:  # a loader's own refusal is what is to be seen
                if "No GPU found" in str(e):
                    print(case[4].__name__[3:], *case[:2], "needs a GPU: not tried", flush=True)
                    continue
                said = f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}: FAILED"
        component, layout, spec, names, load = case
        print(f"{load.__name__[3:]} {component} {layout} {json.dumps(spec)}{' ' + names if names else ''}: {said}", flush=True)
        bad += not said.endswith("apart")
    sys.exit(1 if bad else 0)


main()
