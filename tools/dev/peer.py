"""peer.py MODEL THREADS -- torch and diffusers as `omniq bench --compare` asks for them: one order a line on standard input,
one JSON object a line back.

    threads N                             both from now on
    linear M N K f32|bf16|int8            the case of the turns that follow (int8: torch's dynamic quantization)
    ggml M N K TYPE                       ggml's product of weights of that type, x and y in F32
    dequantize M N K fp8|nf4|int4         weights to BF16 by torch, then the linear product of them, in every call
    bitsandbytes M N K                    the same of NF4, by bitsandbytes' own dequantization
    attention HEADS TOKENS WIDTH TYPE
    conv C_IN C_OUT SIDE UPSAMPLE TYPE    3x3, channels last; UPSAMPLE 2: nearest before it
    conv3d C_IN C_OUT SIDE FRAMES TYPE    3x3x3, causal: two frames of zeros go before
    group_norm CHANNELS SIDE TYPE         silu(group norm), 32 groups
    modulate ROWS COLS TYPE               layer norm * (1 + scale) + shift; int8: then a scale for each row and codes
    block NAME TEXT FRAMES ROWS COLUMNS TYPE  one block of the published transformer NAME between its embedders
    picture WIDTH HEIGHT STEPS GUIDANCE TYPE
    fresh WIDTH HEIGHT STEPS GUIDANCE TYPE    a new process each time
    turn SECONDS                          one call to warm up, then calls for SECONDS: {"ms": median}
"""
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import torch.nn.functional as F

import peer_ggml

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


