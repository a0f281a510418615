/* format_mx.c -- OCP microscaling: e4m3 or e2m1 codes with a power of two per 32 columns of a row; dual: e2m1 with an f32
 * scale per 512 columns besides. */
#include "format/format_group.h"

#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"
#include "format/format_scaled.h"

static const oq_group_traits mx8 = {.table = NULL, .scale_bytes = 1},
                             mx4 = {.table = oq_e2m1_table, .scale_bytes = 1};

/* The f32 scales of a dual format, as a plane of scales per 512 columns. */
static const oq_group_traits dual_scales = {.scale_bytes = sizeof(float)};
static const oq_format oq_format_dual_scales = {.planes = 1u << OQ_PLANE_SCALE, .block_k = OQ_ACT_DUAL_GROUP};

typedef struct dual_planes { /* what the walk over groups hands on: the planes first */
    oq_planes_mut planes;
    float *dual;
    int64_t groups, blocks; /* of a row */
} dual_planes;

static const oq_group_traits *traits(const oq_format *f)
{
    return f == &oq_format_mxfp8 ? &mx8 : &mx4;
}

static bool is_dual(const oq_format *f)
{
    return f == &oq_format_mxfp4_dual;
}

static size_t mx_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    if (is_dual(f) && plane == OQ_PLANE_GLOBAL && n > 0 && k > 0)
        return oq_group_plane_bytes(&oq_format_dual_scales, &dual_scales, OQ_PLANE_SCALE, n, k);
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
    if (!is_dual(f)) return;
    const float *const dual =
        (const float *)src->plane[OQ_PLANE_GLOBAL] + row * oq_ceil_div(k, OQ_ACT_DUAL_GROUP);
    for (int i = 0; i < n_scales; i++)
        out->scale[i] *= dual[(first / OQ_ACT_MX_GROUP + i) * OQ_ACT_MX_GROUP / OQ_ACT_DUAL_GROUP];
}

static void mx_encode_group(const oq_planes_mut *dst, int64_t group, uint8_t *codes, const float *x,
                            int64_t count, oq_e8m0_rule rule, const oq_dtype *code)
{
    float scaled[OQ_ACT_MX_GROUP];
    const uint8_t byte = oq_e8m0_choose(oq_amax(x, 1, count, count), rule);
    ((uint8_t *)dst->plane[OQ_PLANE_SCALE])[group] = byte;
    for (int64_t i = 0; i < count; i++) codes[i] = 0;
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

/* Divided by the f32 scale of its 512 columns, which brings their largest number to 6, the largest code. */
static void dual_group(const oq_format *f, const oq_planes_mut *dst, int64_t group, uint8_t *codes,
                       const float *x, int64_t count)
{
    (void)f;
    float scaled[OQ_ACT_MX_GROUP] = {0};
    const dual_planes *const planes = (const dual_planes *)(const void *)dst;
    const int64_t per_row = planes->groups, row = group / per_row,
                  block = group % per_row * OQ_ACT_MX_GROUP / OQ_ACT_DUAL_GROUP;
    const float by = planes->dual[row * planes->blocks + block];
    for (int64_t i = 0; i < count; i++) scaled[i] = x[i] / by;
    mx_encode_group(dst, group, codes, scaled, count, oq_e8m0_e2m1_floor, &oq_dtype_f4_e2m1);
}

float oq_dual_scale(const float *x, int64_t count)
{
    const float amax = oq_amax(x, 1, count, count), scale = amax / 6.0f;
    return scale < 0x1p-100f ? 1.0f : scale;
}

static void dual_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    dual_planes planes = {.planes = *dst,
                          .dual = dst->plane[OQ_PLANE_GLOBAL],
                          .groups = oq_ceil_div(k, OQ_ACT_MX_GROUP),
                          .blocks = oq_ceil_div(k, OQ_ACT_DUAL_GROUP)};
    for (int64_t r = 0; r < n; r++)
        for (int64_t b = 0; b < planes.blocks; b++) {
            const int64_t first = b * OQ_ACT_DUAL_GROUP;
            planes.dual[r * planes.blocks + b] =
                oq_dual_scale(src + r * k + first, oq_min_i64(OQ_ACT_DUAL_GROUP, k - first));
        }
    oq_group_encode(f, &mx4, &planes.planes, src, n, k, dual_group);
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

const oq_format oq_format_mxfp4_dual = {.name = "mxfp4_dual",
                                        .kernel_name = "mxfp4",
                                        .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE |
                                                  1u << OQ_PLANE_GLOBAL,
                                        .block_n = 1,
                                        .block_k = OQ_ACT_MX_GROUP,
                                        .plane_bytes = mx_plane_bytes,
                                        .decode_row = oq_span_decode_row,
                                        .decode_span = oq_group_decode_span,
                                        .piece = mx_piece,
                                        .encode = dual_encode};
