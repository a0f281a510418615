#!/usr/bin/env python3
"""Makes tests/data/parity from models/toybox with the original implementation (nothing of omniq takes part).

    pip install torch diffusers transformers safetensors pillow
    python3 tests/parity/make_golden.py            # writes tests/data/parity/{golden.safetensors,RUN_N.png}
    python3 tests/parity/make_golden.py --bfloat16 # how far the original's own bfloat16 pictures are from these

The files in the repository were made with torch 2.15.0 (CPU, float32), diffusers 0.42.1 and transformers 5.24.0.
What is kept of a stage, and how its golden tensor is named, is told in stages.h."""
import os
import sys
import numpy as np
import torch
from diffusers import ZImagePipeline
from PIL import Image
from safetensors.numpy import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
OUT = os.path.join(ROOT, "tests", "data", "parity")
BALL = "a large red ball to the left of a small blue star on a cream background"
RINGS = "two dotted purple rings — über a gray background, 3.5 times (naïve)"
TRIANGLE = "a small striped green triangle above a large yellow heart on a white background"
RUNS = {  # name: prompts, negative, width, height, steps, guidance, cfg normalization, seed
    "a": ([BALL], None, 256, 256, 8, 0.0, False, 42),
    "b": ([TRIANGLE], "", 240, 208, 20, 3.0, False, 7),
    "c": ([BALL, RINGS], None, 320, 128, 4, 0.0, False, 123),
    "d": ([RINGS], "a red ball", 128, 192, 6, 2.5, True, 2**40 + 5),
}
ceil32 = lambda n: -(-n // 32) * 32
out = {}


def put(run, key, value, every=1):
    value = np.asarray(value)
    name = f"{run}.{key}" + (f"@{every}" if every > 1 else "")
    out[name] = np.ascontiguousarray(value if every == 1 else value.reshape(-1)[::every])


def put_rows(run, key, value, lengths, real, items, norms=False):
    """value: the flattened [batch * tokens, dim]. Item J owns `lengths[J]` rows, the first `real[J]` of them count."""
    value, at = np.asarray(value).reshape(-1, value.shape[-1]), 0
    assert len(value) == sum(lengths), (key, value.shape, lengths)
    every = 8 if len(value) > 64 and not norms else 1
    index = np.arange(0, len(value), every)
    for j, (n, kept) in enumerate(zip(lengths, real)):
        mine = index[(index >= at) & (index < at + kept)]
        name = f"{run}.dit0." + (f"{j}." if j else "") + key + (".norms" if norms else "")
        if j in items:
            rows = value[mine]
            out[name] = np.ascontiguousarray(np.linalg.norm(rows.astype(np.float64), axis=-1).astype(np.float32)
                                             if norms else rows)
            out[name + "#rows"] = (mine - at).astype(np.int32)
        at += n


def trace(pipe):
    """Outputs of the named modules in the first forward of the transformer, and what goes in and out of each step."""
    seen, hooks, dit = {"first": {}, "outputs": [], "t": []}, [], pipe.transformer
    names = {"t_emb": dit.t_embedder, "x_embedder": dit.all_x_embedder["2-1"], "cap_embedder": dit.cap_embedder,
             "noise_refiner": dit.noise_refiner[-1], "context_refiner": dit.context_refiner[-1]}
    for i, layer in enumerate(dit.layers):
        names[f"layers.{i}"] = layer
    first = dit.layers[0]
    names.update({"layers.0.attention": first.attention, "layers.0.attention.to_q": first.attention.to_q,
                  "layers.0.feed_forward": first.feed_forward, "layers.0.adaLN_modulation": first.adaLN_modulation})
    for name, module in names.items():
        def first_output(m, a, y, name=name):
            seen["first"].setdefault(name, y.numpy().copy())
        hooks.append(module.register_forward_hook(first_output))
    def step(m, args, kwargs, y):
        seen["outputs"].append([v.numpy().copy() for v in y[0]])
        seen["t"].append(float(args[1][0]))
    hooks.append(dit.register_forward_hook(step, with_kwargs=True))
    for name, module in (("mid", pipe.vae.decoder.mid_block), ("up0", pipe.vae.decoder.up_blocks[0])):
        hooks.append(module.register_forward_hook(lambda m, a, y, name=name: seen.__setitem__(name, y.numpy().copy())))
    hooks.append(pipe.vae.decoder.register_forward_hook(lambda m, a, y: seen.update(vae_in=a[0].numpy().copy(), vae_out=y.numpy().copy())))
    return seen, hooks


def put_texts(run, pipe, prompts, negative):
    """ids, hidden states of the first prompt and embeddings; returns token counts, negatives last."""
    counts = []
    for side, texts in (("pos", prompts), ("neg", [] if negative is None else [negative])):
        for i, text in enumerate(texts):
            chat = pipe.tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False,
                                                      add_generation_prompt=True, enable_thinking=True)
            ids = pipe.tokenizer(chat, return_tensors="pt").input_ids
            hidden = pipe.text_encoder(input_ids=ids, output_hidden_states=True).hidden_states
            put(run, f"text.{side}.{i}.ids", ids[0].numpy().astype(np.int32))
            if run == "a":
                for n, h in enumerate(hidden):
                    put(run, f"text.{side}.{i}.hidden.{n}", h[0].numpy())
            if run == "a" or side == "neg" or i == 1:
                put(run, f"text.{side}.{i}.embeds", hidden[-2][0].numpy())
            counts.append(ids.shape[1])
    return counts


