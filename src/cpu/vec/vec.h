/* vec.h -- one vector of floats, 8 or 16 lanes, so that a kernel's body is written once and compiled for AVX2, for
 * AVX-512 and for NEON (by the suffix of the file that includes it). Loads and stores convert BF16; a count below
 * VF touches that many elements and not one more. */
#ifndef OQ_CPU_VEC_H
#define OQ_CPU_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#ifdef __clang__
#define OQ_UNROLL _Pragma("clang loop unroll(full)")
#else
#define OQ_UNROLL _Pragma("GCC unroll 16")
#endif
#define OQ_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#include "cpu/vec/vec_512.h"
#elif defined(__aarch64__)
#include "cpu/vec/vec_neon.h"
#else
#include "cpu/vec/vec_256.h"
#endif

/* Element `at` of a row that is BF16 or F32. */
OQ_INLINE vf v_get(const void *row, bool bf16, int64_t at, int64_t n)
{
    if (n >= VF) return bf16 ? v_load_bf16((const uint16_t *)row + at) : v_load((const float *)row + at);
    return bf16 ? v_load_bf16_n((const uint16_t *)row + at, n) : v_load_n((const float *)row + at, n);
}

OQ_INLINE void v_put(void *row, bool bf16, int64_t at, int64_t n, vf x)
{
    if (bf16) {
        if (n >= VF)
            v_store_bf16((uint16_t *)row + at, x);
        else
            v_store_bf16_n((uint16_t *)row + at, n, x);
    } else if (n >= VF) {
        v_store((float *)row + at, x);
    } else {
        v_store_n((float *)row + at, n, x);
    }
}

/* A vector of f32 parameters (weights, biases); NULL gives `absent`. */
OQ_INLINE vf v_param(const float *p, int64_t at, int64_t n, float absent)
{
    if (!p) return v_set(absent);
    return n >= VF ? v_load(p + at) : v_load_n(p + at, n);
}

/* Fetched before it is needed, into the first cache level. */
OQ_INLINE void oq_fetch(const void *p)
{
    __builtin_prefetch(p, 0, 3);
}

/* The same for a line that is about to be written. */
OQ_INLINE void oq_fetch_to_write(const void *p)
{
    __builtin_prefetch(p, 1, 3);
}

#if !defined(__aarch64__)
/* out[r * out_ld + c] = in[c * in_ld + r] for 8 x 8 floats, with 256-bit vectors in both instruction sets of x86. */
OQ_INLINE void v_transpose8(float *out, int64_t out_ld, const float *in, int64_t in_ld)
{
    __m256 a[8], b[8];
    OQ_UNROLL
    for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(in + i * in_ld);
    OQ_UNROLL
    for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    OQ_UNROLL
    for (int i = 0; i < 8; i += 4) {
        a[i] = _mm256_shuffle_ps(b[i], b[i + 2], 0x44);
        a[i + 1] = _mm256_shuffle_ps(b[i], b[i + 2], 0xee);
        a[i + 2] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44);
        a[i + 3] = _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee);
    }
    OQ_UNROLL
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(out + i * out_ld, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(out + (i + 4) * out_ld, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
#endif

#endif
