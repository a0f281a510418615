/* vec_neon.h -- vec.h's primitives for AArch64: eight lanes in two registers. */
#ifndef OQ_CPU_VEC_NEON_H
#define OQ_CPU_VEC_NEON_H

#define VF 8
typedef struct vf {
    float32x4_t a, b;
} vf;

#define OQ_NEON_1(name, op)                                                                                  \
    OQ_INLINE vf name(vf x)                                                                                  \
    {                                                                                                        \
        return (vf){op(x.a), op(x.b)};                                                                       \
    }
#define OQ_NEON_2(name, op)                                                                                  \
    OQ_INLINE vf name(vf x, vf y)                                                                            \
    {                                                                                                        \
        return (vf){op(x.a, y.a), op(x.b, y.b)};                                                             \
    }

OQ_NEON_2(v_add, vaddq_f32)
OQ_NEON_2(v_sub, vsubq_f32)
OQ_NEON_2(v_mul, vmulq_f32)
OQ_NEON_2(v_div, vdivq_f32)
OQ_NEON_2(v_max, vmaxq_f32) /* a NaN on either side is the result */
OQ_NEON_2(v_min, vminq_f32)
OQ_NEON_1(v_neg, vnegq_f32)
OQ_NEON_1(v_abs, vabsq_f32)
OQ_NEON_1(v_rint, vrndnq_f32)

OQ_INLINE uint32x4_t neon_bits(float32x4_t x)
{
    return vreinterpretq_u32_f32(x);
}
OQ_INLINE float32x4_t neon_number(uint32x4_t u)
{
    return vreinterpretq_f32_u32(u);
}

OQ_INLINE vf v_set(float x)
{
    return (vf){vdupq_n_f32(x), vdupq_n_f32(x)};
}
OQ_INLINE vf v_zero(void)
{
    return v_set(0.0f);
}
OQ_INLINE vf v_inverse_short(vf a)
{
    return v_div(v_set(1.0f), a);
}
OQ_INLINE vf v_fma(vf a, vf b, vf c)
{
    return (vf){vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b)};
} /* a b + c */
OQ_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return (vf){vfmsq_f32(c.a, a.a, b.a), vfmsq_f32(c.b, a.b, b.b)};
} /* c - a b */

/* See vec_256.h. */
OQ_INLINE float32x4_t neon_scale2(float32x4_t a, float32x4_t n)
{
    const int32x4_t whole = vcvtnq_s32_f32(n), half = vshrq_n_s32(whole, 1), bias = vdupq_n_s32(127);
    const int32x4_t first = vshlq_n_s32(vaddq_s32(half, bias), 23);
    const int32x4_t second = vshlq_n_s32(vaddq_s32(vsubq_s32(whole, half), bias), 23);
    return vmulq_f32(vmulq_f32(a, vreinterpretq_f32_s32(first)), vreinterpretq_f32_s32(second));
}
OQ_NEON_2(v_scale2, neon_scale2)

/* a < b ? x : y, lane by lane; unordered gives y */
OQ_INLINE vf v_if_less(vf a, vf b, vf x, vf y)
{
    return (vf){vbslq_f32(vcltq_f32(a.a, b.a), x.a, y.a), vbslq_f32(vcltq_f32(a.b, b.b), x.b, y.b)};
}

OQ_INLINE float v_sum(vf a)
{
    return vaddvq_f32(vaddq_f32(a.a, a.b));
}
OQ_INLINE float v_largest(vf a)
{
    return vmaxvq_f32(vmaxq_f32(a.a, a.b));
}

OQ_INLINE vf v_load(const float *p)
{
    return (vf){vld1q_f32(p), vld1q_f32(p + 4)};
}
OQ_INLINE void v_store(float *p, vf x)
{
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
}

/* Up to three lanes, one by one: there is no load under a mask. */
OQ_INLINE float32x4_t neon_load_few(const float *p, int64_t n)
{
    float32x4_t x = vdupq_n_f32(0.0f);
    if (n > 0) x = vld1q_lane_f32(p, x, 0);
    if (n > 1) x = vld1q_lane_f32(p + 1, x, 1);
    if (n > 2) x = vld1q_lane_f32(p + 2, x, 2);
    return x;
}
OQ_INLINE void neon_store_few(float *p, int64_t n, float32x4_t x)
{
    if (n > 0) vst1q_lane_f32(p, x, 0);
    if (n > 1) vst1q_lane_f32(p + 1, x, 1);
    if (n > 2) vst1q_lane_f32(p + 2, x, 2);
}
OQ_INLINE vf v_load_n(const float *p, int64_t n)
{
    if (n >= 8) return v_load(p);
    if (n >= 4) return (vf){vld1q_f32(p), neon_load_few(p + 4, n - 4)};
    return (vf){neon_load_few(p, n), vdupq_n_f32(0.0f)};
}
OQ_INLINE void v_store_n(float *p, int64_t n, vf x)
{
    if (n >= 8) {
        v_store(p, x);
    } else if (n >= 4) {
        vst1q_f32(p, x.a);
        neon_store_few(p + 4, n - 4, x.b);
    } else {
        neon_store_few(p, n, x.a);
    }
}

