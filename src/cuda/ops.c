/* ops.c -- the table of operations: each enters the device, launches, and notes a failure under its name. */
#include "cuda/cuda.h"

#include <string.h>

_Static_assert(OQ_SILU == 0 && OQ_GELU_TANH == 1 && OQ_GELU_ERF == 2 && OQ_QUICK_GELU == 3 && OQ_TANH == 4,
               "elementwise.cu counts the activations in this order");

bool oq_cuda_is_bf16(oq_tensor t)
{
    return t.dtype->bytes == 2; /* activations are F32 or BF16 */
}

oq_cu_view oq_cuda_view(oq_tensor t)
{
    if (t.rows == 0 || !t.dtype) return (oq_cu_view){.type = OQ_CU_F32};
    return (oq_cu_view){t.data, t.rows, t.cols, t.ld, oq_cuda_is_bf16(t) ? OQ_CU_BF16 : OQ_CU_F32};
}

static oq_cu_norm norm_of(const oq_norm_args *a)
{
    return (oq_cu_norm){.x = oq_cuda_view(a->x),
                        .y = oq_cuda_view(a->y),
                        .weight = a->weight,
                        .bias = a->bias,
                        .eps = a->eps,
                        .group = a->x.cols};
}

static void rms_norm(oq_device *d, const oq_norm_args *a)
{
    oq_cuda_enter(d);
    oq_cu_norm n = norm_of(a);
    n.bias = NULL;
    if (a->group > 0) n.group = a->group;
    n.round_before_weight = a->round_before_weight && oq_cuda_is_bf16(a->y);
    oq_cu_row_norm(d->stream, &n);
    oq_cuda_done(d, "rms_norm");
}

static void layer_norm(oq_device *d, const oq_norm_args *a)
{
    oq_cuda_enter(d);
    oq_cu_norm n = norm_of(a);
    n.mean = true;
    oq_cu_row_norm(d->stream, &n);
    oq_cuda_done(d, "layer_norm");
}

static void group_norm(oq_device *d, const oq_norm_args *a)
{
    oq_cuda_enter(d);
    if (oq_cu_group_norm_work(a->x.rows, a->x.cols, a->batch, a->group) > OQ_CUDA_WORK_BYTES)
        oq_cuda_note(d, cudaErrorInvalidValue,
                     "group_norm"); /* thousands of groups or images: no network has them */
    else
        oq_cu_group_norm(d->stream,
                         &(oq_cu_group_norm_args){.y = oq_cuda_view(a->y),
                                                  .x = oq_cuda_view(a->x),
                                                  .weight = a->weight,
                                                  .bias = a->bias,
                                                  .eps = a->eps,
                                                  .n_groups = a->group,
                                                  .batch = a->batch,
                                                  .silu = a->silu,
                                                  .pieces = a->moments,
                                                  .n_pieces = a->n_moments},
                         d->work);
    oq_cuda_done(d, "group_norm");
}

static void group_moments(oq_device *d, oq_tensor x, int64_t group, double *moments)
{
    oq_cuda_enter(d);
    if (oq_cu_group_norm_work(x.rows, x.cols, 1, group) > OQ_CUDA_WORK_BYTES)
        oq_cuda_note(d, cudaErrorInvalidValue, "group_moments");
    else
        oq_cu_group_moments(d->stream, oq_cuda_view(x), group, moments, d->work);
    oq_cuda_done(d, "group_moments");
}

static void rope(oq_device *d, const oq_rope_args *a)
{
    oq_cuda_enter(d);
    oq_cu_rope(d->stream, oq_cuda_view(a->x), a->cos, a->sin, a->n_heads, a->head_dim,
               a->kind == OQ_ROPE_HALF);
    oq_cuda_done(d, "rope");
}

static void unary(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor x)
{
    oq_cuda_enter(d);
    oq_cu_unary(d->stream, (int)kind, oq_cuda_view(y), oq_cuda_view(x));
    oq_cuda_done(d, "unary");
}

