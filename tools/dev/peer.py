"""peer.py MODEL THREADS -- torch and diffusers as `omniq bench --compare` asks for them: one order a line on standard input,
one JSON object a line back.

    threads N                             both from now on
    linear M N K f32|bf16|int8            the case of the turns that follow (int8: torch's dynamic quantization)
    attention HEADS TOKENS WIDTH TYPE
    conv C_IN C_OUT SIDE UPSAMPLE TYPE    3x3, channels last; UPSAMPLE 2: nearest before it
    group_norm CHANNELS SIDE TYPE         silu(group norm), 32 groups
    modulate ROWS COLS TYPE               layer norm * (1 + scale) + shift
    picture WIDTH HEIGHT STEPS GUIDANCE TYPE
    fresh WIDTH HEIGHT STEPS GUIDANCE TYPE    a new process each time
    turn SECONDS                          one call to warm up, then calls for SECONDS: {"ms": median}
"""
import json
import os
import subprocess
import sys
import time
import warnings

import torch
import torch.nn.functional as F

warnings.filterwarnings("ignore")
MODEL, THREADS = sys.argv[1], int(sys.argv[2])
PROMPT = "a large red ball to the left of a small blue star on a cream background"
TORCH = f"torch {torch.__version__.split('+')[0]}"
TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
FRESH = """
import sys, torch, diffusers
p = diffusers.DiffusionPipeline.from_pretrained(sys.argv[1], torch_dtype=getattr(torch, sys.argv[2]))
p.set_progress_bar_config(disable=True)
p(sys.argv[3], width=int(sys.argv[4]), height=int(sys.argv[5]), num_inference_steps=int(sys.argv[6]),
  guidance_scale=float(sys.argv[7]), generator=torch.Generator().manual_seed(42)).images[0].save(sys.argv[8])
"""


def linear(m, n, k, dtype):
    m, n, k = int(m), int(n), int(k)
    if dtype == "int8":
        layer = torch.nn.Sequential(torch.nn.Linear(k, n, bias=False))
        q = torch.ao.quantization.quantize_dynamic(layer, {torch.nn.Linear}, dtype=torch.qint8)
        x = torch.randn(m, k)
        return lambda: q(x)
    x, w = torch.randn(m, k, dtype=TYPES[dtype]), torch.randn(n, k, dtype=TYPES[dtype])
    return lambda: F.linear(x, w)


def attention(heads, tokens, width, dtype):
    q, k, v = (torch.randn(1, int(heads), int(tokens), int(width), dtype=TYPES[dtype]) for _ in range(3))
    return lambda: F.scaled_dot_product_attention(q, k, v)


def conv(c_in, c_out, side, upsample, dtype):
    layer = torch.nn.Conv2d(int(c_in), int(c_out), 3, padding=1).to(TYPES[dtype]).to(memory_format=torch.channels_last)
    x = torch.randn(1, int(c_in), int(side), int(side), dtype=TYPES[dtype]).to(memory_format=torch.channels_last)
    if upsample == "2":
        return lambda: layer(F.interpolate(x, scale_factor=2.0, mode="nearest"))
    return lambda: layer(x)


def group_norm(channels, side, dtype):
    norm = torch.nn.GroupNorm(32, int(channels)).to(TYPES[dtype])
    x = torch.randn(1, int(channels), int(side), int(side), dtype=TYPES[dtype])
    return lambda: F.silu(norm(x))


def modulate(rows, cols, dtype):
    x = torch.randn(int(rows), int(cols), dtype=TYPES[dtype])
    scale, shift = torch.randn(int(cols), dtype=TYPES[dtype]), torch.randn(int(cols), dtype=TYPES[dtype])
    return lambda: F.layer_norm(x, (int(cols),)) * (1 + scale) + shift


def picture(width, height, steps, guidance, dtype):
    import diffusers

    pipe = diffusers.DiffusionPipeline.from_pretrained(MODEL, torch_dtype=TYPES[dtype])
    pipe.set_progress_bar_config(disable=True)
    return lambda: pipe(PROMPT, width=int(width), height=int(height), num_inference_steps=int(steps),
                        guidance_scale=float(guidance), generator=torch.Generator().manual_seed(42))


def fresh(width, height, steps, guidance, dtype):
    name = {"f32": "float32", "bf16": "bfloat16"}[dtype]
    command = [sys.executable, "-c", FRESH, MODEL, name, PROMPT, width, height, steps, guidance, os.devnull + ".png"]
    command[-1] = f"/tmp/omniq-peer-{os.getpid()}.png"

    def run():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())})
        os.unlink(command[-1])

    run.cold = True
    return run


def turn(call, seconds):
    if not getattr(call, "cold", False):
        call()
    times, end = [], time.perf_counter() + seconds
    while not times or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    times.sort()
    return times[len(times) // 2] * 1e3


def main():
    cases = dict(linear=linear, attention=attention, conv=conv, group_norm=group_norm, modulate=modulate,
                 picture=picture, fresh=fresh)
    torch.set_num_threads(THREADS)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    call = None
    for line in sys.stdin:
        word, *rest = line.split()
        try:
            if word == "threads":
                torch.set_num_threads(int(rest[0]))
                answer = dict(peer=TORCH)
            elif word == "turn":
                with torch.inference_mode():
                    answer = dict(ms=turn(call, float(rest[0])))
            else:
                with torch.inference_mode():
                    call = cases[word](*rest)
                answer = dict(peer=TORCH)
        except Exception as error:
            answer = dict(absent=f"{type(error).__name__}: {error}"[:300])
        print(json.dumps(answer), file=out, flush=True)


main()