def codes_of(n, k):
    """Two codes of four bits a byte."""
    return torch.randint(0, 256, (n * k // 2,), dtype=torch.uint8)


def fp8_weight(n, k):
    w, scale = torch.randn(n, k).to(torch.float8_e4m3fn), torch.rand(n, 1, dtype=torch.bfloat16)
    return lambda: w.to(torch.bfloat16) * scale


def nf4_weight(n, k):
    """By a table of both numbers of a byte, which is the fastest of the ways that torch has."""
    codes, scale = codes_of(n, k), torch.rand(n * k // 64, 1, dtype=torch.bfloat16)
    table = torch.randn(16, dtype=torch.bfloat16)
    pairs = torch.stack((table.repeat_interleave(16), table.repeat(16)), -1)
    return lambda: (torch.index_select(pairs, 0, codes.int()).view(-1, 64) * scale).view(n, k)


def int4_weight(n, k):
    codes, scale = codes_of(n, k), torch.rand(n, k // 128, 1, dtype=torch.bfloat16)
    return lambda: ((torch.stack((codes & 15, codes >> 4), -1).view(n, k // 128, 128).to(torch.bfloat16) - 8) * scale).view(n, k)


def dequantize(m, n, k, name):
    weight = dict(fp8=fp8_weight, nf4=nf4_weight, int4=int4_weight)[name](int(n), int(k))
    x = torch.randn(int(m), int(k), dtype=torch.bfloat16)
    call = lambda: F.linear(x, weight())
    call.peer = f"{TORCH} dequantize, linear"
    return call


def bitsandbytes(m, n, k):
    import bitsandbytes as library

    x, w = (torch.randn(int(rows), int(k), dtype=torch.bfloat16) for rows in (m, n))
    codes, state = library.functional.quantize_4bit(w, quant_type="nf4", blocksize=64)
    call = lambda: F.linear(x, library.functional.dequantize_4bit(codes, state))
    call.peer = f"bitsandbytes {library.__version__} dequantize, {TORCH} linear"
    return call


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


def conv3d(c_in, c_out, side, frames, dtype):
    layer = torch.nn.Conv3d(int(c_in), int(c_out), 3, padding=(0, 1, 1)).to(TYPES[dtype])
    x = torch.randn(1, int(c_in), int(frames), int(side), int(side), dtype=TYPES[dtype])
    return lambda: layer(F.pad(x, (0, 0, 0, 0, 2, 0)))


def quantize(rows, cols):
    x = torch.randn(rows, cols, dtype=torch.bfloat16)
    scale, shift = torch.randn(cols, dtype=torch.bfloat16), torch.randn(cols, dtype=torch.bfloat16)

    def run():
        h = F.layer_norm(x, (cols,)) * (1 + scale) + shift
        s = h.abs().amax(-1, keepdim=True).float() / 127
        return torch.clamp(torch.round(h / s), -128, 127).to(torch.int8), s

    return run


def modulate(rows, cols, dtype):
    if dtype == "int8":
        return quantize(int(rows), int(cols))
    x = torch.randn(int(rows), int(cols), dtype=TYPES[dtype])
    scale, shift = torch.randn(int(cols), dtype=TYPES[dtype]), torch.randn(int(cols), dtype=TYPES[dtype])
    return lambda: F.layer_norm(x, (int(cols),)) * (1 + scale) + shift


def empty(make, dtype):
    """A module with weights of ordinary size, made where they are needed."""
    import diffusers

    with torch.device("meta"):
        module = make(diffusers)
    module = module.to(TYPES[dtype]).to_empty(device="cpu").eval()
    noise = (torch.randn(1 << 20) * 0.02).to(TYPES[dtype])
    for p in module.parameters():
        flat = p.view(-1)
        for at in range(0, flat.numel(), noise.numel()):
            flat[at:at + noise.numel()] = noise[:flat.numel() - at]
    return module


def flux1(text, frames, rows, columns, dtype, double, single):
    n, type_ = rows * columns, TYPES[dtype]
    module = empty(lambda d: d.FluxTransformer2DModel(num_layers=double, num_single_layers=single, guidance_embeds=True),
                   dtype)
    ids = torch.zeros(n, 3)
    ids[:, 1], ids[:, 2] = torch.arange(n) // columns, torch.arange(n) % columns
    args = dict(hidden_states=torch.randn(1, n, 64, dtype=type_), encoder_hidden_states=torch.randn(1, text, 4096, dtype=type_),
                pooled_projections=torch.randn(1, 768, dtype=type_), timestep=torch.tensor([0.5]), img_ids=ids,
                txt_ids=torch.zeros(text, 3), guidance=torch.tensor([3.5]))
    return lambda: module(**args)


def flux2(text, frames, rows, columns, dtype, double, single, heads, width):
    n, type_ = rows * columns, TYPES[dtype]
    module = empty(lambda d: d.Flux2Transformer2DModel(num_layers=double, num_single_layers=single, num_attention_heads=heads,
                                                       joint_attention_dim=width, guidance_embeds=heads == 48), dtype)
    ids, words = torch.zeros(n, 4), torch.zeros(text, 4)
    ids[:, 1], ids[:, 2], words[:, 3] = torch.arange(n) // columns, torch.arange(n) % columns, torch.arange(text)
    args = dict(hidden_states=torch.randn(1, n, 128, dtype=type_), encoder_hidden_states=torch.randn(1, text, width, dtype=type_),
                timestep=torch.tensor([0.5]), img_ids=ids, txt_ids=words, guidance=torch.tensor([4.0]) if heads == 48 else None)
    return lambda: module(**args)


def qwen_image(text, frames, rows, columns, dtype):
    type_ = TYPES[dtype]
    module = empty(lambda d: d.QwenImageTransformer2DModel(num_layers=1), dtype)
    rope = type(module.pos_embed)(theta=10000, axes_dim=[16, 56, 56], scale_rope=True)
    module.pos_embed = rope  # its tables are not parameters
    args = dict(hidden_states=torch.randn(1, rows * columns, 64, dtype=type_),
                encoder_hidden_states=torch.randn(1, text, 3584, dtype=type_), timestep=torch.tensor([0.5], dtype=type_),
                encoder_hidden_states_mask=torch.ones(1, text, dtype=torch.bool), img_shapes=[[(1, rows, columns)]])
    return lambda: module(**args)


def wan(text, frames, rows, columns, dtype, channels=16, **config):
    type_ = TYPES[dtype]
    module = empty(lambda d: d.WanTransformer3DModel(num_layers=1, in_channels=channels, out_channels=channels, **config), dtype)
    module.rope = type(module.rope)(128, (1, 2, 2), 1024)
    args = dict(hidden_states=torch.randn(1, channels, frames, 2 * rows, 2 * columns, dtype=type_),
                encoder_hidden_states=torch.randn(1, text, 4096, dtype=type_), timestep=torch.tensor([500]))
    return lambda: module(**args)


def z_image(text, frames, rows, columns, dtype):
    module = empty(lambda d: d.ZImageTransformer2DModel(n_layers=1, n_refiner_layers=0), dtype)
    args = ([torch.randn(16, 1, 2 * rows, 2 * columns, dtype=TYPES[dtype])], torch.tensor([0.5], dtype=TYPES[dtype]),
            [torch.randn(text, 2560, dtype=TYPES[dtype])])
    return lambda: module(*args)


def block(name, text, frames, rows, columns, dtype):
    makers = {"flux1-double": lambda *a: flux1(*a, 1, 0), "flux1-single": lambda *a: flux1(*a, 0, 1),
              "qwen-image": qwen_image, "wan2.2-a14b": wan, "z-image": z_image,
              "wan2.2-5b": lambda *a: wan(*a, channels=48, num_attention_heads=24, ffn_dim=14336)}
    for model, heads, width in (("klein-4b", 24, 7680), ("klein-9b", 32, 12288), ("dev", 48, 15360)):
        makers[f"flux2-{model}-double"] = lambda *a, h=heads, w=width: flux2(*a, 1, 0, h, w)
        makers[f"flux2-{model}-single"] = lambda *a, h=heads, w=width: flux2(*a, 0, 1, h, w)
    call = makers[name](int(text), int(frames), int(rows), int(columns), dtype)
    call()  # a turn takes seconds: it begins warm
    call.cold = True
    return call


def picture(width, height, steps, guidance, dtype):
    import diffusers

    pipe = diffusers.DiffusionPipeline.from_pretrained(MODEL, torch_dtype=TYPES[dtype])
    pipe.set_progress_bar_config(disable=True)
    return lambda: pipe(PROMPT, width=int(width), height=int(height), num_inference_steps=int(steps),
                        guidance_scale=float(guidance), generator=torch.Generator().manual_seed(42))


def fresh(width, height, steps, guidance, dtype):
    name = {"f32": "float32", "bf16": "bfloat16"}[dtype]
    command = [sys.executable, "-c", FRESH, MODEL, name, PROMPT, width, height, steps, guidance,
               os.path.join(tempfile.gettempdir(), f"omniq-peer-{os.getpid()}.png")]

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
    cases = dict(linear=linear, attention=attention, conv=conv, conv3d=conv3d, group_norm=group_norm, modulate=modulate,
                 block=block, picture=picture, fresh=fresh, dequantize=dequantize, bitsandbytes=bitsandbytes,
                 ggml=lambda *shape, product=peer_ggml.Peer(): product(torch.get_num_threads(), *shape))
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
                answer = dict(peer=getattr(call, "peer", TORCH))
        except Exception as error:
            answer = dict(absent=f"{type(error).__name__}: {error}"[:300])
        print(json.dumps(answer), file=out, flush=True)


main()
