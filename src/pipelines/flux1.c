/* flux1.c -- the FLUX.1 family (dev, schnell): what it is made of, which requests it takes, and its parts of the walk
 * (packed_run.c): two text encoders, guidance that the transformer embeds, true guidance with a negative prompt. */
#include "modules/dit_flux1/dit_flux1.h"
#include "modules/te_clip/te_clip.h"
#include "modules/te_t5/te_t5.h"
#include "pipelines/latents.h"
#include "pipelines/packed_run.h"
#include "pipelines/pipeline_parts.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/text_states.h"

#include <math.h>
#include <stdio.h>

enum { MAX_T5_TOKENS = 512 };

typedef struct flux1 {
    const oq_te_clip *clip;
    const oq_te_t5 *t5;
    const oq_dit_flux1 *dit;
    const oq_vae_kl *vae;
    oq_flow_euler schedule;
    oq_tokenizer *clip_tokenizer, *t5_tokenizer; /* NULL: one token per byte (dummy weights) */
} flux1;

/* ---- what it is made of -------------------------------------------------------------------------------- */

static oq_status check_fit(oq_env *env, const flux1 *f)
{
    const int64_t patch = OQ_PACKED_PATCH * OQ_PACKED_PATCH;
    if (f->clip->hidden_size != f->dit->pooled_dim || f->t5->hidden_size != f->dit->text_dim)
        return oq_fail(
            env, OQ_E_FORMAT,
            "the text encoders' hidden sizes are %lld and %lld, the transformer takes %lld and %lld",
            (long long)f->clip->hidden_size, (long long)f->t5->hidden_size, (long long)f->dit->pooled_dim,
            (long long)f->dit->text_dim);
    if (f->vae->latent_channels * patch != f->dit->in_channels || f->dit->in_channels != f->dit->out_channels)
        return oq_fail(env, OQ_E_FORMAT,
                       "the autoencoder has %lld latent channels, the transformer takes %lld and gives %lld",
                       (long long)f->vae->latent_channels, (long long)(f->dit->in_channels / patch),
                       (long long)(f->dit->out_channels / patch));
    if (f->vae->in_channels == 3 && f->vae->out_channels == 3) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "the autoencoder takes %lld channels and gives %lld, pictures have 3",
                   (long long)f->vae->in_channels, (long long)f->vae->out_channels);
}

static oq_status init(oq_env *env, const oq_pipeline_setup *setup, void *self)
{
    flux1 *f = self;
    f->clip = setup->modules[0];
    f->t5 = setup->modules[1];
    f->dit = setup->modules[2];
    f->vae = setup->modules[3];
    OQ_TRY(oq_setup_check_scheduler(env, setup, "FLUX.1", "FlowMatchEulerDiscreteScheduler"));
    OQ_TRY(check_fit(env, f));
    OQ_TRY(oq_flow_euler_parse(env, setup->scheduler, &f->schedule));
    OQ_TRY(oq_setup_tokenizer(env, setup, "tokenizer", "", "", &f->clip_tokenizer));
    return oq_setup_tokenizer(env, setup, "tokenizer_2", "", "", &f->t5_tokenizer);
}

static void deinit(oq_env *env, void *self)
{
    flux1 *f = self;
    oq_tokenizer_close(env, f->clip_tokenizer);
    oq_tokenizer_close(env, f->t5_tokenizer);
    f->clip_tokenizer = f->t5_tokenizer = NULL;
}

/* schnell has no guidance to embed and is made for four steps. */
static void defaults_for(const void *self, oq_pipeline_defaults *d)
{
    const flux1 *f = self;
    if (f->dit->has_guidance) return;
    d->steps = 4;
    d->guidance = 0;
    d->max_sequence_length = 256;
}

static oq_status check(oq_env *env, const void *self, const oq_request *request)
{
    const flux1 *f = self;
    const oq_sides sides = {.multiple = OQ_PACKED_PATCH * oq_vae_kl_scale(f->vae),
                            .bytes_per_px = 2 * 2 * 2 * f->vae->decoder_channels[0]};
    OQ_TRY(oq_request_check_sides(env, request, &sides));
    OQ_TRY(oq_request_check_schedule(env, request));
    OQ_TRY(oq_request_check_guidance(env, request));
    OQ_TRY(oq_request_check_plain_guidance(env, request, "FLUX.1"));
    if (request->true_cfg > 1 && !request->negative)
        return oq_fail(env, OQ_E_ARG, "true CFG scale %g needs a negative prompt", request->true_cfg);
    if (request->negative && request->negative[0] && !(request->true_cfg > 1))
        return oq_fail(
            env, OQ_E_ARG,
            "a negative prompt has no effect with true CFG scale %g: give --true-cfg-scale above 1",
            request->true_cfg);
    OQ_TRY(oq_request_check_strength(env, request));
    return oq_request_check_texts(env, request, MAX_T5_TOKENS);
}

