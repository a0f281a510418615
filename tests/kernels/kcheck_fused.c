/* kcheck_fused.c -- every fusion against the separate operations it stands for, bit for bit: rows between products, norm
 * and rotation of q and k, and what each linear kernel does in front of and behind its product. The separate operations
 * themselves are checked by kcheck_ops.c and kcheck_linear.c. */
#include "kernels/kcheck.h"

#include <stdio.h>
#include <string.h>

#include "base/size.h"

static const oq_dtype *any_type(kc_rng *rng)
{
    return kc_below(rng, 2) ? &oq_dtype_bf16 : &oq_dtype_f32;
}

static kc_matrix random_matrix(kcheck *kc, kc_rng *rng, const oq_dtype *type, int64_t rows, int64_t cols)
{
    kc_matrix m = kc_matrix_new(kc, type, rows, cols, cols + kc_below(rng, 3));
    float *const x = kc_new(kc, (size_t)(rows * cols) * sizeof *x);
    kc_fill(rng, (kc_class)kc_below(rng, KC_NAN_ROW), x, rows, cols);
    kc_matrix_set(&m, x);
    oq_free(kc->env, x);
    return m;
}

static kc_matrix copy_of(kcheck *kc, const kc_matrix *m)
{
    kc_matrix out = kc_matrix_new(kc, m->t.dtype, m->t.rows, m->t.cols, m->t.cols + 1);
    float *const x = kc_new(kc, (size_t)(m->t.rows * m->t.cols) * sizeof *x);
    kc_matrix_get(m, x);
    kc_matrix_set(&out, x);
    oq_free(kc->env, x);
    return out;
}

