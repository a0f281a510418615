/* format_int8.c -- symmetric int8 weights with an f32 scale for the tensor or for each row, or with each row's largest
 * number (LLM.int8). */
#include "format/format_scaled.h"

#include "base/size.h"
#include "format/float8.h"

/* s = amax / 127, code = rne(w * (127 / amax)) in [-127, 127]; all zero (or so small that 127 / amax
 * overflows): codes 0, scale 0. */
static float encode_block(void *codes, const float *w, int64_t rows, int64_t cols, int64_t ld)
{
    const float amax = oq_amax(w, rows, cols, ld);
    const float multiplier = 127.0f / amax;
    for (int64_t r = 0; r < rows; r++)
        oq_i8_row_from_f32((char *)codes + r * ld, w + r * ld, cols, multiplier);
    if (amax != amax) return amax;
    return oq_f32_bits(multiplier) >= 0x7f800000u ? 0.0f : amax / 127.0f;
}

static void int8_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    oq_scaled_encode(f, dst, src, n, k, encode_block);
}

const oq_format oq_format_int8_tensor = {.name = "int8_tensor",
                                         .kernel_name = "i8",
                                         .element = &oq_dtype_i8,
                                         .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                         .plane_bytes = oq_scaled_plane_bytes,
                                         .decode_row = oq_span_decode_row,
                                         .decode_span = oq_scaled_decode_span,
                                         .encode = int8_encode};

const oq_format oq_format_int8_channel = {.name = "int8_channel",
                                          .kernel_name = "i8",
                                          .element = &oq_dtype_i8,
                                          .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                          .block_n = 1,
                                          .plane_bytes = oq_scaled_plane_bytes,
                                          .decode_row = oq_span_decode_row,
                                          .decode_span = oq_scaled_decode_span,
                                          .encode = int8_encode};

/* bitsandbytes' order: the two roundings of (code * amax) * (1 / 127) are part of the value. */
static void scb_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                            int64_t count, int64_t n, int64_t k)
{
    (void)f, (void)n;
    const int8_t *const codes = (const int8_t *)src->plane[OQ_PLANE_DATA] + row * k + first;
    const float amax = ((const float *)src->plane[OQ_PLANE_SCALE])[row];
    for (int64_t i = 0; i < count; i++) {
        const float product = (float)codes[i] * amax;
        dst[i] = product * (1.0f / 127.0f);
    }
}

static size_t scb_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    size_t bytes = 0;
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    return oq_size_mul((size_t)n, plane == OQ_PLANE_DATA ? (size_t)k : sizeof(float), &bytes) ? bytes
                                                                                              : SIZE_MAX;
}

static void scb_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    (void)f;
    for (int64_t r = 0; r < n; r++) {
        const float amax = oq_amax(src + r * k, 1, k, k);
        oq_i8_row_from_f32((char *)dst->plane[OQ_PLANE_DATA] + r * k, src + r * k, k, 127.0f / amax);
        ((float *)dst->plane[OQ_PLANE_SCALE])[r] = amax;
    }
}

const oq_format oq_format_int8_scb = {.name = "int8_scb",
                                      .kernel_name = "i8scb",
                                      .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                      .block_n = 1,
                                      .plane_bytes = scb_plane_bytes,
                                      .decode_row = oq_span_decode_row,
                                      .decode_span = scb_decode_span,
                                      .encode = scb_encode};
