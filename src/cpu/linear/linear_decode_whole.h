/* linear_decode_whole.h -- columns of a row of W as whole numbers of 16 bits, exact, with an f32 scale for each group of
 * columns and, where something is added to all columns of a run, that number; for products with x in fixed point
 * (linear_fixed.h). A group is as long as its sums stay below 2^31: scales of sub-blocks that are whole numbers are
 * multiplied into the codes. A format is one row of whole_blocks, or one line of whole_planes. Included behind WHOLE_NR,
 * the columns of a panel. */
#ifndef OQ_CPU_LINEAR_LINEAR_DECODE_WHOLE_H
#define OQ_CPU_LINEAR_LINEAR_DECODE_WHOLE_H

#include "cpu/linear/linear_few_codes.h"

enum { WHOLE_CHUNK = OQ_PIECE }; /* columns that are decoded at once: whole groups and whole blocks */

/* Where a row's numbers go, and its column of scales in the panel: that of group g at scale[g * step], what is added to its
 * runs behind it, WHOLE_NR apart. */
typedef struct whole_to {
    int16_t *number;
    float *scale;
    int64_t step;
} whole_to;

static inline void whole_put16(int16_t *dst, b16 codes)
{
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm256_cvtepi8_epi16(codes));
}

static inline void whole_put32(int16_t *dst, b16 low, b16 high)
{
    whole_put16(dst, low);
    whole_put16(dst + 16, high);
}

/* Sixteen codes times a whole number. */
static inline void whole_times16(int16_t *dst, b16 codes, int by)
{
    _mm256_storeu_si256((__m256i *)(void *)dst,
                        _mm256_mullo_epi16(_mm256_cvtepi8_epi16(codes), _mm256_set1_epi16((short)by)));
}

/* ---- blocks of GGUF: one at a time ------------------------------------------------------------------------- */

static inline void whole_q4_0(whole_to to, const uint8_t *b)
{
    const b16 bytes = codes16(b + 2), middle = b16_set(8);
    whole_put32(to.number, b16_sub(low_nibbles(bytes), middle), b16_sub(high_nibbles(bytes), middle));
    *to.scale = f16_at(b);
}

static inline void whole_q4_1(whole_to to, const uint8_t *b)
{
    const b16 bytes = codes16(b + 4);
    whole_put32(to.number, low_nibbles(bytes), high_nibbles(bytes));
    to.scale[0] = f16_at(b);
    to.scale[WHOLE_NR] = f16_at(b + 2);
}

