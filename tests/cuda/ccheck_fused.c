/* ccheck_fused.c -- fusions against the operations that they stand for, on the same card: equal bits. */
#include "ccheck.h"

#include "base/size.h"

#include <math.h>

enum {
    R_NORM = 1,
    RESIDUAL = 2,
    GATE = 4,
    NORM = 8,
    LAYER = 16,
    SCALE = 32,
    SHIFT = 64,
    PER_ROW = 128,
    BARE = 256 /* no weight */
};

typedef struct fused_case {
    int64_t rows, cols;
    const oq_dtype *type;
    unsigned steps;
} fused_case;

typedef struct fused_data { /* x twice: one for the fusion, one for the operations */
    cc_tensor x[2], r[2], h[2], gate, scale, shift;
    float *weight;
} fused_data;

static cc_tensor filled(ccheck *c, const oq_dtype *type, int64_t rows, int64_t cols, const float *values)
{
    return cc_tensor_new(c, type, rows, cols, 0, values);
}

static void data_new(ccheck *c, const fused_case *t, fused_data *d)
{
    const int64_t n = t->rows * t->cols, vectors = t->steps & PER_ROW ? t->rows : 1;
    float *v = cc_new(c, (size_t)n * sizeof *v), *w = cc_new(c, (size_t)t->cols * sizeof *w);
    cc_tensor *const rows[] = {d->x, d->r, d->h};
    for (int i = 0; i < 3; i++) {
        cc_fill(c, CC_NORMAL, v, t->rows, t->cols);
        for (int j = 0; j < 2; j++) rows[i][j] = filled(c, t->type, t->rows, t->cols, i == 2 ? NULL : v);
    }
    cc_tensor *const modulation[] = {&d->gate, &d->scale, &d->shift};
    for (int i = 0; i < 3; i++) {
        cc_fill(c, CC_NORMAL, v, vectors, t->cols);
        *modulation[i] = filled(c, t->type, vectors, t->cols, v);
    }
    cc_fill(c, CC_POSITIVE, w, 1, t->cols);
    d->weight = cc_upload(c, w, (size_t)t->cols * sizeof *w);
    oq_free(c->env, v);
    oq_free(c->env, w);
}

static void data_free(ccheck *c, fused_data *d)
{
    for (int j = 0; j < 2; j++) {
        cc_tensor_free(c, &d->x[j]);
        cc_tensor_free(c, &d->r[j]);
        cc_tensor_free(c, &d->h[j]);
    }
    cc_tensor_free(c, &d->gate);
    cc_tensor_free(c, &d->scale);
    cc_tensor_free(c, &d->shift);
    cc_release(c, d->weight);
}

static oq_rows_args args_of(const fused_case *t, const fused_data *d, int j)
{
    const unsigned s = t->steps;
    const oq_row_norm norm = {.kind = s & LAYER ? OQ_LAYER_NORM : OQ_RMS_NORM,
                              .weight = s & BARE ? NULL : d->weight,
                              .eps = 1e-5f,
                              .round_before_weight = t->type->bytes == 2};
    const oq_tensor none = {0};
    return (oq_rows_args){.x = d->x[j].device,
                          .h = s & (NORM | SCALE | SHIFT) ? d->h[j].device : none,
                          .r = s & RESIDUAL ? d->r[j].device : none,
                          .gate = s & GATE ? d->gate.device : none,
                          .r_norm = s & R_NORM ? norm : (oq_row_norm){.kind = OQ_NO_NORM},
                          .norm = s & NORM ? norm : (oq_row_norm){.kind = OQ_NO_NORM},
                          .scale = s & SCALE ? d->scale.device : none,
                          .shift = s & SHIFT ? d->shift.device : none,
                          .one = 1.0f};
}

