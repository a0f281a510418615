/* linear_around.c -- rows of activations before a product: smoothed, in another order, rotated, quantized; and the
 * treatments that must look at all rows first. */
#include "cpu/linear/linear_around.h"

#include <math.h>
#include <string.h>

#include "base/size.h"
#include "format/float8.h"

void oq_around_row(float *dst, const float *src, const oq_dtype *type, const oq_linear_spec *spec,
                   const oq_planes *planes)
{
    const oq_scheme *const s = &spec->scheme;
    const bool rounded = s->smooth && type == &oq_dtype_bf16; /* a shift alone is part of the quantization */
    const float *const smooth = planes->plane[OQ_PLANE_SMOOTH];
    const int32_t *const order = planes->plane[OQ_PLANE_ORDER];
    for (int64_t i = 0; i < spec->k; i++) {
        const int64_t from = s->order ? order[i] : i;
        const float shifted = src[from] + s->shift, x = s->smooth ? shifted * smooth[from] : shifted;
        dst[i] = rounded ? oq_bf16_round(x) : x;
    }
    for (int64_t at = 0; s->rotate && at < spec->k; at += s->rotate) oq_rotate(dst + at, s->rotate);
}

bool oq_around_needs_whole(const oq_scheme *scheme)
{
    return scheme->outlier > 0 || scheme->act_scale == OQ_ACT_DYNAMIC_NVFP4;
}

bool oq_around_is_plain(const oq_scheme *scheme, int64_t rows)
{
    return !scheme->act || rows < scheme->act_min_rows;
}

void oq_around_look(oq_around_whole *out, uint8_t *outlier, const oq_scheme *scheme, const float *x,
                    int64_t m, int64_t k)
{
    float amax = 0.0f;
    *out = (oq_around_whole){0};
    if (scheme->outlier > 0) {
        memset(outlier, 0, (size_t)k);
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < k; j++) outlier[j] |= fabsf(x[i * k + j]) >= scheme->outlier;
        out->outlier = outlier;
    }
    if (scheme->act_scale != OQ_ACT_DYNAMIC_NVFP4) return;
    for (int64_t i = 0; i < m * k; i++) {
        const float a = fabsf(x[i]);
        amax = a > amax || a != a ? a : amax;
        if (a != a) break;
    }
    out->global = amax > 0 || amax != amax ? amax / (6.0f * OQ_E4M3_MAX) : 1.0f;
}

/* Codes of eight bits under the row's largest number that is no outlier; those of the left columns are not used. */
static void quantize_beside_outliers(float *row, const oq_scheme *scheme, const uint8_t *outlier, int64_t k)
{
    float amax = 0.0f;
    for (int64_t j = 0; j < k; j++) {
        const float a = fabsf(row[j]);
        if (a < scheme->outlier && a > amax) amax = a;
        if (a != a) amax = a;
        if (amax != amax) break;
    }
    const float multiplier = 127.0f / amax, scale = amax * (1.0f / 127.0f);
    for (int64_t j = 0; j < k; j++) {
        if (outlier[j]) continue;
        if (amax > 0)
            row[j] = rintf(row[j] * multiplier) * scale;
        else
            row[j] = amax;
    }
}

void oq_around_quantize(float *row, const oq_scheme *scheme, const oq_around_whole *whole, float static_scale,
                        int64_t k, uint8_t *codes, float *scales)
{
    if (!scheme->act) return;
    if (whole->outlier) {
        quantize_beside_outliers(row, scheme, whole->outlier, k);
        return;
    }
    if (oq_act_has_zero(scheme->act_scale)) {
        oq_act_zero_row(scheme->act_scale, row, k);
        return;
    }
    const int64_t run = oq_act_run(scheme->act_scale, k);
    const bool dynamic = scheme->act_scale == OQ_ACT_DYNAMIC_NVFP4;
    oq_act_quantize_row(scheme, dynamic ? whole->global : static_scale, row, k, codes, scales);
    scheme->act->to_f32(row, codes, (size_t)k);
    for (int64_t j = 0; j < k; j++) row[j] *= scales[j / run];
}
