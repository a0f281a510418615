/* z_image.c -- the Z-Image family: what it is made of, which requests it takes. The walk from prompts to
 * pictures is in z_image_run.c. */
#include "pipelines/z_image.h"

#include "base/strbuf.h"
#include "pipelines/prompt_ids.h"

#include <math.h>
#include <string.h>

enum { MAX_SIDE_PX = 16384, MAX_ITEMS = 4096, MAX_STEPS = 1000 };

/* ---- what it is made of -------------------------------------------------------------------------------- */

static oq_status check_scheduler_class(oq_env *env, const oq_json *model_index)
{
    const oq_json *entry = oq_json_get(model_index, "scheduler");
    const char *name = oq_json_string(oq_json_at(entry, 1));
    if (model_index && !name)
        return oq_fail(env, OQ_E_FORMAT, "model_index.json names no scheduler (a pair of library and class)");
    if (!name || strcmp(name, "FlowMatchEulerDiscreteScheduler") == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "scheduler '%s' is not supported; Z-Image runs with FlowMatchEulerDiscreteScheduler",
                   name);
}

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

static oq_status open_tokenizer(oq_env *env, const oq_pipeline_setup *setup, z_image *z)
{
    oq_strbuf path;
    oq_strbuf_init(&path, env);
    oq_strbuf_printf(&path, "%s/tokenizer", setup->folder);
    oq_status st = oq_strbuf_check(&path, "tokenizer path");
    if (st == OQ_OK) st = oq_tokenizer_open(env, oq_strbuf_text(&path), &z->tokenizer);
    oq_strbuf_deinit(&path);
    if (st == OQ_OK) return oq_prompt_ids_check(env, z->tokenizer, Z_IMAGE_BEFORE, Z_IMAGE_AFTER);
    if (!setup->dummy) return st;
    oq_env_clear(env);
    oq_log(env, OQ_LOG_WARN, "%s has no tokenizer: each byte of a prompt becomes a token", setup->folder);
    return OQ_OK;
}

static oq_status init(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    z_image *z = self;
    z->encoder = setup->modules[0];
    z->dit = setup->modules[1];
    z->vae = setup->modules[2];
    OQ_TRY(check_scheduler_class(env, setup->model_index));
    if (!setup->scheduler)
        return oq_fail(env, OQ_E_NOTFOUND, "%s/scheduler/scheduler_config.json is missing", setup->folder);
    OQ_TRY(check_fit(env, z));
    OQ_TRY(oq_flow_euler_parse(env, setup->scheduler, &z->schedule));
    return open_tokenizer(env, setup, z);
}

static void deinit(oq_env *env, void *self)
{
    z_image *z = self;
    oq_tokenizer_close(env, z->tokenizer);
    z->tokenizer = NULL;
}

/* ---- which requests it takes --------------------------------------------------------------------------- */

static oq_status check_size(oq_env *env, const z_image *z, const oq_request *r)
{
    const int64_t multiple = OQ_DIT_ZIMAGE_PATCH * oq_vae_kl_scale(z->vae);
    if (r->width < multiple || r->height < multiple || r->width % multiple || r->height % multiple)
        return oq_fail(env, OQ_E_ARG, "a picture of %lld x %lld pixels: both sides must be multiples of %lld",
                       (long long)r->width, (long long)r->height, (long long)multiple);
    if (r->width <= MAX_SIDE_PX && r->height <= MAX_SIDE_PX) return OQ_OK;
    const double bytes = 2.0 * 2.0 * 2.0 * (double)z->vae->channels[0] * (double)r->width * (double)r->height;
    return oq_fail(
        env, OQ_E_ARG,
        "a picture of %lld x %lld pixels: a side may have %d at most (decoding this one would take about "
        "%.0f GiB)",
        (long long)r->width, (long long)r->height, (int)MAX_SIDE_PX, bytes / 1073741824.0);
}

static oq_status check_schedule(oq_env *env, const oq_request *r)
{
    if (r->steps < 1 || r->steps > MAX_STEPS)
        return oq_fail(env, OQ_E_ARG, "%d steps: 1 to %d are possible", r->steps, (int)MAX_STEPS);
    if (!r->sigmas) return OQ_OK;
    if (r->n_sigmas != r->steps)
        return oq_fail(env, OQ_E_ARG, "%d sigmas are given for %d steps", r->n_sigmas, r->steps);
    for (int i = 0; i < r->n_sigmas; i++)
        if (!(r->sigmas[i] > 0.0f && r->sigmas[i] <= 1.0f))
            return oq_fail(env, OQ_E_ARG, "sigma %d is %g: sigmas are above 0 and at most 1", i + 1,
                           (double)r->sigmas[i]);
    return OQ_OK;
}

static oq_status check_guidance(oq_env *env, const oq_request *r)
{
    if (!isfinite(r->guidance) || r->guidance < 0)
        return oq_fail(env, OQ_E_ARG, "guidance scale %g: it must be a number of 0 (off) or more",
                       r->guidance);
    if (!isfinite(r->cfg_normalization) || r->cfg_normalization < 0)
        return oq_fail(env, OQ_E_ARG, "cfg normalization %g: it must be a number of 0 (off) or more",
                       r->cfg_normalization);
    if (isnan(r->cfg_truncation)) return oq_fail(env, OQ_E_ARG, "cfg truncation is not a number");
    return OQ_OK;
}

static oq_status check_texts(oq_env *env, const z_image *z, const oq_request *r)
{
    if (r->n_prompts < 1 || r->images_per_prompt < 1 ||
        (int64_t)r->n_prompts * r->images_per_prompt > MAX_ITEMS)
        return oq_fail(env, OQ_E_ARG, "%d prompts with %d pictures each: 1 to %d pictures are possible",
                       r->n_prompts, r->images_per_prompt, (int)MAX_ITEMS);
    for (int i = 0; i < r->n_prompts; i++)
        if (!r->prompts || !r->prompts[i]) return oq_fail(env, OQ_E_ARG, "prompt %d is missing", i + 1);
    if (r->max_sequence_length < 1 || r->max_sequence_length > z->encoder->max_positions)
        return oq_fail(env, OQ_E_ARG, "max sequence length %d: the text encoder takes 1 to %lld tokens",
                       r->max_sequence_length, (long long)z->encoder->max_positions);
    return OQ_OK;
}

static oq_status check(oq_env *env, const void *self, const oq_request *request)
{
    OQ_TRY(check_size(env, self, request));
    OQ_TRY(check_schedule(env, request));
    OQ_TRY(check_guidance(env, request));
    return check_texts(env, self, request);
}

/* ---- row of the pipeline list -------------------------------------------------------------------------- */

static const oq_pipeline_component components[] = {
    {.name = "text_encoder", .quantizable = true, .encoder = true},
    {.name = "transformer", .quantizable = true},
    {.name = "vae"},
};

const oq_pipeline_type oq_pipeline_z_image = {
    .name = "z-image",
    .class_name = "ZImagePipeline",
    .task = "text-to-image",
    .help = "Z-Image and Z-Image-Turbo; the guidance scale is added on top of the prompt's own prediction (0 "
            "is off).",
    .components = components,
    .n_components = OQ_COUNT(components),
    .defaults = {.steps = 8, .guidance = 0.0, .max_sequence_length = 512, .multiple_px = 16},
    .prompt_before = Z_IMAGE_BEFORE,
    .prompt_after = Z_IMAGE_AFTER,
    .self_bytes = sizeof(z_image),
    .init = init,
    .deinit = deinit,
    .check = check,
    .run = z_image_run,
};
