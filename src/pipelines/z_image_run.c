/* z_image_run.c -- Z-Image: prompts, noise, denoising with guidance, decoding. One item is one picture; items
 * run one after the other through the networks, so prompts of different length need no masks. In measure mode
 * the same walk takes one step and touches no values. Nothing is allocated between the first step and the
 * last. */
#include "pipelines/z_image.h"

#include "pipelines/decode_kl.h"
#include "pipelines/finite_probe.h"
#include "pipelines/image_latents.h"
#include "pipelines/latents.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/run_parts.h"
#include "pipelines/text_states.h"

#include <stdio.h>
#include <string.h>

typedef struct z_run {
    oq_exec *ex;
    const z_image *z;
    const oq_request *req;
    oq_output *out;
    oq_arena arena;          /* host memory of this request */
    int64_t h, w, elems;     /* latent size; elements of one item */
    int64_t n_items, n_rows; /* pictures; model outputs of a guided step */
    bool guided;
    oq_dit_zimage_condition *conditions; /* [n_prompts], then the negative prompt's */
    oq_dit_zimage_steps of_steps;        /* what the timesteps alone decide */
    float *latents;                      /* [n_items, elems] */
    float *predictions;                  /* [n_rows, elems] */
    void *staging;                       /* [n_rows, elems] of the compute type */
    oq_run_times times;                  /* model_t = (1000 - timestep) / 1000 */
    int first_step; /* of those that run: steps before it are left out (image to image) */
    oq_image_vae image;
    float *moments; /* of the picture that the request begins with; NULL: none */
    oq_tensor x, y; /* [n_items * C, h w], [n_rows * C, h w] */
} z_run;

/* ---- set-up -------------------------------------------------------------------------------------------- */

static oq_status start(z_run *r)
{
    const oq_request *req = r->req;
    const int64_t scale = oq_vae_kl_scale(r->z->vae), C = r->z->dit->in_channels;
    r->h = req->height / scale;
    r->w = req->width / scale;
    r->elems = C * r->h * r->w;
    r->n_items = (int64_t)req->n_prompts * req->images_per_prompt;
    r->guided = req->guidance > 0;
    r->n_rows = r->guided ? 2 * r->n_items : r->n_items;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)req->n_prompts + 1, sizeof *r->conditions, "captions",
                        &r->conditions));
    OQ_TRY(oq_run_times_new(&r->arena, req->steps, &r->times));
    OQ_TRY(oq_tmp(r->ex, r->n_items * C, r->h * r->w, &r->x));
    OQ_TRY(oq_tmp(r->ex, r->n_rows * C, r->h * r->w, &r->y));
    if (r->ex->measure) return OQ_OK;
    const size_t rows = (size_t)(r->n_rows * r->elems);
    OQ_TRY(oq_arena_new(&r->arena, (size_t)(r->n_items * r->elems), sizeof(float), "latents", &r->latents));
    OQ_TRY(oq_arena_new(&r->arena, rows, sizeof(float), "predictions", &r->predictions));
    return oq_arena_new(&r->arena, rows, r->ex->compute->bytes, "predictions", &r->staging);
}

/* sigmas and timesteps of the run; the transformer sees (1000 - timestep) / 1000. */
static oq_status make_schedule(z_run *r)
{
    const int n = r->req->steps;
    const double mu = oq_flow_euler_mu(&r->z->schedule, r->h / 2 * (r->w / 2));
    float *ramp = NULL;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)n, sizeof *ramp, "sigmas", &ramp));
    if (r->req->sigmas)
        memcpy(ramp, r->req->sigmas, (size_t)n * sizeof *ramp);
    else
        oq_flow_euler_ramp(n, ramp);
    oq_flow_euler_sigmas(&r->z->schedule, n, ramp, mu, r->times.sigmas, r->times.timesteps);
    for (int i = 0; i < n; i++) r->times.model_t[i] = (1000.0f - r->times.timesteps[i]) / 1000.0f;
    return oq_run_times_trace(r->ex, n, &r->times);
}

static oq_status trace_items(z_run *r, const char *key, const float *values)
{
    const int64_t shape[4] = {r->n_items, r->z->dit->in_channels, r->h, r->w};
    return oq_trace_host(r->ex, key, &oq_dtype_f32, values, shape, 4);
}

