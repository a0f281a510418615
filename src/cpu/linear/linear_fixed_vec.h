/* linear_fixed_vec.h -- 64 bytes of codes and sixteen lanes of numbers, as linear_fixed_codes.h and linear_few_fixed.h use
 * them: one vector of AVX-512, two of AVX2, four of NEON. A quarter is sixteen of the bytes, a lane four. */
#ifndef OQ_CPU_LINEAR_LINEAR_FIXED_VEC_H
#define OQ_CPU_LINEAR_LINEAR_FIXED_VEC_H

#include "cpu/linear/linear_few_codes.h"

enum { FX_VECTORS = 4, FX_LANES = 16 };

#if defined(__AVX512F__)
typedef __m512i fx;
typedef uint16_t fx_words __attribute__((vector_size(64)));
OQ_INLINE fx fx_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
OQ_INLINE fx fx_zero(void)
{
    return _mm512_setzero_si512();
}
OQ_INLINE fx fx_set(int byte)
{
    return _mm512_set1_epi8((char)byte);
}
OQ_INLINE fx fx_and(fx a, fx b)
{
    return _mm512_and_si512(a, b);
}
OQ_INLINE fx fx_flip(fx v) /* 128 more, or less */
{
    return _mm512_xor_si512(v, fx_set(0x80));
}
/* Bits of words: what comes from the byte beside is for the caller to mask. */
OQ_INLINE fx fx_down(fx v, const int bits)
{
    return (fx)((fx_words)v >> bits);
}
OQ_INLINE fx fx_up(fx v, const int bits)
{
    return (fx)((fx_words)v << bits);
}
OQ_INLINE fx fx_or_some(fx a, fx b, fx mask) /* a | (b & mask) */
{
    return _mm512_ternarylogic_epi64(a, b, mask, 0xf8);
}
OQ_INLINE fx fx_gather(const uint8_t *p, int stride) /* a quarter from each of four places */
{
    return few_gather(p, stride);
}
OQ_INLINE fx fx_halves(const uint8_t *p, int stride) /* half from each of two */
{
    const __m256i low = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), _mm256_loadu_si256((const __m256i *)(const void *)(p + stride)), 1);
}
OQ_INLINE fx fx_twice(const uint8_t *p, const int bits) /* 32 bytes, and again, so many bits lower */
{
    const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_inserti64x4(_mm512_castsi256_si512(v), _mm256_srli_epi16(v, bits), 1);
}
OQ_INLINE fx fx_quarters(const uint8_t *sixteen) /* the same in each */
{
    return _mm512_broadcast_i32x4(b16_load(sixteen));
}
OQ_INLINE fx fx_lookup(fx table, fx v) /* within quarters, by codes of four bits */
{
    return _mm512_shuffle_epi8(table, v);
}
OQ_INLINE fx fx_where(fx bits, fx mask, fx value) /* value where a byte has one of the mask's bits, else zero */
{
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(bits, mask), value);
}
/* Dwords 0 2 of a, then of b, in each quarter; or 1 3. */
OQ_INLINE fx fx_even(fx a, fx b)
{
    return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88));
}
OQ_INLINE fx fx_odd(fx a, fx b)
{
    return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd));
}
/* sum + four vectors of codes, the largest of them `most`, times a plane of x. */
OQ_INLINE fx fx_dot(fx sum, const fx w[FX_VECTORS], const char *x, const int most)
{
    (void)most;
    OQ_UNROLL
    for (int v = 0; v < FX_VECTORS; v++) sum = _mm512_dpbusd_epi32(sum, w[v], fx_load(x + 64 * v));
    return sum;
}
OQ_INLINE fx fx_add(fx a, fx b)
{
    return _mm512_add_epi32(a, b);
}
OQ_INLINE fx fx_times_256(fx a)
{
    return _mm512_slli_epi32(a, 8);
}
OQ_INLINE f16x fx_numbers(fx a)
{
    return _mm512_cvtepi32_ps(a);
}
OQ_INLINE f16x fx_spread8(eight x, fx index) /* lane l: x[index[l]] */
{
    return _mm512_permutexvar_ps(index, _mm512_castps256_ps512(x));
}
OQ_INLINE f16x fx_spread(f16x x, fx index)
{
    return _mm512_permutexvar_ps(index, x);
}
OQ_INLINE f16x fx_fnma(f16x a, f16x b, f16x c) /* c - a b */
{
    return _mm512_fnmadd_ps(a, b, c);
}
OQ_INLINE float fx_sum(f16x x)
{
    return v_sum(x);
}
#elif defined(__aarch64__)
typedef struct fx {
    uint8x16_t v[4];
} fx;
#define FX_EACH(i) OQ_UNROLL for (int i = 0; i < 4; i++)
OQ_INLINE fx fx_load(const void *p)
{
    const uint8_t *const at = p;
    return (fx){{vld1q_u8(at), vld1q_u8(at + 16), vld1q_u8(at + 32), vld1q_u8(at + 48)}};
}
OQ_INLINE fx fx_set(int byte)
{
    const uint8x16_t v = vdupq_n_u8((uint8_t)byte);
    return (fx){{v, v, v, v}};
}
OQ_INLINE fx fx_zero(void)
{
    return fx_set(0);
}
OQ_INLINE fx fx_and(fx a, fx b)
{
    FX_EACH(i) a.v[i] = vandq_u8(a.v[i], b.v[i]);
    return a;
}
OQ_INLINE fx fx_flip(fx v)
{
    FX_EACH(i) v.v[i] = veorq_u8(v.v[i], vdupq_n_u8(0x80));
    return v;
}
OQ_INLINE fx fx_down(fx v, const int bits)
{
    FX_EACH(i) v.v[i] = b16_down(v.v[i], bits);
    return v;
}
OQ_INLINE fx fx_up(fx v, const int bits)
{
    FX_EACH(i) v.v[i] = b16_up(v.v[i], bits);
    return v;
}
OQ_INLINE fx fx_or_some(fx a, fx b, fx mask)
{
    FX_EACH(i) a.v[i] = vorrq_u8(a.v[i], vandq_u8(b.v[i], mask.v[i]));
    return a;
}
OQ_INLINE fx fx_gather(const uint8_t *p, int stride)
{
    return (fx){{vld1q_u8(p), vld1q_u8(p + stride), vld1q_u8(p + 2 * stride), vld1q_u8(p + 3 * stride)}};
}
OQ_INLINE fx fx_halves(const uint8_t *p, int stride)
{
    return (fx){{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + stride), vld1q_u8(p + stride + 16)}};
}
OQ_INLINE fx fx_twice(const uint8_t *p, const int bits)
{
    const uint8x16_t a = vld1q_u8(p), b = vld1q_u8(p + 16);
    return (fx){{a, b, b16_down(a, bits), b16_down(b, bits)}};
}
OQ_INLINE fx fx_quarters(const uint8_t *sixteen)
{
    const uint8x16_t v = vld1q_u8(sixteen);
    return (fx){{v, v, v, v}};
}
OQ_INLINE fx fx_lookup(fx table, fx v)
{
    FX_EACH(i) v.v[i] = vqtbl1q_u8(table.v[i], v.v[i]);
    return v;
}
OQ_INLINE fx fx_where(fx bits, fx mask, fx value)
{
    FX_EACH(i) value.v[i] = vandq_u8(value.v[i], vtstq_u8(bits.v[i], mask.v[i]));
    return value;
}
OQ_INLINE fx fx_even(fx a, fx b)
{
    FX_EACH(i) a.v[i] = vreinterpretq_u8_u32(vuzp1q_u32(vreinterpretq_u32_u8(a.v[i]), vreinterpretq_u32_u8(b.v[i])));
    return a;
}
OQ_INLINE fx fx_odd(fx a, fx b)
{
    FX_EACH(i) a.v[i] = vreinterpretq_u8_u32(vuzp2q_u32(vreinterpretq_u32_u8(a.v[i]), vreinterpretq_u32_u8(b.v[i])));
    return a;
}
#if defined(__ARM_FEATURE_DOTPROD)
OQ_INLINE fx fx_dot(fx sum, const fx w[FX_VECTORS], const char *x, const int most)
{
    (void)most;
    FX_EACH(i)
    {
        int32x4_t s = vreinterpretq_s32_u8(sum.v[i]);
        OQ_UNROLL
        for (int v = 0; v < FX_VECTORS; v++)
            s = vdotq_s32(s, vreinterpretq_s8_u8(w[v].v[i]), vld1q_s8((const int8_t *)x + 64 * v + 16 * i));
        sum.v[i] = vreinterpretq_u8_s32(s);
    }
    return sum;
}
#endif
OQ_INLINE fx fx_add(fx a, fx b)
{
    FX_EACH(i) a.v[i] = vreinterpretq_u8_s32(vaddq_s32(vreinterpretq_s32_u8(a.v[i]), vreinterpretq_s32_u8(b.v[i])));
    return a;
}
OQ_INLINE fx fx_times_256(fx a)
{
    FX_EACH(i) a.v[i] = vreinterpretq_u8_s32(vshlq_n_s32(vreinterpretq_s32_u8(a.v[i]), 8));
    return a;
}
OQ_INLINE f16x fx_numbers(fx a)
{
    f16x x;
    FX_EACH(i) x.v[i] = vcvtq_f32_s32(vreinterpretq_s32_u8(a.v[i]));
    return x;
}
OQ_INLINE f16x fx_spread8(eight x, fx index)
{
    const uint8x16x2_t t = {{vreinterpretq_u8_f32(x.a), vreinterpretq_u8_f32(x.b)}};
    f16x out;
    FX_EACH(i) out.v[i] = vreinterpretq_f32_u8(vqtbl2q_u8(t, few_places(vreinterpretq_u32_u8(index.v[i]))));
    return out;
}
OQ_INLINE f16x fx_spread(f16x x, fx index)
{
    const uint8x16x4_t t = {{vreinterpretq_u8_f32(x.v[0]), vreinterpretq_u8_f32(x.v[1]), vreinterpretq_u8_f32(x.v[2]),
                             vreinterpretq_u8_f32(x.v[3])}};
    FX_EACH(i) x.v[i] = vreinterpretq_f32_u8(vqtbl4q_u8(t, few_places(vreinterpretq_u32_u8(index.v[i]))));
    return x;
}
OQ_INLINE f16x fx_fnma(f16x a, f16x b, f16x c)
{
    FX_EACH(i) c.v[i] = vfmsq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}
