#!/usr/bin/env python3
"""Layers in the planes of GPTQModel's gptq_p -> cases/gptq/*: packed by its own gptqmodel.utils.planar_packing, the values that its
model_dequant gives for them ((code - zero) * scale). Made with GPTQModel's 7.3.4; codes are rounded here."""
import json, os

import torch
from gptqmodel.utils.planar_packing import planar_pack_cols, planar_pack_rows
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))


def write(case, layers, **config):
    folder = os.path.join(HERE, "cases", "gptq", case)
    os.makedirs(folder, exist_ok=True)
    model, expected, told = {}, {}, {"checkpoint": "model.safetensors", "producer": "gptqmodel",
                                     "versions": {"gptqmodel": "7.3.4", "torch": torch.__version__}, "dequant": {}, "outputs": {}}
    for i, (name, (n, k, bits, group, ordered)) in enumerate(layers.items()):
        g = torch.Generator().manual_seed(70 + i)
        w = torch.randn(n, k, generator=g) * 0.05
        index = torch.randperm(k, generator=g) // group if ordered else torch.arange(k) // group
        groups, top = k // group, 2 ** bits - 1
        scale, zero = torch.empty(groups, n), torch.empty(groups, n, dtype=torch.int32)
        for j in range(groups):
            part = w[:, index == j]
            low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
            scale[j] = ((high - low) / top).half().float()
            zero[j] = (-low / scale[j]).round().clamp(0, top)
        codes = (w.t() / scale[index] + zero[index]).round().clamp(0, top).to(torch.int32)
        model[f"{name}.qweight"], model[f"{name}.qzeros"] = planar_pack_rows(codes, bits), planar_pack_cols(zero, bits)
        model[f"{name}.scales"], model[f"{name}.g_idx"] = scale.half(), index.to(torch.int32)
        value = ((codes.float() - zero[index].float()) * scale[index]).t().contiguous()
        rows = [0, n // 2, n - 1]
        expected[f"{name}.dequant_rows"] = value[rows][:, torch.argsort(index, stable=True)].contiguous()  # columns by their groups
        told["dequant"][name] = {"shape": [n, k], "dtype": "float32", "rows": rows}
        x = torch.randn(3, k, generator=g)
        expected[f"{name}.x"], expected[f"{name}.y"] = x, (x @ value.t()).contiguous()
        told["outputs"][name] = {"x": f"{name}.x", "y": f"{name}.y", "dtype": "float32", "how": "its values times x, float32"}
    save_file(model, os.path.join(folder, "model.safetensors"))
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    for name, value in (("case.json", told), ("config.json", {"quantization_config": {"quant_method": "gptq", "sym": False, **config}})):
        with open(os.path.join(folder, name), "w") as f:
            json.dump(value, f, indent=1)
            f.write("\n")


write("planes", {"b6": (32, 64, 6, 32, False), "b5": (32, 128, 5, 64, True), "b7": (64, 64, 7, 64, False), "b3": (32, 64, 3, 32, False),
                 "b4": (32, 64, 4, 32, False), "b8": (32, 64, 8, 32, False)},
      bits=6, group_size=32, format="gptq_p", checkpoint_format="gptq_p", desc_act=True,
      dynamic={"b5": {"bits": 5, "group_size": 64}, "b7": {"bits": 7, "group_size": 64}, "b3": {"bits": 3}, "b4": {"bits": 4}, "b8": {"bits": 8}})
write("bits7", {"a": (32, 64, 7, 64, False)}, bits=7, group_size=64, checkpoint_format="gptq")