static oq_status encode_image(z_run *r)
{
    if (r->req->n_images == 0) return OQ_OK;
    r->first_step = oq_image_first_step(r->req->steps, r->req->strength);
    return oq_image_encode_first(r->ex, &r->arena, &r->image, r->req, &r->moments);
}

static void put_item(void *user, int64_t item, float *planes)
{
    const z_run *r = user;
    memcpy(r->latents + item * r->elems, planes, (size_t)r->elems * sizeof *planes);
}

static oq_status begin_from_image(z_run *r)
{
    const oq_image_begin begin = {.vae = &r->image,
                                  .request = r->req,
                                  .moments = r->moments,
                                  .n_items = r->n_items,
                                  .n = r->elems,
                                  .shape = {1, r->z->vae->latent_channels, r->h, r->w},
                                  .sigma = r->times.sigmas[r->first_step],
                                  .put = put_item,
                                  .user = r};
    return oq_image_begin_latents(r->ex, &r->arena, &begin);
}

static oq_status make_noise(z_run *r)
{
    if (r->ex->measure) return OQ_OK;
    if (r->moments) {
        OQ_TRY(begin_from_image(r));
        return trace_items(r, "noise", r->latents);
    }
    oq_latents_noise(r->req->seed, r->req->shared_noise, r->n_items, r->elems, r->latents);
    return trace_items(r, "noise", r->latents);
}

/* ---- captions ------------------------------------------------------------------------------------------ */

/* Text `index` to its condition; item: the first picture that uses it. */
static oq_status make_condition(z_run *r, const char *text, int64_t index, int64_t item)
{
    const oq_te_qwen3 *encoder = r->z->encoder;
    const oq_run_words w = oq_run_describe(r->req->n_prompts, index);
    const oq_prompt_ids rule = {.tokenizer = r->z->tokenizer,
                                .before = Z_IMAGE_BEFORE,
                                .after = Z_IMAGE_AFTER,
                                .vocab_size = encoder->vocab_size,
                                .max_tokens = r->req->max_sequence_length,
                                .warn = r->ex->measure};
    oq_dit_zimage_condition *out = &r->conditions[index];
    char key[48], prefix[OQ_RUN_PREFIX_MAX], ids_key[64];
    int32_t *ids = NULL;
    int64_t n = 0;
    oq_tensor embeds; /* the last layer and the last norm are not needed */
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, text, w.what, &ids, &n));
    snprintf(key, sizeof key, "text.%s", w.side);
    snprintf(ids_key, sizeof ids_key, "%s.ids", key);
    OQ_TRY(oq_trace_host(r->ex, ids_key, &oq_dtype_i32, ids, &n, 1));
    OQ_TRY(oq_dit_zimage_condition_new(r->ex, r->z->dit, n, r->h, r->w, out));
    const oq_mark mark = oq_mark_get(r->ex);
    const oq_te_qwen3_args args = {
        .ids = ids, .n = n, .n_layers = encoder->n_run, .trace = r->ex->trace ? key : NULL};
    OQ_TRY(oq_tmp(r->ex, n, encoder->hidden_size, &embeds));
    OQ_TRY(oq_text_states_qwen3(r->ex, encoder, &args, embeds, w.what));
    if (r->ex->trace) OQ_TRY(oq_trace_put(r->ex, embeds, NULL, 0, "%s.embeds", key));
    OQ_TRY(oq_dit_zimage_condition_run(r->ex, r->z->dit, embeds, out,
                                       oq_run_prefix(r->ex, "dit0", item, prefix)));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

/* Prompt i; behind the prompts the negative one. */
static oq_status make_text(void *user, int64_t i)
{
    z_run *r = user;
    const oq_request *req = r->req;
    if (i < req->n_prompts) return make_condition(r, req->prompts[i], i, i * req->images_per_prompt);
    return make_condition(r, req->negative ? req->negative : "", i, r->n_items);
}

static oq_status make_conditions(z_run *r)
{
    const oq_run_phase phase = {.name = "text",
                                .end = r->req->n_prompts + (r->guided ? 1 : 0),
                                .step = make_text,
                                .user = r,
                                .seconds = r->out ? &r->out->text_s : NULL};
    oq_phase_begin(r->ex, OQ_PHASE_TEXT);
    return oq_run_phase_walk(r->ex, &phase);
}

