/* sixteen.h -- sixteen codes of a byte, and the sixteen numbers that they stand for: what decoders of weights are written
 * in, for AVX2, AVX-512 and NEON (by the suffix of the file that includes this). */
#ifndef OQ_CPU_VEC_SIXTEEN_H
#define OQ_CPU_VEC_SIXTEEN_H

#include <stdbool.h>
#include <stdint.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

/* ---- bytes; b16_up and b16_down may move bits over their edges, which the caller masks -------------------- */

#if defined(__aarch64__)
typedef uint8x16_t b16;
static inline b16 b16_load(const void *src)
{
    return vld1q_u8(src);
}
static inline b16 b16_eight(uint64_t word)
{
    return vcombine_u8(vcreate_u8(word), vcreate_u8(0));
}
static inline b16 b16_four(uint32_t word)
{
    return vreinterpretq_u8_u32(vsetq_lane_u32(word, vdupq_n_u32(0), 0));
}
static inline b16 b16_set(uint8_t x)
{
    return vdupq_n_u8(x);
}
static inline b16 b16_and(b16 a, b16 b)
{
    return vandq_u8(a, b);
}
static inline b16 b16_or(b16 a, b16 b)
{
    return vorrq_u8(a, b);
}
static inline b16 b16_sub(b16 a, b16 b)
{
    return vsubq_u8(a, b);
}
static inline b16 b16_equal(b16 a, b16 b)
{
    return vceqq_u8(a, b);
}
static inline b16 b16_up(b16 a, int bits)
{
    return vshlq_u8(a, vdupq_n_s8((int8_t)bits));
}
static inline b16 b16_down(b16 a, int bits)
{
    return vshlq_u8(a, vdupq_n_s8((int8_t)-bits));
}
static inline b16 b16_lookup(b16 table, b16 index)
{
    return vqtbl1q_u8(table, index);
}
static inline b16 b16_zip_low(b16 a, b16 b)
{
    return vzip1q_u8(a, b);
}
static inline b16 b16_zip_high(b16 a, b16 b)
{
    return vzip2q_u8(a, b);
}
static inline bool b16_any(b16 a)
{
    return vmaxvq_u8(a) != 0;
}
static inline float32x4_t f32x4_of_f16(uint16x4_t bits)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(bits));
}
static inline float f32_of_f16(uint16_t bits)
{
    return vgetq_lane_f32(f32x4_of_f16(vdup_n_u16(bits)), 0);
}
#else
typedef __m128i b16;
static inline b16 b16_load(const void *src)
{
    return _mm_loadu_si128((const __m128i *)src);
}
static inline b16 b16_eight(uint64_t word) /* and zeros */
{
    return _mm_cvtsi64_si128((long long)word);
}
static inline b16 b16_four(uint32_t word)
{
    return _mm_cvtsi32_si128((int)word);
}
static inline b16 b16_set(uint8_t x)
{
    return _mm_set1_epi8((char)x);
}
static inline b16 b16_and(b16 a, b16 b)
{
    return _mm_and_si128(a, b);
}
static inline b16 b16_or(b16 a, b16 b)
{
    return _mm_or_si128(a, b);
}
static inline b16 b16_sub(b16 a, b16 b)
{
    return _mm_sub_epi8(a, b);
}
static inline b16 b16_equal(b16 a, b16 b) /* 255 or 0 */
{
    return _mm_cmpeq_epi8(a, b);
}
static inline b16 b16_up(b16 a, int bits)
{
    return _mm_slli_epi16(a, bits);
}
static inline b16 b16_down(b16 a, int bits)
{
    return _mm_srli_epi16(a, bits);
}
static inline b16 b16_lookup(b16 table, b16 index)
{
    return _mm_shuffle_epi8(table, index);
}
static inline b16 b16_zip_low(b16 a, b16 b)
{
    return _mm_unpacklo_epi8(a, b);
}
static inline b16 b16_zip_high(b16 a, b16 b)
{
    return _mm_unpackhi_epi8(a, b);
}
static inline bool b16_any(b16 a)
{
    return !_mm_testz_si128(a, a);
}
static inline float f32_of_f16(uint16_t bits)
{
    return _cvtsh_ss(bits);
}
#endif

/* ---- numbers ---------------------------------------------------------------------------------------------- */

