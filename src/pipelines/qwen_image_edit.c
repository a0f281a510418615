/* qwen_image_edit.c -- the Qwen-Image-Edit families, of one picture and of several: what they are made of, which requests they
 * take. The walk is in qwen_image_edit_run.c. */
#include "pipelines/qwen_image_edit.h"

#include "pipelines/pipeline_parts.h"

#include <math.h>
#include <string.h>

enum { AREA = 1024 * 1024, SHOWN_AREA = 384 * 384, SIDE_MULTIPLE = 32 };

/* ---- what they are made of ----------------------------------------------------------------------------- */

static oq_status check_patches(oq_env *env, const qwen_image_edit *e)
{
    const oq_vision_qwen25 *tower = &e->seer->vision;
    const oq_vision_patches *p = &e->patches;
    if (p->patch == tower->patch_size && p->frames == tower->temporal_patch_size &&
        p->merge == tower->merge_size)
        return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "the image processor cuts patches of %lld pixels and %lld frames, %lld by %lld to a "
                   "state; the vision "
                   "tower takes %lld and %lld, %lld by %lld",
                   (long long)p->patch, (long long)p->frames, (long long)p->merge, (long long)p->merge,
                   (long long)tower->patch_size, (long long)tower->temporal_patch_size,
                   (long long)tower->merge_size, (long long)tower->merge_size);
}

static oq_status init(oq_env *env, const oq_pipeline_setup *setup, qwen_image_edit *e)
{
    e->seer = setup->modules[0];
    e->area = AREA;
    OQ_TRY(oq_vision_patches_read(env, setup->folder, setup->dummy, &e->patches));
    OQ_TRY(check_patches(env, e));
    return qwen_image_init(env, setup,
                           QWEN_IMAGE_EDIT_BEFORE "<|vision_start|>" QWEN_IMAGE_EDIT_PAD "<|vision_end|>",
                           QWEN_IMAGE_AFTER, &e->base);
}

static oq_status init_one(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    return init(env, setup, self);
}

static oq_status init_several(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    qwen_image_edit *e = self;
    e->several = true;
    e->shown_area = SHOWN_AREA;
    return init(env, setup, e);
}

static const oq_pipeline_component components[] = {
    {.name = "text_encoder", .quantizable = true, .encoder = true, .trim = oq_te_qwen25_vl_see},
    {.name = "transformer", .quantizable = true},
    {.name = "vae"},
};

/* ---- which requests they take -------------------------------------------------------------------------- */

void qwen_image_edit_fit(int64_t area, const oq_image *image, int64_t *width, int64_t *height)
{
    const double ratio = (double)image->width / (double)image->height, w = sqrt((double)area * ratio),
                 h = w / ratio;
    *width = (int64_t)rint(w / SIDE_MULTIPLE) * SIDE_MULTIPLE; /* halves to the even one, as in Python */
    *height = (int64_t)rint(h / SIDE_MULTIPLE) * SIDE_MULTIPLE;
}

/* Qwen-Image-Edit's picture is as large as the one that is given, Plus's as the last one. */
static void size_by_images(const void *self, const oq_request *r, int64_t *width, int64_t *height)
{
    const qwen_image_edit *e = self;
    qwen_image_edit_fit(e->area, &r->images[e->several ? r->n_images - 1 : 0], width, height);
}

static oq_status check_picture(oq_env *env, const qwen_image_edit *e, const oq_image *image, int index)
{
    const int64_t areas[] = {e->area, e->shown_area ? e->shown_area : e->area};
    int64_t w, h, to_w, to_h;
    for (size_t i = 0; i < OQ_COUNT(areas); i++) {
        qwen_image_edit_fit(areas[i], image, &w, &h);
        if (w > 0 && h > 0 && oq_vision_patches_size(&e->patches, w, h, &to_w, &to_h)) continue;
        return oq_fail(env, OQ_E_ARG,
                       "picture %d has %lld x %lld pixels: one side is too short beside the other", index + 1,
                       (long long)image->width, (long long)image->height);
    }
    return OQ_OK;
}

static oq_status check_pictures(oq_env *env, const qwen_image_edit *e, const oq_request *r)
{
    const int most = e->several ? QWEN_IMAGE_MAX_GIVEN : 1;
    if (r->n_images > most)
        return oq_fail(env, OQ_E_ARG, "%d pictures are given, Qwen-Image-Edit%s takes %d%s", r->n_images,
                       e->several ? "-Plus" : "", most,
                       e->several ? " at most" : "; those of 2509 and 2511 take several");
    for (int i = 0; i < r->n_images; i++) OQ_TRY(check_picture(env, e, &r->images[i], i));
    return OQ_OK;
}

