/* vision_qwen25_forward.c -- vision tower of Qwen2.5-VL: the forward pass. Patches run in the order of their windows, so that
 * a window is a run of rows; the states go back to rows of the picture at the end. S patches, D hidden size, d head width. */
#include "modules/vision_qwen25.h"

#include <math.h>
#include <string.h>

static const float EPS = 1e-6f; /* of all norms, fixed in the published class */

/* ---- the order of windows ------------------------------------------------------------------------------ */

typedef struct windows {
    int64_t rows, columns; /* of states */
    int64_t side;          /* states of a window's */
    int64_t merged;        /* patches of a state */
} windows;

static windows windows_of(const oq_vision_qwen25 *s, const oq_vision_qwen25_picture *p)
{
    return (windows){.rows = p->rows / s->merge_size,
                     .columns = p->columns / s->merge_size,
                     .side = s->window_size / s->merge_size / s->patch_size,
                     .merged = s->merge_size * s->merge_size};
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

typedef struct window { /* states [top, bottom) x [left, right) */
    int64_t top, bottom, left, right;
} window;

static int64_t count_windows(const windows *w)
{
    return ((w->rows + w->side - 1) / w->side) * ((w->columns + w->side - 1) / w->side);
}

static window window_at(const windows *w, int64_t i)
{
    const int64_t across = (w->columns + w->side - 1) / w->side, top = i / across * w->side,
                  left = i % across * w->side;
    return (window){top, least(top + w->side, w->rows), left, least(left + w->side, w->columns)};
}

/* order[i]: the state, counted in rows, that comes i-th. */
static void fill_order(const windows *w, int32_t *order)
{
    for (int64_t i = 0; i < count_windows(w); i++) {
        const window at = window_at(w, i);
        for (int64_t y = at.top; y < at.bottom; y++)
            for (int64_t x = at.left; x < at.right; x++) *order++ = (int32_t)(y * w->columns + x);
    }
}

/* ---- what blocks share --------------------------------------------------------------------------------- */

typedef struct shared {
    windows w;
    oq_tensor cos, sin; /* F32 [S, d/2] */
    oq_tensor back;     /* I32 [states, 1]: where each stands in the order of windows */
} shared;

/* The first quarter of a head turns by the patch's row, the second by its column; the other half is their partner. */
static void fill_rope(const oq_vision_qwen25 *s, const windows *w, const int32_t *order, float *cos_out,
                      float *sin_out)
{
    const int64_t half = s->head_dim / 2, quarter = half / 2;
    for (int64_t i = 0; i < quarter; i++) {
        const float frequency = 1.0f / powf((float)s->rope_theta, (float)(2 * i) / (float)half);
        for (int64_t t = 0; t < w->rows * w->columns * w->merged; t++) {
            const int64_t state = order[t / w->merged], inside = t % w->merged;
            const int64_t place[2] = {state / w->columns * s->merge_size + inside / s->merge_size,
                                      state % w->columns * s->merge_size + inside % s->merge_size};
            for (int64_t axis = 0; axis < 2; axis++) {
                const double angle = (double)((float)place[axis] * frequency);
                cos_out[t * half + axis * quarter + i] = (float)cos(angle);
                sin_out[t * half + axis * quarter + i] = (float)sin(angle);
            }
        }
    }
}

static oq_status upload_rope(oq_exec *ex, const oq_vision_qwen25 *s, const int32_t *order, shared *c)
{
    const size_t n = (size_t)(c->cos.rows * c->cos.cols);
    float *host = NULL;
    OQ_TRY(oq_new(ex->env, 2 * n, sizeof *host, "rotary tables", &host));
    fill_rope(s, &c->w, order, host, host + n);
    oq_status st = oq_upload(ex, c->cos, host);
    if (st == OQ_OK) st = oq_upload(ex, c->sin, host + n);
    oq_free(ex->env, host);
    return st;
}

static oq_status upload_back(oq_exec *ex, const int32_t *order, oq_tensor back)
{
    int32_t *host = NULL;
    OQ_TRY(oq_new(ex->env, (size_t)back.rows, sizeof *host, "order of states", &host));
    for (int64_t i = 0; i < back.rows; i++) host[order[i]] = (int32_t)i;
    const oq_status st = oq_upload(ex, back, host);
    oq_free(ex->env, host);
    return st;
}

/* The patches in the order of windows, rounded to the type of activations. */
static oq_status upload_patches(oq_exec *ex, const oq_vision_qwen25_picture *p, const windows *w,
                                const int32_t *order, oq_tensor patches)
{
    const int64_t state = w->merged * patches.cols;
    const size_t bytes = ex->compute->bytes;
    uint8_t *host = NULL;
    OQ_TRY(oq_new(ex->env, (size_t)(patches.rows * patches.cols), bytes, "patches", &host));
    for (int64_t i = 0; i < w->rows * w->columns; i++)
        ex->compute->from_f32(host + (size_t)(i * state) * bytes, p->patches + order[i] * state,
                              (size_t)state);
    const oq_status st = oq_upload(ex, patches, host);
    oq_free(ex->env, host);
    return st;
}

/* Tensors and tables of one picture. */
static oq_status prepare(oq_exec *ex, const oq_vision_qwen25 *s, const oq_vision_qwen25_picture *p, shared *c,
                         oq_tensor *patches)
{
    const int64_t S = p->rows * p->columns;
    int32_t *order = NULL;
    c->w = windows_of(s, p);
    const int64_t states = c->w.rows * c->w.columns;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, S, s->head_dim / 2, &c->cos));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, S, s->head_dim / 2, &c->sin));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_i32, states, 1, &c->back));
    OQ_TRY(oq_tmp(ex, S, oq_vision_qwen25_patch(s), patches));
    if (ex->measure) return OQ_OK;
    OQ_TRY(oq_new(ex->env, (size_t)states, sizeof *order, "order of windows", &order));
    fill_order(&c->w, order);
    oq_status st = upload_rope(ex, s, order, c);
    if (st == OQ_OK) st = upload_back(ex, order, c->back);
    if (st == OQ_OK) st = upload_patches(ex, p, &c->w, order, *patches);
    oq_free(ex->env, order);
    return st;
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

