#!/usr/bin/env python3
"""Error-compensated rounding by numpy in double, along another road than src/write/compensate.c: the damped matrix is
inverted, the upper Cholesky factor of the inverse tells what each column's error does to all later columns, which are
changed at once. Writes tests/unit/write/compensate_golden.h: compensation.py > compensate_golden.h. Inputs are made by a rule
that the test repeats; they are exact in float32."""
import numpy as np

F = np.float32


def numbers(n, state):
    """Sums of four draws of -32 .. 31, as float64."""
    out = np.empty(n)
    for i in range(n):
        total = 0
        for _ in range(4):
            state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
            total += (state >> 58) - 32
        out[i] = total
    return out


def inputs(n_x, k, dead):
    """x[n_x, k]: neighbours are alike, all follow the row's own number, some columns are louder; dead: is never fed."""
    own, raw = numbers(n_x, 5), numbers(n_x * (k + 1), 11).reshape(n_x, k + 1)
    loud = 1 + 3 * (np.arange(k) % 7 == 3) + 5 * (np.arange(k) % 23 == 11)
    x = (raw[:, 1:] + raw[:, :-1] + own[:, None]) * loud
    if dead >= 0:
        x[:, dead] = 0
    return x / 64


def grid(x, bits, zero):
    """Scale and zero point that hold all numbers of a group."""
    x = x.astype(F)
    if zero:
        top = F((1 << bits) - 1)
        lo, hi = min(F(0), x.min()), max(F(0), x.max())
        scale = F(hi / top) - F(lo / top)
        return scale, np.rint(-lo * (F(1) / scale))
    half = 1 << (bits - 1)
    most = x[np.abs(x).argmax()]
    return F(most / F(-half)), half


def codes_of(x, scale, zero, bits):
    return np.clip(np.rint(x / float(scale)) + zero, 0, (1 << bits) - 1)


def fit(x, weight, bits, zero):
    scale, z = grid(x, bits, zero)
    tried = []
    for s in range(10):
        smaller = F(scale * (F(1) - F(0.05) * F(s)))
        d = x - (codes_of(x, smaller, z, bits) - z) * float(smaller)
        tried.append(((weight * d * d).sum(), s, smaller))
    return min(tried)[2], z


