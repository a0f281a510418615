/* packed_run.c -- noise, denoising and decoding of packed latents. */
#include "pipelines/packed_run.h"

#include "pipelines/decode_kl.h"
#include "pipelines/latents.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- set-up -------------------------------------------------------------------------------------------- */

static oq_status start(oq_packed_run *r)
{
    const oq_request *req = r->req;
    const int64_t cell = OQ_PACKED_PATCH * r->family->scale;
    r->rows = req->height / cell;
    r->columns = req->width / cell;
    r->tokens = r->rows * r->columns;
    r->width = OQ_PACKED_PATCH * OQ_PACKED_PATCH * r->family->channels;
    r->elems = r->tokens * r->width;
    r->n_items = (int64_t)req->n_prompts * req->images_per_prompt;
    r->n_rows = r->family->guided ? 2 * r->n_items : r->n_items;
    OQ_TRY(oq_run_times_new(&r->arena, req->steps, &r->times));
    OQ_TRY(oq_tmp(r->ex, r->n_items * (r->tokens + r->family->extra), r->width, &r->x));
    OQ_TRY(oq_tmp(r->ex, r->n_rows * r->tokens, r->width, &r->y));
    if (r->ex->measure) return OQ_OK;
    const size_t values = (size_t)(r->n_rows * r->elems);
    OQ_TRY(oq_arena_new(&r->arena, (size_t)(r->n_items * r->elems), sizeof(float), "latents", &r->latents));
    OQ_TRY(oq_arena_new(&r->arena, values, sizeof(float), "predictions", &r->predictions));
    return oq_arena_new(&r->arena, values, r->ex->compute->bytes, "predictions", &r->staging);
}

/* The transformer sees timestep / 1000, both rounded to its type. */
static oq_status make_schedule(oq_packed_run *r)
{
    const int n = r->req->steps;
    const oq_dtype *type = r->ex->compute;
    const double mu = isnan(r->family->mu) ? oq_flow_euler_mu(r->family->schedule, r->tokens) : r->family->mu;
    oq_flow_euler_sigmas(r->family->schedule, n, r->req->sigmas, mu, r->times.sigmas, r->times.timesteps);
    for (int i = 0; i < n; i++)
        r->times.model_t[i] = oq_value_round(type, oq_value_round(type, r->times.timesteps[i]) / 1000.0f);
    return oq_run_times_trace(r->ex, n, &r->times);
}

static oq_status trace_items(oq_packed_run *r, const char *key, const float *values)
{
    return oq_trace_host(r->ex, key, &oq_dtype_f32, values, (int64_t[]){r->n_items, r->tokens, r->width}, 3);
}

void oq_packed_repack(int64_t rows, int64_t columns, int64_t width, float *planes, float *packed, bool pack)
{
    enum { P = OQ_PACKED_PATCH };
    const int64_t h = rows * P, w = columns * P;
    for (int64_t t = 0; t < rows * columns; t++)
        for (int64_t k = 0; k < width; k++) {
            const int64_t c = k / (P * P), y = t / columns * P + k / P % P, x = t % columns * P + k % P;
            float *plane = &planes[(c * h + y) * w + x], *token = &packed[t * width + k];
            *(pack ? token : plane) = *(pack ? plane : token);
        }
}

/* Planes as they are drawn to one item's tokens. */
static void pack(const oq_packed_run *r, float *planes, float *tokens)
{
    if (r->family->noise_by_token)
        oq_values_transpose(tokens, planes, r->width, r->tokens);
    else
        oq_packed_repack(r->rows, r->columns, r->width, planes, tokens, true);
}

static oq_status encode_image(oq_packed_run *r)
{
    if (!r->family->image) return OQ_OK;
    r->first_step = oq_image_first_step(r->req->steps, r->req->strength);
    return oq_image_encode_first(r->ex, &r->arena, r->family->image, r->req, &r->moments);
}

static void put_item(void *user, int64_t item, float *planes)
{
    const oq_packed_run *r = user;
    pack(r, planes, r->latents + item * r->elems);
}

static oq_status begin_from_image(oq_packed_run *r)
{
    const oq_image_begin begin = {
        .vae = r->family->image,
        .request = r->req,
        .moments = r->moments,
        .n_items = r->n_items,
        .n = r->elems,
        .shape = {1, r->family->channels, r->rows * OQ_PACKED_PATCH, r->columns * OQ_PACKED_PATCH},
        .sigma = r->times.sigmas[r->first_step],
        .put = put_item,
        .user = r};
    return oq_image_begin_latents(r->ex, &r->arena, &begin);
}

