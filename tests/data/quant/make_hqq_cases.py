#!/usr/bin/env python3
"""Layers as HQQ's HQQLinear saves them -> cases/hqq/*: its own tensors, the values that it gives for them and the products of its
layers. Made with hqq 0.2.8.post1: pip install hqq torch safetensors."""
import json, os

import hqq
import torch
from hqq.core.quantize import BaseQuantizeConfig, HQQLinear
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
WORDS = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


def write(case, dtype, layers):
    folder = os.path.join(HERE, "cases", "hqq", case)
    os.makedirs(folder, exist_ok=True)
    model, expected = {}, {}
    told = {"checkpoint": "model.safetensors", "producer": "hqq", "versions": {"hqq": hqq.__version__, "torch": torch.__version__},
            "dequant": {}, "outputs": {}}
    for i, (name, (n, k, bits, group, more)) in enumerate(layers.items()):
        g = torch.Generator().manual_seed(500 + i)
        linear = torch.nn.Linear(k, n, bias=i == 0)
        linear.weight.data = torch.randn(n, k, generator=g) * 0.05
        if i == 0:
            linear.bias.data = torch.randn(n, generator=g)
        config = BaseQuantizeConfig(nbits=bits, group_size=group, **{"axis": 1, **more})
        layer = HQQLinear(linear, quant_config=config, compute_dtype=dtype, device="cpu")
        for key, value in layer.state_dict().items():
            if value is not None:
                model[f"{name}.{key}"] = value.detach().contiguous() if value.dim() else value.detach().clone()
        w = layer.dequantize().detach()
        rows = sorted({j * (n - 1) // 3 for j in range(4)})
        expected[f"{name}.dequant_rows"] = w[rows].contiguous()
        told["dequant"][name] = {"shape": [n, k], "dtype": WORDS[dtype], "rows": rows}
        if dtype == torch.float32:
            x = torch.randn(5, k, generator=g)
            expected[f"{name}.x"], expected[f"{name}.y"] = x, (x @ w.t()).contiguous()
            told["outputs"][name] = {"x": f"{name}.x", "y": f"{name}.y", "dtype": "float32", "how": "its values times x, float32"}
    save_file(model, os.path.join(folder, "model.safetensors"))
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    asked = {"nbits": 4, "group_size": 64, "axis": 1, "view_as_float": False, "channel_wise": True, "optimize": True, "round_zero": True}
    config = {"quant_config": {"offload_meta": False, "scale_quant_params": None, "weight_quant_params": asked, "zero_quant_params": None},
              "quant_method": "hqq", "skip_modules": ["lm_head"]}
    for name, value in (("case.json", told), ("config.json", {"quantization_config": config})):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f, indent=1)
            f.write("\n")


write("bits", torch.float32, {"b4": (16, 128, 4, 64, {}), "b8": (8, 128, 8, 64, {}), "b3": (12, 128, 3, 64, {}),
                              "b2": (16, 128, 2, 16, {}), "b1": (16, 128, 1, 32, {}), "row": (8, 96, 4, 96, {})})
write("f16", torch.float16, {"b4": (16, 128, 4, 64, {}), "wide": (8, 512, 2, 256, {}), "viewed": (16, 128, 4, 128, {"view_as_float": True})})
write("bf16", torch.bfloat16, {"b8": (8, 128, 8, 128, {}), "b3": (16, 128, 3, 64, {})})
write("axis0", torch.float32, {"b4": (128, 32, 4, 64, {"axis": 0}), "b8": (64, 32, 8, 64, {"axis": 0}), "b3": (64, 32, 3, 32, {"axis": 0}),
                               "b2": (128, 16, 2, 128, {"axis": 0}), "b1": (64, 32, 1, 64, {"axis": 0})})
write("axis0_f16", torch.float16, {"b2": (64, 32, 2, 32, {"axis": 0}), "b4": (128, 32, 4, 64, {"axis": 0, "view_as_float": True})})
