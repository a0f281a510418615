#!/usr/bin/env python3
"""The points that GGUF's code-book types can stand for, and blocks of them, by the `gguf` package as the judge.

    iq_points.py points            the lists of src/format/iq_points.c: seen from outside, by decoding a block for every index
    iq_points.py cases OUT.bin     random blocks of each type and their values, for tests/unit/format/test_format_gguf_iq.c

What is in a file is an index. Decoding blocks whose scale is 1 and whose signs are plus shows which point each index means: an
eighth (quarter) of small odd numbers. All lists turn out to ascend where a point is read as a number whose first digit is the lowest, so a
list is a set, and a point its number: base 3 for eight levels of three, base 8 for four levels of eight."""
import struct, sys

import numpy as np
import gguf
from gguf.quants import dequantize

SIZES = {"IQ2_XXS": 66, "IQ2_XS": 74, "IQ2_S": 82, "IQ3_XXS": 98, "IQ3_S": 110, "IQ1_S": 50, "IQ1_M": 56}
N = {"IQ2_XXS": 256, "IQ2_XS": 512, "IQ2_S": 1024, "IQ3_XXS": 256, "IQ3_S": 512, "IQ1_S": 2048}
ONE = struct.pack("<H", 0x3c00)


def values(kind, blocks):
    raw = np.frombuffer(b"".join(blocks), np.uint8).reshape(len(blocks), SIZES[kind])
    return dequantize(raw, getattr(gguf.GGMLQuantizationType, kind)).reshape(len(blocks), 256).astype(np.float32)


def block_of(kind, index):
    """A block whose first group has this index."""
    lo, hi = index & 255, index >> 8
    if kind == "IQ2_XXS":
        return ONE + bytes([lo]) + bytes(63)
    if kind == "IQ2_XS":
        return ONE + struct.pack("<H", index) + bytes(62 + 8)
    if kind == "IQ2_S":
        return ONE + bytes([lo]) + bytes(31 + 32) + bytes([hi]) + bytes(7 + 8)
    if kind == "IQ3_XXS":
        return ONE + bytes([lo]) + bytes(95)
    if kind == "IQ3_S":
        return ONE + bytes([lo]) + bytes(63) + bytes([hi]) + bytes(7 + 32 + 4)
    return ONE + bytes([lo]) + bytes(31) + struct.pack("<H", hi) + bytes(14)


def points(kind):
    """(levels, numbers): the levels as the block shows them, and of each index its point's number."""
    size = 4 if kind.startswith("IQ3") else 8
    seen = values(kind, [block_of(kind, i) for i in range(N[kind])])[:, :size]
    levels = np.unique(seen)
    digit = np.searchsorted(levels, seen)
    numbers = (digit * len(levels) ** np.arange(size)).sum(1)
    assert (np.diff(numbers) > 0).all(), kind
    return levels, numbers


def print_points():
    for kind in N:
        levels, numbers = points(kind)
        print(f"/* {kind}: levels {', '.join(f'{x:g}' for x in levels)} under a scale of 1 */")
        line = "   "
        for x in numbers:
            if len(line) + len(str(x)) + 2 > 118:
                print(line)
                line = "   "
            line += f" {x},"
        print(line)


def cases(path):
    """Per type: its name in 8 bytes, then 6 blocks and their 256 values each. Scales are ordinary numbers; the rest is random."""
    rng = np.random.default_rng(18)
    with open(path, "wb") as f:
        for kind, size in SIZES.items():
            raw = rng.integers(0, 256, (6, size), np.uint8)
            d = rng.normal(0, 1, 6).astype(np.float16).view(np.uint8).reshape(6, 2)
            if kind == "IQ1_M":  # in the upper nibbles of its last bytes
                h = d.copy().view(np.uint16).reshape(6)
                for i in range(4):
                    raw[:, 49 + 2 * i] = raw[:, 49 + 2 * i] & 15 | (h >> 4 * i & 15).astype(np.uint8) << 4
            else:
                raw[:, :2] = d
            f.write(kind.encode().ljust(8, b"\0") + raw.tobytes() + values(kind, [r.tobytes() for r in raw]).tobytes())


if __name__ == "__main__":
    if sys.argv[1] == "points":
        print_points()
    else:
        cases(sys.argv[2])
