/* format_gguf_k.c -- GGUF's blocks of 256: sub-blocks under small integer scales, these under half-precision ones.
 * Decoding is the producer's, bit for bit: the scale of a sub-block is rounded to f32 before it meets a code. */
#include "format/format_block.h"

#include <math.h>

enum { ELEMS = 256, HALF = 128 };

/* ---- packed scales --------------------------------------------------------------------------------------- */

void oq_k_scales_read(const uint8_t *packed, uint8_t *scale, uint8_t *min)
{
    for (int j = 0; j < 4; j++) {
        scale[j] = packed[j] & 63;
        min[j] = packed[j + 4] & 63;
        scale[j + 4] = (uint8_t)((packed[j + 8] & 15) | packed[j] >> 6 << 4);
        min[j + 4] = (uint8_t)(packed[j + 8] >> 4 | packed[j + 4] >> 6 << 4);
    }
}

void oq_k_scales_write(uint8_t *packed, const uint8_t *scale, const uint8_t *min)
{
    for (int j = 0; j < 4; j++) {
        packed[j] = (uint8_t)(scale[j] | scale[j + 4] >> 4 << 6);
        packed[j + 4] = (uint8_t)(min[j] | min[j + 4] >> 4 << 6);
        packed[j + 8] = (uint8_t)((scale[j + 4] & 15) | (min[j + 4] & 15) << 4);
    }
}

void oq_q3_scales_read(const uint8_t *packed, int8_t *scale)
{
    for (int j = 0; j < 16; j++) {
        const int low = packed[j % 8] >> 4 * (j / 8) & 15, high = packed[8 + j % 4] >> 2 * (j / 4) & 3;
        scale[j] = (int8_t)((low | high << 4) - 32);
    }
}

void oq_q3_scales_write(uint8_t *packed, const int8_t *scale)
{
    memset(packed, 0, 12);
    for (int j = 0; j < 16; j++) {
        const int code = scale[j] + 32;
        packed[j % 8] = (uint8_t)(packed[j % 8] | (code & 15) << 4 * (j / 8));
        packed[8 + j % 4] = (uint8_t)(packed[8 + j % 4] | code >> 4 << 2 * (j / 4));
    }
}

/* ---- two and three bits: half h, shift j, byte 32 h + i hold element 128 h + 32 j + i --------------------- */

static int two_bits(const uint8_t *qs, int element)
{
    return qs[element / HALF * 32 + element % 32] >> 2 * (element % HALF / 32) & 3;
}

static void q2_k_decode(float *dst, const uint8_t *src)
{
    const uint8_t *const scales = src, *const qs = src + 16;
    const float d = oq_block_f16(src + 80), dmin = oq_block_f16(src + 82);
    for (int sub = 0; sub < 16; sub++) {
        const float scale = d * (float)(scales[sub] & 15), min = dmin * (float)(scales[sub] >> 4);
        for (int i = 16 * sub; i < 16 * sub + 16; i++) {
            const float product = scale * (float)two_bits(qs, i);
            dst[i] = product - min;
        }
    }
}

static void q3_k_decode(float *dst, const uint8_t *src)
{
    const uint8_t *const third = src, *const qs = src + 32;
    const float d = oq_block_f16(src + 108);
    int8_t scales[16];
    oq_q3_scales_read(src + 96, scales);
    for (int sub = 0; sub < 16; sub++) {
        const float scale = d * (float)scales[sub];
        for (int i = 16 * sub; i < 16 * sub + 16; i++) {
            const bool high = third[i % 32] >> (i / 32) & 1;
            dst[i] = scale * (float)(two_bits(qs, i) - (high ? 0 : 4));
        }
    }
}

/* ---- four and five bits: 32 bytes hold 32 low nibbles, then 32 high ones ----------------------------------- */

static void k_values(float *dst, const uint8_t *src, const uint8_t *qs, const uint8_t *fifth)
{
    uint8_t scales[8], mins[8];
    const float d = oq_block_f16(src), dmin = oq_block_f16(src + 2);
    oq_k_scales_read(src + 4, scales, mins);
    for (int sub = 0; sub < 8; sub++, dst += 32) {
        const float scale = d * (float)scales[sub], min = dmin * (float)mins[sub];
        for (int i = 0; i < 32; i++) {
            int code = qs[sub / 2 * 32 + i] >> 4 * (sub % 2) & 15;
            if (fifth) code |= (fifth[i] >> sub & 1) << 4;
            const float product = scale * (float)code;
            dst[i] = product - min;
        }
    }
}

