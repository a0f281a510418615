#!/usr/bin/env python3
"""Signal to noise (dB) of formats that no published table has, by numpy alone: integers of b bits in groups, symmetric (the
number of largest magnitude is code 0), with a zero point and with one that is no integer, MXFP4 under other rules for its
powers of two, f16. Four kinds of 256 x 4096 weights. The figures of tests/unit/format/test_format_snr.c. Usage: snr.py"""
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
    for bits in (2, 3, 4, 8):
        for group in (32, 64, 128):
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
