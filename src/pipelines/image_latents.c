/* image_latents.c -- pictures to latents. */
#include "pipelines/image_latents.h"

#include "pipelines/latents.h"
#include "pipelines/run_parts.h"
#include "sched/noise.h"

#include <math.h>
#include <string.h>

/* ---- autoencoders -------------------------------------------------------------------------------------- */

static oq_status encode_kl(oq_exec *ex, const oq_image_vae *vae, oq_tensor x, int64_t h, int64_t w,
                           oq_tensor y)
{
    return oq_vae_kl_encode(ex, vae->self, x, h, w, vae->band, y);
}

static float normalize_kl(const oq_dtype *dtype, const void *self, int64_t channel, float sample)
{
    const oq_vae_kl *vae = self;
    (void)channel;
    return oq_value_round(dtype, oq_value_round(dtype, sample - (float)vae->shift_factor) *
                                     (float)vae->scaling_factor);
}

oq_image_vae oq_image_vae_kl(const oq_vae_kl *vae, int64_t band)
{
    return (oq_image_vae){vae, oq_vae_kl_scale(vae), vae->latent_channels, band, encode_kl, normalize_kl};
}

static oq_status encode_wan(oq_exec *ex, const oq_image_vae *vae, oq_tensor x, int64_t h, int64_t w,
                            oq_tensor y)
{
    const oq_vae_wan_args args = {.frames = 1, .h = h, .w = w};
    return oq_vae_wan_encode(ex, vae->self, &args, x, y);
}

/* Both statistics are of the type first. */
static float normalize_wan(const oq_dtype *dtype, const void *self, int64_t channel, float sample)
{
    const oq_vae_wan *vae = self;
    const float mean = oq_value_round(dtype, vae->mean[channel]);
    const float inverse = oq_value_round(dtype, 1.0f / oq_value_round(dtype, vae->std[channel]));
    return oq_value_round(dtype, oq_value_round(dtype, sample - mean) * inverse);
}

