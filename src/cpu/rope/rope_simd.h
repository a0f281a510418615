/* rope_simd.h -- the body of rope_avx2.c and rope_avx512.c: the reference's products and sums, same bits; and RMS norm
 * over each head with the rotation after it, in one walk. */
#include "cpu/elementwise/elem.h"
#include "cpu/norm/row_sums_simd.h"
#include "cpu/rope/rope.h"

/* Pairs (2i, 2i+1): x * cc + swapped x * (-s, s), lane by lane. */
OQ_INLINE void rotate_interleaved(void *x, bool bf16, int64_t first, const float *c, const float *s, int64_t d)
{
    for (int64_t j = 0; j < d; j += VF) {
        const int64_t n = d - j < VF ? d - j : VF;
        const vf v = v_get(x, bf16, first + j, n);
        const vf side = v_mul(v_swap_pairs(v), v_load_pairs(s + j / 2, n));
        v_put(x, bf16, first + j, n, v_add(v_mul(v, v_load_pairs(c + j / 2, n)), v_neg_even(side)));
    }
}

/* Pairs (i, i + d/2). */
OQ_INLINE void rotate_halves(void *x, bool bf16, int64_t first, const float *c, const float *s, int64_t d)
{
    const int64_t half = d / 2;
    for (int64_t j = 0; j < half; j += VF) {
        const int64_t n = half - j;
        const vf x0 = v_get(x, bf16, first + j, n), x1 = v_get(x, bf16, first + half + j, n);
        const vf cc = v_param(c, j, n, 0.0f), ss = v_param(s, j, n, 0.0f);
        v_put(x, bf16, first + j, n, v_sub(v_mul(x0, cc), v_mul(x1, ss)));
        v_put(x, bf16, first + half + j, n, v_add(v_mul(x1, cc), v_mul(x0, ss)));
    }
}

OQ_INLINE void rotate(void *x, bool bf16, int64_t first, const float *c, const float *s, int64_t d,
                      oq_rope_kind kind)
{
    if (kind == OQ_ROPE_HALF)
        rotate_halves(x, bf16, first, c, s, d);
    else
        rotate_interleaved(x, bf16, first, c, s, d);
}

static void rope_rows(const void *args, int64_t first, int64_t end)
{
    const oq_rope_args *a = args;
    const int64_t d = a->head_dim;
    const bool bf16 = oq_elem_is_bf16(&a->x);
    for (int64_t row = first; row < end; row++) {
        void *x = oq_elem_row(&a->x, row);
        const float *c = a->cos + row * (d / 2), *s = a->sin + row * (d / 2);
        for (int64_t h = 0; h < a->n_heads; h++) rotate(x, bf16, h * d, c, s, d, a->kind);
    }
}

static void rope(oq_device *d, const oq_rope_args *a)
{
    oq_rows_run(d->pool, a->x.rows, a->n_heads * a->head_dim, rope_rows, a);
}

/* ---- with the norm before it --------------------------------------------------------------------------- */

/* One head from `at` on: as rms_norm with group head_dim stores it, then rotated in the first cache level. */
OQ_INLINE void norm_head(const oq_qk_args *a, void *x, bool bf16, int64_t at, const float *weight)
{
    const int64_t d = a->head_dim;
    const vf scale = v_set(1.0f / sqrtf(sum_of_squares(x, bf16, at, d) / (float)d + a->eps));
    for (int64_t j = 0; j < d; j += VF) {
        vf v = v_mul(v_get(x, bf16, at + j, d - j), scale);
        if (a->round_before_weight && bf16) v = v_round_bf16(v);
        v_put(x, bf16, at + j, d - j, v_mul(v, v_param(weight, j, d - j, 1.0f)));
    }
}

OQ_INLINE void qk_heads(const oq_qk_args *a, const oq_tensor *t, int64_t row, int64_t n_heads,
                        const float *weight, bool normalise)
{
    const bool bf16 = oq_elem_is_bf16(t);
    const int64_t d = a->head_dim;
    const float *const c = a->cos + row * (d / 2), *const s = a->sin + row * (d / 2);
    void *const x = oq_elem_row(t, row);
    for (int64_t h = 0; h < n_heads; h++) {
        if (normalise) norm_head(a, x, bf16, h * d, weight);
        rotate(x, bf16, h * d, c, s, d, a->kind);
    }
}

static void qk_rows(const void *args, int64_t first, int64_t end)
{
    const oq_qk_args *const a = args;
    const bool normalise = a->q_weight && a->k_weight;
    for (int64_t row = first; row < end; row++) {
        qk_heads(a, &a->q, row, a->n_heads, a->q_weight, normalise);
        qk_heads(a, &a->k, row, a->n_kv_heads, a->k_weight, normalise);
    }
}

static void qk_norm_rope(oq_device *d, const oq_qk_args *a)
{
    oq_rows_run(d->pool, a->q.rows, (a->n_heads + a->n_kv_heads) * a->head_dim, qk_rows, a);
}
