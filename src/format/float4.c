/* float4.c -- tables of four-bit codes, their encoders, and the choice of powers of two. */
#include "format/float4.h"

#include <math.h>

#include "format/float8.h"

const float oq_e2m1_table[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                 -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

const float oq_nf4_table[16] = {-1.0f,
                                -0.6961928009986877f,
                                -0.5250730514526367f,
                                -0.39491748809814453f,
                                -0.28444138169288635f,
                                -0.18477343022823334f,
                                -0.09105003625154495f,
                                0.0f,
                                0.07958029955625534f,
                                0.16093020141124725f,
                                0.24611230194568634f,
                                0.33791524171829224f,
                                0.44070982933044434f,
                                0.5626170039176941f,
                                0.7229568362236023f,
                                1.0f};

const float oq_fp4_table[16] = {0.0f,       0.0625f / 12, 8.0f / 12,  1.0f,          4.0f / 12,  6.0f / 12,
                                2.0f / 12,  3.0f / 12,    0.0f,       -0.0625f / 12, -8.0f / 12, -1.0f,
                                -4.0f / 12, -6.0f / 12,   -2.0f / 12, -3.0f / 12};

const float oq_int4_table[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* The trick of e4m3_encode in float8.c, with one bit of mantissa: adding 2^22 times the power of two below |x| (at least
 * 1) leaves the number of half powers, rounded to even. No branch, so that loops vectorise. */
static inline uint8_t e2m1_encode(float x)
{
    const uint32_t bits = oq_f32_bits(x);
    const int32_t all = (int32_t)(bits & 0x7fffffffu), top = 0x40c00000, one = 0x3f800000; /* 6, 1 */
    const int32_t magnitude = all < top ? all : top;
    const int32_t binade = magnitude & 0x7f800000;
    const uint32_t power = (uint32_t)(binade > one ? binade : one), shift = power + (22u << 23);
    const uint32_t steps =
        oq_f32_bits(oq_f32_from_bits((uint32_t)magnitude) + oq_f32_from_bits(shift)) - shift;
    const uint32_t code = steps + ((power >> 22) - (127u << 1));
    return (uint8_t)(all > 0x7f800000 ? 7u : (bits >> 28 & 8u) | code);
}

static inline uint8_t nf4_encode(float x)
{
    static const float middle[15] = {-0.8480964004993439f,   -0.6106329262256622f,  -0.4599952697753906f,
                                     -0.33967943489551544f,  -0.23460740596055984f, -0.13791173323988914f,
                                     -0.045525018125772476f, 0.03979014977812767f,  0.1202552504837513f,
                                     0.2035212516784668f,    0.2920137718319893f,   0.3893125355243683f,
                                     0.5016634166240692f,    0.6427869200706482f,   0.8614784181118011f};
    int32_t code = 0;
    for (int i = 0; i < 15; i++) code += x > middle[i];
    return (uint8_t)code;
}

static inline uint8_t fp4_encode(float x)
{
    static const float middle[7] = {0.00260417f, 0.0859375f, 0.20833333f, 0.29166667f,
                                    0.4166667f,  0.583333f,  0.8333333f};
    /* codes by rank of magnitude: 0 1 6 7 4 5 2 3 */
    const uint32_t codes = 0x32547610u;
    const float a = fabsf(x);
    uint32_t rank = 0;
    for (int i = 0; i < 7; i++) rank += a > middle[i];
    return (uint8_t)((codes >> 4 * rank & 15u) | (x < 0 ? 8u : 0u));
}

uint8_t oq_e2m1_from_f32(float x)
{
    return e2m1_encode(x);
}

uint8_t oq_nf4_from_f32(float x)
{
    return nf4_encode(x);
}

uint8_t oq_fp4_from_f32(float x)
{
    return fp4_encode(x);
}

void oq_nf4_row_from_f32(uint8_t *restrict codes, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) codes[i] = nf4_encode(x[i]);
}

void oq_fp4_row_from_f32(uint8_t *restrict codes, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) codes[i] = fp4_encode(x[i]);
}

