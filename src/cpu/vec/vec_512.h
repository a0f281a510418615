/* vec_512.h -- vec.h's primitives for AVX-512 F+BW+DQ+VL. */
#ifndef OQ_CPU_VEC_512_H
#define OQ_CPU_VEC_512_H

#define VF 16
typedef __m512 vf;

OQ_INLINE vf v_set(float x)
{
    return _mm512_set1_ps(x);
}
OQ_INLINE vf v_zero(void)
{
    return _mm512_setzero_ps();
}
OQ_INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}
OQ_INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}
OQ_INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}
OQ_INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}
/* 1 / a within 2^-14, for 1 <= a <= 2^126 */
OQ_INLINE vf v_inverse_short(vf a)
{
    return _mm512_rcp14_ps(a);
}
OQ_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
} /* a b + c */
OQ_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
} /* c - a b */
/* If either operand is NaN the result is the second one. */
OQ_INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}
OQ_INLINE vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}
OQ_INLINE vf v_neg(vf a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}
OQ_INLINE vf v_abs(vf a)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), a);
}
OQ_INLINE vf v_rint(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
OQ_INLINE vf v_scale2(vf a, vf n)
{
    return _mm512_scalef_ps(a, n);
} /* a * 2^n, n whole */
/* a < b ? x : y, lane by lane; unordered gives y */
OQ_INLINE vf v_if_less(vf a, vf b, vf x, vf y)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}

OQ_INLINE float v_sum(vf a)
{
    return _mm512_reduce_add_ps(a);
}
OQ_INLINE float v_largest(vf a)
{
    return _mm512_reduce_max_ps(a);
}

OQ_INLINE __mmask16 v_mask(int64_t n)
{
    return (__mmask16)(0xffffu >> (16 - n));
} /* 0 < n <= 16 */

OQ_INLINE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
OQ_INLINE void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}
OQ_INLINE vf v_load_n(const float *p, int64_t n)
{
    return _mm512_maskz_loadu_ps(v_mask(n), p);
}
OQ_INLINE void v_store_n(float *p, int64_t n, vf x)
{
    _mm512_mask_storeu_ps(p, v_mask(n), x);
}

/* VF signed bytes. */
OQ_INLINE vf v_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
}

/* p - q as numbers, wrapping; q NULL: p. */
OQ_INLINE vf v_from_ints(const int32_t *p, const int32_t *q)
{
    const __m512i a = _mm512_loadu_si512(p);
    return _mm512_cvtepi32_ps(q ? _mm512_sub_epi32(a, _mm512_loadu_si512(q)) : a);
}

OQ_INLINE vf v_from_bf16(__m256i h)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

OQ_INLINE vf v_load_bf16(const uint16_t *p)
{
    return v_from_bf16(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

OQ_INLINE vf v_load_bf16_n(const uint16_t *p, int64_t n)
{
    return v_from_bf16(_mm256_maskz_loadu_epi16(v_mask(n), p));
}

/* Nearest even in the upper halves; the lower halves are whatever. NaN stays NaN, quiet. */
OQ_INLINE __m512i v_bf16_bits(vf x)
{
    const __m512i u = _mm512_castps_si512(x), quiet = _mm512_set1_epi32(0x400000);
    const __mmask16 odd = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000));
    const __m512i below = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    const __m512i up = _mm512_mask_sub_epi32(below, odd, below, _mm512_set1_epi32(-1));
    return _mm512_mask_or_epi32(up, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), u, quiet);
}

OQ_INLINE vf v_round_bf16(vf x)
{
    return _mm512_castsi512_ps(_mm512_and_si512(v_bf16_bits(x), _mm512_set1_epi32((int)0xffff0000u)));
}

/* The upper halves side by side: one permutation, where shifting and narrowing are three instructions. */
OQ_INLINE __m256i v_to_bf16(vf x)
{
    const __m256i upper = _mm256_setr_epi16(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
    return _mm512_castsi512_si256(
        _mm512_permutexvar_epi16(_mm512_castsi256_si512(upper), v_bf16_bits(x)));
}

OQ_INLINE void v_store_bf16(uint16_t *p, vf x)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v_to_bf16(x));
}

OQ_INLINE void v_store_bf16_n(uint16_t *p, int64_t n, vf x)
{
    _mm256_mask_storeu_epi16(p, v_mask(n), v_to_bf16(x));
}

/* 2 VF numbers as those of even and of odd places: two instructions apart, where one behind the other takes four. */
OQ_INLINE void v_load_bf16_apart(const uint16_t *p, vf *even, vf *odd)
{
    const __m512i u = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(u, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u)));
}

OQ_INLINE void v_load_apart(const float *p, vf *even, vf *odd)
{
    const __m512i e = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i o = _mm512_add_epi32(e, _mm512_set1_epi32(1));
    *even = _mm512_permutex2var_ps(v_load(p), e, v_load(p + VF));
    *odd = _mm512_permutex2var_ps(v_load(p), o, v_load(p + VF));
}

