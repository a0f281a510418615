#!/usr/bin/env python3
"""torch's figures for the shapes of `ccheck --bench-ms`, to be run in the same call: CUDA graphs of many launches over
rotating inputs, normal random data, median of nine. One JSON object a line. Development only; needs torch with CUDA."""
import json, math, sys, time
import torch, torch.nn.functional as F

BF, E4 = torch.bfloat16, torch.float8_e4m3fn
BUDGET_S, START = float(sys.argv[1]) if len(sys.argv) > 1 else 120.0, time.time()


def measure(fn, sets):
    for i in range(3):
        fn(i % sets)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record(); [fn(i % sets) for i in range(4)]; end.record(); torch.cuda.synchronize()
    reps = max(4, min(400, math.ceil(15 / (begin.elapsed_time(end) / 4))))
    with torch.cuda.graph(graph):
        for i in range(reps):
            fn(i % sets)
    times = []
    for r in range(11):
        begin.record(); graph.replay(); end.record(); torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / reps)
    return sorted(times[2:])[4]


def row(op, shape, peer, flop, fn, sets=1):
    if time.time() - START > BUDGET_S:
        return
    try:
        ms = measure(fn, sets)
        out = {"op": op, "shape": shape, "peer": peer, "ms": round(ms, 5), "tflops": round(flop / ms * 1e-9, 1)}
    except Exception as e:  # a missing feature of this torch is a row, not an end
        out = {"op": op, "shape": shape, "peer": peer, "note": str(e).split("\n")[0][:120]}
    print(json.dumps(out), flush=True)


def quantize_rows(x, top, dtype):
    s = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-12) / top
    q = x / s
    return (q.round() if dtype == torch.int8 else q).clamp(-top, top).to(dtype), s


def fp8(x, w, sw, b):
    q, s = quantize_rows(x, 448, E4)
    return torch._scaled_mm(q, w.t(), scale_a=s, scale_b=sw, bias=b, out_dtype=BF, use_fast_accum=True)


def int8(x, w, sw, b):
    q, s = quantize_rows(x, 127, torch.int8)
    return (torch._int_mm(q, w.t()).float() * s * sw + b.float()).to(BF)


def linear(m, k, n):
    sets = min(12, 2 + 192000000 // (2 * (m * k + n * k)))
    x = [torch.randn(m, k, device="cuda", dtype=BF) for _ in range(sets)]
    w = [torch.randn(n, k, device="cuda", dtype=BF) * k**-0.5 for _ in range(sets)]
    b = torch.randn(n, device="cuda", dtype=BF)
    shape, flop = f"{m}x{k}x{n}", 2 * m * n * k
    row("linear", shape, "torch bf16", flop, lambda i: F.linear(x[i], w[i], b), sets)
    for peer, fn, top, dtype in (("fp8 rowwise", fp8, 448, E4), ("int8", int8, 127, torch.int8)):
        packed = [(q, s.t().contiguous()) for q, s in (quantize_rows(t, top, dtype) for t in w)]
        compiled = torch.compile(fn, dynamic=False)
        row("linear", shape, f"torch.compile {peer}", flop, lambda i: compiled(x[i], *packed[i], b), sets)


def attention(h, s, d):
    q, k, v = (torch.randn(1, h, s, d, device="cuda", dtype=BF) for _ in range(3))
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.CUDNN_ATTENTION):
        row("attention", f"1x{h}x{s}x{d}", "torch cuDNN bf16", 4 * s * s * h * d, lambda i: F.scaled_dot_product_attention(q, k, v))


def conv(side, c):
    x = torch.randn(1, c, side, side, device="cuda", dtype=BF).to(memory_format=torch.channels_last)
    w = (torch.randn(c, c, 3, 3, device="cuda", dtype=BF) * 0.02).to(memory_format=torch.channels_last)
    b = torch.randn(c, device="cuda", dtype=BF)
    row("conv2d", f"1x{side}x{side}x{c} 3x3", "torch cuDNN bf16 channels_last", 18 * side * side * c * c, lambda i: F.conv2d(x, w, b, padding=1))


def few_bits(k, n, rows, group=128):
    """4-bit weights: torch's int4 kernel, and decoding by torch.compile in front of a bf16 product."""
    codes = torch.randint(0, 16, (n, k), device="cuda", dtype=torch.uint8)
    scale = ((torch.rand(n, k // group, device="cuda") + 0.5) * k**-0.5 / 4).to(BF)
    pairs = codes[:, ::2] << 4 | codes[:, 1::2]
    sets = 2 + 192000000 // (n * k // 2)
    scale_zero = torch.stack([scale, torch.zeros_like(scale)], -1).transpose(0, 1).contiguous()
    tiled = [torch.ops.aten._convert_weight_to_int4pack(pairs, 8).clone() for _ in range(sets)]
    plain = [pairs.clone() for _ in range(sets)]
    whole = [torch.randn(n, k, device="cuda", dtype=BF) * k**-0.5 for _ in range(2 + 192000000 // (2 * n * k))]

    def decode(p, s):
        w = torch.stack([p >> 4, p & 15], -1).view(n, k // group, group).to(BF) - 8
        return (w * s[..., None]).view(n, k)

    compiled = torch.compile(decode, dynamic=False)
    for m in rows:
        x, shape, flop = torch.randn(m, k, device="cuda", dtype=BF), f"{m}x{k}x{n}", 2 * m * n * k
        row("linear", shape, "torch bf16", flop, lambda i: F.linear(x, whole[i % len(whole)]), len(whole))
        row("linear", shape, "torch int4 (tinygemm)", flop, lambda i: torch.ops.aten._weight_int4pack_mm(x, tiled[i], group, scale_zero), sets)
        row("linear", shape, "torch.compile decode + bf16", flop, lambda i: F.linear(x, compiled(plain[i], scale)), sets)


attention(24, 4608, 128)
attention(30, 4224, 128)
attention(8, 32760, 128)
few_bits(3072, 12288, (1, 16, 64, 256, 1024, 4096))
few_bits(4096, 24576, (1, 16, 64, 256))
torch.backends.cudnn.benchmark = True
for side, c in ((128, 512), (256, 512), (512, 256), (1024, 128)):
    conv(side, c)
for shape in ((4096, 3072, 12288), (4224, 10240, 3840), (4224, 3840, 11520)):
    linear(*shape)
