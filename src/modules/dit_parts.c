/* dit_parts.c -- shared parts of the FLUX line's transformers. T text tokens, S picture tokens, D model width. */
#include "modules/dit_parts.h"

#include "modules/model_config.h"

#include <math.h>
#include <stdio.h>

static const float T_SCALE = 1000.0f;

/* ---- conditioning -------------------------------------------------------------------------------------- */

oq_status oq_dit_mlp_declare(oq_builder *b, oq_dit_mlp *m, const char *name, int64_t n, int64_t k,
                             unsigned flags, const char *keep)
{
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "%s", name));
    OQ_TRY(oq_declare_linear(b, &m->in, "linear_1", n, k, flags | OQ_WANTS(OQ_FUSE_UNARY), keep));
    OQ_TRY(oq_declare_linear(b, &m->out, "linear_2", n, n, flags, keep));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

oq_status oq_dit_mlp_forward(oq_exec *ex, const oq_dit_mlp *m, oq_tensor x, oq_tensor y)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_post silu = {.kind = OQ_POST_UNARY, .unary = OQ_SILU};
    oq_tensor h;
    OQ_TRY(oq_tmp(ex, x.rows, m->in.spec.n, &h));
    OQ_TRY(oq_linear_post_forward(ex, &m->in, h, x, &silu));
    OQ_TRY(oq_linear_forward(ex, &m->out, y, h));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static float rounded(const oq_dtype *type, float x)
{
    oq_dtype_round(type, &x, 1);
    return x;
}

/* The exponent is a float32 product and the exponential is rounded from double, which is nearer to torch's than any
 * float32 exponential (docs/numerics.md). */
static void sinusoid(float t, float out[OQ_DIT_FREQUENCIES])
{
    enum { HALF = OQ_DIT_FREQUENCIES / 2 };
    for (int i = 0; i < HALF; i++) {
        const float exponent = -9.210340371976184f * (float)i / (float)HALF;
        const float angle = t * (float)exp((double)exponent);
        out[i] = (float)cos((double)angle);
        out[HALF + i] = (float)sin((double)angle);
    }
}

oq_status oq_dit_time_forward(oq_exec *ex, const oq_dit_mlp *m, float t, oq_tensor y)
{
    const oq_mark mark = oq_mark_get(ex);
    float host[OQ_DIT_FREQUENCIES];
    oq_tensor wave, x;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, 1, OQ_DIT_FREQUENCIES, &wave));
    OQ_TRY(oq_tmp(ex, 1, OQ_DIT_FREQUENCIES, &x));
    sinusoid(rounded(ex->compute, rounded(ex->compute, t) * T_SCALE), host);
    OQ_TRY(oq_upload(ex, wave, host));
    OQ_TRY(oq_copy_forward(ex, x, wave));
    OQ_TRY(oq_dit_mlp_forward(ex, m, x, y));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- rotary tables ------------------------------------------------------------------------------------- */

oq_status oq_dit_axes_read(oq_env *env, const char *what, const oq_json *config, const int64_t *published,
                           size_t n_axes, int64_t head_dim, int64_t *axes)
{
    char of[48];
    snprintf(of, sizeof of, "'attention_head_dim' %lld", (long long)head_dim);
    return oq_model_config_axes(env, what, config, "axes_dims_rope", published, (int64_t)n_axes, head_dim, of,
                                axes);
}

void oq_dit_rope_row(double theta, const int64_t *axes, int n_axes, const int64_t *position, float *cos_row,
                     float *sin_row)
{
    int64_t at = 0;
    for (int axis = 0; axis < n_axes; axis++)
        for (int64_t i = 0; i < axes[axis]; i += 2, at++) {
            const double angle = (double)position[axis] * (1.0 / pow(theta, (double)i / (double)axes[axis]));
            cos_row[at] = (float)cos(angle);
            sin_row[at] = (float)sin(angle);
        }
}

