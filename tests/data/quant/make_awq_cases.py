#!/usr/bin/env python3
"""Layers in AWQ's packings gemv, gemv_fast and marlin -> cases/awq: what AutoAWQ's own classes make of weights whose codes, scales
and zero points are known, with the values that these mean. Needs torch, numpy, safetensors and AutoAWQ's source:
make_awq_cases.py FOLDER, where FOLDER is the unpacked source of autoawq 0.2.9 (its import as a whole needs older libraries)."""
import importlib, json, os, sys, types

import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = [0, 5, 10, 15]


def classes(source):
    for name in ("awq", "awq.utils", "awq.modules", "awq.modules.linear"):  # their files alone, without the packages' own imports
        module = types.ModuleType(name)
        module.__path__ = [os.path.join(source, *name.split("."))]
        sys.modules[name] = module
    return {version: getattr(importlib.import_module("awq.modules.linear." + version), "WQLinear_" + kind)
            for version, kind in (("gemv", "GEMV"), ("gemv_fast", "GEMVFast"), ("marlin", "Marlin"))}


def layer(cls, version, n, k, group, dtype):
    g = torch.Generator().manual_seed(n + k + group)
    codes = torch.randint(0, 16, (n, k), generator=g)
    scales = (torch.rand(n, k // group, generator=g) * 0.02 + 0.01).half()
    symmetric = version == "marlin"
    zeros = torch.full((n, k // group), 8) if symmetric else torch.randint(0, 16, (n, k // group), generator=g)
    wide = [t.float().repeat_interleave(group, 1) for t in (scales, zeros)]
    linear = torch.nn.Linear(k, n, bias=False)
    linear.weight.data = (codes - wide[1]) * wide[0]
    made = cls.from_linear(linear, 4, group, scales=scales, zeros=None if symmetric else zeros)
    values = linear.weight.data
    if version == "gemv_fast":  # it keeps -zero * scale, rounded
        values = codes * wide[0] + (-(scales * zeros.float()).half()).float().repeat_interleave(group, 1)
    x = torch.randn(5, k, generator=g)
    return {name: t.contiguous() for name, t in made.state_dict().items()}, values, x, x @ values.T


def write(name, version, made, group):
    folder = os.path.join(HERE, "cases", "awq", name)
    os.makedirs(folder, exist_ok=True)
    tensors, w, x, y = made
    save_file({f"layer.{key}": t for key, t in tensors.items()}, os.path.join(folder, "model.safetensors"))
    save_file({"layer.dequant_rows": w[ROWS].contiguous(), "layer.x": x, "layer.y": y.contiguous()}, os.path.join(folder, "expected.safetensors"))
    case = {"checkpoint": "model.safetensors", "producer": "autoawq", "versions": {"autoawq": "0.2.9", "torch": torch.__version__},
            "dequant": {"layer": {"shape": list(w.shape), "dtype": "float32", "rows": ROWS}},
            "outputs": {"layer": {"x": "layer.x", "y": "layer.y", "dtype": "float32", "how": "values times x, float32"}}}
    quant = {"quant_method": "awq", "zero_point": version != "marlin", "group_size": group, "bits": 4, "version": version,
             "modules_to_not_convert": None}
    for file, what in (("case.json", case), ("config.json", {"quantization_config": quant})):
        with open(os.path.join(folder, file), "w") as f:
            json.dump(what, f, indent=1)
            f.write("\n")


def main():
    by_name = classes(sys.argv[1])
    for name, version, n, k, group in (("gemv_g64", "gemv", 16, 256, 64), ("gemv_g128", "gemv", 16, 256, 128),
                                       ("gemv_fast_g128", "gemv_fast", 16, 256, 128), ("gemv_fast_g32", "gemv_fast", 16, 64, 32),
                                       ("marlin_g128", "marlin", 64, 256, 128), ("marlin_rows", "marlin", 64, 64, 64)):
        write(name, version, layer(by_name[version], version, n, k, group, torch.float16), group)


main()