static kc_buf random_vector(kcheck *kc, kc_rng *rng, int64_t n)
{
    kc_buf b = kc_buf_new(kc, (size_t)n * sizeof(float), sizeof(float));
    for (int64_t i = 0; i < n; i++) ((float *)b.data)[i] = kc_normal(rng);
    return b;
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

typedef struct rows_problem { /* operands that are absent have no buffer */
    kc_matrix x, r, gate, scale, shift;
    kc_buf r_weight, weight, bias;
    const oq_dtype *h_type;
    oq_rows_args args; /* without x, r and h: each run has its own */
} rows_problem;

/* Absent, one row for all, or a row each. */
static oq_tensor operand(kcheck *kc, kc_rng *rng, kc_matrix *m, int64_t rows, int64_t cols)
{
    const int64_t kind = kc_below(rng, 3);
    if (kind == 0) return (oq_tensor){0};
    *m = random_matrix(kc, rng, any_type(rng), kind == 1 ? 1 : rows, cols);
    return m->t;
}

static oq_row_norm row_norm(kcheck *kc, kc_rng *rng, oq_row_norm_kind kind, kc_buf *weight, kc_buf *bias,
                            int64_t cols)
{
    if (kind && kc_below(rng, 3)) *weight = random_vector(kc, rng, cols);
    if (kind == OQ_LAYER_NORM && bias && kc_below(rng, 2)) *bias = random_vector(kc, rng, cols);
    return (oq_row_norm){.kind = kind,
                         .weight = weight->data,
                         .bias = bias ? bias->data : NULL,
                         .eps = 1e-5f,
                         .round_before_weight = kind == OQ_RMS_NORM && kc_below(rng, 2)};
}

/* `plain`: x and h of one type, as a product's input needs it to be. */
static rows_problem make_rows(kcheck *kc, kc_rng *rng, int64_t rows, int64_t cols, const oq_dtype *type)
{
    rows_problem p = {.h_type = type ? type : any_type(rng)};
    p.x = random_matrix(kc, rng, type ? type : any_type(rng), rows, cols);
    const bool residual = kc_below(rng, 3) != 0;
    if (residual) {
        p.r = random_matrix(kc, rng, any_type(rng), rows, cols);
        p.args.r_norm = row_norm(kc, rng, (oq_row_norm_kind)kc_below(rng, 3), &p.r_weight, NULL, cols);
        p.args.gate = operand(kc, rng, &p.gate, rows, cols);
    }
    p.args.norm = row_norm(kc, rng, (oq_row_norm_kind)kc_below(rng, 3), &p.weight, &p.bias, cols);
    p.args.scale = operand(kc, rng, &p.scale, rows, cols);
    p.args.shift = operand(kc, rng, &p.shift, rows, cols);
    p.args.one = (float)kc_below(rng, 2);
    if (!p.args.norm.kind && !p.args.scale.rows && !p.args.shift.rows) p.args.norm.kind = OQ_RMS_NORM;
    return p;
}

static void free_rows(kcheck *kc, rows_problem *p)
{
    kc_matrix_free(kc, &p->x), kc_matrix_free(kc, &p->r), kc_matrix_free(kc, &p->gate);
    kc_matrix_free(kc, &p->scale), kc_matrix_free(kc, &p->shift);
    kc_buf_free(kc, &p->r_weight), kc_buf_free(kc, &p->weight), kc_buf_free(kc, &p->bias);
}

/* One run's own operands. */
typedef struct rows_run {
    kc_matrix x, r, h;
    oq_rows_args args;
} rows_run;

static rows_run start_rows(kcheck *kc, const rows_problem *p, bool to_h)
{
    rows_run run = {.args = p->args};
    run.x = copy_of(kc, &p->x);
    if (p->r.t.rows) run.r = copy_of(kc, &p->r);
    run.h = kc_matrix_new(kc, p->h_type, p->x.t.rows, p->x.t.cols, p->x.t.cols);
    run.args.x = run.x.t;
    run.args.r = run.r.t;
    run.args.h = to_h ? run.h.t : (oq_tensor){0};
    return run;
}

static void free_run(kcheck *kc, rows_run *run)
{
    kc_matrix_free(kc, &run->x), kc_matrix_free(kc, &run->r), kc_matrix_free(kc, &run->h);
}

static void apply_norm(const oq_ops *ops, oq_device *d, const oq_row_norm *n, oq_tensor y, oq_tensor x)
{
    const oq_norm_args a = {.x = x,
                            .y = y,
                            .weight = n->weight,
                            .bias = n->bias,
                            .eps = n->eps,
                            .round_before_weight = n->round_before_weight};
    if (n->kind == OQ_RMS_NORM)
        ops->rms_norm(d, &a);
    else
        ops->layer_norm(d, &a);
}

static void one_by_one(const oq_ops *ops, oq_device *d, const oq_rows_args *a)
{
    if (a->r.rows) {
        if (a->r_norm.kind) apply_norm(ops, d, &a->r_norm, a->r, a->r);
        ops->add_gated(d, a->x, a->x, a->gate, a->r);
    }
    if (!a->h.rows) return;
    if (a->norm.kind) apply_norm(ops, d, &a->norm, a->h, a->x);
    if (a->scale.rows || a->shift.rows)
        ops->modulate(d, a->h, a->norm.kind ? a->h : a->x, a->scale, a->shift, a->one);
}

static const int64_t cols_list[] = {1, 7, 8, 15, 16, 17, 31, 33, 48, 64, 100, 192, 257, 1030};
static const int64_t rows_list[] = {1, 2, 5, 33, 130};

static void check_rows(kcheck *kc)
{
    kc_row row = {.kernel = "rows"};
    kc_rng rng = kc_rng_new(kc, "rows", 0);
    const oq_ops *const ops = &kc->device->ops;
    if (!ops->rows) return;
    for (size_t i = 0; i < 8 * OQ_COUNT(cols_list); i++) {
        if (!kc_turn(kc)) continue;
        const int64_t cols = cols_list[i / 8], n = rows_list[kc_below(&rng, 5)];
        rows_problem p = make_rows(kc, &rng, n, cols, NULL);
        const bool to_h = kc_below(&rng, 8) != 0 || !p.r.t.rows;
        rows_run want = start_rows(kc, &p, to_h), got = start_rows(kc, &p, to_h),
                 alone = start_rows(kc, &p, to_h);
        kc_now("rows: %lld x %lld", (long long)n, (long long)cols);
        one_by_one(ops, kc->device, &want.args);
        ops->rows(kc->device, &got.args);
        ops->rows(&kc->single, &alone.args);
        const bool same = kc_matrix_same(&want.x, &got.x) && (!to_h || kc_matrix_same(&want.h, &got.h));
        const bool one = kc_matrix_same(&alone.x, &got.x) && (!to_h || kc_matrix_same(&alone.h, &got.h));
        const bool intact = kc_matrix_intact(&got.x) && kc_matrix_intact(&got.h);
        kc_case(kc, &row, same && one && intact,
                "%lld x %lld, residual %d norm %d gate %lld, norm %d, scale %lld shift %lld: same %d, one "
                "thread %d, "
                "guards %d",
                (long long)n, (long long)cols, p.r.t.rows != 0, (int)p.args.r_norm.kind,
                (long long)p.args.gate.rows, (int)p.args.norm.kind, (long long)p.args.scale.rows,
                (long long)p.args.shift.rows, same, one, intact);
        free_run(kc, &want), free_run(kc, &got), free_run(kc, &alone);
        free_rows(kc, &p);
    }
    kc_row_print(&row);
}

/* ---- q and k ------------------------------------------------------------------------------------------- */

static void qk_one_by_one(const oq_ops *ops, oq_device *d, const oq_qk_args *a)
{
    const oq_tensor t[2] = {a->q, a->k};
    for (int i = 0; i < 2; i++) {
        const oq_norm_args norm = {.x = t[i],
                                   .y = t[i],
                                   .weight = i ? a->k_weight : a->q_weight,
                                   .eps = a->eps,
                                   .group = a->head_dim,
                                   .round_before_weight = a->round_before_weight};
        if (norm.weight) ops->rms_norm(d, &norm);
        const oq_rope_args rope = {.x = t[i],
                                   .cos = a->cos,
                                   .sin = a->sin,
                                   .n_heads = i ? a->n_kv_heads : a->n_heads,
                                   .head_dim = a->head_dim,
                                   .kind = a->kind};
        ops->rope(d, &rope);
    }
}

static void check_qk_case(kcheck *kc, kc_row *row, kc_rng *rng, int64_t n, int64_t dim)
{
    const oq_ops *const ops = &kc->device->ops;
    const int64_t kv = 1 + kc_below(rng, 3), heads = kv * (1 + kc_below(rng, 2));
    const oq_dtype *const type = any_type(rng);
    kc_matrix q = random_matrix(kc, rng, type, n, heads * dim), k = random_matrix(kc, rng, type, n, kv * dim);
    kc_matrix q2 = copy_of(kc, &q), k2 = copy_of(kc, &k), q3 = copy_of(kc, &q), k3 = copy_of(kc, &k);
    kc_buf cos = random_vector(kc, rng, n * dim / 2), sin = random_vector(kc, rng, n * dim / 2);
    kc_buf weights = random_vector(kc, rng, 2 * dim);
    const bool normed = kc_below(rng, 3) != 0;
    oq_qk_args a = {.q = q.t,
                    .k = k.t,
                    .q_weight = normed ? weights.data : NULL,
                    .k_weight = normed ? (float *)weights.data + dim : NULL,
                    .eps = 1e-6f,
                    .round_before_weight = kc_below(rng, 2),
                    .cos = cos.data,
                    .sin = sin.data,
                    .n_heads = heads,
                    .n_kv_heads = kv,
                    .head_dim = dim,
                    .kind = kc_below(rng, 2) ? OQ_ROPE_HALF : OQ_ROPE_INTERLEAVED};
    ops->qk_norm_rope(kc->device, &a);
    a.q = q2.t, a.k = k2.t;
    ops->qk_norm_rope(&kc->single, &a);
    a.q = q3.t, a.k = k3.t;
    qk_one_by_one(ops, kc->device, &a);
    const bool one = kc_matrix_same(&q, &q2) && kc_matrix_same(&k, &k2);
    const bool same = kc_matrix_same(&q, &q3) && kc_matrix_same(&k, &k3);
    const bool intact = kc_matrix_intact(&q) && kc_matrix_intact(&k);
    kc_case(kc, row, one && same && intact,
            "%lld rows, %lld and %lld heads of %lld: same %d, one thread %d, guards %d", (long long)n,
            (long long)heads, (long long)kv, (long long)dim, same, one, intact);
    kc_matrix_free(kc, &q), kc_matrix_free(kc, &k), kc_matrix_free(kc, &q2), kc_matrix_free(kc, &k2);
    kc_matrix_free(kc, &q3), kc_matrix_free(kc, &k3);
    kc_buf_free(kc, &cos), kc_buf_free(kc, &sin), kc_buf_free(kc, &weights);
}

static void check_qk(kcheck *kc)
{
    static const int64_t dims[] = {2, 6, 16, 34, 64, 96, 128, 256};
    kc_row row = {.kernel = "qk_norm_rope"};
    kc_rng rng = kc_rng_new(kc, "qk", 0);
    if (!kc->device->ops.qk_norm_rope) return;
    for (size_t i = 0; i < 5 * OQ_COUNT(dims); i++)
        if (kc_turn(kc)) check_qk_case(kc, &row, &rng, rows_list[i % 5], dims[i / 5]);
    kc_row_print(&row);
}

/* ---- products ------------------------------------------------------------------------------------------ */

typedef struct product { /* one layer and what surrounds it */
    const oq_linear_kernel *kernel;
    oq_linear_spec spec;
    int64_t m;
    kc_buf planes[OQ_N_PLANES], packed, scratch, bias;
    rows_problem before;
    bool has_rows;
    oq_post post;
    const oq_dtype *x_type, *y_type;
    kc_matrix residual, gate;
} product;

static void make_weight(kcheck *kc, kc_rng *rng, product *p)
{
    const oq_format *const f = p->spec.scheme.weight;
    const int64_t n = p->spec.n, k = p->spec.k;
    oq_planes_mut planes = {{0}};
    oq_planes view = {{0}};
    for (int i = 0; i < OQ_N_PLANES; i++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)i, n, k);
        p->planes[i] = kc_buf_new(kc, bytes, 0);
        planes.plane[i] = bytes ? p->planes[i].data : NULL;
    }
    float *const w = kc_new(kc, (size_t)(n * k) * sizeof *w);
    kc_fill(rng, KC_NORMAL, w, n, k);
    f->encode(f, &planes, w, n, k);
    oq_free(kc->env, w);
    for (int i = 0; i < OQ_N_PLANES; i++) view.plane[i] = planes.plane[i];
    p->packed = kc_buf_new(kc, p->kernel->packed_bytes(&p->spec), 0);
    p->scratch = kc_buf_new(kc, p->kernel->scratch_bytes(&p->spec, p->m), 0);
    p->kernel->pack(p->packed.data, &view, &p->spec);
    p->bias = random_vector(kc, rng, n);
}

