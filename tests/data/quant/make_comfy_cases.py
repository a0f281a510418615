#!/usr/bin/env python3
"""Layers in ComfyUI's formats float8_e5m2, awq_w4a16, convrot_w4a4, asym_w4a8_int8, svdquant_w4a4 and nvfp4 with factors of its input ->
cases/comfy:
tensors as its loader takes them, with the values (those of rotated layers still rotated, of svdquant_w4a4 the residual) and products of
comfy-kitchen's own plain torch. Nobody quantizes with awq_w4a16 and svdquant_w4a4 (the classes only load), so their numbers are random.
Made with comfy-kitchen 0.2.40: pip install comfy-kitchen torch safetensors."""
import json, os

import comfy_kitchen
import torch
from comfy_kitchen.backends.eager import svdquant, w4a8_int8
from comfy_kitchen.tensor.awq_w4a16 import TensorCoreAWQW4A16Layout as Awq
from comfy_kitchen.tensor.convrot_w4a4 import TensorCoreConvRotW4A4Layout as W4A4
from comfy_kitchen.tensor import QuantizedTensor
from comfy_kitchen.tensor.nvfp4 import TensorCoreNVFP4Layout as Nvfp4
from comfy_kitchen.tensor.svdquant_w4a4 import TensorCoreSVDQuantW4A4Layout as Svd, _w4a4_forward
from comfy_kitchen.tensor.w4a8_int8 import AsymW4A8Int8Layout as W4A8
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
ROWS = [0, 5, 10, 15]
N = 16
FULL = {"full_precision_matrix_mult": True}


def product(layout, tensors_of, w, x, word, **how):
    """The product of the class, or of its dequantized weight where the word asks for full precision."""
    q, p = layout.quantize(w, **how)
    full = word.get("full_precision_matrix_mult")
    y = x @ layout.dequantize(q, p).T if full else tensors_of(x, q, p)
    return q, p, y


