/* operations.c -- forward of everything without weights of its own: shape checks, then the backend's table.
 */
#include "nn/nn.h"

/* The operation's member of the table, or "unsupported" with its name; then nothing more in measure mode. */
#define REQUIRE(ex, member)                                                                                  \
    do {                                                                                                     \
        if (!(ex)->ops->member)                                                                              \
            return oq_fail((ex)->env, OQ_E_UNSUPPORTED, "backend '%s' has no operation '" #member "'",       \
                           (ex)->backend->name);                                                             \
        if ((ex)->measure) return OQ_OK;                                                                     \
    } while (0)

static oq_status misfit(oq_exec *ex, const char *op, oq_tensor y, oq_tensor x)
{
    return oq_fail(ex->env, OQ_E_ARG, "operation '%s': [%lld,%lld] does not fit [%lld,%lld]", op,
                   (long long)y.rows, (long long)y.cols, (long long)x.rows, (long long)x.cols);
}

static bool same_shape(oq_tensor a, oq_tensor b)
{
    return a.rows == b.rows && a.cols == b.cols;
}

/* An optional operand: absent, one row for all, or a row each. */
static bool broadcasts(oq_tensor v, oq_tensor x)
{
    return v.rows == 0 || (v.cols == x.cols && (v.rows == 1 || v.rows == x.rows));
}

oq_status oq_rms_norm_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *weight, float eps,
                              int64_t group)
{
    const int64_t width = group ? group : x.cols;
    if (!same_shape(y, x) || (weight && weight->n != width) || (group && x.cols % group))
        return misfit(ex, "rms_norm", y, x);
    REQUIRE(ex, rms_norm);
    ex->ops->rms_norm(ex->device, &(oq_norm_args){.x = x,
                                                  .y = y,
                                                  .weight = weight ? weight->data : NULL,
                                                  .eps = eps,
                                                  .group = group,
                                                  .round_before_weight = y.dtype != &oq_dtype_f32});
    return OQ_OK;
}

oq_status oq_layer_norm_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *weight,
                                const oq_vector *bias, float eps)
{
    if (!same_shape(y, x) || (weight && weight->n != x.cols) || (bias && bias->n != x.cols))
        return misfit(ex, "layer_norm", y, x);
    REQUIRE(ex, layer_norm);
    ex->ops->layer_norm(ex->device, &(oq_norm_args){.x = x,
                                                    .y = y,
                                                    .weight = weight ? weight->data : NULL,
                                                    .bias = bias ? bias->data : NULL,
                                                    .eps = eps});
    return OQ_OK;
}

oq_status oq_group_norm_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *weight,
                                const oq_vector *bias, float eps, int64_t n_groups, int64_t batch, bool silu)
{
    if (!same_shape(y, x) || n_groups < 1 || x.cols % n_groups || batch < 1 || x.rows % batch ||
        (weight && weight->n != x.cols) || (bias && bias->n != x.cols))
        return misfit(ex, "group_norm", y, x);
    REQUIRE(ex, group_norm);
    ex->ops->group_norm(ex->device, &(oq_norm_args){.x = x,
                                                    .y = y,
                                                    .weight = weight ? weight->data : NULL,
                                                    .bias = bias ? bias->data : NULL,
                                                    .eps = eps,
                                                    .group = n_groups,
                                                    .batch = batch,
                                                    .silu = silu});
    return OQ_OK;
}

oq_status oq_group_moments_new(oq_exec *ex, int64_t n_groups, int64_t n_pieces, oq_group_moments *out)
{
    *out = (oq_group_moments){.n_groups = n_groups};
    return oq_tmp_typed(ex, &oq_dtype_f64, n_pieces, 3 * n_groups, &out->slots);
}

oq_status oq_group_moments_add(oq_exec *ex, oq_group_moments *m, oq_tensor x)
{
    if (m->n == m->slots.rows || x.cols % m->n_groups || x.rows < 1)
        return misfit(ex, "group_moments", m->slots, x);
    const oq_tensor slot = oq_tensor_rows(m->slots, m->n++, 1);
    REQUIRE(ex, group_moments);
    ex->ops->group_moments(ex->device, x, m->n_groups, slot.data);
    return OQ_OK;
}

oq_status oq_group_norm_rows_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *weight,
                                     const oq_vector *bias, float eps, const oq_group_moments *m, bool silu)
{
    if (!same_shape(y, x) || x.cols % m->n_groups || m->n < 1 || (weight && weight->n != x.cols) ||
        (bias && bias->n != x.cols))
        return misfit(ex, "group_norm", y, x);
    REQUIRE(ex, group_norm);
    ex->ops->group_norm(ex->device, &(oq_norm_args){.x = x,
                                                    .y = y,
                                                    .weight = weight ? weight->data : NULL,
                                                    .bias = bias ? bias->data : NULL,
                                                    .eps = eps,
                                                    .group = m->n_groups,
                                                    .batch = 1,
                                                    .silu = silu,
                                                    .moments = m->slots.data,
                                                    .n_moments = m->n});
    return OQ_OK;
}

