/* kcheck_ops.c -- the operations that this machine's table holds against the reference table: every tail of
 * columns, rows further apart than their columns, in place, both element types in any mix, with and without a
 * pool. Operations that are single f32 steps must agree bit for bit; the others within a bound of their sums
 * and polynomials. */
#include "kernels/kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"

typedef struct problem {
    const char *op;
    oq_tensor x, a, b; /* operands as views of the matrices below */
    kc_matrix mx, ma, mb;
    kc_buf weight, bias, cos, sin; /* guarded vectors; NULL data: absent */
    int64_t group, batch, h, w, head_dim;
    float eps, f, g;
    bool silu, early, in_place;
    oq_unary unary;
    oq_rope_kind rope;
    int32_t ids[64];
    int64_t y_rows, y_cols;
    const oq_dtype *y_type;
    kc_class class;
} problem;

/* Runs one operation; x is p->x, or y itself where that is in place. */
typedef void (*apply_fn)(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x);
/* Errors allowed for the elements of y, before the store, given x and the reference's result. */
typedef void (*bound_fn)(const problem *p, const float *x, const float *want, double *out);

/* ---- making operands ----------------------------------------------------------------------------------- */

static const oq_dtype *any_type(kc_rng *rng)
{
    return kc_below(rng, 2) ? &oq_dtype_f32 : &oq_dtype_bf16;
}

static kc_matrix random_matrix(kcheck *kc, kc_rng *rng, kc_class class, const oq_dtype *type, int64_t rows,
                               int64_t cols)
{
    kc_matrix m = kc_matrix_new(kc, type, rows, cols, cols + kc_below(rng, 3) * 3);
    float *const x = oq_alloc(kc->env, (size_t)(rows * cols) * sizeof *x);
    kc_fill(rng, class, x, rows, cols);
    kc_matrix_set(&m, x);
    oq_free(kc->env, x);
    return m;
}

static kc_buf random_vector(kcheck *kc, kc_rng *rng, int64_t n)
{
    kc_buf b = kc_buf_new(kc, (size_t)n * sizeof(float), 4);
    for (int64_t i = 0; i < n; i++) ((float *)b.data)[i] = kc_normal(rng);
    return b;
}

static problem make(kcheck *kc, kc_rng *rng, const char *op, int64_t rows, int64_t cols)
{
    problem p = {.op = op, .y_rows = rows, .y_cols = cols, .class = (kc_class)kc_below(rng, KC_N_CLASSES)};
    const oq_dtype *const type = any_type(rng);
    p.y_type = any_type(rng);
    p.in_place = type == p.y_type && kc_below(rng, 2);
    p.mx = random_matrix(kc, rng, p.class, type, rows, cols);
    p.x = p.mx.t;
    p.eps = kc_below(rng, 2) ? 1e-6f : 1e-5f;
    return p;
}

static void free_problem(kcheck *kc, problem *p)
{
    kc_matrix_free(kc, &p->mx), kc_matrix_free(kc, &p->ma), kc_matrix_free(kc, &p->mb);
    kc_buf_free(kc, &p->weight), kc_buf_free(kc, &p->bias);
    kc_buf_free(kc, &p->cos), kc_buf_free(kc, &p->sin);
}

/* ---- one comparison ------------------------------------------------------------------------------------ */

static float *values(kcheck *kc, oq_tensor t)
{
    float *const x = oq_alloc(kc->env, (size_t)(t.rows * t.cols) * sizeof *x);
    for (int64_t i = 0; i < t.rows; i++) {
        const oq_tensor row = oq_tensor_rows(t, i, 1);
        t.dtype->to_f32(x + i * t.cols, row.data, (size_t)t.cols);
    }
    return x;
}

