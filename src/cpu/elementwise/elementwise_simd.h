/* elementwise_simd.h -- the body of elementwise_avx2.c and elementwise_avx512.c. Operations without an
 * activation function do the reference's f32 steps in the reference's order and give the same bits. */
#include "cpu/elementwise/elem.h"
#include "cpu/elementwise/elementwise.h"
#include "cpu/vec/vec_math.h"

typedef struct operand { /* a view, read one row at a time */
    oq_tensor t;
    bool bf16;
} operand;

static operand operand_of(oq_tensor t)
{
    return (operand){t, oq_elem_is_bf16(&t)};
}

/* Row `i`; of one row for all, that one; NULL where absent. */
static const void *row_of(const operand *o, int64_t i)
{
    if (o->t.rows == 0) return NULL;
    return oq_elem_row(&o->t, o->t.rows == 1 ? 0 : i);
}

typedef struct op_args {
    operand y, a, b, c;
    oq_unary kind;
    float f, g;
    const int32_t *ids;
    int64_t h, w;
} op_args;

OQ_INLINE void unary_loop(const op_args *t, int64_t first, int64_t end, oq_unary kind)
{
    const int64_t cols = t->y.t.cols;
    for (int64_t i = first; i < end; i++) {
        const void *x = oq_elem_row(&t->a.t, i);
        void *y = oq_elem_row(&t->y.t, i);
        for (int64_t j = 0; j < cols; j += VF)
            v_put(y, t->y.bf16, j, cols - j, v_unary_for(kind, v_get(x, t->a.bf16, j, cols - j), t->y.bf16));
    }
}

static void unary_rows(const void *args, int64_t first, int64_t end)
{
    const op_args *t = args;
    switch (t->kind) {
    case OQ_SILU:
        unary_loop(t, first, end, OQ_SILU);
        break;
    case OQ_GELU_TANH:
        unary_loop(t, first, end, OQ_GELU_TANH);
        break;
    case OQ_GELU_ERF:
        unary_loop(t, first, end, OQ_GELU_ERF);
        break;
    case OQ_QUICK_GELU:
        unary_loop(t, first, end, OQ_QUICK_GELU);
        break;
    case OQ_TANH:
        unary_loop(t, first, end, OQ_TANH);
        break;
    case OQ_N_UNARY:
        break;
    }
}

static void unary(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor x)
{
    const op_args t = {.y = operand_of(y), .a = operand_of(x), .kind = kind};
    oq_rows_run(d->pool, y.rows, y.cols, unary_rows, &t);
}

OQ_INLINE void glu_loop(const op_args *t, int64_t first, int64_t end, oq_unary kind)
{
    const int64_t cols = t->y.t.cols;
    for (int64_t i = first; i < end; i++) {
        const void *a = oq_elem_row(&t->a.t, i), *b = oq_elem_row(&t->b.t, i);
        void *y = oq_elem_row(&t->y.t, i);
        for (int64_t j = 0; j < cols; j += VF) {
            vf act = v_unary_for(kind, v_get(a, t->a.bf16, j, cols - j), t->y.bf16);
            if (t->y.bf16) act = v_round_bf16(act);
            v_put(y, t->y.bf16, j, cols - j, v_mul(act, v_get(b, t->b.bf16, j, cols - j)));
        }
    }
}

static void glu_rows(const void *args, int64_t first, int64_t end)
{
    const op_args *t = args;
    switch (t->kind) {
    case OQ_SILU:
        glu_loop(t, first, end, OQ_SILU);
        break;
    case OQ_GELU_TANH:
        glu_loop(t, first, end, OQ_GELU_TANH);
        break;
    case OQ_GELU_ERF:
        glu_loop(t, first, end, OQ_GELU_ERF);
        break;
    case OQ_QUICK_GELU:
        glu_loop(t, first, end, OQ_QUICK_GELU);
        break;
    case OQ_TANH:
        glu_loop(t, first, end, OQ_TANH);
        break;
    case OQ_N_UNARY:
        break;
    }
}

static void glu(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor a, oq_tensor b)
{
    const op_args t = {.y = operand_of(y), .a = operand_of(a), .b = operand_of(b), .kind = kind};
    oq_rows_run(d->pool, y.rows, y.cols, glu_rows, &t);
}

static void modulate_rows(const void *args, int64_t first, int64_t end)
{
    const op_args *t = args;
    const int64_t cols = t->y.t.cols;
    const vf one = v_set(t->f);
    for (int64_t i = first; i < end; i++) {
        const void *x = oq_elem_row(&t->a.t, i), *scale = row_of(&t->b, i), *shift = row_of(&t->c, i);
        void *y = oq_elem_row(&t->y.t, i);
        for (int64_t j = 0; j < cols; j += VF) {
            const int64_t n = cols - j;
            vf v = v_get(x, t->a.bf16, j, n);
            if (scale) v = v_mul(v, v_add(one, v_get(scale, t->b.bf16, j, n)));
            if (shift) v = v_add(v, v_get(shift, t->c.bf16, j, n));
            v_put(y, t->y.bf16, j, n, v);
        }
    }
}

static void modulate(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor scale, oq_tensor shift, float one)
{
    const op_args t = {
        .y = operand_of(y), .a = operand_of(x), .b = operand_of(scale), .c = operand_of(shift), .f = one};
    oq_rows_run(d->pool, y.rows, y.cols, modulate_rows, &t);
}

