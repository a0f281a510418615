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

/* Of all blocks, of the last norm. */
static int64_t n_modulations(const oq_dit_flux1 *s)
{
    return (12 * s->n_double + 3 * s->n_single + 2) * s->shape.dim;
}

/* Whether some step multiplies a modulation in a way of its own: then each step makes its own. */
static bool steps_differ(const oq_dit_flux1 *s)
{
    for (int64_t i = 0; i < s->n_double; i++)
        if (s->doubles[i].text.mod.n_steps || s->doubles[i].image.mod.n_steps) return true;
    for (int64_t i = 0; i < s->n_single; i++)
        if (s->singles[i].mod.n_steps) return true;
    return s->final_mod.n_steps > 0;
}

oq_status oq_dit_flux1_condition_new(oq_exec *ex, const oq_dit_flux1 *s, int64_t n_text, int64_t rows,
                                     int64_t columns, int64_t n_steps, oq_dit_flux1_condition *out)
{
    oq_dit_flux1_condition c = {
        .rows = rows, .columns = columns, .n_image = rows * columns, .n_text = n_text};
    const int64_t ahead = steps_differ(s) ? 1 : n_steps < OQ_DIT_FLUX1_AHEAD ? n_steps : OQ_DIT_FLUX1_AHEAD;
    OQ_TRY(oq_tmp(ex, ahead, n_modulations(s), &c.ahead));
    OQ_TRY(oq_tmp(ex, 1, n_modulations(s), &c.now));
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

/* u += gate * out([attention | gelu(mlp(n))]), n = LN(u) * (1 + scale) + shift, perhaps left to add; mod: [1, 3D] */
static oq_status single_forward(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_flux1_single *l,
                                const oq_dit_call *call, oq_tensor mod, oq_dit_residual *left)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = s->shape.dim, F = s->shape.mlp_dim, n = call->u.rows;
    oq_tensor qkv, both;
    OQ_TRY(oq_check_canceled(ex->env));
    OQ_TRY(oq_tmp(ex, n, 3 * D, &qkv));
    OQ_TRY(oq_tmp(ex, n, D + F, &both));
    const oq_rows rows = oq_dit_residual_rows(call, mod, left);
    const oq_post gelu = {.kind = OQ_POST_UNARY, .unary = OQ_GELU_TANH};
    const oq_dit_heads heads = {.norm_q = &l->norm_q, .norm_k = &l->norm_k, .attention = &l->attention};
    const oq_pre pre = {.unary = OQ_GELU_TANH, .a = oq_tensor_cols(both, D, F), .from = D};
    const bool later = l->out.fused & OQ_FUSE_PRE; /* the activation belongs to whichever product fuses it */
    OQ_TRY(oq_linear_two_rows_forward(ex, &l->qkv, qkv, &l->mlp, pre.a, later ? NULL : &gelu, &rows));
    OQ_TRY(oq_dit_heads_forward(ex, &heads, call, qkv, oq_tensor_cols(both, 0, D)));
    OQ_TRY(oq_dit_residual_product(ex, call, &l->out, both, later ? &pre : NULL,
                                   oq_tensor_cols(mod, 2 * D, D), left));
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

/* The modulations of the steps from `when` on, as many as there is room for; who observes layers sees each step's own. */
static oq_status look_ahead(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_flux1_condition *c,
                            const oq_dit_flux1_moment *when, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = s->shape.dim, rest = when->n_steps - when->step,
                  n = ex->observer           ? 1
                      : rest < c->ahead.rows ? rest
                                             : c->ahead.rows;
    const oq_tensor to = oq_tensor_rows(c->ahead, 0, n);
    int64_t at = 0;
    oq_tensor act;
    OQ_TRY(oq_tmp(ex, n, D, &act));
    for (int64_t i = 0; i < n; i++)
        OQ_TRY(conditioning(ex, s, c, when->t[when->step + i], when->guidance, oq_tensor_rows(act, i, 1),
                            i == 0 ? trace : NULL));
    for (int64_t i = 0; i < s->n_double; i++, at += 12 * D) {
        OQ_TRY(oq_linear_forward(ex, &s->doubles[i].text.mod, oq_tensor_cols(to, at, 6 * D), act));
        OQ_TRY(oq_linear_forward(ex, &s->doubles[i].image.mod, oq_tensor_cols(to, at + 6 * D, 6 * D), act));
    }
    for (int64_t i = 0; i < s->n_single; i++, at += 3 * D)
        OQ_TRY(oq_linear_forward(ex, &s->singles[i].mod, oq_tensor_cols(to, at, 3 * D), act));
    OQ_TRY(oq_linear_forward(ex, &s->final_mod, oq_tensor_cols(to, at, 2 * D), act));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status blocks_forward(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_call *call, oq_tensor mods,
                                const char *trace)
{
    const int64_t T = call->n_text, n = call->u.rows - T, D = s->shape.dim;
    const oq_mark mark = oq_mark_get(ex);
    oq_dit_residual left = {.left = false};
    for (int64_t i = 0; i < s->n_double; i++) {
        oq_dit_call of_block = *call;
        of_block.text_mod = oq_tensor_cols(mods, 12 * D * i, 6 * D);
        of_block.image_mod = oq_tensor_cols(mods, 12 * D * i + 6 * D, 6 * D);
        OQ_TRY(oq_dit_double_forward(ex, &s->doubles[i], &of_block));
        if (!trace) continue;
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(call->u, T, n), NULL, 0, "%s.block%lld.img", trace,
                            (long long)i));
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(call->u, 0, T), NULL, 0, "%s.block%lld.txt", trace,
                            (long long)i));
    }
    for (int64_t i = 0; i < s->n_single; i++)
        OQ_TRY(oq_dit_residual_room(ex, call, &s->singles[i].out, &left));
    for (int64_t i = 0; i < s->n_single; i++) {
        const oq_tensor mod = oq_tensor_cols(mods, (12 * s->n_double + 3 * i) * D, 3 * D);
        OQ_TRY(single_forward(ex, s, &s->singles[i], call, mod, &left));
        if (!trace) continue;
        OQ_TRY(oq_dit_residual_add(ex, call, &left));
        OQ_TRY(oq_trace_put(ex, call->u, NULL, 0, "%s.single%lld", trace, (long long)i));
    }
    OQ_TRY(oq_dit_residual_add(ex, call, &left));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

