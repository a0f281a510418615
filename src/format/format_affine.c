/* format_affine.c -- unsigned codes of 1 to 8 bits with a scale and a zero point that are floats of one type (f32, f16 or
 * bf16), per group of 16 to 256 columns of a row or per row. fma: code * scale + zero, rounded once. zf: (code - zero) * scale,
 * sum: code * scale + zero, each step of both rounded to the type of the scales, as producers compute them. Are read
 * alone. */
#include "format/format_int.h"
#include "format/format_scaled.h"

#include <math.h>

#include "base/size.h"

enum { MOST = 256 }; /* codes of eight bits */

static int64_t groups_of(const oq_format *f, int64_t k)
{
    return f->block_k ? k / f->block_k + (k % f->block_k != 0) : 1;
}

static const oq_dtype *number_type(const oq_format *f)
{
    return f->scale_type ? f->scale_type : &oq_dtype_f32;
}

static size_t plane_bytes(const oq_format *f, int bits, oq_plane plane, int64_t n, int64_t k)
{
    size_t each = 0, bytes = 0;
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    if (plane == OQ_PLANE_DATA) {
        if (!oq_size_mul((size_t)k, (size_t)bits, &each) || each > SIZE_MAX - 7) return SIZE_MAX;
        each = (each + 7) / 8;
    } else if (!oq_size_mul((size_t)groups_of(f, k), number_type(f)->bytes, &each)) {
        return SIZE_MAX;
    }
    return oq_size_mul((size_t)n, each, &bytes) ? bytes : SIZE_MAX;
}

static float number_at(const oq_format *f, const void *plane, int64_t i)
{
    float x;
    const oq_dtype *const type = number_type(f);
    type->to_f32(&x, (const char *)plane + (size_t)i * type->bytes, 1);
    return x;
}

typedef struct line { /* numbers of one group's codes */
    float scale, zero;
    oq_affine kind;
    const oq_dtype *type; /* numbers that are not fused are rounded to it */
} line;

static float rounded(const oq_dtype *type, float x)
{
    uint16_t held;
    if (type == &oq_dtype_f32) return x;
    type->from_f32(&held, &x, 1);
    type->to_f32(&x, &held, 1);
    return x;
}

static float number_of(const line *l, uint32_t code)
{
    if (l->kind == OQ_AFFINE_FMA) return fmaf((float)code, l->scale, l->zero);
    if (l->kind == OQ_AFFINE_SUM) return rounded(l->type, rounded(l->type, (float)code * l->scale) + l->zero);
    return rounded(l->type, rounded(l->type, (float)code - l->zero) * l->scale);
}

/* A run of columns of one group: where it is long, each number is made once. */
static void decode_run(float *dst, const line *l, const uint8_t *row, int bits, int64_t first, int64_t count)
{
    float numbers[MOST];
    const uint32_t codes = 1u << bits;
    if (count < (int64_t)codes) {
        for (int64_t i = 0; i < count; i++) dst[i] = number_of(l, oq_int_code(row, first + i, bits));
        return;
    }
    for (uint32_t c = 0; c < codes; c++) numbers[c] = number_of(l, c);
    for (int64_t i = 0; i < count; i++) dst[i] = numbers[oq_int_code(row, first + i, bits)];
}

static void decode_span(const oq_format *f, int bits, oq_affine kind, float *dst, const oq_planes *src,
                        int64_t row, int64_t first, int64_t count, int64_t k)
{
    const int64_t groups = groups_of(f, k), columns = f->block_k ? f->block_k : k;
    const uint8_t *const codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * ((k * bits + 7) / 8);
    for (int64_t i = first; i < first + count;) {
        const int64_t g = i / columns, end = oq_min_i64((g + 1) * columns, first + count);
        const line l = {number_at(f, src->plane[OQ_PLANE_SCALE], row * groups + g),
                        number_at(f, src->plane[OQ_PLANE_ZERO], row * groups + g), kind, number_type(f)};
        decode_run(dst + i - first, &l, codes, bits, i, end - i);
        i = end;
    }
}

#define WIDTH(bits)                                                                                          \
    static size_t bytes_of_##bits(const oq_format *f, oq_plane plane, int64_t n, int64_t k)                  \
    {                                                                                                        \
        return plane_bytes(f, bits, plane, n, k);                                                            \
    }
#define KIND(word, bits, kind)                                                                               \
    static void word##bits##_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row,         \
                                  int64_t first, int64_t count, int64_t n, int64_t k)                        \
    {                                                                                                        \
        (void)n;                                                                                             \
        decode_span(f, bits, kind, dst, src, row, first, count, k);                                          \
    }
#define FORMAT(word, bits, end, label, columns, type)                                                        \
    const oq_format oq_format_uint##bits##word##end = {.name = "uint" #bits #word label,                     \
                                                       .kernel_name = "uint" #bits #word,                    \
                                                       .planes = 1u << OQ_PLANE_DATA |                       \
                                                                 1u << OQ_PLANE_SCALE | 1u << OQ_PLANE_ZERO, \
                                                       .block_n = 1,                                         \
                                                       .block_k = columns,                                   \
                                                       .scale_type = type,                                   \
                                                       .plane_bytes = bytes_of_##bits,                       \
                                                       .decode_row = oq_span_decode_row,                     \
                                                       .decode_span = word##bits##_span};
#define SCALES(word, bits, end, label, columns)                                                              \
    FORMAT(word, bits, end, label, columns, NULL)                                                            \
    FORMAT(word, bits, end##_f16, label "_f16", columns, &oq_dtype_f16)                                      \
    FORMAT(word, bits, end##_bf16, label "_bf16", columns, &oq_dtype_bf16)
#define GROUPS(word, bits, kind)                                                                             \
    KIND(word, bits, kind)                                                                                   \
    SCALES(word, bits, _g16, "_g16", 16)                                                                     \
    SCALES(word, bits, _g32, "_g32", 32)                                                                     \
    SCALES(word, bits, _g64, "_g64", 64)                                                                     \
    SCALES(word, bits, _g128, "_g128", 128)                                                                  \
    SCALES(word, bits, _g256, "_g256", 256)                                                                  \
    SCALES(word, bits, _channel, "_channel", 0)

WIDTH(1)
WIDTH(2)
WIDTH(3)
WIDTH(4)
WIDTH(5)
WIDTH(6)
WIDTH(7)
WIDTH(8)
GROUPS(fma, 2, OQ_AFFINE_FMA)
GROUPS(fma, 3, OQ_AFFINE_FMA)
GROUPS(fma, 4, OQ_AFFINE_FMA)
GROUPS(fma, 5, OQ_AFFINE_FMA)
GROUPS(fma, 6, OQ_AFFINE_FMA)
GROUPS(fma, 7, OQ_AFFINE_FMA)
GROUPS(fma, 8, OQ_AFFINE_FMA)
GROUPS(zf, 1, OQ_AFFINE_ZF)
GROUPS(zf, 2, OQ_AFFINE_ZF)
GROUPS(zf, 3, OQ_AFFINE_ZF)
GROUPS(zf, 4, OQ_AFFINE_ZF)
GROUPS(zf, 8, OQ_AFFINE_ZF)
GROUPS(sum, 2, OQ_AFFINE_SUM)
GROUPS(sum, 4, OQ_AFFINE_SUM)
SCALES(sum, 2, _g96, "_g96", 96)
SCALES(sum, 4, _g96, "_g96", 96)
