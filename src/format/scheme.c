/* scheme.c -- how one layer is stored and multiplied: names of the choice, and the arithmetic of its
 * activations. */
#include "format/format.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"
#include "format/format_scaled.h"

const char *oq_act_scale_name(oq_act_scale s)
{
    switch (s) {
    case OQ_ACT_NONE:
        return "none";
    case OQ_ACT_STATIC_TENSOR:
        return "static_tensor";
    case OQ_ACT_DYNAMIC_TOKEN:
        return "dynamic_token";
    case OQ_ACT_DYNAMIC_GROUP:
        return "dynamic_group128";
    case OQ_ACT_DYNAMIC_MX:
        return "dynamic_mx32";
    case OQ_ACT_DYNAMIC_MX_Q725:
        return "dynamic_mx32_q725";
    case OQ_ACT_DYNAMIC_MX_FLOOR:
        return "dynamic_mx32_floor";
    case OQ_ACT_DYNAMIC_MX_CEIL:
        return "dynamic_mx32_ceil";
    case OQ_ACT_DYNAMIC_MX_EVEN:
        return "dynamic_mx32_even";
    case OQ_ACT_DYNAMIC_MX_DUAL:
        return "dynamic_mx32_dual";
    case OQ_ACT_STATIC_NVFP4:
        return "static_nvfp4";
    case OQ_ACT_DYNAMIC_NVFP4:
        return "dynamic_nvfp4";
    case OQ_ACT_DYNAMIC_INT4:
        return "dynamic_int4_64";
    case OQ_ACT_DYNAMIC_UINT4:
        return "dynamic_uint4_64";
    case OQ_ACT_DYNAMIC_TOKEN4:
        return "dynamic_token_int4";
    case OQ_ACT_DYNAMIC_ZERO:
        return "dynamic_token_zero";
    case OQ_ACT_DYNAMIC_LEAST:
        return "dynamic_token_least";
    case OQ_N_ACT_SCALES:
        break;
    }
    return "unknown";
}

static bool is_nvfp4(oq_act_scale s)
{
    return s == OQ_ACT_STATIC_NVFP4 || s == OQ_ACT_DYNAMIC_NVFP4;
}

int64_t oq_act_run(oq_act_scale s, int64_t k)
{
    if (s == OQ_ACT_DYNAMIC_GROUP) return OQ_ACT_GROUP;
    if (is_nvfp4(s)) return OQ_ACT_NVFP4_GROUP;
    if (s == OQ_ACT_DYNAMIC_INT4 || s == OQ_ACT_DYNAMIC_UINT4) return OQ_ACT_INT4_GROUP;
    return oq_act_is_mx(s) || s == OQ_ACT_DYNAMIC_MX_DUAL ? OQ_ACT_MX_GROUP : k;
}

bool oq_act_is_mx(oq_act_scale s)
{
    return s >= OQ_ACT_DYNAMIC_MX && s <= OQ_ACT_DYNAMIC_MX_EVEN;
}

bool oq_act_has_zero(oq_act_scale s)
{
    return s == OQ_ACT_DYNAMIC_ZERO || s == OQ_ACT_DYNAMIC_LEAST;
}

bool oq_act_is_static(oq_act_scale s)
{
    return s == OQ_ACT_STATIC_TENSOR || s == OQ_ACT_STATIC_NVFP4;
}

void oq_act_describe_from(char *out, size_t n, int32_t min_rows)
{
    out[0] = '\0';
    if (min_rows) snprintf(out, n, " from %d rows", (int)min_rows);
}

void oq_scheme_describe(const oq_scheme *s, char *out, size_t n)
{
    char rotate[32] = "", rank[32] = "", from[32] = "";
    oq_act_describe_from(from, sizeof from, s->act ? s->act_min_rows : 0);
    if (s->rotate) snprintf(rotate, sizeof rotate, " rotated %d", (int)s->rotate);
    if (s->rank) snprintf(rank, sizeof rank, " rank %d", (int)s->rank);
    snprintf(out, n, "w: %s a: %s%s%s%s%s%s%s%s%s", s->weight->name, s->act ? s->act->label : "none",
             s->act ? " " : "", s->act ? oq_act_scale_name(s->act_scale) : "", from,
             s->shift != 0 ? " shifted" : "", s->smooth ? " smoothed" : "", s->order ? " reordered" : "",
             rotate, rank);
}

static bool same_around(const oq_scheme *a, const oq_scheme *b)
{
    return a->smooth == b->smooth && a->order == b->order && a->rotate == b->rotate && a->rank == b->rank &&
           a->act_min_rows == b->act_min_rows && oq_f32_bits(a->outlier) == oq_f32_bits(b->outlier) &&
           oq_f32_bits(a->shift) == oq_f32_bits(b->shift);
}

bool oq_scheme_equal(const oq_scheme *a, const oq_scheme *b)
{
    return a->weight == b->weight && a->act == b->act && a->act_scale == b->act_scale && same_around(a, b);
}

