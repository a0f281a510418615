/* dit_qwen_image_forward.c -- Qwen-Image transformer: the forward pass. Text tokens come first in the joint sequence,
 * the picture's follow; the streams have weights of their own and meet in the attention alone. T text tokens, S
 * picture tokens, D model width, d head width. */
#include "modules/dit_qwen_image/dit_qwen_image.h"

#include <math.h>
#include <stdio.h>

enum { T_FREQUENCIES = 256 };
static const float EPS = 1e-6f, T_SCALE = 1000.0f, ROPE_THETA = 10000.0f; /* fixed in the published class */

/* ---- condition: everything that steps share ------------------------------------------------------------ */

/* Frequencies, angles, cos and sin in float32, as the original's table has them. */
static void rope_row(const oq_dit_qwen_image *s, const int64_t pos[OQ_DIT_QWEN_IMAGE_AXES], float *cos_row,
                     float *sin_row)
{
    int64_t at = 0;
    for (int axis = 0; axis < OQ_DIT_QWEN_IMAGE_AXES; axis++)
        for (int64_t i = 0; i < s->axes_dims[axis]; i += 2, at++) {
            const float exponent = (float)i / (float)s->axes_dims[axis];
            const float frequency = 1.0f / (float)pow((double)ROPE_THETA, (double)exponent);
            const double angle = (double)((float)pos[axis] * frequency);
            cos_row[at] = (float)cos(angle);
            sin_row[at] = (float)sin(angle);
        }
}

/* Positions of a picture are centred: row i of n sits at i - (n - n / 2); picture k is frame k. Text token j sits at (m + j)
 * on all axes, m the largest half of any picture. */
static void fill_rope(const oq_dit_qwen_image *s, const oq_dit_qwen_image_condition *c, float *cos_out,
                      float *sin_out)
{
    const int64_t half_width = s->head_dim / 2;
    int64_t first = 0, row = 0;
    for (int k = 0; k < c->n_grids; k++) {
        const oq_dit_qwen_image_grid *g = &c->grids[k];
        const int64_t larger = g->rows > g->columns ? g->rows / 2 : g->columns / 2;
        first = larger > first ? larger : first;
    }
    for (; row < c->n_text; row++) {
        const int64_t pos[] = {first + row, first + row, first + row};
        rope_row(s, pos, cos_out + row * half_width, sin_out + row * half_width);
    }
    for (int k = 0; k < c->n_grids; k++) {
        const oq_dit_qwen_image_grid *g = &c->grids[k];
        for (int64_t i = 0; i < g->rows * g->columns; i++, row++) {
            const int64_t pos[] = {k, i / g->columns - (g->rows - g->rows / 2),
                                   i % g->columns - (g->columns - g->columns / 2)};
            rope_row(s, pos, cos_out + row * half_width, sin_out + row * half_width);
        }
    }
}

static oq_status upload_tables(oq_exec *ex, const oq_dit_qwen_image *s, const oq_dit_qwen_image_condition *c)
{
    if (ex->measure) return OQ_OK;
    const size_t n = (size_t)(c->cos.rows * c->cos.cols);
    float *host = NULL;
    OQ_TRY(oq_new(ex->env, 2 * n, sizeof *host, "rotary tables", &host));
    fill_rope(s, c, host, host + n);
    const oq_status st = oq_dit_rope_upload(ex, c->cos, c->sin, host);
    oq_free(ex->env, host);
    return st;
}

oq_status oq_dit_qwen_image_condition_new(oq_exec *ex, const oq_dit_qwen_image *s, int64_t n_text,
                                          const oq_dit_qwen_image_grid *grids, int n_grids,
                                          oq_dit_qwen_image_condition *out)
{
    oq_dit_qwen_image_condition c = {.grids = grids, .n_grids = n_grids, .n_text = n_text};
    for (int k = 0; k < n_grids; k++) c.n_image += grids[k].rows * grids[k].columns;
    OQ_TRY(oq_tmp(ex, n_text, s->dim, &c.text));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n_text + c.n_image, s->head_dim / 2, &c.cos));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n_text + c.n_image, s->head_dim / 2, &c.sin));
    *out = c;
    return OQ_OK;
}

