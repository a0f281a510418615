/* dit_qwen_image_forward.c -- Qwen-Image transformer: the forward pass. Text tokens come first in the joint sequence,
 * the picture's follow; the streams have weights of their own and meet in the attention alone. T text tokens, S
 * picture tokens, D model width, d head width. */
#include "modules/dit_qwen_image/dit_qwen_image.h"

#include <math.h>
#include <stdio.h>

enum { T_FREQUENCIES = 256 };
static const float EPS = 1e-6f, T_SCALE = 1000.0f, ROPE_THETA = 10000.0f; /* fixed in the published class */

/* ---- blocks -------------------------------------------------------------------------------------------- */

typedef struct modulation { /* rows of one stream, [1, D] each */
    oq_tensor shift_attn, scale_attn, gate_attn, shift_mlp, scale_mlp, gate_mlp;
} modulation;

typedef struct half { /* one stream inside a block */
    const oq_dit_qwen_image_stream *w;
    modulation mod;
    oq_tensor x, h, qkv; /* its rows of the joint tensors */
    const char *trace;   /* "dit0.block0"; NULL: none */
    bool image;
} half;

static oq_status modulation_forward(oq_exec *ex, half *s, oq_tensor act)
{
    const int64_t D = act.cols;
    oq_tensor row;
    OQ_TRY(oq_tmp(ex, 1, 6 * D, &row));
    OQ_TRY(oq_linear_forward(ex, &s->w->mod, row, act));
    if (s->trace) OQ_TRY(oq_trace_put(ex, row, NULL, 0, "%s.%s", s->trace, s->image ? "img_mod" : "txt_mod"));
    oq_tensor *const part[] = {&s->mod.shift_attn, &s->mod.scale_attn, &s->mod.gate_attn,
                               &s->mod.shift_mlp,  &s->mod.scale_mlp,  &s->mod.gate_mlp};
    for (int i = 0; i < 6; i++) *part[i] = oq_tensor_cols(row, i * D, D);
    return OQ_OK;
}

/* y = LayerNorm(x) * (1 + scale) + shift */
static oq_status norm_modulated(oq_exec *ex, oq_tensor y, oq_tensor x, oq_tensor scale, oq_tensor shift)
{
    OQ_TRY(oq_layer_norm_forward(ex, y, x, NULL, NULL, EPS));
    return oq_modulate_forward(ex, y, y, scale, shift, 1.0f);
}

/* q, k, v of one stream; q and k normalised per head, not yet rotated */
static oq_status qkv_forward(oq_exec *ex, const oq_dit_qwen_image *s, const half *a)
{
    const int64_t D = s->dim;
    const oq_tensor q = oq_tensor_cols(a->qkv, 0, D), k = oq_tensor_cols(a->qkv, D, D);
    OQ_TRY(norm_modulated(ex, a->h, a->x, a->mod.scale_attn, a->mod.shift_attn));
    OQ_TRY(oq_linear_forward(ex, &a->w->qkv, a->qkv, a->h));
    if (a->trace && a->image) OQ_TRY(oq_trace_put(ex, q, NULL, 0, "%s.attn.to_q", a->trace));
    if (a->trace && !a->image) OQ_TRY(oq_trace_put(ex, k, NULL, 0, "%s.attn.add_k_proj", a->trace));
    OQ_TRY(oq_rms_norm_forward(ex, q, q, &a->w->norm_q, EPS, s->head_dim));
    OQ_TRY(oq_rms_norm_forward(ex, k, k, &a->w->norm_k, EPS, s->head_dim));
    if (a->trace && a->image) OQ_TRY(oq_trace_put(ex, q, NULL, 0, "%s.attn.norm_q", a->trace));
    if (a->trace && !a->image) OQ_TRY(oq_trace_put(ex, k, NULL, 0, "%s.attn.norm_added_k", a->trace));
    return OQ_OK;
}

/* x += gate * out(h), h the stream's rows of the attention */
static oq_status attention_out(oq_exec *ex, const oq_dit_qwen_image *s, const half *a)
{
    const oq_tensor r = oq_tensor_cols(a->qkv, 0, s->dim); /* spent: its place takes the projection */
    OQ_TRY(oq_linear_forward(ex, &a->w->out, r, a->h));
    if (a->trace)
        OQ_TRY(oq_trace_put(ex, r, NULL, 0, "%s.attn.%s", a->trace, a->image ? "out_img" : "out_txt"));
    return oq_add_gated_forward(ex, a->x, a->x, a->mod.gate_attn, r);
}