/* What stands for a picture in the template stands for none in a prompt. */
static oq_status check_words(oq_env *env, const oq_request *r)
{
    for (int i = 0; i < r->n_prompts; i++)
        if (strstr(r->prompts[i], QWEN_IMAGE_EDIT_PAD))
            return oq_fail(env, OQ_E_ARG, "prompt %d holds '%s', which stands for a picture", i + 1,
                           QWEN_IMAGE_EDIT_PAD);
    if (r->negative && strstr(r->negative, QWEN_IMAGE_EDIT_PAD))
        return oq_fail(env, OQ_E_ARG, "the negative prompt holds '%s', which stands for a picture",
                       QWEN_IMAGE_EDIT_PAD);
    return OQ_OK;
}

static oq_status check(oq_env *env, const void *self, const oq_request *request)
{
    const qwen_image_edit *e = self;
    OQ_TRY(check_pictures(env, e, request)); /* before the size that follows from them */
    OQ_TRY(qwen_image_check(env, &e->base, request));
    return check_words(env, request);
}

/* ---- recipes: docs/QUALITY.md has the figures ---------------------------------------------------------- */

static const oq_pipeline_recipe recipes[] = {
    {"careful8", "{\"transformer\":{\"method\":\"int8\",\"ignored_layers\":[\"img_mlp\"]}}",
     "int8, the picture's MLPs BF16, as for Qwen-Image: a small model with made weights goes from 54.9 to "
     "57.7 dB (of several pictures: 55.6 to 58.4). Not measured on the published weights."},
    {"careful4", "{\"transformer\":{\"method\":\"nvfp4\",\"ignored_layers\":[\"transformer_blocks.0\"]}}",
     "nvfp4, the first of 60 blocks BF16: a small model with made weights, where it is one of two, goes from "
     "36.6 to 40.6 dB (of several pictures: 37.1 to 40.4)."},
    {0},
};

#define DEFAULTS                                                                                             \
    {                                                                                                        \
        .width = 1024, .height = 1024, .steps = 50, .guidance = 4.0,                                         \
        .max_sequence_length = QWEN_IMAGE_MAX_TOKENS, .multiple_px = 16                                      \
    }

const oq_pipeline_type oq_pipeline_qwen_image_edit = {
    .name = "qwen-image-edit",
    .class_name = "QwenImageEditPipeline",
    .task = "image editing",
    .help = "Qwen-Image-Edit: a picture and what to change in it; the text encoder sees the picture. The "
            "guidance scale works "
            "with a negative prompt (give \" \" for none), at the cost of two forward passes a step.",
    .takes = OQ_TAKES_IMAGE | OQ_NEEDS_IMAGE | OQ_SIZED_BY_IMAGE | OQ_GUIDED_ABOVE_1 | OQ_GUIDED_IF_ASKED,
    .components = components,
    .n_components = OQ_COUNT(components),
    .recipes = recipes,
    .defaults = DEFAULTS,
    .prompt_before = QWEN_IMAGE_EDIT_BEFORE "<|vision_start|>" QWEN_IMAGE_EDIT_PAD "<|vision_end|>",
    .prompt_after = QWEN_IMAGE_AFTER,
    .self_bytes = sizeof(qwen_image_edit),
    .init = init_one,
    .deinit = qwen_image_deinit,
    .size_by_images = size_by_images,
    .check = check,
    .run = qwen_image_edit_run,
};

const oq_pipeline_type oq_pipeline_qwen_image_edit_plus = {
    .name = "qwen-image-edit-plus",
    .class_name = "QwenImageEditPlusPipeline",
    .task = "image editing",
    .help = "Qwen-Image-Edit-2509 and -2511: up to 16 pictures (\"Picture 1\" and so on in the prompt) and "
            "what to make of them. "
            "The guidance scale works with a negative prompt (give \" \" for none), at the cost of two "
            "forward passes a step.",
    .takes = OQ_TAKES_IMAGE | OQ_TAKES_IMAGES | OQ_NEEDS_IMAGE | OQ_SIZED_BY_IMAGE | OQ_GUIDED_ABOVE_1 |
             OQ_GUIDED_IF_ASKED,
    .components = components,
    .n_components = OQ_COUNT(components),
    .recipes = recipes,
    .defaults = DEFAULTS,
    .prompt_before =
        QWEN_IMAGE_EDIT_BEFORE "Picture 1: <|vision_start|>" QWEN_IMAGE_EDIT_PAD "<|vision_end|>",
    .prompt_after = QWEN_IMAGE_AFTER,
    .self_bytes = sizeof(qwen_image_edit),
    .init = init_several,
    .deinit = qwen_image_deinit,
    .size_by_images = size_by_images,
    .check = check,
    .run = qwen_image_edit_run,
};
