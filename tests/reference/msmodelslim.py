#!/usr/bin/env python3
"""Checkpoints in msModelSlim's layout by numpy alone, after its format's description: one layer of each type, the values that
its tensors mean and the product with a random input -> tests/data/quant/cases/msmodelslim. Independent of omniq's code.
Usage: msmodelslim.py [OUT]"""
import json, os, struct, sys

import numpy as np

LAYER, N, M = "blocks.0.self_attn.q", 16, 5
INDEX = [0, 1, 6, 15]
f32 = np.float32


# ---- number formats ----------------------------------------------------------------------------------------------------

def e4m3_table():
    c = np.arange(127)
    e, m = c >> 3, c & 7
    return np.where(e == 0, m * 2.0 ** -9, (1 + m / 8) * 2.0 ** (e.astype(float) - 7))


E4M3, E2M1 = e4m3_table(), np.array([0, .5, 1, 1.5, 2, 3, 4, 6])


def encode(x, table):  # nearest, ties to the even code, saturating; the sign is the bit above
    a = np.minimum(np.abs(x.astype(np.float64)), table[-1])
    hi = np.clip(np.searchsorted(table, a), 1, len(table) - 1)
    lo = hi - 1
    dl, dh = a - table[lo], table[hi] - a
    code = np.where(dl < dh, lo, np.where(dh < dl, hi, np.where(lo % 2 == 0, lo, hi)))
    return code + np.where(np.signbit(x), 8 if len(table) == 8 else 128, 0)


def decode(code, table):
    n = 8 if len(table) == 8 else 128
    return (np.append(table, [0] * (n - len(table)))[code % n] * np.where(code >= n, -1, 1)).astype(f32)


def pow2(amax, top, floor):  # exponent: the least that brings amax to `top` or below; floor: OCP's
    with np.errstate(divide="ignore"):
        e = np.floor(np.log2(amax)) - np.floor(np.log2(top)) if floor else np.ceil(np.log2(amax / top))
    return np.clip(e, -127, 127).astype(int)


def mx(x, table, floor):  # codes and exponents of groups of 32
    g = x.reshape(x.shape[0], -1, 32)
    e = pow2(np.abs(g).max(-1), table[-1], floor)
    return encode(g * 2.0 ** -e[..., None].astype(float), table).reshape(x.shape), e


def mx_values(codes, e, table):
    return (decode(codes, table).reshape(codes.shape[0], -1, 32) * (2.0 ** e[..., None].astype(float)).astype(f32)).reshape(
        codes.shape)


def pack_columns(codes):
    return (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)


def int_rows(w, top):
    s = (np.abs(w).max(1, keepdims=True) / f32(top)).astype(f32)
    return np.clip(np.rint(w / s), -top, top).astype(np.int8), s


# ---- what is done to x -------------------------------------------------------------------------------------------------

def plain(x):
    return x


def int8_token(x):
    amax = np.abs(x).max(1, keepdims=True).astype(f32)
    return np.clip(np.rint(x * (f32(127) / amax)), -127, 127) * (amax / f32(127)).astype(np.float64)


def e4m3_token(x):
    s = (np.abs(x).max(1, keepdims=True) / f32(448)).astype(f32)
    return decode(encode(x / s, E4M3), E4M3) * s.astype(np.float64)


def mx_of(table, floor):
    return lambda x: mx_values(*mx(x, table, floor), table).astype(np.float64)


def dual_x(x):
    by = (np.abs(x.reshape(x.shape[0], -1, 512)).max(-1) / f32(6)).astype(f32).repeat(512, 1)
    return mx_values(*mx(x / by, E2M1, True), E2M1).astype(np.float64) * by


# ---- types: tensors, values, x -----------------------------------------------------------------------------------------

def zeros(s):
    return np.zeros_like(s)


def w8a8_dynamic(w):
    q, s = int_rows(w, 127)
    return {"weight": q, "weight_scale": s, "weight_offset": zeros(s)}, q * s, int8_token


