/* float8.h -- one number at a time: bf16, f16, e4m3fn, e5m2. The truth that every vector kernel is checked against. */
#ifndef OQ_FORMAT_FLOAT8_H
#define OQ_FORMAT_FLOAT8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define OQ_E4M3_MAX 448.0f
#define OQ_E5M2_MAX 57344.0f

static inline uint32_t oq_f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float oq_f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float oq_bf16_to_f32(uint16_t h)
{
    return oq_f32_from_bits((uint32_t)h << 16);
}

/* Nearest even; NaN stays NaN (quiet). */
static inline uint16_t oq_bf16_from_f32(float x)
{
    const uint32_t u = oq_f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float oq_bf16_round(float x)
{
    return oq_bf16_to_f32(oq_bf16_from_f32(x));
}

float    oq_f16_to_f32(uint16_t h);
uint16_t oq_f16_from_f32(float x);   /* nearest even, overflow to infinity as IEEE */
float    oq_e4m3_to_f32(uint8_t code); /* 0x7f and 0xff are NaN; no infinities */
uint8_t  oq_e4m3_from_f32(float x);  /* nearest even; |x| > 448 and infinities saturate; NaN is 0x7f with its sign */
float    oq_e5m2_to_f32(uint8_t code);
uint8_t  oq_e5m2_from_f32(float x);  /* finite values saturate at 57344; infinities and NaN keep their kind */

/* Rows of n: the same values; the encoded side may have any alignment. */
void oq_f16_row_to_f32(float *dst, const void *src, size_t n);
void oq_f16_row_from_f32(void *dst, const float *src, size_t n);
void oq_bf16_row_to_f32(float *dst, const void *src, size_t n);
void oq_bf16_row_from_f32(void *dst, const float *src, size_t n);
void oq_e4m3_row_to_f32(float *dst, const void *src, size_t n);
void oq_e4m3_row_from_f32(void *dst, const float *src, size_t n);
void oq_e5m2_row_to_f32(float *dst, const void *src, size_t n);
void oq_e5m2_row_from_f32(void *dst, const float *src, size_t n);

#endif