/* ---- denoising ----------------------------------------------------------------------------------------- */

static oq_tensor item_rows(const z_run *r, oq_tensor t, int64_t item)
{
    return oq_tensor_rows(t, item * r->z->dit->in_channels, r->z->dit->in_channels);
}

/* Row j of a step: positives first, then negatives. */
static oq_status forward_row(z_run *r, int step, int64_t row)
{
    const int64_t item = row % r->n_items;
    const bool negative = row >= r->n_items;
    const oq_dit_zimage_condition *c =
        &r->conditions[negative ? r->req->n_prompts : item / r->req->images_per_prompt];
    char buffer[64];
    const char *prefix = step == r->first_step ? oq_run_prefix(r->ex, "dit0", row, buffer) : NULL;
    return oq_dit_zimage_forward(r->ex, r->z->dit, c, &r->of_steps, step, item_rows(r, r->x, item),
                                 item_rows(r, r->y, row), prefix);
}

/* Runs the row again to find the layer; the inputs of the step are still in place. */
static oq_status not_finite(z_run *r, int step, int64_t row)
{
    oq_finite_probe probe;
    char what[64];
    snprintf(what, sizeof what, "step %d of %d", step + 1, r->req->steps);
    oq_finite_probe_begin(&probe, r->ex);
    const oq_trace_sink sink = r->ex->trace;
    r->ex->trace = NULL;
    oq_status st = oq_dit_zimage_steps_run(r->ex, r->z->dit, r->times.model_t, &r->of_steps, NULL, 0);
    if (st == OQ_OK) st = forward_row(r, step, row);
    r->ex->trace = sink;
    oq_finite_probe_end(&probe);
    return st == OQ_OK ? oq_finite_probe_fail(&probe, "transformer", what) : st;
}

static oq_status predict(z_run *r, int step, int64_t n_rows)
{
    oq_exec *ex = r->ex;
    const int64_t C = r->z->dit->in_channels;
    if (!ex->measure) oq_values_round(ex->compute, r->staging, r->latents, r->n_items * r->elems);
    OQ_TRY(oq_upload(ex, r->x, r->staging));
    for (int64_t row = 0; row < n_rows; row++) OQ_TRY(forward_row(r, step, row));
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_download(ex, r->staging, oq_tensor_rows(r->y, 0, n_rows * C)));
    oq_values_widen(ex->compute, r->predictions, r->staging, n_rows * r->elems);
    for (int64_t row = 0; row < n_rows; row++) {
        const float *values = r->predictions + row * r->elems;
        const int64_t shape[4] = {C, 1, r->h, r->w};
        char key[64];
        snprintf(key, sizeof key, "step.%d.model_out.%lld", step, (long long)row);
        OQ_TRY(oq_trace_host(ex, key, &oq_dtype_f32, values, shape, 4));
        if (!oq_values_finite(values, r->elems)) return not_finite(r, step, row);
    }
    return OQ_OK;
}

/* The prediction is the negative velocity: x_next = x + (sigma_next - sigma) * -prediction. */
static void euler(z_run *r, int step)
{
    const float dt = r->times.sigmas[step + 1] - r->times.sigmas[step];
    for (int64_t i = 0; i < r->n_items * r->elems; i++) r->latents[i] += dt * -r->predictions[i];
}

static oq_status decode(z_run *r);

/* What the step's prediction aims at. */
static void aim(const void *run, int index, float *latents)
{
    const z_run *r = run;
    for (int64_t i = 0; i < r->n_items * r->elems; i++)
        latents[i] = r->latents[i] + r->times.sigmas[index] * r->predictions[i];
}

static oq_status decode_copy(const void *run, float *latents, oq_output *out)
{
    z_run copy = *(const z_run *)run;
    copy.latents = latents;
    copy.out = out;
    oq_arena_init(&copy.arena, copy.ex->env);
    const oq_status st = decode(&copy);
    oq_arena_deinit(&copy.arena);
    return st;
}

static oq_status preview(z_run *r, int index)
{
    const oq_run_look look = {.index = index,
                              .step = index + 1 - r->first_step,
                              .steps = r->req->steps - r->first_step,
                              .elems = r->n_items * r->elems,
                              .aim = aim,
                              .decode = decode_copy,
                              .run = r};
    return oq_run_look_at(r->ex, r->req, &look);
}