/* The steps as the networks' room calls them without a fusion. */
static void one_by_one(ccheck *c, const oq_rows_args *a)
{
    const oq_ops *ops = oq_backend_cuda.ops(c->gpu);
    oq_norm_args n = {.x = a->r,
                      .y = a->r,
                      .weight = a->r_norm.weight,
                      .eps = a->r_norm.eps,
                      .round_before_weight = a->r_norm.round_before_weight};
    if (a->r_norm.kind == OQ_RMS_NORM) ops->rms_norm(c->gpu, &n);
    if (a->r_norm.kind == OQ_LAYER_NORM) ops->layer_norm(c->gpu, &n);
    if (a->r.rows) ops->add_gated(c->gpu, a->x, a->x, a->gate, a->r);
    n.x = a->x, n.y = a->h, n.weight = a->norm.weight, n.round_before_weight = a->norm.round_before_weight,
    n.eps = a->norm.eps;
    if (a->norm.kind == OQ_RMS_NORM) ops->rms_norm(c->gpu, &n);
    if (a->norm.kind == OQ_LAYER_NORM) ops->layer_norm(c->gpu, &n);
    if (a->scale.rows || a->shift.rows)
        ops->modulate(c->gpu, a->h, a->norm.kind ? a->h : a->x, a->scale, a->shift, a->one);
}

static bool equal(ccheck *c, cc_tensor *t, bool *intact)
{
    const size_t n = (size_t)(t[0].host.rows * t[0].host.cols);
    float *a = cc_new(c, n * sizeof *a), *b = cc_new(c, n * sizeof *b);
    *intact = cc_tensor_read(c, &t[0], a) && *intact;
    *intact = cc_tensor_read(c, &t[1], b) && *intact;
    const bool same = memcmp(a, b, n * sizeof *a) == 0;
    oq_free(c->env, a);
    oq_free(c->env, b);
    return same;
}

static void check_rows(ccheck *c, const fused_case *t, cc_row *row)
{
    fused_data d;
    data_new(c, t, &d);
    const oq_rows_args fused = args_of(t, &d, 0), plain = args_of(t, &d, 1);
    oq_backend_cuda.ops(c->gpu)->rows(c->gpu, &fused);
    one_by_one(c, &plain);
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    bool intact = true;
    const bool x = equal(c, d.x, &intact), h = !fused.h.rows || equal(c, d.h, &intact);
    cc_case(c, row, x && h && intact, "%lldx%lld %s steps %x:%s%s%s", (long long)t->rows, (long long)t->cols,
            t->type->name, t->steps, x ? "" : " x", h ? "" : " h", intact ? "" : " guard");
    data_free(c, &d);
}

/* A product's weights on the card. */
typedef struct product {
    oq_linear_spec spec;
    const oq_linear_kernel *kernel; /* NULL: none that fuses what was asked for */
    void *weights, *scratch;
} product;

static product product_new(ccheck *c, oq_scheme scheme, int64_t n, int64_t k, int64_t m, unsigned fusion)
{
    product p = {.spec = {.scheme = scheme, .n = n, .k = k}};
    p.kernel = oq_backend_cuda.find_linear(c->gpu, &p.spec);
    if (!p.kernel || !p.kernel->fuses || !(p.kernel->fuses(&p.spec) & fusion)) {
        p.kernel = NULL;
        return p;
    }
    float *w = cc_new(c, (size_t)(n * k) * sizeof *w), input = 0.02f;
    oq_planes_mut planes = {{NULL}};
    cc_fill(c, CC_NORMAL, w, n, k);
    for (int i = 0; i < OQ_PLANE_INPUT_SCALE; i++)
        if (scheme.weight->planes >> i & 1u)
            planes.plane[i] = cc_new(c, scheme.weight->plane_bytes(scheme.weight, (oq_plane)i, n, k));
    scheme.weight->encode(scheme.weight, &planes, w, n, k);
    oq_planes source = {{NULL}};
    for (int i = 0; i < OQ_PLANE_INPUT_SCALE; i++) source.plane[i] = planes.plane[i];
    source.plane[OQ_PLANE_INPUT_SCALE] = &input;
    char *packed = cc_new(c, p.kernel->packed_bytes(&p.spec));
    p.kernel->pack(packed, &source, &p.spec);
    p.weights = cc_upload(c, packed, p.kernel->packed_bytes(&p.spec));
    p.scratch = cc_device(c, p.kernel->scratch_bytes(&p.spec, m));
    for (int i = 0; i < OQ_PLANE_INPUT_SCALE; i++) oq_free(c->env, planes.plane[i]);
    oq_free(c->env, packed);
    oq_free(c->env, w);
    return p;
}

