/* qwen_image_run.c -- Qwen-Image: prompts, noise, denoising with true guidance, decoding. One item is one picture; items
 * run one after the other through the networks, so prompts of different length need no masks. In measure mode the same
 * walk takes one step and touches no values. Nothing is allocated between the first step and the last. */
#include "pipelines/qwen_image.h"

#include "pipelines/latents.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/run_parts.h"
#include "pipelines/tiles.h"

#include <stdio.h>
#include <string.h>

typedef struct q_run {
    oq_exec *ex;
    const qwen_image *q;
    const oq_request *req;
    oq_output *out;
    oq_arena arena;          /* host memory of this request */
    int64_t rows, columns;   /* tokens of a picture */
    int64_t tokens, width;   /* of one item's packed latents */
    int64_t elems;           /* tokens * width */
    int64_t n_items, n_rows; /* pictures; model outputs of a guided step */
    bool guided;
    oq_dit_qwen_image_condition *conditions; /* [n_prompts], then the negative prompt's */
    float *latents;                          /* [n_items, elems] */
    float *predictions;                      /* [n_rows, elems] */
    void *staging;                           /* [n_rows, elems] of the compute type */
    float *sigmas, *timesteps, *model_t;
    oq_tensor x, y; /* [n_items * tokens, width], [n_rows * tokens, width] */
} q_run;

/* ---- set-up -------------------------------------------------------------------------------------------- */

static oq_status start(q_run *r)
{
    const oq_request *req = r->req;
    const int64_t cell = OQ_DIT_QWEN_IMAGE_PATCH * oq_vae_wan_scale(r->q->vae);
    const size_t steps = (size_t)req->steps;
    r->rows = req->height / cell;
    r->columns = req->width / cell;
    r->tokens = r->rows * r->columns;
    r->width = r->q->dit->in_channels;
    r->elems = r->tokens * r->width;
    r->n_items = (int64_t)req->n_prompts * req->images_per_prompt;
    r->guided = req->guidance > 1 && req->negative;
    r->n_rows = r->guided ? 2 * r->n_items : r->n_items;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)req->n_prompts + 1, sizeof *r->conditions, "prompts",
                        &r->conditions));
    OQ_TRY(oq_arena_new(&r->arena, steps + 1, sizeof(float), "sigmas", &r->sigmas));
    OQ_TRY(oq_arena_new(&r->arena, steps, sizeof(float), "timesteps", &r->timesteps));
    OQ_TRY(oq_arena_new(&r->arena, steps, sizeof(float), "timesteps", &r->model_t));
    OQ_TRY(oq_tmp(r->ex, r->n_items * r->tokens, r->width, &r->x));
    OQ_TRY(oq_tmp(r->ex, r->n_rows * r->tokens, r->width, &r->y));
    if (r->ex->measure) return OQ_OK;
    const size_t values = (size_t)(r->n_rows * r->elems);
    OQ_TRY(oq_arena_new(&r->arena, (size_t)(r->n_items * r->elems), sizeof(float), "latents", &r->latents));
    OQ_TRY(oq_arena_new(&r->arena, values, sizeof(float), "predictions", &r->predictions));
    return oq_arena_new(&r->arena, values, r->ex->compute->bytes, "predictions", &r->staging);
}

/* The transformer sees timestep / 1000, both rounded to its type. */
static oq_status make_schedule(q_run *r)
{
    const int n = r->req->steps;
    const oq_dtype *type = r->ex->compute;
    const double mu = oq_flow_euler_mu(&r->q->schedule, r->tokens);
    oq_flow_euler_sigmas(&r->q->schedule, n, r->req->sigmas, mu, r->sigmas, r->timesteps);
    for (int i = 0; i < n; i++)
        r->model_t[i] = oq_value_round(type, oq_value_round(type, r->timesteps[i]) / 1000.0f);
    OQ_TRY(oq_trace_host(r->ex, "sigmas", &oq_dtype_f32, r->sigmas, (int64_t[]){n + 1}, 1));
    OQ_TRY(oq_trace_host(r->ex, "timesteps", &oq_dtype_f32, r->timesteps, (int64_t[]){n}, 1));
    return oq_trace_host(r->ex, "model_t", &oq_dtype_f32, r->model_t, (int64_t[]){n}, 1);
}

