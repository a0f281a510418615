#!/usr/bin/env python3
"""Layers of every TorchAO tensor class, written by TorchAO itself -> cases/torchao/<case>: a pickled .bin (or safetensors),
the values that the classes dequantize to, and products. Usage: make_torchao_cases.py new|zeros|old
`new` and `zeros` need TorchAO 0.18, `old` one of 0.7 to 0.9 (AffineQuantizedTensor).

Int4Tensor's quantizer and the tiles of Int4TilePackedTo4dTensor need a GPU library there; the three functions that are
missing without one are given here in numpy, everything else is TorchAO's."""
import json, os, sys, types

import numpy as np
import torch
from safetensors.torch import save_file

HERE = os.path.dirname(os.path.abspath(__file__))
N, K = 16, 128


def weight(seed, n=N, k=K):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(n, k, generator=g) * 0.05).to(torch.bfloat16)


def int4_rows(x, group=128):
    """Codes -8..7, scales and zero points [k/group, n] of asymmetric groups: value = code * scale + zero."""
    g = x.float().reshape(x.shape[0], -1, group)
    low, high = g.amin(-1), g.amax(-1)
    scale = (high - low).clamp(min=1e-6) / 15
    codes = ((g - low[..., None]) / scale[..., None]).round().clamp(0, 15) - 8
    return codes.to(torch.int8).reshape(x.shape), scale.t().contiguous(), (low + 8 * scale).t().contiguous()


def nibbles(q):
    return (q[:, ::2] & 15) | (q[:, 1::2] << 4)


def tiles(q, inner):
    """uint8 [n, k/2], the first of two codes in the high nibble -> int32 [n/8, k/(16 inner), 32, inner/2]."""
    n, k = q.shape[0], 2 * q.shape[1]
    codes = np.empty((n, k), np.uint32)
    codes[:, ::2], codes[:, 1::2] = q.numpy() >> 4, q.numpy() & 15
    out = np.zeros((n // 8, k // (16 * inner), 32, inner // 2), np.uint32)
    for a, b, lane, word in np.ndindex(*out.shape):
        row, first = 8 * a + lane // 4, (b * inner + 2 * word) * 16 + lane % 4 * 2
        for tile in (0, 1):
            for half in (0, 1):
                at, low = first + 16 * tile + 8 * half, 4 * (2 * tile + half)
                out[a, b, lane, word] |= codes[row, at] << low | codes[row, at + 1] << (low + 16)
    return torch.from_numpy(out.view(np.int32))


def put(case, tensors, values, products, versions, flat=False):
    out = os.path.join(HERE, "cases", "torchao", case)
    os.makedirs(out, exist_ok=True)
    name = "model.safetensors" if flat else "model.bin"
    if flat:
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
        data, meta = flatten_tensor_state_dict(tensors)
        save_file(data, os.path.join(out, name), metadata=meta)
    else:
        torch.save(tensors, os.path.join(out, name))
    json.dump({"quantization_config": {"quant_method": "torchao", "modules_to_not_convert": []}},
              open(os.path.join(out, "config.json"), "w"))
    wanted, note = {}, {"checkpoint": name, "producer": "torchao", "versions": versions, "dequant": {}, "outputs": {}}
    x = (torch.rand(6, K, generator=torch.Generator().manual_seed(7)) * 4 - 2).to(torch.bfloat16)
    for layer, value in values.items():
        rows = list(range(0, value.shape[0], 5))
        wanted[layer + ".dequant_rows"] = value.float()[rows].contiguous()
        note["dequant"][layer] = {"shape": list(value.shape), "dtype": str(value.dtype)[6:], "rows": rows}
    for layer, product in products.items():
        y = product(x)
        wanted["X.%d" % K], wanted[layer + ".y"] = x.float(), y.float().contiguous()
        note["outputs"][layer] = {"x": "X.%d" % K, "y": layer + ".y", "dtype": "bfloat16", "how": "torch.nn.functional.linear"}
    save_file(wanted, os.path.join(out, "expected.safetensors"))
    json.dump(note, open(os.path.join(out, "case.json"), "w"), indent=1)
    print(case, sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out)), "bytes")


def linear_of(w):
    return lambda x: torch.nn.functional.linear(x, w)