static kc_matrix result(kcheck *kc, const problem *p, const oq_ops *ops, oq_device *d, apply_fn apply)
{
    kc_matrix y = kc_matrix_new(kc, p->y_type, p->y_rows, p->y_cols, p->y_cols + (p->in_place ? 1 : 2));
    if (p->in_place) {
        float *const x = values(kc, p->x);
        kc_matrix_set(&y, x);
        oq_free(kc->env, x);
    }
    apply(ops, d, p, y.t, p->in_place ? y.t : p->x);
    return y;
}

static bool all_near(kcheck *kc, kc_row *row, const problem *p, const kc_matrix *got, const kc_matrix *want,
                     bound_fn bound)
{
    const int64_t n = p->y_rows * p->y_cols;
    float *const a = values(kc, got->t), *const b = values(kc, want->t), *const x = values(kc, p->x);
    double *const slack = oq_alloc(kc->env, (size_t)n * sizeof *slack);
    bool ok = true;
    if (bound) bound(p, x, b, slack);
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)b[i];
        if (bound) slack[i] += KC_EPS * fabs(v) + 0x1p-126;
        if (bound && p->y_type == &oq_dtype_bf16)
            slack[i] += fabs(v) * 0x1p-6; /* two roundings may tip over */
        ok &= kc_near(row, (double)a[i], v, slack[i]);
    }
    oq_free(kc->env, a), oq_free(kc->env, b), oq_free(kc->env, x), oq_free(kc->env, slack);
    return ok;
}

static void check(kcheck *kc, kc_row *row, const problem *p, apply_fn apply, bound_fn bound)
{
    if (!kc_turn(kc)) return;
    oq_ops ref;
    oq_cpu_ops_init_ref(&ref);
    kc_matrix want = result(kc, p, &ref, &kc->single, apply);
    kc_matrix got = result(kc, p, &kc->device->ops, kc->device, apply);
    kc_matrix alone = result(kc, p, &kc->device->ops, &kc->single, apply);
    const bool near = all_near(kc, row, p, &got, &want, bound), same = kc_matrix_same(&got, &alone);
    const bool intact = kc_matrix_intact(&want) && kc_matrix_intact(&got) && kc_matrix_intact(&p->mx);
    kc_case(kc, row, near && same && intact,
            "%lldx%lld %s, %s to %s%s, group %lld, batch %lld, unary %d: guards %d, near %d, same %d",
            (long long)p->y_rows, (long long)p->y_cols, kc_class_name(p->class), p->x.dtype->label,
            p->y_type->label, p->in_place ? " in place" : "", (long long)p->group, (long long)p->batch,
            (int)p->unary, intact, near, same);
    kc_matrix_free(kc, &want), kc_matrix_free(kc, &got), kc_matrix_free(kc, &alone);
}

/* ---- norms --------------------------------------------------------------------------------------------- */

static oq_norm_args norm_args(const problem *p, oq_tensor y, oq_tensor x)
{
    return (oq_norm_args){.x = x,
                          .y = y,
                          .weight = p->weight.data,
                          .bias = p->bias.data,
                          .eps = p->eps,
                          .group = p->group,
                          .batch = p->batch,
                          .silu = p->silu,
                          .round_before_weight = p->early};
}

static void apply_rms(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    const oq_norm_args a = norm_args(p, y, x);
    ops->rms_norm(d, &a);
}

static void apply_layer(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    const oq_norm_args a = norm_args(p, y, x);
    ops->layer_norm(d, &a);
}

static void apply_group(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    const oq_norm_args a = norm_args(p, y, x);
    ops->group_norm(d, &a);
}

/* One image in two pieces of rows. */
static void apply_group_pieces(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    double moments[2 * 3 * 64];
    const int64_t first = (x.rows + 2) / 3;
    if (p->group > 64 || x.rows < 2) {
        apply_group(ops, d, p, y, x);
        return;
    }
    ops->group_moments(d, oq_tensor_rows(x, 0, first), p->group, moments);
    ops->group_moments(d, oq_tensor_rows(x, first, x.rows - first), p->group, moments + 3 * p->group);
    for (int i = 0; i < 2; i++) {
        const int64_t from = i ? first : 0, n = i ? x.rows - first : first;
        oq_norm_args a = norm_args(p, oq_tensor_rows(y, from, n), oq_tensor_rows(x, from, n));
        a.moments = moments, a.n_moments = 2;
        ops->group_norm(d, &a);
    }
}

