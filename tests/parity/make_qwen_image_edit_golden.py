#!/usr/bin/env python3
"""Qwen-Image-Edit and Qwen-Image-Edit-Plus on a small model with made weights, by the original implementation (diffusers 0.42.1, transformers
5.24, torch 2.15; float32 and bfloat16, CPU).

    python3 tests/parity/make_qwen_image_edit_golden.py FOLDER

FOLDER: the small model of Qwen-Image as a genuine folder, with the vision tower in its text encoder, float32 weights by the rule of
tests/support/golden_folder.h and the family's own tokenizer. Written are tests/data/golden/qwen-image-edit and qwen-image-edit-plus: the index, the image
processor's configuration, the text encoder's configuration and manifest, a tokenizer of the prompts' own words, and golden.safetensors, where "RUN.KEY@N"
is every N-th value of stage KEY as omniq --trace names it, "RUN.image" and "RUN.image_bf16" are bytes. What equals Qwen-Image's is a link to it.

Pictures are floor((u + 1) * 128) of a name (golden_folder.h). Areas of given pictures are 1024 x 1024 in the runs marked so, else smaller, so that tests stay
quick. Two points at which what is installed is not taken as it is:
- transformers 5 computes positions of pictures in the text encoder only with `mm_token_type_ids`, which these two pipelines do not hand over (they hold
  since transformers 4, which needed none); they are handed over here, as the model was trained.
- the processor's class needs torchvision; its parts are called by themselves: Qwen2VLImageProcessorPil and the tokenizer."""
import json, os, shutil, sys
import numpy as np
import torch
import diffusers.pipelines.qwenimage.pipeline_qwenimage_edit as edit
import diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus as plus
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, QwenImageTransformer2DModel
from PIL import Image
from safetensors.torch import save_file
from transformers import BatchFeature, Qwen2_5_VLForConditionalGeneration, Qwen2Tokenizer
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.vision_utils import get_vision_window_index
from make_image_golden import uniform

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../data/golden")
MOST, PAD = 256, 151655
CHANGE, NEGATIVE = "make the ball blue and turn the scene into a rainy night", "blurry, low quality"
FULL = 1024 * 1024
RUNS = {  # pictures, prompt, negative, scale, width, height, steps, seed, area, area shown to the text encoder (of Plus)
    "qwen-image-edit": {
        "A": ([("image.ref0", 96, 80)], CHANGE, NEGATIVE, 4.0, 80, 48, 3, 11, 96 * 96, 0),
        "B": ([("image.ref1", 100, 120)], CHANGE, None, 1.0, 64, 64, 2, 5, FULL, 0)},
    "qwen-image-edit-plus": {
        "A": ([("image.ref0", 96, 80), ("image.ref1", 100, 200)], CHANGE, NEGATIVE, 4.0, 48, 80, 3, 12, 96 * 96, 160 * 160),
        "B": ([("image.ref1", 100, 120)], CHANGE, " ", 2.5, 64, 64, 2, 6, FULL, 384 * 384)}}


