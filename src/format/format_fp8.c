/* format_fp8.c -- e4m3 weights with an f32 scale for the tensor, for each row, for each block of 128 x
 * 128, or for 128 columns of a row. */
#include "format/format_scaled.h"

#include <float.h>

#include "format/float8.h"

/* codes = e4m3(w * multiplier) row by row; zeros when the scale says that the block holds no numbers. */
static void encode_rows(uint8_t *codes, const float *w, int64_t rows, int64_t cols, int64_t ld,
                        float multiplier)
{
    enum { CHUNK = 256 };
    float scaled[CHUNK];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c += CHUNK) {
            const int64_t n = cols - c < CHUNK ? cols - c : CHUNK;
            for (int64_t i = 0; i < n; i++) scaled[i] = w[r * ld + c + i] * multiplier;
            oq_e4m3_row_from_f32(codes + r * ld + c, scaled, (size_t)n);
        }
}

static float encode_nothing(uint8_t *codes, int64_t rows, int64_t cols, int64_t ld, float scale)
{
    for (int64_t r = 0; r < rows; r++) memset(codes + r * ld, 0, (size_t)cols);
    return scale;
}

/* Per tensor and per channel: s = amax / 448, code = e4m3(w * (1 / s)). All zero (or so small that 1/s
 * overflows): s = 1 and codes 0. */
static float encode_block(void *codes, const float *w, int64_t rows, int64_t cols, int64_t ld)
{
    const float amax = oq_amax(w, rows, cols, ld);
    const float scale = amax / OQ_E4M3_MAX;
    if (amax != amax) return encode_nothing(codes, rows, cols, ld, amax);
    if (scale < FLT_MIN) return encode_nothing(codes, rows, cols, ld, 1.0f);
    encode_rows(codes, w, rows, cols, ld, 1.0f / scale);
    return scale;
}

/* Blocks of 128 x 128: m = 448 / max(amax, 1e-12), code = e4m3(w * m), scale 1 / m. */
static float encode_block128(void *codes, const float *w, int64_t rows, int64_t cols, int64_t ld)
{
    const float amax = oq_amax(w, rows, cols, ld);
    if (amax != amax) return encode_nothing(codes, rows, cols, ld, amax);
    const float multiplier = OQ_E4M3_MAX / (amax > 1e-12f ? amax : 1e-12f);
    encode_rows(codes, w, rows, cols, ld, multiplier);
    return 1.0f / multiplier;
}

static void fp8_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    oq_scaled_encode(f, dst, src, n, k, encode_block);
}

static void fp8_encode128(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    oq_scaled_encode(f, dst, src, n, k, encode_block128);
}

const oq_format oq_format_fp8_e4m3_tensor = {.name = "fp8_e4m3_tensor",
                                             .kernel_name = "fp8",
                                             .element = &oq_dtype_f8_e4m3,
                                             .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                             .plane_bytes = oq_scaled_plane_bytes,
                                             .decode_row = oq_span_decode_row,
                                             .decode_span = oq_scaled_decode_span,
                                             .encode = fp8_encode};

const oq_format oq_format_fp8_e4m3_channel = {.name = "fp8_e4m3_channel",
                                              .kernel_name = "fp8",
                                              .element = &oq_dtype_f8_e4m3,
                                              .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                              .block_n = 1,
                                              .plane_bytes = oq_scaled_plane_bytes,
                                              .decode_row = oq_span_decode_row,
                                              .decode_span = oq_scaled_decode_span,
                                              .encode = fp8_encode};

const oq_format oq_format_fp8_e4m3_block128 = {.name = "fp8_e4m3_block128",
                                               .kernel_name = "fp8",
                                               .element = &oq_dtype_f8_e4m3,
                                               .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                               .block_n = 128,
                                               .block_k = 128,
                                               .plane_bytes = oq_scaled_plane_bytes,
                                               .decode_row = oq_span_decode_row,
                                               .decode_span = oq_scaled_decode_span,
                                               .encode = fp8_encode128};

/* 128 x 128 blocks of parts whose rows do not fill them, as one matrix: each row repeats its block's scales. */
const oq_format oq_format_fp8_e4m3_group128 = {.name = "fp8_e4m3_group128",
                                               .kernel_name = "fp8",
                                               .element = &oq_dtype_f8_e4m3,
                                               .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                               .block_n = 1,
                                               .block_k = 128,
                                               .plane_bytes = oq_scaled_plane_bytes,
                                               .decode_row = oq_span_decode_row,
                                               .decode_span = oq_scaled_decode_span,
                                               .encode = fp8_encode128};