oq_status oq_dit_rope_upload(oq_exec *ex, oq_tensor cos_t, oq_tensor sin_t, const float *host)
{
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_upload(ex, cos_t, host));
    return oq_upload(ex, sin_t, host + cos_t.rows * cos_t.cols);
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static oq_status declare_stream(oq_builder *b, const oq_dit_shape *s, const oq_dit_stream_names *names,
                                oq_dit_stream *out)
{
    const int64_t D = s->dim, F = s->mlp_dim;
    const oq_part qkv[] = {{names->q, D}, {names->k, D}, {names->v, D}};
    const unsigned up = OQ_WANTS(OQ_FUSE_ROWS | (s->gated ? OQ_FUSE_GLU : OQ_FUSE_UNARY));
    out->has_mod = names->mod != NULL;
    if (names->mod) OQ_TRY(oq_declare_linear(b, &out->mod, names->mod, 6 * D, D, s->flags, "modulation"));
    OQ_TRY(oq_declare_fused(b, &out->qkv, names->fused, D, s->flags | OQ_WANTS(OQ_FUSE_ROWS), qkv, 3, NULL));
    OQ_TRY(oq_declare_vector(b, &out->norm_q, names->norm_q, s->head_dim));
    OQ_TRY(oq_declare_vector(b, &out->norm_k, names->norm_k, s->head_dim));
    OQ_TRY(oq_declare_linear(b, &out->out, names->out, D, D, s->flags | OQ_WANTS(OQ_FUSE_ADD), NULL));
    OQ_TRY(oq_declare_linear(b, &out->up, names->up, s->gated ? 2 * F : F, D, s->flags | up, NULL));
    return oq_declare_linear(b, &out->down, names->down, D, F, s->flags | OQ_WANTS(OQ_FUSE_ADD | OQ_FUSE_PRE),
                             NULL);
}

static oq_status declare_double(oq_builder *b, oq_dit_double *block, const oq_dit_shape *shape,
                                const oq_dit_stream_names *text, const oq_dit_stream_names *image)
{
    const oq_attention_spec spec = {
        .head_dim = shape->head_dim, .n_heads = shape->n_heads, .n_kv_heads = shape->n_heads};
    OQ_TRY(declare_stream(b, shape, image, &block->image));
    OQ_TRY(declare_stream(b, shape, text, &block->text));
    return oq_declare_attention(b, &block->attention, "attn", spec);
}

oq_status oq_dit_doubles_declare(oq_builder *b, const oq_dit_shape *shape, const oq_dit_stream_names *text,
                                 const oq_dit_stream_names *image, int64_t n, oq_dit_double **out)
{
    OQ_TRY(oq_arena_new(b->arena, (size_t)n, sizeof **out, "transformer blocks", out));
    for (int64_t i = 0; i < n; i++) {
        oq_scope saved;
        OQ_TRY(oq_scope_enter(b, &saved, "transformer_blocks.%lld", (long long)i));
        OQ_TRY(declare_double(b, &(*out)[i], shape, text, image));
        oq_scope_leave(b, saved);
    }
    return OQ_OK;
}

/* ---- forward ------------------------------------------------------------------------------------------- */

typedef struct
    half { /* tokens with one modulation inside a block: the text, the picture, pictures that are given */
    const oq_dit_stream *w;
    oq_tensor x, mod; /* its rows of u; [1, 6D] */
    oq_tensor left;   /* its attention's product where the MLP's first pass adds it; rows 0: added already */
    int64_t first;    /* of its rows */
    bool image;
    const char *trace; /* NULL: nothing of it is traced */
} half;

enum { MAX_HALVES = 3 };

static oq_status trace_half(oq_exec *ex, const half *a, oq_tensor x, const char *image, const char *text)
{
    if (!a->trace || !(a->image ? image : text)) return OQ_OK;
    return oq_trace_put(ex, x, NULL, 0, "%s.%s", a->trace, a->image ? image : text);
}

/* x += gate * l(in), the product itself traced */
static oq_status add_product(oq_exec *ex, const half *a, const oq_linear *l, oq_tensor in,
                             const oq_post *post, const char *name)
{
    char key[128];
    if (a->trace) snprintf(key, sizeof key, "%s.%s", a->trace, name);
    return oq_linear_post_traced(ex, l, a->x, in, post, a->trace ? key : NULL);
}

/* LayerNorm and modulation of one stream before a product; part 0: attention, 1: MLP, once x has what is left. */
static oq_rows modulated(const oq_dit_call *call, const half *a, int part)
{
    const int64_t D = call->shape->dim;
    const bool left = part == 1 && a->left.rows;
    return (oq_rows){.x = a->x,
                     .r = left ? a->left : oq_absent(),
                     .gate = left ? oq_tensor_cols(a->mod, 2 * D, D) : oq_absent(),
                     .norm = {.kind = OQ_LAYER_NORM, .eps = call->shape->eps},
                     .shift = oq_tensor_cols(a->mod, (3 * part + 0) * D, D),
                     .scale = oq_tensor_cols(a->mod, (3 * part + 1) * D, D),
                     .one = 1.0f};
}