class Processor:
    """Qwen2VLProcessor without its videos."""
    def __init__(self, tokenizer):
        self.images, self.tokenizer = Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=12845056), tokenizer

    def __call__(self, text, images, padding, return_tensors):
        seen = self.images(images if isinstance(images, list) else [images], return_tensors="pt")
        text = list(text)
        for t, h, w in seen["image_grid_thw"].tolist():
            text = [x.replace("<|image_pad|>", "<|held|>" * (t * h * w // 4), 1) for x in text]
        ids = self.tokenizer([x.replace("<|held|>", "<|image_pad|>") for x in text], return_tensors="pt", padding=True)
        return BatchFeature({**ids, **seen})


class Stages:
    def __init__(self, pipe, pictures):
        self.out, self.pipe, self.pictures, self.predictions, self.sides = {}, pipe, pictures, [], []
        self.model = pipe.text_encoder.model
        self.hook_text(); self.hook_vision(); self.hook_transformer(); self.hook_pipe()

    def hook_text(self):
        forward, index = self.pipe.text_encoder.forward, self.model.get_rope_index

        def text(input_ids=None, **k):
            self.side = "text.neg.0" if "text.pos.0.ids" in self.out else "text.pos.0"
            self.out[f"{self.side}.ids"] = input_ids
            result = forward(input_ids=input_ids, mm_token_type_ids=(input_ids == PAD).int(), **k)
            for i, h in enumerate(result.hidden_states): self.out[f"{self.side}.hidden.{i}"] = h
            return result

        def positions(*a, **k):
            result = index(*a, **k)
            self.out[f"{self.side}.positions"] = result[0][:, 0]
            return result

        self.pipe.text_encoder.forward, self.model.get_rope_index = text, positions

    def hook_vision(self):
        visual, rows = self.model.visual, [0]

        def split(key, value, merge):
            at = 0
            for i, n in enumerate(rows):
                if f"vision.{i}.{key}" not in self.out: self.out[f"vision.{i}.{key}"] = value[at:at + n // merge]
                at += n // merge

        def begin(module, args, k):
            pixels = args[0] if args else k["hidden_states"]
            rows[:] = [h * w for _, h, w in k["grid_thw"].tolist()]
            split("patches", pixels, 1)

        visual.register_forward_pre_hook(begin, with_kwargs=True)
        for i, block in enumerate(visual.blocks): block.register_forward_hook(lambda m, a, y, i=i: split(f"block{i}", y, 1))
        visual.register_forward_hook(lambda m, a, y: split("states", y.pooler_output, 4))

    def hook_transformer(self):
        t, forward = self.pipe.transformer, self.pipe.transformer.forward

        def keep(key):
            return lambda m, a, y: self.out.setdefault(f"dit0.{key}", y[0] if isinstance(y, tuple) else y) if not self.predictions else None

        for key, module in (("txt_norm", t.txt_norm), ("txt_in", t.txt_in), ("img_in", t.img_in), ("norm_out", None)):
            if module is not None: module.register_forward_hook(keep(key))
        for i, block in enumerate(t.transformer_blocks):
            def both(m, a, y, i=i):
                if self.predictions: return
                self.out[f"dit0.block{i}.txt"], self.out[f"dit0.block{i}.img"] = y
            block.register_forward_hook(both)

        def predicted(**k):
            self.out.setdefault("text.pos.0.embeds", k["encoder_hidden_states"])
            if len(self.predictions) == 1 and self.guided: self.out.setdefault("text.neg.0.embeds", k["encoder_hidden_states"])
            result = forward(**k)
            self.predictions.append(result[0][:, :self.tokens])
            return result

        t.forward = predicted

    def hook_pipe(self):
        pipe, pack, step, encode = self.pipe, self.pipe.prepare_latents, self.pipe.scheduler.step, self.pipe._encode_vae_image
        decode, n = pipe.vae.decode, [0]

        def prepared(*a, **k):
            latents, given = pack(*a, **k)
            self.out["noise"], self.tokens = latents, latents.shape[1]
            return latents, given

        def encoded(image, generator):
            latents = encode(image=image, generator=generator)
            self.out[f"input.{n[0]}"], self.out[f"input.{n[0]}.latents"] = image[:, :, 0], latents[:, :, 0]
            n[0] += 1
            return latents

        def stepped(v, t, latents, **k):
            each = 2 if self.guided else 1
            i = len(self.predictions) // each - 1
            for j in range(each): self.out[f"step.{i}.model_out.{j}"] = self.predictions[each * i + j]
            self.out[f"step.{i}.pred"] = v
            result = step(v, t, latents, **k)
            self.out[f"step.{i}.latents"] = result[0]
            return result

        def decoded(z, **k):
            self.out["vae.in"] = z[:, :, 0]
            return decode(z, **k)

        pipe.prepare_latents, pipe._encode_vae_image, pipe.scheduler.step, pipe.vae.decode = prepared, encoded, stepped, decoded


def picture(name, w, h):
    return Image.fromarray(np.floor((uniform(name, 3 * w * h) + 1) * 128).astype(np.uint8).reshape(h, w, 3))


def run(folder, family, dtype, facts):
    pictures, prompt, negative, scale, w, h, steps, seed, area, shown = facts
    several = family.endswith("plus")
    kept = edit.calculate_dimensions
    plus.VAE_IMAGE_SIZE, plus.CONDITION_IMAGE_SIZE = area, shown
    edit.calculate_dimensions = lambda _, ratio: kept(area, ratio)
    transformer = QwenImageTransformer2DModel.from_pretrained(folder, subfolder="transformer", torch_dtype=dtype)
    if several:
        for m in (transformer, *transformer.transformer_blocks): m.zero_cond_t = True  # as in Edit-2511
    tokenizer = Qwen2Tokenizer.from_pretrained(folder, subfolder="tokenizer")
    make = plus.QwenImageEditPlusPipeline if several else edit.QwenImageEditPipeline
    parts = dict(scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler"),
                 vae=AutoencoderKLQwenImage.from_pretrained(folder, subfolder="vae", torch_dtype=dtype),
                 text_encoder=Qwen2_5_VLForConditionalGeneration.from_pretrained(folder + "/text_encoder", dtype=dtype),
                 tokenizer=tokenizer, processor=None, transformer=transformer)
    pipe = make(**parts)
    pipe.processor = Processor(tokenizer)
    stages = Stages(pipe, pictures)
    stages.guided = scale > 1 and negative is not None
    images = [picture(*p) for p in pictures]
    result = pipe(image=images if several else images[0], prompt=prompt, negative_prompt=negative, true_cfg_scale=scale, width=w, height=h,
                  num_inference_steps=steps, generator=torch.Generator("cpu").manual_seed(seed), output_type="np").images[0]
    edit.calculate_dimensions = kept
    stages.out["sigmas"], stages.out["timesteps"] = pipe.scheduler.sigmas, pipe.scheduler.timesteps
    return stages.out, torch.from_numpy(np.ascontiguousarray(np.round(result * 255).astype(np.uint8)).reshape(-1))


def words(tokenizer, seen, out):
    """A tokenizer of added tokens alone: each token of the prompts by its text."""
    pieces = {tokenizer.decode([i], skip_special_tokens=False): i for i in seen}
    added = [dict(id=i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=s.startswith("<|"))
             for s, i in sorted(pieces.items(), key=lambda x: x[1])]
    model = dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix="", end_of_word_suffix="", fuse_unk=False, byte_fallback=False,
                 vocab={}, merges=[])
    json.dump(dict(version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None, pre_tokenizer=None, post_processor=None,
                   decoder=None, model=model), open(out, "w"), ensure_ascii=False, indent=0)


def manifest(folder, out):
    """Names as the checkpoint has them, with the scales of the rule."""
    from safetensors import safe_open
    lines = []
    with safe_open(f"{folder}/text_encoder/model.safetensors", "pt") as f:
        for name in sorted(f.keys()):
            shape = list(f.get_slice(name).get_shape())
            if name.startswith("lm_head"): continue  # large, and not read
            if name.endswith("embed_tokens.weight"): scale, offset = 1.0, 0.0
            elif len(shape) > 1: scale, offset = 2.0 ** round(np.log2(np.sqrt(3 / np.prod(shape[1:])))), 0.0
            elif name.endswith("weight"): scale, offset = 0.25, 1.0
            else: scale, offset = 0.125, 0.0
            value = f.get_slice(name)[:1].reshape(-1)[:8].float().numpy()
            assert np.array_equal(value, np.float32(offset) + np.float32(scale) * uniform(name, 8)[:len(value)]), name
            lines.append(json.dumps(dict(name=name, shape=shape, scale=scale, offset=offset), separators=(",", ":")))
    open(out, "w").write('{"tensors":[\n' + ",\n".join(lines) + "\n]}\n")


def link(to, name):
    path = os.path.join(to, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.islink(path): os.remove(path)
    os.symlink("../" * (name.count("/") + 1) + "qwen-image/" + name, path)


def folders(source, seen, tokenizer):
    index = json.load(open(f"{DATA}/qwen-image/model_index.json"))
    index["processor"] = ["transformers", "Qwen2VLProcessor"]
    for family, name in (("qwen-image-edit", "QwenImageEditPipeline"), ("qwen-image-edit-plus", "QwenImageEditPlusPipeline")):
        to = f"{DATA}/{family}"
        for part in ("text_encoder", "tokenizer", "processor"): os.makedirs(f"{to}/{part}", exist_ok=True)
        json.dump({**index, "_class_name": name, "_diffusers_version": "0.42.1"}, open(f"{to}/model_index.json", "w"), indent=2)
        for part in ("scheduler", "vae"): link(to, part)
        if family == "qwen-image-edit":
            link(to, "transformer")
            shutil.copyfile(f"{source}/text_encoder/config.json", f"{to}/text_encoder/config.json")
            manifest(source, f"{to}/text_encoder/weights.json")
            shutil.copyfile(f"{DATA}/qwen-image/tokenizer/tokenizer_config.json", f"{to}/tokenizer/tokenizer_config.json")
            words(tokenizer, seen, f"{to}/tokenizer/tokenizer.json")
            Qwen2VLImageProcessorPil(min_pixels=56 * 56, max_pixels=12845056).save_pretrained(f"{to}/processor")
            continue
        os.makedirs(f"{to}/transformer", exist_ok=True)
        link(to, "transformer/weights.json")
        json.dump({**json.load(open(f"{DATA}/qwen-image/transformer/config.json")), "zero_cond_t": True}, open(f"{to}/transformer/config.json", "w"), indent=2)
        for part in ("text_encoder", "tokenizer", "processor"):
            shutil.rmtree(f"{to}/{part}") if not os.path.islink(f"{to}/{part}") else os.remove(f"{to}/{part}")
            os.symlink(f"../qwen-image-edit/{part}", f"{to}/{part}")


def main():
    seen = set()
    for family, runs in RUNS.items():
        os.makedirs(f"{DATA}/{family}", exist_ok=True)
        kept = {}
        for name, facts in runs.items():
            for dtype, mark in ((torch.float32, ""), (torch.bfloat16, "_bf16")):
                stages, image = run(sys.argv[1], family, dtype, facts)
                kept[f"{name}.image{mark}"] = image
                for key, value in stages.items():
                    if key.endswith(".ids"): seen.update(value.reshape(-1).tolist())
                    if mark and not (key == "noise" or key.endswith((".latents", "model_out.0", ".states"))): continue
                    value = value.reshape(-1).int() if key.endswith((".ids", ".positions")) else value.float().reshape(-1)
                    every = max(1, -(-value.numel() // MOST))
                    kept[f"{name}.{key}{mark}" + (f"@{every}" if every > 1 else "")] = value[::every].contiguous()
                print(family, name, mark, len(stages), flush=True)
        save_file(kept, f"{DATA}/{family}/golden.safetensors")
        print(family, len(kept), "tensors,", os.path.getsize(f"{DATA}/{family}/golden.safetensors"), "bytes")
    folders(sys.argv[1], seen, Qwen2Tokenizer.from_pretrained(sys.argv[1], subfolder="tokenizer"))


main()
