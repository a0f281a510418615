#!/usr/bin/env python3
"""Sparse weights as compressed-tensors compresses them -> cases/compressed-tensors/sparse_24 and sparse_bitmask, with the weights that its
own decompression gives. Made with compressed-tensors 0.12.2, which still writes them: pip install compressed-tensors==0.12.2 torch safetensors."""
import json, os
from importlib.metadata import version

import torch
from compressed_tensors.compressors.sparse_compressors.sparse_24_bitmask import Sparse24BitMaskCompressor
from compressed_tensors.compressors.sparse_compressors.sparse_bitmask import BitmaskCompressor
from compressed_tensors.config import Sparse24BitMaskConfig, BitmaskConfig
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
N, K, ROWS = 16, 72, [0, 5, 10, 15]


def main():
    for case, compressor, dtype, structure in (
            ("sparse_24", Sparse24BitMaskCompressor(config=Sparse24BitMaskConfig(sparsity_structure="2:4")), torch.bfloat16, "2:4"),
            ("sparse_bitmask", BitmaskCompressor(config=BitmaskConfig()), torch.float16, "unstructured")):
        g = torch.Generator().manual_seed(3)
        w = torch.randn(N, K, generator=g).to(dtype)
        if structure == "2:4":
            drop = w.float().view(-1, 4).abs().topk(2, dim=1, largest=False).indices
            w.view(-1, 4).scatter_(1, drop, 0)
        else:
            w[torch.rand(N, K, generator=g) < 0.7] = 0
        tensors = compressor.compress({"layer.weight": w})
        (_, back), = compressor.decompress_from_state_dict(dict(tensors))
        assert torch.equal(back, w)
        x = torch.randn(5, K, generator=g)
        folder = os.path.join(HERE, "cases", "compressed-tensors", case)
        os.makedirs(folder, exist_ok=True)
        save_file({name: t.contiguous() for name, t in tensors.items()}, os.path.join(folder, "model.safetensors"))
        save_file({"layer.dequant_rows": back[ROWS].float().contiguous(), "layer.x": x, "layer.y": (x @ back.float().T).contiguous()},
                  os.path.join(folder, "expected.safetensors"))
        written = {"checkpoint": "model.safetensors", "producer": "compressed-tensors",
                   "versions": {"compressed-tensors": version("compressed-tensors"), "torch": torch.__version__},
                   "dequant": {"layer": {"shape": [N, K], "dtype": "float32", "rows": ROWS}},
                   "outputs": {"layer": {"x": "layer.x", "y": "layer.y", "dtype": "float32", "how": "values times x, float32"}}}
        config = {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {}, "quantization_status": "compressed",
                  "sparsity_config": {"format": compressor.config.format, "global_sparsity": 0.5, "ignore": [],
                                      "registry_requires_subclass": False, "sparsity_structure": structure, "targets": ["Linear"]}}}
        for file, what in (("case.json", written), ("config.json", config)):
            with open(os.path.join(folder, file), "w") as f:
                json.dump(what, f, indent=1)
                f.write("\n")


main()