oq_image_vae oq_image_vae_wan(const oq_vae_wan *vae)
{
    return (oq_image_vae){vae, oq_vae_wan_scale(vae), vae->z_dim, 0, encode_wan, normalize_wan};
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

/* Bytes to [-1, 1] in rows of pixels, as float32 arithmetic has it. */
static void to_values(const oq_image *image, float *rows)
{
    for (int64_t i = 0; i < image->width * image->height * 3; i++)
        rows[i] = 2.0f * ((float)image->pixels[i] / 255.0f) - 1.0f;
}

static oq_status trace_picture(oq_exec *ex, oq_arena *arena, const float *rows, int64_t width, int64_t height,
                               const char *trace)
{
    if (!trace || !ex->trace) return OQ_OK;
    float *planes = NULL;
    OQ_TRY(oq_arena_new(arena, (size_t)(3 * width * height), sizeof *planes, "picture", &planes));
    oq_values_transpose(planes, rows, width * height, 3);
    return oq_trace_host(ex, trace, &oq_dtype_f32, planes, (int64_t[]){1, 3, height, width}, 4);
}

oq_status oq_image_encode(oq_exec *ex, oq_arena *arena, const oq_image_vae *vae, const oq_image *image,
                          int64_t width, int64_t height, const char *trace, float **moments)
{
    const int64_t n = width * height, L = 2 * vae->channels, cells = n / (vae->scale * vae->scale),
                  most = 3 * n > cells * L ? 3 * n : cells * L;
    const oq_mark mark = oq_mark_get(ex);
    float *rows = NULL;
    void *packed = NULL;
    oq_tensor x, y;
    OQ_TRY(oq_tmp(ex, n, 3, &x));
    OQ_TRY(oq_tmp(ex, cells, L, &y));
    if (!ex->measure) {
        OQ_TRY(oq_arena_new(arena, (size_t)most, sizeof *rows, "picture", &rows));
        OQ_TRY(oq_arena_new(arena, (size_t)most, ex->compute->bytes, "picture", &packed));
        OQ_TRY(oq_arena_new(arena, (size_t)(cells * L), sizeof **moments, "picture", moments));
        to_values(image, rows);
        OQ_TRY(trace_picture(ex, arena, rows, width, height, trace));
        oq_values_round(ex->compute, packed, rows, 3 * n);
    }
    OQ_TRY(oq_upload(ex, x, packed));
    OQ_TRY(vae->encode(ex, vae, x, height, width, y));
    if (!ex->measure) {
        OQ_TRY(oq_download(ex, packed, y));
        oq_values_widen(ex->compute, rows, packed, cells * L);
        if (!oq_values_finite(rows, cells * L))
            return oq_fail(ex->env, OQ_E_NUMERIC,
                           "encoding a picture of %lld x %lld pixels: non-finite values", (long long)width,
                           (long long)height);
        oq_values_transpose(*moments, rows, cells, L);
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status cut_middle(oq_env *env, const oq_image *image, int64_t width, int64_t height, oq_image *out)
{
    const int64_t left = (image->width - width) / 2, top = (image->height - height) / 2;
    if (width > image->width || height > image->height)
        return oq_fail(env, OQ_E_ARG, "%lld x %lld pixels out of a picture of %lld x %lld", (long long)width,
                       (long long)height, (long long)image->width, (long long)image->height);
    OQ_TRY(oq_image_new(env, width, height, out));
    for (int64_t y = 0; y < height; y++)
        memcpy(out->pixels + y * width * 3, image->pixels + ((top + y) * image->width + left) * 3,
               (size_t)width * 3);
    return OQ_OK;
}

oq_status oq_image_fit(oq_env *env, const oq_image *image, int64_t width, int64_t height, bool middle,
                       oq_image *out)
{
    return middle ? cut_middle(env, image, width, height, out)
                  : oq_image_resize(env, image, OQ_LANCZOS, width, height, out);
}

oq_status oq_image_encode_first(oq_exec *ex, oq_arena *arena, const oq_image_vae *vae,
                                const oq_request *request, float **moments)
{
    oq_image fitted = {0};
    if (!ex->measure)
        OQ_TRY(oq_image_fit(ex->env, &request->images[0], request->width, request->height, false, &fitted));
    const oq_status st =
        oq_image_encode(ex, arena, vae, &fitted, request->width, request->height, "input.0", moments);
    oq_image_deinit(ex->env, &fitted);
    return st;
}

static void sample_latents(const oq_dtype *dtype, const oq_image_begin *b, const float *noise, float *x)
{
    const int64_t of_channel = b->n / b->vae->channels;
    for (int64_t i = 0; i < b->n; i++) {
        const float variance = fminf(fmaxf(b->moments[b->n + i], -30.0f), 20.0f);
        const float deviation = oq_value_round(dtype, expf(oq_value_round(dtype, 0.5f * variance)));
        const float spread = oq_value_round(dtype, deviation * oq_value_round(dtype, noise[i]));
        const float sample = oq_value_round(dtype, b->moments[i] + spread);
        x[i] = b->vae->normalize(dtype, b->vae->self, i / of_channel, sample);
    }
}

static void add_noise(const oq_dtype *dtype, const oq_image_begin *b, const float *x, const float *noise,
                      float *out)
{
    const float sigma = oq_value_round(dtype, b->sigma), rest = oq_value_round(dtype, 1.0f - sigma);
    for (int64_t i = 0; i < b->n; i++) {
        const float old = oq_value_round(dtype, rest * x[i]);
        out[i] = oq_value_round(dtype, oq_value_round(dtype, sigma * oq_value_round(dtype, noise[i])) + old);
    }
}

oq_status oq_image_begin_latents(oq_exec *ex, oq_arena *arena, const oq_image_begin *b)
{
    float *noise = NULL, *x = NULL, *mixed = NULL;
    OQ_TRY(oq_arena_new(arena, (size_t)b->n, sizeof *noise, "noise", &noise));
    OQ_TRY(oq_arena_new(arena, (size_t)b->n, sizeof *x, "noise", &x));
    OQ_TRY(oq_arena_new(arena, (size_t)b->n, sizeof *mixed, "noise", &mixed));
    oq_rng rng;
    for (int64_t i = 0; i < b->n_items; i++) {
        if (i == 0 || !b->request->shared_noise) {
            oq_rng_seed(&rng, b->request->seed + (uint64_t)i);
            oq_rng_normal(&rng, noise, (size_t)b->n);
            sample_latents(ex->compute, b, noise, x);
        }
        if (i == 0) OQ_TRY(oq_trace_host(ex, "input.0.latents", &oq_dtype_f32, x, b->shape, 4));
        oq_rng_normal(&rng, noise, (size_t)b->n);
        add_noise(ex->compute, b, x, noise, mixed);
        b->put(b->user, i, mixed);
    }
    return OQ_OK;
}

int oq_image_first_step(int n, double strength)
{
    const double kept = fmin(n * strength, n);
    return (int)fmax(n - kept, 0);
}
