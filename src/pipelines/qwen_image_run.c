/* qwen_image_run.c -- Qwen-Image's parts of the walk (packed_run.c): prompts without the template's beginning, guidance that keeps
 * each token's length, decoding by the autoencoder of videos, whole or in tiles. */
#include "pipelines/qwen_image.h"

#include "pipelines/latents.h"
#include "pipelines/packed_run.h"
#include "pipelines/prompt_ids.h"
#include "pipelines/tiles.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct q_run {
    const qwen_image *q;
    oq_dit_qwen_image_condition *conditions; /* [n_prompts], then the negative prompt's */
    float *mean, *std;                       /* of a token's values */
} q_run;

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

/* ids of the text in its template, of which the first DROPPED have no part in what follows. */
static oq_status make_ids(oq_packed_run *r, const char *text, const oq_packed_words *w, int32_t **ids,
                          int64_t *n)
{
    const qwen_image *q = ((q_run *)r->self)->q;
    const oq_prompt_ids rule = {.tokenizer = q->tokenizer,
                                .before = QWEN_IMAGE_BEFORE,
                                .after = QWEN_IMAGE_AFTER,
                                .vocab_size = q->encoder->vocab_size,
                                .max_tokens = QWEN_IMAGE_DROPPED + r->req->max_sequence_length,
                                .warn = r->ex->measure};
    char key[64];
    OQ_TRY(oq_prompt_ids_make(r->ex->env, &r->arena, &rule, text, w->what, ids, n));
    if (*n <= QWEN_IMAGE_DROPPED)
        return oq_fail(r->ex->env, OQ_E_FORMAT,
                       "%s: %lld tokens with its template, which alone should have %d", w->what,
                       (long long)*n, (int)QWEN_IMAGE_DROPPED);
    snprintf(key, sizeof key, "text.%s.ids", w->side);
    return oq_trace_host(r->ex, key, &oq_dtype_i32, *ids, n, 1);
}

static oq_status condition(oq_packed_run *r, const char *text, int64_t index, int64_t item)
{
    q_run *run = r->self;
    const qwen_image *q = run->q;
    const oq_packed_words w = oq_packed_describe(r, index);
    oq_dit_qwen_image_condition *out = &run->conditions[index];
    char key[48], prefix[OQ_RUN_PREFIX_MAX];
    int32_t *ids = NULL;
    int64_t n = 0;
    OQ_TRY(make_ids(r, text, &w, &ids, &n));
    const int64_t used = n - QWEN_IMAGE_DROPPED;
    OQ_TRY(oq_dit_qwen_image_condition_new(r->ex, q->dit, used, r->rows, r->columns, out));
    const oq_mark mark = oq_mark_get(r->ex);
    encoding e = {.encoder = q->encoder,
                  .args = {.ids = ids, .n = n, .n_layers = q->encoder->n_layers, .final_norm = true}};
    snprintf(key, sizeof key, "text.%s", w.side);
    e.args.trace = r->ex->trace ? key : NULL;
    OQ_TRY(oq_tmp(r->ex, n, q->encoder->hidden_size, &e.states));
    OQ_TRY(oq_run_checked(r->ex, encode_again, &e, e.states, "text_encoder", w.what));
    const oq_tensor embeds = oq_tensor_rows(e.states, QWEN_IMAGE_DROPPED, used);
    if (r->ex->trace) OQ_TRY(oq_trace_put(r->ex, embeds, NULL, 0, "%s.embeds", key));
    OQ_TRY(oq_dit_qwen_image_condition_run(r->ex, q->dit, embeds, out,
                                           oq_run_prefix(r->ex, "dit0", item, prefix)));
    oq_mark_reset(r->ex, mark);
    return OQ_OK;
}

static oq_status forward(oq_packed_run *r, int64_t index, int step, oq_tensor x, oq_tensor y,
                         const char *trace)
{
    const q_run *run = r->self;
    return oq_dit_qwen_image_forward(r->ex, run->q->dit, &run->conditions[index], x, r->times.model_t[step],
                                     y, trace);
}

static void unscale(const oq_packed_run *r, float *packed)
{
    const q_run *run = r->self;
    oq_latents_rescale(r->ex->compute, packed, r->tokens, r->width, false, run->mean, run->std);
}

/* ---- decoding ------------------------------------------------------------------------------------------ */

typedef struct decoding {
    oq_packed_run *r;
    const oq_vae_wan *vae;
    const float *latents;   /* [n_items, C, h w] */
    int64_t item, n_pixels; /* of one picture */
    float *rows;            /* host values of one item's latents, [h w, C] */
    float *planes;          /* an item's latents, then its pixels, for the trace */
    float *pixels;          /* [n_pixels, 3] */
    float *features;        /* in tiles: what the decoder's head made of the latents */
    void *packed;           /* the same in the compute type */
} decoding;

static oq_status start_decoding(oq_packed_run *r, decoding *d)
{
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
    return whole ? oq_vae_wan_decode(ex, d->vae, &args, z, take, take_user)
                 : oq_vae_wan_decode_tail(ex, d->vae, &args, z, take, take_user);
}

