/* latents.c -- host arithmetic that families share. */
#include "pipelines/latents.h"

#include "base/size.h"
#include "sched/noise.h"

#include <float.h>
#include <math.h>
#include <string.h>

void oq_latents_noise(uint64_t seed, bool shared, int64_t n_items, int64_t elems, float *dst)
{
    oq_rng rng;
    if (shared) {
        oq_rng_seed(&rng, seed);
        oq_rng_normal(&rng, dst, (size_t)(n_items * elems));
        return;
    }
    for (int64_t i = 0; i < n_items; i++) {
        oq_rng_seed(&rng, seed + (uint64_t)i);
        oq_rng_normal(&rng, dst + i * elems, (size_t)elems);
    }
}

void oq_values_round(const oq_dtype *dtype, void *dst, const float *src, int64_t n)
{
    dtype->from_f32(dst, src, (size_t)n);
}

void oq_values_widen(const oq_dtype *dtype, float *dst, const void *src, int64_t n)
{
    dtype->to_f32(dst, src, (size_t)n);
}

bool oq_values_finite(const float *x, int64_t n)
{
    bool finite = true; /* without a way out of the loop, which makes vectors of it */
    for (int64_t i = 0; i < n; i++) finite &= fabsf(x[i]) <= FLT_MAX;
    return finite;
}

static double length(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

void oq_latents_guide(float *pos, const float *neg, int64_t n, double scale, double limit)
{
    const float s = (float)scale;
    const float longest = limit > 0 ? (float)length(pos, n) * (float)limit : 0;
    for (int64_t i = 0; i < n; i++) pos[i] = pos[i] + s * (pos[i] - neg[i]);
    if (!(limit > 0)) return;
    const float now = (float)length(pos, n);
    if (!(now > longest)) return;
    const float ratio = longest / now;
    for (int64_t i = 0; i < n; i++) pos[i] *= ratio;
}

float oq_value_round(const oq_dtype *dtype, float x)
{
    oq_dtype_round(dtype, &x, 1);
    return x;
}

void oq_latents_unscale(const oq_dtype *dtype, float *x, int64_t n, double scaling, double shift)
{
    oq_dtype_round(dtype, x, (size_t)n);
    for (int64_t i = 0; i < n; i++) x[i] /= (float)scaling;
    oq_dtype_round(dtype, x, (size_t)n);
    for (int64_t i = 0; i < n; i++) x[i] += (float)shift;
    oq_dtype_round(dtype, x, (size_t)n);
}

/* Length of a row in torch's type: summed wide, rounded once. */
static float row_length(const oq_dtype *dtype, const float *x, int64_t n)
{
    return oq_value_round(dtype, (float)length(x, n));
}

void oq_latents_guide_plain(const oq_dtype *dtype, float *pos, const float *neg, int64_t n, double scale)
{
    const float s = (float)scale;
    for (int64_t i = 0; i < n; i++) pos[i] -= neg[i];
    oq_dtype_round(dtype, pos, (size_t)n);
    for (int64_t i = 0; i < n; i++) pos[i] *= s;
    oq_dtype_round(dtype, pos, (size_t)n);
    for (int64_t i = 0; i < n; i++) pos[i] += neg[i];
    oq_dtype_round(dtype, pos, (size_t)n);
}

void oq_latents_guide_true(const oq_dtype *dtype, float *pos, const float *neg, int64_t rows, int64_t width,
                           double scale)
{
    for (int64_t r = 0; r < rows; r++, pos += width, neg += width) {
        const float wanted = row_length(dtype, pos, width);
        oq_latents_guide_plain(dtype, pos, neg, width, scale);
        const float ratio = oq_value_round(dtype, wanted / row_length(dtype, pos, width));
        for (int64_t i = 0; i < width; i++) pos[i] *= ratio;
        oq_dtype_round(dtype, pos, (size_t)width);
    }
}

void oq_latents_euler(const oq_dtype *dtype, float *x, const float *v, int64_t n, float dt)
{
    enum { PIECE = 2048 };
    const float step = oq_value_round(dtype, dt);
    float change[PIECE];
    for (int64_t at = 0; at < n; at += PIECE, x += PIECE, v += PIECE) {
        const int64_t some = oq_min_i64(n - at, PIECE);
        for (int64_t i = 0; i < some; i++) change[i] = step * v[i];
        oq_dtype_round(dtype, change, (size_t)some);
        for (int64_t i = 0; i < some; i++) x[i] += change[i];
        oq_dtype_round(dtype, x, (size_t)some);
    }
}

void oq_latents_rescale(const oq_dtype *dtype, float *x, int64_t n, int64_t channels, bool planes,
                        const float *mean, const float *std)
{
    for (int64_t c = 0; c < channels; c++) {
        const float m = oq_value_round(dtype, mean[c]);
        const float inverse = oq_value_round(dtype, 1.0f / oq_value_round(dtype, std[c]));
        for (int64_t i = 0; i < n; i++) {
            float *at = planes ? x + c * n + i : x + i * channels + c;
            *at = oq_value_round(dtype, oq_value_round(dtype, oq_value_round(dtype, *at) / inverse) + m);
        }
    }
}

static uint8_t pixel_of(const oq_dtype *dtype, float x)
{
    const float half = oq_value_round(dtype, oq_value_round(dtype, x * 0.5f) + 0.5f);
    const float unit = half < 0.0f ? 0.0f : half > 1.0f ? 1.0f : half;
    return (uint8_t)nearbyintf(unit * 255.0f);
}

/* A BF16 run has 65536 values at most: from a picture's size on, a table of them is quicker. */
void oq_pixels_from_values(const oq_dtype *dtype, uint8_t *dst, const float *x, int64_t n)
{
    enum { ALL = 1 << 16 };
    uint8_t table[ALL];
    const bool by_table = dtype == &oq_dtype_bf16 && n > ALL;
    for (uint32_t i = 0; by_table && i < ALL; i++) {
        const uint32_t bits = i << 16;
        float value;
        memcpy(&value, &bits, sizeof value);
        table[i] = (i & 0x7f80u) == 0x7f80u
                       ? 0
                       : pixel_of(dtype, value); /* the caller has seen that all are finite */
    }
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        dst[i] = by_table && (bits & 0xffffu) == 0 ? table[bits >> 16] : pixel_of(dtype, x[i]);
    }
}

oq_status oq_trace_host(oq_exec *ex, const char *key, const oq_dtype *dtype, const void *data,
                        const int64_t *shape, int n_dims)
{
    if (!ex->trace || ex->measure) return OQ_OK;
    return ex->trace(ex->trace_user, key, dtype, data, shape, n_dims);
}