static void glu(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor a, oq_tensor b)
{
    oq_cuda_enter(d);
    oq_cu_glu(d->stream, (int)kind, oq_cuda_view(y), oq_cuda_view(a), oq_cuda_view(b));
    oq_cuda_done(d, "glu");
}

static void modulate(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor scale, oq_tensor shift, float one)
{
    oq_cuda_enter(d);
    oq_cu_modulate(d->stream, oq_cuda_view(y), oq_cuda_view(x), oq_cuda_view(scale), oq_cuda_view(shift),
                   one);
    oq_cuda_done(d, "modulate");
}

static void add_gated(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor gate, oq_tensor r)
{
    oq_cuda_enter(d);
    oq_cu_add_gated(d->stream, oq_cuda_view(y), oq_cuda_view(x), oq_cuda_view(gate), oq_cuda_view(r));
    oq_cuda_done(d, "add_gated");
}

static void axpby(oq_device *d, oq_tensor y, float a, oq_tensor x, float b)
{
    oq_cuda_enter(d);
    oq_cu_axpby(d->stream, oq_cuda_view(y), a, oq_cuda_view(x), b);
    oq_cuda_done(d, "axpby");
}

static void copy(oq_device *d, oq_tensor y, oq_tensor x)
{
    oq_cuda_enter(d);
    oq_cu_copy(d->stream, oq_cuda_view(y), oq_cuda_view(x));
    oq_cuda_done(d, "copy");
}

static void embed(oq_device *d, oq_tensor y, oq_tensor table, const int32_t *ids)
{
    oq_cuda_enter(d);
    oq_cu_embed(d->stream, oq_cuda_view(y), oq_cuda_view(table), ids);
    oq_cuda_done(d, "embed");
}

static void permute(oq_device *d, oq_tensor y, oq_tensor x, const int64_t dim[6], const int64_t ys[6],
                    const int64_t xs[6])
{
    oq_cuda_enter(d);
    oq_cu_permutation p;
    memcpy(p.dim, dim, sizeof p.dim);
    memcpy(p.ys, ys, sizeof p.ys);
    memcpy(p.xs, xs, sizeof p.xs);
    oq_cu_permute(d->stream, oq_cuda_view(y), oq_cuda_view(x), &p);
    oq_cuda_done(d, "permute");
}

static void upsample2x(oq_device *d, oq_tensor y, oq_tensor x, int64_t batch, int64_t h, int64_t w)
{
    oq_cuda_enter(d);
    oq_cu_upsample2x(d->stream, oq_cuda_view(y), oq_cuda_view(x), batch, h, w);
    oq_cuda_done(d, "upsample2x");
}

static int all_finite(oq_device *d, oq_tensor x)
{
    oq_cuda_enter(d);
    int flag = 1;
    oq_cuda_note(d, cudaMemcpyAsync(d->flag, &flag, sizeof flag, cudaMemcpyHostToDevice, d->stream),
                 "all_finite");
    oq_cu_all_finite(d->stream, oq_cuda_view(x), d->flag);
    oq_cuda_note(d, cudaMemcpyAsync(&flag, d->flag, sizeof flag, cudaMemcpyDeviceToHost, d->stream),
                 "all_finite");
    oq_cuda_note(d, cudaStreamSynchronize(d->stream), "all_finite");
    oq_cuda_done(d, "all_finite");
    return d->failed == cudaSuccess && flag == 1;
}

/* ---- fusions ------------------------------------------------------------------------------------------- */

static oq_cu_step_norm step_of(const oq_row_norm *n, oq_tensor as)
{
    return (oq_cu_step_norm){.kind = (int)n->kind,
                             .weight = n->weight,
                             .bias = n->bias,
                             .eps = n->eps,
                             .round_before_weight =
                                 n->kind == OQ_RMS_NORM && n->round_before_weight && oq_cuda_is_bf16(as)};
}