/* As v_bf16_bits for what is a number or the NaN that arithmetic makes: no other NaN. */
OQ_INLINE __m512i v_bf16_bits_of_number(vf x)
{
    const __m512i u = _mm512_castps_si512(x), below = _mm512_add_epi32(u, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_sub_epi32(below, _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x10000)), below,
                                 _mm512_set1_epi32(-1));
}

/* As v_bf16_bits for a number or any quiet NaN. */
OQ_INLINE __m512i v_bf16_bits_of_result(vf x)
{
    const __m512i u = _mm512_castps_si512(x);
    const __mmask16 number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
    const __mmask16 odd = _mm512_mask_test_epi32_mask(number, u, _mm512_set1_epi32(0x10000));
    const __m512i below = _mm512_mask_add_epi32(u, number, u, _mm512_set1_epi32(0x7fff));
    return _mm512_mask_sub_epi32(below, odd, below, _mm512_set1_epi32(-1));
}

/* The number that the upper halves are. */
OQ_INLINE vf v_upper_half(__m512i bits)
{
    return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000u)));
}

OQ_INLINE void v_store_halves_apart(uint16_t *p, __m512i even, __m512i odd)
{
    _mm512_storeu_si512(p, _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(even, 16), odd));
}

OQ_INLINE void v_store_bf16_apart(uint16_t *p, vf even, vf odd)
{
    v_store_halves_apart(p, v_bf16_bits_of_number(even), v_bf16_bits_of_number(odd));
}

#if defined(__AVX512BF16__)
/* sum + pairs of bf16 of x times those of b; subnormal numbers count as zero. */
OQ_INLINE vf v_dot_bf16(vf x, vf b, vf sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)_mm512_castps_si512(x), (__m512bh)_mm512_castps_si512(b));
}
/* As v_store_bf16 by the one instruction, which may store a subnormal number as zero. */
OQ_INLINE void v_store_bf16_short(uint16_t *p, int64_t n, vf x)
{
    const __m256i half = (__m256i)_mm512_cvtneps_pbh(x);
    if (n >= VF)
        _mm256_storeu_si256((__m256i *)(void *)p, half);
    else
        _mm256_mask_storeu_epi16(p, v_mask(n), half);
}
/* Upper halves of both, `even` in the lower place. */
OQ_INLINE vf v_pairs_bf16(vf even, vf odd)
{
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
    return _mm512_castsi512_ps(_mm512_or_si512(low, _mm512_castps_si512(odd)));
}
#endif

#if defined(__AVX512VNNI__)
/* sum + u8 fours of x times i8 fours of b, in i32. */
OQ_INLINE vf v_dot_bytes(vf x, vf b, vf sum)
{
    return _mm512_castsi512_ps(
        _mm512_dpbusd_epi32(_mm512_castps_si512(sum), _mm512_castps_si512(x), _mm512_castps_si512(b)));
}
#endif

/* p 2^n for whole n, given as n + 1.5 2^23; the result is a normal number. */
OQ_INLINE vf v_add_exponent(vf p, vf shifted)
{
    const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(shifted), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), n));
}

/* p0 p0 p1 p1 ...: n lanes out of n / 2 floats (n even). */
OQ_INLINE vf v_load_pairs(const float *p, int64_t n)
{
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, v_load_n(p, n / 2));
}

OQ_INLINE vf v_swap_pairs(vf x)
{
    return _mm512_permute_ps(x, 0xb1);
}

/* -a0 a1 -a2 a3 ... */
OQ_INLINE vf v_neg_even(vf x)
{
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi64(0x80000000)));
}

/* Does any lane hold an infinity or a NaN? */
OQ_INLINE bool v_any_wild(vf x)
{
    const __m512i e = _mm512_set1_epi32(0x7f800000);
    return _mm512_cmpeq_epi32_mask(_mm512_and_si512(_mm512_castps_si512(x), e), e) != 0;
}

/* dst[i][j] = dword i of r[j], for 16 x 16 dwords; rows of dst are `ld` dwords apart. r is lost. */
OQ_INLINE void v_transpose16(uint32_t *dst, int64_t ld, __m512i r[16])
{
    __m512i t[16];
    OQ_UNROLL
    for (int i = 0; i < 16; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
    OQ_UNROLL
    for (int i = 0; i < 16; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
    OQ_UNROLL
    for (int i = 0; i < 4; i++) { /* r[i + 4 q]: dword i of each quarter, rows 4 q ... */
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    OQ_UNROLL
    for (int i = 0; i < 4; i++) {
        _mm512_storeu_si512(dst + i * ld, _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88));
        _mm512_storeu_si512(dst + (i + 8) * ld, _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd));
        _mm512_storeu_si512(dst + (i + 4) * ld, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88));
        _mm512_storeu_si512(dst + (i + 12) * ld, _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd));
    }
}

#endif
