/* linear_bytes_bf16.h -- codes of a byte, e4m3 or int8, as the bf16 numbers that they are: for panels of them and for rows of
 * them that meet x in registers. */
#ifndef OQ_CPU_LINEAR_LINEAR_BYTES_BF16_H
#define OQ_CPU_LINEAR_LINEAR_BYTES_BF16_H

#include <immintrin.h>
#include <stdbool.h>

/* bf16 of the e4m3 codes 0 to 7, the subnormal ones: 2^-9 times 0, 1, ... 7 in all 32 places that a code's five low
 * bits can name. */
static inline __m512i subnormals(void)
{
    const __m128i eight = _mm_setr_epi16(0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60);
    return _mm512_broadcast_i32x4(eight);
}

/* 32 e4m3 codes (16 pairs) to 32 bf16, exact, in integers: the fields move to their places and the exponent's bias from
 * 7 to 127; codes without an exponent are looked up, since the product takes subnormal bf16 as zero. */
static inline __m512i bf16_of_e4m3(__m256i codes)
{
    const __m512i code = _mm512_cvtepu8_epi16(codes);
    const __m512i fields = _mm512_slli_epi16(_mm512_and_si512(code, _mm512_set1_epi16(0x7f)), 4);
    const __m512i normal = _mm512_add_epi16(fields, _mm512_set1_epi16(120 << 7));
    const __mmask32 is_small = _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0x78));
    const __m512i magnitude = _mm512_mask_permutexvar_epi16(normal, is_small, code, subnormals());
    const __m512i sign = _mm512_slli_epi16(code, 8); /* and bits below it, which the mask drops */
    return _mm512_ternarylogic_epi64(magnitude, sign, _mm512_set1_epi16((short)0x8000),
                                     0xf8); /* a | (b & c) */
}

/* 32 int8 codes likewise: bf16 has the eight digits of 128. */
static inline __m512i bf16_of_i8(__m256i codes)
{
    const __m512 low = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(codes)));
    const __m512 high = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(codes, 1)));
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* The two bytes of each code's number: low and high ones, of codes below 128 and of those above. */
typedef struct code_bytes {
    __m512i low[4], high[4];
} code_bytes;

static inline code_bytes code_bytes_of(bool integers)
{
    code_bytes t;
    const __m512i first = _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44,
                                          43, 42, 41, 40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24,
                                          23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2,
                                          1, 0);
    for (int i = 0; i < 4; i++) {
        const __m512i codes = _mm512_add_epi8(first, _mm512_set1_epi8((char)(64 * i)));
        __m256i low[2], high[2];
        for (int h = 0; h < 2; h++) {
            const __m256i half = h ? _mm512_extracti64x4_epi64(codes, 1) : _mm512_castsi512_si256(codes);
            const __m512i words = integers ? bf16_of_i8(half) : bf16_of_e4m3(half);
            low[h] = _mm512_cvtepi16_epi8(words);
            high[h] = _mm512_cvtepi16_epi8(_mm512_srli_epi16(words, 8));
        }
        t.low[i] = _mm512_inserti64x4(_mm512_castsi256_si512(low[0]), low[1], 1);
        t.high[i] = _mm512_inserti64x4(_mm512_castsi256_si512(high[0]), high[1], 1);
    }
    return t;
}

/* 64 codes to two vectors: the first and the second eight of each quarter. e4m3 takes its sign along; below zero int8 has
 * other digits. */
static inline __attribute__((always_inline)) void bf16_of_quarters(__m512i out[2], __m512i v, const code_bytes *t,
                                                                   bool integers)
{
    const __m512i top = _mm512_set1_epi8((char)0x80);
    __m512i low = _mm512_permutex2var_epi8(t->low[0], v, t->low[1]);
    __m512i high = _mm512_permutex2var_epi8(t->high[0], v, t->high[1]);
    if (integers) {
        const __mmask64 below = _mm512_movepi8_mask(v);
        low = _mm512_mask_blend_epi8(below, low, _mm512_permutex2var_epi8(t->low[2], v, t->low[3]));
        high = _mm512_mask_blend_epi8(below, high, _mm512_permutex2var_epi8(t->high[2], v, t->high[3]));
    } else {
        high = _mm512_ternarylogic_epi64(high, v, top, 0xf8); /* a | (b & c) */
    }
    out[0] = _mm512_unpacklo_epi8(low, high);
    out[1] = _mm512_unpackhi_epi8(low, high);
}

/* 64 codes (32 pairs) to two vectors of pairs in their order. */
static inline __attribute__((always_inline)) void bf16_of_codes(__m512i out[2], __m512i codes, const code_bytes *t,
                                                                bool integers)
{
    const __m512i dealt = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    bf16_of_quarters(out, _mm512_permutexvar_epi64(dealt, codes), t, integers);
}

#endif
