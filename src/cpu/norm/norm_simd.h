/* norm_simd.h -- RMS and layer norm for norm_avx2.c and norm_avx512.c: f32 sums in two vectors of partial
 * sums; a row stays in the first cache level between its passes. */
#include "cpu/elementwise/elem.h"
#include "cpu/norm/norm.h"
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

static void rms_rows(const void *args, int64_t first, int64_t end)
{
    const oq_norm_args *a = args;
    const bool xb = oq_elem_is_bf16(&a->x), yb = oq_elem_is_bf16(&a->y);
    const bool early = a->round_before_weight && yb;
    const int64_t n = a->group > 0 ? a->group : a->x.cols;
    for (int64_t i = first; i < end; i++) {
        const void *x = oq_elem_row(&a->x, i);
        void *y = oq_elem_row(&a->y, i);
        for (int64_t g = 0; g + n <= a->x.cols; g += n) {
            const vf scale = v_set(1.0f / sqrtf(sum_of_squares(x, xb, g, n) / (float)n + a->eps));
            for (int64_t j = 0; j < n; j += VF) {
                vf v = v_mul(v_get(x, xb, g + j, n - j), scale);
                if (early) v = v_round_bf16(v);
                v_put(y, yb, g + j, n - j, v_mul(v, v_param(a->weight, j, n - j, 1.0f)));
            }
        }
    }
}

static void rms_norm(oq_device *d, const oq_norm_args *a)
{
    oq_rows_run(d->pool, a->x.rows, a->x.cols, rms_rows, a);
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

static void layer_rows(const void *args, int64_t first, int64_t end)
{
    const oq_norm_args *a = args;
    const bool xb = oq_elem_is_bf16(&a->x), yb = oq_elem_is_bf16(&a->y);
    const int64_t n = a->x.cols;
    for (int64_t i = first; i < end; i++) {
        const void *x = oq_elem_row(&a->x, i);
        void *y = oq_elem_row(&a->y, i);
        const vf mean = v_set(row_mean(x, xb, n));
        const vf scale = v_set(1.0f / sqrtf(row_variance(x, xb, n, mean) + a->eps));
        for (int64_t j = 0; j < n; j += VF) {
            vf v = v_mul(v_sub(v_get(x, xb, j, n - j), mean), scale);
            v = v_fma(v, v_param(a->weight, j, n - j, 1.0f), v_param(a->bias, j, n - j, 0.0f));
            v_put(y, yb, j, n - j, v);
        }
    }
}

static void layer_norm(oq_device *d, const oq_norm_args *a)
{
    oq_rows_run(d->pool, a->x.rows, a->x.cols, layer_rows, a);
}
