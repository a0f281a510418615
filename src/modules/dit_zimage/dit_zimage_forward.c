/* dit_zimage_forward.c -- Z-Image transformer: the forward pass. S tokens, D model width, d head width.
 * Image tokens come first in the joint sequence, then the caption; both are padded to a multiple of 32 with
 * learned pad tokens that everybody attends to. Every operation rounds to the compute type where diffusers
 * rounds. */
#include "modules/dit_zimage/dit_zimage.h"

#include "modules/dit_parts.h"

#include <math.h>
#include <stdio.h>

enum { SEQ_MULTIPLE = 32, T_FREQUENCIES = 256 };
static const float QK_EPS = 1e-5f, FINAL_EPS = 1e-6f; /* fixed in the published class */

static int64_t padded(int64_t n)
{
    return (n + SEQ_MULTIPLE - 1) / SEQ_MULTIPLE * SEQ_MULTIPLE;
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/* The four rows of a block's modulation; rows 0 (absent) where the block has none. */
typedef struct modulation {
    oq_tensor scale_attn, gate_attn, scale_ffn, gate_ffn;
} modulation;

typedef struct block_args {
    oq_tensor x;        /* [S, D], in place */
    oq_tensor cos, sin; /* [S, d/2] */
    modulation m;
    const char *trace; /* prefix of this block's inner keys; NULL: none */
} block_args;

/* What a block leaves for the next one to add: x += gate * RMS(o), in the pass that makes its first product's input. */
typedef struct residual {
    oq_tensor o, gate;     /* [S, D]; rows 0: no gate */
    const oq_vector *norm; /* NULL: nothing is left */
} residual;

/* Columns of one block's modulation, for one step or several. */
static modulation modulation_of(oq_tensor rows)
{
    const int64_t D = rows.cols / 4;
    return (modulation){oq_tensor_cols(rows, 0, D), oq_tensor_cols(rows, D, D),
                        oq_tensor_cols(rows, 2 * D, D), oq_tensor_cols(rows, 3 * D, D)};
}

static oq_norm_step rms(const oq_vector *weight, double eps)
{
    return (oq_norm_step){.kind = OQ_RMS_NORM, .weight = weight, .eps = (float)eps};
}

/* the rows' first steps: x gets what is left to add */
static oq_rows rows_after(const oq_dit_zimage *s, oq_tensor x, const residual *left)
{
    if (!left->norm) return (oq_rows){.x = x};
    return (oq_rows){.x = x, .r = left->o, .gate = left->gate, .r_norm = rms(left->norm, s->eps)};
}

/* left.o: [S, D] = Attn(RMS(x) * scale), once x has what is left */
static oq_status attention_forward(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_block *b,
                                   const block_args *a, const residual *left)
{
    const int64_t D = s->dim, S = a->x.rows;
    const oq_tensor o = left->o;
    oq_rows rows = rows_after(s, a->x, left);
    rows.norm = rms(&b->attention_norm1, s->eps), rows.scale = a->m.scale_attn;
    oq_tensor qkv, h;
    OQ_TRY(oq_tmp(ex, S, 3 * D, &qkv));
    const oq_tensor q = oq_tensor_cols(qkv, 0, D), k = oq_tensor_cols(qkv, D, D),
                    v = oq_tensor_cols(qkv, 2 * D, D);
    OQ_TRY(oq_linear_rows_forward(ex, &b->qkv, qkv, &rows, NULL));
    if (a->trace) OQ_TRY(oq_trace_put(ex, q, NULL, 0, "%s.attention.to_q", a->trace));
    const oq_qk_step qk = {.norm_q = s->qk_norm ? &b->norm_q : NULL,
                           .norm_k = s->qk_norm ? &b->norm_k : NULL,
                           .eps = QK_EPS,
                           .cos = a->cos,
                           .sin = a->sin,
                           .n_heads = s->n_heads,
                           .n_kv_heads = s->n_heads,
                           .head_dim = s->head_dim,
                           .kind = OQ_ROPE_INTERLEAVED};
    OQ_TRY(oq_qk_norm_rope_forward(ex, q, k, &qk));
    OQ_TRY(oq_tmp(ex, S, D, &h));
    OQ_TRY(oq_attention_forward(ex, &b->attention, h, q, k, v, NULL));
    OQ_TRY(oq_linear_forward(ex, &b->out, o, h));
    return a->trace ? oq_trace_put(ex, o, NULL, 0, "%s.attention", a->trace) : OQ_OK;
}

/* x += gate * RMS(o), then o = w2(silu(w1 h) * w3 h), h = RMS(x) * scale */
static oq_status ffn_forward(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_block *b,
                             const block_args *a, oq_tensor o)
{
    const oq_rows rows = {.x = a->x,
                          .r = o,
                          .gate = a->m.gate_attn,
                          .r_norm = rms(&b->attention_norm2, s->eps),
                          .norm = rms(&b->ffn_norm1, s->eps),
                          .scale = a->m.scale_ffn};
    const oq_post gated = {.kind = OQ_POST_GLU, .unary = OQ_SILU};
    const oq_pair pair = {.first = &b->w13, .second = &b->w2, .rows = &rows, .act = &gated};
    OQ_TRY(oq_pair_forward(ex, &pair, o));
    return a->trace ? oq_trace_put(ex, o, NULL, 0, "%s.feed_forward", a->trace) : OQ_OK;
}

/* x += gate_attn * RMS(Attn(RMS(x) * scale_attn)); x += gate_ffn * RMS(FFN(RMS(x) * scale_ffn)), the latter left to add */
static oq_status block_forward(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_block *b,
                               const block_args *a, residual *left)
{
    OQ_TRY(oq_check_canceled(ex->env));
    const oq_mark mark = oq_mark_get(ex);
    OQ_TRY(attention_forward(ex, s, b, a, left));
    oq_mark_reset(ex, mark);
    OQ_TRY(ffn_forward(ex, s, b, a, left->o));
    left->gate = a->m.gate_ffn, left->norm = &b->ffn_norm2;
    return OQ_OK;
}

static oq_status add_residual(oq_exec *ex, const oq_dit_zimage *s, oq_tensor x, residual *left)
{
    if (!left->norm) return OQ_OK;
    const oq_rows rows = rows_after(s, x, left);
    left->norm = NULL;
    return oq_rows_forward(ex, &rows, oq_absent());
}

/* ---- condition: everything that steps share ------------------------------------------------------------ */

/* Angle in double, rounded to float32, then cos and sin: the original's order. pos: one position per axis. */
static void rope_row(const oq_dit_zimage *s, const int64_t pos[OQ_DIT_ZIMAGE_AXES], float *cos_row,
                     float *sin_row)
{
    int64_t at = 0;
    for (int axis = 0; axis < OQ_DIT_ZIMAGE_AXES; axis++)
        for (int64_t i = 0; i < s->axes_dims[axis]; i += 2, at++) {
            const double frequency = 1.0 / pow(s->rope_theta, (double)i / (double)s->axes_dims[axis]);
            const double angle = (double)(float)((double)pos[axis] * frequency);
            cos_row[at] = (float)cos(angle);
            sin_row[at] = (float)sin(angle);
        }
}

/* Image token (y, x) sits at (n_caption_padded + 1, y, x), image pads at 0, caption token j at (1 + j, 0, 0).
 */
static void fill_rope(const oq_dit_zimage *s, const oq_dit_zimage_condition *c, float *cos_out,
                      float *sin_out)
{
    const int64_t half = s->head_dim / 2, columns = c->w / OQ_DIT_ZIMAGE_PATCH;
    for (int64_t i = 0; i < c->n_image_padded; i++) {
        const int64_t image[] = {c->n_caption_padded + 1, i / columns, i % columns}, pad[] = {0, 0, 0};
        rope_row(s, i < c->n_image ? image : pad, cos_out + i * half, sin_out + i * half);
    }
    for (int64_t j = 0; j < c->n_caption_padded; j++) {
        const int64_t pos[] = {1 + j, 0, 0}, row = c->n_image_padded + j;
        rope_row(s, pos, cos_out + row * half, sin_out + row * half);
    }
}

static oq_status upload_tables(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_condition *c)
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

oq_status oq_dit_zimage_condition_new(oq_exec *ex, const oq_dit_zimage *s, int64_t n_caption, int64_t h,
                                      int64_t w, oq_dit_zimage_condition *out)
{
    oq_dit_zimage_condition c = {.h = h, .w = w, .n_caption = n_caption};
    c.n_image = (h / OQ_DIT_ZIMAGE_PATCH) * (w / OQ_DIT_ZIMAGE_PATCH);
    c.n_image_padded = padded(c.n_image);
    c.n_caption_padded = padded(n_caption);
    const int64_t rows = c.n_image_padded + c.n_caption_padded;
    OQ_TRY(oq_tmp(ex, c.n_caption_padded, s->dim, &c.context));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, rows, s->head_dim / 2, &c.cos));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, rows, s->head_dim / 2, &c.sin));
    *out = c;
    return OQ_OK;
}

