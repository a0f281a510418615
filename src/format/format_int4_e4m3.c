/* format_int4_e4m3.c -- codes of four bits under an f32 scale per 128 columns whose products are rounded to e4m3 under the
 * f32 scale of the whole tensor: weights that were quantized twice, for machines that multiply in e4m3. */
#include "format/format_group.h"

#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"

enum { GROUP = 128 };
static const oq_group_traits traits = {
    .table = oq_int4_table, .scale_bytes = sizeof(float), .global_bytes = sizeof(float)};

static size_t plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    return oq_group_plane_bytes(f, &traits, plane, n, k);
}

/* Columns of one group: value = e4m3((code - 8) * scale / global) * global. */
static void decode_run(float *dst, int64_t count, float scale, float global)
{
    uint8_t codes[GROUP];
    for (int64_t i = 0; i < count; i++) dst[i] = (dst[i] - 8.0f) * scale / global;
    oq_e4m3_row_from_f32(codes, dst, (size_t)count);
    oq_e4m3_row_to_f32(dst, codes, (size_t)count);
    for (int64_t i = 0; i < count; i++) dst[i] *= global;
}

static void decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                        int64_t count, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, GROUP);
    const uint8_t *const codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * (k / 2 + (k & 1));
    const float *const scale = (const float *)src->plane[OQ_PLANE_SCALE] + row * groups;
    float global;
    (void)f, (void)n;
    memcpy(&global, src->plane[OQ_PLANE_GLOBAL], sizeof global);
    for (int64_t at = first; at < first + count;) {
        const int64_t end = oq_min_i64((at / GROUP + 1) * GROUP, first + count);
        oq_code4_to_f32(dst + at - first, codes, at, end - at, oq_int4_table);
        decode_run(dst + at - first, end - at, scale[at / GROUP], global);
        at = end;
    }
}

const oq_format oq_format_int4_e4m3_g128 = {.name = "int4_e4m3_g128",
                                            .kernel_name = "int4",
                                            .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE |
                                                      1u << OQ_PLANE_GLOBAL,
                                            .block_n = 1,
                                            .block_k = GROUP,
                                            .plane_bytes = plane_bytes,
                                            .decode_row = oq_span_decode_row,
                                            .decode_span = decode_span};
