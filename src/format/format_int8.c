/* format_int8.c -- symmetric int8 weights with an f32 scale for the tensor or for each row. */
#include "format/format_scaled.h"

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