/* Fills rows with the pad token. */
static oq_status fill_pads(oq_exec *ex, oq_tensor rows, const oq_vector *token)
{
    if (rows.rows == 0) return OQ_OK;
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor row;
    OQ_TRY(oq_tmp(ex, 1, rows.cols, &row));
    OQ_TRY(oq_copy_forward(ex, row, oq_vector_tensor(token)));
    const int64_t dim[6] = {1, 1, 1, 1, rows.rows, rows.cols}, to[6] = {0, 0, 0, 0, rows.ld, 1},
                  from[6] = {0, 0, 0, 0, 0, 1};
    OQ_TRY(oq_permute_forward(ex, rows, row, dim, to, from));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

oq_status oq_dit_zimage_condition_run(oq_exec *ex, const oq_dit_zimage *s, oq_tensor caption,
                                      const oq_dit_zimage_condition *c, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    OQ_TRY(upload_tables(ex, s, c));
    const oq_tensor real = oq_tensor_rows(c->context, 0, c->n_caption);
    const oq_rows rows = {.x = caption, .norm = rms(&s->cap_norm, s->eps)};
    OQ_TRY(oq_linear_rows_forward(ex, &s->cap_embedder, real, &rows, NULL));
    if (trace) OQ_TRY(oq_trace_put(ex, real, NULL, 0, "%s.cap_embedder", trace));
    OQ_TRY(fill_pads(ex, oq_tensor_rows(c->context, c->n_caption, c->n_caption_padded - c->n_caption),
                     &s->cap_pad));
    const block_args args = {.x = c->context,
                             .cos = oq_tensor_rows(c->cos, c->n_image_padded, c->n_caption_padded),
                             .sin = oq_tensor_rows(c->sin, c->n_image_padded, c->n_caption_padded)};
    residual left = {.norm = NULL};
    OQ_TRY(oq_tmp(ex, args.x.rows, s->dim, &left.o));
    for (int64_t i = 0; i < s->n_refiners; i++)
        OQ_TRY(block_forward(ex, s, &s->context_refiner[i], &args, &left));
    OQ_TRY(add_residual(ex, s, args.x, &left));
    if (trace) OQ_TRY(oq_trace_put(ex, c->context, NULL, 0, "%s.context_refiner", trace));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- all steps ----------------------------------------------------------------------------------------- */

/* cos | sin of t * 10000^(-i/128). The exponent is a float32 product and the exponential is rounded from
 * double, which is nearer to torch's than any float32 exponential (docs/numerics.md). */
static void sinusoid(float t, float out[T_FREQUENCIES])
{
    enum { HALF = T_FREQUENCIES / 2 };
    for (int i = 0; i < HALF; i++) {
        const float exponent = -9.210340371976184f * (float)i / (float)HALF;
        const float angle = t * (float)exp((double)exponent);
        out[i] = (float)cos((double)angle);
        out[HALF + i] = (float)sin((double)angle);
    }
}

oq_status oq_dit_zimage_steps_new(oq_exec *ex, const oq_dit_zimage *s, int64_t n, oq_dit_zimage_steps *out)
{
    *out = (oq_dit_zimage_steps){.n = n};
    OQ_TRY(oq_tmp(ex, n, s->t_dim, &out->t));
    OQ_TRY(oq_tmp(ex, (s->n_refiners + s->n_layers) * n, 4 * s->dim, &out->modulation));
    OQ_TRY(oq_tmp(ex, n, s->dim, &out->final_scale));
    OQ_TRY(oq_tmp(ex, s->n_refiners + s->n_layers, 4 * s->dim, &out->now));
    OQ_TRY(oq_tmp(ex, 1, s->dim, &out->final_now));
    return oq_tmp(ex, 1, s->dim, &out->ones);
}

/* Host tables: the sinusoids of all steps, and ones. */
static oq_status upload_steps(oq_exec *ex, const oq_dit_zimage *s, const float *t, oq_tensor wave,
                              oq_tensor ones)
{
    if (ex->measure) return OQ_OK;
    const size_t n = (size_t)(wave.rows * wave.cols), width = (size_t)ones.cols;
    float *host = NULL;
    OQ_TRY(oq_new(ex->env, n + 2 * width, sizeof *host, "timestep tables", &host));
    for (int64_t i = 0; i < wave.rows; i++) sinusoid(t[i] * (float)s->t_scale, host + i * T_FREQUENCIES);
    float *const one = host + n, *const rounded = one + width;
    for (size_t i = 0; i < width; i++) one[i] = 1.0f;
    ex->compute->from_f32(rounded, one, width);
    oq_status st = oq_upload(ex, wave, host);
    if (st == OQ_OK) st = oq_upload(ex, ones, rounded);
    oq_free(ex->env, host);
    return st;
}

/* t = mlp.2(silu(mlp.0(sinusoid))) */
static oq_status timesteps_forward(oq_exec *ex, const oq_dit_zimage *s, const float *t,
                                   const oq_dit_zimage_steps *steps)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_post silu = {.kind = OQ_POST_UNARY, .unary = OQ_SILU};
    oq_tensor wave, x, h;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, steps->n, T_FREQUENCIES, &wave));
    OQ_TRY(oq_tmp(ex, steps->n, T_FREQUENCIES, &x));
    OQ_TRY(oq_tmp(ex, steps->n, s->t_mlp0.spec.n, &h));
    OQ_TRY(upload_steps(ex, s, t, wave, steps->ones));
    OQ_TRY(oq_copy_forward(ex, x, wave));
    OQ_TRY(oq_linear_post_forward(ex, &s->t_mlp0, h, x, &silu));
    OQ_TRY(oq_linear_forward(ex, &s->t_mlp2, steps->t, h));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* Rows of modulated block b: the refiners come first. */