static void product_free(ccheck *c, product *p)
{
    if (p->weights) cc_release(c, p->weights);
    if (p->scratch) cc_release(c, p->scratch);
}

/* A product that makes its own rows, against the rows and then the product; and the same once more from what is left of
 * them. */
static void check_linear(ccheck *c, const fused_case *t, oq_scheme scheme, cc_row *row)
{
    const int64_t n = 256;
    product p = product_new(c, scheme, n, t->cols, t->rows, OQ_FUSE_ROWS);
    const oq_linear_kernel *const kernel = p.kernel;
    if (!kernel) {
        cc_case(c, row, false, "%s fuses no rows", scheme.weight->name);
        return;
    }
    fused_data d;
    data_new(c, t, &d);
    cc_tensor y[2], more[2];
    for (int j = 0; j < 2; j++) {
        y[j] = cc_tensor_new(c, t->type, t->rows, n, 0, NULL);
        more[j] = cc_tensor_new(c, t->type, t->rows, n, 0, NULL);
        const oq_rows_args rows = args_of(t, &d, j);
        if (j == 1) oq_backend_cuda.ops(c->gpu)->rows(c->gpu, &rows);
        oq_linear_args args = {.spec = &p.spec,
                               .packed = p.weights,
                               .scratch = p.scratch,
                               .x = d.h[j].device,
                               .y = y[j].device,
                               .rows = j == 0 ? &rows : NULL};
        kernel->run(c->gpu, &args);
        args.y = more[j].device, args.rows = NULL,
        args.again = j == 0 && (kernel->fuses(&p.spec) & OQ_FUSE_AGAIN);
        if (j == 1 || args.again) kernel->run(c->gpu, &args);
        cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    }
    bool intact = true;
    const bool repeats = kernel->fuses(&p.spec) & OQ_FUSE_AGAIN;
    const bool x = equal(c, d.x, &intact), same = equal(c, y, &intact),
               again = !repeats || equal(c, more, &intact);
    cc_case(c, row, x && same && again && intact, "%s %lldx%lld %s steps %x:%s%s%s%s", kernel->name,
            (long long)t->rows, (long long)t->cols, t->type->name, t->steps, x ? "" : " x", same ? "" : " y",
            again ? "" : " again", intact ? "" : " guard");
    for (int j = 0; j < 2; j++) {
        cc_tensor_free(c, &y[j]);
        cc_tensor_free(c, &more[j]);
    }
    product_free(c, &p);
    data_free(c, &d);
}

typedef struct pre_case {
    int64_t rows, cols, from;
    const oq_dtype *type;
    oq_unary unary;
    bool gated, apart; /* act(a) * b; `a` lies in another tensor, not in x itself */
} pre_case;

