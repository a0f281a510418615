/* format_int.c -- unsigned codes of 2 to 8 bits with a scale of 32 or 16 bits per group of 16 to 128 columns of a
 * row: symmetric (code - half) * scale, or with a zero point (code - zero) * scale. A row of codes is one stream of bits, low
 * bits first. */
#include "format/format_group.h"
#include "format/format_int.h"

#include <math.h>
#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"
#include "format/format_scaled.h"

static const oq_group_traits traits4 = {
    .table = oq_int4_table, .scale_bytes = sizeof(float), .zero_bytes = 1};

static int64_t groups_of(const oq_format *f, int64_t k)
{
    return k / f->block_k + (k % f->block_k != 0);
}

static size_t int_plane_bytes(const oq_format *f, int bits, oq_plane plane, int64_t n, int64_t k)
{
    size_t bits_of_row = 0, bytes = 0;
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    if (!oq_size_mul((size_t)k, (size_t)bits, &bits_of_row) || bits_of_row > SIZE_MAX - 7) return SIZE_MAX;
    const size_t groups = (size_t)groups_of(f, k);
    const size_t columns = plane == OQ_PLANE_DATA   ? (bits_of_row + 7) / 8
                           : plane == OQ_PLANE_ZERO ? oq_int_zero_row_bytes(bits, (int64_t)groups)
                                                    : groups;
    if (!oq_size_mul((size_t)n, columns, &bytes)) return SIZE_MAX;
    const size_t each = f->scale_type ? f->scale_type->bytes : sizeof(float);
    if (plane == OQ_PLANE_SCALE && !oq_size_mul(bytes, each, &bytes)) return SIZE_MAX;
    return bytes;
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

void oq_int_put_zero(void *plane, int bits, int64_t row, int64_t group, int64_t groups, unsigned zero)
{
    uint8_t *const at = (uint8_t *)plane + (size_t)row * oq_int_zero_row_bytes(bits, groups);
    const int each = oq_int_zero_bits(bits);
    const int64_t bit = group * each;
    const int shift = (int)(bit & 7);
    const unsigned mask = (1u << each) - 1u;
    uint8_t *const p = at + (bit >> 3);
    p[0] = (uint8_t)((p[0] & ~(mask << shift)) | zero << shift);
    if (shift + each > 8) p[1] = (uint8_t)((p[1] & ~(mask >> (8 - shift))) | zero >> (8 - shift));
}

static float zero_of(const uint8_t *zero, int bits, int64_t row, int64_t group, int64_t groups)
{
    return zero ? (float)oq_int_zero(zero, bits, row, group, groups) : (float)(1 << (bits - 1));
}

/* Scales i, i + 1 ... of the plane as f32. */
static void read_scales(const oq_format *f, float *dst, const oq_planes *src, int64_t i, int64_t count)
{
    const char *plane = src->plane[OQ_PLANE_SCALE];
    if (f->scale_type)
        f->scale_type->to_f32(dst, plane + (size_t)i * f->scale_type->bytes, (size_t)count);
    else
        memcpy(dst, plane + (size_t)i * sizeof *dst, (size_t)count * sizeof *dst);
}

static void int_decode_span(const oq_format *f, int bits, float *dst, const oq_planes *src, int64_t row,
                            int64_t first, int64_t count, int64_t k)
{
    const int64_t groups = groups_of(f, k);
    const uint8_t *const codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * ((k * bits + 7) / 8);
    const uint8_t *const zero = src->plane[OQ_PLANE_ZERO];
    for (int64_t i = first; i < first + count;) {
        const int64_t group = i / f->block_k, end = oq_min_i64((group + 1) * f->block_k, first + count);
        const float from = zero_of(zero, bits, row, group, groups);
        float by;
        read_scales(f, &by, src, row * groups + group, 1);
        for (; i < end; i++) dst[i - first] = ((float)oq_int_code(codes, i, bits) - from) * by;
    }
}

static void int4_piece(const oq_format *f, oq_group_piece *out, const oq_planes *src, int64_t row,
                       int64_t first, int64_t count, int64_t n, int64_t k)
{
    (void)n;
    const int n_scales = oq_group_piece_begin(f, &traits4, out, src, row, first, count, k);
    const int64_t groups = groups_of(f, k), group = first / f->block_k;
    const uint8_t *const zero = src->plane[OQ_PLANE_ZERO];
    read_scales(f, out->scale, src, row * groups + group, n_scales);
    for (int i = 0; i < n_scales; i++) out->offset[i] = zero_of(zero, 4, row, group + i, groups);
}

/* ---- encode -------------------------------------------------------------------------------------------- */

/* code = rne(x * inverse) + zero within 0..top; no product is beyond 256. 1.5 * 2^23 has unit 1: adding it rounds. */
static void encode_codes(uint8_t *restrict codes, const float *x, int64_t count, float inverse, float zero,
                         int32_t top)
{
    const float magic = 0x1.8p23f;
    const int32_t add = (int32_t)zero - (int32_t)oq_f32_bits(magic);
    for (int64_t i = 0; i < count; i++) {
        int32_t q = (int32_t)oq_f32_bits(x[i] * inverse + magic) + add;
        q = q > top ? top : q;
        codes[i] = (uint8_t)(q < 0 ? 0 : q);
    }
}

static oq_int_grid no_grid(float zero, float scale)
{
    return (oq_int_grid){.scale = scale, .zero = zero};
}

/* The number of largest magnitude becomes code 0, that is -half: its sign goes into the scale, and all codes are
 * used. */
static oq_int_grid symmetric_grid(int bits, const float *x, int64_t count)
{
    float most = 0.0f;
    for (int64_t i = 0; i < count; i++)
        if (fabsf(x[i]) > fabsf(most)) most = x[i];
    const float half = (float)(1 << (bits - 1)), amax = oq_amax(x, 1, count, count);
    const float inverse = -half / most;
    if (amax != amax) return no_grid(half, amax);
    if (!isfinite(inverse)) return no_grid(half, 0.0f);
    return (oq_int_grid){.scale = most / -half, .zero = half, .inverse = inverse};
}

/* The range from the smallest to the largest number, zero within it, in as many steps as there are codes; zero itself is
 * a code. */
static oq_int_grid zero_grid(int bits, const float *x, int64_t count)
{
    const float amax = oq_amax(x, 1, count, count), top = (float)((1 << bits) - 1);
    float low = 0.0f, high = 0.0f;
    for (int64_t i = 0; i < count; i++) low = fminf(low, x[i]), high = fmaxf(high, x[i]);
    const float scale = high / top - low / top, inverse = 1.0f / scale;
    if (amax != amax) return no_grid(0.0f, amax);
    if (!isfinite(inverse)) return no_grid(0.0f, 0.0f);
    return (oq_int_grid){.scale = scale, .zero = fminf(rintf(-low * inverse), top), .inverse = inverse};
}

oq_int_grid oq_int_fit(const oq_format *f, const float *x, int64_t count)
{
    oq_int_grid g = f->planes & 1u << OQ_PLANE_ZERO ? zero_grid(f->int_bits, x, count)
                                                    : symmetric_grid(f->int_bits, x, count);
    oq_int_hold(f, &g);
    return g;
}

void oq_int_hold(const oq_format *f, oq_int_grid *g)
{
    uint16_t held;
    if (!f->scale_type) return;
    f->scale_type->from_f32(&held, &g->scale, 1);
    f->scale_type->to_f32(&g->scale, &held, 1);
    const float inverse = 1.0f / g->scale;
    g->inverse = isfinite(inverse) ? inverse : 0.0f;
}

void oq_int_put_scale(const oq_format *f, void *plane, int64_t i, float scale)
{
    if (f->scale_type)
        f->scale_type->from_f32((char *)plane + (size_t)i * f->scale_type->bytes, &scale, 1);
    else
        memcpy((char *)plane + (size_t)i * sizeof scale, &scale, sizeof scale);
}

void oq_int_codes(const oq_format *f, const oq_int_grid *g, uint8_t *codes, const float *x, int64_t count)
{
    if (g->inverse != 0.0f)
        encode_codes(codes, x, count, g->inverse, g->zero, (1 << f->int_bits) - 1);
    else
        memset(codes, (int)g->zero, (size_t)count);
}

void oq_code_put(uint8_t *row, int64_t i, int bits, uint32_t code)
{
    const int64_t bit = i * bits;
    const int shift = (int)(bit & 7);
    row[bit >> 3] = (uint8_t)(row[bit >> 3] | code << shift);
    if (shift + bits > 8) row[(bit >> 3) + 1] = (uint8_t)(row[(bit >> 3) + 1] | code >> (8 - shift));
}

static void int_encode(const oq_format *f, int bits, oq_planes_mut *dst, const float *src, int64_t n,
                       int64_t k)
{
    const int64_t row_bytes = (k * bits + 7) / 8;
    const int64_t groups = groups_of(f, k);
    void *zero = f->planes & 1u << OQ_PLANE_ZERO ? dst->plane[OQ_PLANE_ZERO] : NULL;
    uint8_t codes[128];
    memset(dst->plane[OQ_PLANE_DATA], 0, (size_t)(n * row_bytes));
    if (zero) memset(zero, 0, (size_t)n * oq_int_zero_row_bytes(bits, groups));
    for (int64_t r = 0; r < n; r++) {
        uint8_t *const row = (uint8_t *)dst->plane[OQ_PLANE_DATA] + r * row_bytes;
        for (int64_t c = 0; c < k; c += f->block_k) {
            const int64_t count = oq_min_i64(f->block_k, k - c), group = c / f->block_k;
            const float *const x = src + r * k + c;
            const oq_int_grid grid = oq_int_fit(f, x, count);
            oq_int_codes(f, &grid, codes, x, count);
            oq_int_put_scale(f, dst->plane[OQ_PLANE_SCALE], r * groups + group, grid.scale);
            if (zero) oq_int_put_zero(zero, bits, r, group, groups, (unsigned)grid.zero);
            for (int64_t i = 0; i < count; i++) oq_code_put(row, c + i, bits, codes[i]);
        }
    }
}

/* ---- the formats --------------------------------------------------------------------------------------- */

#define INT_WIDTH(bits)                                                                                      \
    static size_t int##bits##_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)          \
    {                                                                                                        \
        return int_plane_bytes(f, bits, plane, n, k);                                                        \
    }
#define INT_ENCODE(bits)                                                                                     \
    static void int##bits##_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n,      \
                                   int64_t k)                                                                \
    {                                                                                                        \
        int_encode(f, bits, dst, src, n, k);                                                                 \
    }
