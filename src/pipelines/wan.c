/* wan.c -- the Wan 2.2 families: what they are made of, which requests they take. Text-to-video with two experts (A14B) or
 * one transformer (TI2V-5B, which also continues a picture), and image-to-video (I2V-A14B). The walk from prompts to frames
 * is in wan_run.c. */
#include "pipelines/wan.h"

#include "pipelines/pipeline_parts.h"

#include <math.h>

/* ---- what they are made of ----------------------------------------------------------------------------- */

static oq_status check_expert(oq_env *env, const wan *w, const oq_dit_wan *dit, const char *name)
{
    const int64_t z = w->vae->z_dim, beside = z + WAN_MASK_CHANNELS;
    if (w->encoder->hidden_size != dit->text_dim)
        return oq_fail(env, OQ_E_FORMAT, "the text encoder's hidden size is %lld, the %s takes %lld",
                       (long long)w->encoder->hidden_size, name, (long long)dit->text_dim);
    if (dit->out_channels != z)
        return oq_fail(env, OQ_E_FORMAT, "the autoencoder has %lld latent channels, the %s gives %lld",
                       (long long)z, name, (long long)dit->out_channels);
    const int64_t want = w->image_channels ? z + beside : z;
    if (dit->in_channels != want)
        return oq_fail(env, OQ_E_FORMAT, "the %s takes %lld channels, %lld latent channels need %lld", name,
                       (long long)dit->in_channels, (long long)z, (long long)want);
    return OQ_OK;
}

static oq_status check_fit(oq_env *env, const wan *w)
{
    OQ_TRY(check_expert(env, w, w->experts[0], "transformer"));
    if (w->experts[1]) OQ_TRY(check_expert(env, w, w->experts[1], "transformer_2"));
    if (w->experts[1] && w->experts[1]->head_dim != w->experts[0]->head_dim)
        return oq_fail(env, OQ_E_UNSUPPORTED, "heads of %lld in the transformer, of %lld in transformer_2",
                       (long long)w->experts[0]->head_dim, (long long)w->experts[1]->head_dim);
    if (w->boundary > 0 && !w->experts[1])
        return oq_fail(env, OQ_E_FORMAT, "model_index.json has a boundary_ratio, but no transformer_2");
    if (w->experts[1] && w->boundary == 0)
        return oq_fail(env, OQ_E_FORMAT,
                       "model_index.json has a transformer_2, but no boundary_ratio to tell when it runs");
    return OQ_OK;
}

static bool expands_timesteps(const oq_json *index)
{
    return oq_json_bool(oq_json_get(index, "expand_timesteps"), false);
}

/* From text alone nothing is encoded. */
static void trim_text_to_video(const oq_json *model_index, void *self)
{
    ((oq_vae_wan *)self)->encoder_unused = !expands_timesteps(model_index);
}

static oq_status read_index(oq_env *env, const oq_json *index, wan *w)
{
    const oq_json *ratio = oq_json_get(index, "boundary_ratio");
    double share = 0;
    if (oq_json_type(ratio) != OQ_JSON_NULL) share = oq_json_real(ratio, NAN);
    if (!(share >= 0 && share <= 1))
        return oq_fail(env, OQ_E_FORMAT,
                       "model_index.json: 'boundary_ratio' is %g, it must be a number from 0 to 1", share);
    w->expand_timesteps = expands_timesteps(index);
    w->boundary = share; /* times the training steps, once they are read */
    return OQ_OK;
}

static oq_status init(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    wan *w = self;
    w->encoder = setup->modules[0];
    w->experts[0] = setup->modules[1];
    w->experts[1] = setup->modules[2];
    w->vae = setup->modules[3];
    w->image_channels = w->experts[0]->in_channels > w->experts[0]->out_channels;
    OQ_TRY(oq_setup_check_scheduler(env, setup, "Wan", "UniPCMultistepScheduler"));
    OQ_TRY(oq_unipc_parse(env, setup->scheduler, &w->schedule));
    OQ_TRY(read_index(env, setup->model_index, w));
    w->boundary *= w->schedule.num_train_timesteps;
    OQ_TRY(check_fit(env, w));
    return oq_setup_tokenizer(env, setup, "tokenizer", "", "", &w->tokenizer);
}

static oq_status init_text_to_video(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    const wan *w = self;
    OQ_TRY(init(env, setup, self));
    if (!w->image_channels) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "the transformer takes %lld channels, those of a model that begins with a picture; "
                   "its model_index.json should name WanImageToVideoPipeline",
                   (long long)w->experts[0]->in_channels);
}

static oq_status init_image_to_video(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    const wan *w = self;
    OQ_TRY(init(env, setup, self));
    if (w->image_channels || w->expand_timesteps) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "the transformer takes %lld channels: a picture to begin with has no place among them",
                   (long long)w->experts[0]->in_channels);
}

static void deinit(oq_env *env, void *self)
{
    wan *w = self;
    oq_tokenizer_close(env, w->tokenizer);
    w->tokenizer = NULL;
}

/* ---- which requests they take -------------------------------------------------------------------------- */