bool oq_scheme_is_bare(const oq_scheme *s)
{
    return same_around(s, &(oq_scheme){0}) && s->act_scale != OQ_ACT_DYNAMIC_NVFP4 &&
           !oq_act_has_zero(s->act_scale);
}

/* 4 bytes for each of rows x cols numbers. */
static size_t bytes4(bool there, int64_t rows, int64_t cols)
{
    size_t bytes = 0;
    if (!there) return 0;
    return oq_size_mul((size_t)rows, (size_t)cols, &bytes) && oq_size_mul(bytes, 4, &bytes) ? bytes
                                                                                            : SIZE_MAX;
}

size_t oq_scheme_plane_bytes(const oq_scheme *s, oq_plane plane, int64_t n, int64_t k)
{
    switch (plane) {
    case OQ_PLANE_INPUT_SCALE:
        return bytes4(oq_act_is_static(s->act_scale), 1, 1);
    case OQ_PLANE_SMOOTH:
        return bytes4(s->smooth, 1, k);
    case OQ_PLANE_ORDER:
        return bytes4(s->order, 1, k);
    case OQ_PLANE_DOWN:
        return bytes4(s->rank > 0, s->rank, k);
    case OQ_PLANE_UP:
        return bytes4(s->rank > 0, n, s->rank);
    default:
        return s->weight->plane_bytes(s->weight, plane, n, k);
    }
}

/* Four numbers at a distance: half the sum of three less the fourth is half the sum of all less the fourth, for each. */
void oq_rotate(float *x, int64_t group)
{
    for (int64_t step = 1; step < group; step *= 4)
        for (int64_t first = 0; first < group; first += 4 * step)
            for (int64_t i = first; i < first + step; i++) {
                float *const a = x + i, *const b = a + step, *const c = b + step, *const d = c + step;
                const float w = *a, y = *b, z = *c, v = *d;
                *a = 0.5f * ((w + y) + (z - v));
                *b = 0.5f * ((w + y) - (z - v));
                *c = 0.5f * ((w - y) + (z + v));
                *d = 0.5f * ((y - w) + (z + v));
            }
}

/* code = e4m3(x / scale); division, because that is what the kernels of the method's other implementations
 * do. */
static void e4m3_codes(uint8_t *codes, const float *x, int64_t k, float scale)
{
    enum { CHUNK = 256 };
    float scaled[CHUNK];
    for (int64_t c = 0; c < k; c += CHUNK) {
        const int64_t n = k - c < CHUNK ? k - c : CHUNK;
        for (int64_t i = 0; i < n; i++) scaled[i] = x[c + i] / scale;
        oq_e4m3_row_from_f32(codes + c, scaled, (size_t)n);
    }
}

/* One run of values under one scale, which is returned. */
static float e4m3_run(oq_act_scale how, float static_scale, const float *x, int64_t k, uint8_t *codes)
{
    const float amax = oq_amax(x, 1, k, k);
    float scale = static_scale;
    if (how == OQ_ACT_DYNAMIC_TOKEN) scale = fmaxf(amax / OQ_E4M3_MAX, 1.0f / (448.0f * 512.0f));
    if (how == OQ_ACT_DYNAMIC_GROUP) scale = (amax > 1e-12f ? amax : 1e-12f) / OQ_E4M3_MAX;
    if (amax != amax) {
        memset(codes, 0, (size_t)k);
        return amax;
    }
    e4m3_codes(codes, x, k, scale);
    return scale;
}

static float i8_run(oq_act_scale how, float static_scale, const float *x, int64_t k, int8_t *codes)
{
    const float amax = oq_amax(x, 1, k, k);
    if (how == OQ_ACT_STATIC_TENSOR && amax == amax) {
        for (int64_t i = 0; i < k; i++)
            codes[i] = (int8_t)rintf(fminf(fmaxf(x[i] / static_scale, -128.0f), 127.0f));
        return static_scale;
    }
    const bool positive = how == OQ_ACT_DYNAMIC_UINT4;
    const bool four = how == OQ_ACT_DYNAMIC_INT4 || how == OQ_ACT_DYNAMIC_TOKEN4;
    const float top = positive ? 15.0f : four ? 7.0f : 127.0f, multiplier = top / amax;
    oq_i8_row_from_f32(codes, x, k, multiplier);
    for (int64_t i = 0; positive && i < k; i++) codes[i] = codes[i] < 0 ? 0 : codes[i];
    if (amax != amax) return amax;
    return oq_f32_bits(multiplier) >= 0x7f800000u ? 0.0f : amax / top;
}

