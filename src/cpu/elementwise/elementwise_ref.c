/* elementwise_ref.c -- arithmetic element by element. Activation functions are evaluated in double; sums and
 * products are single f32 operations in a fixed order, so fast versions of those agree bit for bit. */
#include "cpu/elementwise/elementwise.h"

#include "cpu/elementwise/elem.h"

#include <math.h>

/* 0.5 x (1 + tanh(u)) without the cancellation of its negative tail. */
static double gelu_tanh(double x)
{
    const double u = 0.79788456080286535588 * (x + 0.044715 * x * x * x); /* sqrt(2/pi) */
    return x / (1.0 + exp(-2.0 * u));
}

static float activate(oq_unary kind, double x)
{
    switch (kind) {
    case OQ_SILU:
        return (float)(x / (1.0 + exp(-x)));
    case OQ_GELU_TANH:
        return (float)gelu_tanh(x);
    case OQ_GELU_ERF:
        return (float)(0.5 * x * erfc(-x * 0.70710678118654752440));
    case OQ_QUICK_GELU:
        return (float)(x / (1.0 + exp(-1.702 * x)));
    case OQ_TANH:
        return (float)tanh(x);
    case OQ_N_UNARY:
        break;
    }
    return NAN;
}

typedef struct binary_args { /* operands of one call; unused ones stay empty */
    oq_tensor y, a, b, c;
    oq_unary kind;
    float f, g;
    const int32_t *ids;
    int64_t h, w;
} binary_args;

static void unary_rows(const void *args, int64_t first, int64_t end)
{
    const binary_args *t = args;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->y.cols; j++)
            oq_elem_put(&t->y, i, j, activate(t->kind, oq_elem_get(&t->a, i, j)));
}

void oq_unary_ref(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor x)
{
    const binary_args t = {.y = y, .a = x, .kind = kind};
    oq_rows_run(d->pool, y.rows, y.cols, unary_rows, &t);
}

static void glu_rows(const void *args, int64_t first, int64_t end)
{
    const binary_args *t = args;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->y.cols; j++) {
            const float act = oq_elem_round(&t->y, activate(t->kind, oq_elem_get(&t->a, i, j)));
            oq_elem_put(&t->y, i, j, act * oq_elem_get(&t->b, i, j));
        }
}

void oq_glu_ref(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor a, oq_tensor b)
{
    const binary_args t = {.y = y, .a = a, .b = b, .kind = kind};
    oq_rows_run(d->pool, y.rows, y.cols, glu_rows, &t);
}

/* Element of an operand that may be absent (rows 0) or one row for all. */
static float spread(const oq_tensor *t, int64_t row, int64_t col, float absent)
{
    if (t->rows == 0) return absent;
    return oq_elem_get(t, t->rows == 1 ? 0 : row, col);
}

static void modulate_rows(const void *args, int64_t first, int64_t end)
{
    const binary_args *t = args;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->y.cols; j++) {
            float y = oq_elem_get(&t->a, i, j);
            if (t->b.rows) y *= t->f + spread(&t->b, i, j, 0.0f);
            if (t->c.rows) y += spread(&t->c, i, j, 0.0f);
            oq_elem_put(&t->y, i, j, y);
        }
}

void oq_modulate_ref(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor scale, oq_tensor shift, float one)
{
    const binary_args t = {.y = y, .a = x, .b = scale, .c = shift, .f = one};
    oq_rows_run(d->pool, y.rows, y.cols, modulate_rows, &t);
}

static void add_gated_rows(const void *args, int64_t first, int64_t end)
{
    const binary_args *t = args;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->y.cols; j++) {
            float r = oq_elem_get(&t->c, i, j);
            if (t->b.rows) r = oq_elem_round(&t->y, spread(&t->b, i, j, 1.0f) * r);
            oq_elem_put(&t->y, i, j, oq_elem_get(&t->a, i, j) + r);
        }
}

void oq_add_gated_ref(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor gate, oq_tensor r)
{
    const binary_args t = {.y = y, .a = x, .b = gate, .c = r};
    oq_rows_run(d->pool, y.rows, y.cols, add_gated_rows, &t);
}

static void axpby_rows(const void *args, int64_t first, int64_t end)
{
    const binary_args *t = args;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->y.cols; j++) {
            const float ax = t->f * oq_elem_get(&t->a, i, j), by = t->g * oq_elem_get(&t->y, i, j);
            oq_elem_put(&t->y, i, j, ax + by);
        }
}

void oq_axpby_ref(oq_device *d, oq_tensor y, float a, oq_tensor x, float b)
{
    const binary_args t = {.y = y, .a = x, .f = a, .g = b};
    oq_rows_run(d->pool, y.rows, y.cols, axpby_rows, &t);
}