static void rms_bound(const problem *p, const float *x, const float *want, double *out)
{
    (void)x;
    for (int64_t i = 0; i < p->y_rows * p->y_cols; i++)
        out[i] = kc_sum_error(p->group ? p->group : p->y_cols, fabs((double)want[i]));
}

/* (x - mean) * scale * weight: an error of the mean counts as much as |mean| does against the deviation. Rows
 * from i0 and columns from j0 share their statistics. */
static void spread_bound(const problem *p, const float *x, double *out, int64_t i0, int64_t rows, int64_t j0,
                         int64_t cols)
{
    double sum = 0, top = 0, squares = 0;
    const double n = (double)(rows * cols);
    for (int64_t i = 0; i < rows * cols; i++) sum += (double)x[(i0 + i / cols) * p->y_cols + j0 + i % cols];
    for (int64_t i = 0; i < rows * cols; i++) {
        const double v = (double)x[(i0 + i / cols) * p->y_cols + j0 + i % cols];
        squares += (v - sum / n) * (v - sum / n);
        top = fmax(top, fabs(v));
    }
    const double scale = 1.0 / sqrt(squares / n + (double)p->eps);
    for (int64_t i = i0; i < i0 + rows; i++)
        for (int64_t j = j0; j < j0 + cols; j++) {
            const double w = p->weight.data ? (double)((const float *)p->weight.data)[j] : 1.0;
            const double b = p->bias.data ? (double)((const float *)p->bias.data)[j] : 0.0;
            out[i * p->y_cols + j] = kc_sum_error(cols, 2 * top * fabs(w) * scale + fabs(b));
        }
}

static void layer_bound(const problem *p, const float *x, const float *want, double *out)
{
    (void)want;
    for (int64_t i = 0; i < p->y_rows; i++) spread_bound(p, x, out, i, 1, 0, p->y_cols);
}

static void group_bound(const problem *p, const float *x, const float *want, double *out)
{
    (void)want;
    const int64_t rows = p->y_rows / p->batch, width = p->y_cols / p->group;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t g = 0; g < p->group; g++) spread_bound(p, x, out, b * rows, rows, g * width, width);
}

static const int64_t cols_list[] = {1, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 64, 65, 100, 192, 257, 1000};
static const int64_t rows_list[] = {1, 2, 5, 33};

static void check_row_norms(kcheck *kc, kc_row *rms, kc_row *layer)
{
    kc_rng rng = kc_rng_new(kc, "norm", 0);
    for (size_t i = 0; i < 3 * OQ_COUNT(cols_list) * OQ_COUNT(rows_list); i++) {
        const int64_t n = cols_list[i % OQ_COUNT(cols_list)], rows = rows_list[i / 3 % OQ_COUNT(rows_list)];
        const int64_t heads = kc_below(&rng, 2) ? 1 + kc_below(&rng, 4) : 0;
        problem p = make(kc, &rng, "rms_norm", rows, heads ? heads * n : n);
        p.group = heads ? n : 0;
        p.early = kc_below(&rng, 2);
        if (kc_below(&rng, 3)) p.weight = random_vector(kc, &rng, n);
        check(kc, rms, &p, apply_rms, rms_bound);
        free_problem(kc, &p);
        p = make(kc, &rng, "layer_norm", rows, n);
        if (kc_below(&rng, 3)) p.weight = random_vector(kc, &rng, n);
        if (kc_below(&rng, 3)) p.bias = random_vector(kc, &rng, n);
        check(kc, layer, &p, apply_layer, layer_bound);
        free_problem(kc, &p);
    }
}

typedef struct group_shape {
    int64_t batch, rows, groups, width;
} group_shape;