/* A product that makes columns of its x, against the operation and then the product. */
static void check_pre(ccheck *c, const pre_case *t, oq_scheme scheme, cc_row *row)
{
    enum { N = 256 };
    product p = product_new(c, scheme, N, t->cols, t->rows, OQ_FUSE_PRE);
    if (!p.kernel) {
        cc_case(c, row, false, "%s makes no columns", scheme.weight->name);
        return;
    }
    const int64_t made = t->cols - t->from;
    float *v = cc_new(c, (size_t)(t->rows * (t->cols + 2 * made)) * sizeof *v);
    cc_tensor x[2], y[2], ab;
    cc_fill(c, CC_NORMAL, v, t->rows, t->cols + 2 * made);
    ab = filled(c, t->type, t->rows, 2 * made, v + t->rows * t->cols);
    for (int j = 0; j < 2; j++) {
        x[j] = filled(c, t->type, t->rows, t->cols, v);
        y[j] = filled(c, t->type, t->rows, N, NULL);
        const oq_tensor columns = oq_tensor_cols(x[j].device, t->from, made), none = {0};
        const oq_pre pre = {.unary = t->unary,
                            .a = t->apart ? oq_tensor_cols(ab.device, 0, made) : columns,
                            .b = t->gated ? oq_tensor_cols(ab.device, made, made) : none,
                            .from = t->from};
        const oq_ops *const ops = oq_backend_cuda.ops(c->gpu);
        if (j == 1 && t->gated) ops->glu(c->gpu, pre.unary, columns, pre.a, pre.b);
        if (j == 1 && !t->gated) ops->unary(c->gpu, pre.unary, columns, pre.a);
        const oq_linear_args args = {.spec = &p.spec,
                                     .packed = p.weights,
                                     .scratch = p.scratch,
                                     .x = x[j].device,
                                     .y = y[j].device,
                                     .pre = j == 0 ? &pre : NULL};
        p.kernel->run(c->gpu, &args);
        cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    }
    bool intact = true;
    const bool same = equal(c, y, &intact);
    cc_case(c, row, same && intact, "%s %lldx%lld from %lld %s act %d%s%s", p.kernel->name,
            (long long)t->rows, (long long)t->cols, (long long)t->from, t->type->name, (int)t->unary,
            t->gated ? " gated" : "", intact ? "" : " guard");
    for (int j = 0; j < 2; j++) cc_tensor_free(c, &x[j]), cc_tensor_free(c, &y[j]);
    cc_tensor_free(c, &ab);
    product_free(c, &p);
    oq_free(c->env, v);
}

static void check_pres(ccheck *c, const oq_scheme *schemes, size_t n, cc_row *row)
{
    static const int64_t shapes[][2] = {{192, 0}, {1600, 576}, {10240, 0}, {15360, 3072}, {208, 4}};
    for (size_t i = 0; i < OQ_COUNT(shapes); i++)
        for (int v = 0; v < 8; v++) {
            const pre_case t = {.rows = 33,
                                .cols = shapes[i][0],
                                .from = shapes[i][1],
                                .type = v & 1 ? &oq_dtype_f32 : &oq_dtype_bf16,
                                .unary = v & 2 ? OQ_SILU : OQ_GELU_TANH,
                                .gated = v & 2,
                                .apart = v & 4};
            if (!cc_mine(c)) continue;
            for (size_t s = 0; s < n; s++) check_pre(c, &t, schemes[s], row);
        }
}