static void q4_k_decode(float *dst, const uint8_t *src)
{
    k_values(dst, src, src + 16, NULL);
}

static void q5_k_decode(float *dst, const uint8_t *src)
{
    k_values(dst, src, src + 48, src + 16);
}

/* ---- six and eight bits ------------------------------------------------------------------------------------- */

static void q6_k_decode(float *dst, const uint8_t *src)
{
    const uint8_t *low = src, *high = src + HALF;
    const int8_t *scale = (const int8_t *)src + 192;
    const float d = oq_block_f16(src + 208);
    for (int half = 0; half < 2; half++, low += 64, high += 32)
        for (int i = 0; i < HALF; i++, dst++) {
            const int code = (low[i % 64] >> 4 * (i / 64) & 15) | (high[i % 32] >> 2 * (i / 32) & 3) << 4;
            const int sub = 8 * half + i / 16;
            *dst = d * (float)scale[sub] * (float)(code - 32);
        }
}

/* A float scale, 256 codes, and sums of sixteen codes that only integer products want. */
static void q8_k_decode(float *dst, const uint8_t *src)
{
    float d;
    memcpy(&d, src, sizeof d);
    for (int i = 0; i < ELEMS; i++) dst[i] = d * (float)(int8_t)src[4 + i];
}

/* ---- uneven levels under scales of six bits ------------------------------------------------------------------ */

static void iq4_xs_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src);
    const int high = oq_block_u16(src + 2);
    for (int sub = 0; sub < 8; sub++, dst += 32) {
        const int low = src[4 + sub / 2] >> 4 * (sub % 2) & 15;
        const float scale = d * (float)((low | (high >> 2 * sub & 3) << 4) - 32);
        const uint8_t *const qs = src + 8 + 16 * sub;
        for (int i = 0; i < 16; i++) {
            dst[i] = scale * (float)oq_iq4_levels[qs[i] & 15];
            dst[i + 16] = scale * (float)oq_iq4_levels[qs[i] >> 4];
        }
    }
}

static void iq4_xs_encode(uint8_t *dst, const float *x)
{
    float scale[8], top = 0.0f, amax = 0.0f;
    uint32_t high = 0;
    for (int sub = 0; sub < 8; sub++) {
        scale[sub] = oq_iq4_scale(x + 32 * sub);
        if (fabsf(scale[sub]) > amax) amax = fabsf(scale[sub]), top = scale[sub];
    }
    const float d = -top / 32.0f, by = amax > 0.0f ? 1.0f / d : 0.0f;
    oq_block_put_f16(dst, d);
    for (int sub = 0; sub < 8; sub++) {
        const int code = oq_block_clamp(oq_block_nearest(by * scale[sub]), -32, 31);
        const float step = d * (float)code, inverse = code && amax > 0.0f ? 1.0f / step : 0.0f;
        uint8_t *const qs = dst + 8 + 16 * sub;
        for (int i = 0; i < 16; i++)
            qs[i] = (uint8_t)(oq_iq4_nearest(inverse * x[32 * sub + i]) |
                              oq_iq4_nearest(inverse * x[32 * sub + i + 16]) << 4);
        dst[4 + sub / 2] = (uint8_t)(dst[4 + sub / 2] | ((code + 32) & 15) << 4 * (sub % 2));
        high |= (uint32_t)(code + 32) >> 4 << 2 * sub;
    }
    dst[2] = (uint8_t)high;
    dst[3] = (uint8_t)(high >> 8);
}

/* ---- three values: five to a byte, or four ------------------------------------------------------------------- */

/* Digit n (0: the first) of a byte that holds a fraction in base 3. */
static int digit(uint8_t byte, int n)
{
    static const uint8_t power[] = {1, 3, 9, 27, 81};
    return (uint8_t)(byte * power[n]) * 3 >> 8;
}

/* Runs of bytes: 32 of five digits, 16 of five, 4 of four; within a run the digit number goes outermost. */
static const struct {
    int bytes, digits;
} tq1_runs[] = {{32, 5}, {16, 5}, {4, 4}};

static void tq1_0_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src + 52);
    for (int run = 0; run < 3; src += tq1_runs[run++].bytes)
        for (int n = 0; n < tq1_runs[run].digits; n++)
            for (int i = 0; i < tq1_runs[run].bytes; i++) *dst++ = d * (float)(digit(src[i], n) - 1);
}