oq_status oq_dit_qwen_image_condition_run(oq_exec *ex, const oq_dit_qwen_image *s, oq_tensor text,
                                          const oq_dit_qwen_image_condition *c, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor h;
    OQ_TRY(upload_tables(ex, s, c));
    OQ_TRY(oq_tmp(ex, c->n_text, s->text_dim, &h));
    OQ_TRY(oq_rms_norm_forward(ex, h, text, &s->txt_norm, EPS, 0));
    if (trace) OQ_TRY(oq_trace_put(ex, h, NULL, 0, "%s.txt_norm", trace));
    OQ_TRY(oq_linear_forward(ex, &s->txt_in, c->text, h));
    if (trace) OQ_TRY(oq_trace_put(ex, c->text, NULL, 0, "%s.txt_in", trace));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

/* cos | sin of 1000 t * 10000^(-i/128); see docs/numerics.md for the exponential. */
static void sinusoid(float t, float out[T_FREQUENCIES])
{
    enum { HALF = T_FREQUENCIES / 2 };
    for (int i = 0; i < HALF; i++) {
        const float exponent = -9.210340371976184f * (float)i / (float)HALF;
        const float angle = T_SCALE * (t * (float)exp((double)exponent));
        out[i] = (float)cos((double)angle);
        out[HALF + i] = (float)sin((double)angle);
    }
}

/* act: [1, D] = silu(temb), temb = linear_2(silu(linear_1(sinusoid))); a second row of act is that of timestep 0 */
static oq_status timestep_forward(oq_exec *ex, const oq_dit_qwen_image *s, float t, oq_tensor act,
                                  const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor wave, x, h;
    float host[2 * T_FREQUENCIES];
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, act.rows, T_FREQUENCIES, &wave));
    OQ_TRY(oq_tmp(ex, act.rows, T_FREQUENCIES, &x));
    OQ_TRY(oq_tmp(ex, act.rows, s->dim, &h));
    sinusoid(t, host);
    sinusoid(0, host + T_FREQUENCIES);
    OQ_TRY(oq_upload(ex, wave, host));
    if (trace) OQ_TRY(oq_trace_put(ex, wave, NULL, 0, "%s.time_proj", trace));
    OQ_TRY(oq_copy_forward(ex, x, wave));
    OQ_TRY(oq_linear_forward(ex, &s->t1, h, x));
    if (trace) OQ_TRY(oq_trace_put(ex, h, NULL, 0, "%s.temb_linear_1", trace));
    OQ_TRY(oq_unary_forward(ex, OQ_SILU, h, h));
    OQ_TRY(oq_linear_forward(ex, &s->t2, act, h));
    if (trace) OQ_TRY(oq_trace_put(ex, act, NULL, 0, "%s.temb", trace));
    OQ_TRY(oq_unary_forward(ex, OQ_SILU, act, act));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status blocks_forward(oq_exec *ex, const oq_dit_qwen_image *s, oq_dit_call *call, const char *trace)
{
    const int64_t T = call->n_text, n = call->u.rows - T;
    for (int64_t i = 0; i < s->n_layers; i++) {
        char name[96];
        if (trace) snprintf(name, sizeof name, "%s.block%lld", trace, (long long)i);
        call->trace = trace && i == 0 ? name : NULL;
        OQ_TRY(oq_dit_double_forward(ex, &s->blocks[i], call));
        if (!trace) continue;
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(call->u, 0, T), NULL, 0, "%s.txt", name));
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(call->u, T, n), NULL, 0, "%s.img", name));
    }
    call->trace = NULL;
    return OQ_OK;
}

typedef struct step_args {
    const oq_dit_qwen_image *s;
    const oq_dit_qwen_image_condition *c;
    oq_dit_call *call;
    oq_tensor x, y;
    const char *trace;
} step_args;

/* What every step does alike, once its conditioning is made. */
static oq_status step_forward(oq_exec *ex, void *user)
{
    const step_args *a = user;
    const oq_dit_qwen_image_condition *c = a->c;
    const oq_tensor image = oq_tensor_rows(a->call->u, c->n_text, c->n_image);
    OQ_TRY(oq_linear_forward(ex, &a->s->img_in, image, a->x));
    if (a->trace) OQ_TRY(oq_trace_put(ex, image, NULL, 0, "%s.img_in", a->trace));
    OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(a->call->u, 0, c->n_text), c->text));
    OQ_TRY(blocks_forward(ex, a->s, a->call, a->trace));
    return oq_dit_final_forward(ex, &a->s->final_mod, &a->s->proj_out, a->call,
                                oq_tensor_rows(image, 0, a->y.rows), a->y, a->trace);
}

oq_status oq_dit_qwen_image_forward(oq_exec *ex, const oq_dit_qwen_image *s,
                                    const oq_dit_qwen_image_condition *c, oq_tensor x, float t, oq_tensor y,
                                    const char *trace)
{
    const int64_t n_made = c->grids[0].rows * c->grids[0].columns;
    if (x.rows != c->n_image || x.cols != s->in_channels || y.rows != n_made || y.cols != s->proj_out.spec.n)
        return oq_fail(ex->env, OQ_E_ARG,
                       "transformer: latents [%lld,%lld] to [%lld,%lld] do not fit %lld tokens of %lld, %lld "
                       "of them made",
                       (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols,
                       (long long)c->n_image, (long long)s->in_channels, (long long)n_made);
    const oq_mark mark = oq_mark_get(ex);
    oq_dit_call call = {.shape = &s->shape,
                        .n_text = c->n_text,
                        .cos = c->cos,
                        .sin = c->sin,
                        .n_rest = s->zero_cond_t ? c->n_image - n_made : 0};
    step_args args = {.s = s, .c = c, .call = &call, .x = x, .y = y, .trace = trace};
    OQ_TRY(oq_tmp(ex, call.n_rest ? 2 : 1, s->dim, &call.act));
    OQ_TRY(oq_tmp(ex, c->n_text + c->n_image, s->dim, &call.u));
    OQ_TRY(timestep_forward(ex, s, t, call.act, trace));
    OQ_TRY(oq_repeat(ex, oq_repeat_key(oq_repeat_key((uintptr_t)x.data, y.data), c->text.data), step_forward,
                     &args));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