static oq_status make_noise(oq_packed_run *r)
{
    if (r->ex->measure) return OQ_OK;
    float *drawn = r->predictions; /* n_items * elems of it, not needed yet */
    if (r->family->image) {
        OQ_TRY(begin_from_image(r));
        return trace_items(r, "noise", r->latents);
    }
    oq_latents_noise(r->req->seed, r->req->shared_noise, r->n_items, r->elems, drawn);
    for (int64_t i = 0; i < r->n_items; i++) pack(r, drawn + i * r->elems, r->latents + i * r->elems);
    for (int64_t i = 0; i < r->n_items * r->elems; i++)
        r->latents[i] = oq_value_round(r->ex->compute, r->latents[i]);
    return trace_items(r, "noise", r->latents);
}

/* Tokens that every item's transformer sees behind its own. */
static oq_status upload_extra(oq_packed_run *r)
{
    const int64_t extra = r->family->extra, n = extra * r->width;
    void *rounded = NULL;
    if (extra == 0 || r->ex->measure) return OQ_OK;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)n, r->ex->compute->bytes, "references", &rounded));
    oq_values_round(r->ex->compute, rounded, r->family->extra_tokens, n);
    for (int64_t i = 0; i < r->n_items; i++)
        OQ_TRY(oq_upload(r->ex, oq_tensor_rows(r->x, i * (r->tokens + extra) + r->tokens, extra), rounded));
    return OQ_OK;
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

/* Prompt i; behind the prompts the negative one. */
static oq_status make_condition(void *user, int64_t i)
{
    oq_packed_run *r = user;
    const oq_request *req = r->req;
    if (i < req->n_prompts) return r->family->condition(r, req->prompts[i], i, i * req->images_per_prompt);
    return r->family->condition(r, req->negative ? req->negative : "", i, r->n_items);
}

static oq_status make_conditions(oq_packed_run *r)
{
    const oq_run_phase phase = {.name = "text",
                                .end = r->req->n_prompts + (r->family->guided ? 1 : 0),
                                .step = make_condition,
                                .user = r,
                                .seconds = r->out ? &r->out->text_s : NULL};
    oq_phase_begin(r->ex, OQ_PHASE_TEXT);
    return oq_run_phase_walk(r->ex, &phase);
}

/* ---- denoising ----------------------------------------------------------------------------------------- */

typedef struct row_call { /* row j of a step: positives first, then negatives */
    oq_packed_run *r;
    int step;
    int64_t row;
} row_call;

static oq_status forward_row(oq_exec *ex, void *user)
{
    const row_call *call = user;
    oq_packed_run *r = call->r;
    const int64_t item = call->row % r->n_items, seen = r->tokens + r->family->extra;
    const bool negative = call->row >= r->n_items;
    char buffer[OQ_RUN_PREFIX_MAX];
    const char *prefix = call->step == r->first_step ? oq_run_prefix(ex, "dit0", call->row, buffer) : NULL;
    return r->family->forward(r, negative ? r->req->n_prompts : item / r->req->images_per_prompt, call->step,
                              oq_tensor_rows(r->x, item * seen, seen),
                              oq_tensor_rows(r->y, call->row * r->tokens, r->tokens), prefix);
}

static oq_status check_row(oq_packed_run *r, int step, int64_t row)
{
    const float *values = r->predictions + row * r->elems;
    char key[64], what[64];
    snprintf(key, sizeof key, "step.%d.model_out.%lld", step - r->first_step, (long long)row);
    OQ_TRY(oq_trace_host(r->ex, key, &oq_dtype_f32, values, (int64_t[]){r->tokens, r->width}, 2));
    if (oq_values_finite(values, r->elems)) return OQ_OK;
    row_call call = {r, step, row};
    snprintf(what, sizeof what, "step %d of %d", step + 1, r->req->steps);
    return oq_run_not_finite(r->ex, forward_row, &call, "transformer", what);
}

static oq_status upload_latents(oq_packed_run *r)
{
    if (r->ex->measure) return OQ_OK;
    oq_values_round(r->ex->compute, r->staging, r->latents, r->n_items * r->elems);
    for (int64_t i = 0; i < r->n_items; i++) {
        const size_t at = (size_t)(i * r->elems) * r->ex->compute->bytes;
        OQ_TRY(oq_upload(r->ex, oq_tensor_rows(r->x, i * (r->tokens + r->family->extra), r->tokens),
                         (const char *)r->staging + at));
    }
    return OQ_OK;
}

static oq_status predict(oq_packed_run *r, int step)
{
    oq_exec *ex = r->ex;
    OQ_TRY(upload_latents(r));
    for (int64_t row = 0; row < r->n_rows; row++) {
        row_call call = {r, step, row};
        OQ_TRY(forward_row(ex, &call));
    }
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_download(ex, r->staging, r->y));
    oq_values_widen(ex->compute, r->predictions, r->staging, r->n_rows * r->elems);
    for (int64_t row = 0; row < r->n_rows; row++) OQ_TRY(check_row(r, step, row));
    return OQ_OK;
}