def awq(g, group, dtype, word):
    k = 128
    codes = torch.randint(-128, 128, (N, k // 2), generator=g).to(torch.int8)
    scale = (torch.rand(k // group, N, generator=g) * 0.02 + 0.001).to(dtype)
    zeros = (torch.randn(k // group, N, generator=g) * 0.01).to(dtype)
    # the class's arithmetic in F32: in the model's type it rounds every value once more
    params = Awq.Params(scale=scale.float(), zeros=zeros.float(), orig_dtype=torch.float32, orig_shape=(N, k), group_size=group)
    x = torch.randn(5, k, generator=g)
    y = comfy_kitchen.gemv_awq_w4a16(x, codes, scale.float(), zeros.float(), group_size=group)
    return {"weight": codes, "weight_scale": scale, "weight_zeros": zeros}, word, Awq.dequantize(codes, params), x, y


def w4a4(g, k, rotate, word):
    w, x = torch.randn(N, k, generator=g) * 0.05, torch.randn(5, k, generator=g)
    kind = word.get("params", word).get("linear_dtype", "int4")
    if kind == "int8":  # plain torch has the int4 product alone: that of eight-bit codes is the class's for machines that multiply those
        def run(x, q, p):
            return comfy_kitchen.int8_linear(x, svdquant._unpack_int4_row_major(q), p.scale, None, torch.float32, convrot=True,
                                             convrot_groupsize=rotate)
    else:
        def run(x, q, p):
            return comfy_kitchen.convrot_w4a4_linear(x, q, p.scale, None, rotate)
    q, p, y = product(W4A4, run, w, x, word, convrot_groupsize=rotate)
    values = svdquant._unpack_int4_row_major(q).float() * p.scale.reshape(-1, 1)
    return {"weight": q, "weight_scale": p.scale}, word, values, x, y


def w4a8(g, k, rotate, word, as_bytes=False, table=None, **how):
    w, x = torch.randn(N, k, generator=g) * 0.05, torch.randn(5, k, generator=g)
    if table is not None:
        how["codebook_tensor"] = table
    group = word.get("group_size", 16)

    def run(x, q, p):
        return comfy_kitchen.w4a8_int8_linear(x, q, p.scale, p.s_channel, p.codebook, None, None, group, rotate, torch.float32)

    q, p, y = product(W4A8, run, w, x, word, group_size=group, convrot_groupsize=rotate, **how)
    whole = w4a8_int8._dequant_int4_grouped_to_int8(q, p.scale, p.codebook, group)
    tensors = {"weight": q, "weight_s_rel": p.scale.view(torch.uint8) if as_bytes else p.scale, "weight_s_channel": p.s_channel}
    if p.codebook is not None:
        tensors["weight_codebook"] = p.codebook
    return tensors, word, whole.float() * p.s_channel.reshape(-1, 1), x, y


def svdquant4(g, n, k, rank, dtype, word, spelling="", tiles=False, smoothed=False):
    codes = torch.randint(-128, 128, (n, k // 2), generator=g).to(torch.int8)
    scale = (torch.rand(k // 64, n, generator=g) * 0.02 + 0.001).to(dtype)
    smooth = (torch.rand(k, generator=g) + 0.5).to(dtype)
    down, up = ((torch.randn(size, rank, generator=g) * 0.05).to(dtype) for size in (k, n))
    x = torch.randn(5, k, generator=g)
    if word.get("act_unsigned"):
        x = x.abs() - 0.17  # as GELU leaves it
    # a branch behind the smoothing is one over x with factors of its own
    raw = down.float() / smooth.float()[:, None] if smoothed else down.float()
    params = Svd.Params(scale=scale.float(), orig_dtype=torch.float32, orig_shape=(n, k), proj_down=raw, proj_up=up.float(),
                        smooth_factor=smooth.float(), act_unsigned=bool(word.get("act_unsigned")))
    y = _w4a4_forward(x, QuantizedTensor(codes, "TensorCoreSVDQuantW4A4Layout", params), None)
    values = svdquant._unpack_int4_row_major(codes).float().view(n, k // 64, 64) * scale.float().t().unsqueeze(-1)
    stored = {"weight": codes, "weight_scale": scale, "smooth_factor": smooth, "proj_down": down, "proj_up": up}
    if tiles:
        stored["weight"] = codes.view(n // 128, 32, 4, k // 64, 32).permute(0, 3, 1, 2, 4).reshape(n // 128, k // 64, 32, 128)
        stored["weight_scale"] = scale.view(k // 64, n // 128, 128).permute(1, 0, 2)
        stored["proj_up"] = up.view(n // 128, 128, rank).permute(0, 2, 1)
        natural = svdquant._tile_packed_weight_to_row_major(stored["weight"])  # the package's own way back
        assert torch.equal(natural, codes) and torch.equal(svdquant._tile_packed_scales_to_natural(stored["weight_scale"]), scale)
        assert torch.equal(svdquant._tile_packed_lora_up_to_natural(stored["proj_up"]), up)
    tensors = {(spelling + key if key[:6] != "weight" else key): t for key, t in stored.items()}
    return tensors, word, values.reshape(n, k), x, y


def nvfp4(g, k, static, word):
    w = (torch.randn(N, k, generator=g) * 0.05).to(torch.bfloat16).float()
    x, factors = torch.randn(5, k, generator=g), (torch.rand(k, generator=g) + 0.5).to(torch.bfloat16)
    q, p = Nvfp4.quantize(w)
    values = Nvfp4.dequantize(q, p)
    tensors = {"weight": q, "weight_scale": p.block_scale, "weight_scale_2": p.scale, "pre_quant_scale": factors}
    x_in = x * factors.float()
    if static:
        tensors["input_scale"] = (x_in.abs().amax() / 2688).float()
        x_in = Nvfp4.dequantize(*Nvfp4.quantize(torch.nn.functional.pad(x_in, (0, 0, 0, 11)), tensors["input_scale"]))[:5]
    return tensors, word, values, x, x_in @ values.T


def e5m2(g, k, per_row):
    w, x = torch.randn(N, k, generator=g) * 0.05, torch.randn(5, k, generator=g)
    scale = (w.abs().amax(1) if per_row else w.abs().amax()) / 57344
    codes = (w / (scale[:, None] if per_row else scale)).to(torch.float8_e5m2)
    values = codes.float() * (scale[:, None] if per_row else scale)
    return {"weight": codes, "weight_scale": scale}, {}, values, x, x @ values.T


CASES = {
    "float8_e5m2": {"whole": lambda g: e5m2(g, 48, False), "rows": lambda g: e5m2(g, 64, True)},
    "awq_w4a16": {
        "mod_g64": lambda g: awq(g, 64, torch.bfloat16, {}),
        "mod_g32": lambda g: awq(g, 32, torch.float16, {"group_size": 32}),
    },
    "convrot_w4a4": {
        "usual": lambda g: w4a4(g, 512, 256, {}),
        "eight": lambda g: w4a4(g, 64, 16, {"params": {"convrot_groupsize": 16, "linear_dtype": "int8"}}),
        "full": lambda g: w4a4(g, 64, 64, {"convrot_groupsize": 64} | FULL),
    },
    "asym_w4a8_int8": {
        "usual": lambda g: w4a8(g, 512, 256, {"group_size": 16, "convrot_groupsize": 256}),
        "bytes_own_table": lambda g: w4a8(g, 64, 16, {"convrot_groupsize": 16}, True, torch.linspace(-1.1, 0.9, 16) ** 3),
        "no_table_g32": lambda g: w4a8(g, 128, 64, {"group_size": 32, "convrot_groupsize": 64}, codebook=False),
        "six_bits": lambda g: w4a8(g, 256, 256, {}, bits=6),
        "full": lambda g: w4a8(g, 64, 64, {"convrot_groupsize": 64} | FULL),
    },
    "nvfp4_awq": {
        "static": lambda g: nvfp4(g, 64, True, {}),
        "full": lambda g: nvfp4(g, 128, False, FULL),
    },
    "svdquant_w4a4": {
        "rows": lambda g: svdquant4(g, N, 128, 3, torch.bfloat16, {"group_size": 64}, "weight_"),
        "tiles": lambda g: svdquant4(g, 128, 64, 2, torch.float16, {"layout": "kitchen_tile_packed_w4a4", "act_unsigned": True}, tiles=True),
        "behind_smoothing": lambda g: svdquant4(g, N, 64, 4, torch.bfloat16, {"lowrank_branch_input_basis": "post_smoothing",
                                                                            "proj_down_smooth_folded": False}, smoothed=True),
    },
}


def write(format, layers):
    folder = os.path.join(HERE, "cases", "comfy", format)
    os.makedirs(folder, exist_ok=True)
    model, expected, case = {}, {}, {"checkpoint": "model.safetensors", "producer": "comfy", "versions": {
        "comfy-kitchen": "0.2.40", "torch": torch.__version__}, "dequant": {}, "outputs": {}}
    for seed, (name, make) in enumerate(layers.items()):
        tensors, word, w, x, y = make(torch.Generator().manual_seed(seed))
        text = json.dumps({"format": format.removesuffix("_awq"), **word}).encode()
        model |= {f"{name}.{key}": t.contiguous() for key, t in tensors.items()}
        model[f"{name}.comfy_quant"] = torch.tensor(list(text), dtype=torch.uint8)
        expected |= {f"{name}.dequant_rows": w[ROWS].contiguous(), f"{name}.x": x, f"{name}.y": y}
        case["dequant"][name] = {"shape": list(w.shape), "dtype": "float32", "rows": ROWS}
        case["outputs"][name] = {"x": f"{name}.x", "y": f"{name}.y", "dtype": "float32", "how": "comfy-kitchen's eager product, float32"}
    save_file(model, os.path.join(folder, "model.safetensors"))
    save_file(expected, os.path.join(folder, "expected.safetensors"))
    with open(os.path.join(folder, "case.json"), "w") as f:
        json.dump(case, f, indent=1)
        f.write("\n")
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write("{}\n")


for format, layers in CASES.items():
    write(format, layers)