static oq_status check_video(oq_env *env, const wan *w, const oq_request *r)
{
    const int64_t ft = oq_vae_wan_time_scale(w->vae);
    enum { MAX_FRAMES = 4096 };
    if (r->frames < 1 || r->frames > MAX_FRAMES || (r->frames - 1) % ft)
        return oq_fail(env, OQ_E_ARG,
                       "a video of %lld frames: 1 + a multiple of %lld are possible, %d at most",
                       (long long)r->frames, (long long)ft, (int)MAX_FRAMES);
    if (r->n_images > 1)
        return oq_fail(env, OQ_E_ARG, "%d pictures are given, a video begins with one", r->n_images);
    if (r->n_images && !w->image_channels && !w->expand_timesteps)
        return oq_fail(env, OQ_E_ARG, "a picture is given, but this model makes videos from text alone");
    if (!isnan(r->guidance_2) && !w->experts[1])
        return oq_fail(env, OQ_E_ARG, "guidance scale 2 is %g, but this model has one transformer",
                       r->guidance_2);
    if (!isnan(r->guidance_2) && !(r->guidance_2 >= 0 && isfinite(r->guidance_2)))
        return oq_fail(env, OQ_E_ARG, "guidance scale 2 is %g: it must be a number of 0 or more",
                       r->guidance_2);
    if (!(r->flow_shift >= 0 && r->flow_shift <= 1e6))
        return oq_fail(env, OQ_E_ARG, "flow shift %g: it must be between 0 (the schedule's own) and 1e6",
                       r->flow_shift);
    return OQ_OK;
}

static oq_status check(oq_env *env, const void *self, const oq_request *request)
{
    const wan *w = self;
    const oq_sides sides = {.multiple = OQ_DIT_WAN_PATCH * oq_vae_wan_scale(w->vae),
                            .bytes_per_px = 2 * 2 * 2 * oq_vae_wan_time_scale(w->vae) * w->vae->decoder_dim};
    OQ_TRY(oq_request_check_sides(env, request, &sides));
    OQ_TRY(oq_request_check_schedule(env, request));
    OQ_TRY(oq_request_check_guidance(env, request));
    OQ_TRY(oq_request_check_plain_guidance(env, request, "Wan"));
    OQ_TRY(check_video(env, w, request));
    return oq_request_check_texts(env, request, WAN_MAX_TOKENS);
}

/* ---- rows of the pipeline list ------------------------------------------------------------------------- */

/* The documented recipe: the autoencoder in float32, the rest in BF16. */
#define WAN_COMPONENTS(...)                                                                                  \
    {                                                                                                        \
        {.name = "text_encoder", .quantizable = true, .encoder = true},                                      \
            {.name = "transformer", .quantizable = true},                                                    \
            {.name = "transformer_2", .quantizable = true, .optional = true},                                \
            {.name = "vae", .wide = true, __VA_ARGS__},                                                      \
    }
static const oq_pipeline_component from_text[] = WAN_COMPONENTS(.trim = trim_text_to_video);
static const oq_pipeline_component from_image[] = WAN_COMPONENTS(.trim = NULL);

#define WAN_DEFAULTS                                                                                         \
    {                                                                                                        \
        .width = 832, .height = 480, .steps = 50, .guidance = 5.0, .max_sequence_length = 512,               \
        .multiple_px = 16, .frames = 81, .fps = 16                                                           \
    }

/* ---- recipes: docs/QUALITY.md has the figures ---------------------------------------------------------- */

static const oq_pipeline_recipe recipes[] = {
    {"careful8",
     "{\"text_encoder\":null,\"default\":{\"method\":\"int8\",\"ignored_layers\":[\"ffn.net.2\"]}}",
     "int8, the products behind GELU BF16: a small model with made weights goes from 54.8 to 55.6 "
     "dB (T2V-A14B). Not measured on the published weights."},
    {"careful4",
     "{\"text_encoder\":null,\"default\":{\"method\":\"nvfp4\",\"ignored_layers\":[\"blocks.0\"]}}",
     "nvfp4, the first block BF16: a small model with made weights, where it is one of two, goes "
     "from 36.7 to 45.3 dB (T2V-A14B), 37.3 to 40.3 (TI2V-5B)."},
    {0},
};

const oq_pipeline_type oq_pipeline_wan = {
    .name = "wan",
    .class_name = "WanPipeline",
    .task = "text-to-video",
    .help = "Wan 2.2 T2V-A14B (two experts, a guidance scale each) and TI2V-5B (also begins with --image).",
    .takes = OQ_GUIDED_ABOVE_1 | OQ_TAKES_FRAMES | OQ_TAKES_GUIDANCE_2 | OQ_TAKES_FLOW_SHIFT | OQ_TAKES_IMAGE,
    .components = from_text,
    .n_components = OQ_COUNT(from_text),
    .recipes = recipes,
    .defaults = WAN_DEFAULTS,
    .self_bytes = sizeof(wan),
    .init = init_text_to_video,
    .deinit = deinit,
    .check = check,
    .run = wan_run,
};

const oq_pipeline_type oq_pipeline_wan_i2v = {
    .name = "wan-i2v",
    .class_name = "WanImageToVideoPipeline",
    .task = "image-to-video",
    .help = "Wan 2.2 I2V-A14B: a video that begins with --image.",
    .takes = OQ_GUIDED_ABOVE_1 | OQ_TAKES_FRAMES | OQ_TAKES_GUIDANCE_2 | OQ_TAKES_FLOW_SHIFT |
             OQ_TAKES_IMAGE | OQ_NEEDS_IMAGE,
    .components = from_image,
    .n_components = OQ_COUNT(from_image),
    .recipes = recipes,
    .defaults = WAN_DEFAULTS,
    .self_bytes = sizeof(wan),
    .init = init_image_to_video,
    .deinit = deinit,
    .check = check,
    .run = wan_run,
};
