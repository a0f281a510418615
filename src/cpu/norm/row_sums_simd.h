/* row_sums_simd.h -- the sums that RMS and layer norms need, over pieces of a row: f32 in four vectors of partial sums. One
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

enum { ROW_SUMS = 4 }; /* running sums: one alone would wait for itself */

OQ_INLINE float sums_total(const vf *s)
{
    return v_sum(v_add(v_add(s[0], s[1]), v_add(s[2], s[3])));
}

/* Vectors of ROW_SUMS * VF numbers from `at` on; of BF16 those of even and of odd places apart, which sums do not mind. */
OQ_INLINE void sums_get(vf *v, const void *x, bool bf16, int64_t at)
{
    if (bf16) {
        v_load_bf16_apart((const uint16_t *)x + at, &v[0], &v[1]);
        v_load_bf16_apart((const uint16_t *)x + at + 2 * VF, &v[2], &v[3]);
        return;
    }
    OQ_UNROLL
    for (int i = 0; i < ROW_SUMS; i++) v[i] = v_load((const float *)x + at + i * VF);
}

OQ_INLINE float sum_of_squares(const void *x, bool bf16, int64_t first, int64_t n)
{
    vf s[ROW_SUMS] = {v_zero(), v_zero(), v_zero(), v_zero()}, a[ROW_SUMS];
    int64_t j = 0;
    for (; j + ROW_SUMS * VF <= n; j += ROW_SUMS * VF) {
        sums_get(a, x, bf16, first + j);
        OQ_UNROLL
        for (int i = 0; i < ROW_SUMS; i++) s[i] = v_fma(a[i], a[i], s[i]);
    }
    for (; j < n; j += VF) {
        a[0] = v_get(x, bf16, first + j, n - j);
        s[0] = v_fma(a[0], a[0], s[0]);
    }
    return sums_total(s);
}

/* Sums of x - x0: a row of one value has exactly that mean. */
OQ_INLINE float row_mean(const void *x, bool bf16, int64_t n)
{
    float x0[VF];
    vf s[ROW_SUMS] = {v_zero(), v_zero(), v_zero(), v_zero()}, a[ROW_SUMS];
    v_store(x0, v_get(x, bf16, 0, 1));
    const vf shift = v_set(x0[0]), one = v_set(1.0f);
    int64_t j = 0;
    for (; j + ROW_SUMS * VF <= n; j += ROW_SUMS * VF) {
        sums_get(a, x, bf16, j);
        OQ_UNROLL
        for (int i = 0; i < ROW_SUMS; i++) s[i] = v_fma(v_sub(a[i], shift), one, s[i]); /* other ports than v_add's */
    }
    for (; j < n; j += VF) s[0] = v_add(s[0], keep_first(v_sub(v_get(x, bf16, j, n - j), shift), n - j));
    return x0[0] + sums_total(s) / (float)n;
}

OQ_INLINE float row_variance(const void *x, bool bf16, int64_t n, vf mean)
{
    vf s[ROW_SUMS] = {v_zero(), v_zero(), v_zero(), v_zero()}, a[ROW_SUMS];
    int64_t j = 0;
    for (; j + ROW_SUMS * VF <= n; j += ROW_SUMS * VF) {
        sums_get(a, x, bf16, j);
        OQ_UNROLL
        for (int i = 0; i < ROW_SUMS; i++) {
            a[i] = v_sub(a[i], mean);
            s[i] = v_fma(a[i], a[i], s[i]);
        }
    }
    for (; j < n; j += VF) {
        a[0] = keep_first(v_sub(v_get(x, bf16, j, n - j), mean), n - j);
        s[0] = v_fma(a[0], a[0], s[0]);
    }
    return sums_total(s) / (float)n;
}

#endif