static float three_scale(const float *x)
{
    float amax = 0.0f;
    for (int i = 0; i < ELEMS; i++) amax = fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    return amax;
}

static int three_code(float x, float by)
{
    return (int)roundf(x * by) + 1;
}

static void tq1_0_encode(uint8_t *dst, const float *x)
{
    const float d = three_scale(x), by = d > 0.0f ? 1.0f / d : 0.0f;
    oq_block_put_f16(dst + 52, d);
    for (int run = 0; run < 3; run++) {
        const int bytes = tq1_runs[run].bytes, digits = tq1_runs[run].digits;
        for (int i = 0; i < bytes; i++) {
            int number = 0;
            for (int n = 0; n < digits; n++) number = number * 3 + three_code(x[n * bytes + i], by);
            if (digits == 4) number *= 3;
            *dst++ = (uint8_t)((number * 256 + 242) / 243);
        }
        x += bytes * digits;
    }
}

static void tq2_0_decode(float *dst, const uint8_t *src)
{
    const float d = oq_block_f16(src + 64);
    for (int i = 0; i < ELEMS; i++) dst[i] = d * (float)(two_bits(src, i) - 1);
}

static void tq2_0_encode(uint8_t *dst, const float *x)
{
    const float d = three_scale(x), by = d > 0.0f ? 1.0f / d : 0.0f;
    oq_block_put_f16(dst + 64, d);
    for (int i = 0; i < ELEMS; i++) {
        uint8_t *const at = dst + i / HALF * 32 + i % 32;
        *at = (uint8_t)(*at | three_code(x[i], by) << 2 * (i % HALF / 32));
    }
}

/* ---- rows of the list ------------------------------------------------------------------------------------------ */

/* d is NaN, so that every number is. */
static void poison_first(uint8_t *dst)
{
    oq_block_put_f16(dst, NAN);
}

static void q2_k_poison(uint8_t *dst)
{
    oq_block_put_f16(dst + 80, NAN);
}

static void q3_k_poison(uint8_t *dst)
{
    oq_block_put_f16(dst + 108, NAN);
}

static void q6_k_poison(uint8_t *dst)
{
    oq_block_put_f16(dst + 208, NAN);
}

static void q8_k_poison(uint8_t *dst)
{
    const float nan = NAN;
    memcpy(dst, &nan, sizeof nan);
}

static void tq1_0_poison(uint8_t *dst)
{
    oq_block_put_f16(dst + 52, NAN);
}

static void tq2_0_poison(uint8_t *dst)
{
    oq_block_put_f16(dst + 64, NAN);
}

static const oq_block q2_k = {256, 84, q2_k_decode, oq_q2_k_encode, q2_k_poison},
                      q3_k = {256, 110, q3_k_decode, oq_q3_k_encode, q3_k_poison},
                      q4_k = {256, 144, q4_k_decode, oq_q4_k_encode, poison_first},
                      q5_k = {256, 176, q5_k_decode, oq_q5_k_encode, poison_first},
                      q6_k = {256, 210, q6_k_decode, oq_q6_k_encode, q6_k_poison},
                      q8_k = {256, 292, q8_k_decode, oq_q8_k_encode, q8_k_poison},
                      iq4_xs = {256, 136, iq4_xs_decode, iq4_xs_encode, poison_first},
                      tq1_0 = {256, 54, tq1_0_decode, tq1_0_encode, tq1_0_poison},
                      tq2_0 = {256, 66, tq2_0_decode, tq2_0_encode, tq2_0_poison};

#define K_FORMAT(name) OQ_BLOCK_FORMAT(#name, #name, name, 256, oq_block_encode)
const oq_format oq_format_q2_k = K_FORMAT(q2_k);
const oq_format oq_format_q3_k = K_FORMAT(q3_k);
const oq_format oq_format_q4_k = K_FORMAT(q4_k);
const oq_format oq_format_q5_k = K_FORMAT(q5_k);
const oq_format oq_format_q6_k = K_FORMAT(q6_k);
const oq_format oq_format_q8_k = K_FORMAT(q8_k);
const oq_format oq_format_iq4_xs = K_FORMAT(iq4_xs);
const oq_format oq_format_tq1_0 = K_FORMAT(tq1_0);
const oq_format oq_format_tq2_0 = K_FORMAT(tq2_0);