#if defined(__aarch64__)
typedef struct f16x {
    float32x4_t v[4];
} f16x;
#define F16X_OP(name, op)                                                                                    \
    static inline f16x name(f16x a, f16x b)                                                                  \
    {                                                                                                        \
        return (f16x){{v##op##q_f32(a.v[0], b.v[0]), v##op##q_f32(a.v[1], b.v[1]),                           \
                       v##op##q_f32(a.v[2], b.v[2]), v##op##q_f32(a.v[3], b.v[3])}};                         \
    }
static inline f16x f16x_set(float x)
{
    const float32x4_t v = vdupq_n_f32(x);
    return (f16x){{v, v, v, v}};
}
static inline f16x f16x_i8(b16 codes)
{
    const int8x16_t c = vreinterpretq_s8_u8(codes);
    const int16x8_t low = vmovl_s8(vget_low_s8(c)), high = vmovl_high_s8(c);
    return (f16x){{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
                   vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
static inline f16x f16x_u8(b16 codes)
{
    const uint16x8_t low = vmovl_u8(vget_low_u8(codes)), high = vmovl_high_u8(codes);
    return (f16x){{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
                   vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))}};
}
typedef uint8x16x4_t table16; /* the first bytes of its sixteen numbers, the second ones, ... */
static inline table16 table16_of(const float *table)
{
    return vld4q_u8((const uint8_t *)table);
}
/* Each byte of the numbers is looked up by itself, then they are put together. */
static inline f16x f16x_table(b16 codes, table16 table)
{
    const uint8x16_t b0 = vqtbl1q_u8(table.val[0], codes), b1 = vqtbl1q_u8(table.val[1], codes);
    const uint8x16_t b2 = vqtbl1q_u8(table.val[2], codes), b3 = vqtbl1q_u8(table.val[3], codes);
    const uint16x8_t low1 = vreinterpretq_u16_u8(vzip1q_u8(b0, b1)), low2 = vreinterpretq_u16_u8(vzip2q_u8(b0, b1));
    const uint16x8_t top1 = vreinterpretq_u16_u8(vzip1q_u8(b2, b3)), top2 = vreinterpretq_u16_u8(vzip2q_u8(b2, b3));
    return (f16x){{vreinterpretq_f32_u16(vzip1q_u16(low1, top1)), vreinterpretq_f32_u16(vzip2q_u16(low1, top1)),
                   vreinterpretq_f32_u16(vzip1q_u16(low2, top2)), vreinterpretq_f32_u16(vzip2q_u16(low2, top2))}};
}
static inline void f16x_store(float *dst, f16x x)
{
    for (int i = 0; i < 4; i++) vst1q_f32(dst + 4 * i, x.v[i]);
}
static inline f16x f16x_load(const float *src)
{
    return (f16x){{vld1q_f32(src), vld1q_f32(src + 4), vld1q_f32(src + 8), vld1q_f32(src + 12)}};
}
static inline f16x f16x_fma(f16x a, f16x b, f16x c)
{
    for (int i = 0; i < 4; i++) c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
    return c;
}
#elif defined(__AVX512F__)
typedef __m512 f16x; /* sixteen f32 */
#define F16X_OP(name, op)                                                                                    \
    static inline f16x name(f16x a, f16x b)                                                                  \
    {                                                                                                        \
        return _mm512_##op##_ps(a, b);                                                                       \
    }
static inline f16x f16x_set(float x)
{
    return _mm512_set1_ps(x);
}
static inline f16x f16x_i8(b16 codes)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes));
}
static inline f16x f16x_u8(b16 codes)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes));
}
typedef __m512 table16;
static inline table16 table16_of(const float *table)
{
    return _mm512_loadu_ps(table);
}
/* Entries of a table of sixteen. */
static inline f16x f16x_table(b16 codes, table16 table)
{
    return _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(codes), table);
}
static inline void f16x_store(float *dst, f16x x)
{
    _mm512_storeu_ps(dst, x);
}
static inline f16x f16x_load(const float *src)
{
    return _mm512_loadu_ps(src);
}
static inline f16x f16x_fma(f16x a, f16x b, f16x c)
{
    return _mm512_fmadd_ps(a, b, c);
}
#else
typedef struct f16x {
    __m256 low, high;
} f16x;
#define F16X_OP(name, op)                                                                                    \
    static inline f16x name(f16x a, f16x b)                                                                  \
    {                                                                                                        \
        return (f16x){_mm256_##op##_ps(a.low, b.low), _mm256_##op##_ps(a.high, b.high)};                     \
    }
static inline f16x f16x_set(float x)
{
    return (f16x){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
static inline f16x f16x_i8(b16 codes)
{
    return (f16x){_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)),
                  _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8)))};
}
static inline f16x f16x_u8(b16 codes)
{
    return (f16x){_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)),
                  _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(codes, 8)))};
}
typedef struct table16 {
    __m256 low, high;
} table16;
static inline table16 table16_of(const float *table)
{
    return (table16){_mm256_loadu_ps(table), _mm256_loadu_ps(table + 8)};
}
static inline __m256 table_half(b16 codes, table16 table)
{
    const __m256i code = _mm256_cvtepu8_epi32(codes);
    const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)); /* its sign: code is 8 or more */
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.low, code),
                            _mm256_permutevar8x32_ps(table.high, code), upper);
}
static inline f16x f16x_table(b16 codes, table16 table)
{
    return (f16x){table_half(codes, table), table_half(_mm_srli_si128(codes, 8), table)};
}
static inline void f16x_store(float *dst, f16x x)
{
    _mm256_storeu_ps(dst, x.low);
    _mm256_storeu_ps(dst + 8, x.high);
}
static inline f16x f16x_load(const float *src)
{
    return (f16x){_mm256_loadu_ps(src), _mm256_loadu_ps(src + 8)};
}
static inline f16x f16x_fma(f16x a, f16x b, f16x c)
{
    return (f16x){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
#endif

F16X_OP(f16x_mul, mul)
F16X_OP(f16x_add, add)
F16X_OP(f16x_sub, sub)

/* ---- e4m3 codes as f16: shifted by 7, a code is the f16 number 2^-8 times as large ------------------------- */

#if defined(__aarch64__)
typedef struct h16 {
    uint16x8_t low, high;
} h16;
static inline h16 h16_of_e4m3(b16 codes)
{
    const int8x16_t c = vreinterpretq_s8_u8(codes);
    const uint16x8_t keep = vdupq_n_u16(0xbf80);
    return (h16){vandq_u16(vreinterpretq_u16_s16(vshll_n_s8(vget_low_s8(c), 7)), keep),
                 vandq_u16(vreinterpretq_u16_s16(vshll_high_n_s8(c, 7)), keep)};
}
static inline uint16x8_t h8_with_nan(uint16x8_t half)
{
    const uint16x8_t top = vdupq_n_u16(0x3f80), nan = vdupq_n_u16(0x7e00);
    return vorrq_u16(half, vandq_u16(vceqq_u16(vandq_u16(half, top), top), nan));
}
static inline h16 h16_with_nan(h16 half)
{
    return (h16){h8_with_nan(half.low), h8_with_nan(half.high)};
}
static inline f16x f16x_halves(h16 h)
{
    return (f16x){{f32x4_of_f16(vget_low_u16(h.low)), f32x4_of_f16(vget_high_u16(h.low)),
                   f32x4_of_f16(vget_low_u16(h.high)), f32x4_of_f16(vget_high_u16(h.high))}};
}
#else
typedef __m256i h16; /* sixteen words */
static inline h16 h16_of_e4m3(b16 codes)
{
    return _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7), _mm256_set1_epi16((short)0xbf80));
}
/* What was a NaN code becomes NaN. */
static inline h16 h16_with_nan(h16 half)
{
    const __m256i top = _mm256_set1_epi16(0x3f80), nan = _mm256_set1_epi16(0x7e00);
    return _mm256_or_si256(half, _mm256_and_si256(_mm256_cmpeq_epi16(_mm256_and_si256(half, top), top), nan));
}
#if defined(__AVX512F__)
static inline f16x f16x_halves(h16 h)
{
    return _mm512_cvtph_ps(h);
}
#else
static inline f16x f16x_halves(h16 h)
{
    return (f16x){_mm256_cvtph_ps(_mm256_castsi256_si128(h)), _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1))};
}
#endif
#endif

#endif