static oq_norm_step rms(const oq_vector *weight)
{
    return (oq_norm_step){.kind = OQ_RMS_NORM, .weight = weight, .eps = EPS};
}

/* o = attention of each window by itself, or of all rows */
static oq_status attend(oq_exec *ex, const oq_vision_qwen25_block *l, const shared *c, oq_tensor qkv,
                        oq_tensor o)
{
    const int64_t D = o.cols, n = l->full ? 1 : count_windows(&c->w);
    for (int64_t i = 0, at = 0; i < n; i++) {
        const window w = window_at(&c->w, i);
        const int64_t rows = l->full ? o.rows : (w.bottom - w.top) * (w.right - w.left) * c->w.merged;
        const oq_tensor part = oq_tensor_rows(qkv, at, rows);
        OQ_TRY(oq_attention_forward(ex, &l->attention, oq_tensor_rows(o, at, rows),
                                    oq_tensor_cols(part, 0, D), oq_tensor_cols(part, D, D),
                                    oq_tensor_cols(part, 2 * D, D), NULL));
        at += rows;
    }
    return OQ_OK;
}

/* x += proj(attention(RMS(x))) */
static oq_status attention_forward(oq_exec *ex, const oq_vision_qwen25 *s, const oq_vision_qwen25_block *l,
                                   oq_tensor x, const shared *c)
{
    const int64_t D = s->hidden_size;
    const oq_rows rows = {.x = x, .norm = rms(&l->norm1)};
    const oq_post add = {.kind = OQ_POST_ADD, .residual = x};
    oq_tensor qkv, o;
    OQ_TRY(oq_tmp(ex, x.rows, 3 * D, &qkv));
    OQ_TRY(oq_tmp(ex, x.rows, D, &o));
    OQ_TRY(oq_linear_rows_forward(ex, &l->qkv, qkv, &rows, NULL));
    const oq_qk_step turn = {.cos = c->cos,
                             .sin = c->sin,
                             .n_heads = s->n_heads,
                             .n_kv_heads = s->n_heads,
                             .head_dim = s->head_dim,
                             .kind = OQ_ROPE_HALF};
    OQ_TRY(oq_qk_norm_rope_forward(ex, oq_tensor_cols(qkv, 0, D), oq_tensor_cols(qkv, D, D), &turn));
    OQ_TRY(attend(ex, l, c, qkv, o));
    return oq_linear_post_forward(ex, &l->proj, x, o, &add);
}