static oq_tensor block_rows(const oq_dit_zimage_steps *steps, int64_t b)
{
    return oq_tensor_rows(steps->modulation, b * steps->n, steps->n);
}

/* x = 1 + x for every row */
static oq_status add_one(oq_exec *ex, const oq_dit_zimage_steps *steps, oq_tensor x)
{
    return oq_modulate_forward(ex, x, x, oq_absent(), steps->ones, 0.0f);
}

static oq_status finish_modulation(oq_exec *ex, const oq_dit_zimage_steps *steps, oq_tensor rows)
{
    const modulation m = modulation_of(rows);
    OQ_TRY(add_one(ex, steps, m.scale_attn));
    OQ_TRY(add_one(ex, steps, m.scale_ffn));
    OQ_TRY(oq_unary_forward(ex, OQ_TANH, m.gate_attn, m.gate_attn));
    return oq_unary_forward(ex, OQ_TANH, m.gate_ffn, m.gate_ffn);
}

static oq_status trace_steps(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_steps *steps,
                             const char *prefix)
{
    OQ_TRY(oq_trace_put(ex, oq_tensor_rows(steps->t, 0, 1), NULL, 0, "%s.t_emb", prefix));
    if (s->n_layers == 0) return OQ_OK;
    return oq_trace_put(ex, oq_tensor_rows(block_rows(steps, s->n_refiners), 0, 1), NULL, 0,
                        "%s.layers.0.adaLN_modulation", prefix);
}