/* VF signed bytes. */
OQ_INLINE vf v_load_i8(const void *p)
{
    const int16x8_t words = vmovl_s8(vld1_s8(p));
    return (vf){vcvtq_f32_s32(vmovl_s16(vget_low_s16(words))), vcvtq_f32_s32(vmovl_high_s16(words))};
}

/* p - q as numbers, wrapping; q NULL: p. */
OQ_INLINE vf v_from_ints(const int32_t *p, const int32_t *q)
{
    int32x4_t a = vld1q_s32(p), b = vld1q_s32(p + 4);
    if (q) a = vsubq_s32(a, vld1q_s32(q)), b = vsubq_s32(b, vld1q_s32(q + 4));
    return (vf){vcvtq_f32_s32(a), vcvtq_f32_s32(b)};
}

OQ_INLINE vf v_from_bf16(uint16x8_t h)
{
    return (vf){neon_number(vshll_n_u16(vget_low_u16(h), 16)), neon_number(vshll_high_n_u16(h, 16))};
}
OQ_INLINE vf v_load_bf16(const uint16_t *p)
{
    return v_from_bf16(vld1q_u16(p));
}
OQ_INLINE vf v_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t part[8] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return v_load_bf16(part);
}

/* Nearest even in the upper halves; the lower halves are whatever. */
OQ_INLINE uint32x4_t neon_bf16_bits_of_number(float32x4_t x)
{
    const uint32x4_t u = neon_bits(x), odd = vandq_u32(vshrq_n_u32(u, 16), vdupq_n_u32(1));
    return vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
}
/* NaN stays NaN, quiet. */
OQ_INLINE uint32x4_t neon_bf16_bits(float32x4_t x)
{
    const uint32x4_t quiet = vorrq_u32(neon_bits(x), vdupq_n_u32(0x400000));
    return vbslq_u32(vceqq_f32(x, x), neon_bf16_bits_of_number(x), quiet);
}
OQ_INLINE float32x4_t neon_round_bf16(float32x4_t x)
{
    return neon_number(vandq_u32(neon_bf16_bits(x), vdupq_n_u32(0xffff0000u)));
}
OQ_NEON_1(v_round_bf16, neon_round_bf16)

OQ_INLINE uint16x8_t v_to_bf16(vf x)
{
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    return vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x.a), x.b));
#else
    return vuzp2q_u16(vreinterpretq_u16_u32(neon_bf16_bits(x.a)), vreinterpretq_u16_u32(neon_bf16_bits(x.b)));
#endif
}
OQ_INLINE void v_store_bf16(uint16_t *p, vf x)
{
    vst1q_u16(p, v_to_bf16(x));
}
OQ_INLINE void v_store_bf16_n(uint16_t *p, int64_t n, vf x)
{
    uint16_t part[8];
    v_store_bf16(part, x);
    memcpy(p, part, (size_t)n * sizeof *p);
}

/* See vec_512.h. */
OQ_INLINE vf neon_words(uint32x4_t a, uint32x4_t b, bool upper)
{
    const uint32x4_t keep = vdupq_n_u32(0xffff0000u);
    if (upper) return (vf){neon_number(vandq_u32(a, keep)), neon_number(vandq_u32(b, keep))};
    return (vf){neon_number(vshlq_n_u32(a, 16)), neon_number(vshlq_n_u32(b, 16))};
}
OQ_INLINE void v_load_bf16_apart(const uint16_t *p, vf *even, vf *odd)
{
    const uint32x4_t a = vreinterpretq_u32_u16(vld1q_u16(p)), b = vreinterpretq_u32_u16(vld1q_u16(p + 8));
    *even = neon_words(a, b, false);
    *odd = neon_words(a, b, true);
}
OQ_INLINE void v_load_apart(const float *p, vf *even, vf *odd)
{
    const float32x4x2_t a = vld2q_f32(p), b = vld2q_f32(p + 8);
    *even = (vf){a.val[0], b.val[0]};
    *odd = (vf){a.val[1], b.val[1]};
}
typedef struct neon_dwords {
    uint32x4_t a, b;
} neon_dwords;
OQ_INLINE neon_dwords v_bf16_bits_of_number(vf x)
{
    return (neon_dwords){neon_bf16_bits_of_number(x.a), neon_bf16_bits_of_number(x.b)};
}
OQ_INLINE neon_dwords v_bf16_bits_of_result(vf x)
{
    return (neon_dwords){neon_bf16_bits(x.a), neon_bf16_bits(x.b)};
}
OQ_INLINE vf v_upper_half(neon_dwords bits)
{
    return neon_words(bits.a, bits.b, true);
}
OQ_INLINE void v_store_halves_apart(uint16_t *p, neon_dwords even, neon_dwords odd)
{
    const uint16x8_t e = vuzp2q_u16(vreinterpretq_u16_u32(even.a), vreinterpretq_u16_u32(even.b));
    const uint16x8_t o = vuzp2q_u16(vreinterpretq_u16_u32(odd.a), vreinterpretq_u16_u32(odd.b));
    vst2q_u16(p, ((uint16x8x2_t){{e, o}}));
}
OQ_INLINE void v_store_bf16_apart(uint16_t *p, vf even, vf odd)
{
    v_store_halves_apart(p, v_bf16_bits_of_number(even), v_bf16_bits_of_number(odd));
}

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
OQ_INLINE float32x4_t neon_dot_bf16(float32x4_t x, float32x4_t b, float32x4_t sum)
{
    return vbfdotq_f32(sum, vreinterpretq_bf16_f32(x), vreinterpretq_bf16_f32(b));
}
OQ_INLINE vf v_dot_bf16(vf x, vf b, vf sum)
{
    return (vf){neon_dot_bf16(x.a, b.a, sum.a), neon_dot_bf16(x.b, b.b, sum.b)};
}
OQ_INLINE void v_store_bf16_short(uint16_t *p, int64_t n, vf x)
{
    if (n >= VF)
        v_store_bf16(p, x);
    else
        v_store_bf16_n(p, n, x);
}
OQ_INLINE float32x4_t neon_pairs_bf16(float32x4_t even, float32x4_t odd)
{
    return neon_number(vsriq_n_u32(neon_bits(odd), neon_bits(even), 16));
}
OQ_NEON_2(v_pairs_bf16, neon_pairs_bf16)
#endif