/* A run under a power of two: the scale divides exactly. */
static float mx_run(const oq_scheme *scheme, const float *x, int64_t k, uint8_t *codes)
{
    float scaled[OQ_ACT_MX_GROUP];
    const oq_e8m0_rule rule = oq_act_mx_rule(scheme->act_scale, scheme->act);
    const uint8_t byte = oq_e8m0_choose(oq_amax(x, 1, k, k), rule);
    memset(codes, 0, (size_t)k);
    if (byte == 255) return oq_e8m0_to_f32(byte);
    for (int64_t i = 0; i < k; i++) scaled[i] = x[i] * oq_e8m0_inverse(byte);
    scheme->act->from_f32(codes, scaled, (size_t)k);
    return oq_e8m0_to_f32(byte);
}

static float nvfp4_run(float static_scale, const float *x, int64_t k, uint8_t *codes)
{
    float scaled[OQ_ACT_NVFP4_GROUP];
    const float amax = oq_amax(x, 1, k, k), wanted = amax / (6.0f * static_scale);
    memset(codes, 0, (size_t)k);
    if (amax != amax) return amax;
    const uint8_t code = oq_e4m3_from_f32(fminf(fmaxf(wanted, 0x1p-9f), OQ_E4M3_MAX));
    const float scale = oq_e4m3_to_f32(code) * static_scale;
    for (int64_t i = 0; i < k; i++) scaled[i] = x[i] / scale;
    oq_dtype_f4_e2m1.from_f32(codes, scaled, (size_t)k);
    return scale;
}

/* Blocks of 512 columns: numbers over the block's own scale in groups of 32. */
static void dual_row(const oq_scheme *scheme, const float *x, int64_t k, uint8_t *codes, float *scales)
{
    for (int64_t first = 0; first < k; first += OQ_ACT_DUAL_GROUP) {
        const int64_t end = oq_min_i64(first + OQ_ACT_DUAL_GROUP, k);
        const float by = oq_dual_scale(x + first, end - first);
        for (int64_t at = first; at < end; at += OQ_ACT_MX_GROUP, scales++) {
            float scaled[OQ_ACT_MX_GROUP];
            const int64_t n = oq_min_i64(OQ_ACT_MX_GROUP, end - at);
            for (int64_t i = 0; i < n; i++) scaled[i] = x[at + i] / by;
            *scales = mx_run(scheme, scaled, n, codes + at) * by;
        }
    }
}

static float code8(float x)
{
    return fminf(fmaxf(x, -128.0f), 127.0f);
}

/* TorchAO's order of steps. */
static void whole_zero_row(float *x, int64_t k, float least, float most)
{
    const float low = fminf(least, 0.0f), s = fmaxf((fmaxf(most, 0.0f) - low) / 255.0f, 0x1p-23f),
                zero = code8(-128.0f - rintf(low / s)), inverse = 1.0f / s;
    for (int64_t i = 0; i < k; i++) x[i] = (code8(rintf(x[i] * inverse) + zero) - zero) * s;
}

/* SDNQ's. */
static void least_row(float *x, int64_t k, float least, float most)
{
    const float s = (most - least) / 255.0f, zero = least + 128.0f * s;
    for (int64_t i = 0; i < k && s > 0; i++) x[i] = fmaf(code8(rintf((x[i] - zero) / s)), s, zero);
}

void oq_act_zero_row(oq_act_scale how, float *x, int64_t k)
{
    float least = k > 0 ? x[0] : 0.0f, most = least;
    bool finite = true;
    for (int64_t i = 0; i < k; i++) {
        least = x[i] < least ? x[i] : least;
        most = x[i] > most ? x[i] : most;
        finite &= isfinite(x[i]) != 0;
    }
    if (!finite || !isfinite(most - least))
        for (int64_t i = 0; i < k; i++) x[i] = NAN;
    else if (how == OQ_ACT_DYNAMIC_ZERO)
        whole_zero_row(x, k, least, most);
    else
        least_row(x, k, least, most);
}

void oq_act_quantize_row(const oq_scheme *scheme, float static_scale, const float *x, int64_t k, void *codes,
                         float *scales)
{
    const int64_t run = oq_act_run(scheme->act_scale, k);
    const bool is_mx = oq_act_is_mx(scheme->act_scale);
    const bool is_i8 = scheme->act == &oq_dtype_i8;
    if (scheme->act_scale == OQ_ACT_DYNAMIC_MX_DUAL) {
        dual_row(scheme, x, k, codes, scales);
        return;
    }
    for (int64_t first = 0; first < k; first += run, scales++) {
        const int64_t n = k - first < run ? k - first : run;
        if (is_nvfp4(scheme->act_scale))
            *scales = nvfp4_run(static_scale, x + first, n, (uint8_t *)codes + first);
        else if (is_mx)
            *scales = mx_run(scheme, x + first, n, (uint8_t *)codes + first);
        else if (is_i8)
            *scales = i8_run(scheme->act_scale, static_scale, x + first, n, (int8_t *)codes + first);
        else
            *scales = e4m3_run(scheme->act_scale, static_scale, x + first, n, (uint8_t *)codes + first);
    }
}