static const group_shape group_shapes[] = {
    {1, 1, 1, 1},    {1, 64, 16, 2},  {2, 35, 16, 4},  {1, 100, 16, 6}, {3, 16, 16, 8},
    {1, 129, 32, 4}, {1, 1000, 3, 5}, {2, 300, 1, 33}, {1, 7, 32, 16},  {1, 9, 40, 60},
    {1, 5, 2, 1500}, {1, 3, 2, 2100}, {1, 4100, 4, 4},
};

static void check_group_norm(kcheck *kc, kc_row *row)
{
    kc_rng rng = kc_rng_new(kc, "group_norm", 0);
    for (size_t i = 0; i < 4 * OQ_COUNT(group_shapes); i++) {
        const group_shape *const s = &group_shapes[i / 4];
        const int64_t cols = s->groups * s->width;
        problem p = make(kc, &rng, "group_norm", s->batch * s->rows, cols);
        p.group = s->groups, p.batch = s->batch, p.silu = kc_below(&rng, 2);
        if (kc_below(&rng, 3)) p.weight = random_vector(kc, &rng, cols);
        if (kc_below(&rng, 3)) p.bias = random_vector(kc, &rng, cols);
        check(kc, row, &p, apply_group, group_bound);
        if (p.batch == 1) check(kc, row, &p, apply_group_pieces, group_bound);
        free_problem(kc, &p);
    }
}

/* One value everywhere has no variance: the result is the bias, whatever the value's size. */
static void check_constant(kcheck *kc, kc_row *row, apply_fn apply, int64_t rows, int64_t cols, int64_t group)
{
    static const float constants[] = {0.1f, -100.3f, 7e4f, 1e-30f};
    kc_rng rng = kc_rng_new(kc, "constant", rows * cols);
    for (size_t c = 0; c < OQ_COUNT(constants); c++) {
        problem p = make(kc, &rng, row->kernel, rows, cols);
        float *const x = oq_alloc(kc->env, (size_t)(rows * cols) * sizeof *x);
        for (int64_t i = 0; i < rows * cols; i++) x[i] = constants[c];
        kc_matrix_set(&p.mx, x);
        p.group = group, p.batch = 1;
        p.weight = random_vector(kc, &rng, cols), p.bias = random_vector(kc, &rng, cols);
        kc_matrix y = result(kc, &p, &kc->device->ops, kc->device, apply);
        kc_matrix_get(&y, x);
        bool ok = kc_matrix_intact(&y);
        for (int64_t i = 0; i < rows * cols; i++) {
            const double want = (double)((const float *)p.bias.data)[i % cols];
            ok &= kc_near(row, (double)x[i], want, kc_store_error(p.y_type, want));
        }
        kc_case(kc, row, ok, "%lldx%lld of %g", (long long)rows, (long long)cols, (double)constants[c]);
        oq_free(kc->env, x);
        kc_matrix_free(kc, &y);
        free_problem(kc, &p);
    }
}

/* ---- rope ---------------------------------------------------------------------------------------------- */

static void apply_rope(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    (void)x;
    const oq_rope_args a = {.x = y,
                            .cos = p->cos.data,
                            .sin = p->sin.data,
                            .n_heads = p->y_cols / p->head_dim,
                            .head_dim = p->head_dim,
                            .kind = p->rope};
    ops->rope(d, &a);
}

static void check_rope(kcheck *kc, kc_row *row)
{
    static const int64_t dims[] = {2, 6, 8, 16, 24, 34, 64, 128, 256};
    kc_rng rng = kc_rng_new(kc, "rope", 0);
    for (size_t i = 0; i < 4 * OQ_COUNT(dims); i++) {
        const int64_t d = dims[i / 4], rows = rows_list[i % 4];
        problem p = make(kc, &rng, "rope", rows, d * (1 + kc_below(&rng, 3)));
        p.y_type = p.x.dtype;
        p.in_place = true;
        p.head_dim = d;
        p.rope = kc_below(&rng, 2) ? OQ_ROPE_HALF : OQ_ROPE_INTERLEAVED;
        p.cos = random_vector(kc, &rng, rows * d / 2);
        p.sin = random_vector(kc, &rng, rows * d / 2);
        check(kc, row, &p, apply_rope, NULL);
        free_problem(kc, &p);
    }
}

