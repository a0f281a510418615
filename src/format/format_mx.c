/* format_mx.c -- OCP microscaling: e4m3 or e2m1 codes with a power of two per 32 columns of a row. */
#include "format/format_group.h"

#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"
#include "format/format_scaled.h"

static const oq_group_traits mx8 = {.table = NULL, .scale_bytes = 1},
                             mx4 = {.table = oq_e2m1_table, .scale_bytes = 1};

static const oq_group_traits *traits(const oq_format *f)
{
    return f == &oq_format_mxfp8 ? &mx8 : &mx4;
}

static size_t mx_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    return oq_group_plane_bytes(f, traits(f), plane, n, k);
}

static void mx_piece(const oq_format *f, oq_group_piece *out, const oq_planes *src, int64_t row,
                     int64_t first, int64_t count, int64_t n, int64_t k)
{
    (void)n;
    const int n_scales = oq_group_piece_begin(f, traits(f), out, src, row, first, count, k);
    const uint8_t *const scale = (const uint8_t *)src->plane[OQ_PLANE_SCALE] +
                                 row * oq_ceil_div(k, OQ_ACT_MX_GROUP) + first / OQ_ACT_MX_GROUP;
    for (int i = 0; i < n_scales; i++) out->scale[i] = oq_e8m0_to_f32(scale[i]);
}

static void mx_encode_group(const oq_planes_mut *dst, int64_t group, uint8_t *codes, const float *x,
                            int64_t count, oq_e8m0_rule rule, const oq_dtype *code)
{
    float scaled[OQ_ACT_MX_GROUP];
    const uint8_t byte = oq_e8m0_choose(oq_amax(x, 1, count, count), rule);
    ((uint8_t *)dst->plane[OQ_PLANE_SCALE])[group] = byte;
    memset(codes, 0, (size_t)count);
    if (byte == 255) return;
    for (int64_t i = 0; i < count; i++) scaled[i] = x[i] * oq_e8m0_inverse(byte);
    code->from_f32(codes, scaled, (size_t)count);
}

static void mxfp8_group(const oq_format *f, const oq_planes_mut *dst, int64_t group, uint8_t *codes,
                        const float *x, int64_t count)
{
    (void)f;
    mx_encode_group(dst, group, codes, x, count, oq_e8m0_e4m3_ceil, &oq_dtype_f8_e4m3);
}

static void mxfp4_group(const oq_format *f, const oq_planes_mut *dst, int64_t group, uint8_t *codes,
                        const float *x, int64_t count)
{
    const oq_e8m0_rule rule = f == &oq_format_mxfp4 ? oq_e8m0_e2m1_floor : oq_e8m0_e2m1_q725;
    mx_encode_group(dst, group, codes, x, count, rule, &oq_dtype_f4_e2m1);
}

static void mxfp8_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    oq_group_encode(f, &mx8, dst, src, n, k, mxfp8_group);
}

static void mxfp4_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    oq_group_encode(f, &mx4, dst, src, n, k, mxfp4_group);
}

#define MX_FORMAT(label, word, encoder)                                                                      \
    {                                                                                                        \
        .name = label, .kernel_name = word, .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,            \
        .block_n = 1, .block_k = OQ_ACT_MX_GROUP, .plane_bytes = mx_plane_bytes,                             \
        .decode_row = oq_span_decode_row, .decode_span = oq_group_decode_span, .piece = mx_piece,            \
        .encode = encoder                                                                                    \
    }

const oq_format oq_format_mxfp8 = MX_FORMAT("mxfp8", "mxfp8", mxfp8_encode);
const oq_format oq_format_mxfp4 = MX_FORMAT("mxfp4", "mxfp4", mxfp4_encode);
const oq_format oq_format_mxfp4_q725 = MX_FORMAT("mxfp4_q725", "mxfp4", mxfp4_encode);
