#!/usr/bin/env python3
"""Layers of four and two bits as optimum-quanto saves them -> cases/quanto/*: its own tensors, the values that it gives for them and the
products of its layers. Made with optimum-quanto 0.2.7: pip install optimum-quanto torch safetensors."""
import json, os, sys
from types import SimpleNamespace

import optimum.quanto
import torch
from optimum.quanto import freeze, qfloat8_e5m2, qint2, qint4, quantize
from optimum.quanto.tensor.weights.qbits import WeightQBitsTensor
from optimum.quanto.tensor.weights.qbytes import WeightQBytesTensor
from safetensors.torch import save_file

# its compiled unpacking, in plain torch
sys.modules["optimum.quanto.library.extensions.cpp"].ext._lib = SimpleNamespace(
    unpack=lambda t, bits: torch.cat([t >> at & (1 << bits) - 1 for at in range(0, 8, bits)]))

HERE = os.path.dirname(os.path.abspath(__file__))
WORDS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def plain(weight):
    """The layout that is saved, whatever kernel this machine would take."""
    if isinstance(weight, WeightQBytesTensor):
        return weight
    return weight if type(weight) is WeightQBitsTensor else weight.weight_qbits_tensor()


def write(case, qtype, word, dtype, layers):
    folder = os.path.join(HERE, "cases", "quanto", case)
    os.makedirs(folder, exist_ok=True)
    net = torch.nn.Module()
    for i, (name, (n, k)) in enumerate(layers.items()):
        layer = torch.nn.Linear(k, n, bias=i == 0)
        layer.weight.data = torch.randn(n, k, generator=torch.Generator().manual_seed(900 + i)) * 0.05
        setattr(net, name, layer.to(dtype))
    quantize(net, weights=qtype)
    freeze(net)
    save_file({k: v.contiguous().clone() for k, v in net.state_dict().items()}, os.path.join(folder, "model.safetensors"))
    told = {"checkpoint": "model.safetensors", "producer": "quanto", "versions": {"optimum-quanto": "0.2.7", "torch": torch.__version__},
            "dequant": {}, "outputs": {}}
    expected = {}
    for name, (n, k) in layers.items():
        w = plain(getattr(net, name).weight).dequantize().detach()
        rows = sorted({j * (n - 1) // 3 for j in range(4)})
        expected[f"{name}.dequant_rows"] = w[rows].contiguous()
        told["dequant"][name] = {"shape": [n, k], "dtype": WORDS[dtype], "rows": rows}
        if dtype == torch.float32:
            x = torch.randn(5, k, generator=torch.Generator().manual_seed(n + k))
            expected[f"{name}.x"], expected[f"{name}.y"] = x, (x @ w.t()).contiguous()
            told["outputs"][name] = {"x": f"{name}.x", "y": f"{name}.y", "dtype": "float32", "how": "its values times x, float32"}
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    config = {"quant_method": "quanto", "weights_dtype": word, "modules_to_not_convert": []}
    for name, value in (("case.json", told), ("config.json", {"quantization_config": config})):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f, indent=1)
            f.write("\n")


write("int4", qint4, "int4", torch.float32, {"g128": (16, 256), "g96": (9, 96), "g64": (8, 64)})
write("int4_bf16", qint4, "int4", torch.bfloat16, {"g128": (16, 256), "g64": (8, 192)})
write("int2_f16", qint2, "int2", torch.float16, {"g128": (16, 256)})
write("e5m2", qfloat8_e5m2, "float8_e5m2", torch.float32, {"a": (16, 96), "b": (8, 64)})
