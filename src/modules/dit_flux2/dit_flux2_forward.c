/* dit_flux2_forward.c -- FLUX.2 transformer: the forward pass. Text tokens come first in the joint sequence, then those of
 * the picture and of its references. T text tokens, D model width, F width of the MLP. */
#include "modules/dit_flux2/dit_flux2.h"

/* ---- condition: everything that steps share ------------------------------------------------------------ */

/* Text token l sits at (0, 0, 0, l), picture token (y, x) of frame t at (t, y, x, 0). */
static void fill_rope(const oq_dit_flux2 *s, int64_t n_text, const oq_dit_flux2_grid *grids, int n_grids,
                      float *cos_out, float *sin_out)
{
    const int64_t half = s->head_dim / 2;
    int64_t row = 0;
    for (; row < n_text; row++) {
        const int64_t position[OQ_DIT_FLUX2_AXES] = {0, 0, 0, row};
        oq_dit_rope_row(s->rope_theta, s->axes_dims, OQ_DIT_FLUX2_AXES, position, cos_out + row * half,
                        sin_out + row * half);
    }
    for (int g = 0; g < n_grids; g++)
        for (int64_t i = 0; i < grids[g].rows * grids[g].columns; i++, row++) {
            const int64_t position[OQ_DIT_FLUX2_AXES] = {grids[g].t, i / grids[g].columns,
                                                         i % grids[g].columns, 0};
            oq_dit_rope_row(s->rope_theta, s->axes_dims, OQ_DIT_FLUX2_AXES, position, cos_out + row * half,
                            sin_out + row * half);
        }
}

oq_status oq_dit_flux2_condition_new(oq_exec *ex, const oq_dit_flux2 *s, int64_t n_text,
                                     const oq_dit_flux2_grid *grids, int n_grids, oq_dit_flux2_condition *out)
{
    oq_dit_flux2_condition c = {.n_text = n_text};
    for (int g = 0; g < n_grids; g++) c.n_image += grids[g].rows * grids[g].columns;
    OQ_TRY(oq_tmp(ex, n_text, s->shape.dim, &c.text));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n_text + c.n_image, s->head_dim / 2, &c.cos));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n_text + c.n_image, s->head_dim / 2, &c.sin));
    *out = c;
    return OQ_OK;
}

oq_status oq_dit_flux2_condition_run(oq_exec *ex, const oq_dit_flux2 *s, oq_tensor text,
                                     const oq_dit_flux2_grid *grids, int n_grids,
                                     const oq_dit_flux2_condition *c, const char *trace)
{
    if (!ex->measure) {
        const size_t n = (size_t)(c->cos.rows * c->cos.cols);
        float *host = NULL;
        OQ_TRY(oq_new(ex->env, 2 * n, sizeof *host, "rotary tables", &host));
        fill_rope(s, c->n_text, grids, n_grids, host, host + n);
        const oq_status st = oq_dit_rope_upload(ex, c->cos, c->sin, host);
        oq_free(ex->env, host);
        if (st != OQ_OK) return st;
    }
    OQ_TRY(oq_linear_forward(ex, &s->context_embedder, c->text, text));
    return trace ? oq_trace_put(ex, c->text, NULL, 0, "%s.context_embedder", trace) : OQ_OK;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

/* u += gate * out([attention | silu(gate) * value]) of one product of LN(u) * (1 + scale) + shift, perhaps left to add;
 * mod: [1, 3D] */
static oq_status single_forward(oq_exec *ex, const oq_dit_flux2 *s, const oq_dit_flux2_single *l,
                                const oq_dit_call *call, oq_tensor mod, oq_dit_residual *left)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = s->shape.dim, F = s->shape.mlp_dim, n = call->u.rows;
    const oq_rows rows = oq_dit_residual_rows(call, mod, left);
    const oq_dit_heads heads = {.norm_q = &l->norm_q, .norm_k = &l->norm_k, .attention = &l->attention};
    oq_tensor in, both;
    OQ_TRY(oq_check_canceled(ex->env));
    OQ_TRY(oq_tmp(ex, n, 3 * D + 2 * F, &in));
    OQ_TRY(oq_tmp(ex, n, D + F, &both));
    OQ_TRY(oq_linear_rows_forward(ex, &l->in, in, &rows, NULL));
    OQ_TRY(oq_dit_heads_forward(ex, &heads, call, oq_tensor_cols(in, 0, 3 * D), oq_tensor_cols(both, 0, D)));
    const oq_pre gated = {.unary = OQ_SILU,
                          .a = oq_tensor_cols(in, 3 * D, F),
                          .b = oq_tensor_cols(in, 3 * D + F, F),
                          .from = D};
    OQ_TRY(oq_dit_residual_product(ex, call, &l->out, both, &gated, oq_tensor_cols(mod, 2 * D, D), left));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* act [1, D] = silu(time(t) + guidance(g)) */
static oq_status conditioning(oq_exec *ex, const oq_dit_flux2 *s, float t, float guidance, oq_tensor act,
                              const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor more;
    OQ_TRY(oq_tmp(ex, 1, s->shape.dim, &more));
    OQ_TRY(oq_dit_time_forward(ex, &s->time, t, act));
    if (s->has_guidance) {
        OQ_TRY(oq_dit_time_forward(ex, &s->guidance, guidance, more));
        OQ_TRY(oq_add_forward(ex, act, act, more));
    }
    if (trace) OQ_TRY(oq_trace_put(ex, act, NULL, 0, "%s.temb", trace));
    OQ_TRY(oq_unary_forward(ex, OQ_SILU, act, act));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* The modulations of all blocks, once a step. single: [1, 3D]. */
static oq_status modulations(oq_exec *ex, const oq_dit_flux2 *s, oq_dit_call *call, oq_tensor *single,
                             const char *trace)
{
    const int64_t D = s->shape.dim;
    OQ_TRY(oq_tmp(ex, 1, 6 * D, &call->image_mod));
    OQ_TRY(oq_tmp(ex, 1, 6 * D, &call->text_mod));
    OQ_TRY(oq_tmp(ex, 1, 3 * D, single));
    OQ_TRY(oq_linear_forward(ex, &s->image_mod, call->image_mod, call->act));
    OQ_TRY(oq_linear_forward(ex, &s->text_mod, call->text_mod, call->act));
    OQ_TRY(oq_linear_forward(ex, &s->single_mod, *single, call->act));
    if (!trace) return OQ_OK;
    OQ_TRY(oq_trace_put(ex, call->image_mod, NULL, 0, "%s.double_stream_modulation_img", trace));
    OQ_TRY(oq_trace_put(ex, call->text_mod, NULL, 0, "%s.double_stream_modulation_txt", trace));
    return oq_trace_put(ex, *single, NULL, 0, "%s.single_stream_modulation", trace);
}

static oq_status blocks_forward(oq_exec *ex, const oq_dit_flux2 *s, const oq_dit_call *call, oq_tensor single,
                                const char *trace)
{
    const int64_t T = call->n_text, n = call->u.rows - T;
    const oq_mark mark = oq_mark_get(ex);
    oq_dit_residual left = {.left = false};
    for (int64_t i = 0; i < s->n_double; i++) {
        OQ_TRY(oq_dit_double_forward(ex, &s->doubles[i], call));
        if (!trace) continue;
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(call->u, T, n), NULL, 0, "%s.block%lld.img", trace,
                            (long long)i));
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(call->u, 0, T), NULL, 0, "%s.block%lld.txt", trace,
                            (long long)i));
    }
    for (int64_t i = 0; i < s->n_single; i++)
        OQ_TRY(oq_dit_residual_room(ex, call, &s->singles[i].out, &left));
    for (int64_t i = 0; i < s->n_single; i++) {
        OQ_TRY(single_forward(ex, s, &s->singles[i], call, single, &left));
        if (!trace) continue;
        OQ_TRY(oq_dit_residual_add(ex, call, &left));
        OQ_TRY(oq_trace_put(ex, call->u, NULL, 0, "%s.single%lld", trace, (long long)i));
    }
    OQ_TRY(oq_dit_residual_add(ex, call, &left));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