/* The fifth bits of 32 codes stand in a dword. */
static inline void whole_five(whole_to to, const uint8_t *codes, const uint8_t *fifth, int middle)
{
    static const uint8_t each[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    static const uint8_t spread[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                       2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
    uint32_t word;
    memcpy(&word, fifth, sizeof word);
    const b16 bits = b16_four(word), bit = b16_load(each), sixteen = b16_set(16),
              less = b16_set((uint8_t)middle);
    const b16 one = b16_lookup(bits, b16_load(spread)), two = b16_lookup(bits, b16_load(spread + 16)),
              bytes = codes16(codes);
    const b16 low = b16_or(low_nibbles(bytes), b16_and(b16_equal(b16_and(one, bit), bit), sixteen));
    const b16 high = b16_or(high_nibbles(bytes), b16_and(b16_equal(b16_and(two, bit), bit), sixteen));
    whole_put32(to.number, b16_sub(low, less), b16_sub(high, less));
}

static inline void whole_q5_0(whole_to to, const uint8_t *b)
{
    whole_five(to, b + 6, b + 2, 16);
    *to.scale = f16_at(b);
}

static inline void whole_q5_1(whole_to to, const uint8_t *b)
{
    whole_five(to, b + 8, b + 4, 0);
    to.scale[0] = f16_at(b);
    to.scale[WHOLE_NR] = f16_at(b + 2);
}

static inline void whole_q8_0(whole_to to, const uint8_t *b)
{
    whole_put32(to.number, codes16(b + 2), codes16(b + 18));
    *to.scale = f16_at(b);
}

static inline void whole_levels(int16_t *dst, b16 bytes)
{
    const b16 levels = b16_load(oq_iq4_levels);
    whole_put32(dst, b16_lookup(levels, low_nibbles(bytes)), b16_lookup(levels, high_nibbles(bytes)));
}

static inline void whole_iq4_nl(whole_to to, const uint8_t *b)
{
    whole_levels(to.number, codes16(b + 2));
    *to.scale = f16_at(b);
}

static inline void whole_iq4_xs(whole_to to, const uint8_t *b)
{
    const float d = f16_at(b);
    const int high = oq_block_u16(b + 2);
    for (int s = 0; s < 8; s++) {
        const int low = b[4 + s / 2] >> 4 * (s % 2) & 15;
        whole_levels(to.number + 32 * s, codes16(b + 8 + 16 * s));
        to.scale[s * to.step] = d * (float)((low | (high >> 2 * s & 3) << 4) - 32);
    }
}

/* Twice the numbers under half the scale. */
static inline void whole_mxfp4(whole_to to, const uint8_t *b)
{
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const b16 bytes = codes16(b + 1), table = b16_load(twice);
    whole_put32(to.number, b16_lookup(table, low_nibbles(bytes)), b16_lookup(table, high_nibbles(bytes)));
    *to.scale = oq_f32_from_bits(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23);
}

/* Groups of 128; runs of 16. */
static inline void whole_q2_k(whole_to to, const uint8_t *b)
{
    const float d = f16_at(b + 80), dmin = f16_at(b + 82);
    for (int s = 0; s < 16; s++) { /* of sixteen columns */
        const uint8_t *const qs = b + 16 + 32 * (s / 8) + 16 * (s % 2);
        float *const scale = to.scale + s / 8 * to.step;
        whole_times16(to.number + 16 * s, two_bits(codes16(qs), 2 * (s % 8 / 2)), b[s] & 15);
        scale[0] = d;
        scale[(1 + s % 8) * WHOLE_NR] = -dmin * (float)(b[s] >> 4);
    }
}

static inline void whole_q3_k(whole_to to, const uint8_t *b)
{
    int8_t by[16];
    oq_q3_scales_read(b + 96, by);
    for (int s = 0; s < 16; s++) {
        const b16 two = two_bits(codes16(b + 32 + 32 * (s / 8) + 16 * (s % 2)), 2 * (s % 8 / 2));
        const b16 third = b16_up(b16_and(b16_down(codes16(b + 16 * (s % 2)), s / 2), b16_set(1)), 2);
        whole_times16(to.number + 16 * s, b16_sub(b16_or(two, third), b16_set(4)), by[s]);
        to.scale[s / 8 * to.step] = f16_at(b + 108);
    }
}

/* Groups of 128 (of five bits 64), runs of 32. */
static inline void whole_k(whole_to to, const uint8_t *b, const uint8_t *codes, const uint8_t *fifth,
                           int runs)
{
    const float d = f16_at(b), dmin = f16_at(b + 2);
    uint8_t scale[8], min[8];
    oq_k_scales_read(b + 4, scale, min);
    for (int s = 0; s < 8; s++) {
        for (int half = 0; half < 2; half++) {
            const b16 bytes = codes16(codes + 32 * (s / 2) + 16 * half);
            b16 code = s % 2 ? high_nibbles(bytes) : low_nibbles(bytes);
            if (fifth)
                code = b16_or(code, b16_up(b16_and(b16_down(codes16(fifth + 16 * half), s), b16_set(1)), 4));
            whole_times16(to.number + 32 * s + 16 * half, code, scale[s]);
        }
        float *const at = to.scale + s / runs * to.step;
        at[0] = d;
        at[(1 + s % runs) * WHOLE_NR] = -dmin * (float)min[s];
    }
}

static inline void whole_q4_k(whole_to to, const uint8_t *b)
{
    whole_k(to, b, b + 16, NULL, 4);
}

static inline void whole_q5_k(whole_to to, const uint8_t *b)
{
    whole_k(to, b, b + 48, b + 16, 2);
}

static inline void whole_q6_k(whole_to to, const uint8_t *b)
{
    const int8_t *const by = (const int8_t *)b + 192;
    for (int s = 0; s < 16; s++) {
        const int half = s / 8, j = s % 8 / 2, side = 16 * (s % 2);
        const b16 bytes = codes16(b + 64 * half + 32 * (j % 2) + side);
        const b16 low = j / 2 ? high_nibbles(bytes) : low_nibbles(bytes);
        const b16 high = b16_up(two_bits(codes16(b + 128 + 32 * half + side), 2 * j), 4);
        whole_times16(to.number + 16 * s, b16_sub(b16_or(low, high), b16_set(32)), by[s]);
        to.scale[s / 2 * to.step] = f16_at(b + 208);
    }
}

#define WHOLE_BLOCKS(name)                                                                                   \
    static void whole_blocks_##name(whole_to to, const uint8_t *b, int64_t blocks, const oq_block *block,    \
                                    int columns)                                                             \
    {                                                                                                        \
        for (int64_t i = 0; i < blocks; i++, b += block->bytes) {                                            \
            whole_##name(to, b);                                                                             \
            to.number += block->elems;                                                                       \
            to.scale += block->elems / columns * to.step;                                                    \
        }                                                                                                    \
    }
WHOLE_BLOCKS(q4_0)
WHOLE_BLOCKS(q4_1)
WHOLE_BLOCKS(q5_0)
WHOLE_BLOCKS(q5_1)
WHOLE_BLOCKS(q8_0)
WHOLE_BLOCKS(iq4_nl)
WHOLE_BLOCKS(iq4_xs)
WHOLE_BLOCKS(mxfp4)
WHOLE_BLOCKS(q2_k)
WHOLE_BLOCKS(q3_k)
WHOLE_BLOCKS(q4_k)
WHOLE_BLOCKS(q5_k)
WHOLE_BLOCKS(q6_k)

typedef void (*whole_blocks_fn)(whole_to to, const uint8_t *b, int64_t blocks, const oq_block *block,
                                int columns);

/* How a format's numbers are grouped. `digits` of x: the largest sum of a group, columns * largest number * 2^digits, is
 * below 2^31. */
typedef struct whole_way {
    int columns, sums, digits;
    whole_blocks_fn blocks; /* NULL: codes and scales in planes */
    float times;            /* entries of a table are multiplied by it to be whole numbers, scales divided */
} whole_way;

static inline whole_way whole_blocks_of(const oq_format *f)
{
    static const struct {
        const oq_format *f;
        whole_way way;
    } rows[] = {
        {&oq_format_q4_0, {32, 0, 15, whole_blocks_q4_0, 1}},
        {&oq_format_q4_1, {32, 1, 15, whole_blocks_q4_1, 1}},
        {&oq_format_q5_0, {32, 0, 15, whole_blocks_q5_0, 1}},
        {&oq_format_q5_1, {32, 1, 15, whole_blocks_q5_1, 1}},
        {&oq_format_q8_0, {32, 0, 15, whole_blocks_q8_0, 1}},
        {&oq_format_iq4_nl, {32, 0, 15, whole_blocks_iq4_nl, 1}},
        {&oq_format_iq4_xs, {32, 0, 15, whole_blocks_iq4_xs, 1}},
        {&oq_format_mxfp4_gguf, {32, 0, 15, whole_blocks_mxfp4, 1}},
        {&oq_format_q2_k, {128, 8, 15, whole_blocks_q2_k, 1}},
        {&oq_format_q3_k, {128, 0, 15, whole_blocks_q3_k, 1}},
        {&oq_format_q4_k, {128, 4, 14, whole_blocks_q4_k, 1}},
        {&oq_format_q5_k, {64, 2, 14, whole_blocks_q5_k, 1}},
        {&oq_format_q6_k, {32, 0, 14, whole_blocks_q6_k, 1}},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (rows[i].f == f) return rows[i].way;
    return (whole_way){0};
}

/* NF4's levels are no whole numbers: they are rounded to 4095ths, FP4's are 192ths. Left out: longer groups, whose sums would
 * not fit, and those of 16, for which f32 products are as fast. */
static inline whole_way whole_planes_of(const oq_format *f)
{
    const bool nf4 = f->flat && strncmp(f->name, "nf4_", 4) == 0,
               fp4 = f->flat && strncmp(f->name, "fp4_", 4) == 0;
    if ((nf4 || fp4) && f->block_k <= 128)
        return nf4 ? (whole_way){32, 0, 14, NULL, 4095} : (whole_way){f->block_k, 0, 15, NULL, 192};
    const bool e2m1 = f == &oq_format_mxfp4 || f == &oq_format_mxfp4_q725;
    const bool whole = (f->int_bits == 4 && f->piece) || f->int_bits == 8;
    if ((!e2m1 && !whole) || f->block_k < 32 || f->block_k > 128) return (whole_way){0};
    return (whole_way){f->block_k, 0, 15, NULL, e2m1 ? 2.0f : 1.0f};
}

/* No columns: another format, or rows that end within a group. */
static inline whole_way whole_way_of(const oq_linear_spec *spec)
{
    const oq_format *const f = spec->scheme.weight;
    const whole_way way = f->block ? whole_blocks_of(f) : whole_planes_of(f);
    const int64_t whole = f->block ? f->block->elems : f->block_k;
    return !way.columns || spec->scheme.act || spec->k % whole ? (whole_way){0} : way;
}

/* ---- codes and scales in planes ------------------------------------------------------------------------------ */

/* What codes of four bits stand for, as words twice. */
static inline __m512i whole_table(const oq_linear_spec *spec, const oq_planes *planes, float times)
{
    oq_group_piece part;
    int16_t words[32];
    const oq_format *const f = spec->scheme.weight;
    f->piece(f, &part, planes, 0, 0, oq_min_i64(OQ_PIECE, spec->k), spec->n, spec->k);
    const float middle = f->planes & 1u << OQ_PLANE_ZERO ? 0.0f : part.offset[0];
    for (int i = 0; i < 32; i++) words[i] = (int16_t)rintf((part.table[i % 16] - middle) * times);
    return _mm512_loadu_si512(words);
}

/* 16 codes (of a byte, or of four bits) less a zero point. */
static inline void whole_bytes16(int16_t *dst, const uint8_t *codes, int zero)
{
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm256_sub_epi16(_mm256_cvtepu8_epi16(codes16(codes)),
                                                                 _mm256_set1_epi16((short)zero)));
}

static inline void whole_nibbles16(int16_t *dst, const uint8_t *codes, __m512i table, int zero)
{
    const __m128i bytes = _mm_loadl_epi64((const __m128i *)(const void *)codes);
    const __m256i words = _mm256_cvtepu8_epi32(bytes),
                  pairs = _mm256_or_si256(words, _mm256_slli_epi32(words, 12));
    const __m256i numbers =
        _mm512_castsi512_si256(_mm512_permutexvar_epi16(_mm512_castsi256_si512(pairs), table));
    _mm256_storeu_si256((__m256i *)(void *)dst, _mm256_sub_epi16(numbers, _mm256_set1_epi16((short)zero)));
}

static inline void whole_planes(const whole_way *way, const oq_linear_spec *spec, const oq_planes *planes,
                                __m512i table, whole_to to, int64_t row, int64_t first, int64_t count)
{
    const oq_format *const f = spec->scheme.weight;
    const bool bytes = f->int_bits == 8, zeros = f->planes & 1u << OQ_PLANE_ZERO;
    const int64_t at = row * spec->k + first, run = f->block_k;
    const uint8_t *const codes = (const uint8_t *)planes->plane[OQ_PLANE_DATA] + (bytes ? at : at / 2);
    const few_piece piece = {.spec = spec, .planes = planes, .row = row, .first = first, .count = count};
    few_scales scales;
    few_scales_of(&piece, &scales);
    for (int64_t i = 0; i < count; i += 16) {
        const int zero = zeros ? (int)scales.offset[i / run] : bytes ? 128 : 0;
        if (bytes)
            whole_bytes16(to.number + i, codes + i, zero);
        else
            whole_nibbles16(to.number + i, codes + i / 2, table, zero);
        to.scale[i / way->columns * to.step] = scales.scale[i / run] / way->times;
    }
}

#endif
