/* dit_flux1_forward.c -- FLUX.1 transformer: the forward pass. Text tokens come first in the joint sequence, the picture's
 * follow. T text tokens, S picture tokens, D model width, F = 4 D. */
#include "modules/dit_flux1/dit_flux1.h"

static const double ROPE_THETA = 10000.0; /* fixed in the published class */

/* ---- condition: everything that steps share ------------------------------------------------------------ */

/* Text sits at (0, 0, 0), picture token (y, x) at (0, y, x). */
static void fill_rope(const oq_dit_flux1 *s, const oq_dit_flux1_condition *c, float *cos_out, float *sin_out)
{
    const int64_t half = s->head_dim / 2;
    for (int64_t row = 0; row < c->n_text + c->n_image; row++) {
        const int64_t i = row < c->n_text ? 0 : row - c->n_text;
        const int64_t position[OQ_DIT_FLUX1_AXES] = {0, i / c->columns, i % c->columns};
        oq_dit_rope_row(ROPE_THETA, s->axes_dims, OQ_DIT_FLUX1_AXES, position, cos_out + row * half,
                        sin_out + row * half);
    }
}

oq_status oq_dit_flux1_condition_new(oq_exec *ex, const oq_dit_flux1 *s, int64_t n_text, int64_t rows,
                                     int64_t columns, oq_dit_flux1_condition *out)
{
    oq_dit_flux1_condition c = {
        .rows = rows, .columns = columns, .n_image = rows * columns, .n_text = n_text};
    OQ_TRY(oq_tmp(ex, n_text, s->shape.dim, &c.text));
    OQ_TRY(oq_tmp(ex, 1, s->shape.dim, &c.pooled));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n_text + c.n_image, s->head_dim / 2, &c.cos));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n_text + c.n_image, s->head_dim / 2, &c.sin));
    *out = c;
    return OQ_OK;
}

oq_status oq_dit_flux1_condition_run(oq_exec *ex, const oq_dit_flux1 *s, oq_tensor text, oq_tensor pooled,
                                     const oq_dit_flux1_condition *c, const char *trace)
{
    if (!ex->measure) {
        const size_t n = (size_t)(c->cos.rows * c->cos.cols);
        float *host = NULL;
        OQ_TRY(oq_new(ex->env, 2 * n, sizeof *host, "rotary tables", &host));
        fill_rope(s, c, host, host + n);
        const oq_status st = oq_dit_rope_upload(ex, c->cos, c->sin, host);
        oq_free(ex->env, host);
        if (st != OQ_OK) return st;
    }
    OQ_TRY(oq_linear_forward(ex, &s->context_embedder, c->text, text));
    if (trace) OQ_TRY(oq_trace_put(ex, c->text, NULL, 0, "%s.context_embedder", trace));
    return oq_dit_mlp_forward(ex, &s->pooled, pooled, c->pooled);
}

/* ---- one step ------------------------------------------------------------------------------------------ */

/* u += gate * out([attention | gelu(mlp(n))]), n = LN(u) * (1 + scale) + shift */
static oq_status single_forward(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_flux1_single *l,
                                const oq_dit_call *call)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = s->shape.dim, F = s->shape.mlp_dim, n = call->u.rows;
    oq_tensor mod, h, qkv, both;
    OQ_TRY(oq_check_canceled(ex->env));
    OQ_TRY(oq_tmp(ex, 1, 3 * D, &mod));
    OQ_TRY(oq_tmp(ex, n, D, &h));
    OQ_TRY(oq_tmp(ex, n, 3 * D, &qkv));
    OQ_TRY(oq_tmp(ex, n, D + F, &both));
    OQ_TRY(oq_linear_forward(ex, &l->mod, mod, call->act));
    const oq_rows rows = {.x = call->u,
                          .norm = {.kind = OQ_LAYER_NORM, .eps = s->shape.eps},
                          .shift = oq_tensor_cols(mod, 0, D),
                          .scale = oq_tensor_cols(mod, D, D),
                          .one = 1.0f};
    const oq_post gelu = {.kind = OQ_POST_UNARY, .unary = OQ_GELU_TANH};
    const oq_post add = {.kind = OQ_POST_ADD, .residual = call->u, .gate = oq_tensor_cols(mod, 2 * D, D)};
    const oq_dit_heads heads = {.norm_q = &l->norm_q, .norm_k = &l->norm_k, .attention = &l->attention};
    const oq_pre pre = {.unary = OQ_GELU_TANH, .a = oq_tensor_cols(both, D, F), .from = D};
    const bool later = l->out.fused & OQ_FUSE_PRE; /* the activation belongs to whichever product fuses it */
    OQ_TRY(oq_rows_forward(ex, &rows, h));
    OQ_TRY(oq_linear_forward(ex, &l->qkv, qkv, h));
    OQ_TRY(oq_linear_post_forward(ex, &l->mlp, pre.a, h, later ? NULL : &gelu));
    OQ_TRY(oq_dit_heads_forward(ex, &heads, call, qkv, oq_tensor_cols(both, 0, D)));
    OQ_TRY(later ? oq_linear_pre_forward(ex, &l->out, call->u, both, &pre, &add)
                 : oq_linear_post_forward(ex, &l->out, call->u, both, &add));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* act [1, D] = silu(time(t) + guidance(g) + pooled) */
