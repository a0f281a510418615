/* linear_decode_numbers.h -- blocks and groups of codes to numbers one by one: linear_decode_words.h for where numbers are
 * stored as f32. Included by linear_decode_simd.h. */
#ifndef OQ_CPU_LINEAR_LINEAR_DECODE_NUMBERS_H
#define OQ_CPU_LINEAR_LINEAR_DECODE_NUMBERS_H

/* ---- blocks of GGUF ---- */

/* Bits first ... first + 15 of a word, as 0 or 16, one a byte. */
static inline __m128i fifth_bits(uint32_t word, int first)
{
    const __m128i each = _mm_set1_epi64x((long long)0x8040201008040201ull);
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i bits = _mm_shuffle_epi8(_mm_cvtsi32_si128((int)(word >> first)), spread);
    return _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(bits, each), each), _mm_set1_epi8(16));
}

static inline void put_with_min(span_number *dst, __m128i low, __m128i high, float scale, float min)
{
    const f16x by = f16x_set(scale), from = f16x_set(min);
    span_put32(dst, f16x_add(f16x_mul(f16x_u8(low), by), from), f16x_add(f16x_mul(f16x_u8(high), by), from));
}

static inline void put_less_min(span_number *dst, __m128i low, __m128i high, float scale, float min)
{
    const f16x by = f16x_set(scale), from = f16x_set(min);
    span_put32(dst, f16x_sub(f16x_mul(f16x_u8(low), by), from), f16x_sub(f16x_mul(f16x_u8(high), by), from));
}

static inline void block_q4_0(span_number *dst, const uint8_t *b)
{
    const __m128i bytes = codes16(b + 2), middle = _mm_set1_epi8(8);
    put_signed(dst, _mm_sub_epi8(low_nibbles(bytes), middle), _mm_sub_epi8(high_nibbles(bytes), middle), f16_at(b));
}

static inline void block_q4_1(span_number *dst, const uint8_t *b)
{
    const __m128i bytes = codes16(b + 4);
    put_with_min(dst, low_nibbles(bytes), high_nibbles(bytes), f16_at(b), f16_at(b + 2));
}

static inline uint32_t word_at(const uint8_t *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

static inline void block_q5_0(span_number *dst, const uint8_t *b)
{
    const __m128i bytes = codes16(b + 6), middle = _mm_set1_epi8(16);
    const uint32_t fifth = word_at(b + 2);
    const __m128i low = _mm_or_si128(low_nibbles(bytes), fifth_bits(fifth, 0));
    const __m128i high = _mm_or_si128(high_nibbles(bytes), fifth_bits(fifth, 16));
    put_signed(dst, _mm_sub_epi8(low, middle), _mm_sub_epi8(high, middle), f16_at(b));
}

static inline void block_q5_1(span_number *dst, const uint8_t *b)
{
    const __m128i bytes = codes16(b + 8);
    const uint32_t fifth = word_at(b + 4);
    put_with_min(dst, _mm_or_si128(low_nibbles(bytes), fifth_bits(fifth, 0)),
                 _mm_or_si128(high_nibbles(bytes), fifth_bits(fifth, 16)), f16_at(b), f16_at(b + 2));
}

static inline __m128i iq4_levels(void)
{
    return _mm_loadu_si128((const __m128i *)(const void *)oq_iq4_levels);
}

static inline void block_iq4_nl(span_number *dst, const uint8_t *b)
{
    const __m128i bytes = codes16(b + 2), levels = iq4_levels();
    put_signed(dst, _mm_shuffle_epi8(levels, low_nibbles(bytes)), _mm_shuffle_epi8(levels, high_nibbles(bytes)),
               f16_at(b));
}

/* Twice the number, so that the scale is a power that exists; the table of floats has -0 as well. */
static inline f16x e2m1_twice(__m128i codes)
{
    const f16x x = f16x_table(codes, oq_e2m1_table);
    return f16x_add(x, x);
}

static inline void block_mxfp4(span_number *dst, const uint8_t *b)
{
    const __m128i bytes = codes16(b + 1);
    const f16x by = f16x_set(oq_f32_from_bits(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23));
    span_put32(dst, f16x_mul(e2m1_twice(low_nibbles(bytes)), by), f16x_mul(e2m1_twice(high_nibbles(bytes)), by));
}

static inline void block_q4_k(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b), dmin = f16_at(b + 2);
    uint8_t scale[8], min[8];
    oq_k_scales_read(b + 4, scale, min);
    for (int pair = 0; pair < 4; pair++, dst += 64) {
        const __m128i one = codes16(b + 16 + 32 * pair), two = codes16(b + 32 + 32 * pair);
        const int s = 2 * pair;
        put_less_min(dst, low_nibbles(one), low_nibbles(two), d * (float)scale[s], dmin * (float)min[s]);
        put_less_min(dst + 32, high_nibbles(one), high_nibbles(two), d * (float)scale[s + 1],
                     dmin * (float)min[s + 1]);
    }
}