static oq_status trace_items(q_run *r, const char *key, const float *values)
{
    return oq_trace_host(r->ex, key, &oq_dtype_f32, values, (int64_t[]){r->n_items, r->tokens, r->width}, 3);
}

/* planes [C, h, w] <-> tokens [rows, columns, (channel, dy, dx)] */
static void repack(const q_run *r, float *planes, float *packed, bool pack)
{
    enum { P = OQ_DIT_QWEN_IMAGE_PATCH };
    const int64_t h = r->rows * P, w = r->columns * P;
    for (int64_t t = 0; t < r->tokens; t++)
        for (int64_t k = 0; k < r->width; k++) {
            const int64_t c = k / (P * P), y = t / r->columns * P + k / P % P, x = t % r->columns * P + k % P;
            float *plane = &planes[(c * h + y) * w + x], *token = &packed[t * r->width + k];
            *(pack ? token : plane) = *(pack ? plane : token);
        }
}

static oq_status make_noise(q_run *r)
{
    if (r->ex->measure) return OQ_OK;
    float *drawn = r->predictions; /* n_items * elems of it, not needed yet */
    oq_latents_noise(r->req->seed, r->req->shared_noise, r->n_items, r->elems, drawn);
    for (int64_t i = 0; i < r->n_items; i++) repack(r, drawn + i * r->elems, r->latents + i * r->elems, true);
    for (int64_t i = 0; i < r->n_items * r->elems; i++)
        r->latents[i] = oq_value_round(r->ex->compute, r->latents[i]);
    return trace_items(r, "noise", r->latents);
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

typedef struct encoding {
    const oq_te_qwen3 *encoder;
    oq_te_qwen3_args args;
    oq_tensor states; /* [n, hidden] */
} encoding;

static oq_status encode_again(oq_exec *ex, void *user)
{
    encoding *e = user;
    if (!ex->trace) e->args.trace = NULL;
    return oq_te_qwen3_forward(ex, e->encoder, &e->args, e->states);
}

/* One text to one condition. side: "pos" or "neg"; item: the first picture that uses it. */
static oq_status make_condition(q_run *r, const char *text, const char *side, int64_t index, int64_t item,
                                oq_dit_qwen_image_condition *out)
{
    const oq_prompt_ids rule = {.tokenizer = r->q->tokenizer,
                                .before = QWEN_IMAGE_BEFORE,
                                .after = QWEN_IMAGE_AFTER,
                                .vocab_size = r->q->encoder->vocab_size,
                                .max_tokens = QWEN_IMAGE_DROPPED + r->req->max_sequence_length,
                                .warn = r->ex->measure};
    char what[64], key[48], ids_key[64], prefix[OQ_RUN_PREFIX_MAX];
    int32_t *ids = NULL;
    int64_t n = 0;
    if (side[0] == 'p')
        snprintf(what, sizeof what, "prompt %lld", (long long)index + 1);
    else
        snprintf(what, sizeof what, "the negative prompt");
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, text, what, &ids, &n));
    if (n <= QWEN_IMAGE_DROPPED)
        return oq_fail(r->ex->env, OQ_E_FORMAT,
                       "%s: %lld tokens with its template, which alone should have %d", what, (long long)n,
                       (int)QWEN_IMAGE_DROPPED);
    snprintf(key, sizeof key, "text.%s.%lld", side, (long long)index);
    snprintf(ids_key, sizeof ids_key, "%s.ids", key);
    OQ_TRY(oq_trace_host(r->ex, ids_key, &oq_dtype_i32, ids, &n, 1));
    const int64_t used = n - QWEN_IMAGE_DROPPED;
    OQ_TRY(oq_dit_qwen_image_condition_new(r->ex, r->q->dit, used, r->rows, r->columns, out));
    const oq_mark mark = oq_mark_get(r->ex);
    encoding e = {.encoder = r->q->encoder,
                  .args = {.ids = ids, .n = n, .n_layers = r->q->encoder->n_layers, .final_norm = true}};
    e.args.trace = r->ex->trace ? key : NULL;
    OQ_TRY(oq_tmp(r->ex, n, r->q->encoder->hidden_size, &e.states));
    OQ_TRY(oq_run_checked(r->ex, encode_again, &e, e.states, "text_encoder", what));
    const oq_tensor embeds = oq_tensor_rows(e.states, QWEN_IMAGE_DROPPED, used);
    if (r->ex->trace) OQ_TRY(oq_trace_put(r->ex, embeds, NULL, 0, "%s.embeds", key));
    OQ_TRY(oq_dit_qwen_image_condition_run(r->ex, r->q->dit, embeds, out,
                                           oq_run_prefix(r->ex, "dit0", item, prefix)));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

