#!/usr/bin/env python3
"""Signal to noise (dB) of formats that no published table has, by numpy alone: integers of b bits in groups, symmetric (the
number of largest magnitude is code 0), with a zero point and with one that is no integer, code tables in
blocks, MXFP4 under other rules for its powers of two, f16. Four kinds of 256 x 4096 weights. The figures of tests/unit/format/test_format_snr.c. Usage: snr.py"""
import numpy as np

N, K = 256, 4096
E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])


def kinds():
    r = np.random.default_rng(1)
    g = r.normal(size=(N, K))
    spread = np.where(np.arange(K) % 512 == 77, 20, 1)
    yield g
    yield r.laplace(size=(N, K))
    yield r.standard_t(4, size=(N, K))
    yield r.normal(size=(N, K)) * spread


def symmetric(x, bits, group):
    g = x.reshape(-1, group)
    half = 1 << (bits - 1)
    most = np.take_along_axis(g, np.abs(g).argmax(1)[:, None], 1)
    s = most / -half
    return (np.clip(np.rint(g / s), -half, half - 1) * s).reshape(x.shape)


def zero_point(x, bits, group):
    g = x.reshape(-1, group)
    top = (1 << bits) - 1
    lo, hi = np.minimum(g.min(1), 0)[:, None], np.maximum(g.max(1), 0)[:, None]
    s = (hi - lo) / top
    z = np.clip(np.rint(-lo / s), 0, top)
    return ((np.clip(np.rint(g / s) + z, 0, top) - z) * s).reshape(x.shape)


def float_zero(x, group):
    g = x.reshape(-1, group)
    lo, hi = g.min(1)[:, None], g.max(1)[:, None]
    s = (hi - lo) / 15
    return (np.rint((g - lo) / s) * s + lo).reshape(x.shape)


NF4 = np.array([-1, -.6961928009986877, -.5250730514526367, -.39491748809814453, -.28444138169288635, -.18477343022823334,
                -.09105003625154495, 0, .07958029955625534, .16093020141124725, .24611230194568634, .33791524171829224,
                .44070982933044434, .5626170039176941, .7229568362236023, 1])
FP4 = np.array([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4])


def nearest(x, table):
    table = np.unique(table)
    return table[np.searchsorted((table[1:] + table[:-1]) / 2, x)]


def dynamic_map():
    parts = []
    for i in range(7):
        edges = np.linspace(.1, 1, (1 << i) + 1)
        parts.append((edges[1:] + edges[:-1]) / 2 * 10.0 ** (i - 6))
    up = np.concatenate(parts)
    return np.concatenate([-up, [0], up, [1]])


def by_table(x, table, block, nested):
    g = x.reshape(-1, block)
    amax = np.abs(g).max(1)
    scale = amax
    if nested:
        around = np.pad(amax - amax.mean(), (0, -amax.size % 256)).reshape(-1, 256)
        outer = np.abs(around).max(1)[:, None]
        scale = (nearest(around / outer, dynamic_map()) * outer).reshape(-1)[:amax.size] + amax.mean()
    return (nearest(g / amax[:, None], table) * scale[:, None]).reshape(x.shape)


def e2m1(x):
    a = np.minimum(np.abs(x), 6)
    i = np.clip(np.searchsorted(E2M1, a), 1, 7)
    lo, hi = a - E2M1[i - 1], E2M1[i] - a
    return np.sign(x) * np.where((lo < hi) | ((lo == hi) & (i % 2 == 1)), E2M1[i - 1], E2M1[i])


def mxfp4(x, limit, below=False):
    g = x.reshape(-1, 32)
    amax = np.abs(g).max(1)[:, None]
    e = np.floor(np.log2(amax / limit)) + 1 if below else np.ceil(np.log2(amax / limit))
    return (e2m1(g * 2.0 ** -e) * 2.0 ** e).reshape(x.shape)


def dual(x):
    b = np.abs(x.reshape(-1, 512)).max(1)[:, None] / 6
    return (mxfp4(x.reshape(-1, 512) / b, 8, True) * b).reshape(x.shape)


def main():
    forms = {"f16": lambda x: x.astype(np.float16).astype(float), "mxfp4": lambda x: mxfp4(x, 8, True),
             "mxfp4_q725": lambda x: mxfp4(x, 7.25), "mxfp4_dual": dual}
    for name, table in (("nf4", NF4), ("fp4", np.concatenate([FP4, -FP4]))):
        for block in (32, 64, 128, 256, 512, 1024, 2048, 4096):
            for end, nested in (("", False), ("_nested", True)):
                forms[f"{name}_b{block}{end}"] = lambda x, t=table, b=block, e=nested: by_table(x, t, b, e)
    for bits in (2, 3, 4, 8):
        for group in (16, 32, 64, 128):
            forms[f"int{bits}_g{group}"] = lambda x, b=bits, g=group: symmetric(x, b, g)
            forms[f"int{bits}z_g{group}"] = lambda x, b=bits, g=group: zero_point(x, b, g)
    for group in (32, 64, 128):
        for word in ("int4f", "uint4f"):
            forms[f"{word}_g{group}"] = lambda x, g=group: float_zero(x, g)
    all_kinds = list(kinds())
    for name, form in forms.items():
        db = [10 * np.log10((x * x).sum() / ((form(x) - x) ** 2).sum()) for x in all_kinds]
        print("        {&oq_format_%s, {%s}}," % (name, ", ".join(f"{d:.2f}" for d in db)))


main()