/* x += gate * product */
static oq_post gated_add(const oq_dit_call *call, const half *a, int part)
{
    const int64_t D = call->shape->dim;
    return (oq_post){
        .kind = OQ_POST_ADD, .residual = a->x, .gate = oq_tensor_cols(a->mod, (3 * part + 2) * D, D)};
}

static half make_half(const oq_dit_call *call, const oq_dit_stream *w, bool image, int64_t first, int64_t n)
{
    return (half){.w = w,
                  .x = oq_tensor_rows(call->u, first, n),
                  .mod = image ? call->image_mod : call->text_mod,
                  .first = first,
                  .image = image,
                  .trace = call->trace};
}

/* The modulations of a block's own, unless they are made: for the text and the picture by the first row of act, for the
 * rest by the second. */
static oq_status modulate_halves(oq_exec *ex, const oq_dit_call *call, half *halves, int n)
{
    const oq_dit_stream *text = halves[0].w, *image = halves[1].w;
    oq_tensor mods = halves[1].mod;
    if (text->has_mod && !halves[0].mod.rows) {
        OQ_TRY(oq_tmp(ex, 1, 6 * call->shape->dim, &halves[0].mod));
        OQ_TRY(oq_linear_forward(ex, &text->mod, halves[0].mod, oq_tensor_rows(call->act, 0, 1)));
    }
    if (text->has_mod) OQ_TRY(trace_half(ex, &halves[0], halves[0].mod, NULL, "txt_mod"));
    if (!image->has_mod) return OQ_OK;
    if (!mods.rows) {
        OQ_TRY(oq_tmp(ex, call->act.rows, 6 * call->shape->dim, &mods));
        OQ_TRY(oq_linear_forward(ex, &image->mod, mods, call->act));
        for (int i = 1; i < n; i++) halves[i].mod = oq_tensor_rows(mods, i - 1, 1);
    }
    return trace_half(ex, &halves[1], mods, "img_mod", NULL);
}

/* How many there are. */
static oq_status make_halves(oq_exec *ex, const oq_dit_call *call, const oq_dit_double *b,
                             half halves[MAX_HALVES], int *n)
{
    const int64_t T = call->n_text, rest = call->act.rows > 1 ? call->n_rest : 0,
                  made = call->u.rows - T - rest;
    *n = 2;
    halves[0] = make_half(call, &b->text, false, 0, T);
    halves[1] = make_half(call, &b->image, true, T, made);
    if (rest) {
        halves[(*n)++] = make_half(call, &b->image, true, T + made, rest);
        halves[2].trace = NULL;
    }
    return modulate_halves(ex, call, halves, *n);
}

/* q, k normalised and rotated with the rows of the tables that belong to them */
static oq_status qk_forward(oq_exec *ex, const oq_dit_call *call, const oq_vector *norm_q,
                            const oq_vector *norm_k, oq_tensor qkv, int64_t first)
{
    const oq_dit_shape *s = call->shape;
    const oq_qk_step step = {.norm_q = norm_q,
                             .norm_k = norm_k,
                             .eps = s->eps,
                             .cos = oq_tensor_rows(call->cos, first, qkv.rows),
                             .sin = oq_tensor_rows(call->sin, first, qkv.rows),
                             .n_heads = s->n_heads,
                             .n_kv_heads = s->n_heads,
                             .head_dim = s->head_dim,
                             .kind = OQ_ROPE_INTERLEAVED};
    return oq_qk_norm_rope_forward(ex, oq_tensor_cols(qkv, 0, s->dim), oq_tensor_cols(qkv, s->dim, s->dim),
                                   &step);
}