/* ---- its parts of the walk ----------------------------------------------------------------------------- */

typedef struct flux1_run {
    const flux1 *f;
    oq_dit_flux1_condition *conditions; /* [n_prompts], then the negative prompt's */
} flux1_run;

typedef struct clip_call {
    const oq_te_clip *s;
    oq_te_clip_args args;
    oq_tensor y;
} clip_call;

static oq_status clip_again(oq_exec *ex, void *user)
{
    clip_call *c = user;
    if (!ex->trace) c->args.trace = NULL;
    return oq_te_clip_forward(ex, c->s, &c->args, c->y);
}

static oq_status trace_ids(oq_packed_run *r, const char *encoder, const oq_run_words *w, const int32_t *ids,
                           int64_t n)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s.ids", encoder, w->side);
    return oq_trace_host(r->ex, key, &oq_dtype_i32, ids, &n, 1);
}

/* pooled: [1, hidden], the row of CLIP's last state that stands for the whole text */
static oq_status encode_pooled(oq_packed_run *r, const char *text, const oq_run_words *w, oq_tensor pooled)
{
    const flux1 *f = ((flux1_run *)r->self)->f;
    const oq_prompt_ids rule = {.tokenizer = f->clip_tokenizer,
                                .before = "",
                                .after = "",
                                .vocab_size = f->clip->vocab_size,
                                .max_tokens = f->clip->max_positions,
                                .keep_last = 1,
                                .pad = true,
                                .pad_id = oq_prompt_ids_find(f->clip_tokenizer, "<|endoftext|>", 0)};
    const oq_mark mark = oq_mark_get(r->ex);
    char key[64];
    int32_t *ids = NULL;
    int64_t n = 0;
    snprintf(key, sizeof key, "text.%s", w->side);
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, text, w->what, &ids, &n));
    OQ_TRY(trace_ids(r, "text", w, ids, rule.max_tokens));
    clip_call call = {.s = f->clip,
                      .args = {.ids = ids, .n = rule.max_tokens, .trace = r->ex->trace ? key : NULL}};
    OQ_TRY(oq_tmp(r->ex, rule.max_tokens, f->clip->hidden_size, &call.y));
    OQ_TRY(oq_run_checked(r->ex, clip_again, &call, call.y, "text_encoder", w->what));
    if (r->ex->trace) OQ_TRY(oq_trace_put(r->ex, call.y, NULL, 0, "%s.hidden", key));
    const int64_t row = oq_te_clip_pooled_row(f->clip, ids, rule.max_tokens);
    OQ_TRY(oq_copy_forward(r->ex, pooled, oq_tensor_rows(call.y, row, 1)));
    if (r->ex->trace) OQ_TRY(oq_trace_put(r->ex, pooled, NULL, 0, "%s.pooled", key));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

/* embeds: [max_sequence_length, hidden]; pads are seen like other tokens */
static oq_status encode_text(oq_packed_run *r, const char *text, const oq_run_words *w, oq_tensor embeds)
{
    const flux1 *f = ((flux1_run *)r->self)->f;
    const oq_prompt_ids rule = {.tokenizer = f->t5_tokenizer,
                                .before = "",
                                .after = "",
                                .vocab_size = f->t5->vocab_size,
                                .max_tokens = embeds.rows,
                                .warn = r->ex->measure,
                                .keep_last = 1,
                                .pad = true,
                                .pad_id = oq_prompt_ids_find(f->t5_tokenizer, "<pad>", 0)};
    char key[64];
    int32_t *ids = NULL;
    int64_t n = 0;
    snprintf(key, sizeof key, "text2.%s", w->side);
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, text, w->what, &ids, &n));
    OQ_TRY(trace_ids(r, "text2", w, ids, embeds.rows));
    const oq_te_t5_args args = {.ids = ids, .n = embeds.rows, .trace = r->ex->trace ? key : NULL};
    OQ_TRY(oq_text_states_t5(r->ex, f->t5, &args, embeds, "text_encoder_2", w->what));
    return r->ex->trace ? oq_trace_put(r->ex, embeds, NULL, 0, "%s.embeds", key) : OQ_OK;
}

