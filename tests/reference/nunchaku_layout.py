#!/usr/bin/env python3
"""SVDQuant as nunchaku's files hold it, written in numpy: what each element's place is, and files in that layout.

    nunchaku_layout.py cases          tests/data/quant/cases/nunchaku: small layers with their values and products
    nunchaku_layout.py toybox OUT int4|nvfp4 [RANK]    the demo model's transformer as one file (by hand: generate --transformer)
    nunchaku_layout.py flux1 FOLDER OUT int4|nvfp4 [RANK]    the same of a FLUX.1 transformer's folder in diffusers' names

The places follow from what a warp of 32 lanes loads: codes in tiles of 128 rows x 64 columns, of which a lane takes 32 bits (8
columns of a row) four times; scales of 16 bits two rows at a time; low-rank matrices in 16 x 16."""
import json, math, os, struct, sys

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])


# ---- numbers ------------------------------------------------------------------------------------------------


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000
    return bits.astype(np.uint32).view(np.float32)


def bf16_bytes(x):
    return (np.ascontiguousarray(bf16(x)).view(np.uint32) >> 16).astype("<u2")


def from_e4m3(code):
    code = np.asarray(code, np.int64)
    e, m = code >> 3 & 15, code & 7
    v = np.where(e > 0, np.ldexp(1 + m / 8.0, e - 7), np.ldexp(m / 8.0, -6))
    return np.where(code & 128, -v, v)


E4M3 = from_e4m3(np.arange(127))


def to_e4m3(x):
    """Nearest, ties to even, of numbers from 0 on; 448 at most."""
    x = np.minimum(np.asarray(x, np.float64), 448)
    hi = np.clip(np.searchsorted(E4M3, x), 1, 126)
    lo = hi - 1
    down, up = x - E4M3[lo], E4M3[hi] - x
    return np.where((down < up) | ((down == up) & (lo % 2 == 0)), lo, hi).astype(np.uint8)


def to_e2m1(x):
    a = np.abs(np.asarray(x, np.float64))
    hi = np.clip(np.searchsorted(E2M1, a), 1, 7)
    lo = hi - 1
    down, up = a - E2M1[lo], E2M1[hi] - a
    code = np.where((down < up) | ((down == up) & (lo % 2 == 0)), lo, hi)
    code = np.where(a >= 6, 7, code)
    return (code + 8 * (np.signbit(x))).astype(np.uint8)


def from_e2m1(code):
    return np.where(code & 8, -1.0, 1.0) * E2M1[code & 7]


# ---- places -------------------------------------------------------------------------------------------------