float oq_e8m0_to_f32(uint8_t byte)
{
    if (byte == 255) return oq_f32_from_bits(0x7fc00000u);
    return oq_f32_from_bits(byte ? (uint32_t)byte << 23 : 0x00400000u);
}

float oq_e8m0_inverse(uint8_t byte)
{
    return oq_e8m0_to_f32((uint8_t)(254 - byte));
}

const oq_e8m0_rule oq_e8m0_e4m3_ceil = {448.0f, false};
const oq_e8m0_rule oq_e8m0_e2m1_floor = {8.0f, true};
const oq_e8m0_rule oq_e8m0_e2m1_q725 = {7.25f, false};

oq_e8m0_rule oq_act_mx_rule(oq_act_scale scale, const oq_dtype *act)
{
    const bool four = act == &oq_dtype_f4_e2m1;
    switch (scale) {
    case OQ_ACT_DYNAMIC_MX_Q725:
        return oq_e8m0_e2m1_q725;
    case OQ_ACT_DYNAMIC_MX_FLOOR:
        return (oq_e8m0_rule){four ? 8.0f : 512.0f, true};
    case OQ_ACT_DYNAMIC_MX_CEIL:
        return (oq_e8m0_rule){four ? 6.0f : 448.0f, false};
    case OQ_ACT_DYNAMIC_MX_EVEN:
        return (oq_e8m0_rule){four ? 7.0f : 496.0f, true};
    default:
        return four ? oq_e8m0_e2m1_floor : oq_e8m0_e4m3_ceil;
    }
}

/* With amax = m 2^e and limit = l 2^f, m and l in [1, 2): X = e - f, and one more if m is beyond l. A subnormal amax has
 * an X far below the range. */
uint8_t oq_e8m0_choose(float amax, oq_e8m0_rule rule)
{
    const uint32_t bits = oq_f32_bits(amax), limit = oq_f32_bits(rule.limit);
    const uint32_t m = bits & 0x7fffffu, l = limit & 0x7fffffu;
    if (bits >= 0x7f800000u) return 255;
    const int beyond = rule.below ? m >= l : m > l;
    const int byte = (int)(bits >> 23) - (int)(limit >> 23) + 127 + beyond;
    if (!(bits >> 23) || byte < 0) return 0;
    return (uint8_t)(byte > 254 ? 254 : byte);
}

void oq_code4_to_f32(float *dst, const uint8_t *packed, int64_t first, int64_t count, const float *table)
{
    int64_t i = 0;
    if (first & 1 && count > 0) dst[i++] = table[packed[first / 2] >> 4];
    const uint8_t *const p = packed + (first + i) / 2;
    const int64_t pairs = (count - i) / 2;
    float *const at = dst + i;
    for (int64_t j = 0; j < pairs; j++) {
        at[2 * j] = table[p[j] & 15];
        at[2 * j + 1] = table[p[j] >> 4];
    }
    if ((count - i) & 1) dst[count - 1] = table[p[pairs] & 15];
}

void oq_code4_pack(uint8_t *packed, int64_t first, const uint8_t *codes, int64_t count)
{
    int64_t i = 0;
    if (first & 1 && count > 0) packed[first / 2] = (uint8_t)(packed[first / 2] | codes[i++] << 4);
    uint8_t *restrict const p = packed + (first + i) / 2;
    const uint8_t *restrict const c = codes + i;
    const int64_t pairs = (count - i) / 2;
    for (int64_t j = 0; j < pairs; j++) p[j] = (uint8_t)(c[2 * j] | c[2 * j + 1] << 4);
    if ((count - i) & 1) p[pairs] = codes[count - 1];
}

static void e2m1_to_f32(float *dst, const void *src, size_t n)
{
    const uint8_t *const code = src;
    for (size_t i = 0; i < n; i++) dst[i] = oq_e2m1_table[code[i] & 15];
}

static void e2m1_from_f32(void *dst, const float *src, size_t n)
{
    uint8_t *restrict const code = dst;
    for (size_t i = 0; i < n; i++) code[i] = e2m1_encode(src[i]);
}

const oq_dtype oq_dtype_f4_e2m1 = {"F4_E2M1", "fp4_e2m1", 1, true, e2m1_to_f32, e2m1_from_f32};
