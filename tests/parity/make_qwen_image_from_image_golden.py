#!/usr/bin/env python3
"""Qwen-Image from an image: run E of tests/data/golden/qwen-image/golden.safetensors, by the original implementation (diffusers 0.42, transformers
5.24, torch; float32 and bfloat16, CPU).

    python3 tests/parity/make_qwen_image_from_image_golden.py FOLDER

FOLDER: the small model of tests/data/golden/qwen-image as a genuine folder, float32 weights by the manifests' rule and the family's own tokenizer.
The other runs are make_family_golden.py's and stay. The image is floor((u + 1) * 128) of the name "image.ref0" (tests/support/golden_folder.h), 96 x 80
pixels, resized to 80 x 48 by the pipeline; strength 0.6 of 6 steps, a negative prompt, guidance 4."""
import os, sys
import numpy as np
import torch
from PIL import Image
from diffusers import QwenImageImg2ImgPipeline
from safetensors import safe_open
from safetensors.torch import save_file
from make_image_golden import uniform

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/golden/qwen-image/golden.safetensors")
MOST, W, H = 256, 80, 48
PROMPT, NEGATIVE = "a coffee shop entrance with a sign that reads: Qwen Coffee $2", "blurry, low quality"


def run(dtype):
    """Stages by omniq's trace keys, and the picture's bytes."""
    pipe = QwenImageImg2ImgPipeline.from_pretrained(sys.argv[1], torch_dtype=dtype)
    image = Image.fromarray(np.floor((uniform("image.ref0", 3 * 96 * 80) + 1) * 128).astype(np.uint8).reshape(80, 96, 3))
    out, predictions = {}, []
    scale_noise, pack, step, forward = pipe.scheduler.scale_noise, pipe._pack_latents, pipe.scheduler.step, pipe.transformer.forward

    def noised(sample, t, noise):
        out["input.0.latents"] = sample
        return scale_noise(sample, t, noise)

    def packed(*a):
        out["noise"] = pack(*a)
        return out["noise"]

    def predicted(**k):
        result = forward(**k)
        predictions.append(result[0])
        return result

    def stepped(guided, t, latents, **k):
        n = len(predictions) // 2 - 1
        out.update({f"step.{n}.model_out.0": predictions[-2], f"step.{n}.model_out.1": predictions[-1], f"step.{n}.pred": guided})
        result = step(guided, t, latents, **k)
        out[f"step.{n}.latents"] = result[0]
        return result

    pipe.scheduler.scale_noise, pipe._pack_latents, pipe.scheduler.step, pipe.transformer.forward = noised, packed, stepped, predicted
    picture = pipe(PROMPT, negative_prompt=NEGATIVE, true_cfg_scale=4.0, image=image, strength=0.6, height=H, width=W, num_inference_steps=6,
                   generator=torch.Generator("cpu").manual_seed(11), output_type="np").images[0]
    out["input.0"] = pipe.image_processor.preprocess(image, height=H, width=W)
    out["sigmas"], out["timesteps"] = pipe.scheduler.sigmas, pipe.scheduler.timesteps
    return out, torch.from_numpy(np.ascontiguousarray(np.round(picture * 255).astype(np.uint8)).reshape(-1))


def main():
    with safe_open(PATH, "pt") as f:
        kept = {k: f.get_tensor(k) for k in f.keys() if not k.startswith("E.")}
    for dtype, mark in ((torch.float32, ""), (torch.bfloat16, "_bf16")):
        stages, picture = run(dtype)
        kept["E.image" + mark] = picture
        for key, value in stages.items():
            if mark and not (key == "noise" or key.endswith((".latents", "model_out.0"))): continue
            value = value.float().reshape(-1)
            every = max(1, -(-value.numel() // MOST))
            kept[f"E.{key}{mark}" + (f"@{every}" if every > 1 else "")] = value[::every].contiguous()
    save_file(kept, PATH)
    print(len(kept), "tensors,", os.path.getsize(PATH), "bytes")


main()