typedef struct step_args {
    const oq_dit_flux1 *s;
    const oq_dit_flux1_condition *c;
    const oq_dit_call *call;
    oq_tensor x, y;
    const char *trace;
} step_args;

/* What every step does alike, once its modulations are made. */
static oq_status step_forward(oq_exec *ex, void *user)
{
    const step_args *a = user;
    const oq_tensor image = oq_tensor_rows(a->call->u, a->c->n_text, a->c->n_image);
    OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(a->call->u, 0, a->c->n_text), a->c->text));
    OQ_TRY(oq_linear_forward(ex, &a->s->x_embedder, image, a->x));
    if (a->trace) OQ_TRY(oq_trace_put(ex, image, NULL, 0, "%s.x_embedder", a->trace));
    OQ_TRY(blocks_forward(ex, a->s, a->call, a->c->now, a->trace));
    return oq_dit_final_forward(ex, &a->s->final_mod, &a->s->proj_out, a->call, image, a->y, a->trace);
}

oq_status oq_dit_flux1_forward(oq_exec *ex, const oq_dit_flux1 *s, const oq_dit_flux1_condition *c,
                               oq_tensor x, const oq_dit_flux1_moment *when, oq_tensor y, const char *trace)
{
    if (x.rows != c->n_image || x.cols != s->in_channels || y.rows != x.rows || y.cols != s->out_channels)
        return oq_fail(ex->env, OQ_E_ARG, "transformer: latent [%lld,%lld] does not fit %lld tokens of %lld",
                       (long long)x.rows, (long long)x.cols, (long long)c->n_image,
                       (long long)s->in_channels);
    const oq_mark mark = oq_mark_get(ex);
    oq_dit_call call = {.shape = &s->shape, .n_text = c->n_text, .cos = c->cos, .sin = c->sin};
    step_args args = {.s = s, .c = c, .call = &call, .x = x, .y = y, .trace = trace};
    const int64_t D = s->shape.dim, at = ex->observer ? 0 : when->step % c->ahead.rows;
    call.final_mod = oq_tensor_cols(c->now, c->now.cols - 2 * D, 2 * D);
    OQ_TRY(oq_tmp(ex, c->n_text + c->n_image, D, &call.u));
    if (at == 0) OQ_TRY(look_ahead(ex, s, c, when, trace));
    OQ_TRY(oq_copy_forward(ex, c->now, oq_tensor_rows(c->ahead, at, 1)));
    OQ_TRY(oq_repeat(ex, oq_repeat_key(oq_repeat_key((uintptr_t)x.data, y.data), c->text.data), step_forward,
                     &args));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