#define INT_SPAN(bits)                                                                                       \
    static void int##bits##_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row,   \
                                        int64_t first, int64_t count, int64_t n, int64_t k)                  \
    {                                                                                                        \
        (void)n;                                                                                             \
        int_decode_span(f, bits, dst, src, row, first, count, k);                                            \
    }
INT_WIDTH(2)
INT_WIDTH(3)
INT_WIDTH(4)
INT_WIDTH(5)
INT_WIDTH(6)
INT_WIDTH(7)
INT_WIDTH(8)
INT_ENCODE(2)
INT_ENCODE(3)
INT_ENCODE(4)
INT_ENCODE(8)
INT_SPAN(2)
INT_SPAN(3)
INT_SPAN(5)
INT_SPAN(6)
INT_SPAN(7)
INT_SPAN(8)

/* Codes of four bits go by pieces, which kernels decode themselves. */
#define int4_decode_span oq_group_decode_span
#define int2_piece       NULL
#define int3_piece       NULL
#define int5_piece       NULL
#define int6_piece       NULL
#define int7_piece       NULL
#define int8_piece       NULL
/* Nothing is written in these. */
#define int5_encode NULL
#define int6_encode NULL
#define int7_encode NULL

#define INT(bits, label, group, more_planes, type)                                                           \
    {                                                                                                        \
        .name = label, .kernel_name = "int" #bits,                                                           \
        .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE | (more_planes), .block_n = 1,                  \
        .block_k = group, .int_bits = bits, .scale_type = type, .plane_bytes = int##bits##_plane_bytes,      \
        .decode_row = oq_span_decode_row, .decode_span = int##bits##_decode_span,                            \
        .piece = int##bits##_piece, .encode = int##bits##_encode                                             \
    }
#define INT_SCALES(bits, z, group, more)                                                                     \
    const oq_format oq_format_int##bits##z##_g##group =                                                      \
        INT(bits, "int" #bits #z "_g" #group, group, more, NULL);                                            \
    const oq_format oq_format_int##bits##z##_g##group##_f16 =                                                \
        INT(bits, "int" #bits #z "_g" #group "_f16", group, more, &oq_dtype_f16);                            \
    const oq_format oq_format_int##bits##z##_g##group##_bf16 =                                               \
        INT(bits, "int" #bits #z "_g" #group "_bf16", group, more, &oq_dtype_bf16);
#define INT_GROUP(bits, group) INT_SCALES(bits, , group, 0u) INT_SCALES(bits, z, group, 1u << OQ_PLANE_ZERO)
#define INT_GROUPS(bits)       INT_GROUP(bits, 16) INT_GROUP(bits, 32) INT_GROUP(bits, 64) INT_GROUP(bits, 128)

INT_GROUPS(2)
INT_GROUPS(3)
INT_GROUPS(4)
INT_GROUPS(5)
INT_GROUPS(6)
INT_GROUPS(7)
INT_GROUPS(8)