oq_status oq_rope_forward(oq_exec *ex, oq_tensor x, oq_tensor cos, oq_tensor sin, int64_t n_heads,
                          int64_t head_dim, oq_rope_kind kind)
{
    if (x.cols != n_heads * head_dim || cos.rows != x.rows || cos.cols * 2 != head_dim ||
        !same_shape(cos, sin) || cos.dtype != &oq_dtype_f32 || sin.dtype != &oq_dtype_f32 ||
        cos.ld != cos.cols || sin.ld != sin.cols)
        return misfit(ex, "rope", cos, x);
    REQUIRE(ex, rope);
    ex->ops->rope(ex->device, &(oq_rope_args){.x = x,
                                              .cos = cos.data,
                                              .sin = sin.data,
                                              .n_heads = n_heads,
                                              .head_dim = head_dim,
                                              .kind = kind});
    return OQ_OK;
}

oq_status oq_unary_forward(oq_exec *ex, oq_unary kind, oq_tensor y, oq_tensor x)
{
    if (!same_shape(y, x)) return misfit(ex, "unary", y, x);
    REQUIRE(ex, unary);
    ex->ops->unary(ex->device, kind, y, x);
    return OQ_OK;
}

oq_status oq_glu_forward(oq_exec *ex, oq_unary kind, oq_tensor y, oq_tensor a, oq_tensor b)
{
    if (!same_shape(y, a) || !same_shape(y, b)) return misfit(ex, "glu", y, a);
    REQUIRE(ex, glu);
    ex->ops->glu(ex->device, kind, y, a, b);
    return OQ_OK;
}

oq_status oq_modulate_forward(oq_exec *ex, oq_tensor y, oq_tensor x, oq_tensor scale, oq_tensor shift,
                              float one)
{
    if (!same_shape(y, x) || !broadcasts(scale, x) || !broadcasts(shift, x))
        return misfit(ex, "modulate", scale, x);
    REQUIRE(ex, modulate);
    ex->ops->modulate(ex->device, y, x, scale, shift, one);
    return OQ_OK;
}

oq_status oq_add_gated_forward(oq_exec *ex, oq_tensor y, oq_tensor x, oq_tensor gate, oq_tensor r)
{
    if (!same_shape(y, x) || !same_shape(y, r) || !broadcasts(gate, x)) return misfit(ex, "add_gated", r, x);
    REQUIRE(ex, add_gated);
    ex->ops->add_gated(ex->device, y, x, gate, r);
    return OQ_OK;
}

oq_status oq_add_forward(oq_exec *ex, oq_tensor y, oq_tensor x, oq_tensor r)
{
    return oq_add_gated_forward(ex, y, x, oq_absent(), r);
}

oq_status oq_axpby_forward(oq_exec *ex, oq_tensor y, float a, oq_tensor x, float b)
{
    if (!same_shape(y, x)) return misfit(ex, "axpby", y, x);
    REQUIRE(ex, axpby);
    ex->ops->axpby(ex->device, y, a, x, b);
    return OQ_OK;
}

oq_status oq_copy_forward(oq_exec *ex, oq_tensor y, oq_tensor x)
{
    if (!same_shape(y, x)) return misfit(ex, "copy", y, x);
    REQUIRE(ex, copy);
    ex->ops->copy(ex->device, y, x);
    return OQ_OK;
}

oq_status oq_embed_forward(oq_exec *ex, oq_tensor y, const oq_table *table, oq_tensor ids)
{
    if (y.cols != table->cols || ids.rows != y.rows || ids.cols != 1 || ids.dtype != &oq_dtype_i32)
        return misfit(ex, "embed", y, ids);
    REQUIRE(ex, embed);
    ex->ops->embed(ex->device, y, table->tensor, ids.data);
    return OQ_OK;
}

oq_status oq_permute_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const int64_t dim[6], const int64_t ys[6],
                             const int64_t xs[6])
{
    REQUIRE(ex, permute);
    ex->ops->permute(ex->device, y, x, dim, ys, xs);
    return OQ_OK;
}