def pad(a, rows, cols=None, fill=0):
    out = np.full((-(-a.shape[0] // rows) * rows,) + ((-(-a.shape[1] // cols) * cols,) if cols else a.shape[1:]), fill, a.dtype)
    out[tuple(slice(0, s) for s in a.shape)] = a
    return out


def place_codes(codes):
    """[n, k] nibbles -> int8 [n, k/2]. A lane (row l of 8, quarter q of a run of 32 columns) takes four words: rows l and l + 8
    of a pack of 16, columns of the first and the second run."""
    n, k = codes.shape
    out = np.zeros((n // 128, k // 64, 8, 8, 4, 2, 2), np.uint32)
    for tile, kt, pack, lane, quarter, half, run in np.ndindex(*out.shape):
        row, col = tile * 128 + pack * 16 + half * 8 + lane, kt * 64 + run * 32 + quarter * 8
        out[tile, kt, pack, lane, quarter, half, run] = sum(int(c & 15) << 4 * i for i, c in enumerate(codes[row, col:col + 8]))
    return out.reshape(-1).view(np.int8).reshape(n, k // 2)


def place_scales(scale):
    """[n, groups] -> [groups, n]: lane l of 32 holds rows 0, 1, 8, 9 of its 16 (two of them for each of four lanes)."""
    n, groups = scale.shape
    out = np.zeros((n // 128, groups, 32, 4), scale.dtype)
    for tile, g, lane, i in np.ndindex(*out.shape):
        out[tile, g, lane, i] = scale[tile * 128 + lane // 4 * 16 + lane % 4 * 2 + i // 2 * 8 + i % 2, g]
    return out.reshape(groups, n)


def place_scales8(scale):
    """[n, groups] of 8 bits -> [groups, n]: a lane holds rows r, r + 32, r + 64, r + 96, four groups of each."""
    n, groups = scale.shape
    out = np.zeros((n // 128, groups // 4, 32, 4, 4), scale.dtype)
    for tile, four, lane, i, g in np.ndindex(*out.shape):
        out[tile, four, lane, i, g] = scale[tile * 128 + i * 32 + lane % 4 * 8 + lane // 4, four * 4 + g]
    return out.reshape(groups, n)


def place_lowrank(m, down):
    """down: [rank, k] -> [k, rank]; up: [n, rank] as it is; 16 x 16 tiles, the long side first."""
    rows, cols = m.shape
    tiles = m.reshape(rows // 16, 16, cols // 16, 16).transpose(2, 0, 1, 3) if down else \
        m.reshape(rows // 16, 16, cols // 16, 16).transpose(0, 2, 1, 3)
    out = np.zeros(tiles.shape[:2] + (8, 4, 2, 2, 2), m.dtype)
    for lane, quarter, half, run, i in np.ndindex(8, 4, 2, 2, 2):
        out[:, :, lane, quarter, half, run, i] = tiles[:, :, half * 8 + lane, run * 8 + quarter * 2 + i]
    return out.reshape((cols, rows) if down else (rows, cols))


def place_awq(codes):
    """[n, k] of 0..15 -> int32 [n/4, k/2]: 64 columns of each of four rows; 16 bits hold columns c, c + 8, c + 16, c + 24."""
    n, k = codes.shape
    out = np.zeros((n // 4, k // 64, 4, 2, 8), np.uint16)
    for quad, block, row, half, j in np.ndindex(*out.shape):
        at = block * 64 + half * 32 + j
        out[quad, block, row, half, j] = sum(int(codes[quad * 4 + row, at + 8 * i]) << 4 * i for i in range(4))
    return out.reshape(-1).view(np.int32).reshape(n // 4, k // 2)


# ---- layers -------------------------------------------------------------------------------------------------


def smooth_of(w, x_amax=None, alpha=0.5):
    a = np.maximum(np.abs(w).max(0), 1e-5)
    b = np.ones(w.shape[1]) if x_amax is None else np.maximum(x_amax, 1e-5)
    return bf16(np.maximum(b ** alpha / a ** (1 - alpha), 1e-3) if x_amax is not None else np.ones(w.shape[1]))


def svdq(w, precision, rank, smooth, bias=None, per_row=False):
    """Tensors of one layer, and what they mean: the dequantized residual, smooth, down, up."""
    n, k = w.shape
    smoothed = w.astype(np.float64) * smooth
    u, s, vt = np.linalg.svd(smoothed, full_matrices=False)
    up, down = bf16(u[:, :rank] * np.sqrt(s[:rank])), bf16((np.sqrt(s[:rank])[:, None] * vt[:rank]))
    rest = smoothed - up.astype(np.float64) @ down.astype(np.float64)
    down = bf16(down.astype(np.float64) / smooth)
    full = pad(rest, 128, 128)
    t = {}
    if precision == "int4":
        g = full.reshape(full.shape[0], -1, 64)
        scale = bf16(np.maximum(np.abs(g).max(-1) / 7, 1e-8))
        codes = np.clip(np.rint(g / scale[..., None]), -8, 7).astype(np.int64).reshape(full.shape)
        value = (codes.reshape(g.shape).astype(np.float32) * scale[..., None]).reshape(full.shape)
        t["wscales"] = ("BF16", bf16_bytes(place_scales(scale)))
        t["qweight"] = ("I8", place_codes(codes))
    else:
        rows = bf16(np.maximum(np.abs(full).max(1) / (6 * 448), 1e-8)) if per_row else np.ones(full.shape[0], np.float32)
        whole = np.float32(1) if per_row else np.float32(bf16(np.abs(full).max() / (6 * 448)))
        second = (whole * rows).astype(np.float32)
        g = full.reshape(full.shape[0], -1, 16)
        scale = to_e4m3(np.maximum(np.abs(g).max(-1) / 6 / second[:, None], 2.0 ** -9))
        both = (from_e4m3(scale).astype(np.float32) * second[:, None]).astype(np.float32)
        codes = to_e2m1(g / both[..., None]).reshape(full.shape)
        value = (from_e2m1(codes).reshape(g.shape).astype(np.float32) * both[..., None]).reshape(full.shape)
        t["wscales"] = ("F8_E4M3", place_scales8(scale))
        t["qweight"] = ("I8", place_codes(codes))
        if per_row:
            t["wcscales"] = ("BF16", bf16_bytes(place_scales(rows[:, None])).reshape(-1))
        t["wtscale"] = ("F32", np.array([whole], np.float32))
    padded = pad(smooth[:, None].astype(np.float32), 128, fill=1)
    t["smooth_factor"] = t["smooth_factor_orig"] = ("BF16", bf16_bytes(place_scales(padded)).reshape(-1))
    t["proj_down"] = ("BF16", bf16_bytes(place_lowrank(pad(down, 16, 128), True)))
    t["proj_up"] = ("BF16", bf16_bytes(place_lowrank(pad(up, 128, 16), False)))
    if bias is not None:
        t["bias"] = ("BF16", bf16_bytes(place_scales(pad(bias[:, None].astype(np.float32), 128))).reshape(-1))
    return t, value[:n, :k], down, up


GELU_SHIFT = 0.171875


def quantized(x, precision, positive=False):
    """x of four bits, as the kernels take it: integers under amax / 7 per 64 columns (0..15 under amax / 15 behind GELU), e2m1
    under e4m3(amax / 6) per 16."""
    if positive:
        g = x.reshape(x.shape[0], -1, 64)
        scale = np.abs(g).max(-1, keepdims=True) / 15
        return (np.maximum(np.rint(g / np.where(scale > 0, scale, 1)), 0) * scale).reshape(x.shape)
    if precision == "int4":
        g = x.reshape(x.shape[0], -1, 64)
        scale = np.abs(g).max(-1, keepdims=True) / 7
        return (np.rint(g / np.where(scale > 0, scale, 1)) * scale).reshape(x.shape)
    g = x.reshape(x.shape[0], -1, 16)
    scale = from_e4m3(to_e4m3(np.maximum(np.abs(g).max(-1, keepdims=True) / 6, 2.0 ** -9)))
    return (from_e2m1(to_e2m1(g / scale)) * scale).reshape(x.shape)


def awq(w, bias, splits):
    n, k = w.shape
    order = np.arange(n).reshape(splits, n // splits).T.reshape(-1)  # row s * (n / splits) + c stands at c * splits + s
    g = w.reshape(n, -1, 64)
    low, high = g.min(-1), g.max(-1)
    scale = bf16(np.maximum((high - low) / 15, 1e-6))
    zero = bf16(low)
    codes = np.clip(np.rint((g - zero[..., None]) / scale[..., None]), 0, 15).astype(np.int64)
    value = (codes.astype(np.float32) * scale[..., None] + zero[..., None]).astype(np.float32).reshape(n, k)
    plus = np.zeros(splits)
    plus[1] = plus[-2] = 1
    stored = (bias + np.repeat(plus, n // splits))[order]
    return {"qweight": ("I32", place_awq(codes.reshape(n, k)[order])), "wscales": ("BF16", bf16_bytes(scale[order].T)),
            "wzeros": ("BF16", bf16_bytes(zero[order].T)), "bias": ("BF16", bf16_bytes(stored))}, value


# ---- files --------------------------------------------------------------------------------------------------


def write(path, tensors, meta=None):
    head, data = ({"__metadata__": meta} if meta else {}), []
    at = 0
    for name, (dtype, a) in sorted(tensors.items()):
        raw = np.ascontiguousarray(a).tobytes()
        head[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))


def read(path):
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    out = {}
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = (t["dtype"], np.frombuffer(data[8 + n + a:8 + n + b], np.uint8), t["shape"])
    return out


def header(precision, rank):
    return {"quantization_config": json.dumps({
        "method": "svdquant", "rank": rank, "weight": {"dtype": "int4" if precision == "int4" else "fp4_e2m1_all"},
        "activation": {"dtype": "int4" if precision == "int4" else "fp4_e2m1_all"}})}


def cases():
    rng = np.random.default_rng(5)
    x = bf16(rng.uniform(-2, 2, (6, 128)))
    for name, precision, per_row in (("int4", "int4", False), ("nvfp4", "nvfp4", False), ("nvfp4_rows", "nvfp4", True)):
        out = os.path.join(HERE, "..", "data", "quant", "cases", "nunchaku", name)
        os.makedirs(out, exist_ok=True)
        tensors, wanted = {}, {"X.128": ("F32", x)}
        note = {"checkpoint": "model.safetensors", "producer": "nunchaku_layout.py", "dequant": {}, "outputs": {}}
        for layer, n, rank in (("whole", 128, 16), ("padded", 72, 32)) + ((("blocks.ff.net.2", 40, 16),) if name == "int4" else ()):
            positive = layer.endswith("ff.net.2")
            w = bf16(rng.normal(0, .05, (n, 128)))
            smooth = bf16(rng.uniform(.25, 2, 128))
            t, value, down, up = svdq(w, precision, rank, smooth, per_row=per_row)
            tensors.update({f"{layer}.{k}": v for k, v in t.items()})
            y = quantized(((x + np.float32(GELU_SHIFT * positive)) * (np.float32(1) / smooth).astype(np.float32)).astype(np.float32).astype(np.float64), precision, positive) @ value.T.astype(np.float64) + \
                (x.astype(np.float64) @ down.T) @ up.T
            rows = list(range(0, n, 7))
            note["dequant"][layer] = {"shape": [n, 128], "dtype": "float32", "rows": rows}
            note["outputs"][layer] = {"x": "X.128", "y": layer + ".y", "dtype": "float32", "how": "float64"}
            wanted[layer + ".dequant_rows"] = ("F32", value[rows].astype(np.float32))
            wanted[layer + ".y"] = ("F32", y.astype(np.float32))
        finish(out, tensors, wanted, note, precision, 16)
    out = os.path.join(HERE, "..", "data", "quant", "cases", "nunchaku", "awq")
    os.makedirs(out, exist_ok=True)
    tensors, wanted = {}, {"X.128": ("F32", x)}
    note = {"checkpoint": "model.safetensors", "producer": "nunchaku_layout.py", "dequant": {}, "outputs": {}}
    for layer, splits in (("six", 6), ("three", 3)):
        w, bias = bf16(rng.normal(0, .05, (128 * splits, 128))), bf16(rng.normal(0, .1, 128 * splits))
        t, value = awq(w, bias, splits)
        tensors.update({f"{layer}.{k}": v for k, v in t.items()})
        rows = list(range(0, 128 * splits, 31))
        note["dequant"][layer] = {"shape": [128 * splits, 128], "dtype": "float32", "rows": rows}
        wanted[layer + ".dequant_rows"] = ("F32", value[rows])
    finish(out, tensors, wanted, note, "int4", 16)


def finish(out, tensors, wanted, note, precision, rank):
    write(os.path.join(out, "model.safetensors"), tensors, header(precision, rank))
    write(os.path.join(out, "expected.safetensors"), wanted)
    json.dump(note, open(os.path.join(out, "case.json"), "w"), indent=1)
    json.dump({"quantization_config": {"quant_method": "svdquant"}}, open(os.path.join(out, "config.json"), "w"))
    print(out, sum(os.path.getsize(os.path.join(out, f)) for f in os.listdir(out)), "bytes")


def read_folder(folder):
    source = {}
    for f in sorted(os.listdir(folder)):
        if f.endswith(".safetensors"):
            source.update(read(os.path.join(folder, f)))
    return source


def values(t):
    dtype, raw, shape = t
    assert dtype in ("BF16", "F32")
    return ((raw.view("<u2").astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else raw.view("<f4")).reshape(shape)


# A block's layers: the name in the file, the plain layers, which columns (0: all; 1: as many as rows; 2: the rest), behind GELU.
DOUBLE = [("qkv_proj", ["attn.to_q", "attn.to_k", "attn.to_v"], 0, False),
          ("qkv_proj_context", ["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"], 0, False),
          ("out_proj", ["attn.to_out.0"], 0, False), ("out_proj_context", ["attn.to_add_out"], 0, False),
          ("mlp_fc1", ["ff.net.0.proj"], 0, False), ("mlp_fc2", ["ff.net.2"], 0, True),
          ("mlp_context_fc1", ["ff_context.net.0.proj"], 0, False), ("mlp_context_fc2", ["ff_context.net.2"], 0, True)]
SINGLE = [("qkv_proj", ["attn.to_q", "attn.to_k", "attn.to_v"], 0, False), ("out_proj", ["proj_out"], 1, False),
          ("mlp_fc1", ["proj_mlp"], 0, False), ("mlp_fc2", ["proj_out"], 2, True)]


def flux1_block(source, block, precision, rank, taken):
    double = block.startswith("transformer_blocks")
    get = lambda name: taken.add(f"{block}.{name}") or values(source[f"{block}.{name}"])
    out = {}
    for stored, parts, columns, positive in DOUBLE if double else SINGLE:
        w = np.concatenate([get(p + ".weight") for p in parts])
        bias = np.concatenate([get(p + ".bias") for p in parts])
        n = w.shape[0]
        w = w[:, :n] if columns == 1 else w[:, n:] if columns == 2 else w
        bias = np.zeros(n) if columns == 1 else bias
        smooth = smooth_of(w, 1 / np.maximum(np.abs(w).max(0), 1e-5))
        if positive and precision == "int4":
            _, value, _, _ = svdq(w, precision, rank, smooth)
            bias = bias - (value.astype(np.float64) / smooth).sum(1) * GELU_SHIFT
        t, _, _, _ = svdq(w, precision, rank, smooth, bias=bias)
        for ours, theirs in (("smooth_factor", "smooth"), ("smooth_factor_orig", "smooth_orig"), ("proj_down", "lora_down"),
                             ("proj_up", "lora_up")):
            t[theirs] = t.pop(ours)
        out.update({f"{block}.{stored}.{k}": v for k, v in t.items()})
    for name, splits in (("norm1.linear", 6), ("norm1_context.linear", 6)) if double else (("norm.linear", 3),):
        t, _ = awq(get(name + ".weight"), get(name + ".bias"), splits)
        out.update({f"{block}.{name}.{k}": v for k, v in t.items()})
    for name in ("norm_q", "norm_k") + (("norm_added_q", "norm_added_k") if double else ()):
        out[f"{block}.{name}.weight"] = ("BF16", bf16_bytes(get(f"attn.{name}.weight")))
    return out


def flux1(folder, path, precision, rank):
    source, taken, tensors = read_folder(folder), set(), {}
    for block in sorted({".".join(n.split(".")[:2]) for n in source if "transformer_blocks." in n}):
        tensors.update(flux1_block(source, block, precision, rank, taken))
    for name, t in source.items():
        if name not in taken:
            tensors[name] = ("BF16", bf16_bytes(values(t)))
    write(path, tensors, header(precision, rank))
    print(path, os.path.getsize(path), "bytes,", len(taken), "tensors of blocks")


def toybox(path, precision, rank):
    source = read_folder(os.path.join(HERE, "..", "..", "models", "toybox", "transformer"))
    matrix = lambda name: values(source[name])
    taken, tensors = set(), {}
    for name in sorted(source):
        if not name.endswith(".attention.to_q.weight"):
            continue
        block = name[:-len("attention.to_q.weight")]
        for stored, parts in (("attention.to_qkv", ["attention.to_q", "attention.to_k", "attention.to_v"]),
                              ("attention.to_out.0", ["attention.to_out.0"]),
                              ("feed_forward.net.0.proj", ["feed_forward.w3", "feed_forward.w1"]),
                              ("feed_forward.net.2", ["feed_forward.w2"])):
            names = [block + p + ".weight" for p in parts]
            w = np.concatenate([matrix(x) for x in names])
            t, _, _, _ = svdq(w, precision, rank, np.ones(w.shape[1], np.float32), bias=np.zeros(w.shape[0]))
            tensors.update({f"{block}{stored}.{k}": v for k, v in t.items()})
            taken.update(names)
    for name, (dtype, raw, shape) in source.items():
        if name not in taken:
            tensors[name] = (dtype, raw.view("<u2").reshape(shape) if dtype == "BF16" else raw.view("<f4").reshape(shape))
    write(path, tensors, header(precision, rank))
    print(path, os.path.getsize(path), "bytes,", len(taken), "matrices of four bits")


if __name__ == "__main__":
    if sys.argv[1] == "cases":
        cases()
    elif sys.argv[1] == "flux1":
        flux1(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]) if len(sys.argv) > 5 else 16)
    else:
        toybox(sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 16)