def static(w, bits):
    q, s = int_rows(w, 127)
    sx = np.array([0.0371], f32)
    deq = (sx * s[:, 0]).astype(f32)
    stored = deq.view(np.int32).astype(np.int64) if bits else deq
    t = {"weight": q, "deq_scale": stored, "input_scale": sx, "input_offset": zeros(sx), "quant_bias": np.zeros(N, np.int32)}
    return t, q * (deq / sx)[:, None], lambda x: np.clip(np.rint(x / sx), -128, 127) * sx.astype(np.float64)


def static_zero(w):
    """Codes of x are x / sx - 27; quant_bias holds 27 times the sum of a row's codes, which takes it off the product again."""
    t, v, _ = static(w, False)
    sx, zero = t["input_scale"], -27
    t["input_offset"] = np.array([zero], f32)
    t["quant_bias"] = (-zero * t["weight"].astype(np.int64).sum(1)).astype(np.int32)
    return t, v, lambda x: np.clip(np.rint(x / sx) + zero, -128, 127) * sx.astype(np.float64)  # the product alone


def w4a4_dynamic(w):
    q, s = int_rows(w, 7)
    amax = lambda x: np.abs(x).max(1, keepdims=True).astype(f32)
    return {"weight": q, "weight_scale": s, "weight_offset": zeros(s)}, q * s, \
        lambda x: np.clip(np.rint(x * (f32(7) / amax(x))), -7, 7) * (amax(x) / f32(7)).astype(np.float64)


def w8a8_mix(w):
    t, v, x = w8a8_dynamic(w)
    return {**static(w, False)[0], **t}, v, x


def w8a16_groups(w):
    g = w.reshape(N, -1, 64)
    lo, hi = g.min(-1, keepdims=True), g.max(-1, keepdims=True)
    s = ((hi - lo) / f32(255)).astype(f32)
    o = np.clip(np.rint(-128 - lo / s), -128, 127).astype(f32)
    q = np.clip(np.rint(g / s) + o, -128, 127).astype(np.int8)
    v = ((q.astype(f32) - o) * s).reshape(w.shape)
    return {"weight": q.reshape(w.shape), "weight_scale": s[..., 0], "weight_offset": o[..., 0]}, v, plain


def w4a8_dynamic(w):
    q, s = int_rows(w, 7)
    v = q * s
    packed = ((q[0::2] & 15) | (q[1::2] << 4)).astype(np.int8)
    return {"weight": packed, "weight_scale": s, "weight_offset": zeros(s), "scale_bias": 8 * v.sum(1, keepdims=True, dtype=f32)}, \
        v, int8_token


def fp8_dynamic(w):
    s = (np.abs(w).max(1, keepdims=True) / f32(448)).astype(f32)
    q = encode(w / s, E4M3)
    return {"weight": ("F8_E4M3", q.astype(np.uint8)), "weight_scale": s, "weight_offset": zeros(s)}, decode(q, E4M3) * s, e4m3_token


def mxfp8(w):
    q, e = mx(w, E4M3, False)
    return {"weight": ("F8_E4M3", q.astype(np.uint8)), "weight_scale": (e + 127).astype(np.uint8)}, mx_values(q, e, E4M3), \
        mx_of(E4M3, False)


def mxfp4(act):
    def make(w):
        q, e = mx(w, E2M1, True)
        return {"weight": pack_columns(q), "weight_scale": (e + 127).astype(np.uint8)}, mx_values(q, e, E2M1), act
    return make


def dual(w):
    by = (np.abs(w.reshape(N, -1, 512)).max(-1) / f32(6)).astype(f32)
    q, e = mx(w / by.repeat(512, 1), E2M1, True)
    s = (2.0 ** e.astype(float)).astype(f32).repeat(32, 1) * by.repeat(512, 1)
    return {"weight": pack_columns(q), "weight_scale": (e + 127).astype(np.uint8), "weight_dual_scale": by[..., None]}, \
        decode(q, E2M1) * s, dual_x


