/* norm_simd.h -- RMS and layer norm for norm_avx2.c and norm_avx512.c: a row stays in the first cache level between its
 * passes. */
#include "cpu/elementwise/elem.h"
#include "cpu/norm/norm.h"
#include "cpu/norm/row_sums_simd.h"

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