/* ---- activations --------------------------------------------------------------------------------------- */

static void apply_unary(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    ops->unary(d, p->unary, y, x);
}

static void apply_glu(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    ops->glu(d, p->unary, y, x, p->b);
}

/* A few ulp of the result; where the result is a tail e^-u, the rounding of u as well: u ulp. */
static void unary_bound(const problem *p, const float *x, const float *want, double *out)
{
    for (int64_t i = 0; i < p->y_rows * p->y_cols; i++) {
        const double v = fabs((double)x[i]), big = fmin(v, 20.0);
        const double u = p->unary == OQ_GELU_TANH  ? 1.6 * (big + 0.045 * big * big * big)
                         : p->unary == OQ_GELU_ERF ? big * big
                         : p->unary == OQ_TANH     ? 0.0
                                                   : 2 * fmin(v, 110.0);
        out[i] = (8.0 + 1.5 * u) * KC_EPS * fabs((double)want[i]) + 0x1p-120;
    }
}

/* Magnitudes from 2^-30 to 2^8 of both signs, so that each branch and both tails are met. */
static void spread_values(kcheck *kc, kc_rng *rng, problem *p)
{
    const int64_t n = p->y_rows * p->y_cols;
    float *const x = oq_alloc(kc->env, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = ldexpf(kc_uniform(rng, -2.0f, 2.0f), (int)kc_below(rng, 38) - 30);
    kc_matrix_set(&p->mx, x);
    oq_free(kc->env, x);
}

static void check_activations(kcheck *kc, kc_row *unary, kc_row *glu)
{
    kc_rng rng = kc_rng_new(kc, "unary", 0);
    for (size_t i = 0; i < (size_t)OQ_N_UNARY * OQ_COUNT(cols_list); i++) {
        const int64_t cols = cols_list[i / OQ_N_UNARY], rows = rows_list[kc_below(&rng, 4)];
        problem p = make(kc, &rng, "unary", rows, cols);
        p.unary = (oq_unary)(i % OQ_N_UNARY);
        if (i % 2) spread_values(kc, &rng, &p);
        check(kc, unary, &p, apply_unary, unary_bound);
        free_problem(kc, &p);
        p = make(kc, &rng, "glu", rows, cols);
        p.unary = (oq_unary)(i % OQ_N_UNARY);
        p.mb = random_matrix(kc, &rng, KC_NORMAL, any_type(&rng), rows, cols);
        p.b = p.mb.t;
        check(kc, glu, &p, apply_glu, unary_bound);
        free_problem(kc, &p);
    }
}

/* ---- single steps: the same bits ----------------------------------------------------------------------- */

static void apply_modulate(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    ops->modulate(d, y, x, p->a, p->b, p->f);
}

static void apply_add_gated(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    ops->add_gated(d, y, x, p->a, p->b);
}

static void apply_axpby(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    if (!p->in_place) ops->copy(d, y, p->b);
    ops->axpby(d, y, p->f, p->in_place ? p->b : x, p->g);
}

static void apply_copy(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    (void)p;
    ops->copy(d, y, x);
}

static void apply_embed(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    ops->embed(d, y, x, p->ids);
}

static void apply_upsample(const oq_ops *ops, oq_device *d, const problem *p, oq_tensor y, oq_tensor x)
{
    ops->upsample2x(d, y, x, p->batch, p->h, p->w);
}

/* One row for all, a row each, or absent. */
static oq_tensor spread_operand(kcheck *kc, kc_rng *rng, kc_matrix *m, int64_t rows, int64_t cols)
{
    const int64_t kind = kc_below(rng, 3);
    *m = random_matrix(kc, rng, KC_NORMAL, any_type(rng), kind == 0 ? 1 : rows, cols);
    oq_tensor t = m->t;
    if (kind == 2) t.rows = 0;
    return t;
}

typedef struct step_rows {
    kc_row modulate, add_gated, axpby, copy, embed, upsample;
} step_rows;

static void check_arithmetic(kcheck *kc, kc_rng *rng, step_rows *r, int64_t rows, int64_t cols)
{
    problem p = make(kc, rng, "modulate", rows, cols);
    p.a = spread_operand(kc, rng, &p.ma, rows, cols);
    p.b = spread_operand(kc, rng, &p.mb, rows, cols);
    p.f = (float)kc_below(rng, 2);
    check(kc, &r->modulate, &p, apply_modulate, NULL);
    free_problem(kc, &p);
    p = make(kc, rng, "add_gated", rows, cols);
    p.a = spread_operand(kc, rng, &p.ma, rows, cols);
    p.mb = random_matrix(kc, rng, KC_NORMAL, any_type(rng), rows, cols);
    p.b = p.mb.t;
    check(kc, &r->add_gated, &p, apply_add_gated, NULL);
    free_problem(kc, &p);
    p = make(kc, rng, "axpby", rows, cols);
    p.mb = random_matrix(kc, rng, KC_NORMAL, any_type(rng), rows, cols);
    p.b = p.mb.t;
    p.f = kc_normal(rng), p.g = kc_normal(rng);
    check(kc, &r->axpby, &p, apply_axpby, NULL);
    free_problem(kc, &p);
}

static void check_moves(kcheck *kc, kc_rng *rng, step_rows *r, int64_t rows, int64_t cols)
{
    problem p = make(kc, rng, "copy", rows, cols);
    check(kc, &r->copy, &p, apply_copy, NULL);
    p.in_place = false;
    p.y_rows = 1 + kc_below(rng, 64);
    for (int64_t i = 0; i < p.y_rows; i++) p.ids[i] = (int32_t)kc_below(rng, rows);
    check(kc, &r->embed, &p, apply_embed, NULL);
    free_problem(kc, &p);
    p = make(kc, rng, "upsample2x", 2 * 3 * rows, cols);
    p.in_place = false;
    p.batch = 2, p.h = 3, p.w = rows, p.y_rows = 2 * 3 * rows * 4;
    check(kc, &r->upsample, &p, apply_upsample, NULL);
    free_problem(kc, &p);
}

/* One wild element anywhere is found; none is not. */
static void check_finite(kcheck *kc, kc_row *row)
{
    kc_rng rng = kc_rng_new(kc, "finite", 0);
    for (size_t i = 0; i < 2 * OQ_COUNT(cols_list); i++) {
        const int64_t rows = rows_list[i % 4], cols = cols_list[i / 2];
        kc_matrix m = random_matrix(kc, &rng, i % 3 ? KC_NORMAL : KC_DENORMALS,
                                    i % 2 ? &oq_dtype_f32 : &oq_dtype_bf16, rows, cols);
        bool ok = kc->device->ops.all_finite(kc->device, m.t) == 1;
        const int64_t at = kc_below(&rng, rows * cols);
        const oq_tensor one = oq_tensor_cols(oq_tensor_rows(m.t, at / cols, 1), at % cols, 1);
        const float wild = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY;
        one.dtype->from_f32(one.data, &wild, 1);
        ok &= kc->device->ops.all_finite(kc->device, m.t) == 0;
        kc_case(kc, row, ok && kc_matrix_intact(&m), "%lldx%lld %s", (long long)rows, (long long)cols,
                m.t.dtype->label);
        kc_matrix_free(kc, &m);
    }
}

static void check_steps(kcheck *kc)
{
    step_rows r = {{"modulate", 0, 0, 0}, {"add_gated", 0, 0, 0}, {"axpby", 0, 0, 0},
                   {"copy", 0, 0, 0},     {"embed", 0, 0, 0},     {"upsample2x", 0, 0, 0}};
    kc_rng rng = kc_rng_new(kc, "steps", 0);
    for (size_t i = 0; i < 4 * OQ_COUNT(cols_list); i++) {
        check_arithmetic(kc, &rng, &r, rows_list[i % 4], cols_list[i / 4]);
        check_moves(kc, &rng, &r, rows_list[i % 4], cols_list[i / 4]);
    }
    kc_row_print(&r.modulate), kc_row_print(&r.add_gated), kc_row_print(&r.axpby);
    kc_row_print(&r.copy), kc_row_print(&r.embed), kc_row_print(&r.upsample);
}

/* ---- speed --------------------------------------------------------------------------------------------- */

typedef struct bench {
    kcheck *kc;
    apply_fn apply;
    problem p;
    kc_matrix y;
} bench;

static void bench_run(void *user)
{
    const bench *const b = user;
    b->apply(&b->kc->device->ops, b->kc->device, &b->p, b->y.t, b->p.x);
}

static void bench_op(kcheck *kc, const char *op, apply_fn apply, int64_t rows, int64_t cols, int64_t group)
{
    kc_rng rng = kc_rng_new(kc, op, 0);
    bench b = {.kc = kc, .apply = apply, .p = {.op = op, .y_rows = rows, .y_cols = cols, .eps = 1e-6f}};
    b.p.mx = random_matrix(kc, &rng, KC_NORMAL, &oq_dtype_f32, rows, cols);
    b.p.x = b.p.mx.t;
    b.p.weight = random_vector(kc, &rng, cols), b.p.bias = random_vector(kc, &rng, cols);
    b.p.group = group, b.p.batch = 1, b.p.silu = true;
    b.y = kc_matrix_new(kc, &oq_dtype_f32, rows, cols, cols);
    char what[64];
    snprintf(what, sizeof what, "%lldx%lld f32", (long long)rows, (long long)cols);
    kc_bench(kc, op, what, 0.0, bench_run, &b);
    kc_matrix_free(kc, &b.y);
    free_problem(kc, &b.p);
}

void kcheck_ops(kcheck *kc)
{
    if (!kc_wants(kc, "ops", kc->device->features)) return;
    if (kc->bench) {
        bench_op(kc, "ops group_norm_silu", apply_group, 256 * 256, 32, 16);
        bench_op(kc, "ops group_norm_silu", apply_group, 256 * 256, 128, 32);
        bench_op(kc, "ops group_norm_silu", apply_group, 64 * 64, 512, 32);
        bench_op(kc, "ops rms_norm", apply_rms, 4096, 3072, 0);
        bench_op(kc, "ops unary", apply_unary, 4096, 3072, 0);
        return;
    }
    kc_row rms = {"rms_norm", 0, 0, 0}, layer = {"layer_norm", 0, 0, 0}, group = {"group_norm", 0, 0, 0};
    kc_row rope = {"rope", 0, 0, 0}, unary = {"unary", 0, 0, 0}, glu = {"glu", 0, 0, 0},
           finite = {"all_finite", 0, 0, 0};
    check_row_norms(kc, &rms, &layer);
    check_group_norm(kc, &group);
    for (int64_t n = 1; n <= 1003; n += 167) {
        check_constant(kc, &layer, apply_layer, 3, n, 0);
        check_constant(kc, &group, apply_group, 100, 2 * n, 2);
        check_constant(kc, &group, apply_group_pieces, 100, 2 * n, 2);
    }
    check_rope(kc, &rope);
    check_activations(kc, &unary, &glu);
    check_steps(kc);
    check_finite(kc, &finite);
    kc_row_print(&rms), kc_row_print(&layer), kc_row_print(&group), kc_row_print(&rope);
    kc_row_print(&unary), kc_row_print(&glu), kc_row_print(&finite);
}