CASES = {  # name: word, columns, maker, smoothing and branch around it
    "w8a8_dynamic": ("W8A8_DYNAMIC", 128, w8a8_dynamic, False, 0),
    "w8a8_static": ("W8A8", 128, lambda w: static(w, False), False, 0),
    "w8a8_static_bits": ("W8A8", 128, lambda w: static(w, True), False, 0),
    "w8a8_mix": ("W8A8_MIX", 128, w8a8_mix, False, 0),
    "w8a16_groups": ("W8A16", 128, w8a16_groups, False, 0),
    "w4a8_dynamic": ("W4A8_DYNAMIC", 128, w4a8_dynamic, False, 0),
    "fp8_dynamic": ("WFP8AFP8_DYNAMIC", 128, fp8_dynamic, False, 0),
    "mxfp8": ("W8A8_MXFP8", 128, mxfp8, False, 0),
    "mxfp8_smooth": ("W8A8_MXFP8", 128, mxfp8, True, 0),
    "w4a8_mxfp": ("W4A8_MXFP", 128, mxfp4(mx_of(E4M3, False)), False, 0),
    "mxfp4": ("W4A4_MXFP4", 128, mxfp4(mx_of(E2M1, True)), False, 0),
    "mxfp4_svd": ("W4A4_MXFP4_SVD", 128, mxfp4(mx_of(E2M1, True)), True, 4),
    "dualscale": ("W4A4_MXFP4_DUALSCALE", 1024, dual, True, 0),
    "w8a8_static_zero": ("W8A8", 128, static_zero, False, 0),
    "w4a4_dynamic": ("W4A4_DYNAMIC", 128, w4a4_dynamic, False, 0),
}
NAMES = {"float32": "F32", "int8": "I8", "uint8": "U8", "int32": "I32", "int64": "I64"}


def save(path, tensors):
    head, data = {}, b""
    for name, t in sorted(tensors.items()):
        kind, a = t if isinstance(t, tuple) else (NAMES[t.dtype.name], t)
        raw = np.ascontiguousarray(a).tobytes()
        head[name] = {"dtype": kind, "shape": list(a.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + data)


def make(out, case, seed):
    word, k, maker, smooth, rank = CASES[case]
    r = np.random.default_rng(seed)
    w, x = r.normal(0, 0.05, (N, k)).astype(f32), r.normal(0, 1.5, (M, k)).astype(f32)
    t, v, act = maker(w)
    inner = LAYER + (".linear." if smooth else ".")
    tensors, words = {inner + s: a for s, a in t.items()}, {inner + s: word for s in t}
    xs = x
    if smooth:
        mul = r.uniform(0.5, 2, k).astype(f32)
        tensors[LAYER + ".div.mul_scale"], words[LAYER + ".div.mul_scale"] = mul, "FLOAT"
        xs = (x * mul).astype(f32)
    y = act(xs).astype(np.float64) @ v.astype(np.float64).T
    if rank:
        down, up = r.normal(0, 0.1, (rank, k)).astype(f32), r.normal(0, 0.1, (N, rank)).astype(f32)
        for s, a in (("svd_lowrank_l1", down), ("svd_lowrank_l2", up)):
            tensors[inner + s], words[inner + s] = a, "FLOAT"
        y += (xs.astype(np.float64) @ down.T.astype(np.float64)) @ up.T.astype(np.float64)
    folder = os.path.join(out, case)
    os.makedirs(folder, exist_ok=True)
    save(folder + "/quant_model_weights.safetensors", tensors)
    words.update(model_quant_type=word, version="1.0.0", group_size=0, metadata={}, optional={})
    json.dump(words, open(folder + "/quant_model_description.json", "w"), indent=1)
    save(folder + "/expected.safetensors", {LAYER + ".dequant_rows": v[INDEX].astype(f32), "X": x, "y": y.astype(f32)})
    json.dump({"checkpoint": "quant_model_weights.safetensors", "producer": "tests/reference/msmodelslim.py",
               "dequant": {LAYER: {"shape": [N, k], "dtype": "float32", "rows": INDEX}},
               "outputs": {LAYER: {"x": "X", "y": "y", "dtype": "float32", "how": "numpy, float64"}}},
              open(folder + "/case.json", "w"), indent=1)


if __name__ == "__main__":
    here = os.path.dirname(os.path.abspath(__file__))
    for i, case in enumerate(CASES):
        make(sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "../data/quant/cases/msmodelslim"), case, i)