static oq_status condition(oq_packed_run *r, const char *text, int64_t index, int64_t item)
{
    flux1_run *run = r->self;
    const flux1 *f = run->f;
    const oq_run_words w = oq_run_describe(r->req->n_prompts, index);
    oq_dit_flux1_condition *c = &run->conditions[index];
    char prefix[OQ_RUN_PREFIX_MAX];
    oq_tensor pooled, embeds;
    OQ_TRY(oq_dit_flux1_condition_new(r->ex, f->dit, r->req->max_sequence_length, r->rows, r->columns,
                                      r->req->steps - r->first_step, c));
    const oq_mark mark = oq_mark_get(r->ex);
    OQ_TRY(oq_tmp(r->ex, 1, f->clip->hidden_size, &pooled));
    OQ_TRY(oq_tmp(r->ex, r->req->max_sequence_length, f->t5->hidden_size, &embeds));
    OQ_TRY(encode_pooled(r, text, &w, pooled));
    OQ_TRY(encode_text(r, text, &w, embeds));
    OQ_TRY(oq_dit_flux1_condition_run(r->ex, f->dit, embeds, pooled, c,
                                      oq_run_prefix(r->ex, "dit0", item, prefix)));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

static oq_status forward(oq_packed_run *r, int64_t index, int step, oq_tensor x, oq_tensor y,
                         const char *trace)
{
    const flux1_run *run = r->self;
    const oq_dit_flux1_moment when = {.t = r->times.model_t + r->first_step,
                                      .step = step - r->first_step,
                                      .n_steps = r->req->steps - r->first_step,
                                      .guidance = (float)r->req->guidance};
    return oq_dit_flux1_forward(r->ex, run->f->dit, &run->conditions[index], x, &when, y, trace);
}

static void unscale(const oq_packed_run *r, float *packed)
{
    oq_latents_unscale(r->ex->compute, packed, r->elems, r->family->vae->scaling_factor,
                       r->family->vae->shift_factor);
}

static oq_status run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    const flux1 *f = self;
    const oq_image_vae image = oq_image_vae_kl(f->vae, request->vae_tile);
    flux1_run state = {.f = f};
    const oq_packed_family family = {.vae = f->vae,
                                     .channels = f->vae->latent_channels,
                                     .scale = oq_vae_kl_scale(f->vae),
                                     .schedule = &f->schedule,
                                     .mu = (double)NAN,
                                     .image = request->n_images > 0 ? &image : NULL,
                                     .guided = request->true_cfg > 1 && request->negative,
                                     .guidance = request->true_cfg,
                                     .condition = condition,
                                     .forward = forward,
                                     .unscale = unscale};
    OQ_TRY(oq_new(ex->env, (size_t)request->n_prompts + 1, sizeof *state.conditions, "prompts",
                  &state.conditions));
    const oq_status st = oq_packed_walk(ex, &family, &state, request, out);
    oq_free(ex->env, state.conditions);
    return st;
}

/* ---- row of the pipeline list -------------------------------------------------------------------------- */

static const oq_pipeline_component components[] = {
    {.name = "text_encoder", .quantizable = true, .encoder = true},
    {.name = "text_encoder_2", .quantizable = true, .encoder = true},
    {.name = "transformer", .quantizable = true},
    {.name = "vae"},
};

/* ---- recipes: docs/QUALITY.md has the figures ---------------------------------------------------------- */

static const oq_pipeline_recipe recipes[] = {
    {"careful8",
     "{\"transformer\":{\"method\":\"int8\",\"ignored_layers\":[\"ff.net.2\",\"ff_context.net.2\"]}}",
     "int8, the products behind GELU BF16: a small model with made weights goes from 54.0 to 54.6 dB. Not "
     "measured on the published weights."},
    {"careful4", "{\"transformer\":{\"method\":\"nvfp4\",\"ignored_layers\":[\"transformer_blocks.0\"]}}",
     "nvfp4, the first double block BF16 (one of 57 blocks in FLUX.1): a small model with made "
     "weights, where it is one of four, goes from 36.6 to 39.1 dB."},
    {0},
};

const oq_pipeline_type oq_pipeline_flux1 = {
    .name = "flux1",
    .class_name = "FluxPipeline",
    .task = "text-to-image, image-to-image",
    .help = "FLUX.1 dev (28 steps; the guidance scale is embedded and costs nothing) and schnell (4 steps, "
            "no guidance); a "
            "negative prompt works with --true-cfg-scale above 1, at the cost of two forward passes a step.",
    .components = components,
    .n_components = OQ_COUNT(components),
    .recipes = recipes,
    .defaults = {.width = 1024,
                 .height = 1024,
                 .steps = 28,
                 .guidance = 3.5,
                 .max_sequence_length = MAX_T5_TOKENS,
                 .multiple_px = 16},
    .takes = OQ_TAKES_TRUE_CFG | OQ_TAKES_IMAGE | OQ_TAKES_STRENGTH,
    .self_bytes = sizeof(flux1),
    .init = init,
    .deinit = deinit,
    .defaults_for = defaults_for,
    .check = check,
    .run = run,
};
