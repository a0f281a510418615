/* rope_ref.c -- y0 = x0 c - x1 s, y1 = x1 c + x0 s in f32, two products and one sum each; fast versions do
 * the same steps in the same order and agree bit for bit. */
#include "cpu/rope/rope.h"

#include "cpu/elementwise/elem.h"

static void rotate_head(const oq_rope_args *a, int64_t row, int64_t first)
{
    const int64_t half = a->head_dim / 2;
    for (int64_t i = 0; i < half; i++) {
        const int64_t at0 = first + (a->kind == OQ_ROPE_HALF ? i : 2 * i);
        const int64_t at1 = a->kind == OQ_ROPE_HALF ? at0 + half : at0 + 1;
        const float c = a->cos[row * half + i], s = a->sin[row * half + i];
        const float x0 = oq_elem_get(&a->x, row, at0), x1 = oq_elem_get(&a->x, row, at1);
        oq_elem_put(&a->x, row, at0, x0 * c - x1 * s);
        oq_elem_put(&a->x, row, at1, x1 * c + x0 * s);
    }
}

static void rope_rows(const void *args, int64_t first, int64_t end)
{
    const oq_rope_args *a = args;
    for (int64_t row = first; row < end; row++)
        for (int64_t h = 0; h < a->n_heads; h++) rotate_head(a, row, h * a->head_dim);
}

void oq_rope_ref(oq_device *d, const oq_rope_args *a)
{
    oq_rows_run(d->pool, a->x.rows, a->n_heads * a->head_dim, rope_rows, a);
}