oq_status oq_upsample2x_forward(oq_exec *ex, oq_tensor y, oq_tensor x, int64_t batch, int64_t h, int64_t w)
{
    if (x.cols != y.cols || x.rows != batch * h * w || y.rows != 4 * x.rows)
        return misfit(ex, "upsample2x", y, x);
    REQUIRE(ex, upsample2x);
    ex->ops->upsample2x(ex->device, y, x, batch, h, w);
    return OQ_OK;
}

oq_tensor oq_vector_tensor(const oq_vector *v)
{
    return oq_tensor_make((void *)(uintptr_t)v->data, &oq_dtype_f32, 1, v->n);
}

/* ---- fusions: one call where the backend has it, else the operations they consist of ------------------- */

static oq_row_norm row_norm_of(const oq_norm_step *n, oq_tensor y)
{
    return (oq_row_norm){.kind = n->kind,
                         .weight = n->weight ? n->weight->data : NULL,
                         .bias = n->bias ? n->bias->data : NULL,
                         .eps = n->eps,
                         .round_before_weight = n->kind == OQ_RMS_NORM && y.dtype != &oq_dtype_f32};
}

oq_rows_args oq_rows_args_of(const oq_rows *rows, oq_tensor h)
{
    return (oq_rows_args){.x = rows->x,
                          .h = h,
                          .r = rows->r,
                          .gate = rows->gate,
                          .r_norm = row_norm_of(&rows->r_norm, rows->r),
                          .norm = row_norm_of(&rows->norm, h.rows ? h : rows->x),
                          .scale = rows->scale,
                          .shift = rows->shift,
                          .one = rows->one};
}

static oq_status norm_step(oq_exec *ex, const oq_norm_step *n, oq_tensor y, oq_tensor x)
{
    if (n->kind == OQ_RMS_NORM) return oq_rms_norm_forward(ex, y, x, n->weight, n->eps, 0);
    return oq_layer_norm_forward(ex, y, x, n->weight, n->bias, n->eps);
}

static oq_status rows_one_by_one(oq_exec *ex, const oq_rows *rows, oq_tensor h)
{
    if (rows->r.rows) {
        if (rows->r_norm.kind) OQ_TRY(norm_step(ex, &rows->r_norm, rows->r, rows->r));
        OQ_TRY(oq_add_gated_forward(ex, rows->x, rows->x, rows->gate, rows->r));
    }
    if (h.rows == 0) return OQ_OK;
    const bool modulated = rows->scale.rows || rows->shift.rows;
    if (rows->norm.kind) OQ_TRY(norm_step(ex, &rows->norm, h, rows->x));
    if (!modulated) return OQ_OK;
    return oq_modulate_forward(ex, h, rows->norm.kind ? h : rows->x, rows->scale, rows->shift, rows->one);
}

oq_status oq_rows_forward(oq_exec *ex, const oq_rows *rows, oq_tensor h)
{
    if (h.rows && !rows->norm.kind && !rows->scale.rows && !rows->shift.rows)
        return oq_fail(ex->env, OQ_E_ARG,
                       "operation 'rows': neither a norm nor a modulation leads to its result");
    if (ex->measure || !ex->ops->rows || rows->x.rows == 0) return rows_one_by_one(ex, rows, h);
    const oq_rows_args args = oq_rows_args_of(rows, h);
    ex->ops->rows(ex->device, &args);
    return OQ_OK;
}

oq_status oq_qk_norm_rope_forward(oq_exec *ex, oq_tensor q, oq_tensor k, const oq_qk_step *s)
{
    if (ex->measure || !ex->ops->qk_norm_rope || q.rows == 0) {
        if (s->norm_q) {
            OQ_TRY(oq_rms_norm_forward(ex, q, q, s->norm_q, s->eps, s->head_dim));
            OQ_TRY(oq_rms_norm_forward(ex, k, k, s->norm_k, s->eps, s->head_dim));
        }
        OQ_TRY(oq_rope_forward(ex, q, s->cos, s->sin, s->n_heads, s->head_dim, s->kind));
        return oq_rope_forward(ex, k, s->cos, s->sin, s->n_kv_heads, s->head_dim, s->kind);
    }
    ex->ops->qk_norm_rope(ex->device, &(oq_qk_args){.q = q,
                                                    .k = k,
                                                    .q_weight = s->norm_q ? s->norm_q->data : NULL,
                                                    .k_weight = s->norm_k ? s->norm_k->data : NULL,
                                                    .eps = s->eps,
                                                    .round_before_weight = q.dtype != &oq_dtype_f32,
                                                    .cos = s->cos.data,
                                                    .sin = s->sin.data,
                                                    .n_heads = s->n_heads,
                                                    .n_kv_heads = s->n_kv_heads,
                                                    .head_dim = s->head_dim,
                                                    .kind = s->kind});
    return OQ_OK;
}
