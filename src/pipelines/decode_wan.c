/* decode_wan.c -- host values to the video autoencoder and back, item by item. Whole frames come a piece at a time and go straight
 * to the output; in tiles the decoder's head sees whole frames, and its features are decoded tile by tile and blended. */
#include "pipelines/decode_wan.h"

#include "pipelines/latents.h"
#include "pipelines/run_parts.h"
#include "pipelines/tiles.h"

#include <stdio.h>
#include <string.h>

typedef struct decoding {
    oq_exec *ex;
    oq_arena *arena;
    const oq_wan_decoding *d;
    int64_t item, out_frames, n_pixels; /* frames of an item, pixels of a frame */
    int64_t n, elems;                   /* latents of an item, their values */
    int64_t piece, tile;                /* latent frames at a time; latents of a tile's side, 0: the whole */
    oq_tensor z;                        /* [n, channels] */
    float *rows;                        /* host values: an item's latents, or frames of a piece */
    void *packed;                       /* the same in the compute type, or features */
    float *planes;                      /* [3, out_frames, n_pixels] for the trace; NULL without one */
    float *features;                    /* [n, features] of an item in tiles */
    float *blended;                     /* [out_frames, n_pixels, 3] of an item in tiles */
    double started_s;
} decoding;

/* ---- set-up -------------------------------------------------------------------------------------------- */

static int64_t most_frames(const decoding *s)
{
    return oq_vae_wan_time_scale(s->d->vae) * s->piece;
}

static void set_sizes(decoding *s)
{
    const oq_wan_decoding *d = s->d;
    const int64_t scale = oq_vae_wan_scale(d->vae);
    s->n = d->frames * d->h * d->w;
    s->elems = s->n * d->vae->z_dim;
    s->out_frames = oq_vae_wan_frames(d->vae, d->frames);
    s->n_pixels = d->h * scale * d->w * scale;
    s->piece = d->request->vae_piece > 0 ? d->request->vae_piece : 1;
    if (s->piece > d->frames) s->piece = d->frames;
    s->tile = oq_tile_latents(d->request->vae_tile, scale);
    if (s->tile >= d->h && s->tile >= d->w) s->tile = 0;
}

static oq_status start(decoding *s)
{
    const int64_t features = s->tile ? s->n * oq_vae_wan_features(s->d->vae) : 0;
    if (s->tile == 0) OQ_TRY(oq_tmp(s->ex, s->n, s->d->vae->z_dim, &s->z));
    if (s->ex->measure) return OQ_OK;
    const int64_t pixels = 3 * s->n_pixels * most_frames(s), rows = s->elems > pixels ? s->elems : pixels;
    const size_t packed = (size_t)(rows > features ? rows : features),
                 all = (size_t)(3 * s->n_pixels * s->out_frames);
    OQ_TRY(oq_arena_new(s->arena, (size_t)rows, sizeof(float), "frames", &s->rows));
    OQ_TRY(oq_arena_new(s->arena, packed, s->ex->compute->bytes, "frames", &s->packed));
    if (s->tile) {
        OQ_TRY(oq_arena_new(s->arena, (size_t)features, sizeof(float), "features", &s->features));
        return oq_arena_new(s->arena, all, sizeof(float), "frames", &s->blended);
    }
    return s->ex->trace ? oq_arena_new(s->arena, all, sizeof(float), "frames", &s->planes) : OQ_OK;
}

static oq_status put(decoding *s, oq_tensor dst, const float *values)
{
    if (!s->ex->measure) oq_values_round(s->ex->compute, s->packed, values, dst.rows * dst.cols);
    return oq_upload(s->ex, dst, s->packed);
}

static oq_status get(decoding *s, float *values, oq_tensor src)
{
    OQ_TRY(oq_download(s->ex, s->packed, src));
    if (!s->ex->measure) oq_values_widen(s->ex->compute, values, s->packed, src.rows * src.cols);
    return OQ_OK;
}

/* ---- whole --------------------------------------------------------------------------------------------- */

static void keep_planes(const decoding *s, int64_t first, int64_t n)
{
    const int64_t all = s->out_frames * s->n_pixels;
    for (int64_t i = 0; i < n * s->n_pixels; i++)
        for (int64_t c = 0; c < 3; c++) s->planes[c * all + first * s->n_pixels + i] = s->rows[i * 3 + c];
}

static oq_status check_frames(const decoding *s, const float *values, int64_t first, int64_t n)
{
    if (oq_values_finite(values, 3 * n * s->n_pixels)) return OQ_OK;
    if (!s->d->video)
        return oq_fail(s->ex->env, OQ_E_NUMERIC, "decoding picture %lld of %lld: non-finite values",
                       (long long)s->item + 1, (long long)s->d->n_items);
    return oq_fail(s->ex->env, OQ_E_NUMERIC, "decoding frames %lld to %lld of %lld: non-finite values",
                   (long long)first + 1, (long long)(first + n), (long long)s->out_frames);
}

/* An oq_vae_wan_sink. */
static oq_status take_frames(oq_exec *ex, void *user, oq_tensor frames, int64_t first, int64_t n)
{
    decoding *s = user;
    const int64_t before = s->item * s->out_frames + first;
    if (ex->measure) return OQ_OK;
    OQ_TRY(get(s, s->rows, frames));
    OQ_TRY(check_frames(s, s->rows, first, n));
    if (s->planes) keep_planes(s, first, n);
    oq_pixels_from_values(ex->compute, s->d->out->pixels + before * 3 * s->n_pixels, s->rows,
                          3 * n * s->n_pixels);
    oq_run_tell(ex, "decode", before + n, s->d->n_items * s->out_frames, s->started_s);
    return OQ_OK;
}

