/* packed_run.c -- noise, denoising and decoding of packed latents. */
#include "pipelines/packed_run.h"

#include "pipelines/image_latents.h"
#include "pipelines/latents.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- set-up -------------------------------------------------------------------------------------------- */

static oq_status start(oq_packed_run *r)
{
    const oq_request *req = r->req;
    const int64_t cell = OQ_PACKED_PATCH * oq_vae_kl_scale(r->family->vae);
    const size_t steps = (size_t)req->steps;
    r->rows = req->height / cell;
    r->columns = req->width / cell;
    r->tokens = r->rows * r->columns;
    r->width = OQ_PACKED_PATCH * OQ_PACKED_PATCH * r->family->vae->latent_channels;
    r->elems = r->tokens * r->width;
    r->n_items = (int64_t)req->n_prompts * req->images_per_prompt;
    r->n_rows = r->family->guided ? 2 * r->n_items : r->n_items;
    OQ_TRY(oq_arena_new(&r->arena, steps + 1, sizeof(float), "sigmas", &r->sigmas));
    OQ_TRY(oq_arena_new(&r->arena, steps, sizeof(float), "timesteps", &r->timesteps));
    OQ_TRY(oq_arena_new(&r->arena, steps, sizeof(float), "timesteps", &r->model_t));
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
    oq_flow_euler_sigmas(r->family->schedule, n, r->req->sigmas, mu, r->sigmas, r->timesteps);
    for (int i = 0; i < n; i++)
        r->model_t[i] = oq_value_round(type, oq_value_round(type, r->timesteps[i]) / 1000.0f);
    OQ_TRY(oq_trace_host(r->ex, "sigmas", &oq_dtype_f32, r->sigmas, (int64_t[]){n + 1}, 1));
    OQ_TRY(oq_trace_host(r->ex, "timesteps", &oq_dtype_f32, r->timesteps, (int64_t[]){n}, 1));
    return oq_trace_host(r->ex, "model_t", &oq_dtype_f32, r->model_t, (int64_t[]){n}, 1);
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
    if (!r->family->from_image) return OQ_OK;
    r->first_step = oq_image_first_step(r->req->steps, r->req->strength);
    return oq_image_encode_first(r->ex, &r->arena, r->family->vae, r->req, &r->moments);
}

static void put_item(void *user, int64_t item, float *planes)
{
    const oq_packed_run *r = user;
    pack(r, planes, r->latents + item * r->elems);
}

static oq_status begin_from_image(oq_packed_run *r)
{
    const oq_image_begin begin = {.vae = r->family->vae,
                                  .request = r->req,
                                  .moments = r->moments,
                                  .n_items = r->n_items,
                                  .n = r->elems,
                                  .shape = {1, r->family->vae->latent_channels, r->rows * OQ_PACKED_PATCH,
                                            r->columns * OQ_PACKED_PATCH},
                                  .sigma = r->sigmas[r->first_step],
                                  .put = put_item,
                                  .user = r};
    return oq_image_begin_latents(r->ex, &r->arena, &begin);
}

