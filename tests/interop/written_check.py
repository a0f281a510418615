#!/usr/bin/env python3
"""Layers that omniq writes, opened by the libraries they are written for: TorchAO's safetensors form by torchao, packed layers
of compressed-tensors by its own decompressors. Every weight is that of `omniq dequantize`, bit for bit.

    pip install torch torchao compressed-tensors safetensors
    tests/interop/written_check.py build/omniq"""
import json
import os
import subprocess
import sys
import tempfile
import warnings

import torch
from safetensors import safe_open

warnings.filterwarnings("ignore")
from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict
from torchao.prototype.safetensors.safetensors_utils import is_metadata_torchao

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "toybox", "transformer")


def w4a16(**more):
    return dict({"method": "w4a16", "group_size": 32}, **more)


TORCHAO = ["int8", {"method": "fp8", "weight_strategy": "channel"}, w4a16(), w4a16(sym=False), w4a16(bits=8), w4a16(bits=2),
           "mxfp8", "mxfp4", "nvfp4", {"method": "nvfp4", "activations": "dynamic"}]
COMPRESSED = ["nvfp4", "mxfp4", "mxfp8", w4a16(), w4a16(sym=False)]


def read(path):
    with safe_open(path, "pt") as f:
        return {k: f.get_tensor(k) for k in f.keys()}, f.metadata()


def write(omniq, folder, spec, layout):
    path, plain = os.path.join(folder, "w.safetensors"), os.path.join(folder, "p.safetensors")
    text = spec if isinstance(spec, str) else json.dumps(spec)
    for words in (["quantize", MODEL, "--quantization", text, "--layout", layout, "-o", path],
                  ["dequantize", path, "--dtype", "f32", "-o", plain]):
        done = subprocess.run([omniq, *words, "--force", "-q"], capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
    return read(path), read(plain)[0]


def as_f32(weight):
    """The class's own dequantization, with F32 instead of the model's type as the type to dequantize to."""
    name = type(weight).__name__
    if name in ("MXTensor", "NVFP4Tensor"):
        return weight.dequantize(torch.float32)
    try:
        return weight.dequantize(output_dtype=torch.float32)
    except TypeError:
        return weight.dequantize().float()


def check_torchao(omniq, folder, spec):
    (tensors, metadata), plain = write(omniq, folder, spec, "torchao")
    if not is_metadata_torchao(metadata):
        return "its metadata are not torchao's"
    found, rest = unflatten_tensor_state_dict(tensors, metadata)
    classes, bad = set(), 0
    for name, weight in found.items():
        if type(weight) is torch.Tensor:
            continue
        classes.add(type(weight).__name__)
        got, want = as_f32(weight), plain[name]
        rounded = got.dtype != torch.float32 or torch.equal(got, got.bfloat16().float())
        same = torch.equal(got.float(), want) or (rounded and torch.equal(got.float(), want.bfloat16().float()))
        bad += not same
    if set(found) | set(rest) != set(plain):
        return "other names"
    return f"{bad} weights differ" if bad else f"{', '.join(classes)}: equal"


def check_compressed(omniq, folder, spec):
    from compressed_tensors.compressors.base import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    (tensors, metadata), plain = write(omniq, folder, spec, "compressed-tensors")
    config = QuantizationConfig.model_validate(json.loads(metadata["quantization_config"]))
    scheme = next(iter(config.config_groups.values()))
    compressor = BaseCompressor.load_from_registry(scheme.format)
    bad = n = 0
    for key in [k for k in tensors if k.endswith(("weight_packed", "weight_scale"))]:
        layer, leaf = key.rsplit(".", 1)
        if leaf == "weight_scale" and layer + ".weight_packed" in tensors:
            continue
        planes = {k.rsplit(".", 1)[1]: v for k, v in tensors.items() if k.rsplit(".", 1)[0] == layer}
        got = compressor.decompress(planes, scheme)["weight"].float()
        want = plain[layer + ".weight"]
        bad += not (torch.equal(got, want) or torch.equal(got.bfloat16(), want.bfloat16()))
        n += 1
    return f"{bad} of {n} weights differ" if bad or not n else f"{scheme.format}: {n} equal"


def main():
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        for check, specs in ((check_torchao, TORCHAO), (check_compressed, COMPRESSED)):
            for spec in specs:
                said = check(sys.argv[1], folder, spec)
                failed |= not said.endswith("equal")
                print(check.__name__[6:], spec, said)
    sys.exit(failed)


main()
