/* format_int_float.c -- unsigned codes of four bits with an f32 scale and an f32 zero point per group of 32, 64 or 128
 * columns of a row: (code - 8) * scale + zero, or code * scale + zero. The product is rounded before the sum. */
#include "format/format_group.h"

#include <math.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/format_scaled.h"

static const oq_group_traits traits = {
    .table = oq_int4_table, .scale_bytes = sizeof(float), .zero_bytes = sizeof(float)};

enum { TOP = 15 }; /* largest code */

static size_t plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    return oq_group_plane_bytes(f, &traits, plane, n, k);
}

static void decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                        int64_t count, int64_t k, float middle)
{
    const int64_t groups = k / f->block_k + (k % f->block_k != 0);
    const uint8_t *const codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * (k / 2 + (k & 1));
    const float *const scale = (const float *)src->plane[OQ_PLANE_SCALE] + row * groups;
    const float *const zero = (const float *)src->plane[OQ_PLANE_ZERO] + row * groups;
    oq_code4_to_f32(dst, codes, first, count, oq_int4_table);
    for (int64_t i = first; i < first + count;) {
        const int64_t g = i / f->block_k, end = oq_min_i64((g + 1) * f->block_k, first + count);
        for (const float by = scale[g], from = zero[g]; i < end; i++) {
            const float product = (dst[i - first] - middle) * by;
            dst[i - first] = product + from;
        }
    }
}

/* The range from the smallest to the largest number in 15 steps. Returns the scale. */
static float encode_group(uint8_t *codes, float *zero, const float *x, int64_t count, float middle)
{
    float low = x[0], high = x[0];
    const float amax = oq_amax(x, 1, count, count);
    for (int64_t i = 0; i < count; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    const float scale = high / TOP - low / TOP;
    for (int64_t i = 0; i < count; i++) codes[i] = 0;
    *zero = amax != amax ? amax : low + middle * scale;
    if (amax != amax) return amax;
    for (int64_t i = 0; scale > 0 && i < count; i++)
        codes[i] = (uint8_t)fminf(fmaxf(rintf((x[i] - low) / scale), 0.0f), (float)TOP);
    return scale;
}

static void encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k,
                   float middle)
{
    uint8_t codes[128];
    float *scale = dst->plane[OQ_PLANE_SCALE], *zero = dst->plane[OQ_PLANE_ZERO];
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c += f->block_k) {
            const int64_t count = oq_min_i64(f->block_k, k - c);
            *scale++ = encode_group(codes, zero++, src + r * k + c, count, middle);
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

#define FORMAT(word, group)                                                                                  \
    const oq_format oq_format_##word##_g##group = {.name = #word "_g" #group,                                \
                                                   .kernel_name = #word,                                     \
                                                   .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE |    \
                                                             1u << OQ_PLANE_ZERO,                            \
                                                   .block_n = 1,                                             \
                                                   .block_k = group,                                         \
                                                   .plane_bytes = plane_bytes,                               \
                                                   .decode_row = oq_span_decode_row,                         \
                                                   .decode_span = word##_decode_span,                        \
                                                   .encode = word##_encode};
FORMAT(int4f, 32)
FORMAT(int4f, 64)
FORMAT(int4f, 128)
FORMAT(uint4f, 32)
FORMAT(uint4f, 64)
FORMAT(uint4f, 128)

const oq_format *oq_format_int4_float(int group, bool middle)
{
    static const oq_format *const formats[][2] = {{&oq_format_uint4f_g32, &oq_format_int4f_g32},
                                                  {&oq_format_uint4f_g64, &oq_format_int4f_g64},
                                                  {&oq_format_uint4f_g128, &oq_format_int4f_g128}};
    for (int i = 0; i < 3; i++)
        if (formats[i][0]->block_k == group) return formats[i][middle];
    return NULL;
}
