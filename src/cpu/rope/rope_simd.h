/* rope_simd.h -- the body of rope_avx2.c and rope_avx512.c: the reference's products and sums, same bits; and RMS norm
 * over each head with the rotation after it, in one walk. */
#include "cpu/elementwise/elem.h"
#include "cpu/norm/row_sums_simd.h"
#include "cpu/rope/rope.h"

/* Pairs (2i, 2i+1): x * cc + swapped x * (-s, s), lane by lane. */
OQ_INLINE vf rotated_pairs(vf v, const float *c, const float *s, int64_t n)
{
    const vf side = v_mul(v_swap_pairs(v), v_load_pairs(s, n));
    return v_add(v_mul(v, v_load_pairs(c, n)), v_neg_even(side));
}

/* Pairs (i, i + half) to columns `at` and `at` + half. */
OQ_INLINE void put_halves(void *x, bool bf16, int64_t at, int64_t half, int64_t n, vf x0, vf x1, vf c, vf s)
{
    v_put(x, bf16, at, n, v_sub(v_mul(x0, c), v_mul(x1, s)));
    v_put(x, bf16, at + half, n, v_add(v_mul(x1, c), v_mul(x0, s)));
}

OQ_INLINE void rotate_interleaved(void *x, bool bf16, int64_t first, const float *c, const float *s, int64_t d)
{
    for (int64_t j = 0; j < d; j += VF) {
        const int64_t n = d - j < VF ? d - j : VF;
        v_put(x, bf16, first + j, n,
              rotated_pairs(v_get(x, bf16, first + j, n), c + j / 2, s + j / 2, n));
    }
}

OQ_INLINE void rotate_halves(void *x, bool bf16, int64_t first, const float *c, const float *s, int64_t d)
{
    const int64_t half = d / 2;
    for (int64_t j = 0; j < half; j += VF) {
        const int64_t n = half - j;
        const vf x0 = v_get(x, bf16, first + j, n), x1 = v_get(x, bf16, first + half + j, n);
        put_halves(x, bf16, first + j, half, n, x0, x1, v_param(c, j, n, 0.0f), v_param(s, j, n, 0.0f));
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

/* As rms_norm with group head_dim would store it: column j of a head, its weight in the same place. */
OQ_INLINE vf normed_head(const oq_qk_args *a, const void *x, bool bf16, int64_t at, int64_t j, int64_t n,
                         vf scale, const float *weight)
{
    vf v = v_mul(v_get(x, bf16, at + j, n), scale);
    if (a->round_before_weight && bf16) v = v_round_bf16(v);
    v = v_mul(v, v_param(weight, j, n, 1.0f));
    return bf16 ? v_round_bf16(v) : v;
}

/* One head from `at` on, normalised and rotated without a stop in memory. */
OQ_INLINE void norm_rotate(const oq_qk_args *a, void *x, bool bf16, int64_t at, const float *c, const float *s,
                           const float *weight, oq_rope_kind kind)
{
    const int64_t d = a->head_dim, half = d / 2;
    const vf scale = v_set(1.0f / sqrtf(sum_of_squares(x, bf16, at, d) / (float)d + a->eps));
    if (kind == OQ_ROPE_INTERLEAVED)
        for (int64_t j = 0; j < d; j += VF) {
            const int64_t n = d - j < VF ? d - j : VF;
            const vf v = normed_head(a, x, bf16, at, j, n, scale, weight);
            v_put(x, bf16, at + j, n, rotated_pairs(v, c + j / 2, s + j / 2, n));
        }
    else
        for (int64_t j = 0; j < half; j += VF) {
            const int64_t n = half - j;
            const vf x0 = normed_head(a, x, bf16, at, j, n, scale, weight);
            const vf x1 = normed_head(a, x, bf16, at + half, j, n, scale, weight ? weight + half : NULL);
            put_halves(x, bf16, at + j, half, n, x0, x1, v_param(c, j, n, 0.0f), v_param(s, j, n, 0.0f));
        }
}

OQ_INLINE void qk_heads(const oq_qk_args *a, const oq_tensor *t, int64_t row, int64_t n_heads,
                        const float *weight, bool bf16, bool normalise, oq_rope_kind kind)
{
    const int64_t d = a->head_dim;
    const float *const c = a->cos + row * (d / 2), *const s = a->sin + row * (d / 2);
    void *const x = oq_elem_row(t, row);
    for (int64_t h = 0; h < n_heads; h++) {
        if (normalise)
            norm_rotate(a, x, bf16, h * d, c, s, weight, kind);
        else
            rotate(x, bf16, h * d, c, s, d, kind);
    }
}

OQ_INLINE void qk_tensor(const oq_qk_args *a, const oq_tensor *t, int64_t row, int64_t n_heads,
                         const float *weight, bool normalise)
{
    const bool bf16 = oq_elem_is_bf16(t), pairs = a->kind == OQ_ROPE_INTERLEAVED;
    if (bf16 && normalise && pairs)
        qk_heads(a, t, row, n_heads, weight, true, true, OQ_ROPE_INTERLEAVED);
    else if (bf16 && normalise)
        qk_heads(a, t, row, n_heads, weight, true, true, OQ_ROPE_HALF);
    else
        qk_heads(a, t, row, n_heads, weight, bf16, normalise, a->kind);
}

static void qk_rows(const void *args, int64_t first, int64_t end)
{
    const oq_qk_args *const a = args;
    const bool normalise = a->q_weight && a->k_weight;
    for (int64_t row = first; row < end; row++) {
        qk_tensor(a, &a->q, row, a->n_heads, a->q_weight, normalise);
        qk_tensor(a, &a->k, row, a->n_kv_heads, a->k_weight, normalise);
    }
}

static void qk_norm_rope(oq_device *d, const oq_qk_args *a)
{
    oq_rows_run(d->pool, a->q.rows, (a->n_heads + a->n_kv_heads) * a->head_dim, qk_rows, a);
}
