/* format_scaled.c -- the frame of "code times the scale of its block": sizes, decode, the walk over blocks.
 * Which scale a block gets is each format's own business. */
#include "format/format_scaled.h"

#include "base/size.h"
#include "format/float8.h"

static int64_t block_rows(const oq_format *f, int64_t n)
{
    return f->block_n ? f->block_n : n;
}

static int64_t block_cols(const oq_format *f, int64_t k)
{
    return f->block_k ? f->block_k : k;
}

size_t oq_scaled_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    const bool data = plane == OQ_PLANE_DATA;
    const int64_t rows = data ? n : oq_ceil_div(n, block_rows(f, n));
    const int64_t cols = data ? k : oq_ceil_div(k, block_cols(f, k));
    size_t bytes = 0;
    if (!oq_size_mul((size_t)rows, (size_t)cols, &bytes) ||
        !oq_size_mul(bytes, data ? f->element->bytes : sizeof(float), &bytes))
        return SIZE_MAX;
    return bytes;
}

void oq_scaled_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                           int64_t count, int64_t n, int64_t k)
{
    const int64_t step = block_cols(f, k);
    const char *const codes = (const char *)src->plane[OQ_PLANE_DATA] + row * k + first;
    const float *const scale =
        (const float *)src->plane[OQ_PLANE_SCALE] + row / block_rows(f, n) * oq_ceil_div(k, step);
    f->element->to_f32(dst, codes, (size_t)count);
    for (int64_t c = first; c < first + count;) {
        const int64_t end = oq_min_i64((c / step + 1) * step, first + count);
        const float by = scale[c / step];
        for (; c < end; c++) dst[c - first] *= by;
    }
}

void oq_span_decode_row(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t n,
                        int64_t k)
{
    f->decode_span(f, dst, src, row, 0, k, n, k);
}

float oq_amax(const float *x, int64_t rows, int64_t cols, int64_t ld)
{
    /* Magnitudes compare like their bits; as integers the maximum vectorises and NaN is the largest. */
    int32_t top = 0;
    for (int64_t r = 0; r < rows; r++) {
        const float *const row = x + r * ld;
        for (int64_t c = 0; c < cols; c++) {
            const int32_t magnitude = (int32_t)(oq_f32_bits(row[c]) & 0x7fffffffu);
            top = magnitude > top ? magnitude : top;
        }
    }
    return oq_f32_from_bits(top >= 0x7f800000 ? 0x7fc00000u : (uint32_t)top);
}

void oq_scaled_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k,
                      oq_scaled_encode_fn encode_block)
{
    const int64_t rows = block_rows(f, n), cols = block_cols(f, k);
    float *scale = dst->plane[OQ_PLANE_SCALE];
    char *const codes = dst->plane[OQ_PLANE_DATA];
    for (int64_t r = 0; r < n; r += rows)
        for (int64_t c = 0; c < k; c += cols)
            *scale++ = encode_block(codes + r * k + c, src + r * k + c, oq_min_i64(rows, n - r),
                                    oq_min_i64(cols, k - c), k);
}

void oq_i8_row_from_f32(void *codes, const float *x, int64_t n, float multiplier)
{
    /* 1.5 * 2^23 has unit 1: adding it rounds to the nearest even integer, which is then in the low bits. */
    const float magic = 0x1.8p23f;
    int8_t *restrict const code = codes;
    if (oq_f32_bits(multiplier) >= 0x7f800000u) { /* infinite, NaN (or negative, which no caller has) */
        memset(code, 0, (size_t)n);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t q = (int32_t)oq_f32_bits(x[i] * multiplier + magic) - (int32_t)oq_f32_bits(magic);
        q = q > 127 ? 127 : q;
        q = q < -127 ? -127 : q;
        code[i] = (int8_t)q;
    }
}