def compensate(w, h, bits, group, zero, order, damping=0.01):
    """order: '' from first to last, 'activity' and 'regroup' as oq_column_order. Codes and grids by slot, columns of slots."""
    n, k = w.shape
    column = np.arange(k) if not order else np.argsort(-np.diag(h), kind="stable")
    hd = (h + damping * np.diag(h).mean() * np.eye(k))[np.ix_(column, column)]
    upper = np.linalg.cholesky(np.linalg.inv(hd)).T  # inverse = upper^T upper
    weight = 1 / np.diag(upper) ** 2
    stored = np.arange(k)
    if order == "regroup":
        stored = np.concatenate([np.sort(column[g:g + group]) for g in range(0, k, group)])
    slot_of = np.argsort(stored)
    slot = slot_of[column]
    groups = -(-k // group)
    codes, scales, zeros = np.empty((n, k)), np.empty((n, groups), F), np.empty((n, groups))
    written = np.empty((n, k))
    for r in range(n):
        left = w[r, column].copy()
        if order == "activity":
            by_slot = np.empty(k)
            by_slot[slot] = weight
            for g in range(groups):
                part = slice(g * group, (g + 1) * group)
                scales[r, g], zeros[r, g] = fit(w[r, part], by_slot[part], bits, zero)
        for p in range(k):
            g = slot[p] // group
            if order != "activity" and p % group == 0:
                part = slice(p, p + group)
                scales[r, g], zeros[r, g] = fit(left[part], weight[part], bits, zero)
            codes[r, slot[p]] = codes_of(left[p], scales[r, g], zeros[r, g], bits)
            value = (codes[r, slot[p]] - zeros[r, g]) * float(scales[r, g])
            written[r, column[p]] = value
            left[p + 1:] -= (left[p] - value) / upper[p, p] * upper[p, p + 1:]
    e = w - written
    return codes.astype(int), scales, zeros.astype(int), stored, (e @ h * e).sum()


def nearest_noise(w, h, bits, group, zero, stored):
    e = np.empty(w.shape)
    for r in range(len(w)):
        for g in range(0, w.shape[1], group):
            at = stored[g:g + group]
            scale, z = grid(w[r, at], bits, zero)
            inverse = F(1) / scale if zero else F(-z) / w[r, at][np.abs(w[r, at]).argmax()].astype(F)
            codes = np.clip(np.rint(w[r, at].astype(F) * inverse) + z, 0, (1 << bits) - 1)  # ties as in float32
            e[r, at] = w[r, at] - (codes - z) * float(scale)
    return (e @ h * e).sum()


CASES = [  # name, n, k, inputs, dead column, bits, group, zero points, order
    ("int4_g32", 8, 96, 300, -1, 4, 32, False, ""),
    ("int4z_g32", 8, 96, 300, 5, 4, 32, True, ""),
    ("int4_g64", 6, 160, 40, 17, 4, 64, False, ""),  # fewer inputs than columns; a short last group
    ("int3_g32", 8, 96, 200, -1, 3, 32, False, "activity"),
    ("int4z_g32", 8, 96, 200, 40, 4, 32, True, "regroup"),
    ("int2_g128", 4, 384, 100, -1, 2, 128, False, ""),  # several blocks
    ("int8_g128", 4, 256, 100, -1, 8, 128, False, "regroup"),
]


def emit(kind, name, values, form):
    text = [form(v) for v in np.ravel(values)]
    print(f"static const {kind} {name}[] = {{")
    line = "   "
    for t in text:
        if len(line) + len(t) > 100:
            print(line)
            line = "   "
        line += f" {t},"
    print(line + "};")


def main():
    print("/* compensate_golden.h -- written by tests/reference/compensation.py. */")
    print("#ifndef COMPENSATE_GOLDEN_H\n#define COMPENSATE_GOLDEN_H\n")
    rows = []
    for i, (name, n, k, n_x, dead, bits, group, zero, order) in enumerate(CASES):
        x = inputs(n_x, k, dead)
        h = (x.T @ x).astype(F).astype(float)
        w = numbers(n * k, 77).reshape(n, k) / 1024
        codes, scales, zeros, stored, noise = compensate(w, h, bits, group, zero, order)
        plain = nearest_noise(w, h, bits, group, zero, stored)
        assert noise < plain
        emit("uint8_t", f"codes_{i}", codes, str)
        emit("float", f"scales_{i}", scales, lambda v: f"{float(v):.8e}f")
        emit("uint8_t", f"zeros_{i}", zeros, str)
        emit("int32_t", f"stored_{i}", stored, str)
        kind = {"": "OQ_COLUMNS_AS_THEY_ARE", "activity": "OQ_COLUMNS_BY_ACTIVITY", "regroup": "OQ_COLUMNS_REGROUPED"}[order]
        signal = (w @ h * w).sum()
        rows.append(f"    {{&oq_format_{name}, {kind}, {n}, {k}, {n_x}, {dead}, codes_{i}, scales_{i}, zeros_{i}, stored_{i},\n"
                    f"     {signal:.9g}, {plain:.9g}, {noise:.9g}}},")
    print("""
static const struct golden {
    const oq_format *format;
    oq_column_order order;
    int64_t n, k, n_x, dead;
    const uint8_t *codes;
    const float *scales;
    const uint8_t *zeros;
    const int32_t *stored;
    double signal, nearest_noise, noise; /* outputs: sums of squares */
} golden[] = {""")
    print("\n".join(rows))
    print("};\n\n#endif")


main()