def new(versions):
    import torchao.quantization as q
    from torchao.quantization.quantize_.workflows.int4 import int4_tensor, int4_tile_packed_to_4d_tensor as int4_tiles
    from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor
    from torchao.prototype.mx_formats import mx_tensor, nvfp4_tensor

    def made(seed, config, n=N):
        m = torch.nn.Sequential(torch.nn.Linear(K, n, bias=False)).to(torch.bfloat16)
        m[0].weight = torch.nn.Parameter(weight(seed, n))
        q.quantize_(m, config)
        return m[0].weight.detach()

    import torchao.quantization.quant_api as api
    api._check_hardware_support = lambda *a: None
    t, v, y = {}, {}, {}

    def add(name, w, value=None, product=True):
        t[name + ".weight"] = w
        v[name] = w.dequantize() if value is None else value
        if product:
            y[name] = linear_of(w)

    add("fp8_row", made(1, q.Float8WeightOnlyConfig()))
    add("fp8_dynamic", made(2, q.Float8DynamicActivationFloat8WeightConfig(granularity=q.PerRow())), product=False)
    add("int8_row", made(3, q.Int8WeightOnlyConfig()))
    add("int8_dynamic", made(4, q.Int8DynamicActivationInt8WeightConfig()))
    add("int8_grouped", made(5, q.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=q.PerGroup(32))))
    add("int4_grouped", made(6, q.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=q.PerGroup(32),
                                                       mapping_type=q.MappingType.ASYMMETRIC)))
    smooth = (torch.arange(K) % 7 + 1).to(torch.bfloat16) / 4
    w = made(7, q.Int8DynamicActivationInt8WeightConfig())
    w.act_pre_scale = smooth
    add("int8_smooth", w)
    t["norm.weight"] = torch.ones(K, dtype=torch.bfloat16)
    put("classes_bin", t, v, y, versions)

    int4_tensor.int4_row_quantize_zp, int4_tensor.pack_int4 = int4_rows, nibbles
    torch.cuda.get_device_capability = lambda *a: (9, 0)
    real = torch.ops.aten
    int4_tiles.torch = types.SimpleNamespace(**{**vars(torch), "ops": types.SimpleNamespace(
        aten=types.SimpleNamespace(_convert_weight_to_int4pack=tiles, linear=real.linear))})
    for flat in (False, True):
        t, v, y = {}, {}, {}
        for name, n, group in (("rows_g32", N, 32), ("rows_g64", N, 64), ("rows_whole", N, 128)):
            w = int4_tensor.Int4Tensor.from_hp(weight(group, n), [1, group])
            codes = torch.empty(n, K)
            b = w.qdata.to(torch.int32)
            codes[:, ::2], codes[:, 1::2] = (b & 15 ^ 8) - 8, (b >> 4 & 15 ^ 8) - 8
            up = lambda a: a.t().float().repeat_interleave(group, 1)
            add(name, w, (codes * up(w.scale) + up(w.zero_point)), product=False)
        w = int4_tensor.Int4Tensor.from_hp(weight(9), [1, 32])
        w.act_pre_scale = smooth
        codes = torch.empty(N, K)
        b = w.qdata.to(torch.int32)
        codes[:, ::2], codes[:, 1::2] = (b & 15 ^ 8) - 8, (b >> 4 & 15 ^ 8) - 8
        add("rows_smooth", w, codes * w.scale.t().float().repeat_interleave(32, 1) +
            w.zero_point.t().float().repeat_interleave(32, 1), product=False)
        for name, n, group in (("tiles_g32", N, 32), ("tiles_g128", 24, 128), ("tiles_padded", 13, 64)):
            source = weight(group + 1, n)
            w = int4_tiles.Int4TilePackedTo4dTensor.from_hp(source, [1, group])
            # what was quantized, from TorchAO's own functions
            padded = torch.nn.functional.pad(source, (0, 1024 - K, 0, -n % 8))
            from torchao.quantization.quant_primitives import (MappingType, _choose_qparams_affine_tinygemm,
                                                               _quantize_affine_tinygemm)
            s, z = _choose_qparams_affine_tinygemm(padded, MappingType.ASYMMETRIC, (1, group), torch.int32, 0, 15,
                                                   scale_dtype=torch.bfloat16, zero_point_dtype=torch.bfloat16)
            codes = _quantize_affine_tinygemm(padded, (1, group), s, z, torch.int32, 0, 15)
            up = lambda a: a.reshape(padded.shape[0], -1).float().repeat_interleave(group, 1)
            add(name, w, ((codes - 8) * up(s) + up(z))[:n, :K], product=False)
        put("int4_flat" if flat else "int4_bin", t, v, y, versions, flat)