OQ_INLINE float32x4_t neon_add_exponent(float32x4_t p, float32x4_t shifted)
{
    return neon_number(vaddq_u32(neon_bits(p), vshlq_n_u32(neon_bits(shifted), 23)));
}
OQ_NEON_2(v_add_exponent, neon_add_exponent)

/* p0 p0 p1 p1 ...: n lanes out of n / 2 floats (n even). */
OQ_INLINE vf v_load_pairs(const float *p, int64_t n)
{
    const float32x4_t x = n >= 8 ? vld1q_f32(p) : neon_load_few(p, n / 2);
    return (vf){vzip1q_f32(x, x), vzip2q_f32(x, x)};
}
OQ_NEON_1(v_swap_pairs, vrev64q_f32)

/* -a0 a1 -a2 a3 ... */
OQ_INLINE float32x4_t neon_neg_even(float32x4_t x)
{
    const uint64x2_t sign = vdupq_n_u64(0x80000000u);
    return vreinterpretq_f32_u64(veorq_u64(vreinterpretq_u64_f32(x), sign));
}
OQ_NEON_1(v_neg_even, neon_neg_even)

/* Does any lane hold an infinity or a NaN? */
OQ_INLINE bool v_any_wild(vf x)
{
    const uint32x4_t keep = vdupq_n_u32(0x7fffffffu), e = vdupq_n_u32(0x7f800000u);
    const uint32x4_t most = vmaxq_u32(vandq_u32(neon_bits(x.a), keep), vandq_u32(neon_bits(x.b), keep));
    return vmaxvq_u32(vcgeq_u32(most, e)) != 0;
}

/* The first or the second halves of two registers. */
OQ_INLINE float32x4_t neon_halves(float32x4_t a, float32x4_t b, bool second)
{
    const float64x2_t x = vreinterpretq_f64_f32(a), y = vreinterpretq_f64_f32(b);
    return vreinterpretq_f32_f64(second ? vzip2q_f64(x, y) : vzip1q_f64(x, y));
}

/* Sixteen f32 of four vectors of 4 turned: out[r] = in[.][r]. */
OQ_INLINE void neon_transpose4(float32x4_t r[4])
{
    const float32x4_t a = vtrn1q_f32(r[0], r[1]), b = vtrn2q_f32(r[0], r[1]);
    const float32x4_t c = vtrn1q_f32(r[2], r[3]), d = vtrn2q_f32(r[2], r[3]);
    r[0] = neon_halves(a, c, false);
    r[1] = neon_halves(b, d, false);
    r[2] = neon_halves(a, c, true);
    r[3] = neon_halves(b, d, true);
}

/* As vec.h's. */
OQ_INLINE void v_transpose8(float *out, int64_t out_ld, const float *in, int64_t in_ld)
{
    OQ_UNROLL
    for (int i = 0; i < 8; i += 4) {
        OQ_UNROLL
        for (int j = 0; j < 8; j += 4) {
            float32x4_t r[4];
            OQ_UNROLL
            for (int n = 0; n < 4; n++) r[n] = vld1q_f32(in + (i + n) * in_ld + j);
            neon_transpose4(r);
            OQ_UNROLL
            for (int n = 0; n < 4; n++) vst1q_f32(out + (j + n) * out_ld + i, r[n]);
        }
    }
}

#undef OQ_NEON_1
#undef OQ_NEON_2

#endif
