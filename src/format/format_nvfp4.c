/* format_nvfp4.c -- e2m1 codes with an e4m3 scale per 16 columns of a row and an f32 scale of the tensor, which multiplies
 * or (inverse) divides; one of them, or one per row. */
#include "format/format_group.h"

#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"
#include "format/format_scaled.h"

enum { GROUP = 16 };
static const oq_group_traits traits = {
    .table = oq_e2m1_table, .scale_bytes = 1, .global_bytes = sizeof(float)};

/* Parts of one product that were quantized one by one: each row has its part's scale of the tensor. */
static bool is_rows(const oq_format *f)
{
    return f == &oq_format_nvfp4_rows || f == &oq_format_nvfp4_inverse_rows;
}

static bool is_inverse(const oq_format *f)
{
    return f == &oq_format_nvfp4_inverse || f == &oq_format_nvfp4_inverse_rows;
}

static size_t nvfp4_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    const size_t bytes = oq_group_plane_bytes(f, &traits, plane, n, k);
    return plane == OQ_PLANE_GLOBAL && bytes && is_rows(f) ? (size_t)n * bytes : bytes;
}

/* The two scales meet first, then the code: what producers do, to the last bit. */
static void nvfp4_piece(const oq_format *f, oq_group_piece *out, const oq_planes *src, int64_t row,
                        int64_t first, int64_t count, int64_t n, int64_t k)
{
    (void)n;
    const int n_scales = oq_group_piece_begin(f, &traits, out, src, row, first, count, k);
    const uint8_t *const scale =
        (const uint8_t *)src->plane[OQ_PLANE_SCALE] + row * oq_ceil_div(k, GROUP) + first / GROUP;
    float global;
    memcpy(&global, (const float *)src->plane[OQ_PLANE_GLOBAL] + (is_rows(f) ? row : 0), sizeof global);
    oq_e4m3_row_to_f32(out->scale, scale, (size_t)n_scales);
    if (is_inverse(f))
        for (int i = 0; i < n_scales; i++) out->scale[i] /= global;
    else
        for (int i = 0; i < n_scales; i++) out->scale[i] *= global;
}

/* A block's scale is at least the smallest there is, so that small blocks are not lost; all zero: scale 0. */
static void encode_group(const oq_format *f, const oq_planes_mut *dst, int64_t group, uint8_t *codes,
                         const float *x, int64_t count)
{
    float global, scaled[GROUP];
    memcpy(&global, dst->plane[OQ_PLANE_GLOBAL], sizeof global);
    const float amax = oq_amax(x, 1, count, count);
    const float wanted = is_inverse(f) ? amax / 6.0f * global : amax / 6.0f / global;
    uint8_t scale = amax > 0 || amax != amax ? oq_e4m3_from_f32(wanted) : 0;
    if (amax > 0 && scale == 0) scale = 1;
    ((uint8_t *)dst->plane[OQ_PLANE_SCALE])[group] = scale;
    memset(codes, 0, (size_t)count);
    const float by = is_inverse(f) ? oq_e4m3_to_f32(scale) / global : oq_e4m3_to_f32(scale) * global;
    if (!(by > 0)) return;
    for (int64_t i = 0; i < count; i++) scaled[i] = x[i] / by;
    oq_dtype_f4_e2m1.from_f32(codes, scaled, (size_t)count);
}

static void nvfp4_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    const float amax = oq_amax(src, n, k, k);
    float global = amax / (6.0f * OQ_E4M3_MAX);
    if (global < 0x1p-100f) global = 1.0f; /* all zero, or too small to have a block scale below it */
    if (is_inverse(f)) global = 1.0f / global;
    for (int64_t r = 0; r < (is_rows(f) ? n : 1); r++)
        memcpy((float *)dst->plane[OQ_PLANE_GLOBAL] + r, &global, sizeof global);
    oq_group_encode(f, &traits, dst, src, n, k, encode_group);
}

#define NVFP4(symbol, label)                                                                                 \
    const oq_format symbol = {.name = label,                                                                 \
                              .kernel_name = "nvfp4",                                                        \
                              .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE | 1u << OQ_PLANE_GLOBAL,  \
                              .block_n = 1,                                                                  \
                              .block_k = GROUP,                                                              \
                              .plane_bytes = nvfp4_plane_bytes,                                              \
                              .decode_row = oq_span_decode_row,                                              \
                              .decode_span = oq_group_decode_span,                                           \
                              .piece = nvfp4_piece,                                                          \
                              .encode = nvfp4_encode}

NVFP4(oq_format_nvfp4, "nvfp4");
NVFP4(oq_format_nvfp4_rows, "nvfp4_rows");
NVFP4(oq_format_nvfp4_inverse, "nvfp4_inverse");
NVFP4(oq_format_nvfp4_inverse_rows, "nvfp4_inverse_rows");
