/* format_int_float.c -- unsigned codes of four bits with a scale and a zero point, both f32, f16 or bf16, per group of 32,
 * 64 or 128 columns of a row: (code - 8) * scale + zero, or code * scale + zero. The product is rounded before the sum. */
#include "format/format_group.h"

#include <math.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/format_scaled.h"

static const oq_group_traits traits = {
    .table = oq_int4_table, .scale_bytes = sizeof(float), .zero_bytes = sizeof(float)};
static const oq_group_traits traits16 = {
    .table = oq_int4_table, .scale_bytes = sizeof(uint16_t), .zero_bytes = sizeof(uint16_t)};

enum { TOP = 15 }; /* largest code */

static size_t plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    return oq_group_plane_bytes(f, f->scale_type ? &traits16 : &traits, plane, n, k);
}

static float number_at(const oq_format *f, const void *plane, int64_t i)
{
    float x;
    const oq_dtype *const type = f->scale_type ? f->scale_type : &oq_dtype_f32;
    type->to_f32(&x, (const char *)plane + (size_t)i * type->bytes, 1);
    return x;
}

static void decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                        int64_t count, int64_t k, float middle)
{
    const int64_t groups = k / f->block_k + (k % f->block_k != 0);
    const uint8_t *const codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * (k / 2 + (k & 1));
    oq_code4_to_f32(dst, codes, first, count, oq_int4_table);
    for (int64_t i = first; i < first + count;) {
        const int64_t g = i / f->block_k, end = oq_min_i64((g + 1) * f->block_k, first + count);
        const float by = number_at(f, src->plane[OQ_PLANE_SCALE], row * groups + g);
        const float from = number_at(f, src->plane[OQ_PLANE_ZERO], row * groups + g);
        for (; i < end; i++) {
            const float product = (dst[i - first] - middle) * by;
            dst[i - first] = product + from;
        }
    }
}

/* As the plane holds it. */
static float put_number(const oq_format *f, void *plane, int64_t i, float x)
{
    const oq_dtype *const type = f->scale_type ? f->scale_type : &oq_dtype_f32;
    type->from_f32((char *)plane + (size_t)i * type->bytes, &x, 1);
    return number_at(f, plane, i);
}

/* The range from the smallest to the largest number in 15 steps. g: the group's number. */
static void encode_group(const oq_format *f, oq_planes_mut *dst, int64_t g, uint8_t *codes, const float *x,
                         int64_t count, float middle)
{
    float low = x[0], high = x[0];
    const float amax = oq_amax(x, 1, count, count);
    for (int64_t i = 0; i < count; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    const float step = amax != amax ? amax : high / TOP - low / TOP;
    const float scale = put_number(f, dst->plane[OQ_PLANE_SCALE], g, step);
    const float zero =
        put_number(f, dst->plane[OQ_PLANE_ZERO], g, amax != amax ? amax : low + middle * scale);
    if (f->scale_type) low = zero - middle * scale;
    for (int64_t i = 0; i < count; i++) codes[i] = 0;
    for (int64_t i = 0; scale > 0 && i < count; i++)
        codes[i] = (uint8_t)fminf(fmaxf(rintf((x[i] - low) / scale), 0.0f), (float)TOP);
}

static void encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k,
                   float middle)
{
    uint8_t codes[128];
    int64_t group = 0;
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c += f->block_k) {
            const int64_t count = oq_min_i64(f->block_k, k - c);
            encode_group(f, dst, group++, codes, src + r * k + c, count, middle);
            oq_code4_pack((uint8_t *)dst->plane[OQ_PLANE_DATA] + r * (k / 2 + (k & 1)), c, codes, count);
        }
}

#define KIND(word, middle)                                                                                   \
    static void word##_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row,        \
                                   int64_t first, int64_t count, int64_t n, int64_t k)                       \
    {                                                                                                        \
        (void)n;                                                                                             \
        decode_span(f, dst, src, row, first, count, k, middle);                                              \
    }                                                                                                        \
    static void word##_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n,           \
                              int64_t k)                                                                     \
    {                                                                                                        \
        encode(f, dst, src, n, k, middle);                                                                   \
    }
KIND(int4f, 8.0f)
KIND(uint4f, 0.0f)

#define FORMAT(word, group, end, type)                                                                       \
    const oq_format oq_format_##word##_g##group##end = {                                                     \
        .name = #word "_g" #group #end,                                                                      \
        .kernel_name = #word,                                                                                \
        .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE | 1u << OQ_PLANE_ZERO,                          \
        .block_n = 1,                                                                                        \
        .block_k = group,                                                                                    \
        .scale_type = type,                                                                                  \
        .plane_bytes = plane_bytes,                                                                          \
        .decode_row = oq_span_decode_row,                                                                    \
        .decode_span = word##_decode_span,                                                                   \
        .encode = word##_encode};
#define FORMATS(word, group)                                                                                 \
    FORMAT(word, group, , NULL)                                                                              \
    FORMAT(word, group, _f16, &oq_dtype_f16) FORMAT(word, group, _bf16, &oq_dtype_bf16)

FORMATS(int4f, 32)
FORMATS(int4f, 64)
FORMATS(int4f, 128)
FORMATS(uint4f, 32)
FORMATS(uint4f, 64)
FORMATS(uint4f, 128)
