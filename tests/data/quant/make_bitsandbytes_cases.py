#!/usr/bin/env python3
"""Small matrices through bitsandbytes' own quantize_4bit in blocks other than 64, nested or not, with a short last block, of an odd
number of weights -> bitsandbytes_bN*/model.safetensors, config.json, expected.safetensors. The values are code table times
absmax in float32, in bitsandbytes' order; where every row is whole blocks its dequantize_4bit must give the same.
Made with bitsandbytes 0.50.2, torch 2.15. Usage: make_bitsandbytes_cases.py"""
import json, os

import torch
import bitsandbytes.functional as F
import safetensors.torch as st

HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [  # folder, n, k, block, nested, table
    ("bitsandbytes_b32_nested", 8, 96, 32, True, "nf4"),
    ("bitsandbytes_b128", 6, 128, 128, False, "fp4"),
    ("bitsandbytes_b256_nested", 6, 160, 256, True, "nf4"),  # blocks reach across rows, the last is short
    ("bitsandbytes_b4096_nested", 40, 250, 4096, True, "nf4"),
    ("bitsandbytes_odd", 5, 51, 64, False, "nf4"),
]


def values(packed, state):
    codes = torch.stack([packed >> 4, packed & 15], -1).reshape(-1)[: state.shape.numel()]
    absmax = state.absmax
    if state.nested:
        map_, outer = state.state2.code, state.state2.absmax
        absmax = map_[absmax.long()] * outer.repeat_interleave(state.state2.blocksize)[: absmax.numel()] + state.offset
    return (state.code[codes.long()] * absmax.repeat_interleave(state.blocksize)[: codes.numel()]).reshape(state.shape)


for i, (folder, n, k, block, nested, table) in enumerate(CASES):
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(i))
    packed, state = F.quantize_4bit(w, blocksize=block, compress_statistics=nested, quant_type=table)
    wanted = values(packed.reshape(-1), state)
    if k % block == 0:
        assert torch.equal(F.dequantize_4bit(packed, state), wanted)
    assert (wanted - w).pow(2).mean() < 0.02
    at = os.path.join(HERE, folder)
    os.makedirs(at, exist_ok=True)
    tensors = {"layer.weight": packed} | {f"layer.weight.{name}": t for name, t in state.as_dict(packed=True).items()}
    st.save_file({name: t.contiguous() for name, t in tensors.items()}, os.path.join(at, "model.safetensors"))
    rows = [0, 1, n // 2, n - 1]
    st.save_file({"rows": wanted[rows].contiguous(), "index": torch.tensor(rows)}, os.path.join(at, "expected.safetensors"))
    with open(os.path.join(at, "config.json"), "w") as out:
        json.dump({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True,
                                           "bnb_4bit_quant_type": table, "bnb_4bit_use_double_quant": nested}}, out, indent=2)
        out.write("\n")