typedef struct step_args {
    const oq_dit_flux2 *s;
    const oq_dit_flux2_condition *c;
    const oq_dit_call *call;
    oq_tensor x, y;
    const char *trace;
} step_args;

/* What every step does alike, once its conditioning is made. */
static oq_status step_forward(oq_exec *ex, void *user)
{
    const step_args *a = user;
    const oq_mark mark = oq_mark_get(ex);
    oq_dit_call call = *a->call;
    oq_tensor single;
    const oq_tensor image = oq_tensor_rows(call.u, a->c->n_text, a->c->n_image);
    OQ_TRY(modulations(ex, a->s, &call, &single, a->trace));
    OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(call.u, 0, a->c->n_text), a->c->text));
    OQ_TRY(oq_linear_forward(ex, &a->s->x_embedder, image, a->x));
    if (a->trace) OQ_TRY(oq_trace_put(ex, image, NULL, 0, "%s.x_embedder", a->trace));
    OQ_TRY(blocks_forward(ex, a->s, &call, single, a->trace));
    OQ_TRY(oq_dit_final_forward(ex, &a->s->final_mod, &a->s->proj_out, &call,
                                oq_tensor_rows(image, 0, a->y.rows), a->y, a->trace));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

oq_status oq_dit_flux2_forward(oq_exec *ex, const oq_dit_flux2 *s, const oq_dit_flux2_condition *c,
                               oq_tensor x, float t, float guidance, oq_tensor y, const char *trace)
{
    if (x.rows != c->n_image || x.cols != s->in_channels || y.rows > x.rows || y.cols != s->out_channels)
        return oq_fail(ex->env, OQ_E_ARG, "transformer: latent [%lld,%lld] does not fit %lld tokens of %lld",
                       (long long)x.rows, (long long)x.cols, (long long)c->n_image,
                       (long long)s->in_channels);
    const oq_mark mark = oq_mark_get(ex);
    oq_dit_call call = {.shape = &s->shape, .n_text = c->n_text, .cos = c->cos, .sin = c->sin};
    step_args args = {.s = s, .c = c, .call = &call, .x = x, .y = y, .trace = trace};
    OQ_TRY(oq_tmp(ex, 1, s->shape.dim, &call.act));
    OQ_TRY(oq_tmp(ex, c->n_text + c->n_image, s->shape.dim, &call.u));
    OQ_TRY(conditioning(ex, s, t, guidance, call.act, trace));
    OQ_TRY(oq_repeat(ex, oq_repeat_key(oq_repeat_key((uintptr_t)x.data, y.data), c->text.data), step_forward,
                     &args));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