static oq_status conditioning(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_flux1_condition *c, float t,
                              float guidance, oq_tensor act, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor more;
    OQ_TRY(oq_tmp(ex, 1, s->shape.dim, &more));
    OQ_TRY(oq_dit_time_forward(ex, &s->time, t, act));
    if (s->has_guidance) {
        OQ_TRY(oq_dit_time_forward(ex, &s->guidance, guidance, more));
        OQ_TRY(oq_add_forward(ex, act, act, more));
    }
    OQ_TRY(oq_add_forward(ex, act, act, c->pooled));
    if (trace) OQ_TRY(oq_trace_put(ex, act, NULL, 0, "%s.temb", trace));
    OQ_TRY(oq_unary_forward(ex, OQ_SILU, act, act));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status blocks_forward(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_call *call,
                                const char *trace)
{
    const int64_t T = call->n_text, n = call->u.rows - T;
    for (int64_t i = 0; i < s->n_double; i++) {
        OQ_TRY(oq_dit_double_forward(ex, &s->doubles[i], call));
        if (!trace) continue;
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(call->u, T, n), NULL, 0, "%s.block%lld.img", trace,
                            (long long)i));
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(call->u, 0, T), NULL, 0, "%s.block%lld.txt", trace,
                            (long long)i));
    }
    for (int64_t i = 0; i < s->n_single; i++) {
        OQ_TRY(single_forward(ex, s, &s->singles[i], call));
        if (trace) OQ_TRY(oq_trace_put(ex, call->u, NULL, 0, "%s.single%lld", trace, (long long)i));
    }
    return OQ_OK;
}

typedef struct step_args {
    const oq_dit_flux1 *s;
    const oq_dit_flux1_condition *c;
    const oq_dit_call *call;
    oq_tensor x, y;
    const char *trace;
} step_args;

/* What every step does alike, once its conditioning is made. */
static oq_status step_forward(oq_exec *ex, void *user)
{
    const step_args *a = user;
    const oq_tensor image = oq_tensor_rows(a->call->u, a->c->n_text, a->c->n_image);
    OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(a->call->u, 0, a->c->n_text), a->c->text));
    OQ_TRY(oq_linear_forward(ex, &a->s->x_embedder, image, a->x));
    if (a->trace) OQ_TRY(oq_trace_put(ex, image, NULL, 0, "%s.x_embedder", a->trace));
    OQ_TRY(blocks_forward(ex, a->s, a->call, a->trace));
    return oq_dit_final_forward(ex, &a->s->final_mod, &a->s->proj_out, a->call, image, a->y, a->trace);
}

oq_status oq_dit_flux1_forward(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_flux1_condition *c,
                               oq_tensor x, float t, float guidance, oq_tensor y, const char *trace)
{
    if (x.rows != c->n_image || x.cols != s->in_channels || y.rows != x.rows || y.cols != s->out_channels)
        return oq_fail(ex->env, OQ_E_ARG, "transformer: latent [%lld,%lld] does not fit %lld tokens of %lld",
                       (long long)x.rows, (long long)x.cols, (long long)c->n_image,
                       (long long)s->in_channels);
    const oq_mark mark = oq_mark_get(ex);
    oq_dit_call call = {.shape = &s->shape, .n_text = c->n_text, .cos = c->cos, .sin = c->sin};
    step_args args = {.s = s, .c = c, .call = &call, .x = x, .y = y, .trace = trace};
    OQ_TRY(oq_tmp(ex, 1, s->shape.dim, &call.act));
    OQ_TRY(oq_tmp(ex, c->n_text + c->n_image, s->shape.dim, &call.u));
    OQ_TRY(conditioning(ex, s, c, t, guidance, call.act, trace));
    OQ_TRY(oq_repeat(ex, oq_repeat_key(oq_repeat_key((uintptr_t)x.data, y.data), c->text.data), step_forward,
                     &args));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
