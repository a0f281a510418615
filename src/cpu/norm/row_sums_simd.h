/* row_sums_simd.h -- the sums that RMS and layer norms need, over pieces of a row: f32 in two vectors of partial sums. One
 * order for all who use them, so a norm gives the same bits alone and inside of a fusion. */
#ifndef OQ_CPU_ROW_SUMS_SIMD_H
#define OQ_CPU_ROW_SUMS_SIMD_H

#include "cpu/vec/vec_math.h"

#include <math.h>

/* Lanes from n on are put to zero. */
OQ_INLINE vf keep_first(vf x, int64_t n)
{
    float lane[VF];
    for (int i = 0; i < VF; i++) lane[i] = (float)i;
    return n >= VF ? x : v_if_less(v_load(lane), v_set((float)n), x, v_zero());
}

OQ_INLINE float sum_of_squares(const void *x, bool bf16, int64_t first, int64_t n)
{
    vf s0 = v_zero(), s1 = v_zero();
    int64_t j = 0;
    for (; j + 2 * VF <= n; j += 2 * VF) {
        const vf a = v_get(x, bf16, first + j, VF), b = v_get(x, bf16, first + j + VF, VF);
        s0 = v_fma(a, a, s0);
        s1 = v_fma(b, b, s1);
    }
    for (; j < n; j += VF) {
        const vf a = v_get(x, bf16, first + j, n - j);
        s0 = v_fma(a, a, s0);
    }
    return v_sum(v_add(s0, s1));
}

/* Sums of x - x0: a row of one value has exactly that mean. */
OQ_INLINE float row_mean(const void *x, bool bf16, int64_t n)
{
    float x0[VF];
    vf s0 = v_zero(), s1 = v_zero();
    v_store(x0, v_get(x, bf16, 0, 1));
    const vf shift = v_set(x0[0]);
    int64_t j = 0;
    for (; j + 2 * VF <= n; j += 2 * VF) {
        s0 = v_add(s0, v_sub(v_get(x, bf16, j, VF), shift));
        s1 = v_add(s1, v_sub(v_get(x, bf16, j + VF, VF), shift));
    }
    for (; j < n; j += VF) s0 = v_add(s0, keep_first(v_sub(v_get(x, bf16, j, n - j), shift), n - j));
    return x0[0] + v_sum(v_add(s0, s1)) / (float)n;
}

OQ_INLINE float row_variance(const void *x, bool bf16, int64_t n, vf mean)
{
    vf s0 = v_zero(), s1 = v_zero();
    int64_t j = 0;
    for (; j + 2 * VF <= n; j += 2 * VF) {
        const vf a = v_sub(v_get(x, bf16, j, VF), mean), b = v_sub(v_get(x, bf16, j + VF, VF), mean);
        s0 = v_fma(a, a, s0);
        s1 = v_fma(b, b, s1);
    }
    for (; j < n; j += VF) {
        const vf a = keep_first(v_sub(v_get(x, bf16, j, n - j), mean), n - j);
        s0 = v_fma(a, a, s0);
    }
    return v_sum(v_add(s0, s1)) / (float)n;
}

#endif
