/* linear_decode_simd.h -- columns of one row of W out of the format's own planes, a block or a group at a time in
 * registers, for every kernel that keeps weights compressed. Each engine includes this text and so compiles it for its
 * own instruction set; with OQ_SPAN_BF16 numbers are stored as bf16 (nearest even), else as f32 with the very bits of
 * the format's decode_span. What has no decoder here goes through decode_span. */
#ifndef OQ_CPU_LINEAR_LINEAR_DECODE_SIMD_H
#define OQ_CPU_LINEAR_LINEAR_DECODE_SIMD_H

#include <string.h>

#include "cpu/linear/linear_panel.h"
#include "cpu/vec/sixteen.h"
#include "format/float4.h"
#include "format/float8.h"
#include "format/format_block.h"
#include "format/format_int.h"

#ifdef OQ_SPAN_BF16
typedef uint16_t span_number;
#if defined(__aarch64__)
static inline void span_put16(span_number *dst, f16x x)
{
    for (int i = 0; i < 2; i++) {
        const bfloat16x8_t half = vcvtq_low_bf16_f32(x.v[2 * i]);
        vst1q_u16(dst + 8 * i, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(half, x.v[2 * i + 1])));
    }
}
static inline void span_put32(span_number *dst, f16x low, f16x high)
{
    span_put16(dst, low);
    span_put16(dst + 16, high);
}
#else
static inline void span_put16(span_number *dst, f16x x)
{
    _mm256_storeu_si256((__m256i *)(void *)dst, (__m256i)_mm512_cvtneps_pbh(x));
}
static inline void span_put32(span_number *dst, f16x low, f16x high)
{
    _mm512_storeu_si512(dst, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}
#endif
#else
typedef float span_number;
static inline void span_put16(span_number *dst, f16x x)
{
    f16x_store(dst, x);
}
static inline void span_put32(span_number *dst, f16x low, f16x high)
{
    f16x_store(dst, low);
    f16x_store(dst + 16, high);
}
#endif

/* f32 in whole sixteens, the last of them filled up by the caller's room. */
static inline void span_put_row(span_number *dst, const float *src, int64_t n)
{
#ifdef OQ_SPAN_BF16
    for (int64_t i = 0; i < n; i += 16) span_put16(dst + i, f16x_load(src + i));
#else
    memcpy(dst, src, (size_t)n * sizeof *src);
#endif
}

/* ---- codes of GGUF's blocks -------------------------------------------------------------------------------- */

static inline b16 codes16(const uint8_t *src)
{
    return b16_load(src);
}

static inline b16 low_nibbles(b16 bytes)
{
    return b16_and(bytes, b16_set(15));
}

static inline b16 high_nibbles(b16 bytes)
{
    return low_nibbles(b16_down(bytes, 4));
}

/* Two bits of each byte from bit `shift` on. */
static inline b16 two_bits(b16 bytes, int shift)
{
    return b16_and(b16_down(bytes, shift), b16_set(3));
}

static inline float f16_at(const uint8_t *at)
{
    return f32_of_f16(oq_block_u16(at));
}

static inline void put_signed(span_number *dst, b16 low, b16 high, float scale)
{
    const f16x by = f16x_set(scale);
    span_put32(dst, f16x_mul(f16x_i8(low), by), f16x_mul(f16x_i8(high), by));
}

/* Eight scales and eight minima of six bits, in twelve bytes, to a byte each. */
static inline void k_scales(const uint8_t *src, uint64_t *scale, uint64_t *min)
{
    const uint32_t six = 0x3f3f3f3fu, four = 0x0f0f0f0fu, two = 0x30303030u;
    uint32_t word[3];
    memcpy(word, src, sizeof word);
    *scale = (uint64_t)(word[0] & six) | (uint64_t)((word[2] & four) | (word[0] >> 2 & two)) << 32;
    *min = (uint64_t)(word[1] & six) | (uint64_t)((word[2] >> 4 & four) | (word[1] >> 2 & two)) << 32;
}

#if defined(OQ_SPAN_BF16) && !defined(__aarch64__)
#include "cpu/linear/linear_decode_words.h"
#else
#include "cpu/linear/linear_decode_numbers.h"
#endif

/* ---- one block each ---------------------------------------------------------------------------------------- */

static inline void block_q8_0(span_number *dst, const uint8_t *b)
{
    put_signed(dst, codes16(b + 2), codes16(b + 18), f16_at(b));
}

static inline void block_q2_k(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b + 80), dmin = f16_at(b + 82);
    const uint8_t *scale = b;
    for (int half = 0; half < 2; half++)
        for (int j = 0; j < 4; j++, dst += 32, scale += 2) {
            const uint8_t *const qs = b + 16 + 32 * half;
            const f16x one = f16x_u8(two_bits(codes16(qs), 2 * j)), two = f16x_u8(two_bits(codes16(qs + 16), 2 * j));
            span_put32(dst,
                       f16x_sub(f16x_mul(one, f16x_set(d * (float)(scale[0] & 15))), f16x_set(dmin * (float)(scale[0] >> 4))),
                       f16x_sub(f16x_mul(two, f16x_set(d * (float)(scale[1] & 15))), f16x_set(dmin * (float)(scale[1] >> 4))));
        }
}