static void make_post(kcheck *kc, kc_rng *rng, product *p, unsigned fuses)
{
    static const unsigned bits[] = {[OQ_POST_NONE] = 0,
                                    [OQ_POST_UNARY] = OQ_FUSE_UNARY,
                                    [OQ_POST_GLU] = OQ_FUSE_GLU,
                                    [OQ_POST_ADD] = OQ_FUSE_ADD};
    if (p->post.kind) return; /* asked for */
    p->post = (oq_post){.kind = (oq_post_kind)kc_below(rng, 4), .unary = (oq_unary)kc_below(rng, OQ_N_UNARY)};
    if (bits[p->post.kind] && !(fuses & bits[p->post.kind])) p->post.kind = OQ_POST_NONE;
    if (p->post.kind != OQ_POST_ADD) return;
    p->residual = random_matrix(kc, rng, any_type(rng), p->m, p->spec.n);
    p->post.residual = p->residual.t;
    p->post.gate = operand(kc, rng, &p->gate, p->m, p->spec.n);
}

/* y of one way: all in the kernel's call, or step by step. x: the residual stream afterwards. */
static kc_matrix run_product(kcheck *kc, const product *p, oq_device *d, bool fused, rows_run *run)
{
    const oq_ops *const ops = &d->ops;
    const int64_t n = p->spec.n, y_cols = p->post.kind == OQ_POST_GLU ? n / 2 : n;
    kc_matrix y = kc_matrix_new(kc, p->y_type, p->m, y_cols, y_cols + 1);
    kc_matrix whole = kc_matrix_new(kc, p->y_type, p->m, n, n);
    *run = start_rows(kc, &p->before, true);
    oq_linear_args a = {.spec = &p->spec,
                        .packed = p->packed.data,
                        .bias = p->bias.data,
                        .scratch = p->scratch.data,
                        .x = p->has_rows ? run->h.t : run->x.t,
                        .y = fused ? y.t : whole.t};
    if (fused) {
        a.rows = p->has_rows ? &run->args : NULL;
        a.post = p->post.kind ? &p->post : NULL;
        p->kernel->run(d, &a);
        kc_matrix_free(kc, &whole);
        return y;
    }
    if (p->has_rows) one_by_one(ops, d, &run->args);
    p->kernel->run(d, &a);
    if (p->post.kind == OQ_POST_NONE) ops->copy(d, y.t, whole.t);
    if (p->post.kind == OQ_POST_UNARY) ops->unary(d, p->post.unary, y.t, whole.t);
    if (p->post.kind == OQ_POST_GLU)
        ops->glu(d, p->post.unary, y.t, oq_tensor_cols(whole.t, 0, n / 2),
                 oq_tensor_cols(whole.t, n / 2, n / 2));
    if (p->post.kind == OQ_POST_ADD) ops->add_gated(d, y.t, p->post.residual, p->post.gate, whole.t);
    kc_matrix_free(kc, &whole);
    return y;
}

