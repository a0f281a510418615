/* format_gguf_iq.c -- GGUF's blocks of 256 whose weights are indices into code books: eight (four) weights at a time are the
 * magnitudes of one point, with a sign each. Read alone. Decoding is the producer's, bit for bit: the scale is rounded to f32
 * before it meets a level. */
#include "format/format_block.h"
#include "format/iq_points.h"

static const float two_bit_levels[3] = {8, 25, 43};
static const float three_bit_levels[8] = {4, 12, 20, 28, 36, 44, 52, 62};

static uint32_t u32_at(const uint8_t *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

/* ---- signs ------------------------------------------------------------------------------------------------ */

/* Seven signs; the eighth makes the number of minuses even. */
static uint8_t even_signs(uint32_t seven)
{
    uint32_t odd = seven & 127;
    odd ^= odd >> 4;
    odd ^= odd >> 2;
    odd ^= odd >> 1;
    return (uint8_t)((seven & 127) | (odd & 1) << 7);
}

static float signed_value(float x, uint32_t signs, int i)
{
    return signs >> i & 1 ? -x : x;
}

/* ---- points ----------------------------------------------------------------------------------------------- */

/* Eight weights: the digits to base 3. */
static void put_eight(float *dst, float scale, uint32_t point, uint32_t signs)
{
    for (int i = 0; i < 8; i++, point /= 3)
        dst[i] = signed_value(scale * two_bit_levels[point % 3], signs, i);
}

/* Four weights, their signs from bit `first` on. */
static void put_four_xxs(float *dst, float scale, uint32_t point, uint32_t signs, int first)
{
    for (int i = 0; i < 4; i++, point >>= 3)
        dst[i] = signed_value(scale * three_bit_levels[point & 7], signs, first + i);
}

static void put_four_s(float *dst, float scale, uint32_t point, uint32_t signs, int first)
{
    for (int i = 0; i < 4; i++, point >>= 3)
        dst[i] = signed_value(scale * (float)(2 * (point & 7) + 1), signs, first + i);
}

/* Eight weights of -1, 0, 1, all shifted by delta. */
static void put_ternary(float *dst, float scale, uint32_t point, float delta)
{
    for (int i = 0; i < 8; i++, point /= 3) dst[i] = scale * ((float)((int)(point % 3) - 1) + delta);
}

/* ---- two bits --------------------------------------------------------------------------------------------- */

static float quarter(float d, uint32_t scale)
{
    return d * (0.5f + (float)scale) * 0.25f;
}

/* Per 32 weights: four indices of 8 bits, then four times seven signs and a scale of four bits. */
static void iq2_xxs_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int sub = 0; sub < 8; sub++) {
        const uint8_t *const index = src + 2 + 8 * sub;
        const uint32_t rest = u32_at(index + 4);
        const float scale = quarter(d, rest >> 28);
        for (int i = 0; i < 4; i++, dst += 8)
            put_eight(dst, scale, oq_iq_points_2_xxs[index[i]], even_signs(rest >> 7 * i));
    }
}

/* Per 8 weights: an index of 9 bits and seven signs; a scale of four bits per 16. */
static void iq2_xs_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int i = 0; i < 32; i++, dst += 8) {
        const uint32_t code = oq_block_u16(src + 2 + 2 * i);
        const uint32_t scale = src[66 + i / 4] >> i / 2 % 2 * 4 & 15;
        put_eight(dst, quarter(d, scale), oq_iq_points_2_xs[code & 511], even_signs(code >> 9));
    }
}

/* Per 8 weights: an index of 10 bits (the upper two of four apart) and eight signs; a scale of four bits per 16. */
static void iq2_s_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int i = 0; i < 32; i++, dst += 8) {
        const uint32_t high = src[66 + i / 4] >> 2 * (i % 4) & 3;
        const uint32_t scale = src[74 + i / 4] >> i / 2 % 2 * 4 & 15;
        put_eight(dst, quarter(d, scale), oq_iq_points_2_s[src[2 + i] | high << 8], src[34 + i]);
    }
}

/* ---- three bits ------------------------------------------------------------------------------------------- */

