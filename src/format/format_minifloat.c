/* format_minifloat.c -- floats of 2 to 8 bits without infinities and NaN: a sign (fn) or none (fnu), 1 to 5 bits of exponent, the
 * rest mantissa; an f32 scale per group of 16 to 256 columns of a row or per row, fnu a zero point too: number * scale, or number *
 * scale + zero, rounded once. Are read alone. */
#include "format/format_int.h"
#include "format/format_scaled.h"

#include <math.h>
#include <string.h>

#include "base/size.h"

enum { MOST = 256 }; /* codes of eight bits */

typedef struct shape {
    int exponent, mantissa;
    bool sign;
} shape;

static int bits_of(const shape *s)
{
    return s->sign + s->exponent + s->mantissa;
}

static int64_t groups_of(const oq_format *f, int64_t k)
{
    return f->block_k ? k / f->block_k + (k % f->block_k != 0) : 1;
}

static size_t plane_bytes(const oq_format *f, const shape *s, oq_plane plane, int64_t n, int64_t k)
{
    size_t each = 0, bytes = 0;
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    if (plane == OQ_PLANE_DATA) {
        if (!oq_size_mul((size_t)k, (size_t)bits_of(s), &each) || each > SIZE_MAX - 7) return SIZE_MAX;
        each = (each + 7) / 8;
    } else if (!oq_size_mul((size_t)groups_of(f, k), sizeof(float), &each)) {
        return SIZE_MAX;
    }
    return oq_size_mul((size_t)n, each, &bytes) ? bytes : SIZE_MAX;
}

/* Exponents begin at 2 - 2^(e - 1); below are numbers without the leading 1. */
static float number_of(const shape *s, uint32_t code)
{
    const int least = 2 - (1 << (s->exponent - 1));
    const uint32_t field = code >> s->mantissa & ((1u << s->exponent) - 1u),
                   rest = code & ((1u << s->mantissa) - 1u);
    const uint32_t whole = field ? rest | 1u << s->mantissa : rest;
    const float x = ldexpf((float)whole, least - s->mantissa + (field ? (int)field - 1 : 0));
    return s->sign && code >> (bits_of(s) - 1) & 1 ? -x : x;
}

static float float_at(const void *plane, int64_t i)
{
    float x;
    memcpy(&x, (const char *)plane + (size_t)i * sizeof x, sizeof x);
    return x;
}

/* `zero` NULL: none */
static float scaled(const shape *s, uint32_t code, float scale, const float *zero)
{
    return zero ? fmaf(number_of(s, code), scale, *zero) : number_of(s, code) * scale;
}

/* A run of columns of one group: where it is long, each number is made once. */
static void decode_run(float *dst, const shape *s, const uint8_t *row, int64_t first, int64_t count,
                       float scale, const float *zero)
{
    float numbers[MOST];
    const int bits = bits_of(s);
    const uint32_t codes = 1u << bits;
    const bool table = count >= (int64_t)codes;
    for (uint32_t c = 0; table && c < codes; c++) numbers[c] = scaled(s, c, scale, zero);
    for (int64_t i = 0; i < count; i++) {
        const uint32_t code = oq_int_code(row, first + i, bits);
        dst[i] = table ? numbers[code] : scaled(s, code, scale, zero);
    }
}

static void decode_span(const oq_format *f, const shape *s, float *dst, const oq_planes *src, int64_t row,
                        int64_t first, int64_t count, int64_t k)
{
    const int64_t groups = groups_of(f, k), columns = f->block_k ? f->block_k : k;
    const uint8_t *const codes =
        (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * ((k * bits_of(s) + 7) / 8);
    for (int64_t i = first; i < first + count;) {
        const int64_t g = i / columns, end = oq_min_i64((g + 1) * columns, first + count);
        const float zero = s->sign ? 0.0f : float_at(src->plane[OQ_PLANE_ZERO], row * groups + g);
        decode_run(dst + i - first, s, codes, i, end - i,
                   float_at(src->plane[OQ_PLANE_SCALE], row * groups + g), s->sign ? NULL : &zero);
        i = end;
    }
}

#define FORMAT(E, M, ending, label, columns, more)                                                           \
    const oq_format oq_format_e##E##m##M##ending##label = {.name = "e" #E "m" #M #ending #label,             \
                                                           .kernel_name = "e" #E "m" #M #ending,             \
                                                           .planes = 1u << OQ_PLANE_DATA |                   \
                                                                     1u << OQ_PLANE_SCALE | (more),          \
                                                           .block_n = 1,                                     \
                                                           .block_k = columns,                               \
                                                           .plane_bytes = e##E##m##M##ending##_bytes,        \
                                                           .decode_row = oq_span_decode_row,                 \
                                                           .decode_span = e##E##m##M##ending##_span};
#define TYPE(E, M, ending, has_sign, more)                                                                   \
    static const shape e##E##m##M##ending##_shape = {E, M, has_sign};                                        \
    static size_t e##E##m##M##ending##_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)       \
    {                                                                                                        \
        return plane_bytes(f, &e##E##m##M##ending##_shape, plane, n, k);                                     \
    }                                                                                                        \
    static void e##E##m##M##ending##_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, \
                                          int64_t first, int64_t count, int64_t n, int64_t k)                \
    {                                                                                                        \
        (void)n;                                                                                             \
        decode_span(f, &e##E##m##M##ending##_shape, dst, src, row, first, count, k);                         \
    }                                                                                                        \
    FORMAT(E, M, ending, _g16, 16, more)                                                                     \
    FORMAT(E, M, ending, _g32, 32, more)                                                                     \
    FORMAT(E, M, ending, _g64, 64, more)                                                                     \
    FORMAT(E, M, ending, _g128, 128, more)                                                                   \
    FORMAT(E, M, ending, _g256, 256, more)                                                                   \
    FORMAT(E, M, ending, _channel, 0, more)
#define SIGNED_TYPE(E, M)   TYPE(E, M, fn, true, 0u)
#define UNSIGNED_TYPE(E, M) TYPE(E, M, fnu, false, 1u << OQ_PLANE_ZERO)

OQ_MINI_SIGNED(SIGNED_TYPE)
OQ_MINI_UNSIGNED(UNSIGNED_TYPE)