static void check_product(kcheck *kc, kc_row *row, product *p, kc_rng *rng)
{
    const unsigned fuses = p->kernel->fuses(&p->spec);
    rows_run r1, r2, r3;
    make_weight(kc, rng, p);
    make_post(kc, rng, p, fuses);
    p->before = make_rows(kc, rng, p->m, p->spec.k, p->x_type ? p->x_type : any_type(rng));
    p->has_rows = (fuses & OQ_FUSE_ROWS) && kc_below(rng, 4);
    p->y_type = any_type(rng);
    kc_now("%s fused: m %lld n %lld k %lld", p->kernel->name, (long long)p->m, (long long)p->spec.n,
           (long long)p->spec.k);
    kc_matrix want = run_product(kc, p, kc->device, false, &r1),
              got = run_product(kc, p, kc->device, true, &r2);
    kc_matrix alone = run_product(kc, p, &kc->single, true, &r3);
    const bool same = kc_matrix_same(&want, &got) && kc_matrix_same(&r1.x, &r2.x);
    const bool one = kc_matrix_same(&alone, &got) && kc_matrix_same(&r3.x, &r2.x);
    const bool intact = kc_matrix_intact(&got) && kc_matrix_intact(&r2.x) && kc_matrix_intact(&r2.h) &&
                        kc_buf_intact(&p->scratch) && kc_buf_intact(&p->packed);
    char text[96];
    oq_scheme_describe(&p->spec.scheme, text, sizeof text);
    kc_case(kc, row, same && one && intact,
            "%s, m %lld n %lld k %lld, x %s y %s, rows %d (norm %d), post %d (unary %d): same %d, one thread "
            "%d, guards %d",
            text, (long long)p->m, (long long)p->spec.n, (long long)p->spec.k, p->before.x.t.dtype->label,
            p->y_type->label, p->has_rows, (int)p->before.args.norm.kind, (int)p->post.kind,
            (int)p->post.unary, same, one, intact);
    kc_matrix_free(kc, &want), kc_matrix_free(kc, &got), kc_matrix_free(kc, &alone);
    free_run(kc, &r1), free_run(kc, &r2), free_run(kc, &r3);
    free_rows(kc, &p->before);
    kc_matrix_free(kc, &p->residual), kc_matrix_free(kc, &p->gate);
    for (int i = 0; i < OQ_N_PLANES; i++) kc_buf_free(kc, &p->planes[i]);
    kc_buf_free(kc, &p->packed), kc_buf_free(kc, &p->scratch), kc_buf_free(kc, &p->bias);
}