/* x += down(silu(gate h) * up h), h = RMS(x) */
static oq_status mlp_forward(oq_exec *ex, const oq_vision_qwen25 *s, const oq_vision_qwen25_block *l,
                             oq_tensor x)
{
    const oq_rows rows = {.x = x, .norm = rms(&l->norm2)};
    const oq_post gated = {.kind = OQ_POST_GLU, .unary = OQ_SILU}, add = {.kind = OQ_POST_ADD, .residual = x};
    oq_tensor h;
    OQ_TRY(oq_tmp(ex, x.rows, s->intermediate_size, &h));
    OQ_TRY(oq_linear_rows_forward(ex, &l->gate_up, h, &rows, &gated));
    return oq_linear_post_forward(ex, &l->down, x, h, &add);
}

static oq_status blocks_forward(oq_exec *ex, const oq_vision_qwen25 *s, oq_tensor x, const shared *c,
                                const char *trace)
{
    for (int64_t i = 0; i < s->depth; i++) {
        const oq_mark mark = oq_mark_get(ex);
        OQ_TRY(oq_check_canceled(ex->env));
        OQ_TRY(attention_forward(ex, s, &s->blocks[i], x, c));
        oq_mark_reset(ex, mark);
        OQ_TRY(mlp_forward(ex, s, &s->blocks[i], x));
        oq_mark_reset(ex, mark);
        if (trace) OQ_TRY(oq_trace_put(ex, x, NULL, 0, "%s.block%lld", trace, (long long)i));
    }
    return OQ_OK;
}

/* y: states in rows of the picture = mlp of RMS(x), the patches of a state side by side. x is spent. */
static oq_status merge(oq_exec *ex, const oq_vision_qwen25 *s, oq_tensor x, const shared *c, oq_tensor y)
{
    const int64_t states = y.rows, width = c->w.merged * x.cols;
    const oq_post gelu = {.kind = OQ_POST_UNARY, .unary = OQ_GELU_ERF};
    oq_tensor h, ordered;
    OQ_TRY(oq_tmp(ex, states, width, &h));
    OQ_TRY(oq_tmp(ex, states, y.cols, &ordered));
    OQ_TRY(oq_rms_norm_forward(ex, x, x, &s->merger_norm, EPS, 0));
    OQ_TRY(oq_linear_post_forward(ex, &s->merger_in, h, oq_tensor_reshape(x, states, width), &gelu));
    OQ_TRY(oq_linear_forward(ex, &s->merger_out, ordered, h));
    const oq_table table = {.rows = states, .cols = y.cols, .tensor = ordered};
    return oq_embed_forward(ex, y, &table, c->back);
}

oq_status oq_vision_qwen25_forward(oq_exec *ex, const oq_vision_qwen25 *s,
                                   const oq_vision_qwen25_picture *picture, oq_tensor y, const char *trace)
{
    const int64_t m = s->merge_size, S = picture->rows * picture->columns;
    if (picture->rows < m || picture->columns < m || picture->rows % m || picture->columns % m ||
        y.rows != S / (m * m) || y.cols != s->out_hidden_size)
        return oq_fail(
            ex->env, OQ_E_ARG,
            "vision tower: %lld x %lld patches to states [%lld,%lld] do not fit %lld x %lld patches a state",
            (long long)picture->rows, (long long)picture->columns, (long long)y.rows, (long long)y.cols,
            (long long)m, (long long)m);
    const oq_mark mark = oq_mark_get(ex);
    shared c;
    oq_tensor patches, x;
    OQ_TRY(oq_tmp(ex, S, s->hidden_size, &x));
    OQ_TRY(prepare(ex, s, picture, &c, &patches));
    OQ_TRY(oq_linear_forward(ex, &s->patch_embed, x, patches));
    OQ_TRY(blocks_forward(ex, s, x, &c, trace));
    OQ_TRY(merge(ex, s, x, &c, y));
    if (trace) OQ_TRY(oq_trace_put(ex, y, NULL, 0, "%s.states", trace));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
