#!/usr/bin/env python3
"""What quantized attention costs, told by numpy alone: an emulation that shares no code with the library.

For Gaussian Q, K and V (and for Q and K with a few columns three times larger, where the rotation earns its keep)
prints the signal-to-noise ratio of softmax(q k^T / sqrt(d)) v over quantized operands against plain ones, in dB.
tests/unit/format/test_attention_operand.c holds the C code within 0.5 dB of these figures on both sides.
"""
import numpy as np

E4M3 = np.array(sorted({s * (m / 8 * 2.0**-6 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))
                        for s in (1, -1) for e in range(16) for m in range(8) if (e, m) != (15, 7)}))
E2M1 = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6])


def nearest(x, codes):
    right = np.clip(np.searchsorted(codes, x), 1, len(codes) - 1)
    return np.where(x - codes[right - 1] <= codes[right] - x, codes[right - 1], codes[right])


def block(x, e2m1):
    """One block under one power of two."""
    amax = np.abs(x).max()
    if amax == 0:
        return x
    power = np.floor(np.log2(amax)) - 2 if e2m1 else np.ceil(np.log2(amax / 448))
    return nearest(x / 2.0**power, E2M1 if e2m1 else E4M3) * 2.0**power


def quantize(x, rows, cols, e2m1):
    out = np.empty_like(x)
    for i in range(0, x.shape[0], rows):
        for j in range(0, x.shape[1], cols):
            out[i:i + rows, j:j + cols] = block(x[i:i + rows, j:j + cols], e2m1)
    return out


def rotation(d, rng):
    h = np.array([[1.0]])
    while len(h) < d:
        h = np.block([[h, h], [h, -h]])
    return np.diag(rng.choice([-1.0, 1.0], d)) @ h / np.sqrt(d)


def attention(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[1])
    p = np.exp(s - s.max(axis=1, keepdims=True))
    return p @ v / p.sum(axis=1, keepdims=True)


def snr(kind, d, outliers, rng, n=512):
    q, k, v = (rng.standard_normal((n, d)) for _ in range(3))
    if outliers:
        q[:, ::16] *= 3
        k[:, ::16] *= 3
    want, r = attention(q, k, v), rotation(d, rng)
    if kind == "fp8":
        got = attention(quantize(q @ r, 128, 128, False), quantize(k @ r, 256, 128, False),
                        quantize(v, 256, 128, False))
    else:
        e2m1 = kind == "mxfp4"
        got = attention(quantize(q @ r, 1, 32, e2m1), quantize(k @ r, 1, 32, e2m1), quantize(v, 32, 1, e2m1))
    return 10 * np.log10((want**2).sum() / ((got - want) ** 2).sum())


def main():
    for outliers in (False, True):
        for d in (64, 128):
            row = [np.mean([snr(kind, d, outliers, np.random.default_rng(seed)) for seed in range(16)])
                   for kind in ("fp8", "mxfp8", "mxfp4")]
            print(f"d {d:3d} {'outliers' if outliers else 'gaussian'}: "
                  + "  ".join(f"{kind} {value:.2f} dB" for kind, value in zip(("fp8", "mxfp8", "mxfp4"), row)))


if __name__ == "__main__":
    main()