static inline void block_q3_k(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b + 108);
    const b16 bit = b16_set(1), four = b16_set(4);
    b16 third1 = codes16(b), third2 = codes16(b + 16); /* bit 0 is the next sub-block's */
    int8_t scale[16];
    oq_q3_scales_read(b + 96, scale);
    for (int s = 0; s < 8; s++, dst += 32) {
        const uint8_t *const qs = b + 32 + 32 * (s / 4);
        b16 one = b16_up(b16_and(third1, bit), 2);
        b16 two = b16_up(b16_and(third2, bit), 2);
        one = b16_or(one, two_bits(codes16(qs), 2 * (s % 4)));
        two = b16_or(two, two_bits(codes16(qs + 16), 2 * (s % 4)));
        third1 = b16_down(third1, 1);
        third2 = b16_down(third2, 1);
        one = b16_sub(one, four);
        two = b16_sub(two, four);
        span_put32(dst, f16x_mul(f16x_i8(one), f16x_set(d * (float)scale[2 * s])),
                   f16x_mul(f16x_i8(two), f16x_set(d * (float)scale[2 * s + 1])));
    }
}

#define SPAN_BLOCKS(name)                                                                                    \
    static void blocks_##name(span_number *dst, const uint8_t *src, int64_t blocks, int elems, int bytes)   \
    {                                                                                                        \
        for (int64_t i = 0; i < blocks; i++, dst += elems, src += bytes) block_##name(dst, src);             \
    }

SPAN_BLOCKS(q4_0)
SPAN_BLOCKS(q4_1)
SPAN_BLOCKS(q5_0)
SPAN_BLOCKS(q5_1)
SPAN_BLOCKS(q8_0)
SPAN_BLOCKS(iq4_nl)
SPAN_BLOCKS(mxfp4)
SPAN_BLOCKS(q2_k)
SPAN_BLOCKS(q3_k)
SPAN_BLOCKS(q4_k)
SPAN_BLOCKS(q5_k)
SPAN_BLOCKS(q6_k)
SPAN_BLOCKS(iq4_xs)

