/* linear_decode_words.h -- codes of four and five bits as entries of a table of bf16: what a group's scale (and offset) makes
 * of the numbers that its codes can name is worked out once for the group, and a permutation of words looks 32 codes up. The
 * same operations on the same numbers as code by code, so the same bits. Included by linear_decode_simd.h where numbers are
 * stored as bf16, on x86. */
#ifndef OQ_CPU_LINEAR_LINEAR_DECODE_WORDS_H
#define OQ_CPU_LINEAR_LINEAR_DECODE_WORDS_H

/* Sixteen numbers, all twice: a permutation takes five bits of a word as its index, of which the last then counts for
 * nothing. */
static inline __m512i words_of(f16x numbers)
{
    return _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh(numbers));
}

static inline __m512i words_of_two(f16x first, f16x second)
{
    return (__m512i)_mm512_cvtne2ps_pbh(second, first);
}

static inline void words_put(span_number *dst, __m512i index, __m512i table)
{
    _mm512_storeu_si512(dst, _mm512_permutexvar_epi16(index, table));
}

/* The codes 0 to 15 less a number. */
static inline f16x words_count(float less)
{
    const f16x count = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return f16x_sub(count, f16x_set(less));
}

/* ---- 32 four-bit codes as indexes, with other bits above them ---- */

/* The low halves of sixteen bytes, then the high ones. */
static inline __m512i words_by_halves(const uint8_t *src)
{
    const __m128i bytes = codes16(src);
    return _mm512_cvtepu8_epi16(
        _mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1));
}

/* The two of a byte side by side, the low one first. */
static inline __m512i words_in_pairs(__m128i bytes)
{
    const __m512i both = _mm512_cvtepu8_epi32(bytes);
    return _mm512_or_si512(both, _mm512_slli_epi32(both, 12));
}

/* The low four bits of the first, the rest of the second. */
static inline __m512i words_join(__m512i low, __m512i rest)
{
    return _mm512_ternarylogic_epi64(_mm512_set1_epi16(15), low, rest, 0xca);
}

/* ---- blocks of GGUF ---- */

static inline void block_q4_0(span_number *dst, const uint8_t *b)
{
    words_put(dst, words_by_halves(b + 2), words_of(f16x_mul(words_count(8), f16x_set(f16_at(b)))));
}

static inline void block_q4_1(span_number *dst, const uint8_t *b)
{
    const f16x numbers = f16x_mul(words_count(0), f16x_set(f16_at(b)));
    words_put(dst, words_by_halves(b + 4), words_of(f16x_add(numbers, f16x_set(f16_at(b + 2)))));
}

/* Bits of a dword as the fifth ones of 32 indexes. */
static inline __m512i words_fifth(const uint8_t *at)
{
    uint32_t bits;
    memcpy(&bits, at, sizeof bits);
    return _mm512_maskz_set1_epi16(bits, 16);
}

static inline void block_q5_0(span_number *dst, const uint8_t *b)
{
    const f16x by = f16x_set(f16_at(b));
    words_put(dst, words_join(words_by_halves(b + 6), words_fifth(b + 2)),
              words_of_two(f16x_mul(words_count(16), by), f16x_mul(words_count(0), by)));
}

static inline void block_q5_1(span_number *dst, const uint8_t *b)
{
    const f16x by = f16x_set(f16_at(b)), from = f16x_set(f16_at(b + 2));
    words_put(dst, words_join(words_by_halves(b + 8), words_fifth(b + 4)),
              words_of_two(f16x_add(f16x_mul(words_count(0), by), from),
                           f16x_add(f16x_mul(words_count(-16), by), from)));
}

/* Non-linear levels of IQ4. */
static inline f16x words_levels(float by)
{
    return f16x_mul(f16x_i8(codes16((const uint8_t *)oq_iq4_levels)), f16x_set(by));
}

static inline void block_iq4_nl(span_number *dst, const uint8_t *b)
{
    words_put(dst, words_by_halves(b + 2), words_of(words_levels(f16_at(b))));
}

static inline void block_iq4_xs(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b);
    const int high = oq_block_u16(b + 2);
    for (int s = 0; s < 8; s++, dst += 32) {
        const int low = b[4 + s / 2] >> 4 * (s % 2) & 15;
        words_put(dst, words_by_halves(b + 8 + 16 * s), words_of(words_levels(d * (float)((low | (high >> 2 * s & 3) << 4) - 32))));
    }
}

/* Twice the numbers under half the scale, so that it is a power that exists. */
static inline void block_mxfp4(span_number *dst, const uint8_t *b)
{
    const f16x numbers = f16x_load(oq_e2m1_table);
    const f16x by = f16x_set(oq_f32_from_bits(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23));
    words_put(dst, words_by_halves(b + 1), words_of(f16x_mul(f16x_add(numbers, numbers), by)));
}

/* Scales and minima of the eight groups of a block. */
typedef struct words_k {
    float scale[8], min[8];
} words_k;

