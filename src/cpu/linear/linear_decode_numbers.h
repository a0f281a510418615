/* linear_decode_numbers.h -- blocks and groups of codes to numbers one by one: linear_decode_words.h for where numbers are
 * stored as f32, and for NEON. Included by linear_decode_simd.h. */
#ifndef OQ_CPU_LINEAR_LINEAR_DECODE_NUMBERS_H
#define OQ_CPU_LINEAR_LINEAR_DECODE_NUMBERS_H

/* ---- blocks of GGUF ---- */

/* Bits first ... first + 15 of a word, as 0 or 16, one a byte. */
static inline b16 fifth_bits(uint32_t word, int first)
{
    static const uint8_t each[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    static const uint8_t spread[16] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const b16 bit = b16_load(each), bits = b16_lookup(b16_four(word >> first), b16_load(spread));
    return b16_and(b16_equal(b16_and(bits, bit), bit), b16_set(16));
}

static inline void put_with_min(span_number *dst, b16 low, b16 high, float scale, float min)
{
    const f16x by = f16x_set(scale), from = f16x_set(min);
    span_put32(dst, f16x_add(f16x_mul(f16x_u8(low), by), from), f16x_add(f16x_mul(f16x_u8(high), by), from));
}

static inline void put_less_min(span_number *dst, b16 low, b16 high, float scale, float min)
{
    const f16x by = f16x_set(scale), from = f16x_set(min);
    span_put32(dst, f16x_sub(f16x_mul(f16x_u8(low), by), from), f16x_sub(f16x_mul(f16x_u8(high), by), from));
}

static inline void block_q4_0(span_number *dst, const uint8_t *b)
{
    const b16 bytes = codes16(b + 2), middle = b16_set(8);
    put_signed(dst, b16_sub(low_nibbles(bytes), middle), b16_sub(high_nibbles(bytes), middle), f16_at(b));
}

static inline void block_q4_1(span_number *dst, const uint8_t *b)
{
    const b16 bytes = codes16(b + 4);
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
    const b16 bytes = codes16(b + 6), middle = b16_set(16);
    const uint32_t fifth = word_at(b + 2);
    const b16 low = b16_or(low_nibbles(bytes), fifth_bits(fifth, 0));
    const b16 high = b16_or(high_nibbles(bytes), fifth_bits(fifth, 16));
    put_signed(dst, b16_sub(low, middle), b16_sub(high, middle), f16_at(b));
}

static inline void block_q5_1(span_number *dst, const uint8_t *b)
{
    const b16 bytes = codes16(b + 8);
    const uint32_t fifth = word_at(b + 4);
    put_with_min(dst, b16_or(low_nibbles(bytes), fifth_bits(fifth, 0)),
                 b16_or(high_nibbles(bytes), fifth_bits(fifth, 16)), f16_at(b), f16_at(b + 2));
}

static inline b16 iq4_levels(void)
{
    return b16_load(oq_iq4_levels);
}

static inline void block_iq4_nl(span_number *dst, const uint8_t *b)
{
    const b16 bytes = codes16(b + 2), levels = iq4_levels();
    put_signed(dst, b16_lookup(levels, low_nibbles(bytes)), b16_lookup(levels, high_nibbles(bytes)),
               f16_at(b));
}

/* Twice the number, so that the scale is a power that exists; the table of floats has -0 as well. */
static inline f16x e2m1_twice(b16 codes)
{
    const f16x x = f16x_table(codes, table16_of(oq_e2m1_table));
    return f16x_add(x, x);
}

static inline void block_mxfp4(span_number *dst, const uint8_t *b)
{
    const b16 bytes = codes16(b + 1);
    const f16x by = f16x_set(oq_f32_from_bits(b[0] < 2 ? 0x00200000u << b[0] : (uint32_t)(b[0] - 1) << 23));
    span_put32(dst, f16x_mul(e2m1_twice(low_nibbles(bytes)), by), f16x_mul(e2m1_twice(high_nibbles(bytes)), by));
}

static inline void block_q4_k(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b), dmin = f16_at(b + 2);
    uint8_t scale[8], min[8];
    oq_k_scales_read(b + 4, scale, min);
    for (int pair = 0; pair < 4; pair++, dst += 64) {
        const b16 one = codes16(b + 16 + 32 * pair), two = codes16(b + 32 + 32 * pair);
        const int s = 2 * pair;
        put_less_min(dst, low_nibbles(one), low_nibbles(two), d * (float)scale[s], dmin * (float)min[s]);
        put_less_min(dst + 32, high_nibbles(one), high_nibbles(two), d * (float)scale[s + 1],
                     dmin * (float)min[s + 1]);
    }
}

