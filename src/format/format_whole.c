/* format_whole.c -- codes of four or six bits that stand for whole numbers of eight bits: a number per code times an e4m3
 * scale per group of columns is rounded to -127 .. 127 before the f32 scale of the row. What multiplies it multiplies those whole
 * numbers. */
#include "format/format_scaled.h"

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"

#include <string.h>

enum { CODES = 16 };

/* Two codes a byte; of six bits the upper two stand behind all of these, four a byte. */
static int64_t low_bytes(int64_t k)
{
    return k / 2 + (k & 1);
}

static int64_t row_bytes(int bits, int64_t k)
{
    return low_bytes(k) + (bits == 6 ? oq_ceil_div(k, 4) : 0);
}

static size_t plane_bytes(const oq_format *f, int bits, oq_plane plane, int64_t n, int64_t k)
{
    size_t bytes = 0;
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    if (plane == OQ_PLANE_ZERO) return CODES * sizeof(float);
    if (k > INT64_MAX / 2) return SIZE_MAX;
    const int64_t row = plane == OQ_PLANE_DATA    ? row_bytes(bits, k)
                        : plane == OQ_PLANE_SCALE ? oq_ceil_div(k, f->block_k)
                                                  : (int64_t)sizeof(float);
    return oq_size_mul((size_t)n, (size_t)row, &bytes) ? bytes : SIZE_MAX;
}

static float six_bits(const uint8_t *row, int64_t i, int64_t k)
{
    const int low = row[i / 2] >> (i & 1) * 4 & 15, high = row[low_bytes(k) + i / 4] >> (i & 3) * 2 & 3;
    return (float)((high << 4 | low) - 32);
}

/* x[count] of one group: rounded to nearest even within +-127, under the row's scale. 1.5 * 2^23 has unit 1: adding it rounds. */
static void round_run(float *x, int64_t count, float scale, float channel)
{
    const float magic = 0x1.8p23f;
    for (int64_t i = 0; i < count; i++) {
        float y = x[i] * scale;
        y = y > 127.0f ? 127.0f : y;
        y = y < -127.0f ? -127.0f : y;
        x[i] = ((y + magic) - magic) * channel;
    }
}

static void decode_span(const oq_format *f, int bits, float *dst, const oq_planes *src, int64_t row,
                        int64_t first, int64_t count, int64_t k)
{
    const uint8_t *const codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * row_bytes(bits, k);
    const uint8_t *const scales =
        (const uint8_t *)src->plane[OQ_PLANE_SCALE] + row * oq_ceil_div(k, f->block_k);
    const float channel = ((const float *)src->plane[OQ_PLANE_GLOBAL])[row];
    for (int64_t at = first; at < first + count;) {
        const int64_t end = oq_min_i64((at / f->block_k + 1) * f->block_k, first + count);
        float *const x = dst + at - first;
        if (bits == 4)
            oq_code4_to_f32(x, codes, at, end - at, src->plane[OQ_PLANE_ZERO]);
        else
            for (int64_t i = at; i < end; i++) x[i - at] = six_bits(codes, i, k);
        round_run(x, end - at, oq_e4m3_to_f32(scales[at / f->block_k]), channel);
        at = end;
    }
}

#define WIDTH(bits)                                                                                          \
    static size_t plane_bytes##bits(const oq_format *f, oq_plane plane, int64_t n, int64_t k)                \
    {                                                                                                        \
        return plane_bytes(f, bits, plane, n, k);                                                            \
    }                                                                                                        \
    static void decode_span##bits(const oq_format *f, float *dst, const oq_planes *src, int64_t row,         \
                                  int64_t first, int64_t count, int64_t n, int64_t k)                        \
    {                                                                                                        \
        (void)n;                                                                                             \
        decode_span(f, bits, dst, src, row, first, count, k);                                                \
    }
WIDTH(4)
WIDTH(6)

#define WHOLE(bits, label, group, more_planes)                                                               \
    {                                                                                                        \
        .name = label, .kernel_name = "whole" #bits,                                                         \
        .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE | 1u << OQ_PLANE_GLOBAL | (more_planes),        \
        .block_n = 1, .block_k = group, .plane_bytes = plane_bytes##bits, .decode_row = oq_span_decode_row,  \
        .decode_span = decode_span##bits                                                                     \
    }
#define GROUP(g)                                                                                             \
    const oq_format oq_format_whole4_g##g = WHOLE(4, "whole4_g" #g, g, 1u << OQ_PLANE_ZERO);                 \
    const oq_format oq_format_whole6_g##g = WHOLE(6, "whole6_g" #g, g, 0u);
GROUP(16)
GROUP(32)
GROUP(64)
GROUP(128)

const oq_format *oq_format_whole(int64_t bits, int64_t group)
{
    static const oq_format *const all[] = {
        &oq_format_whole4_g16, &oq_format_whole4_g32, &oq_format_whole4_g64, &oq_format_whole4_g128,
        &oq_format_whole6_g16, &oq_format_whole6_g32, &oq_format_whole6_g64, &oq_format_whole6_g128};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->block_k == group && (all[i]->planes >> OQ_PLANE_ZERO & 1u) == (bits == 4)) return all[i];
    return NULL;
}
