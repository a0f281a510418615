/* format_spread.c -- unsigned codes of 1, 2, 3, 4 or 8 bits with a scale and a zero point (f32, f16 or bf16) for each column of 32, 64
 * or 128 rows that stand apart: (code - zero) * scale, each step rounded to the type of the scales. Are read alone. */
#include "format/format_int.h"
#include "format/format_scaled.h"

#include "base/size.h"

enum { PIECE = 128 }; /* columns at a time */

static const oq_dtype *number_type(const oq_format *f)
{
    return f->scale_type ? f->scale_type : &oq_dtype_f32;
}

static int64_t scale_rows(const oq_format *f, int64_t n)
{
    return n / f->block_n + (n % f->block_n != 0);
}

static size_t plane_bytes(const oq_format *f, int bits, oq_plane plane, int64_t n, int64_t k)
{
    size_t each = 0, bytes = 0;
    const bool codes = plane == OQ_PLANE_DATA;
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    if (!oq_size_mul((size_t)k, codes ? (size_t)bits : number_type(f)->bytes, &each)) return SIZE_MAX;
    if (codes && each > SIZE_MAX - 7) return SIZE_MAX;
    if (codes) each = (each + 7) / 8;
    return oq_size_mul((size_t)(codes ? n : scale_rows(f, n)), each, &bytes) ? bytes : SIZE_MAX;
}

static void round_all(const oq_dtype *type, float *x, int64_t count)
{
    uint16_t held[PIECE];
    if (type == &oq_dtype_f32) return;
    type->from_f32(held, x, (size_t)count);
    type->to_f32(x, held, (size_t)count);
}

static void decode_span(const oq_format *f, int bits, float *dst, const oq_planes *src, int64_t row,
                        int64_t first, int64_t count, int64_t n, int64_t k)
{
    const oq_dtype *const type = number_type(f);
    const int64_t from = row % scale_rows(f, n) * k;
    const uint8_t *const codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * ((k * bits + 7) / 8);
    float scale[PIECE], zero[PIECE];
    for (int64_t at = first; at < first + count; at += PIECE) {
        const int64_t now = oq_min_i64(PIECE, first + count - at);
        const size_t byte = (size_t)(from + at) * type->bytes;
        type->to_f32(scale, (const char *)src->plane[OQ_PLANE_SCALE] + byte, (size_t)now);
        type->to_f32(zero, (const char *)src->plane[OQ_PLANE_ZERO] + byte, (size_t)now);
        float *const to = dst + (at - first);
        for (int64_t i = 0; i < now; i++) to[i] = (float)oq_int_code(codes, at + i, bits) - zero[i];
        round_all(type, to, now);
        for (int64_t i = 0; i < now; i++) to[i] *= scale[i];
        round_all(type, to, now);
    }
}

#define FORMAT(bits, rows, end, label, type)                                                                 \
    const oq_format oq_format_uint##bits##zf_s##rows##end = {                                                \
        .name = "uint" #bits "zf_s" #rows label,                                                             \
        .kernel_name = "uint" #bits "zf_spread",                                                             \
        .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE | 1u << OQ_PLANE_ZERO,                          \
        .block_n = rows,                                                                                     \
        .block_k = 1,                                                                                        \
        .spread = true,                                                                                      \
        .scale_type = type,                                                                                  \
        .plane_bytes = bytes_of_##bits,                                                                      \
        .decode_row = oq_span_decode_row,                                                                    \
        .decode_span = span_of_##bits};
#define SCALES(bits, rows)                                                                                   \
    FORMAT(bits, rows, , "", NULL)                                                                           \
    FORMAT(bits, rows, _f16, "_f16", &oq_dtype_f16)                                                          \
    FORMAT(bits, rows, _bf16, "_bf16", &oq_dtype_bf16)
#define WIDTH(bits)                                                                                          \
    static size_t bytes_of_##bits(const oq_format *f, oq_plane plane, int64_t n, int64_t k)                  \
    {                                                                                                        \
        return plane_bytes(f, bits, plane, n, k);                                                            \
    }                                                                                                        \
    static void span_of_##bits(const oq_format *f, float *dst, const oq_planes *src, int64_t row,            \
                               int64_t first, int64_t count, int64_t n, int64_t k)                           \
    {                                                                                                        \
        decode_span(f, bits, dst, src, row, first, count, n, k);                                             \
    }                                                                                                        \
    SCALES(bits, 32)                                                                                         \
    SCALES(bits, 64)                                                                                         \
    SCALES(bits, 128)

WIDTH(1)
WIDTH(2)
WIDTH(3)
WIDTH(4)
WIDTH(8)
