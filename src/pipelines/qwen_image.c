/* qwen_image.c -- the Qwen-Image family: what it is made of, which requests it takes. The walk from prompts to pictures
 * is in qwen_image_run.c. */
#include "pipelines/qwen_image.h"

#include "pipelines/pipeline_parts.h"

static oq_status check_fit(oq_env *env, const qwen_image *q)
{
    const int64_t patch = OQ_DIT_QWEN_IMAGE_PATCH * OQ_DIT_QWEN_IMAGE_PATCH;
    if (q->encoder->hidden_size != q->dit->text_dim)
        return oq_fail(env, OQ_E_FORMAT, "the text encoder's hidden size is %lld, the transformer takes %lld",
                       (long long)q->encoder->hidden_size, (long long)q->dit->text_dim);
    if (q->vae->z_dim * patch != q->dit->in_channels || q->vae->z_dim != q->dit->out_channels)
        return oq_fail(env, OQ_E_FORMAT,
                       "the autoencoder has %lld latent channels, the transformer takes %lld and gives %lld",
                       (long long)q->vae->z_dim, (long long)(q->dit->in_channels / patch),
                       (long long)q->dit->out_channels);
    return OQ_OK;
}

oq_status qwen_image_init(oq_env *env, const oq_pipeline_setup *setup, const char *before, const char *after,
                          qwen_image *q)
{
    q->encoder = setup->modules[0];
    q->dit = setup->modules[1];
    q->vae = setup->modules[2];
    OQ_TRY(oq_setup_check_scheduler(env, setup, "Qwen-Image", "FlowMatchEulerDiscreteScheduler"));
    OQ_TRY(check_fit(env, q));
    OQ_TRY(oq_flow_euler_parse(env, setup->scheduler, &q->schedule));
    return oq_setup_tokenizer(env, setup, "tokenizer", before, after, &q->tokenizer);
}

static oq_status init(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    return qwen_image_init(env, setup, QWEN_IMAGE_BEFORE, QWEN_IMAGE_AFTER, self);
}

void qwen_image_deinit(oq_env *env, void *self)
{
    qwen_image *q = self;
    oq_tokenizer_close(env, q->tokenizer);
    q->tokenizer = NULL;
}

oq_status qwen_image_check(oq_env *env, const qwen_image *q, const oq_request *request)
{
    const oq_sides sides = {.multiple = OQ_DIT_QWEN_IMAGE_PATCH * oq_vae_wan_scale(q->vae),
                            .bytes_per_px = 2 * 2 * 2 * q->vae->base_dim};
    OQ_TRY(oq_request_check_sides(env, request, &sides));
    OQ_TRY(oq_request_check_schedule(env, request));
    OQ_TRY(oq_request_check_guidance(env, request));
    OQ_TRY(oq_request_check_plain_guidance(env, request, "Qwen-Image"));
    return oq_request_check_texts(env, request, QWEN_IMAGE_MAX_TOKENS);
}

static oq_status check(oq_env *env, const void *self, const oq_request *request)
{
    OQ_TRY(oq_request_check_strength(env, request));
    return qwen_image_check(env, self, request);
}

static const oq_pipeline_component components[] = {
    {.name = "text_encoder", .quantizable = true, .encoder = true},
    {.name = "transformer", .quantizable = true},
    {.name = "vae"},
};

/* ---- recipes: docs/QUALITY.md has the figures ---------------------------------------------------------- */

static const oq_pipeline_recipe recipes[] = {
    {"careful8", "{\"transformer\":{\"method\":\"int8\",\"ignored_layers\":[\"img_mlp\"]}}",
     "int8, the picture's MLPs BF16. Published for Qwen-Image: LPIPS 0.0197 without the exception, "
     "0.0027 with it; a small model with made weights: 55.2 dB become 58.0."},
    {"careful4", "{\"transformer\":{\"method\":\"nvfp4\",\"ignored_layers\":[\"transformer_blocks.0\"]}}",
     "nvfp4, the first of 60 blocks BF16: a small model with made weights, where it is one of two, "
     "goes from 37.3 to 41.1 dB."},
    {0},
};

const oq_pipeline_type oq_pipeline_qwen_image = {
    .name = "qwen-image",
    .class_name = "QwenImagePipeline",
    .task = "text-to-image, image-to-image",
    .help = "Qwen-Image; the guidance scale works with a negative prompt (give \" \" for none), at the cost "
            "of two "
            "forward passes a step.",
    .takes = OQ_TAKES_IMAGE | OQ_TAKES_STRENGTH | OQ_GUIDED_ABOVE_1 | OQ_GUIDED_IF_ASKED,
    .components = components,
    .n_components = OQ_COUNT(components),
    .recipes = recipes,
    .defaults = {.width = 1024,
                 .height = 1024,
                 .steps = 50,
                 .guidance = 4.0,
                 .max_sequence_length = 512,
                 .multiple_px = 16},
    .prompt_before = QWEN_IMAGE_BEFORE,
    .prompt_after = QWEN_IMAGE_AFTER,
    .self_bytes = sizeof(qwen_image),
    .init = init,
    .deinit = qwen_image_deinit,
    .check = check,
    .run = qwen_image_run,
};