oq_status oq_dit_zimage_steps_run(oq_exec *ex, const oq_dit_zimage *s, const float *t,
                                  const oq_dit_zimage_steps *steps, const char *const *trace, int64_t n_trace)
{
    const int64_t blocks = s->n_refiners + s->n_layers;
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor act;
    OQ_TRY(timesteps_forward(ex, s, t, steps));
    for (int64_t b = 0; b < blocks; b++) {
        const oq_dit_zimage_block *const block =
            b < s->n_refiners ? &s->noise_refiner[b] : &s->layers[b - s->n_refiners];
        OQ_TRY(oq_linear_forward(ex, &block->modulation, block_rows(steps, b), steps->t));
    }
    for (int64_t i = 0; i < n_trace; i++) OQ_TRY(trace_steps(ex, s, steps, trace[i]));
    OQ_TRY(finish_modulation(ex, steps, steps->modulation));
    OQ_TRY(oq_tmp(ex, steps->n, s->t_dim, &act));
    OQ_TRY(oq_unary_forward(ex, OQ_SILU, act, steps->t));
    OQ_TRY(oq_linear_forward(ex, &s->final_modulation, steps->final_scale, act));
    OQ_TRY(add_one(ex, steps, steps->final_scale));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

/* Element strides of (row, column, dy, dx, channel) in the [tokens, (dy, dx, channel)] and [channel, h * w]
 * layouts. */
typedef struct patch_layout {
    int64_t dim[6], tokens[6], planes[6];
} patch_layout;

static patch_layout patches(const oq_dit_zimage *s, int64_t h, int64_t w)
{
    const int64_t P = OQ_DIT_ZIMAGE_PATCH, C = s->in_channels, K = s->patch_dim;
    return (patch_layout){.dim = {1, h / P, w / P, P, P, C},
                          .tokens = {0, w / P * K, K, P * C, C, 1},
                          .planes = {0, P * w, P, w, 1, h * w}};
}

/* rows: [n_image_padded, D] = x_embedder(patches of x), then pads */
static oq_status embed_image(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_condition *c,
                             oq_tensor x, oq_tensor rows, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    const patch_layout p = patches(s, c->h, c->w);
    oq_tensor tokens;
    OQ_TRY(oq_tmp(ex, c->n_image, s->patch_dim, &tokens));
    OQ_TRY(oq_permute_forward(ex, tokens, x, p.dim, p.tokens, p.planes));
    const oq_tensor real = oq_tensor_rows(rows, 0, c->n_image);
    OQ_TRY(oq_linear_forward(ex, &s->x_embedder, real, tokens));
    if (trace) OQ_TRY(oq_trace_put(ex, real, NULL, 0, "%s.x_embedder", trace));
    oq_mark_reset(ex, mark);
    return fill_pads(ex, oq_tensor_rows(rows, c->n_image, c->n_image_padded - c->n_image), &s->x_pad);
}

/* y = unpatchify(linear(LayerNorm(x) * scale)); x: [n_image, D] */
static oq_status final_forward(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_condition *c,
                               oq_tensor x, oq_tensor scale, oq_tensor y)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor tokens;
    OQ_TRY(oq_tmp(ex, c->n_image, s->patch_dim, &tokens));
    const oq_rows rows = {.x = x, .norm = {.kind = OQ_LAYER_NORM, .eps = FINAL_EPS}, .scale = scale};
    OQ_TRY(oq_linear_rows_forward(ex, &s->final_linear, tokens, &rows, NULL));
    const patch_layout p = patches(s, c->h, c->w);
    OQ_TRY(oq_permute_forward(ex, y, tokens, p.dim, p.planes, p.tokens));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static modulation modulation_now(const oq_dit_zimage_steps *steps, int64_t block)
{
    return modulation_of(oq_tensor_rows(steps->now, block, 1));
}

/* The rows of one step, in a place that is the same in every step. */
static oq_status begin_step(oq_exec *ex, const oq_dit_zimage_steps *steps, int64_t step)
{
    oq_tensor rows = oq_tensor_rows(steps->modulation, step, 1);
    rows.rows = steps->now.rows;
    rows.ld *= steps->n;
    OQ_TRY(oq_copy_forward(ex, steps->now, rows));
    return oq_copy_forward(ex, steps->final_now, oq_tensor_rows(steps->final_scale, step, 1));
}

/* The joint layers over u: [n_image_padded + n_caption_padded, D]. */
static oq_status layers_forward(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_condition *c,
                                const oq_dit_zimage_steps *steps, oq_tensor u, const char *trace)
{
    char first[128];
    const oq_mark mark = oq_mark_get(ex);
    residual left = {.norm = NULL};
    OQ_TRY(oq_tmp(ex, u.rows, s->dim, &left.o));
    if (trace) snprintf(first, sizeof first, "%s.layers.0", trace);
    for (int64_t i = 0; i < s->n_layers; i++) {
        const block_args args = {.x = u,
                                 .cos = c->cos,
                                 .sin = c->sin,
                                 .m = modulation_now(steps, s->n_refiners + i),
                                 .trace = trace && i == 0 ? first : NULL};
        OQ_TRY(block_forward(ex, s, &s->layers[i], &args, &left));
        if (!trace) continue;
        OQ_TRY(add_residual(ex, s, u, &left));
        OQ_TRY(oq_trace_put(ex, u, NULL, 0, "%s.layers.%lld", trace, (long long)i));
    }
    OQ_TRY(add_residual(ex, s, u, &left));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* image: [n_image_padded, D] = refined patches of x */
static oq_status refine_image(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_condition *c,
                              const oq_dit_zimage_steps *steps, oq_tensor x, oq_tensor image,
                              const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    residual left = {.norm = NULL};
    OQ_TRY(embed_image(ex, s, c, x, image, trace));
    OQ_TRY(oq_tmp(ex, image.rows, s->dim, &left.o));
    for (int64_t i = 0; i < s->n_refiners; i++) {
        const block_args args = {.x = image,
                                 .cos = oq_tensor_rows(c->cos, 0, c->n_image_padded),
                                 .sin = oq_tensor_rows(c->sin, 0, c->n_image_padded),
                                 .m = modulation_now(steps, i)};
        OQ_TRY(block_forward(ex, s, &s->noise_refiner[i], &args, &left));
    }
    OQ_TRY(add_residual(ex, s, image, &left));
    oq_mark_reset(ex, mark);
    return trace ? oq_trace_put(ex, image, NULL, 0, "%s.noise_refiner", trace) : OQ_OK;
}

typedef struct step_args {
    const oq_dit_zimage *s;
    const oq_dit_zimage_condition *c;
    const oq_dit_zimage_steps *steps;
    oq_tensor x, y;
    const char *trace;
} step_args;

/* What every step does alike. */
static oq_status step_forward(oq_exec *ex, void *user)
{
    const step_args *a = user;
    const oq_dit_zimage_condition *c = a->c;
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor u;
    OQ_TRY(oq_tmp(ex, c->n_image_padded + c->n_caption_padded, a->s->dim, &u));
    OQ_TRY(refine_image(ex, a->s, c, a->steps, a->x, oq_tensor_rows(u, 0, c->n_image_padded), a->trace));
    OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(u, c->n_image_padded, c->n_caption_padded), c->context));
    OQ_TRY(layers_forward(ex, a->s, c, a->steps, u, a->trace));
    OQ_TRY(final_forward(ex, a->s, c, oq_tensor_rows(u, 0, c->n_image), a->steps->final_now, a->y));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

oq_status oq_dit_zimage_forward(oq_exec *ex, const oq_dit_zimage *s, const oq_dit_zimage_condition *c,
                                const oq_dit_zimage_steps *steps, int64_t step, oq_tensor x, oq_tensor y,
                                const char *trace)
{
    step_args args = {.s = s, .c = c, .steps = steps, .x = x, .y = y, .trace = trace};
    if (x.rows != s->in_channels || x.cols != c->h * c->w || y.rows != x.rows || y.cols != x.cols)
        return oq_fail(ex->env, OQ_E_ARG,
                       "transformer: latent [%lld,%lld] does not fit %lld channels of %lld x %lld",
                       (long long)x.rows, (long long)x.cols, (long long)s->in_channels, (long long)c->h,
                       (long long)c->w);
    OQ_TRY(begin_step(ex, steps, step));
    return oq_repeat(ex, oq_repeat_key(oq_repeat_key((uintptr_t)x.data, y.data), c), step_forward, &args);
}