/* ---- in tiles ------------------------------------------------------------------------------------------ */

/* An oq_tile_decode. */
static oq_status decode_tile(oq_exec *ex, void *user, oq_tensor z, int64_t h, int64_t w, bool whole,
                             oq_tile_take take, void *take_user)
{
    const decoding *s = user;
    const oq_vae_wan_args args = {.frames = s->d->frames, .h = h, .w = w, .piece = s->piece};
    (void)whole; /* one tile goes the direct way */
    return oq_vae_wan_decode_tail(ex, s->d->vae, &args, z, take, take_user);
}

/* The decoder's head sees whole frames; its features go to host memory. */
static oq_status make_features(decoding *s)
{
    const oq_wan_decoding *d = s->d;
    const oq_mark mark = oq_mark_get(s->ex);
    const oq_vae_wan_args args = {.frames = d->frames, .h = d->h, .w = d->w, .piece = s->piece};
    oq_tensor z, features;
    OQ_TRY(oq_tmp(s->ex, s->n, d->vae->z_dim, &z));
    OQ_TRY(oq_tmp(s->ex, s->n, oq_vae_wan_features(d->vae), &features));
    OQ_TRY(put(s, z, s->rows));
    OQ_TRY(oq_vae_wan_decode_head(s->ex, d->vae, &args, z, features));
    OQ_TRY(get(s, s->features, features));
    oq_mark_reset(s->ex, mark);
    return OQ_OK;
}

/* All frames of each tile, blended in host memory. */
static oq_status decode_in_tiles(decoding *s)
{
    const oq_wan_decoding *d = s->d;
    const int64_t values = 3 * s->n_pixels * s->out_frames;
    const oq_tiling tiling = {.frames = d->frames,
                              .h = d->h,
                              .w = d->w,
                              .channels = oq_vae_wan_features(d->vae),
                              .scale = oq_vae_wan_scale(d->vae),
                              .tile = s->tile,
                              .most_frames = most_frames(s),
                              .decode = decode_tile,
                              .user = s};
    OQ_TRY(make_features(s));
    if (s->ex->measure) return oq_decode_tiles(s->ex, s->arena, &tiling, NULL, NULL);
    memset(s->blended, 0, (size_t)values * sizeof *s->blended);
    OQ_TRY(oq_decode_tiles(s->ex, s->arena, &tiling, s->features, s->blended));
    OQ_TRY(check_frames(s, s->blended, 0, s->out_frames));
    oq_pixels_from_values(s->ex->compute, d->out->pixels + s->item * values, s->blended, values);
    oq_run_tell(s->ex, "decode", (s->item + 1) * s->out_frames, d->n_items * s->out_frames, s->started_s);
    return OQ_OK;
}

/* ---- items --------------------------------------------------------------------------------------------- */

/* [channels, frames, height, width] under the item's key, pictures without the axis of frames. */
static oq_status trace(const decoding *s, const char *what, const float *values, const int64_t dim[4])
{
    char key[OQ_RUN_PREFIX_MAX], buffer[OQ_RUN_PREFIX_MAX];
    const int64_t video[5] = {1, dim[0], dim[1], dim[2], dim[3]}, picture[4] = {1, dim[0], dim[2], dim[3]};
    if (!values || !s->ex->trace) return OQ_OK;
    snprintf(key, sizeof key, "%.40s.%s", oq_run_prefix(s->ex, "vae", s->item, buffer), what);
    return oq_trace_host(s->ex, key, &oq_dtype_f32, values, s->d->video ? video : picture,
                         s->d->video ? 5 : 4);
}

static oq_status decode_item(decoding *s)
{
    const oq_wan_decoding *d = s->d;
    const int64_t scale = oq_vae_wan_scale(d->vae), z = d->vae->z_dim;
    char buffer[OQ_RUN_PREFIX_MAX];
    const oq_vae_wan_args args = {.frames = d->frames,
                                  .h = d->h,
                                  .w = d->w,
                                  .piece = s->piece,
                                  .trace = oq_run_prefix(s->ex, "vae", s->item, buffer)};
    if (!s->ex->measure) {
        const float *latents = d->planes + s->item * s->elems;
        OQ_TRY(trace(s, "in", latents, (int64_t[]){z, d->frames, d->h, d->w}));
        oq_values_transpose(s->rows, latents, z, s->n);
    }
    if (s->tile) return decode_in_tiles(s);
    OQ_TRY(put(s, s->z, s->rows));
    OQ_TRY(oq_vae_wan_decode(s->ex, d->vae, &args, s->z, take_frames, s));
    return trace(s, "out", s->planes, (int64_t[]){3, s->out_frames, d->h * scale, d->w * scale});
}

oq_status oq_decode_wan(oq_exec *ex, oq_arena *arena, const oq_wan_decoding *d)
{
    decoding s = {.ex = ex, .arena = arena, .d = d, .started_s = oq_now_s()};
    const int64_t n = ex->measure ? 1 : d->n_items, scale = oq_vae_wan_scale(d->vae);
    oq_phase_begin(ex, OQ_PHASE_DECODE);
    set_sizes(&s);
    OQ_TRY(start(&s));
    oq_run_tell(ex, "decode", 0, d->n_items * s.out_frames, s.started_s);
    for (; s.item < n; s.item++) OQ_TRY(decode_item(&s));
    if (ex->measure) return OQ_OK;
    const int64_t video[5] = {n, s.out_frames, d->h * scale, d->w * scale, 3},
                  pictures[4] = {n, d->h * scale, d->w * scale, 3};
    d->out->decode_s = oq_now_s() - s.started_s;
    return oq_trace_host(ex, "image", &oq_dtype_u8, d->out->pixels, d->video ? video : pictures,
                         d->video ? 5 : 4);
}