OQ_INLINE float fx_sum(f16x x)
{
    return vaddvq_f32(vaddq_f32(vaddq_f32(x.v[0], x.v[1]), vaddq_f32(x.v[2], x.v[3])));
}
#else
typedef struct fx {
    __m256i a, b;
} fx;
typedef uint16_t fx_words __attribute__((vector_size(32)));
OQ_INLINE __m256i fx_half(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}
OQ_INLINE fx fx_load(const void *p)
{
    return (fx){fx_half(p), fx_half((const char *)p + 32)};
}
OQ_INLINE fx fx_set(int byte)
{
    return (fx){_mm256_set1_epi8((char)byte), _mm256_set1_epi8((char)byte)};
}
OQ_INLINE fx fx_zero(void)
{
    return (fx){_mm256_setzero_si256(), _mm256_setzero_si256()};
}
OQ_INLINE fx fx_and(fx a, fx b)
{
    return (fx){_mm256_and_si256(a.a, b.a), _mm256_and_si256(a.b, b.b)};
}
OQ_INLINE fx fx_flip(fx v)
{
    const __m256i top = _mm256_set1_epi8((char)0x80);
    return (fx){_mm256_xor_si256(v.a, top), _mm256_xor_si256(v.b, top)};
}
OQ_INLINE fx fx_down(fx v, const int bits)
{
    return (fx){(__m256i)((fx_words)v.a >> bits), (__m256i)((fx_words)v.b >> bits)};
}
OQ_INLINE fx fx_up(fx v, const int bits)
{
    return (fx){(__m256i)((fx_words)v.a << bits), (__m256i)((fx_words)v.b << bits)};
}
OQ_INLINE fx fx_or_some(fx a, fx b, fx mask)
{
    b = fx_and(b, mask);
    return (fx){_mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b)};
}
OQ_INLINE fx fx_gather(const uint8_t *p, int stride)
{
    return (fx){few_gather(p, stride), few_gather(p + 2 * stride, stride)};
}
OQ_INLINE fx fx_halves(const uint8_t *p, int stride)
{
    return (fx){fx_half(p), fx_half(p + stride)};
}
OQ_INLINE fx fx_twice(const uint8_t *p, const int bits)
{
    const __m256i v = fx_half(p);
    return (fx){v, (__m256i)((fx_words)v >> bits)};
}
OQ_INLINE fx fx_quarters(const uint8_t *sixteen)
{
    const __m256i v = _mm256_broadcastsi128_si256(b16_load(sixteen));
    return (fx){v, v};
}
OQ_INLINE fx fx_lookup(fx table, fx v)
{
    return (fx){_mm256_shuffle_epi8(table.a, v.a), _mm256_shuffle_epi8(table.b, v.b)};
}
OQ_INLINE fx fx_where(fx bits, fx mask, fx value)
{
    const __m256i zero = _mm256_setzero_si256();
    const fx some = fx_and(bits, mask);
    return (fx){_mm256_andnot_si256(_mm256_cmpeq_epi8(some.a, zero), value.a),
                _mm256_andnot_si256(_mm256_cmpeq_epi8(some.b, zero), value.b)};
}
OQ_INLINE __m256i fx_pick(__m256i a, __m256i b, const bool odd)
{
    const __m256 x = _mm256_castsi256_ps(a), y = _mm256_castsi256_ps(b);
    return _mm256_castps_si256(odd ? _mm256_shuffle_ps(x, y, 0xdd) : _mm256_shuffle_ps(x, y, 0x88));
}
OQ_INLINE fx fx_even(fx a, fx b)
{
    return (fx){fx_pick(a.a, b.a, false), fx_pick(a.b, b.b, false)};
}
OQ_INLINE fx fx_odd(fx a, fx b)
{
    return (fx){fx_pick(a.a, b.a, true), fx_pick(a.b, b.b, true)};
}
#if defined(__AVXVNNI__)
OQ_INLINE __m256i fx_dot_half(__m256i sum, const __m256i w[FX_VECTORS], const char *x, const int most)
{
    (void)most;
    OQ_UNROLL
    for (int v = 0; v < FX_VECTORS; v++) sum = _mm256_dpbusd_avx_epi32(sum, w[v], fx_half(x + 64 * v));
    return sum;
}
#else
/* Words hold four pairs of codes to 31 times i8, two of codes to 63: 32512 at most. Larger codes are not for this. */
OQ_INLINE __m256i fx_dot_half(__m256i sum, const __m256i w[FX_VECTORS], const char *x, const int most)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i pairs[2];
    OQ_UNROLL
    for (int h = 0; h < 2; h++)
        pairs[h] = _mm256_add_epi16(_mm256_maddubs_epi16(w[2 * h], fx_half(x + 128 * h)),
                                    _mm256_maddubs_epi16(w[2 * h + 1], fx_half(x + 128 * h + 64)));
    if (most <= 31) return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_add_epi16(pairs[0], pairs[1]), one));
    return _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_madd_epi16(pairs[0], one), _mm256_madd_epi16(pairs[1], one)));
}
#endif
OQ_INLINE fx fx_dot(fx sum, const fx w[FX_VECTORS], const char *x, const int most)
{
    const __m256i low[] = {w[0].a, w[1].a, w[2].a, w[3].a}, high[] = {w[0].b, w[1].b, w[2].b, w[3].b};
    return (fx){fx_dot_half(sum.a, low, x, most), fx_dot_half(sum.b, high, x + 32, most)};
}
OQ_INLINE fx fx_add(fx a, fx b)
{
    return (fx){_mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b)};
}
OQ_INLINE fx fx_times_256(fx a)
{
    return (fx){_mm256_slli_epi32(a.a, 8), _mm256_slli_epi32(a.b, 8)};
}
OQ_INLINE f16x fx_numbers(fx a)
{
    return (f16x){_mm256_cvtepi32_ps(a.a), _mm256_cvtepi32_ps(a.b)};
}
OQ_INLINE f16x fx_spread8(eight x, fx index)
{
    return (f16x){_mm256_permutevar8x32_ps(x, index.a), _mm256_permutevar8x32_ps(x, index.b)};
}
OQ_INLINE __m256 fx_spread_half(f16x x, __m256i index)
{
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)); /* its sign: 8 or more */
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(x.low, index), _mm256_permutevar8x32_ps(x.high, index), upper);
}
OQ_INLINE f16x fx_spread(f16x x, fx index)
{
    return (f16x){fx_spread_half(x, index.a), fx_spread_half(x, index.b)};
}
OQ_INLINE f16x fx_fnma(f16x a, f16x b, f16x c)
{
    return (f16x){_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}
OQ_INLINE float fx_sum(f16x x)
{
    return v_sum(v_add(x.low, x.high));
}
#endif

/* Are the product's codes signed? Those of eight bits are stored 128 less then. */
#if defined(__aarch64__)
enum { FX_SIGNED = 1 };
#else
enum { FX_SIGNED = 0 };
#endif
/* The largest codes that the product takes. */
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
enum { FX_MOST = 63 };
#else
enum { FX_MOST = 255 };
#endif

OQ_INLINE fx fx_low(fx v)
{
    return fx_and(v, fx_set(15));
}
OQ_INLINE fx fx_high(fx v)
{
    return fx_low(fx_down(v, 4));
}
/* Eight f16 numbers, four in each of these. */
OQ_INLINE eight fx_eight_halves(uint64_t low, uint64_t high)
{
#if defined(__aarch64__)
    return eight_words(vcombine_u16(vcreate_u16(low), vcreate_u16(high)), &oq_dtype_f16);
#else
    return _mm256_cvtph_ps(_mm_set_epi64x((long long)high, (long long)low));
#endif
}

#endif
