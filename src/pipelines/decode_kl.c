/* decode_kl.c -- host values to the autoencoder and back, item by item. */
#include "pipelines/decode_kl.h"

#include "pipelines/latents.h"
#include "pipelines/run_parts.h"

typedef struct decoding {
    oq_exec *ex;
    const oq_kl_decoding *d;
    oq_tensor z, y;          /* [h w, C], [pixels, 3] */
    int64_t elems, n_pixels; /* of one item */
    float *rows;             /* host values of one item: latents or pixels */
    void *packed;            /* the same in the compute type */
    float *pictures;         /* [n_items, 3, n_pixels] for the trace; NULL without one */
} decoding;

static oq_status start(decoding *s, oq_arena *arena)
{
    const oq_kl_decoding *d = s->d;
    const int64_t C = d->vae->latent_channels, scale = oq_vae_kl_scale(d->vae);
    s->elems = C * d->h * d->w;
    s->n_pixels = d->h * scale * d->w * scale;
    OQ_TRY(oq_tmp(s->ex, d->h * d->w, C, &s->z));
    OQ_TRY(oq_tmp(s->ex, s->n_pixels, 3, &s->y));
    if (s->ex->measure) return OQ_OK;
    const size_t n = (size_t)(s->elems > 3 * s->n_pixels ? s->elems : 3 * s->n_pixels);
    OQ_TRY(oq_arena_new(arena, n, sizeof(float), "pixels", &s->rows));
    OQ_TRY(oq_arena_new(arena, n, s->ex->compute->bytes, "pixels", &s->packed));
    if (!s->ex->trace) return OQ_OK;
    return oq_arena_new(arena, (size_t)(d->n_items * 3 * s->n_pixels), sizeof(float), "pixels", &s->pictures);
}

static oq_status decode_item(void *user, int64_t item)
{
    decoding *s = user;
    const oq_kl_decoding *d = s->d;
    oq_exec *ex = s->ex;
    const int64_t count = 3 * s->n_pixels;
    char buffer[OQ_RUN_PREFIX_MAX];
    if (!ex->measure) {
        oq_values_transpose(s->rows, d->planes + item * s->elems, d->vae->latent_channels, d->h * d->w);
        oq_values_round(ex->compute, s->packed, s->rows, s->elems);
    }
    OQ_TRY(oq_upload(ex, s->z, s->packed));
    OQ_TRY(oq_vae_kl_decode(ex, d->vae, s->z, d->h, d->w, d->band, s->y,
                            oq_run_prefix(ex, "vae", item, buffer)));
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_download(ex, s->packed, s->y));
    oq_values_widen(ex->compute, s->rows, s->packed, count);
    if (s->pictures) oq_values_transpose(s->pictures + item * count, s->rows, s->n_pixels, 3);
    if (!oq_values_finite(s->rows, count))
        return oq_fail(ex->env, OQ_E_NUMERIC, "decoding picture %lld of %lld: non-finite values",
                       (long long)item + 1, (long long)d->n_items);
    oq_pixels_from_values(ex->compute, d->out->pixels + item * count, s->rows, count);
    return OQ_OK;
}

oq_status oq_decode_kl(oq_exec *ex, oq_arena *arena, const oq_kl_decoding *d)
{
    decoding s = {.ex = ex, .d = d};
    const int64_t scale = oq_vae_kl_scale(d->vae), H = d->h * scale, W = d->w * scale, n = d->n_items;
    const oq_run_phase phase = {.name = "decode",
                                .end = ex->measure ? 1 : n,
                                .step = decode_item,
                                .user = &s,
                                .seconds = d->out ? &d->out->decode_s : NULL};
    OQ_TRY(start(&s, arena));
    if (!ex->measure)
        OQ_TRY(oq_trace_host(ex, "vae.in", &oq_dtype_f32, d->planes,
                             (int64_t[]){n, d->vae->latent_channels, d->h, d->w}, 4));
    OQ_TRY(oq_run_phase_walk(ex, &phase));
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_trace_host(ex, "vae.out", &oq_dtype_f32, s.pictures, (int64_t[]){n, 3, H, W}, 4));
    return oq_trace_host(ex, "image", &oq_dtype_u8, d->out->pixels, (int64_t[]){n, H, W, 3}, 4);
}