/* Bit 0 of each byte as 16, and the next bit to its place. */
static inline b16 next_fifth(b16 *bits)
{
    const b16 sixteen = b16_up(b16_and(*bits, b16_set(1)), 4);
    *bits = b16_down(*bits, 1);
    return sixteen;
}

static inline void block_q5_k(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b), dmin = f16_at(b + 2);
    b16 fifth1 = codes16(b + 16), fifth2 = codes16(b + 32);
    uint8_t scale[8], min[8];
    oq_k_scales_read(b + 4, scale, min);
    for (int pair = 0; pair < 4; pair++, dst += 64) {
        const b16 one = codes16(b + 48 + 32 * pair), two = codes16(b + 64 + 32 * pair);
        const int s = 2 * pair;
        put_less_min(dst, b16_or(low_nibbles(one), next_fifth(&fifth1)),
                     b16_or(low_nibbles(two), next_fifth(&fifth2)), d * (float)scale[s], dmin * (float)min[s]);
        put_less_min(dst + 32, b16_or(high_nibbles(one), next_fifth(&fifth1)),
                     b16_or(high_nibbles(two), next_fifth(&fifth2)), d * (float)scale[s + 1],
                     dmin * (float)min[s + 1]);
    }
}

static inline void block_q6_k(span_number *dst, const uint8_t *b)
{
    const int8_t *scale = (const int8_t *)b + 192;
    const float d = f16_at(b + 208);
    const b16 middle = b16_set(32);
    for (int half = 0; half < 2; half++)
        for (int j = 0; j < 4; j++, dst += 32, scale += 2) {
            const uint8_t *const low = b + 64 * half + 32 * (j % 2), *const high = b + 128 + 32 * half;
            b16 one = codes16(low), two = codes16(low + 16);
            one = j / 2 ? high_nibbles(one) : low_nibbles(one);
            two = j / 2 ? high_nibbles(two) : low_nibbles(two);
            one = b16_or(one, b16_up(two_bits(codes16(high), 2 * j), 4));
            two = b16_or(two, b16_up(two_bits(codes16(high + 16), 2 * j), 4));
            span_put32(dst, f16x_mul(f16x_i8(b16_sub(one, middle)), f16x_set(d * (float)scale[0])),
                       f16x_mul(f16x_i8(b16_sub(two, middle)), f16x_set(d * (float)scale[1])));
        }
}

static inline void block_iq4_xs(span_number *dst, const uint8_t *b)
{
    const float d = f16_at(b);
    const int high = oq_block_u16(b + 2);
    const b16 levels = iq4_levels();
    for (int s = 0; s < 8; s++, dst += 32) {
        const int low = b[4 + s / 2] >> 4 * (s % 2) & 15;
        const b16 bytes = codes16(b + 8 + 16 * s);
        put_signed(dst, b16_lookup(levels, low_nibbles(bytes)), b16_lookup(levels, high_nibbles(bytes)),
                   d * (float)((low | (high >> 2 * s & 3) << 4) - 32));
    }
}

/* ---- groups of other formats ---- */

/* 32 four-bit codes, the first of a byte in its low half, under two scales. */
static inline void put_code4(span_number *dst, const uint8_t *codes, table16 table, float scale1, float scale2)
{
    const b16 bytes = codes16(codes), low = low_nibbles(bytes), high = high_nibbles(bytes);
    span_put32(dst, f16x_mul(f16x_table(b16_zip_low(low, high), table), f16x_set(scale1)),
               f16x_mul(f16x_table(b16_zip_high(low, high), table), f16x_set(scale2)));
}

/* (table[code] - offset) * scale for n four-bit codes from an even one on; whole sixteens are written. */
static inline void piece_code4(span_number *dst, const uint8_t *codes, int64_t n, const float *numbers, float offset,
                               float scale)
{
    const f16x from = f16x_set(offset), by = f16x_set(scale);
    const table16 table = table16_of(numbers);
    int64_t i = 0;
    for (; n - i >= 32; i += 32) {
        const b16 bytes = codes16(codes + i / 2), low = low_nibbles(bytes), high = high_nibbles(bytes);
        const f16x one = f16x_table(b16_zip_low(low, high), table);
        const f16x two = f16x_table(b16_zip_high(low, high), table);
        span_put32(dst + i, f16x_mul(f16x_sub(one, from), by), f16x_mul(f16x_sub(two, from), by));
    }
    for (; i < n; i += 16) {
        uint64_t word = 0;
        if (n - i >= 16)
            memcpy(&word, codes + i / 2, 8);
        else
            memcpy(&word, codes + i / 2, (size_t)(n - i + 1) / 2);
        const b16 bytes = b16_eight(word);
        const b16 order = b16_zip_low(low_nibbles(bytes), high_nibbles(bytes));
        span_put16(dst + i, f16x_mul(f16x_sub(f16x_table(order, table), from), by));
    }
}

#endif