static void copy_rows(const void *args, int64_t first, int64_t end)
{
    const binary_args *t = args;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->y.cols; j++) oq_elem_put(&t->y, i, j, oq_elem_get(&t->a, i, j));
}

void oq_copy_ref(oq_device *d, oq_tensor y, oq_tensor x)
{
    const binary_args t = {.y = y, .a = x};
    oq_rows_run(d->pool, y.rows, y.cols, copy_rows, &t);
}

static void embed_rows(const void *args, int64_t first, int64_t end)
{
    const binary_args *t = args;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->y.cols; j++) oq_elem_put(&t->y, i, j, oq_elem_get(&t->a, t->ids[i], j));
}

void oq_embed_ref(oq_device *d, oq_tensor y, oq_tensor table, const int32_t *ids)
{
    const binary_args t = {.y = y, .a = table, .ids = ids};
    oq_rows_run(d->pool, y.rows, y.cols, embed_rows, &t);
}

/* Rows of y are B*2H*2W; row (b, i, j) repeats row (b, i/2, j/2) of x. */
static void upsample_rows(const void *args, int64_t first, int64_t end)
{
    const binary_args *t = args;
    for (int64_t row = first; row < end; row++) {
        const int64_t j = row % (2 * t->w), i = row / (2 * t->w) % (2 * t->h), b = row / (4 * t->w * t->h);
        const int64_t from = (b * t->h + i / 2) * t->w + j / 2;
        for (int64_t c = 0; c < t->y.cols; c++) oq_elem_put(&t->y, row, c, oq_elem_get(&t->a, from, c));
    }
}

void oq_upsample2x_ref(oq_device *d, oq_tensor y, oq_tensor x, int64_t batch, int64_t h, int64_t w)
{
    const binary_args t = {.y = y, .a = x, .h = h, .w = w};
    oq_rows_run(d->pool, batch * h * w * 4, y.cols, upsample_rows, &t);
}

typedef struct permute_args {
    oq_tensor y, x;
    int64_t dim[6], ys[6], xs[6];
} permute_args;

/* "Rows" are the pairs (i0, i1); the four inner dimensions are walked here. */
static void permute_rows(const void *args, int64_t first, int64_t end)
{
    const permute_args *p = args;
    const int64_t *n = p->dim, *ys = p->ys, *xs = p->xs;
    for (int64_t row = first; row < end; row++) {
        const int64_t i0 = row / n[1], i1 = row % n[1];
        for (int64_t i2 = 0; i2 < n[2]; i2++)
            for (int64_t i3 = 0; i3 < n[3]; i3++)
                for (int64_t i4 = 0; i4 < n[4]; i4++) {
                    const int64_t to = i0 * ys[0] + i1 * ys[1] + i2 * ys[2] + i3 * ys[3] + i4 * ys[4];
                    const int64_t at = i0 * xs[0] + i1 * xs[1] + i2 * xs[2] + i3 * xs[3] + i4 * xs[4];
                    for (int64_t i5 = 0; i5 < n[5]; i5++)
                        oq_elem_put(&p->y, 0, to + i5 * ys[5], oq_elem_get(&p->x, 0, at + i5 * xs[5]));
                }
    }
}

void oq_permute_ref(oq_device *d, oq_tensor y, oq_tensor x, const int64_t dim[6], const int64_t ys[6],
                    const int64_t xs[6])
{
    permute_args p = {.y = y, .x = x};
    memcpy(p.dim, dim, sizeof p.dim);
    memcpy(p.ys, ys, sizeof p.ys);
    memcpy(p.xs, xs, sizeof p.xs);
    oq_rows_run(d->pool, dim[0] * dim[1], dim[2] * dim[3] * dim[4] * dim[5], permute_rows, &p);
}

typedef struct finite_args {
    oq_tensor x;
    atomic_int *bad;
} finite_args;

static void finite_rows(const void *args, int64_t first, int64_t end)
{
    const finite_args *t = args;
    for (int64_t i = first; i < end; i++)
        for (int64_t j = 0; j < t->x.cols; j++)
            if ((oq_f32_bits(oq_elem_get(&t->x, i, j)) & 0x7f800000u) == 0x7f800000u)
                atomic_store_explicit(t->bad, 1, memory_order_relaxed);
}

int oq_all_finite_ref(oq_device *d, oq_tensor x)
{
    atomic_int bad = 0;
    const finite_args t = {.x = x, .bad = &bad};
    oq_rows_run(d->pool, x.rows, x.cols, finite_rows, &t);
    return !atomic_load(&bad);
}