/* q, k and v of one stream; traced step by step, or q and k in one pass */
static oq_status qkv_forward(oq_exec *ex, const oq_dit_call *call, const half *a, oq_tensor qkv)
{
    const oq_dit_shape *s = call->shape;
    const int64_t D = s->dim;
    const oq_rows rows = modulated(call, a, 0);
    OQ_TRY(oq_linear_rows_forward(ex, &a->w->qkv, qkv, &rows, NULL));
    if (!a->trace) return qk_forward(ex, call, &a->w->norm_q, &a->w->norm_k, qkv, a->first);
    const oq_tensor q = oq_tensor_cols(qkv, 0, D), k = oq_tensor_cols(qkv, D, D);
    const oq_tensor cos_rows = oq_tensor_rows(call->cos, a->first, qkv.rows);
    const oq_tensor sin_rows = oq_tensor_rows(call->sin, a->first, qkv.rows);
    OQ_TRY(trace_half(ex, a, q, "attn.to_q", NULL));
    OQ_TRY(trace_half(ex, a, k, NULL, "attn.add_k_proj"));
    OQ_TRY(oq_rms_norm_forward(ex, q, q, &a->w->norm_q, s->eps, s->head_dim));
    OQ_TRY(oq_rms_norm_forward(ex, k, k, &a->w->norm_k, s->eps, s->head_dim));
    OQ_TRY(trace_half(ex, a, q, "attn.norm_q", NULL));
    OQ_TRY(trace_half(ex, a, k, NULL, "attn.norm_added_k"));
    OQ_TRY(oq_rope_forward(ex, q, cos_rows, sin_rows, s->n_heads, s->head_dim, OQ_ROPE_INTERLEAVED));
    return oq_rope_forward(ex, k, cos_rows, sin_rows, s->n_heads, s->head_dim, OQ_ROPE_INTERLEAVED);
}

static oq_status attend(oq_exec *ex, const oq_dit_call *call, const oq_attention *attention, oq_tensor qkv,
                        oq_tensor o)
{
    const int64_t D = call->shape->dim;
    return oq_attention_forward(ex, attention, o, oq_tensor_cols(qkv, 0, D), oq_tensor_cols(qkv, D, D),
                                oq_tensor_cols(qkv, 2 * D, D), NULL);
}

oq_status oq_dit_heads_forward(oq_exec *ex, const oq_dit_heads *heads, const oq_dit_call *call, oq_tensor qkv,
                               oq_tensor o)
{
    OQ_TRY(qk_forward(ex, call, heads->norm_q, heads->norm_k, qkv, 0));
    return attend(ex, call, heads->attention, qkv, o);
}

/* x += gate * out(o): at once, or left to the MLP's first pass */
static oq_status add_attention(oq_exec *ex, const oq_dit_call *call, const half *a, oq_tensor o)
{
    const oq_post post = gated_add(call, a, 0);
    const oq_tensor in = oq_tensor_rows(o, a->first, a->x.rows);
    if (a->left.rows) return oq_linear_forward(ex, &a->w->out, a->left, in);
    return add_product(ex, a, &a->w->out, in, &post, a->image ? "attn.out_img" : "attn.out_txt");
}

static oq_status joint_attention(oq_exec *ex, const oq_dit_double *b, const oq_dit_call *call,
                                 const half *halves, int n)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = call->shape->dim;
    oq_tensor qkv, o;
    OQ_TRY(oq_tmp(ex, call->u.rows, 3 * D, &qkv));
    OQ_TRY(oq_tmp(ex, call->u.rows, D, &o));
    for (int i = 0; i < n; i++)
        OQ_TRY(qkv_forward(ex, call, &halves[i], oq_tensor_rows(qkv, halves[i].first, halves[i].x.rows)));
    OQ_TRY(attend(ex, call, &b->attention, qkv, o));
    for (int i = 0; i < n; i++) OQ_TRY(add_attention(ex, call, &halves[i], o));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* x += gate * down(act(up(modulated x))), with what is between the products traced */
static oq_status mlp_traced(oq_exec *ex, const oq_dit_call *call, const half *a, const oq_pair *pair)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor up;
    OQ_TRY(oq_tmp(ex, a->x.rows, call->shape->mlp_dim, &up));
    OQ_TRY(oq_linear_rows_forward(ex, pair->first, up, pair->rows, pair->act));
    OQ_TRY(trace_half(ex, a, up, "img_mlp.net.0", NULL));
    OQ_TRY(add_product(ex, a, pair->second, up, pair->post, a->image ? "img_mlp" : "txt_mlp"));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status mlp_forward(oq_exec *ex, const oq_dit_call *call, const half *a)
{
    const oq_post act = {.kind = call->shape->gated ? OQ_POST_GLU : OQ_POST_UNARY,
                         .unary = call->shape->gated ? OQ_SILU : OQ_GELU_TANH};
    const oq_rows rows = modulated(call, a, 1);
    const oq_post post = gated_add(call, a, 1);
    const oq_pair pair = {
        .first = &a->w->up, .second = &a->w->down, .rows = &rows, .act = &act, .post = &post};
    if (ex->measure || a->trace)
        OQ_TRY(mlp_traced(ex, call, a, &pair)); /* measuring takes the scratch of either */
    return a->trace ? OQ_OK : oq_pair_forward(ex, &pair, a->x);
}