static oq_status make_conditions(q_run *r)
{
    const oq_request *req = r->req;
    const int64_t total = req->n_prompts + (r->guided ? 1 : 0);
    const double started_s = oq_now_s();
    oq_phase_begin(r->ex, OQ_PHASE_TEXT);
    oq_run_tell(r->ex, "text", 0, total, started_s);
    for (int64_t i = 0; i < req->n_prompts; i++) {
        OQ_TRY(make_condition(r, req->prompts[i], "pos", i, i * req->images_per_prompt, &r->conditions[i]));
        oq_run_tell(r->ex, "text", i + 1, total, started_s);
    }
    if (r->guided) {
        OQ_TRY(make_condition(r, req->negative, "neg", 0, r->n_items, &r->conditions[req->n_prompts]));
        oq_run_tell(r->ex, "text", total, total, started_s);
    }
    if (r->out) r->out->text_s = oq_now_s() - started_s;
    return OQ_OK;
}

/* ---- denoising ----------------------------------------------------------------------------------------- */

typedef struct row_call { /* row j of a step: positives first, then negatives */
    q_run *r;
    int step;
    int64_t row;
} row_call;

static oq_status forward_row(oq_exec *ex, void *user)
{
    const row_call *call = user;
    q_run *r = call->r;
    const int64_t item = call->row % r->n_items;
    const bool negative = call->row >= r->n_items;
    const oq_dit_qwen_image_condition *c =
        &r->conditions[negative ? r->req->n_prompts : item / r->req->images_per_prompt];
    char buffer[OQ_RUN_PREFIX_MAX];
    const char *prefix = call->step == 0 ? oq_run_prefix(ex, "dit0", call->row, buffer) : NULL;
    return oq_dit_qwen_image_forward(ex, r->q->dit, c, oq_tensor_rows(r->x, item * r->tokens, r->tokens),
                                     r->model_t[call->step],
                                     oq_tensor_rows(r->y, call->row * r->tokens, r->tokens), prefix);
}

static oq_status check_row(q_run *r, int step, int64_t row)
{
    const float *values = r->predictions + row * r->elems;
    char key[64], what[64];
    snprintf(key, sizeof key, "step.%d.model_out.%lld", step, (long long)row);
    OQ_TRY(oq_trace_host(r->ex, key, &oq_dtype_f32, values, (int64_t[]){r->tokens, r->width}, 2));
    if (oq_values_finite(values, r->elems)) return OQ_OK;
    row_call call = {r, step, row};
    snprintf(what, sizeof what, "step %d of %d", step + 1, r->req->steps);
    return oq_run_not_finite(r->ex, forward_row, &call, "transformer", what);
}