static void guide(oq_packed_run *r, int64_t n)
{
    const oq_packed_family *f = r->family;
    if (f->keeps_length)
        oq_latents_guide_true(r->ex->compute, r->predictions, r->predictions + n, r->n_items * r->tokens,
                              r->width, f->guidance);
    else
        oq_latents_guide_plain(r->ex->compute, r->predictions, r->predictions + n, n, f->guidance);
}

static oq_status decode(oq_packed_run *r);

/* What the step's prediction aims at. */
static void aim(const void *run, int index, float *latents)
{
    const oq_packed_run *r = run;
    for (int64_t i = 0; i < r->n_items * r->elems; i++)
        latents[i] = r->latents[i] - r->times.sigmas[index] * r->predictions[i];
}

static oq_status decode_copy(const void *run, float *latents, oq_output *out)
{
    oq_packed_run copy = *(const oq_packed_run *)run;
    copy.latents = latents;
    copy.out = out;
    oq_arena_init(&copy.arena, copy.ex->env);
    const oq_status st = decode(&copy);
    oq_arena_deinit(&copy.arena);
    return st;
}

static oq_status preview(oq_packed_run *r, int index)
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
    oq_packed_run *r = user;
    const int step = (int)index;
    const oq_dtype *type = r->ex->compute;
    const int64_t n = r->n_items * r->elems;
    char key[64];
    OQ_TRY(oq_check_canceled(r->ex->env));
    r->ex->step = step + 1;
    OQ_TRY(predict(r, step));
    if (r->ex->measure) return preview(r, step);
    if (r->family->guided) guide(r, n);
    snprintf(key, sizeof key, "step.%d.pred", step - r->first_step);
    OQ_TRY(trace_items(r, key, r->predictions));
    OQ_TRY(preview(r, step));
    oq_latents_euler(type, r->latents, r->predictions, n, r->times.sigmas[step + 1] - r->times.sigmas[step]);
    if (!oq_values_finite(r->latents, n))
        return oq_fail(r->ex->env, OQ_E_NUMERIC,
                       "step %d of %d: the guided prediction left the range of float32", step + 1,
                       r->req->steps);
    snprintf(key, sizeof key, "step.%d.latents", step - r->first_step);
    return trace_items(r, key, r->latents);
}

static oq_status denoise(oq_packed_run *r)
{
    const oq_run_phase phase = {.name = "denoise",
                                .first = r->first_step,
                                .end = r->ex->measure ? r->first_step + 1 : r->req->steps,
                                .step = denoise_step,
                                .user = r,
                                .seconds = r->out ? &r->out->denoise_s : NULL,
                                .each_s = r->out ? r->out->step_s : NULL};
    oq_phase_begin(r->ex, OQ_PHASE_DENOISE);
    OQ_TRY(oq_run_phase_walk(r->ex, &phase));
    r->ex->step = 0;
    return OQ_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

static oq_status decode(oq_packed_run *r)
{
    const int64_t h = r->rows * OQ_PACKED_PATCH, w = r->columns * OQ_PACKED_PATCH;
    float *planes = NULL; /* [n_items, C, h, w] */
    oq_phase_begin(r->ex, OQ_PHASE_DECODE);
    if (!r->ex->measure)
        OQ_TRY(oq_arena_new(&r->arena, (size_t)(r->n_items * r->elems), sizeof *planes, "pixels", &planes));
    for (int64_t i = 0; planes && i < r->n_items; i++) {
        float *packed = r->latents + i * r->elems;
        r->family->unscale(r, packed);
        oq_packed_repack(r->rows, r->columns, r->width, planes + i * r->elems, packed, false);
    }
    if (r->family->decode) return r->family->decode(r, planes);
    const oq_kl_decoding d = {.vae = r->family->vae,
                              .n_items = r->n_items,
                              .h = h,
                              .w = w,
                              .band = r->req->vae_tile,
                              .planes = planes,
                              .out = r->out};
    return oq_decode_kl(r->ex, &r->arena, &d);
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static oq_status walk(void *user)
{
    oq_packed_run *r = user;
    OQ_TRY(start(r));
    OQ_TRY(make_schedule(r));
    OQ_TRY(encode_image(r));
    OQ_TRY(upload_extra(r));
    const oq_mark mark = oq_mark_get(r->ex);
    OQ_TRY(make_conditions(r));
    OQ_TRY(make_noise(r));
    OQ_TRY(denoise(r));
    oq_mark_reset(r->ex, mark); /* prompts are spent */
    return decode(r);
}

oq_status oq_packed_walk(oq_exec *ex, const oq_packed_family *family, void *self, const oq_request *request,
                         oq_output *out)
{
    oq_packed_run r = {.ex = ex, .family = family, .self = self, .req = request, .out = out};
    return oq_run_walk(ex, &r.arena, walk, &r);
}