/* In tiles the decoder's head still sees the whole picture; its features take the latents' place. */
static oq_status make_features(oq_packed_run *r, decoding *d, oq_tiling *tiling)
{
    const oq_vae_wan *vae = d->vae;
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

static oq_status finish_picture(oq_packed_run *r, decoding *d)
{
    const int64_t count = 3 * d->n_pixels;
    if (!oq_values_finite(d->pixels, count))
        return oq_fail(r->ex->env, OQ_E_NUMERIC, "decoding picture %lld of %lld: non-finite values",
                       (long long)d->item + 1, (long long)r->n_items);
    if (r->ex->trace) oq_values_transpose(d->planes, d->pixels, d->n_pixels, 3);
    oq_pixels_from_values(r->ex->compute, r->out->pixels + d->item * count, d->pixels, count);
    return trace_planes(d, "out", 3, r->req->height, r->req->width);
}

static oq_status decode_item(void *user, int64_t item)
{
    decoding *d = user;
    oq_packed_run *r = d->r;
    const int64_t C = d->vae->z_dim, n = r->elems / C, scale = oq_vae_wan_scale(d->vae);
    oq_tiling tiling = {.frames = 1,
                        .h = r->rows * OQ_PACKED_PATCH,
                        .w = r->columns * OQ_PACKED_PATCH,
                        .channels = C,
                        .scale = scale,
                        .tile = oq_tile_latents(r->req->vae_tile, scale),
                        .most_frames = 1,
                        .decode = decode_tile,
                        .user = d};
    d->item = item;
    if (r->ex->measure) {
        OQ_TRY(make_features(r, d, &tiling));
        return oq_decode_tiles(r->ex, &r->arena, &tiling, NULL, NULL);
    }
    memcpy(d->planes, d->latents + item * r->elems, (size_t)r->elems * sizeof *d->planes);
    OQ_TRY(trace_planes(d, "in", C, tiling.h, tiling.w));
    oq_values_transpose(d->rows, d->planes, C, n);
    memset(d->pixels, 0, (size_t)(3 * d->n_pixels) * sizeof *d->pixels);
    OQ_TRY(make_features(r, d, &tiling));
    OQ_TRY(
        oq_decode_tiles(r->ex, &r->arena, &tiling, tiling.channels == C ? d->rows : d->features, d->pixels));
    return finish_picture(r, d);
}

static oq_status decode(oq_packed_run *r, float *planes)
{
    const int64_t n = r->ex->measure ? 1 : r->n_items, H = r->req->height, W = r->req->width;
    decoding d = {.r = r, .vae = ((q_run *)r->self)->q->vae, .latents = planes, .n_pixels = W * H};
    const oq_run_phase phase = {.name = "decode",
                                .end = n,
                                .step = decode_item,
                                .user = &d,
                                .seconds = r->out ? &r->out->decode_s : NULL};
    OQ_TRY(start_decoding(r, &d));
    OQ_TRY(oq_run_phase_walk(r->ex, &phase));
    if (r->ex->measure) return OQ_OK;
    return oq_trace_host(r->ex, "image", &oq_dtype_u8, r->out->pixels, (int64_t[]){n, H, W, 3}, 4);
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

static oq_status walk(oq_exec *ex, oq_arena *arena, q_run *run, const oq_request *request, oq_output *out)
{
    enum { CELL = OQ_PACKED_PATCH * OQ_PACKED_PATCH };
    const qwen_image *q = run->q;
    const oq_image_vae image = oq_image_vae_wan(q->vae);
    const oq_packed_family family = {.channels = q->vae->z_dim,
                                     .scale = oq_vae_wan_scale(q->vae),
                                     .schedule = &q->schedule,
                                     .mu = (double)NAN,
                                     .image = request->n_images > 0 ? &image : NULL,
                                     .guided = request->guidance > 1 && request->negative,
                                     .guidance = request->guidance,
                                     .keeps_length = true,
                                     .condition = condition,
                                     .forward = forward,
                                     .unscale = unscale,
                                     .decode = decode};
    OQ_TRY(oq_arena_new(arena, (size_t)request->n_prompts + 1, sizeof *run->conditions, "prompts",
                        &run->conditions));
    OQ_TRY(oq_arena_new(arena, (size_t)(CELL * q->vae->z_dim), sizeof(float), "statistics", &run->mean));
    OQ_TRY(oq_arena_new(arena, (size_t)(CELL * q->vae->z_dim), sizeof(float), "statistics", &run->std));
    for (int64_t i = 0; i < CELL * q->vae->z_dim; i++)
        run->mean[i] = q->vae->mean[i / CELL], run->std[i] = q->vae->std[i / CELL];
    return oq_packed_walk(ex, &family, run, request, out);
}

oq_status qwen_image_run(oq_exec *ex, const void *self, const oq_request *request, oq_output *out)
{
    q_run run = {.q = self};
    oq_arena arena;
    oq_arena_init(&arena, ex->env);
    const oq_status st = walk(ex, &arena, &run, request, out);
    oq_arena_deinit(&arena);
    return st;
}
