/* format_int4.c -- unsigned codes 0..15 with an f32 scale per group of 32, 64 or 128 columns of a row: symmetric
 * (code - 8) * scale, or with a zero point (code - zero) * scale. */
#include "format/format_group.h"

#include <math.h>
#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"
#include "format/format_scaled.h"

static const oq_group_traits traits = {.table = oq_int4_table, .scale_bytes = sizeof(float), .zero_bytes = 1};

static size_t int4_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    return oq_group_plane_bytes(f, &traits, plane, n, k);
}

static void int4_piece(const oq_format *f, oq_group_piece *out, const oq_planes *src, int64_t row,
                       int64_t first, int64_t count, int64_t n, int64_t k)
{
    (void)n;
    const int n_scales = oq_group_piece_begin(f, &traits, out, src, row, first, count, k);
    const int64_t at = row * oq_ceil_div(k, f->block_k) + first / f->block_k;
    const float *const scale = (const float *)src->plane[OQ_PLANE_SCALE] + at;
    const uint8_t *const zero = src->plane[OQ_PLANE_ZERO];
    for (int i = 0; i < n_scales; i++) {
        out->scale[i] = scale[i];
        out->offset[i] = zero ? (float)zero[at + i] : 8.0f;
    }
}

/* code = rne(x * inverse) + zero within 0..15; no product is beyond 16. 1.5 * 2^23 has unit 1: adding it rounds. */
static void encode_codes(uint8_t *restrict codes, const float *x, int64_t count, float inverse, float zero)
{
    const float magic = 0x1.8p23f;
    const int32_t add = (int32_t)zero - (int32_t)oq_f32_bits(magic);
    for (int64_t i = 0; i < count; i++) {
        int32_t q = (int32_t)oq_f32_bits(x[i] * inverse + magic) + add;
        q = q > 15 ? 15 : q;
        codes[i] = (uint8_t)(q < 0 ? 0 : q);
    }
}

/* The number of largest magnitude becomes code 0, that is -8: its sign goes into the scale, and all sixteen codes are
 * used. */
static void symmetric_group(const oq_format *f, const oq_planes_mut *dst, int64_t group, uint8_t *codes,
                            const float *x, int64_t count)
{
    (void)f;
    float top = 0.0f;
    for (int64_t i = 0; i < count; i++)
        if (fabsf(x[i]) > fabsf(top)) top = x[i];
    const float amax = oq_amax(x, 1, count, count);
    const float scale = top / -8.0f, inverse = -8.0f / top;
    const bool none = amax != amax || !isfinite(inverse);
    memset(codes, 8, (size_t)count);
    ((float *)dst->plane[OQ_PLANE_SCALE])[group] = amax != amax ? amax : none ? 0.0f : scale;
    if (!none) encode_codes(codes, x, count, inverse, 8.0f);
}

/* The range from the smallest to the largest number, zero within it, in 15 steps; zero itself is a code. */
static void zero_group(const oq_format *f, const oq_planes_mut *dst, int64_t group, uint8_t *codes,
                       const float *x, int64_t count)
{
    (void)f;
    const float amax = oq_amax(x, 1, count, count);
    float low = 0.0f, high = 0.0f;
    for (int64_t i = 0; i < count; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    const float scale = high / 15.0f - low / 15.0f, inverse = 1.0f / scale;
    const bool none = amax != amax || !isfinite(inverse);
    const float zero = none ? 0.0f : fminf(rintf(-low * inverse), 15.0f);
    ((float *)dst->plane[OQ_PLANE_SCALE])[group] = amax != amax ? amax : none ? 0.0f : scale;
    ((uint8_t *)dst->plane[OQ_PLANE_ZERO])[group] = (uint8_t)zero;
    memset(codes, 0, (size_t)count);
    if (!none) encode_codes(codes, x, count, inverse, zero);
}

static void symmetric_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    oq_group_encode(f, &traits, dst, src, n, k, symmetric_group);
}

static void zero_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    oq_group_encode(f, &traits, dst, src, n, k, zero_group);
}

#define INT4(label, group, more_planes, encoder)                                                             \
    {                                                                                                        \
        .name = label, .kernel_name = "int4",                                                                \
        .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE | (more_planes), .block_n = 1,                  \
        .block_k = group, .plane_bytes = int4_plane_bytes, .decode_row = oq_span_decode_row,                 \
        .decode_span = oq_group_decode_span, .piece = int4_piece, .encode = encoder                          \
    }

const oq_format oq_format_int4_g32 = INT4("int4_g32", 32, 0u, symmetric_encode);
const oq_format oq_format_int4_g64 = INT4("int4_g64", 64, 0u, symmetric_encode);
const oq_format oq_format_int4_g128 = INT4("int4_g128", 128, 0u, symmetric_encode);
const oq_format oq_format_int4z_g32 = INT4("int4z_g32", 32, 1u << OQ_PLANE_ZERO, zero_encode);
const oq_format oq_format_int4z_g64 = INT4("int4z_g64", 64, 1u << OQ_PLANE_ZERO, zero_encode);
const oq_format oq_format_int4z_g128 = INT4("int4z_g128", 128, 1u << OQ_PLANE_ZERO, zero_encode);
