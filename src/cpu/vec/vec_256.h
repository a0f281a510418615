/* vec_256.h -- vec.h's primitives for AVX2 + FMA. */
#ifndef OQ_CPU_VEC_256_H
#define OQ_CPU_VEC_256_H

#define VF 8
typedef __m256 vf;

OQ_INLINE vf v_set(float x)
{
    return _mm256_set1_ps(x);
}
OQ_INLINE vf v_zero(void)
{
    return _mm256_setzero_ps();
}
OQ_INLINE vf v_add(vf a, vf b)
{
    return _mm256_add_ps(a, b);
}
OQ_INLINE vf v_sub(vf a, vf b)
{
    return _mm256_sub_ps(a, b);
}
OQ_INLINE vf v_mul(vf a, vf b)
{
    return _mm256_mul_ps(a, b);
}
OQ_INLINE vf v_div(vf a, vf b)
{
    return _mm256_div_ps(a, b);
}
/* 1 / a; vec_512.h has a shorter one */
OQ_INLINE vf v_inverse_short(vf a)
{
    return _mm256_div_ps(_mm256_set1_ps(1.0f), a);
}
OQ_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
} /* a b + c */
OQ_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
} /* c - a b */
/* If either operand is NaN the result is the second one. */
OQ_INLINE vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}
OQ_INLINE vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}
OQ_INLINE vf v_neg(vf a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}
OQ_INLINE vf v_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
OQ_INLINE vf v_rint(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* a * 2^n, n whole, |n| <= 250: in two steps, so that the ends round once and overflow to infinity. */
OQ_INLINE vf v_scale2(vf a, vf n)
{
    const __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

/* a < b ? x : y, lane by lane; unordered gives y */
OQ_INLINE vf v_if_less(vf a, vf b, vf x, vf y)
{
    return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

OQ_INLINE float v_sum(vf a)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

OQ_INLINE float v_largest(vf a)
{
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

OQ_INLINE __m256i v_mask(int64_t n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

OQ_INLINE vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
OQ_INLINE void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}
OQ_INLINE vf v_load_n(const float *p, int64_t n)
{
    return _mm256_maskload_ps(p, v_mask(n));
}
OQ_INLINE void v_store_n(float *p, int64_t n, vf x)
{
    _mm256_maskstore_ps(p, v_mask(n), x);
}

/* VF signed bytes. */
OQ_INLINE vf v_load_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}

/* p - q as numbers, wrapping; q NULL: p. */
OQ_INLINE vf v_from_ints(const int32_t *p, const int32_t *q)
{
    const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm256_cvtepi32_ps(q ? _mm256_sub_epi32(a, _mm256_loadu_si256((const __m256i *)(const void *)q)) : a);
}

OQ_INLINE vf v_from_bf16(__m128i h)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

OQ_INLINE vf v_load_bf16(const uint16_t *p)
{
    return v_from_bf16(_mm_loadu_si128((const __m128i *)(const void *)p));
}

OQ_INLINE vf v_load_bf16_n(const uint16_t *p, int64_t n)
{
    uint16_t part[8] = {0};
    memcpy(part, p, (size_t)n * sizeof *p);
    return v_load_bf16(part);
}

/* Nearest even in the upper halves; the lower halves are whatever. NaN stays NaN, quiet. */
OQ_INLINE __m256i v_bf16_bits(vf x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i quiet = _mm256_or_si256(u, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}

OQ_INLINE vf v_round_bf16(vf x)
{
    return _mm256_castsi256_ps(_mm256_and_si256(v_bf16_bits(x), _mm256_set1_epi32((int)0xffff0000u)));
}

OQ_INLINE __m128i v_to_bf16(vf x)
{
    const __m256i h = _mm256_srli_epi32(v_bf16_bits(x), 16);
    return _mm_packus_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
}

OQ_INLINE void v_store_bf16(uint16_t *p, vf x)
{
    _mm_storeu_si128((__m128i *)(void *)p, v_to_bf16(x));
}

OQ_INLINE void v_store_bf16_n(uint16_t *p, int64_t n, vf x)
{
    uint16_t part[8];
    v_store_bf16(part, x);
    memcpy(p, part, (size_t)n * sizeof *p);
}

/* See vec_512.h. */
OQ_INLINE void v_load_bf16_apart(const uint16_t *p, vf *even, vf *odd)
{
    const __m256i u = _mm256_loadu_si256((const __m256i *)(const void *)p);
    *even = _mm256_castsi256_ps(_mm256_slli_epi32(u, 16));
    *odd = _mm256_castsi256_ps(_mm256_and_si256(u, _mm256_set1_epi32((int)0xffff0000u)));
}

OQ_INLINE void v_load_apart(const float *p, vf *even, vf *odd)
{
    const __m256 a = v_load(p), b = v_load(p + VF);
    *even = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88)), 0xd8));
    *odd = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8));
}

OQ_INLINE __m256i v_bf16_bits_of_number(vf x)
{
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}

OQ_INLINE __m256i v_bf16_bits_of_result(vf x)
{
    return v_bf16_bits(x);
}

OQ_INLINE vf v_upper_half(__m256i bits)
{
    return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000u)));
}

OQ_INLINE void v_store_halves_apart(uint16_t *p, __m256i even, __m256i odd)
{
    const __m256i low = _mm256_srli_epi32(even, 16);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm256_blend_epi16(low, odd, 0xaa));
}

OQ_INLINE void v_store_bf16_apart(uint16_t *p, vf even, vf odd)
{
    v_store_halves_apart(p, v_bf16_bits_of_number(even), v_bf16_bits_of_number(odd));
}

OQ_INLINE vf v_add_exponent(vf p, vf shifted)
{
    const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), n));
}

/* p0 p0 p1 p1 ...: n lanes out of n / 2 floats (n even). */
OQ_INLINE vf v_load_pairs(const float *p, int64_t n)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
    return _mm256_permutevar8x32_ps(v_load_n(p, n / 2), twice);
}

OQ_INLINE vf v_swap_pairs(vf x)
{
    return _mm256_permute_ps(x, 0xb1);
}

/* -a0 a1 -a2 a3 ... */
OQ_INLINE vf v_neg_even(vf x)
{
    return _mm256_castsi256_ps(_mm256_xor_si256(_mm256_castps_si256(x), _mm256_set1_epi64x(0x80000000)));
}

/* Does any lane hold an infinity or a NaN? */
OQ_INLINE bool v_any_wild(vf x)
{
    const __m256i e = _mm256_set1_epi32(0x7f800000);
    const __m256i hit = _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(x), e), e);
    return _mm256_movemask_epi8(hit) != 0;
}

#endif
