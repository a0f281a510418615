/* z_image.c -- the Z-Image family: what it is made of, which requests it takes. The walk from prompts to
 * pictures is in z_image_run.c. */
#include "pipelines/z_image.h"

#include "pipelines/pipeline_parts.h"

/* ---- what it is made of -------------------------------------------------------------------------------- */

static oq_status check_fit(oq_env *env, const z_image *z)
{
    if (z->encoder->hidden_size != z->dit->caption_dim)
        return oq_fail(env, OQ_E_FORMAT, "the text encoder's hidden size is %lld, the transformer takes %lld",
                       (long long)z->encoder->hidden_size, (long long)z->dit->caption_dim);
    if (z->vae->latent_channels != z->dit->in_channels)
        return oq_fail(env, OQ_E_FORMAT, "the autoencoder has %lld latent channels, the transformer %lld",
                       (long long)z->vae->latent_channels, (long long)z->dit->in_channels);
    if (z->vae->out_channels != 3)
        return oq_fail(env, OQ_E_UNSUPPORTED, "the autoencoder gives %lld channels, pictures have 3",
                       (long long)z->vae->out_channels);
    return OQ_OK;
}

static oq_status init(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    z_image *z = self;
    z->encoder = setup->modules[0];
    z->dit = setup->modules[1];
    z->vae = setup->modules[2];
    OQ_TRY(oq_setup_check_scheduler(env, setup, "Z-Image", "FlowMatchEulerDiscreteScheduler"));
    OQ_TRY(check_fit(env, z));
    OQ_TRY(oq_flow_euler_parse(env, setup->scheduler, &z->schedule));
    return oq_setup_tokenizer(env, setup, "tokenizer", Z_IMAGE_BEFORE, Z_IMAGE_AFTER, &z->tokenizer);
}

static void deinit(oq_env *env, void *self)
{
    z_image *z = self;
    oq_tokenizer_close(env, z->tokenizer);
    z->tokenizer = NULL;
}

/* ---- which requests it takes --------------------------------------------------------------------------- */

static oq_status check(oq_env *env, const void *self, const oq_request *request)
{
    const z_image *z = self;
    const oq_sides sides = {.multiple = OQ_DIT_ZIMAGE_PATCH * oq_vae_kl_scale(z->vae),
                            .bytes_per_px = 2 * 2 * 2 * z->vae->channels[0]};
    OQ_TRY(oq_request_check_sides(env, request, &sides));
    OQ_TRY(oq_request_check_schedule(env, request));
    OQ_TRY(oq_request_check_guidance(env, request));
    OQ_TRY(oq_request_check_strength(env, request));
    return oq_request_check_texts(env, request, z->encoder->max_positions);
}

/* ---- row of the pipeline list -------------------------------------------------------------------------- */

/* The last state but one is taken. */
static void trim_encoder(const oq_json *model_index, void *self)
{
    oq_te_qwen3 *encoder = self;
    (void)model_index;
    encoder->n_run = encoder->n_layers - 1;
    encoder->norm_unused = true;
}

static const oq_pipeline_component components[] = {
    {.name = "text_encoder", .quantizable = true, .encoder = true, .trim = trim_encoder},
    {.name = "transformer", .quantizable = true},
    {.name = "vae"},
};

/* ---- recipes: docs/QUALITY.md has the figures ---------------------------------------------------------- */

static const oq_pipeline_recipe recipes[] = {
    {"careful8", "{\"transformer\":{\"method\":\"int8\",\"ignored_layers\":[\"feed_forward\"]}}",
     "int8, feed-forward layers BF16. Published for Z-Image: LPIPS 0.160 without the exception, "
     "0.029 with it; toybox: 49.7 dB become 53.0."},
    {"careful4", "{\"transformer\":{\"method\":\"nvfp4\",\"ignored_layers\":[\"to_out\"]}}",
     "nvfp4, products behind attention BF16; toybox: 33.6 dB become 34.8 for 1.0 bits a weight; refiners or "
     "feed_forward.w2 left out gain nothing sure."},
    {0},
};

const oq_pipeline_type oq_pipeline_z_image = {
    .name = "z-image",
    .class_name = "ZImagePipeline",
    .task = "text-to-image, image-to-image",
    .help = "Z-Image and Z-Image-Turbo; the guidance scale is added on top of the prompt's own prediction (0 "
            "is off).",
    .components = components,
    .n_components = OQ_COUNT(components),
    .recipes = recipes,
    .defaults = {.steps = 8, .guidance = 0.0, .max_sequence_length = 512, .multiple_px = 16},
    .takes = OQ_TAKES_IMAGE | OQ_TAKES_STRENGTH | OQ_SIZED_BY_IMAGE | OQ_GUIDED_ABOVE_0,
    .prompt_before = Z_IMAGE_BEFORE,
    .prompt_after = Z_IMAGE_AFTER,
    .self_bytes = sizeof(z_image),
    .init = init,
    .deinit = deinit,
    .check = check,
    .run = z_image_run,
};