/* Where the product does not add, its result waits for the next pass over the rows: one pass less. Traced, it is added at
 * once. */
static oq_status leave_attention(oq_exec *ex, half *a)
{
    if ((a->w->out.fused & OQ_FUSE_ADD) || a->trace) return OQ_OK;
    return oq_tmp(ex, a->x.rows, a->x.cols, &a->left);
}

oq_status oq_dit_double_forward(oq_exec *ex, const oq_dit_double *b, const oq_dit_call *call)
{
    const oq_mark mark = oq_mark_get(ex);
    half halves[MAX_HALVES];
    int n;
    OQ_TRY(oq_check_canceled(ex->env));
    OQ_TRY(make_halves(ex, call, b, halves, &n));
    for (int i = 0; i < n; i++) OQ_TRY(leave_attention(ex, &halves[i]));
    OQ_TRY(joint_attention(ex, b, call, halves, n));
    for (int i = 0; i < n; i++) OQ_TRY(mlp_forward(ex, call, &halves[i]));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- blocks of one stream ------------------------------------------------------------------------------ */

oq_status oq_dit_residual_room(oq_exec *ex, const oq_dit_call *call, const oq_linear *out, oq_dit_residual *r)
{
    if (r->o.rows || (out->fused & OQ_FUSE_ADD)) return OQ_OK;
    return oq_tmp(ex, call->u.rows, call->shape->dim, &r->o);
}

oq_status oq_dit_residual_add(oq_exec *ex, const oq_dit_call *call, oq_dit_residual *r)
{
    if (!r->left) return OQ_OK;
    r->left = false;
    return oq_add_gated_forward(ex, call->u, call->u, r->gate, r->o);
}

oq_rows oq_dit_residual_rows(const oq_dit_call *call, oq_tensor mod, oq_dit_residual *r)
{
    const int64_t D = call->shape->dim;
    const oq_rows rows = {.x = call->u,
                          .r = r->left ? r->o : oq_absent(),
                          .gate = r->left ? r->gate : oq_absent(),
                          .norm = {.kind = OQ_LAYER_NORM, .eps = call->shape->eps},
                          .shift = oq_tensor_cols(mod, 0, D),
                          .scale = oq_tensor_cols(mod, D, D),
                          .one = 1.0f};
    r->left = false;
    return rows;
}

oq_status oq_dit_residual_product(oq_exec *ex, const oq_dit_call *call, const oq_linear *out, oq_tensor x,
                                  const oq_pre *pre, oq_tensor gate, oq_dit_residual *r)
{
    const oq_post add = {.kind = OQ_POST_ADD, .residual = call->u, .gate = gate};
    const bool at_once = out->fused & OQ_FUSE_ADD;
    const oq_tensor y = at_once ? call->u : r->o;
    if (!at_once) r->gate = gate, r->left = true;
    return pre ? oq_linear_pre_forward(ex, out, y, x, pre, at_once ? &add : NULL)
               : oq_linear_post_forward(ex, out, y, x, at_once ? &add : NULL);
}

oq_status oq_dit_final_forward(oq_exec *ex, const oq_linear *mod, const oq_linear *last,
                               const oq_dit_call *call, oq_tensor x, oq_tensor y, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = call->shape->dim;
    oq_tensor row = call->final_mod, h;
    if (!row.rows) {
        OQ_TRY(oq_tmp(ex, 1, 2 * D, &row));
        OQ_TRY(oq_linear_forward(ex, mod, row, oq_tensor_rows(call->act, 0, 1)));
    }
    OQ_TRY(oq_tmp(ex, x.rows, D, &h));
    const oq_rows rows = {.x = x,
                          .norm = {.kind = OQ_LAYER_NORM, .eps = call->shape->eps},
                          .scale = oq_tensor_cols(row, 0, D),
                          .shift = oq_tensor_cols(row, D, D),
                          .one = 1.0f};
    OQ_TRY(oq_rows_forward(ex, &rows, h));
    if (trace) OQ_TRY(oq_trace_put(ex, h, NULL, 0, "%s.norm_out", trace));
    OQ_TRY(oq_linear_forward(ex, last, y, h));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