static oq_status mlp_forward(oq_exec *ex, const half *a)
{
    const oq_mark mark = oq_mark_get(ex);
    const char *name = a->image ? "img_mlp" : "txt_mlp";
    oq_tensor up;
    OQ_TRY(oq_tmp(ex, a->x.rows, a->w->up.spec.n, &up));
    OQ_TRY(norm_modulated(ex, a->h, a->x, a->mod.scale_mlp, a->mod.shift_mlp));
    OQ_TRY(oq_linear_forward(ex, &a->w->up, up, a->h));
    OQ_TRY(oq_unary_forward(ex, OQ_GELU_TANH, up, up));
    if (a->trace && a->image) OQ_TRY(oq_trace_put(ex, up, NULL, 0, "%s.%s.net.0", a->trace, name));
    OQ_TRY(oq_linear_forward(ex, &a->w->down, a->h, up));
    if (a->trace) OQ_TRY(oq_trace_put(ex, a->h, NULL, 0, "%s.%s", a->trace, name));
    OQ_TRY(oq_add_gated_forward(ex, a->x, a->x, a->mod.gate_mlp, a->h));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static half make_half(const oq_dit_qwen_image_stream *w, int64_t first, int64_t n, oq_tensor u, oq_tensor h,
                      const char *trace, bool image)
{
    return (half){.w = w,
                  .x = oq_tensor_rows(u, first, n),
                  .h = oq_tensor_rows(h, first, n),
                  .trace = trace,
                  .image = image};
}

static oq_status joint_attention(oq_exec *ex, const oq_dit_qwen_image *s, const oq_dit_qwen_image_block *b,
                                 const oq_dit_qwen_image_condition *c, oq_tensor h, half *text, half *image)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = s->dim;
    oq_tensor qkv;
    OQ_TRY(oq_tmp(ex, h.rows, 3 * D, &qkv));
    text->qkv = oq_tensor_rows(qkv, 0, c->n_text);
    image->qkv = oq_tensor_rows(qkv, c->n_text, c->n_image);
    OQ_TRY(qkv_forward(ex, s, image));
    OQ_TRY(qkv_forward(ex, s, text));
    const oq_tensor q = oq_tensor_cols(qkv, 0, D), k = oq_tensor_cols(qkv, D, D),
                    v = oq_tensor_cols(qkv, 2 * D, D);
    OQ_TRY(oq_rope_forward(ex, q, c->cos, c->sin, s->n_heads, s->head_dim, OQ_ROPE_INTERLEAVED));
    OQ_TRY(oq_rope_forward(ex, k, c->cos, c->sin, s->n_heads, s->head_dim, OQ_ROPE_INTERLEAVED));
    OQ_TRY(oq_attention_forward(ex, &b->attention, h, q, k, v, NULL));
    OQ_TRY(attention_out(ex, s, image));
    OQ_TRY(attention_out(ex, s, text));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* u: [T + S, D], in place; act: silu of the timestep embedding */
static oq_status block_forward(oq_exec *ex, const oq_dit_qwen_image *s, const oq_dit_qwen_image_block *b,
                               const oq_dit_qwen_image_condition *c, oq_tensor u, oq_tensor act,
                               const char *trace)
{
    OQ_TRY(oq_check_canceled(ex->env));
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor h;
    OQ_TRY(oq_tmp(ex, u.rows, s->dim, &h));
    half text = make_half(&b->text, 0, c->n_text, u, h, trace, false);
    half image = make_half(&b->image, c->n_text, c->n_image, u, h, trace, true);
    OQ_TRY(modulation_forward(ex, &image, act));
    OQ_TRY(modulation_forward(ex, &text, act));
    OQ_TRY(joint_attention(ex, s, b, c, h, &text, &image));
    OQ_TRY(mlp_forward(ex, &image));
    OQ_TRY(mlp_forward(ex, &text));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

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

/* Positions of the picture are centred: row i of n sits at i - (n - n / 2). Text token j sits at (m + j) on all axes,
 * m the larger half of the picture. */
static void fill_rope(const oq_dit_qwen_image *s, const oq_dit_qwen_image_condition *c, float *cos_out,
                      float *sin_out)
{
    const int64_t half_width = s->head_dim / 2, up = c->rows - c->rows / 2,
                  left = c->columns - c->columns / 2;
    const int64_t first = c->rows > c->columns ? c->rows / 2 : c->columns / 2;
    for (int64_t j = 0; j < c->n_text; j++) {
        const int64_t pos[] = {first + j, first + j, first + j};
        rope_row(s, pos, cos_out + j * half_width, sin_out + j * half_width);
    }
    for (int64_t i = 0; i < c->n_image; i++) {
        const int64_t pos[] = {0, i / c->columns - up, i % c->columns - left}, row = c->n_text + i;
        rope_row(s, pos, cos_out + row * half_width, sin_out + row * half_width);
    }
}

static oq_status upload_tables(oq_exec *ex, const oq_dit_qwen_image *s, const oq_dit_qwen_image_condition *c)
{
    if (ex->measure) return OQ_OK;
    const size_t n = (size_t)(c->cos.rows * c->cos.cols);
    float *host = NULL;
    OQ_TRY(oq_new(ex->env, 2 * n, sizeof *host, "rotary tables", &host));
    fill_rope(s, c, host, host + n);
    oq_status st = oq_upload(ex, c->cos, host);
    if (st == OQ_OK) st = oq_upload(ex, c->sin, host + n);
    oq_free(ex->env, host);
    return st;
}

oq_status oq_dit_qwen_image_condition_new(oq_exec *ex, const oq_dit_qwen_image *s, int64_t n_text,
                                          int64_t rows, int64_t columns, oq_dit_qwen_image_condition *out)
{
    oq_dit_qwen_image_condition c = {
        .rows = rows, .columns = columns, .n_image = rows * columns, .n_text = n_text};
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

/* act: [1, D] = silu(temb), temb = linear_2(silu(linear_1(sinusoid))) */
static oq_status timestep_forward(oq_exec *ex, const oq_dit_qwen_image *s, float t, oq_tensor act,
                                  const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor wave, x, h;
    float host[T_FREQUENCIES];
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, 1, T_FREQUENCIES, &wave));
    OQ_TRY(oq_tmp(ex, 1, T_FREQUENCIES, &x));
    OQ_TRY(oq_tmp(ex, 1, s->dim, &h));
    sinusoid(t, host);
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

/* y = proj_out(LayerNorm(x) * (1 + scale) + shift); x: [S, D], overwritten */
static oq_status final_forward(oq_exec *ex, const oq_dit_qwen_image *s, oq_tensor x, oq_tensor act,
                               oq_tensor y, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = s->dim;
    oq_tensor row;
    OQ_TRY(oq_tmp(ex, 1, 2 * D, &row));
    OQ_TRY(oq_linear_forward(ex, &s->final_mod, row, act));
    OQ_TRY(norm_modulated(ex, x, x, oq_tensor_cols(row, 0, D), oq_tensor_cols(row, D, D)));
    if (trace) OQ_TRY(oq_trace_put(ex, x, NULL, 0, "%s.norm_out", trace));
    OQ_TRY(oq_linear_forward(ex, &s->proj_out, y, x));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status blocks_forward(oq_exec *ex, const oq_dit_qwen_image *s, const oq_dit_qwen_image_condition *c,
                                oq_tensor u, oq_tensor act, const char *trace)
{
    for (int64_t i = 0; i < s->n_layers; i++) {
        char name[96];
        if (trace) snprintf(name, sizeof name, "%s.block%lld", trace, (long long)i);
        OQ_TRY(block_forward(ex, s, &s->blocks[i], c, u, act, trace && i == 0 ? name : NULL));
        if (!trace) continue;
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(u, 0, c->n_text), NULL, 0, "%s.txt", name));
        OQ_TRY(oq_trace_put(ex, oq_tensor_rows(u, c->n_text, c->n_image), NULL, 0, "%s.img", name));
    }
    return OQ_OK;
}

oq_status oq_dit_qwen_image_forward(oq_exec *ex, const oq_dit_qwen_image *s,
                                    const oq_dit_qwen_image_condition *c, oq_tensor x, float t, oq_tensor y,
                                    const char *trace)
{
    if (x.rows != c->n_image || x.cols != s->in_channels || y.rows != x.rows || y.cols != s->proj_out.spec.n)
        return oq_fail(ex->env, OQ_E_ARG,
                       "transformer: latents [%lld,%lld] to [%lld,%lld] do not fit %lld tokens of %lld",
                       (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols,
                       (long long)c->n_image, (long long)s->in_channels);
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor act, u;
    OQ_TRY(oq_tmp(ex, 1, s->dim, &act));
    OQ_TRY(oq_tmp(ex, c->n_text + c->n_image, s->dim, &u));
    OQ_TRY(timestep_forward(ex, s, t, act, trace));
    const oq_tensor image = oq_tensor_rows(u, c->n_text, c->n_image);
    OQ_TRY(oq_linear_forward(ex, &s->img_in, image, x));
    if (trace) OQ_TRY(oq_trace_put(ex, image, NULL, 0, "%s.img_in", trace));
    OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(u, 0, c->n_text), c->text));
    OQ_TRY(blocks_forward(ex, s, c, u, act, trace));
    OQ_TRY(final_forward(ex, s, image, act, y, trace));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
