/* rope_simd.h -- the body of rope_avx2.c and rope_avx512.c: the reference's products and sums, same bits. */
#include "cpu/elementwise/elem.h"
#include "cpu/rope/rope.h"
#include "cpu/vec/vec.h"

/* Pairs (2i, 2i+1): x * cc + swapped x * (-s, s), lane by lane. */
static void rotate_interleaved(void *x, bool bf16, int64_t first, const float *c, const float *s, int64_t d)
{
    for (int64_t j = 0; j < d; j += VF) {
        const int64_t n = d - j < VF ? d - j : VF;
        const vf v = v_get(x, bf16, first + j, n);
        const vf side = v_mul(v_swap_pairs(v), v_load_pairs(s + j / 2, n));
        v_put(x, bf16, first + j, n, v_add(v_mul(v, v_load_pairs(c + j / 2, n)), v_neg_even(side)));
    }
}

/* Pairs (i, i + d/2). */
static void rotate_halves(void *x, bool bf16, int64_t first, const float *c, const float *s, int64_t d)
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

static void rope_rows(const void *args, int64_t first, int64_t end)
{
    const oq_rope_args *a = args;
    const int64_t d = a->head_dim;
    const bool bf16 = oq_elem_is_bf16(&a->x);
    for (int64_t row = first; row < end; row++) {
        void *x = oq_elem_row(&a->x, row);
        const float *c = a->cos + row * (d / 2), *s = a->sin + row * (d / 2);
        for (int64_t h = 0; h < a->n_heads; h++) {
            if (a->kind == OQ_ROPE_HALF)
                rotate_halves(x, bf16, h * d, c, s, d);
            else
                rotate_interleaved(x, bf16, h * d, c, s, d);
        }
    }
}

static void rope(oq_device *d, const oq_rope_args *a)
{
    oq_rows_run(d->pool, a->x.rows, a->n_heads * a->head_dim, rope_rows, a);
}
