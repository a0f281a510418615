/* tiles.c -- decoding in tiles: where they lie, what their pixels weigh, and the walk over them. */
#include "pipelines/tiles.h"

#include "pipelines/latents.h"

enum { LEAST_LATENTS = 4, OVERLAP_SHARE = 4 }; /* neighbours share a quarter of a tile */

/* ---- one axis ------------------------------------------------------------------------------------------ */

typedef struct axis {
    int64_t n, size; /* tiles; latents of each */
    int64_t *at;     /* [n]: first latent */
    float *weight;   /* [n, size * scale]: of each pixel; those of all tiles add up to 1 */
} axis;

int64_t oq_tile_latents(int64_t tile_px, int64_t scale)
{
    const int64_t latents = tile_px / scale;
    return tile_px <= 0 ? 0 : latents > LEAST_LATENTS ? latents : LEAST_LATENTS;
}

/* Rises over the pixels shared with the tile before, falls over those shared with the next. */
static float raw_weight(const axis *a, int64_t tile, int64_t scale, int64_t px)
{
    const int64_t size = a->size * scale, from_end = size - 1 - px;
    float weight = 1;
    if (tile > 0) {
        const int64_t shared = (a->at[tile - 1] + a->size - a->at[tile]) * scale;
        if (px < shared) weight *= ((float)px + 0.5f) / (float)shared;
    }
    if (tile + 1 < a->n) {
        const int64_t shared = (a->at[tile] + a->size - a->at[tile + 1]) * scale;
        if (from_end < shared) weight *= ((float)from_end + 0.5f) / (float)shared;
    }
    return weight;
}

/* Where three tiles meet the ramps alone do not add up to one. */
static void normalise(const axis *a, int64_t scale, float *sum, int64_t pixels)
{
    const int64_t size = a->size * scale;
    for (int64_t i = 0; i < pixels; i++) sum[i] = 0;
    for (int64_t t = 0; t < a->n; t++)
        for (int64_t i = 0; i < size; i++) sum[a->at[t] * scale + i] += a->weight[t * size + i];
    for (int64_t t = 0; t < a->n; t++)
        for (int64_t i = 0; i < size; i++) a->weight[t * size + i] /= sum[a->at[t] * scale + i];
}

static oq_status make_axis(oq_arena *arena, int64_t latents, int64_t tile, int64_t scale, axis *a)
{
    const bool whole = tile <= 0 || tile >= latents;
    float *sum = NULL;
    *a = (axis){.n = 1, .size = whole ? latents : tile};
    const int64_t step = a->size - a->size / OVERLAP_SHARE;
    if (!whole) a->n = 1 + (latents - a->size + step - 1) / step;
    OQ_TRY(oq_arena_new(arena, (size_t)a->n, sizeof *a->at, "tiles", &a->at));
    OQ_TRY(oq_arena_new(arena, (size_t)(a->n * a->size * scale), sizeof *a->weight, "tiles", &a->weight));
    OQ_TRY(oq_arena_new(arena, (size_t)(latents * scale), sizeof *sum, "tiles", &sum));
    for (int64_t t = 0; t < a->n; t++) a->at[t] = t + 1 < a->n ? t * step : latents - a->size;
    for (int64_t t = 0; t < a->n; t++)
        for (int64_t i = 0; i < a->size * scale; i++)
            a->weight[t * a->size * scale + i] = raw_weight(a, t, scale, i);
    if (a->n > 1) normalise(a, scale, sum, latents * scale);
    return OQ_OK;
}

/* ---- the walk ------------------------------------------------------------------------------------------ */

typedef struct walk {
    const oq_tiling *t;
    axis y, x;
    int64_t row, column; /* of the tile at work */
    float *values;       /* host: latents or pixels of a tile */
    void *packed;        /* the same in their type */
    float *sum;
} walk;