/* Several rounds of rows, and blocks whose x is beyond L2, with pairs of panels: see check_tall of kcheck_linear.c. */
static void check_tall_pairs(kcheck *kc, kc_row *row, const oq_linear_kernel *kernel, kc_rng *rng)
{
    static const oq_format *const formats[] = {&oq_format_bf16, &oq_format_q4_0, &oq_format_int8z_g32};
    for (size_t i = 0; i < 2 * OQ_COUNT(formats); i++) {
        const bool stream = i % 2;
        product p = {.kernel = kernel,
                     .x_type = &oq_dtype_bf16,
                     .m = stream ? 1600 : 800,
                     .spec = {{.weight = formats[i / 2]}, stream ? 128 : 192, stream ? 2048 : 1056},
                     .post = {.kind = OQ_POST_GLU, .unary = OQ_SILU}};
        if (!kernel->need || (stream && !strstr(kernel->name, "_amx"))) continue;
        if (!kernel->accepts(&p.spec) || !(kernel->fuses(&p.spec) & OQ_FUSE_GLU)) continue;
        if (kc_turn(kc)) check_product(kc, row, &p, rng);
    }
}

static void check_products(kcheck *kc, const oq_linear_kernel *kernel, const oq_scheme *schemes,
                           size_t n_schemes)
{
    static const int64_t shapes[][3] = {{1, 64, 33},    {3, 128, 64},  {12, 192, 192},
                                        {29, 64, 130},  {77, 33, 48},  {133, 64, 96},
                                        {300, 128, 64}, {800, 64, 32}, {5, 256, 600}};
    kc_row row = {.kernel = kernel->name};
    kc_rng rng = kc_rng_new(kc, "fused", 0);
    for (size_t i = 0; i < 4 * OQ_COUNT(shapes) * n_schemes; i++) {
        const int64_t *const s = shapes[i % OQ_COUNT(shapes)];
        product p = {
            .kernel = kernel, .m = s[0], .spec = {schemes[i / OQ_COUNT(shapes) % n_schemes], s[1], s[2]}};
        if (kernel->accepts(&p.spec) && kc_turn(kc)) check_product(kc, &row, &p, &rng);
    }
    check_tall_pairs(kc, &row, kernel, &rng);
    kc_row_print(&row);
}

void kcheck_fused(kcheck *kc)
{
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_f32},
        {.weight = &oq_format_bf16},
        {.weight = &oq_format_fp8_e4m3_channel},
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_nvfp4},
        {.weight = &oq_format_mxfp8, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_MX},
    };
    if (kc->bench) return;
    if (kc_wants(kc, "rows", kc->device->features)) check_rows(kc);
    if (kc_wants(kc, "qk_norm_rope", kc->device->features)) check_qk(kc);
    for (int i = 0; kc_linear_kernel(i); i++) {
        const oq_linear_kernel *const kernel = kc_linear_kernel(i);
        if (kernel->fuses && kc_wants(kc, kernel->name, kernel->need))
            check_products(kc, kernel, schemes, OQ_COUNT(schemes));
    }
}
