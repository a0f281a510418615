#!/usr/bin/env python3
"""Z-Image from an image: tests/data/parity/from_image.safetensors, made by the original implementation (diffusers 0.42, torch; float32, CPU).

    python3 tests/parity/make_image_golden.py

The image is floor((u + 1) * 128) of the name "image.ref0" (tests/support/golden_folder.h), 96 x 80 pixels, resized to 144 x 112 by the pipeline;
strength 0.7 of 6 steps. Kept: the autoencoder's latents as they begin, the last latents, the picture."""
import os
import numpy as np
import torch
from PIL import Image
from diffusers import ZImageImg2ImgPipeline, ZImagePipeline
from safetensors.numpy import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def uniform(name, n):
    mask, h = (1 << 64) - 1, 0xCBF29CE484222325
    for b in name.encode(): h = ((h ^ b) * 0x100000001B3) & mask
    with np.errstate(over="ignore"):
        z = np.uint64(h) + (np.arange(n, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(48)).astype(np.float32) / np.float32(32768) - np.float32(1)


def main():
    W, H = 96, 80
    u = uniform("image.ref0", 3 * W * H)
    small = np.floor((u + 1) * 128).astype(np.uint8).reshape(H, W, 3)
    image = Image.fromarray(small).resize((144, 112), Image.Resampling.LANCZOS)

    base = ZImagePipeline.from_pretrained(f"{ROOT}/models/toybox", torch_dtype=torch.float32)
    pipe = ZImageImg2ImgPipeline(**base.components)
    out, first = {}, []
    scale = pipe.scheduler.scale_noise
    pipe.scheduler.scale_noise = lambda *a, **k: first.append((a[0].clone(), scale(*a, **k))) or first[-1][1]
    states = []
    picture = pipe("a large red ball to the left of a small blue star on a cream background", image=image, strength=0.7, height=112, width=144,
                   num_inference_steps=6, guidance_scale=0.0, generator=torch.Generator("cpu").manual_seed(11),
                   callback_on_step_end=lambda p, i, t, k: states.append(k["latents"].clone()) or k, output_type="np").images[0]
    c = lambda t: np.ascontiguousarray(t.float().numpy())
    save_file({"input.0.latents": c(first[0][0]), "noise": c(first[0][1]), "latents": c(states[-1]),
               "image": np.ascontiguousarray(np.round(picture * 255).astype(np.uint8)), "steps": np.array([len(states)], dtype=np.int32)}, f"{ROOT}/tests/data/parity/from_image.safetensors")
    print(len(states), first[0][1].shape, os.path.getsize(f"{ROOT}/tests/data/parity/from_image.safetensors"))


if __name__ == "__main__": main()