/* An oq_tile_take: adds the tile's pixels where they belong. */
static oq_status add_pixels(oq_exec *ex, void *user, oq_tensor frames, int64_t first, int64_t n)
{
    walk *k = user;
    const int64_t s = k->t->scale, th = k->y.size * s, tw = k->x.size * s, W = k->t->w * s, H = k->t->h * s;
    if (ex->measure) return OQ_OK;
    const float *wy = k->y.weight + k->row * th, *wx = k->x.weight + k->column * tw;
    const int64_t top = k->y.at[k->row] * s, left = k->x.at[k->column] * s;
    OQ_TRY(oq_download(ex, k->packed, frames));
    oq_values_widen(frames.dtype, k->values, k->packed, n * th * tw * 3);
    for (int64_t f = 0; f < n; f++)
        for (int64_t y = 0; y < th; y++)
            for (int64_t x = 0; x < tw; x++) {
                float *to = k->sum + (((first + f) * H + top + y) * W + left + x) * 3;
                const float *from = k->values + ((f * th + y) * tw + x) * 3;
                for (int c = 0; c < 3; c++) to[c] += wy[y] * wx[x] * from[c];
            }
    return OQ_OK;
}

/* The tile's latents, rounded to the compute type. */
static void gather(const walk *k, const oq_dtype *type, const float *rows)
{
    const oq_tiling *t = k->t;
    float *to = k->values;
    for (int64_t f = 0; f < t->frames; f++)
        for (int64_t y = 0; y < k->y.size; y++) {
            const int64_t row = (f * t->h + k->y.at[k->row] + y) * t->w + k->x.at[k->column];
            for (int64_t i = 0; i < k->x.size * t->channels; i++) *to++ = rows[row * t->channels + i];
        }
    oq_values_round(type, k->packed, k->values, to - k->values);
}

static oq_status new_buffers(oq_arena *arena, walk *k, int64_t latents)
{
    const oq_tiling *t = k->t;
    const int64_t pixels = k->y.size * k->x.size * t->scale * t->scale * 3 * t->most_frames;
    const size_t n = (size_t)(pixels > latents ? pixels : latents);
    OQ_TRY(oq_arena_new(arena, n, sizeof(float), "tiles", &k->values));
    return oq_arena_new(arena, n, sizeof(float), "tiles", &k->packed);
}

static oq_status decode_tile(oq_exec *ex, walk *k, oq_tensor z, const float *rows)
{
    const bool whole = k->y.n == 1 && k->x.n == 1;
    OQ_TRY(oq_check_canceled(ex->env));
    if (!ex->measure) gather(k, ex->compute, rows);
    OQ_TRY(oq_upload(ex, z, k->packed));
    return k->t->decode(ex, k->t->user, z, k->y.size, k->x.size, whole, add_pixels, k);
}

oq_status oq_decode_tiles(oq_exec *ex, oq_arena *arena, const oq_tiling *t, const float *rows, float *sum)
{
    const oq_mark mark = oq_mark_get(ex);
    walk k = {.t = t, .sum = sum};
    oq_tensor z;
    OQ_TRY(make_axis(arena, t->h, t->tile, t->scale, &k.y));
    OQ_TRY(make_axis(arena, t->w, t->tile, t->scale, &k.x));
    OQ_TRY(oq_tmp(ex, t->frames * k.y.size * k.x.size, t->channels, &z));
    if (!ex->measure) OQ_TRY(new_buffers(arena, &k, z.rows * z.cols));
    const int64_t rows_n = ex->measure ? 1 : k.y.n,
                  columns_n = ex->measure ? 1 : k.x.n; /* one tells the sizes */
    for (k.row = 0; k.row < rows_n; k.row++)
        for (k.column = 0; k.column < columns_n; k.column++) {
            const oq_mark tile = oq_mark_get(ex);
            OQ_TRY(decode_tile(ex, &k, z, rows));
            oq_mark_reset(ex, tile);
        }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
