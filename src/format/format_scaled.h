/* format_scaled.h -- shared by the formats whose weight is one 8 bit code times one f32 scale of its block. */
#ifndef OQ_FORMAT_FORMAT_SCALED_H
#define OQ_FORMAT_FORMAT_SCALED_H

#include "format/format.h"

size_t oq_scaled_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k);
void   oq_scaled_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                             int64_t count, int64_t n, int64_t k);
/* decode_row by the format's own decode_span. */
void oq_span_decode_row(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t n, int64_t k);

/* Largest |x| of rows x cols values, rows `ld` apart; NaN if any is not finite. */
float oq_amax(const float *x, int64_t rows, int64_t cols, int64_t ld);

/* The f32 scale of up to 512 numbers of a dual format: their largest magnitude becomes 6. NaN where one is not finite. */
float oq_dual_scale(const float *x, int64_t count);

/* Codes of rows x cols weights (code rows `ld` apart too) with one scale, which is returned. */
typedef float (*oq_scaled_encode_fn)(void *codes, const float *w, int64_t rows, int64_t cols, int64_t ld);
/* Calls `encode_block` for each block of W. */
void oq_scaled_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k,
                      oq_scaled_encode_fn encode_block);

/* code[i] = clamp(rne(x[i] * multiplier), -127, 127); zeros for a multiplier that is not finite. Products stay below
 * 2^21, as they do when the multiplier is 127 / amax. */
void oq_i8_row_from_f32(void *codes, const float *x, int64_t n, float multiplier);

#endif