static void add_gated_rows(const void *args, int64_t first, int64_t end)
{
    const op_args *t = args;
    const int64_t cols = t->y.t.cols;
    for (int64_t i = first; i < end; i++) {
        const void *x = oq_elem_row(&t->a.t, i), *gate = row_of(&t->b, i), *r = oq_elem_row(&t->c.t, i);
        void *y = oq_elem_row(&t->y.t, i);
        for (int64_t j = 0; j < cols; j += VF) {
            const int64_t n = cols - j;
            vf v = v_get(r, t->c.bf16, j, n);
            if (gate) v = v_mul(v_get(gate, t->b.bf16, j, n), v);
            if (gate && t->y.bf16) v = v_round_bf16(v);
            v_put(y, t->y.bf16, j, n, v_add(v_get(x, t->a.bf16, j, n), v));
        }
    }
}

static void add_gated(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor gate, oq_tensor r)
{
    const op_args t = {.y = operand_of(y), .a = operand_of(x), .b = operand_of(gate), .c = operand_of(r)};
    oq_rows_run(d->pool, y.rows, y.cols, add_gated_rows, &t);
}

static void axpby_rows(const void *args, int64_t first, int64_t end)
{
    const op_args *t = args;
    const int64_t cols = t->y.t.cols;
    const vf f = v_set(t->f), g = v_set(t->g);
    for (int64_t i = first; i < end; i++) {
        const void *x = oq_elem_row(&t->a.t, i);
        void *y = oq_elem_row(&t->y.t, i);
        for (int64_t j = 0; j < cols; j += VF) {
            const vf ax = v_mul(f, v_get(x, t->a.bf16, j, cols - j));
            const vf by = v_mul(g, v_get(y, t->y.bf16, j, cols - j));
            v_put(y, t->y.bf16, j, cols - j, v_add(ax, by));
        }
    }
}

static void axpby(oq_device *d, oq_tensor y, float a, oq_tensor x, float b)
{
    const op_args t = {.y = operand_of(y), .a = operand_of(x), .f = a, .g = b};
    oq_rows_run(d->pool, y.rows, y.cols, axpby_rows, &t);
}

/* Row `from` of a becomes row `to` of y. */
static void copy_row(const op_args *t, int64_t to, int64_t from)
{
    const int64_t cols = t->y.t.cols;
    const void *x = oq_elem_row(&t->a.t, from);
    void *y = oq_elem_row(&t->y.t, to);
    if (t->y.bf16 == t->a.bf16) {
        memmove(y, x, (size_t)cols * (t->y.bf16 ? 2 : 4));
        return;
    }
    for (int64_t j = 0; j < cols; j += VF) v_put(y, t->y.bf16, j, cols - j, v_get(x, t->a.bf16, j, cols - j));
}

static void copy_rows(const void *args, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++) copy_row(args, i, i);
}

static void copy(oq_device *d, oq_tensor y, oq_tensor x)
{
    const op_args t = {.y = operand_of(y), .a = operand_of(x)};
    oq_rows_run(d->pool, y.rows, y.cols, copy_rows, &t);
}

static void embed_rows(const void *args, int64_t first, int64_t end)
{
    const op_args *t = args;
    for (int64_t i = first; i < end; i++) copy_row(t, i, t->ids[i]);
}

static void embed(oq_device *d, oq_tensor y, oq_tensor table, const int32_t *ids)
{
    const op_args t = {.y = operand_of(y), .a = operand_of(table), .ids = ids};
    oq_rows_run(d->pool, y.rows, y.cols, embed_rows, &t);
}

static void upsample_rows(const void *args, int64_t first, int64_t end)
{
    const op_args *t = args;
    for (int64_t row = first; row < end; row++) {
        const int64_t j = row % (2 * t->w), i = row / (2 * t->w) % (2 * t->h), b = row / (4 * t->w * t->h);
        copy_row(t, row, (b * t->h + i / 2) * t->w + j / 2);
    }
}

static void upsample2x(oq_device *d, oq_tensor y, oq_tensor x, int64_t batch, int64_t h, int64_t w)
{
    const op_args t = {.y = operand_of(y), .a = operand_of(x), .h = h, .w = w};
    oq_rows_run(d->pool, batch * h * w * 4, y.cols, upsample_rows, &t);
}

typedef struct finite_args {
    operand x;
    atomic_int *bad;
} finite_args;

static void finite_rows(const void *args, int64_t first, int64_t end)
{
    const finite_args *t = args;
    const int64_t cols = t->x.t.cols;
    for (int64_t i = first; i < end; i++) {
        const void *x = oq_elem_row(&t->x.t, i);
        bool wild = false;
        for (int64_t j = 0; j < cols; j += VF) wild |= v_any_wild(v_get(x, t->x.bf16, j, cols - j));
        if (wild) atomic_store_explicit(t->bad, 1, memory_order_relaxed);
    }
}

static int all_finite(oq_device *d, oq_tensor x)
{
    atomic_int bad = 0;
    const finite_args t = {.x = operand_of(x), .bad = &bad};
    oq_rows_run(d->pool, x.rows, x.cols, finite_rows, &t);
    return !atomic_load(&bad);
}

static void fill(oq_ops *ops)
{
    ops->unary = unary;
    ops->glu = glu;
    ops->modulate = modulate;
    ops->add_gated = add_gated;
    ops->axpby = axpby;
    ops->copy = copy;
    ops->embed = embed;
    ops->upsample2x = upsample2x;
    ops->all_finite = all_finite;
}