/* Bit 0 of each byte as 16, and the next bit to its place. */
static inline __m128i next_fifth(__m128i *bits)
{
    const __m128i sixteen = _mm_slli_epi16(_mm_and_si128(*bits, _mm_set1_epi8(1)), 4);
    *bits = _mm_srli_epi16(*bits, 1);
    return sixteen;
}

static inline void block_q5_k(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b), dmin = f16_at(b + 2);
    __m128i fifth1 = codes16(b + 16), fifth2 = codes16(b + 32);
    uint8_t scale[8], min[8];
    oq_k_scales_read(b + 4, scale, min);
    for (int pair = 0; pair < 4; pair++, dst += 64) {
        const __m128i one = codes16(b + 48 + 32 * pair), two = codes16(b + 64 + 32 * pair);
        const int s = 2 * pair;
        put_less_min(dst, _mm_or_si128(low_nibbles(one), next_fifth(&fifth1)),
                     _mm_or_si128(low_nibbles(two), next_fifth(&fifth2)), d * (float)scale[s], dmin * (float)min[s]);
        put_less_min(dst + 32, _mm_or_si128(high_nibbles(one), next_fifth(&fifth1)),
                     _mm_or_si128(high_nibbles(two), next_fifth(&fifth2)), d * (float)scale[s + 1],
                     dmin * (float)min[s + 1]);
    }
}

static inline void block_q6_k(span_number *dst, const uint8_t *b)
{
    const int8_t *scale = (const int8_t *)b + 192;
    const float d = f16_at(b + 208);
    const __m128i middle = _mm_set1_epi8(32);
    for (int half = 0; half < 2; half++)
        for (int j = 0; j < 4; j++, dst += 32, scale += 2) {
            const uint8_t *const low = b + 64 * half + 32 * (j % 2), *const high = b + 128 + 32 * half;
            __m128i one = codes16(low), two = codes16(low + 16);
            one = j / 2 ? high_nibbles(one) : low_nibbles(one);
            two = j / 2 ? high_nibbles(two) : low_nibbles(two);
            one = _mm_or_si128(one, _mm_slli_epi16(two_bits(codes16(high), 2 * j), 4));
            two = _mm_or_si128(two, _mm_slli_epi16(two_bits(codes16(high + 16), 2 * j), 4));
            span_put32(dst, f16x_mul(f16x_i8(_mm_sub_epi8(one, middle)), f16x_set(d * (float)scale[0])),
                       f16x_mul(f16x_i8(_mm_sub_epi8(two, middle)), f16x_set(d * (float)scale[1])));
        }
}

static inline void block_iq4_xs(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b);
    const int high = oq_block_u16(b + 2);
    const __m128i levels = iq4_levels();
    for (int s = 0; s < 8; s++, dst += 32) {
        const int low = b[4 + s / 2] >> 4 * (s % 2) & 15;
        const __m128i bytes = codes16(b + 8 + 16 * s);
        put_signed(dst, _mm_shuffle_epi8(levels, low_nibbles(bytes)), _mm_shuffle_epi8(levels, high_nibbles(bytes)),
                   d * (float)((low | (high >> 2 * s & 3) << 4) - 32));
    }
}

/* ---- groups of other formats ---- */

/* 32 four-bit codes, the first of a byte in its low half, under two scales. */
static inline void put_code4(span_number *dst, const uint8_t *codes, const float *table, float scale1, float scale2)
{
    const __m128i bytes = codes16(codes), low = low_nibbles(bytes), high = high_nibbles(bytes);
    span_put32(dst, f16x_mul(f16x_table(_mm_unpacklo_epi8(low, high), table), f16x_set(scale1)),
               f16x_mul(f16x_table(_mm_unpackhi_epi8(low, high), table), f16x_set(scale2)));
}

/* (table[code] - offset) * scale for n four-bit codes from an even one on; whole sixteens are written. */
static inline void piece_code4(span_number *dst, const uint8_t *codes, int64_t n, const float *table, float offset,
                               float scale)
{
    const f16x from = f16x_set(offset), by = f16x_set(scale);
    int64_t i = 0;
    for (; n - i >= 32; i += 32) {
        const __m128i bytes = codes16(codes + i / 2), low = low_nibbles(bytes), high = high_nibbles(bytes);
        const f16x one = f16x_table(_mm_unpacklo_epi8(low, high), table);
        const f16x two = f16x_table(_mm_unpackhi_epi8(low, high), table);
        span_put32(dst + i, f16x_mul(f16x_sub(one, from), by), f16x_mul(f16x_sub(two, from), by));
    }
    for (; i < n; i += 16) {
        uint64_t word = 0;
        if (n - i >= 16)
            memcpy(&word, codes + i / 2, 8);
        else
            memcpy(&word, codes + i / 2, (size_t)(n - i + 1) / 2);
        const __m128i bytes = _mm_cvtsi64_si128((long long)word);
        const __m128i order = _mm_unpacklo_epi8(low_nibbles(bytes), high_nibbles(bytes));
        span_put16(dst + i, f16x_mul(f16x_sub(f16x_table(order, table), from), by));
    }
}

#endif