static oq_status predict(q_run *r, int step)
{
    oq_exec *ex = r->ex;
    if (!ex->measure) oq_values_round(ex->compute, r->staging, r->latents, r->n_items * r->elems);
    OQ_TRY(oq_upload(ex, r->x, r->staging));
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

static oq_status denoise_step(q_run *r, int step)
{
    const oq_dtype *type = r->ex->compute;
    char key[64];
    OQ_TRY(oq_check_canceled(r->ex->env));
    r->ex->step = step + 1;
    OQ_TRY(predict(r, step));
    if (r->ex->measure) return OQ_OK;
    if (r->guided)
        oq_latents_guide_true(type, r->predictions, r->predictions + r->n_items * r->elems,
                              r->n_items * r->tokens, r->width, r->req->guidance);
    snprintf(key, sizeof key, "step.%d.pred", step);
    OQ_TRY(trace_items(r, key, r->predictions));
    oq_latents_euler(type, r->latents, r->predictions, r->n_items * r->elems,
                     r->sigmas[step + 1] - r->sigmas[step]);
    if (!oq_values_finite(r->latents, r->n_items * r->elems))
        return oq_fail(r->ex->env, OQ_E_NUMERIC,
                       "step %d of %d: the guided prediction left the range of float32", step + 1,
                       r->req->steps);
    snprintf(key, sizeof key, "step.%d.latents", step);
    return trace_items(r, key, r->latents);
}

static oq_status denoise(q_run *r)
{
    const int steps = r->ex->measure ? 1 : r->req->steps;
    const double started_s = oq_now_s();
    oq_phase_begin(r->ex, OQ_PHASE_DENOISE);
    oq_run_tell(r->ex, "denoise", 0, steps, started_s);
    for (int i = 0; i < steps; i++) {
        const double step_started_s = oq_now_s();
        OQ_TRY(denoise_step(r, i));
        oq_run_tell(r->ex, "denoise", i + 1, steps, started_s);
        if (r->out && r->out->step_s) r->out->step_s[i] = oq_now_s() - step_started_s;
    }
    if (r->out) r->out->denoise_s = oq_now_s() - started_s;
    return OQ_OK;
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

typedef struct decoding {
    q_run *r;
    int64_t item, n_pixels; /* of one picture */
    float *rows;            /* host values of one item's latents, [h w, C] */
    float *planes;          /* the same as [C, h w]; then pixels for the trace */
    float *pixels;          /* [n_pixels, 3] */
    float *features;        /* in tiles: what the decoder's head made of the latents */
    void *packed;           /* the same in the compute type */
} decoding;

static oq_status start_decoding(q_run *r, decoding *d)
{
    *d = (decoding){.r = r, .n_pixels = r->req->width * r->req->height};
    if (r->ex->measure) return OQ_OK;
    const size_t pixels = (size_t)(3 * d->n_pixels),
                 n = (size_t)r->elems > pixels ? (size_t)r->elems : pixels;
    OQ_TRY(oq_arena_new(&r->arena, (size_t)r->elems, sizeof(float), "latents", &d->rows));
    OQ_TRY(oq_arena_new(&r->arena, pixels, sizeof(float), "pixels", &d->pixels));
    return oq_arena_new(&r->arena, n, sizeof(float), "pixels", &d->planes);
}

/* An oq_tile_decode. */
static oq_status decode_tile(oq_exec *ex, void *user, oq_tensor z, int64_t h, int64_t w, bool whole,
                             oq_tile_take take, void *take_user)
{
    const decoding *d = user;
    char buffer[OQ_RUN_PREFIX_MAX];
    const oq_vae_wan_args args = {
        .frames = 1, .h = h, .w = w, .trace = whole ? oq_run_prefix(ex, "vae", d->item, buffer) : NULL};
    return whole ? oq_vae_wan_decode(ex, d->r->q->vae, &args, z, take, take_user)
                 : oq_vae_wan_decode_tail(ex, d->r->q->vae, &args, z, take, take_user);
}

/* In tiles the decoder's head still sees the whole picture; its features take the latents' place. */
static oq_status make_features(q_run *r, decoding *d, oq_tiling *tiling)
{
    const oq_vae_wan *vae = r->q->vae;
    const oq_vae_wan_args args = {.frames = 1, .h = tiling->h, .w = tiling->w};
    const int64_t n = tiling->h * tiling->w, C = oq_vae_wan_features(vae);
    const oq_dtype *type = r->ex->compute;
    const oq_mark mark = oq_mark_get(r->ex);
    oq_tensor z, features;
    if (tiling->tile == 0 || (tiling->tile >= tiling->h && tiling->tile >= tiling->w)) return OQ_OK;
    OQ_TRY(oq_tmp(r->ex, n, vae->z_dim, &z));
    OQ_TRY(oq_tmp(r->ex, n, C, &features));
    if (!r->ex->measure && !d->features) {
        OQ_TRY(oq_arena_new(&r->arena, (size_t)(n * C), sizeof(float), "features", &d->features));
        OQ_TRY(oq_arena_new(&r->arena, (size_t)(n * C), sizeof(float), "features", &d->packed));
    }
    if (!r->ex->measure) oq_values_round(type, d->packed, d->rows, r->elems);
    OQ_TRY(oq_upload(r->ex, z, d->packed));
    OQ_TRY(oq_vae_wan_decode_head(r->ex, vae, &args, z, features));
    OQ_TRY(oq_download(r->ex, d->packed, features));
    if (!r->ex->measure) oq_values_widen(type, d->features, d->packed, n * C);
    oq_mark_reset(r->ex, mark);
    tiling->channels = C;
    return OQ_OK;
}

static oq_status trace_planes(const decoding *d, const char *what, int64_t channels, int64_t h, int64_t w)
{
    char key[OQ_RUN_PREFIX_MAX], buffer[OQ_RUN_PREFIX_MAX];
    if (!d->r->ex->trace) return OQ_OK;
    snprintf(key, sizeof key, "%.40s.%s", oq_run_prefix(d->r->ex, "vae", d->item, buffer), what);
    return oq_trace_host(d->r->ex, key, &oq_dtype_f32, d->planes, (int64_t[]){1, channels, h, w}, 4);
}

static oq_status finish_picture(q_run *r, decoding *d)
{
    const int64_t count = 3 * d->n_pixels;
    if (!oq_values_finite(d->pixels, count))
        return oq_fail(r->ex->env, OQ_E_NUMERIC, "decoding picture %lld of %lld: non-finite values",
                       (long long)d->item + 1, (long long)r->n_items);
    if (r->ex->trace) oq_values_transpose(d->planes, d->pixels, d->n_pixels, 3);
    oq_pixels_from_values(r->ex->compute, r->out->pixels + d->item * count, d->pixels, count);
    return trace_planes(d, "out", 3, r->req->height, r->req->width);
}

static oq_status decode_item(q_run *r, decoding *d)
{
    const int64_t C = r->q->vae->z_dim, n = r->elems / C, scale = oq_vae_wan_scale(r->q->vae);
    oq_tiling tiling = {.frames = 1,
                        .h = r->rows * OQ_DIT_QWEN_IMAGE_PATCH,
                        .w = r->columns * OQ_DIT_QWEN_IMAGE_PATCH,
                        .channels = C,
                        .scale = scale,
                        .tile = oq_tile_latents(r->req->vae_tile, scale),
                        .most_frames = 1,
                        .decode = decode_tile,
                        .user = d};
    if (r->ex->measure) {
        OQ_TRY(make_features(r, d, &tiling));
        return oq_decode_tiles(r->ex, &r->arena, &tiling, NULL, NULL);
    }
    repack(r, d->planes, r->latents + d->item * r->elems, false);
    oq_latents_rescale(r->ex->compute, d->planes, n, C, true, r->q->vae->mean, r->q->vae->std);
    OQ_TRY(trace_planes(d, "in", C, tiling.h, tiling.w));
    oq_values_transpose(d->rows, d->planes, C, n);
    memset(d->pixels, 0, (size_t)(3 * d->n_pixels) * sizeof *d->pixels);
    OQ_TRY(make_features(r, d, &tiling));
    OQ_TRY(
        oq_decode_tiles(r->ex, &r->arena, &tiling, tiling.channels == C ? d->rows : d->features, d->pixels));
    return finish_picture(r, d);
}

static oq_status decode(q_run *r)
{
    decoding d;
    const double started_s = oq_now_s();
    const int64_t n = r->ex->measure ? 1 : r->n_items, H = r->req->height, W = r->req->width;
    oq_phase_begin(r->ex, OQ_PHASE_DECODE);
    OQ_TRY(start_decoding(r, &d));
    oq_run_tell(r->ex, "decode", 0, n, started_s);
    for (; d.item < n; d.item++) {
        OQ_TRY(decode_item(r, &d));
        oq_run_tell(r->ex, "decode", d.item + 1, n, started_s);
    }
    if (r->ex->measure) return OQ_OK;
    OQ_TRY(oq_trace_host(r->ex, "image", &oq_dtype_u8, r->out->pixels, (int64_t[]){n, H, W, 3}, 4));
    r->out->decode_s = oq_now_s() - started_s;
    return OQ_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static oq_status walk(q_run *r)
{
    OQ_TRY(start(r));
    OQ_TRY(make_schedule(r));
    const oq_mark mark = oq_mark_get(r->ex);
    OQ_TRY(make_conditions(r));
    OQ_TRY(make_noise(r));
    OQ_TRY(denoise(r));
    oq_mark_reset(r->ex, mark); /* prompts are spent */
    return decode(r);
}

oq_status qwen_image_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    q_run r = {.ex = ex, .q = self, .req = request, .out = out};
    oq_arena_init(&r.arena, ex->env);
    const oq_mark mark = oq_mark_get(ex);
    const oq_status st = walk(&r);
    oq_mark_reset(ex, mark);
    oq_arena_deinit(&r.arena);
    return st;
}