def zeros(versions):
    """Activations with zero points, products in float32, and Int4PlainInt32Tensor, whose packing (an XPU's) puts bytes into words."""
    import torchao.quantization as q
    from torchao.quantization.quantize_.workflows import int4 as _int4
    from torchao.quantization.quantize_.workflows.int4 import int4_plain_int32_tensor as plain
    from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor, QuantizeTensorToInt8Kwargs
    from torchao.quantization.quantize_.workflows.intx.intx_unpacked_to_int8_tensor import (
        IntxUnpackedToInt8Tensor, IntxUnpackedToInt8TensorActivationQuantization as How)
    t, v, y = {}, {}, {}
    for name, seed, dtype, group in (("intx4_g32", 40, torch.int4, 32), ("intx8_row", 41, torch.int8, K)):
        t[name + ".weight"] = w = IntxUnpackedToInt8Tensor.from_hp(weight(seed).float(), (1, group), dtype,
                                                                   activation_quantization=How.INT8_ASYM_PER_TOKEN)
        v[name], y[name] = w.dequantize(), (lambda w: lambda x: torch.nn.functional.linear(x.float(), w))(w)
    t["int8_zero.weight"] = w8 = Int8Tensor.from_hp(
        weight(42).float(), q.PerRow(),
        act_quant_kwargs=QuantizeTensorToInt8Kwargs(granularity=q.PerRow(), mapping_type=q.MappingType.ASYMMETRIC))
    v["int8_zero"], y["int8_zero"] = w8.dequantize(), lambda x: torch.nn.functional.linear(x.float(), w8)
    for flat in (False, True):
        if flat: # the safetensors of TorchAO 0.18 know neither IntxUnpackedToInt8Tensor's activations nor Int4PlainInt32Tensor
            t, v, y = ({k: d[k] for k in d if k.startswith("int8_")} for d in (t, v, y))
        else:
            plain.torch = types.SimpleNamespace(**{**vars(torch), "ops": types.SimpleNamespace(aten=types.SimpleNamespace(
                _convert_weight_to_int4pack=lambda b, inner: b.view(torch.int32)))})
            for name, seed, group in (("words_g32", 43, 32), ("words_g64", 44, 64)):
                source = weight(seed)
                xpu = types.SimpleNamespace(type="xpu")
                fake = type("Fake", (), {"ndim": 2, "device": xpu, "dtype": source.dtype, "shape": source.shape})()
                real = plain.choose_qparams_affine, plain.quantize_affine
                plain.choose_qparams_affine = lambda w, *a: real[0](source, *a)
                plain.quantize_affine = lambda w, *a: real[1](source, *a)
                w = plain._from_hp_xpu(plain.Int4PlainInt32Tensor, fake, [1, group])
                plain.choose_qparams_affine, plain.quantize_affine = real
                b = w.qdata.view(torch.uint8).to(torch.int32)
                codes = torch.stack((b & 15, b >> 4), -1).reshape(N, K).float()
                up = lambda a: a.t().float().repeat_interleave(group, 1)
                t[name + ".weight"], v[name] = w, (codes - up(w.zero_point)) * up(w.scale)
        put("zeros_flat" if flat else "zeros_bin", t, v, y, versions, flat)


def old(versions):
    import torchao.quantization as q
    import torchao.dtypes as d

    def made(seed, config):
        m = torch.nn.Sequential(torch.nn.Linear(K, N, bias=False)).to(torch.bfloat16)
        m[0].weight = torch.nn.Parameter(weight(seed))
        q.quantize_(m, config)
        return m[0].weight.detach()

    def plain(w):
        return (w.original_weight_tensor if hasattr(w, "original_weight_tensor") else w).dequantize()

    t, v, y = {}, {}, {}
    for i, (name, config) in enumerate((("int8_row", q.int8_weight_only()), ("int8_grouped", q.int8_weight_only(group_size=32)),
                                        ("int8_dynamic", q.int8_dynamic_activation_int8_weight()),
                                        ("fp8_row", q.float8_weight_only()))):
        t[name + ".weight"] = made(20 + i, config)
        v[name] = plain(t[name + ".weight"])
        y[name] = linear_of(t[name + ".weight"])
    from torchao.dtypes.uintx import tensor_core_tiled_layout as tc
    real = torch.ops.aten
    tc.torch = types.SimpleNamespace(**{**vars(torch), "ops": types.SimpleNamespace(
        aten=types.SimpleNamespace(_convert_weight_to_int4pack=tiles))})
    layout = d.TensorCoreTiledLayout(inner_k_tiles=8)
    source = weight(30)
    w = d.to_affine_quantized_intx(source, q.quant_primitives.MappingType.ASYMMETRIC, (1, 64), torch.int32, 0, 15, 1e-6,
                                   zero_point_dtype=torch.bfloat16, preserve_zero=False,
                                   zero_point_domain=q.quant_primitives.ZeroPointDomain.FLOAT, _layout=layout)
    ref = d.to_affine_quantized_intx(source, q.quant_primitives.MappingType.ASYMMETRIC, (1, 64), torch.int32, 0, 15, 1e-6,
                                     zero_point_dtype=torch.bfloat16, preserve_zero=False,
                                     zero_point_domain=q.quant_primitives.ZeroPointDomain.FLOAT, _layout=d.PlainLayout())
    t["tiles.weight"] = w.detach()
    i = ref.tensor_impl
    up = lambda a: a.float().reshape(N, -1).repeat_interleave(64, 1)
    v["tiles"] = (i.int_data.float() - 8) * up(i.scale) + up(i.zero_point)
    put("affine_bin", t, v, y, versions)


if __name__ == "__main__":
    import torchao
    {"new": new, "zeros": zeros, "old": old}[sys.argv[1]]({"torchao": torchao.__version__, "torch": torch.__version__})
