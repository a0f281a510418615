/* float8.c -- one number at a time and rows of them: f16, e4m3fn, e5m2, bf16. Every bit pattern is defined
 * here; rows are the same expressions in a loop that the compiler vectorises. */
#include "format/float8.h"

#include <stdbool.h>

/* yes or no without a branch: both are computed, which is what lets a loop of them vectorise. */
static inline uint32_t pick(bool condition, uint32_t yes, uint32_t no)
{
    const uint32_t mask = 0u - (uint32_t)condition;
    return (yes & mask) | (no & ~mask);
}

static inline float f16_decode(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = h & 0x7fffu;
    const uint32_t small = oq_f32_bits((float)(int32_t)magnitude * 0x1p-24f); /* subnormals: exact in f32 */
    const uint32_t normal = (magnitude << 13) + (112u << 23);
    const uint32_t special = (magnitude << 13) | 0x7f800000u;
    const uint32_t big = pick(magnitude >= 0x7c00u, special, normal);
    return oq_f32_from_bits(sign | pick(magnitude < 0x400u, small, big));
}

static inline uint16_t f16_encode(float x)
{
    const uint32_t bits = oq_f32_bits(x);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    /* Adding 0.5 puts the unit of the f32 sum at 2^-24, the step of f16's subnormals; the sum rounds to even.
     */
    const uint32_t small = oq_f32_bits(oq_f32_from_bits(magnitude) + 0.5f) - oq_f32_bits(0.5f);
    const uint32_t normal = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    const uint32_t nan = 0x7e00u | (magnitude >> 13 & 0x3ffu);
    uint32_t code = pick(magnitude < 0x38800000u, small, normal);
    code = pick(magnitude >= 0x477ff000u, 0x7c00u, code); /* 65520 and above */
    code = pick(magnitude > 0x7f800000u, nan, code);
    return (uint16_t)(sign | code);
}

static inline float e4m3_decode(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80u) << 24;
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t small = oq_f32_bits((float)(int32_t)magnitude * 0x1p-9f);
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t number = pick(magnitude < 8u, small, normal);
    return oq_f32_from_bits(sign | pick(magnitude == 0x7fu, 0x7fc00000u, number));
}

/* Adding 2^20 times the power of two below |x| (at least 2^-6) leaves three mantissa bits: the low bits of the sum count
 * steps of that binade, rounded to even, 8 to 16 of them (0 to 8 below 2^-6). A full count carries by itself. */
static inline uint8_t e4m3_encode(float x)
{
    const uint32_t bits = oq_f32_bits(x);
    const int32_t all = (int32_t)(bits & 0x7fffffffu), top = 0x43e00000, least = 0x3c800000; /* 448, 2^-6 */
    const int32_t magnitude = (int32_t)pick(all < top, (uint32_t)all, (uint32_t)top);
    const int32_t binade = magnitude & 0x7f800000;
    const int32_t power = (int32_t)pick(binade > least, (uint32_t)binade, (uint32_t)least);
    const uint32_t shift = (uint32_t)power + (20u << 23);
    const uint32_t steps =
        oq_f32_bits(oq_f32_from_bits((uint32_t)magnitude) + oq_f32_from_bits(shift)) - shift;
    const uint32_t code = ((uint32_t)power >> 20) - (121u << 3) + steps;
    return (uint8_t)((bits >> 24 & 0x80u) | pick(all > 0x7f800000, 0x7fu, code));
}

static inline float e5m2_decode(uint8_t code)
{
    return f16_decode((uint16_t)(code << 8)); /* e5m2 is the upper half of f16 */
}

static inline uint8_t e5m2_encode(float x)
{
    const uint32_t bits = oq_f32_bits(x);
    const uint32_t sign = bits >> 24 & 0x80u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    /* 128 + |x| has its unit at 2^-16. */
    const uint32_t small = oq_f32_bits(oq_f32_from_bits(magnitude) + 0x1p7f) - oq_f32_bits(0x1p7f);
    const uint32_t normal = (magnitude + 0xfffffu + (magnitude >> 21 & 1u) - (112u << 23)) >> 21;
    uint32_t code = pick(magnitude < 0x38800000u, small, normal); /* 2^-14 */
    code = pick(magnitude >= 0x47600000u, 0x7bu, code);           /* 57344 */
    code = pick(magnitude == 0x7f800000u, 0x7cu, code);
    code = pick(magnitude > 0x7f800000u, 0x7eu | (magnitude >> 21 & 1u), code);
    return (uint8_t)(sign | code);
}

float oq_f16_to_f32(uint16_t h)
{
    return f16_decode(h);
}

uint16_t oq_f16_from_f32(float x)
{
    return f16_encode(x);
}

float oq_e4m3_to_f32(uint8_t code)
{
    return e4m3_decode(code);
}

uint8_t oq_e4m3_from_f32(float x)
{
    return e4m3_encode(x);
}

float oq_e5m2_to_f32(uint8_t code)
{
    return e5m2_decode(code);
}

uint8_t oq_e5m2_from_f32(float x)
{
    return e5m2_encode(x);
}

void oq_f16_row_to_f32(float *dst, const void *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)src + 2 * i, sizeof h);
        dst[i] = f16_decode(h);
    }
}

void oq_f16_row_from_f32(void *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = f16_encode(src[i]);
        memcpy((char *)dst + 2 * i, &h, sizeof h);
    }
}

void oq_bf16_row_to_f32(float *dst, const void *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, (const char *)src + 2 * i, sizeof h);
        dst[i] = oq_bf16_to_f32(h);
    }
}

void oq_bf16_row_from_f32(void *dst, const float *src, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const uint16_t h = oq_bf16_from_f32(src[i]);
        memcpy((char *)dst + 2 * i, &h, sizeof h);
    }
}

void oq_e4m3_row_to_f32(float *dst, const void *src, size_t n)
{
    const uint8_t *restrict const code = src;
    for (size_t i = 0; i < n; i++) dst[i] = e4m3_decode(code[i]);
}

void oq_e4m3_row_from_f32(void *dst, const float *src, size_t n)
{
    uint8_t *restrict const code = dst;
    for (size_t i = 0; i < n; i++) code[i] = e4m3_encode(src[i]);
}

void oq_e5m2_row_to_f32(float *dst, const void *src, size_t n)
{
    const uint8_t *restrict const code = src;
    for (size_t i = 0; i < n; i++) dst[i] = e5m2_decode(code[i]);
}

void oq_e5m2_row_from_f32(void *dst, const float *src, size_t n)
{
    uint8_t *restrict const code = dst;
    for (size_t i = 0; i < n; i++) code[i] = e5m2_encode(src[i]);
}