oq_cu_rows oq_cuda_rows_of(const oq_rows_args *a)
{
    oq_cu_rows r = {.x = oq_cuda_view(a->x),
                    .h = oq_cuda_view(a->h),
                    .r = oq_cuda_view(a->r),
                    .gate = oq_cuda_view(a->gate),
                    .scale = oq_cuda_view(a->scale),
                    .shift = oq_cuda_view(a->shift),
                    .one = a->one};
    if (a->r.rows) r.r_norm = step_of(&a->r_norm, a->r);
    if (a->h.rows) r.norm = step_of(&a->norm, a->h);
    return r;
}

static void norm_step(oq_device *d, const oq_row_norm *n, oq_tensor y, oq_tensor x)
{
    const oq_norm_args a = {.x = x,
                            .y = y,
                            .weight = n->weight,
                            .bias = n->bias,
                            .eps = n->eps,
                            .round_before_weight = n->round_before_weight};
    n->kind == OQ_RMS_NORM ? rms_norm(d, &a) : layer_norm(d, &a);
}

/* The operations one by one, as operations.c of the networks' room calls them. */
static void rows_one_by_one(oq_device *d, const oq_rows_args *a)
{
    if (a->r.rows) {
        if (a->r_norm.kind) norm_step(d, &a->r_norm, a->r, a->r);
        add_gated(d, a->x, a->x, a->gate, a->r);
    }
    if (!a->h.rows) return;
    const bool modulated = a->scale.rows || a->shift.rows;
    if (a->norm.kind) norm_step(d, &a->norm, a->h, a->x);
    if (modulated) modulate(d, a->h, a->norm.kind ? a->h : a->x, a->scale, a->shift, a->one);
}

void oq_cuda_rows(oq_device *d, const oq_rows_args *a)
{
    oq_cuda_enter(d);
    const oq_cu_rows r = oq_cuda_rows_of(a);
    if (!oq_cu_rows_fits(&r)) {
        rows_one_by_one(d, a);
        return;
    }
    oq_cu_rows_run(d->stream, &r);
    oq_cuda_done(d, "rows");
}

static void qk_norm_rope(oq_device *d, const oq_qk_args *a)
{
    oq_cuda_enter(d);
    const oq_cu_qk qk = {.q = oq_cuda_view(a->q),
                         .k = oq_cuda_view(a->k),
                         .q_weight = a->q_weight,
                         .k_weight = a->k_weight,
                         .cos = a->cos,
                         .sin = a->sin,
                         .eps = a->eps,
                         .round_before_weight = a->round_before_weight && oq_cuda_is_bf16(a->q),
                         .half = a->kind == OQ_ROPE_HALF,
                         .head_dim = a->head_dim};
    if (!oq_cu_qk_norm_rope(d->stream, &qk)) {
        oq_norm_args n = {.eps = a->eps, .group = a->head_dim, .round_before_weight = a->round_before_weight};
        oq_rope_args r = {.cos = a->cos, .sin = a->sin, .head_dim = a->head_dim, .kind = a->kind};
        for (int i = 0; i < 2; i++) {
            n.x = n.y = r.x = i == 0 ? a->q : a->k;
            n.weight = i == 0 ? a->q_weight : a->k_weight;
            r.n_heads = i == 0 ? a->n_heads : a->n_kv_heads;
            if (n.weight) rms_norm(d, &n);
            rope(d, &r);
        }
    }
    oq_cuda_done(d, "qk_norm_rope");
}

void oq_cuda_ops_init(oq_ops *out)
{
    *out = (oq_ops){.rms_norm = rms_norm,
                    .layer_norm = layer_norm,
                    .group_norm = group_norm,
                    .group_moments = group_moments,
                    .rope = rope,
                    .unary = unary,
                    .glu = glu,
                    .modulate = modulate,
                    .add_gated = add_gated,
                    .axpby = axpby,
                    .copy = copy,
                    .embed = embed,
                    .permute = permute,
                    .upsample2x = upsample2x,
                    .all_finite = all_finite,
                    .rows = oq_cuda_rows,
                    .qk_norm_rope = qk_norm_rope};
}
