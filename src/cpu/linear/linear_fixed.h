/* linear_fixed.h -- x as fixed point, for products of bytes: under a power of two (the step) a run of columns becomes whole
 * numbers of 16 bits, or of 24, and these two or three planes of int8: x = step * (256 * high + low). Products of u8 codes
 * and planes are exact in int32, so x . W costs two byte products (of F32 three) where f32 costs four, and what is lost is
 * half a step, at most FIXED_LOSS_16 (FIXED_LOSS_24) of the run's largest |x|: nothing of BF16 numbers within 2^-7 of it.
 *
 * How it is used: step = fixed_step(amax of the run, planes), NaN if amax is not finite; each number becomes
 * fixed_whole(x, 1.0f / step), which is exact arithmetic on powers of two; fixed_low gives the lowest plane, fixed_rest what
 * is above it, again until `planes` are taken (the highest is the rest itself). fixed_planes does so for neighbouring
 * columns. These are loops without a branch that compilers turn into vectors. */
#ifndef OQ_CPU_LINEAR_LINEAR_FIXED_H
#define OQ_CPU_LINEAR_LINEAR_FIXED_H

#include <math.h>
#include <stdint.h>

#include "format/dtype.h"
#include "format/float8.h"

enum { FIXED_BF16 = 2, FIXED_F32 = 3, FIXED_MOST = 3 }; /* planes */

#define FIXED_LOSS_16 0x1.04p-15f
#define FIXED_LOSS_24 0x1.02p-23f
/* x beyond this goes another way, since terms that cancel would be infinite before they do: a run has at most 128 = 2^7 columns,
 * and what W multiplies them by is below 2^28 (the largest scale of F16, 65504, times 4096: q6_k's scales of sub-blocks up to
 * 128 times codes up to 32; minima are less), so each term and what is taken off it stay below 2^(88 + 7 + 28) = 2^123. Scales
 * of type F32 have the same room, 2^20 beside codes of eight bits. */
#define FIXED_ROOM    0x1p88f
#define FIXED_LEAST   0x1p-100f /* a run whose largest |x| is below is taken as if this were it */

static inline int fixed_n_planes(const oq_dtype *x)
{
    return x == &oq_dtype_bf16 ? FIXED_BF16 : FIXED_F32;
}

/* The least power of two under which amax is no more than the planes hold: 127 in each of them. amax >= 0 or NaN. */
static inline float fixed_step(float amax, int planes)
{
    const int digits = 8 * planes - 2;
    const float top = planes == FIXED_BF16 ? 32639.0f : 8355711.0f;
    const uint32_t bits = oq_f32_bits(amax), least = oq_f32_bits(FIXED_LEAST);
    const uint32_t power = (bits > least ? bits : least) & 0x7f800000u; /* magnitudes compare like numbers */
    const float below = oq_f32_from_bits(power - ((uint32_t)digits << 23));
    const float step = amax > top * below ? 2.0f * below : below;
    return bits >= 0x7f800000u ? oq_f32_from_bits(0x7fc00000u) : step;
}

static inline int32_t fixed_whole(float x, float inverse)
{
    return (int32_t)rintf(x * inverse);
}

static inline int32_t fixed_low(int32_t whole)
{
    return ((whole & 255) ^ 128) - 128;
}

static inline int32_t fixed_rest(int32_t whole)
{
    return (whole + 128) >> 8;
}

/* n columns of one step, which is finite; plane[0] is the highest. */
static inline void fixed_planes(int8_t *const *plane, int planes, const float *x, int64_t n, float step)
{
    const float inverse = 1.0f / step;
    for (int64_t i = 0; i < n; i++) {
        int32_t whole = fixed_whole(x[i], inverse);
        for (int p = planes - 1; p > 0; p--) {
            plane[p][i] = (int8_t)fixed_low(whole);
            whole = fixed_rest(whole);
        }
        plane[0][i] = (int8_t)whole;
    }
}

#endif
