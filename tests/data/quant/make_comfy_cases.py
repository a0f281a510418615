#!/usr/bin/env python3
"""Modulation layers in ComfyUI's format awq_w4a16 -> cases/comfy/awq_w4a16: tensors as its loader takes them, with the values and
products of comfy-kitchen's own plain torch. Nobody quantizes with it (the class only loads), so codes, scales and zero points are
random. Made with comfy-kitchen 0.2.40: pip install comfy-kitchen torch safetensors."""
import json, os

import comfy_kitchen
import torch
from comfy_kitchen.tensor.awq_w4a16 import TensorCoreAWQW4A16Layout as Layout
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
N, K = 16, 128
ROWS = [0, 5, 10, 15]


def layer(seed, group, dtype):
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(-128, 128, (N, K // 2), generator=g).to(torch.int8)
    scale = (torch.rand(K // group, N, generator=g) * 0.02 + 0.001).to(dtype)
    zeros = (torch.randn(K // group, N, generator=g) * 0.01).to(dtype)
    # the class's arithmetic in F32: in the model's type it rounds every value once more
    params = Layout.Params(scale=scale.float(), zeros=zeros.float(), orig_dtype=torch.float32, orig_shape=(N, K), group_size=group)
    x = torch.randn(5, K, generator=g)
    y = comfy_kitchen.gemv_awq_w4a16(x, codes, scale.float(), zeros.float(), group_size=group)
    return codes, scale, zeros, Layout.dequantize(codes, params), x, y


def main():
    folder = os.path.join(HERE, "cases", "comfy", "awq_w4a16")
    os.makedirs(folder, exist_ok=True)
    model, expected, case = {}, {}, {"checkpoint": "model.safetensors", "producer": "comfy", "versions": {
        "comfy-kitchen": "0.2.40", "torch": torch.__version__}, "dequant": {}, "outputs": {}}
    for seed, (name, group, dtype, told) in enumerate([("mod_g64", 64, torch.bfloat16, False), ("mod_g32", 32, torch.float16, True)]):
        codes, scale, zeros, w, x, y = layer(seed, group, dtype)
        word = {"format": "awq_w4a16", **({"group_size": group} if told else {})}
        model |= {f"{name}.weight": codes, f"{name}.weight_scale": scale, f"{name}.weight_zeros": zeros,
                  f"{name}.comfy_quant": torch.tensor(list(json.dumps(word).encode()), dtype=torch.uint8)}
        expected |= {f"{name}.dequant_rows": w[ROWS].contiguous(), f"{name}.x": x, f"{name}.y": y}
        case["dequant"][name] = {"shape": [N, K], "dtype": "float32", "rows": ROWS}
        case["outputs"][name] = {"x": f"{name}.x", "y": f"{name}.y", "dtype": "float32", "how": "comfy-kitchen's eager product, float32"}
    save_file(model, os.path.join(folder, "model.safetensors"))
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "case.json"), "w") as f:
        json.dump(case, f, indent=1)
        f.write("\n")
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write("{}\n")


main()