def put_first_forward(run, first, captions, image):
    padded, caps, B = ceil32(image), [ceil32(c) for c in captions], len(captions)
    whole = [padded + max(caps)] * B
    shape = {"t_emb": ([1] * B, [1] * B), "x_embedder": ([padded] * B, [image] * B), "cap_embedder": (caps, captions),
             "noise_refiner": ([padded] * B, [padded] * B), "context_refiner": ([max(caps)] * B, caps)}
    joint = (whole, [padded + c for c in caps])
    for key, value in first.items():
        last = key == f"layers.{sum(k.count('.') == 1 and k.startswith('layers.') for k in first) - 1}"
        inner = key.startswith("layers.") and not last and key.count(".") == 1 and key != "layers.0"
        lengths, real = shape.get(key, ([1] * B, [1] * B) if key.endswith("adaLN_modulation") else joint)
        if run == "a":
            put_rows(run, key, value, lengths, real, range(B), norms=inner)
        elif key in ("context_refiner", "layers.6") or last:
            put_rows(run, key, value, lengths, real, [1], norms=inner)
        elif key == "noise_refiner":
            put_rows(run, key, value, lengths, real, [0])


def make_run(pipe, run):
    prompts, negative, width, height, steps, guidance, normalization, seed = RUNS[run]
    a = run == "a"
    captions = put_texts(run, pipe, prompts, negative if guidance > 0 else None)
    shape = (len(prompts), 16, height // 8, width // 8)
    put(run, "noise", torch.randn(shape, generator=torch.Generator().manual_seed(seed)).numpy(), 1 if a else 16)
    latents, (seen, hooks) = [], trace(pipe)
    pipe(prompt=list(prompts), negative_prompt=[negative] if negative is not None else None, width=width, height=height,
         num_inference_steps=steps, guidance_scale=guidance, cfg_normalization=normalization,
         generator=torch.Generator().manual_seed(seed), output_type="np",
         callback_on_step_end=lambda p, i, t, k: latents.append(k["latents"].numpy().copy()) or {})
    for hook in hooks:
        hook.remove()
    put(run, "sigmas", pipe.scheduler.sigmas.numpy())
    put(run, "timesteps", pipe.scheduler.timesteps.numpy())
    put(run, "model_t", np.float32(seen["t"]))
    put_first_forward(run, seen["first"], captions, shape[2] // 2 * (shape[3] // 2))
    for i, step in enumerate((0, steps - 1) if a else (0,)):
        for j, value in enumerate(seen["outputs"][step]):
            put(run, f"step.{step}.model_out.{j}", value, 4 if a else 8)
    put(run, "step.0.latents", latents[0], 1 if a else 8)
    put(run, f"step.{steps - 1}.latents", latents[-1], 1 if a else 2)
    if a:
        put(run, "vae.in", seen["vae_in"], 4)
        put(run, "vae.mid", seen["mid"][..., ::4, ::4])
        put(run, "vae.up0", seen["up0"][..., ::8, ::8])
    put(run, "vae.out", seen["vae_out"][..., ::8, ::8])
    pixels = np.clip(seen["vae_out"] * np.float32(0.5) + np.float32(0.5), 0, 1).transpose(0, 2, 3, 1)
    images = (pixels * np.float32(255)).round().astype(np.uint8)
    for i, image in enumerate(images):
        Image.fromarray(image).save(os.path.join(OUT, f"{run}_{i}.png"), optimize=True)
    return images


def put_encoder(pipe, image):
    x = torch.from_numpy(image.astype(np.float32) / np.float32(127.5) - np.float32(1)).permute(2, 0, 1)[None]
    moments = pipe.vae.encode(x).latent_dist
    put("vae_encode", "mean", moments.mean.numpy(), 4)
    put("vae_encode", "logvar", moments.logvar.numpy()[..., ::4, ::4])
    put("vae_encode", "decoded", pipe.vae.decode(moments.mean).sample.numpy()[..., ::8, ::8])


def bfloat16_distance(pipe, run):
    """PSNR of the bfloat16 run's pictures against the float32 ones on disk."""
    prompts, negative, width, height, steps, guidance, normalization, seed = RUNS[run]
    images = pipe(prompt=list(prompts), negative_prompt=[negative] if negative is not None else None, width=width,
                  height=height, num_inference_steps=steps, guidance_scale=guidance, cfg_normalization=normalization,
                  generator=torch.Generator().manual_seed(seed), output_type="np").images
    golden = np.stack([np.array(Image.open(os.path.join(OUT, f"{run}_{i}.png"))) for i in range(len(images))])
    mse = (((images * np.float32(255)).round() - golden.astype(np.float64)) ** 2).mean()
    return 10 * np.log10(255**2 / mse)


with torch.no_grad():
    half = "--bfloat16" in sys.argv
    pipeline = ZImagePipeline.from_pretrained(os.path.join(ROOT, "models", "toybox"),
                                              torch_dtype=torch.bfloat16 if half else torch.float32)
    pipeline.set_progress_bar_config(disable=True)
    if half:
        print({run: round(float(bfloat16_distance(pipeline, run)), 3) for run in RUNS})
        sys.exit()
    os.makedirs(OUT, exist_ok=True)
    pictures = {run: make_run(pipeline, run) for run in RUNS}
    put_encoder(pipeline, pictures["a"][0])
    save_file(out, os.path.join(OUT, "golden.safetensors"))
    print(len(out), "tensors,", sum(v.nbytes for v in out.values()), "bytes")