static oq_status make_noise(oq_packed_run *r)
{
    if (r->ex->measure) return OQ_OK;
    float *drawn = r->predictions; /* n_items * elems of it, not needed yet */
    if (r->family->from_image) {
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

oq_packed_words oq_packed_describe(const oq_packed_run *r, int64_t index)
{
    oq_packed_words w;
    if (index < r->req->n_prompts) {
        snprintf(w.what, sizeof w.what, "prompt %lld", (long long)index + 1);
        snprintf(w.side, sizeof w.side, "pos.%lld", (long long)index);
    } else {
        snprintf(w.what, sizeof w.what, "the negative prompt");
        snprintf(w.side, sizeof w.side, "neg.0");
    }
    return w;
}

static oq_status make_conditions(oq_packed_run *r)
{
    const oq_request *req = r->req;
    const int64_t total = req->n_prompts + (r->family->guided ? 1 : 0);
    const double started_s = oq_now_s();
    oq_phase_begin(r->ex, OQ_PHASE_TEXT);
    oq_run_tell(r->ex, "text", 0, total, started_s);
    for (int64_t i = 0; i < req->n_prompts; i++) {
        OQ_TRY(r->family->condition(r, req->prompts[i], i, i * req->images_per_prompt));
        oq_run_tell(r->ex, "text", i + 1, total, started_s);
    }
    if (r->family->guided) {
        OQ_TRY(r->family->condition(r, req->negative ? req->negative : "", req->n_prompts, r->n_items));
        oq_run_tell(r->ex, "text", total, total, started_s);
    }
    if (r->out) r->out->text_s = oq_now_s() - started_s;
    return OQ_OK;
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

static oq_status denoise_step(oq_packed_run *r, int step)
{
    const oq_dtype *type = r->ex->compute;
    const int64_t n = r->n_items * r->elems;
    char key[64];
    OQ_TRY(oq_check_canceled(r->ex->env));
    r->ex->step = step + 1;
    OQ_TRY(predict(r, step));
    if (r->ex->measure) return OQ_OK;
    if (r->family->guided)
        oq_latents_guide_plain(type, r->predictions, r->predictions + n, n, r->family->guidance);
    snprintf(key, sizeof key, "step.%d.pred", step - r->first_step);
    OQ_TRY(trace_items(r, key, r->predictions));
    oq_latents_euler(type, r->latents, r->predictions, n, r->sigmas[step + 1] - r->sigmas[step]);
    if (!oq_values_finite(r->latents, n))
        return oq_fail(r->ex->env, OQ_E_NUMERIC,
                       "step %d of %d: the guided prediction left the range of float32", step + 1,
                       r->req->steps);
    snprintf(key, sizeof key, "step.%d.latents", step - r->first_step);
    return trace_items(r, key, r->latents);
}

static oq_status denoise(oq_packed_run *r)
{
    const int end = r->ex->measure ? r->first_step + 1 : r->req->steps, total = end - r->first_step;
    const double started_s = oq_now_s();
    oq_phase_begin(r->ex, OQ_PHASE_DENOISE);
    oq_run_tell(r->ex, "denoise", 0, total, started_s);
    for (int i = r->first_step; i < end; i++) {
        const double step_started_s = oq_now_s();
        OQ_TRY(denoise_step(r, i));
        oq_run_tell(r->ex, "denoise", i + 1 - r->first_step, total, started_s);
        if (r->out && r->out->step_s) r->out->step_s[i] = oq_now_s() - step_started_s;
    }
    r->ex->step = 0;
    if (r->out) r->out->denoise_s = oq_now_s() - started_s;
    return OQ_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

typedef struct decoding {
    oq_tensor z, y;   /* [h w, C], [pixels, 3] */
    int64_t n_pixels; /* of one picture */
    float *rows;      /* host values of one item: latents or pixels */
    float *planes;    /* [n_items, C, h w]: all latents, unpacked */
    void *packed;     /* one item in the compute type */
} decoding;

static oq_status start_decoding(oq_packed_run *r, decoding *d)
{
    const int64_t C = r->family->vae->latent_channels;
    *d = (decoding){.n_pixels = r->req->width * r->req->height};
    OQ_TRY(oq_tmp(r->ex, r->elems / C, C, &d->z));
    OQ_TRY(oq_tmp(r->ex, d->n_pixels, 3, &d->y));
    if (r->ex->measure) return OQ_OK;
    const size_t n = (size_t)(r->elems > 3 * d->n_pixels ? r->elems : 3 * d->n_pixels);
    const size_t kept = (size_t)(r->n_items * r->elems);
    OQ_TRY(oq_arena_new(&r->arena, n, sizeof(float), "pixels", &d->rows));
    OQ_TRY(oq_arena_new(&r->arena, kept, sizeof(float), "pixels", &d->planes));
    return oq_arena_new(&r->arena, n, r->ex->compute->bytes, "pixels", &d->packed);
}

static oq_status decode_item(oq_packed_run *r, decoding *d, int64_t item)
{
    oq_exec *ex = r->ex;
    const int64_t C = r->family->vae->latent_channels, h = r->rows * OQ_PACKED_PATCH,
                  w = r->columns * OQ_PACKED_PATCH;
    char buffer[OQ_RUN_PREFIX_MAX];
    if (!ex->measure) {
        oq_values_transpose(d->rows, d->planes + item * r->elems, C, h * w);
        oq_values_round(ex->compute, d->packed, d->rows, r->elems);
    }
    OQ_TRY(oq_upload(ex, d->z, d->packed));
    OQ_TRY(oq_vae_kl_decode(ex, r->family->vae, d->z, h, w, d->y, oq_run_prefix(ex, "vae", item, buffer)));
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_download(ex, d->packed, d->y));
    oq_values_widen(ex->compute, d->rows, d->packed, 3 * d->n_pixels);
    if (!oq_values_finite(d->rows, 3 * d->n_pixels))
        return oq_fail(ex->env, OQ_E_NUMERIC, "decoding picture %lld of %lld: non-finite values",
                       (long long)item + 1, (long long)r->n_items);
    oq_pixels_from_values(ex->compute, r->out->pixels + item * 3 * d->n_pixels, d->rows, 3 * d->n_pixels);
    if (!ex->trace) return OQ_OK;
    char key[OQ_RUN_PREFIX_MAX + 8];
    snprintf(key, sizeof key, "%s.out", oq_run_prefix(ex, "vae", item, buffer));
    float *out = NULL;
    OQ_TRY(oq_new(ex->env, (size_t)(3 * d->n_pixels), sizeof *out, "pixels", &out));
    oq_values_transpose(out, d->rows, d->n_pixels, 3);
    const oq_status st =
        oq_trace_host(ex, key, &oq_dtype_f32, out, (int64_t[]){1, 3, r->req->height, r->req->width}, 4);
    oq_free(ex->env, out);
    return st;
}

/* Latents to planes, item by item, as the autoencoder takes them. */
static oq_status unpack_items(oq_packed_run *r, decoding *d)
{
    if (r->ex->measure) return OQ_OK;
    const int64_t C = r->family->vae->latent_channels;
    for (int64_t i = 0; i < r->n_items; i++) {
        r->family->unscale(r, r->latents + i * r->elems);
        oq_packed_repack(r->rows, r->columns, r->width, d->planes + i * r->elems, r->latents + i * r->elems,
                         false);
    }
    return oq_trace_host(r->ex, "vae.in", &oq_dtype_f32, d->planes,
                         (int64_t[]){r->n_items, C, r->rows * OQ_PACKED_PATCH, r->columns * OQ_PACKED_PATCH},
                         4);
}

static oq_status decode(oq_packed_run *r)
{
    decoding d;
    const double started_s = oq_now_s();
    const int64_t n = r->ex->measure ? 1 : r->n_items, H = r->req->height, W = r->req->width;
    oq_phase_begin(r->ex, OQ_PHASE_DECODE);
    OQ_TRY(start_decoding(r, &d));
    OQ_TRY(unpack_items(r, &d));
    oq_run_tell(r->ex, "decode", 0, n, started_s);
    for (int64_t i = 0; i < n; i++) {
        OQ_TRY(decode_item(r, &d, i));
        oq_run_tell(r->ex, "decode", i + 1, n, started_s);
    }
    if (r->ex->measure) return OQ_OK;
    OQ_TRY(oq_trace_host(r->ex, "image", &oq_dtype_u8, r->out->pixels, (int64_t[]){n, H, W, 3}, 4));
    r->out->decode_s = oq_now_s() - started_s;
    return OQ_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static oq_status walk(oq_packed_run *r)
{
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
    oq_arena_init(&r.arena, ex->env);
    const oq_mark mark = oq_mark_get(ex);
    const oq_status st = walk(&r);
    oq_mark_reset(ex, mark);
    oq_arena_deinit(&r.arena);
    return st;
}