static oq_status denoise_step(void *user, int64_t index)
{
    z_run *r = user;
    const int step = (int)index;
    OQ_TRY(oq_check_canceled(r->ex->env));
    r->ex->step = step + 1;
    const oq_request *req = r->req;
    const bool truncated = req->cfg_truncation <= 1 && (double)r->times.model_t[step] > req->cfg_truncation;
    const bool guided = r->guided && (r->ex->measure || !truncated);
    OQ_TRY(predict(r, step, guided ? r->n_rows : r->n_items));
    if (r->ex->measure) return preview(r, step);
    for (int64_t i = 0; guided && i < r->n_items; i++)
        oq_latents_guide(r->predictions + i * r->elems, r->predictions + (r->n_items + i) * r->elems,
                         r->elems, req->guidance, req->cfg_normalization);
    OQ_TRY(preview(r, step));
    euler(r, step);
    if (!oq_values_finite(r->latents, r->n_items * r->elems))
        return oq_fail(r->ex->env, OQ_E_NUMERIC,
                       "step %d of %d: the guided prediction left the range of float32", step + 1,
                       req->steps);
    char key[64];
    snprintf(key, sizeof key, "step.%d.latents", step);
    return trace_items(r, key, r->latents);
}

/* Embeddings and modulation of all steps, before the first one. */
static oq_status make_steps(z_run *r)
{
    const int64_t n_trace = r->ex->trace ? r->n_rows : 0;
    const char **prefixes = NULL;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)n_trace, sizeof *prefixes, "trace keys", &prefixes));
    for (int64_t i = 0; i < n_trace; i++) {
        char buffer[64];
        const char *const prefix = oq_run_prefix(r->ex, "dit0", i, buffer);
        prefixes[i] = prefix ? oq_arena_strdup(&r->arena, prefix) : NULL;
        if (!prefixes[i]) return oq_fail(r->ex->env, OQ_E_NOMEM, "trace keys: no memory");
    }
    OQ_TRY(oq_dit_zimage_steps_new(r->ex, r->z->dit, r->req->steps, &r->of_steps));
    return oq_dit_zimage_steps_run(r->ex, r->z->dit, r->times.model_t, &r->of_steps, prefixes, n_trace);
}

static oq_status denoise(z_run *r)
{
    const oq_run_phase phase = {.name = "denoise",
                                .first = r->first_step,
                                .end = r->ex->measure ? r->first_step + 1 : r->req->steps,
                                .step = denoise_step,
                                .user = r,
                                .seconds = r->out ? &r->out->denoise_s : NULL,
                                .each_s = r->out ? r->out->step_s : NULL};
    oq_phase_begin(r->ex, OQ_PHASE_DENOISE);
    OQ_TRY(make_steps(r));
    return oq_run_phase_walk(r->ex, &phase);
}

static oq_status decode(z_run *r)
{
    const oq_vae_kl *vae = r->z->vae;
    const oq_kl_decoding d = {.vae = vae,
                              .n_items = r->n_items,
                              .h = r->h,
                              .w = r->w,
                              .band = r->req->vae_tile,
                              .planes = r->latents,
                              .out = r->out};
    oq_phase_begin(r->ex, OQ_PHASE_DECODE);
    if (!r->ex->measure)
        oq_latents_unscale(r->ex->compute, r->latents, r->n_items * r->elems, vae->scaling_factor,
                           vae->shift_factor);
    return oq_decode_kl(r->ex, &r->arena, &d);
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static oq_status walk(void *user)
{
    z_run *r = user;
    OQ_TRY(start(r));
    OQ_TRY(make_schedule(r));
    OQ_TRY(encode_image(r));
    const oq_mark mark = oq_mark_get(r->ex);
    OQ_TRY(make_conditions(r));
    OQ_TRY(make_noise(r));
    OQ_TRY(denoise(r));
    oq_mark_reset(r->ex, mark); /* captions are spent */
    return decode(r);
}

oq_status z_image_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    const z_image *z = self;
    z_run r = {
        .ex = ex, .z = z, .req = request, .out = out, .image = oq_image_vae_kl(z->vae, request->vae_tile)};
    return oq_run_walk(ex, &r.arena, walk, &r);
}