static inline words_k words_k_of(const uint8_t *b)
{
    uint64_t scale, min;
    words_k out;
    k_scales(b + 4, &scale, &min);
    const __m256 scales = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)scale)));
    const __m256 mins = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)min)));
    _mm256_storeu_ps(out.scale, _mm256_mul_ps(scales, _mm256_set1_ps(f16_at(b))));
    _mm256_storeu_ps(out.min, _mm256_mul_ps(mins, _mm256_set1_ps(f16_at(b + 2))));
    return out;
}

/* The numbers of sixteen codes from 0 or 16 on. */
static inline f16x words_less_min(const words_k *k, int group, float less)
{
    return f16x_sub(f16x_mul(words_count(less), f16x_set(k->scale[group])), f16x_set(k->min[group]));
}

static inline __m512i words_bytes(const uint8_t *src)
{
    return _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)src));
}

static inline void block_q4_k(span_number *dst, const uint8_t *b)
{
    const words_k k = words_k_of(b);
    for (int s = 0; s < 8; s += 2, dst += 64) {
        const __m512i both = words_bytes(b + 16 + 16 * s);
        words_put(dst, both, words_of(words_less_min(&k, s, 0)));
        words_put(dst + 32, _mm512_srli_epi16(both, 4), words_of(words_less_min(&k, s + 1, 0)));
    }
}

static inline void block_q5_k(span_number *dst, const uint8_t *b)
{
    const words_k k = words_k_of(b);
    __m512i fifth = _mm512_slli_epi16(words_bytes(b + 16), 4); /* bit 4 is the next group's */
    for (int s = 0; s < 8; s++, dst += 32) {
        const __m512i both = words_bytes(b + 48 + 16 * (s & ~1)), low = s & 1 ? _mm512_srli_epi16(both, 4) : both;
        words_put(dst, words_join(low, fifth), words_of_two(words_less_min(&k, s, 0), words_less_min(&k, s, -16)));
        fifth = _mm512_srli_epi16(fifth, 1);
    }
}

/* Six bits name more numbers than a group has: they are multiplied code by code. */
static inline void block_q6_k(span_number *dst, const uint8_t *b)
{
    const __m512i left = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    const __m512i right = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(2), 1);
    const __m512i top = _mm512_set1_epi8(0x30), low = _mm512_set1_epi8(15), middle = _mm512_set1_epi8(32);
    float scale[16];
    f16x_store(scale, f16x_mul(f16x_i8(codes16(b + 192)), f16x_set(f16_at(b + 208))));
    for (int half = 0; half < 2; half++) {
        const __m512i four = _mm512_loadu_si512(b + 64 * half);
        const __m512i two = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(const void *)(b + 128 + 32 * half)));
        for (int j = 0; j < 2; j++, dst += 64) { /* a | (b & c) of both halves of the codes' low bits */
            const __m512i high = _mm512_and_si512(j ? _mm512_srlv_epi16(two, right) : _mm512_sllv_epi16(two, left), top);
            const __m512i code = _mm512_ternarylogic_epi64(high, j ? _mm512_srli_epi16(four, 4) : four, low, 0xf8);
            const __m512i codes = _mm512_sub_epi8(code, middle);
            const float *const by = scale + 8 * half + 4 * j;
            span_put32(dst, f16x_mul(f16x_i8(_mm512_castsi512_si128(codes)), f16x_set(by[0])),
                       f16x_mul(f16x_i8(_mm512_extracti32x4_epi32(codes, 1)), f16x_set(by[1])));
            span_put32(dst + 32, f16x_mul(f16x_i8(_mm512_extracti32x4_epi32(codes, 2)), f16x_set(by[2])),
                       f16x_mul(f16x_i8(_mm512_extracti32x4_epi32(codes, 3)), f16x_set(by[3])));
        }
    }
}

/* ---- groups of other formats ---- */

/* 32 codes under one scale for each sixteen. */
static inline void put_code4(span_number *dst, const uint8_t *codes, table16 table, float scale1, float scale2)
{
    const __m512i second = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    const f16x numbers = table;
    words_put(dst, words_join(words_in_pairs(codes16(codes)), second),
              words_of_two(f16x_mul(numbers, f16x_set(scale1)), f16x_mul(numbers, f16x_set(scale2))));
}

/* (table[code] - offset) * scale for n codes from an even one on; whole sixteens are written. */
static inline void piece_code4(span_number *dst, const uint8_t *codes, int64_t n, const float *table, float offset, float scale)
{
    const __m512i words = words_of(f16x_mul(f16x_sub(f16x_load(table), f16x_set(offset)), f16x_set(scale)));
    int64_t i = 0;
    for (; n - i >= 32; i += 32) words_put(dst + i, words_in_pairs(codes16(codes + i / 2)), words);
    for (; i < n; i += 16) {
        uint64_t bytes = 0;
        memcpy(&bytes, codes + i / 2, n - i >= 16 ? 8 : (size_t)(n - i + 1) / 2);
        const __m512i index = words_in_pairs(_mm_cvtsi64_si128((long long)bytes));
        _mm256_storeu_si256((__m256i *)(void *)(dst + i), _mm512_castsi512_si256(_mm512_permutexvar_epi16(index, words)));
    }
}

#endif