/* Per 4 weights an index of 8 bits; per 32 four times seven signs and a scale of four bits. */
static void iq3_xxs_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int i = 0; i < 64; i++, dst += 4) {
        const uint32_t rest = u32_at(src + 66 + i / 8 * 4);
        const float scale = d * (0.5f + (float)(rest >> 28)) * 0.5f;
        put_four_xxs(dst, scale, oq_iq_points_3_xxs[src[2 + i]], even_signs(rest >> 7 * (i % 8 / 2)),
                     i % 2 * 4);
    }
}

/* Per 4 weights an index of 9 bits (the upper ones of eight apart) and four signs; a scale of four bits per 32. */
static void iq3_s_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int i = 0; i < 64; i++, dst += 4) {
        const uint32_t high = src[66 + i / 8] >> i % 8 & 1;
        const int scale = src[106 + i / 16] >> i / 8 % 2 * 4 & 15;
        put_four_s(dst, d * (float)(1 + 2 * scale), oq_iq_points_3_s[src[2 + i] | high << 8], src[74 + i / 2],
                   i % 2 * 4);
    }
}

/* ---- one bit and a half ------------------------------------------------------------------------------------ */

/* Per 32 weights a word: the upper three bits of four indices, a scale of three bits, the sign of the shift. */
static void iq1_s_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    for (int i = 0; i < 32; i++, dst += 8) {
        const uint32_t word = oq_block_u16(src + 34 + i / 4 * 2);
        const float scale = d * (float)(2 * (word >> 12 & 7) + 1);
        const uint32_t high = word >> 3 * (i % 4) & 7;
        put_ternary(dst, scale, oq_iq_points_1_s[src[2 + i] | high << 8], word >> 15 ? -0.125f : 0.125f);
    }
}

/* Per 8 weights four bits: the upper three of the index and the sign of the shift; a scale of three bits per 16, in four words
 * whose upper nibbles together are the block's f16. */
static void iq1_m_decode(float *dst, const uint8_t *src)
{
    const uint8_t *const scales = src + 48;
    uint16_t half = 0;
    for (int i = 0; i < 4; i++) half = (uint16_t)(half | oq_block_u16(scales + 2 * i) >> 12 << 4 * i);
    const float d = oq_f16_to_f32(half);
    for (int i = 0; i < 32; i++, dst += 8) {
        const uint32_t four = src[32 + i / 2] >> i % 2 * 4 & 15;
        const uint32_t scale = oq_block_u16(scales + i / 8 * 2) >> i / 2 % 4 * 3 & 7;
        put_ternary(dst, d * (float)(2 * scale + 1), oq_iq_points_1_s[src[i] | (four & 7) << 8],
                    four >> 3 ? -0.125f : 0.125f);
    }
}

static const oq_block iq2_xxs = {256, 66, iq2_xxs_decode, NULL, NULL},
                      iq2_xs = {256, 74, iq2_xs_decode, NULL, NULL},
                      iq2_s = {256, 82, iq2_s_decode, NULL, NULL},
                      iq3_xxs = {256, 98, iq3_xxs_decode, NULL, NULL},
                      iq3_s = {256, 110, iq3_s_decode, NULL, NULL},
                      iq1_s = {256, 50, iq1_s_decode, NULL, NULL},
                      iq1_m = {256, 56, iq1_m_decode, NULL, NULL};

#define IQ_FORMAT(name) OQ_BLOCK_FORMAT(#name, #name, name, 256, NULL)
const oq_format oq_format_iq2_xxs = IQ_FORMAT(iq2_xxs);
const oq_format oq_format_iq2_xs = IQ_FORMAT(iq2_xs);
const oq_format oq_format_iq2_s = IQ_FORMAT(iq2_s);
const oq_format oq_format_iq3_xxs = IQ_FORMAT(iq3_xxs);
const oq_format oq_format_iq3_s = IQ_FORMAT(iq3_s);
const oq_format oq_format_iq1_s = IQ_FORMAT(iq1_s);
const oq_format oq_format_iq1_m = IQ_FORMAT(iq1_m);