/* Whole blocks of a format that has a decoder here; false: it has none. */
static inline bool span_blocks(const oq_format *f, span_number *dst, const uint8_t *src, int64_t blocks)
{
    static const struct {
        const oq_format *f;
        void (*decode)(span_number *dst, const uint8_t *src, int64_t blocks, int elems, int bytes);
    } rows[] = {
        {&oq_format_q4_k, blocks_q4_k}, {&oq_format_q6_k, blocks_q6_k},     {&oq_format_q5_k, blocks_q5_k},
        {&oq_format_q8_0, blocks_q8_0}, {&oq_format_q4_0, blocks_q4_0},     {&oq_format_q5_0, blocks_q5_0},
        {&oq_format_q4_1, blocks_q4_1}, {&oq_format_q5_1, blocks_q5_1},     {&oq_format_iq4_nl, blocks_iq4_nl},
        {&oq_format_iq4_xs, blocks_iq4_xs}, {&oq_format_q3_k, blocks_q3_k}, {&oq_format_q2_k, blocks_q2_k},
        {&oq_format_mxfp4_gguf, blocks_mxfp4},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (rows[i].f == f) {
            rows[i].decode(dst, src, blocks, f->block->elems, f->block->bytes);
            return true;
        }
    return false;
}

/* ---- pieces of groups -------------------------------------------------------------------------------------- */

static inline float power_of(uint8_t byte)
{
    return oq_f32_from_bits(byte == 255 ? 0x7fc00000u : byte ? (uint32_t)byte << 23 : 0x00400000u);
}

/* Sixteen e4m3 codes; those of NaN become NaN. */
static inline f16x e4m3_numbers(b16 bytes)
{
    return f16x_mul(f16x_halves(h16_with_nan(h16_of_e4m3(bytes))), f16x_set(256.0f));
}

static inline void piece_e4m3(span_number *dst, const uint8_t *codes, int64_t n, float scale)
{
    const f16x by = f16x_set(scale);
    for (int64_t i = 0; i < n; i += 16) {
        unsigned char part[16] = {0};
        const bool whole = n - i >= 16;
        if (!whole) memcpy(part, codes + i, (size_t)(n - i));
        span_put16(dst + i, f16x_mul(e4m3_numbers(codes16(whole ? codes + i : part)), by));
    }
}

/* ---- whole groups of the formats that rest most often ---------------------------------------------------- */

static inline void columns_mxfp4(const oq_planes *planes, span_number *dst, int64_t row, int64_t first, int64_t count,
                                 int64_t k)
{
    const uint8_t *code = (const uint8_t *)planes->plane[OQ_PLANE_DATA] + (row * k + first) / 2;
    const uint8_t *scale = (const uint8_t *)planes->plane[OQ_PLANE_SCALE] + (row * k + first) / 32;
    const table16 table = table16_of(oq_e2m1_table);
    for (int64_t i = 0; i < count; i += 32, code += 16) {
        const float by = power_of(*scale++);
        put_code4(dst + i, code, table, by, by);
    }
}

static inline void columns_mxfp8(const oq_planes *planes, span_number *dst, int64_t row, int64_t first, int64_t count,
                                 int64_t k)
{
    const uint8_t *code = (const uint8_t *)planes->plane[OQ_PLANE_DATA] + row * k + first;
    const uint8_t *scale = (const uint8_t *)planes->plane[OQ_PLANE_SCALE] + (row * k + first) / 32;
    for (int64_t i = 0; i < count; i += 32, code += 32) {
        const f16x by = f16x_set(power_of(*scale++));
        span_put32(dst + i, f16x_mul(e4m3_numbers(codes16(code)), by), f16x_mul(e4m3_numbers(codes16(code + 16)), by));
    }
}

/* Scales of 256 columns at a time: e4m3 times the global one. */
static inline void columns_nvfp4(const oq_planes *planes, span_number *dst, int64_t row, int64_t first, int64_t count,
                                 int64_t k, float global)
{
    const uint8_t *code = (const uint8_t *)planes->plane[OQ_PLANE_DATA] + (row * k + first) / 2;
    const uint8_t *scale = (const uint8_t *)planes->plane[OQ_PLANE_SCALE] + (row * k + first) / 16;
    const table16 table = table16_of(oq_e2m1_table);
    for (int64_t i = 0; i < count; i += 256, scale += 16) {
        const int64_t many = count - i < 256 ? count - i : 256;
        uint8_t part[16] = {0};
        float by[16];
        memcpy(part, scale, (size_t)many / 16);
        f16x_store(by, f16x_mul(e4m3_numbers(codes16(part)), f16x_set(global)));
        for (int64_t j = 0; j < many; j += 32, code += 16)
            put_code4(dst + i + j, code, table, by[j / 16], by[j / 16 + 1]);
    }
}

static inline float float_of_group(const oq_format *f, const oq_planes *planes, oq_plane plane, int64_t i)
{
    float x;
    const char *const at = planes->plane[plane];
    if (f->scale_type)
        f->scale_type->to_f32(&x, at + (size_t)i * f->scale_type->bytes, 1);
    else
        memcpy(&x, at + (size_t)i * sizeof x, sizeof x);
    return x;
}

/* Codes of four bits with floats for zero points: code * scale + zero, rounded once. Groups are of whole 32 columns. */
static inline void columns_uint4fma(const oq_format *f, const oq_planes *planes, span_number *dst, int64_t row, int64_t first,
                                    int64_t count, int64_t k)
{
    const uint8_t *code = (const uint8_t *)planes->plane[OQ_PLANE_DATA] + (row * k + first) / 2;
    const int64_t columns = f->block_k ? f->block_k : k, groups = k / columns + (k % columns != 0);
    for (int64_t i = first; i < first + count;) {
        const int64_t g = i / columns, end = (g + 1) * columns < first + count ? (g + 1) * columns : first + count;
        const f16x by = f16x_set(float_of_group(f, planes, OQ_PLANE_SCALE, row * groups + g)),
                   from = f16x_set(float_of_group(f, planes, OQ_PLANE_ZERO, row * groups + g));
        for (; i < end; i += 32, code += 16) {
            const b16 bytes = codes16(code), low = low_nibbles(bytes), high = high_nibbles(bytes);
            span_put32(dst + i - first, f16x_fma(f16x_u8(b16_zip_low(low, high)), by, from),
                       f16x_fma(f16x_u8(b16_zip_high(low, high)), by, from));
        }
    }
}

/* Codes of eight bits less their group's zero point, or 128, times its scale. Groups are of whole sixteens. */
static inline void columns_int8(const oq_format *f, const oq_planes *planes, span_number *dst, int64_t row, int64_t first,
                                int64_t count, int64_t k)
{
    const uint8_t *const code = (const uint8_t *)planes->plane[OQ_PLANE_DATA] + row * k;
    const void *const zero = planes->plane[OQ_PLANE_ZERO];
    const int64_t columns = f->block_k, groups = k / columns + (k % columns != 0);
    for (int64_t i = first; i < first + count;) {
        const int64_t g = i / columns, end = (g + 1) * columns < first + count ? (g + 1) * columns : first + count;
        const f16x by = f16x_set(float_of_group(f, planes, OQ_PLANE_SCALE, row * groups + g)),
                   from = f16x_set(zero ? (float)oq_int_zero(zero, 8, row, g, groups) : 128.0f);
        for (; i < end; i += 16) span_put16(dst + i - first, f16x_mul(f16x_sub(f16x_u8(codes16(code + i)), from), by));
    }
}

/* Columns from a multiple of 32 on, of rows and runs of whole 32; false: another format, or not so. */
static inline bool span_groups(const oq_format *f, const oq_planes *planes, span_number *dst, int64_t row, int64_t first,
                               int64_t count, int64_t k)
{
    const float *const global = planes->plane[OQ_PLANE_GLOBAL];
    if (k % 32 || first % 32 || count % 32) return false;
    if (f == &oq_format_mxfp4 || f == &oq_format_mxfp4_q725)
        columns_mxfp4(planes, dst, row, first, count, k);
    else if (f == &oq_format_mxfp8)
        columns_mxfp8(planes, dst, row, first, count, k);
    else if (f == &oq_format_nvfp4)
        columns_nvfp4(planes, dst, row, first, count, k, *global);
    else if (f == &oq_format_nvfp4_rows)
        columns_nvfp4(planes, dst, row, first, count, k, global[row]);
    else if (f->decode_span == oq_format_uint4fma_g32.decode_span && f->block_k % 32 == 0)
        columns_uint4fma(f, planes, dst, row, first, count, k);
    else if (f->int_bits == 8 && f->block_k % 16 == 0)
        columns_int8(f, planes, dst, row, first, count, k);
    else
        return false;
    return true;
}

/* A piece of at most OQ_PIECE columns; false: its groups begin off the sixteenths, or codes are odd. */
static inline bool span_piece(const oq_format *f, const oq_planes *planes, span_number *dst, int64_t row,
                              int64_t first, int64_t count, int64_t n, int64_t k)
{
    oq_group_piece p;
    f->piece(f, &p, planes, row, first, count, n, k);
    if ((p.table && p.first % 2 != 0) || (p.lead % 16 != 0 && p.lead < count)) return false;
    int64_t end = p.lead;
    for (int64_t i = 0, g = 0; i < count; i = end, end += f->block_k, g++) {
        const int64_t many = (end < count ? end : count) - i;
        if (p.table)
            piece_code4(dst + i, p.codes + (p.first + i) / 2, many, p.table, p.offset[g], p.scale[g]);
        else
            piece_e4m3(dst + i, p.codes + p.first + i, many, p.scale[g]);
    }
    return true;
}

/* Where a row's codes begin, and how many bytes of them stand for so many columns: near enough to fetch them early. */
typedef struct codes_of_row {
    const char *data;
    size_t row_bytes;
    int64_t k;
} codes_of_row;

static inline codes_of_row codes_init(const oq_panel_job *job)
{
    const oq_linear_spec *const s = job->args->spec;
    const oq_format *const f = s->scheme.weight;
    const size_t bytes = f->plane_bytes(f, OQ_PLANE_DATA, s->n, s->k);
    return (codes_of_row){job->planes.plane[OQ_PLANE_DATA], bytes / (size_t)s->n, s->k};
}

/* ---- columns of a row ---------------------------------------------------------------------------------------- */

/* By the format itself, a piece at a time. */
static inline void span_general(const oq_format *f, const oq_planes *planes, span_number *dst, int64_t row,
                                int64_t first, int64_t count, int64_t n, int64_t k)
{
    float part[OQ_PIECE];
    for (int64_t i = 0; i < count; i += OQ_PIECE) {
        const int64_t many = count - i < OQ_PIECE ? count - i : OQ_PIECE;
        f->decode_span(f, part, planes, row, first + i, many, n, k);
        for (int64_t j = many; j % 16; j++) part[j] = 0.0f;
        span_put_row(dst + i, part, many);
    }
}

/* Columns [first, first + count) of a row; up to 15 more numbers are written. */
static inline void decode_columns(const oq_linear_spec *spec, const oq_planes *planes, span_number *dst, int64_t row,
                                  int64_t first, int64_t count)
{
    const oq_format *const f = spec->scheme.weight;
    const int64_t n = spec->n, k = spec->k;
    if (f->block) {
        const int64_t at = row * k + first, elems = f->block->elems, blocks = count / elems;
        const uint8_t *const src = (const uint8_t *)planes->plane[OQ_PLANE_DATA] + at / elems * f->block->bytes;
        const bool aligned = at % elems == 0 && span_blocks(f, dst, src, blocks);
        const int64_t done = aligned ? blocks * elems : 0;
        if (done < count) span_general(f, planes, dst + done, row, first + done, count - done, n, k);
        return;
    }
    if (span_groups(f, planes, dst, row, first, count, k)) return;
    for (int64_t i = 0; i < count; i += OQ_PIECE) {
        const int64_t many = count - i < OQ_PIECE ? count - i : OQ_PIECE;
        if (!f->piece || !span_piece(f, planes, dst + i, row, first + i, many, n, k))
            span_general(f, planes, dst + i, row, first + i, many, n, k);
    }
}

#endif