static void check_qk(ccheck *c, const oq_dtype *type, int64_t head_dim, oq_rope_kind kind, bool norm,
                     cc_row *row)
{
    enum { ROWS = 37, Q = 3, K = 2 };
    const oq_ops *ops = oq_backend_cuda.ops(c->gpu);
    const int64_t cols = (Q + K) * head_dim, pairs = head_dim / 2;
    float *v = cc_new(c, (size_t)(ROWS * cols) * sizeof *v);
    cc_fill(c, CC_NORMAL, v, ROWS, cols);
    cc_tensor x[2] = {cc_tensor_new(c, type, ROWS, cols, 0, v), cc_tensor_new(c, type, ROWS, cols, 0, v)};
    cc_fill(c, CC_NORMAL, v, ROWS, pairs);
    float *cosines = cc_upload(c, v, (size_t)((ROWS + 1) * pairs) * sizeof *v),
          *weight = cc_upload(c, v, (size_t)head_dim * sizeof *v);
    for (int j = 0; j < 2; j++) {
        const oq_tensor q = oq_tensor_cols(x[j].device, 0, Q * head_dim),
                        k = oq_tensor_cols(x[j].device, Q * head_dim, K * head_dim);
        const oq_qk_args a = {.q = q,
                              .k = k,
                              .q_weight = norm ? weight : NULL,
                              .k_weight = norm ? weight : NULL,
                              .eps = 1e-6f,
                              .round_before_weight = type->bytes == 2,
                              .cos = cosines,
                              .sin = cosines + pairs,
                              .n_heads = Q,
                              .n_kv_heads = K,
                              .head_dim = head_dim,
                              .kind = kind};
        if (j == 0) {
            ops->qk_norm_rope(c->gpu, &a);
            continue;
        }
        for (int i = 0; i < 2; i++) {
            const oq_tensor part = i ? k : q;
            const oq_norm_args n = {.x = part,
                                    .y = part,
                                    .weight = weight,
                                    .eps = a.eps,
                                    .group = head_dim,
                                    .round_before_weight = a.round_before_weight};
            const oq_rope_args r = {.x = part,
                                    .cos = a.cos,
                                    .sin = a.sin,
                                    .n_heads = i ? K : Q,
                                    .head_dim = head_dim,
                                    .kind = kind};
            if (norm) ops->rms_norm(c->gpu, &n);
            ops->rope(c->gpu, &r);
        }
    }
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    bool intact = true;
    const bool same = equal(c, x, &intact);
    cc_case(c, row, same && intact, "heads of %lld %s kind %d norm %d", (long long)head_dim, type->name,
            (int)kind, norm);
    for (int j = 0; j < 2; j++) cc_tensor_free(c, &x[j]);
    cc_release(c, cosines);
    cc_release(c, weight);
    oq_free(c->env, v);
}

void ccheck_fused(ccheck *c)
{
    static const unsigned steps[] = {RESIDUAL,
                                     RESIDUAL | GATE,
                                     RESIDUAL | GATE | R_NORM,
                                     NORM | SCALE,
                                     NORM | LAYER | SCALE | SHIFT,
                                     RESIDUAL | GATE | R_NORM | NORM | SCALE | SHIFT,
                                     RESIDUAL | GATE | NORM | LAYER | SCALE | SHIFT | PER_ROW,
                                     NORM | LAYER | BARE | SCALE | SHIFT,
                                     RESIDUAL | GATE | NORM | LAYER | BARE | SCALE | SHIFT,
                                     RESIDUAL | GATE | R_NORM | NORM | SCALE,
                                     SCALE | SHIFT};
    static const int64_t cols[] = {192, 1536, 3840, 5120, 15360};
    cc_row rows = {.kernel = "rows"}, products = {.kernel = "linear with rows"},
           qk = {.kernel = "qk_norm_rope"}, pre = {.kernel = "linear with pre"};
    const oq_scheme schemes[] = {
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_tensor, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_STATIC_TENSOR},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN}};
    if (c->bench_ms > 0 || !cc_wants(c, "fused")) return;
    for (size_t i = 0; i < OQ_COUNT(cols); i++)
        for (size_t s = 0; s < OQ_COUNT(steps); s++)
            for (int f32 = 0; f32 < 2; f32++) {
                const fused_case t = {33, cols[i], f32 ? &oq_dtype_f32 : &oq_dtype_bf16, steps[s]};
                if (!cc_mine(c)) continue;
                check_rows(c, &t, &rows);
                for (size_t k = 0; k < OQ_COUNT(schemes) && steps[s] & (NORM | SCALE | SHIFT); k++)
                    check_linear(c, &t, schemes[k], &products);
            }
    for (int i = 0; i < 2 * 2 * 2 * 4; i++)
        if (cc_mine(c))
            check_qk(c, i & 1 ? &oq_dtype_f32 : &oq_dtype_bf16, (int64_t[]){64, 128, 256, 96}[i / 8],
                     i & 2 ? OQ_ROPE_HALF : OQ_ROPE_INTERLEAVED, i & 4, &qk);
    check_pres(c, schemes, OQ_COUNT(schemes), &pre);
    cc_row_print(&rows);
    cc_row_print(&products);
    cc_row_print(&pre);
    cc_row_print(&qk);
}
