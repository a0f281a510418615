"""peer.py MODEL THREADS -- what diffusers and torch take for the shapes and the picture of `omniq bench`; JSON lines."""
import json
import sys
import time

import diffusers
import torch
import torch.nn.functional as F

MODEL, THREADS = sys.argv[1], int(sys.argv[2])
SHAPES = [(1, 1536, 256), (288, 192, 192), (288, 1024, 192), (1024, 3840, 3840)]
PROMPT = "a large red ball to the left of a small blue star on a cream background"
TORCH = f"torch {torch.__version__}"
DIFFUSERS = f"diffusers {diffusers.__version__}, {TORCH}"


def emit(op, shape, dtype, peer, times, flops=0):
    ms = sorted(t * 1e3 for t in times)
    median = ms[len(ms) // 2] if len(ms) % 2 else (ms[len(ms) // 2 - 1] + ms[len(ms) // 2]) / 2
    row = dict(op=op, shape=shape, dtype=dtype, kernel=None, ms=median, gflops=flops / median / 1e6 if flops else None,
               min=ms[0], max=ms[-1], n=len(ms), peer=peer)
    print(json.dumps(row), flush=True)


def measure(fn, seconds=0.2):
    fn()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or (time.perf_counter() < end and len(times) < 2000):
        begin = time.perf_counter()
        fn()
        times.append(time.perf_counter() - begin)
    return times


def products():
    for m, n, k in SHAPES:
        for name, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            x, w = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
            emit("linear", f"m{m} n{n} k{k}", name, TORCH, measure(lambda: F.linear(x, w)), 2 * m * n * k)
        layer = torch.nn.Sequential(torch.nn.Linear(k, n, bias=False))
        int8 = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
        x = torch.randn(m, k)
        emit("linear", f"m{m} n{n} k{k}", "int8", f"{TORCH} dynamic", measure(lambda: int8(x)), 2 * m * n * k)


def picture(name, dtype):
    begin = time.perf_counter()
    pipe = diffusers.DiffusionPipeline.from_pretrained(MODEL, torch_dtype=dtype)
    pipe.set_progress_bar_config(disable=True)
    emit("load", MODEL.rstrip("/").rsplit("/", 1)[-1], name, DIFFUSERS, [time.perf_counter() - begin])
    try:
        with open(f"{MODEL}/omniq.json") as f:
            defaults = json.load(f)
    except FileNotFoundError:
        defaults = {}
    size = dict(width=defaults.get("width", 1024), height=defaults.get("height", 1024))
    steps = defaults.get("steps", 9)

    def run():
        pipe(PROMPT, num_inference_steps=steps, guidance_scale=defaults.get("guidance_scale", 0),
             generator=torch.Generator().manual_seed(42), **size)

    times = measure(run, 0)
    emit("generate", f"{size['width']}x{size['height']} {steps} steps", name, DIFFUSERS, times)


torch.set_num_threads(THREADS)
with torch.inference_mode():
    products()
    picture("fp32", torch.float32)
    picture("bf16", torch.bfloat16)
