/* dit_wan_forward.c -- Wan transformer: the forward pass. S tokens in the order (frame, row, column), D model width. The
 * modulation is float32 in every run. Tokens may have one of two times (the first frame of a video that begins with a
 * given picture is clean): ranges of rows, each with its own modulation. */
#include "modules/dit_wan/dit_wan.h"

#include "modules/dit_parts.h"

#include <math.h>
#include <stdio.h>

enum { SHIFT_ATTN, SCALE_ATTN, GATE_ATTN, SHIFT_MLP, SCALE_MLP, GATE_MLP, N_MOD };

typedef struct range { /* tokens of one time */
    int64_t first, n;
    oq_tensor temb; /* [1, D] */
    oq_tensor time; /* [1, 6 D]: time_proj(silu(temb)) */
    oq_tensor mod;  /* F32 [1, 6 D]: time + the block's table */
} range;

typedef struct step {
    const oq_dit_wan *s;
    const oq_dit_wan_grid *grid;
    const oq_dit_wan_condition *text;
    range ranges[OQ_DIT_WAN_MAX_TIMES];
    int n_ranges;
    oq_tensor x;       /* [S, D]: the residual stream */
    const char *trace; /* of the present block; NULL: none */
} step;

static oq_tensor mod_row(const step *p, int r, int which)
{
    return oq_tensor_cols(p->ranges[r].mod, which * p->s->dim, p->s->dim);
}

static oq_tensor rows_of(const step *p, int r, oq_tensor x)
{
    return oq_tensor_rows(x, p->ranges[r].first, p->ranges[r].n);
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

static oq_rows modulated(const step *p, int r, oq_tensor x, int shift, int scale)
{
    return (oq_rows){.x = x,
                     .norm = {.kind = OQ_LAYER_NORM, .eps = (float)p->s->eps},
                     .scale = mod_row(p, r, scale),
                     .shift = mod_row(p, r, shift),
                     .one = 1.0f};
}

/* y = post(l(LayerNorm(x) * (1 + scale) + shift)), each range with its own rows */
static oq_status norm_linear(oq_exec *ex, const step *p, const oq_linear *l, oq_tensor y, int shift,
                             int scale, const oq_post *post)
{
    for (int r = 0; r < p->n_ranges; r++) {
        const oq_rows rows = modulated(p, r, rows_of(p, r, p->x), shift, scale);
        OQ_TRY(oq_linear_rows_forward(ex, l, rows_of(p, r, y), &rows, post));
    }
    return OQ_OK;
}

/* x += gate * l(h) */
static oq_status linear_gated(oq_exec *ex, const step *p, const oq_linear *l, oq_tensor h, int gate)
{
    for (int r = 0; r < p->n_ranges; r++) {
        const oq_tensor x = rows_of(p, r, p->x);
        const oq_post add = {.kind = OQ_POST_ADD, .residual = x, .gate = mod_row(p, r, gate)};
        OQ_TRY(oq_linear_post_forward(ex, l, x, rows_of(p, r, h), &add));
    }
    return OQ_OK;
}

static oq_status self_attention(oq_exec *ex, const step *p, const oq_dit_wan_block *b)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_dit_wan *s = p->s;
    const int64_t D = s->dim, S = p->x.rows;
    const float eps = (float)s->eps;
    oq_tensor qkv, o;
    OQ_TRY(oq_tmp(ex, S, 3 * D, &qkv));
    OQ_TRY(oq_tmp(ex, S, D, &o));
    const oq_tensor q = oq_tensor_cols(qkv, 0, D), k = oq_tensor_cols(qkv, D, D),
                    v = oq_tensor_cols(qkv, 2 * D, D);
    OQ_TRY(norm_linear(ex, p, &b->qkv, qkv, SHIFT_ATTN, SCALE_ATTN, NULL));
    if (p->trace) OQ_TRY(oq_trace_put(ex, q, NULL, 0, "%s.attn1.to_q", p->trace));
    OQ_TRY(oq_rms_norm_forward(ex, q, q, &b->norm_q, eps, 0));
    OQ_TRY(oq_rms_norm_forward(ex, k, k, &b->norm_k, eps, 0));
    if (p->trace) OQ_TRY(oq_trace_put(ex, q, NULL, 0, "%s.attn1.norm_q", p->trace));
    OQ_TRY(oq_rope_forward(ex, q, p->grid->cos, p->grid->sin, s->n_heads, s->head_dim, OQ_ROPE_INTERLEAVED));
    OQ_TRY(oq_rope_forward(ex, k, p->grid->cos, p->grid->sin, s->n_heads, s->head_dim, OQ_ROPE_INTERLEAVED));
    OQ_TRY(oq_attention_forward(ex, &b->attention, o, q, k, v, NULL));
    OQ_TRY(linear_gated(ex, p, &b->out, o, GATE_ATTN));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* x += out(attention(q(norm2(x)), keys and values of the text)) */
static oq_status cross_attention(oq_exec *ex, const step *p, const oq_dit_wan_block *b, int64_t layer)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_dit_wan *s = p->s;
    const oq_dit_wan_condition *c = p->text;
    const int64_t D = s->dim, S = p->x.rows;
    const oq_tensor kv = oq_tensor_rows(c->kv, layer * c->n, c->n);
    const oq_rows rows = {
        .x = p->x,
        .norm = {
            .kind = OQ_LAYER_NORM, .weight = &b->norm2_weight, .bias = &b->norm2_bias, .eps = (float)s->eps}};
    const oq_attention_extra extra = {.bias = c->bias.data}; /* one row for all queries and heads */
    const oq_post add = {.kind = OQ_POST_ADD, .residual = p->x};
    oq_tensor q, o;
    OQ_TRY(oq_tmp(ex, S, D, &q));
    OQ_TRY(oq_tmp(ex, S, D, &o));
    OQ_TRY(s->cross_norm ? oq_linear_rows_forward(ex, &b->cross_q, q, &rows, NULL)
                         : oq_linear_forward(ex, &b->cross_q, q, p->x));
    OQ_TRY(oq_rms_norm_forward(ex, q, q, &b->cross_norm_q, (float)s->eps, 0));
    OQ_TRY(oq_attention_forward(ex, &b->cross, o, q, oq_tensor_cols(kv, 0, D), oq_tensor_cols(kv, D, D),
                                &extra));
    OQ_TRY(oq_linear_post_forward(ex, &b->cross_out, p->x, o, &add));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* x += gate * down(gelu(up(modulated norm of x))) */
static oq_status mlp(oq_exec *ex, const step *p, const oq_dit_wan_block *b)
{
    const oq_post gelu = {.kind = OQ_POST_UNARY, .unary = OQ_GELU_TANH};
    for (int r = 0; r < p->n_ranges; r++) {
        const oq_tensor x = rows_of(p, r, p->x);
        const oq_rows rows = modulated(p, r, x, SHIFT_MLP, SCALE_MLP);
        const oq_post add = {.kind = OQ_POST_ADD, .residual = x, .gate = mod_row(p, r, GATE_MLP)};
        const oq_pair pair = {.first = &b->up, .second = &b->down, .rows = &rows, .act = &gelu, .post = &add};
        OQ_TRY(oq_pair_forward(ex, &pair, x));
    }
    return OQ_OK;
}

/* The same in two, with what is between them traced. */
static oq_status mlp_traced(oq_exec *ex, const step *p, const oq_dit_wan_block *b)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_post gelu = {.kind = OQ_POST_UNARY, .unary = OQ_GELU_TANH};
    oq_tensor h;
    OQ_TRY(oq_tmp(ex, p->x.rows, p->s->ffn_dim, &h));
    OQ_TRY(norm_linear(ex, p, &b->up, h, SHIFT_MLP, SCALE_MLP, &gelu));
    if (p->trace) OQ_TRY(oq_trace_put(ex, h, NULL, 0, "%s.ffn.net.0", p->trace));
    OQ_TRY(linear_gated(ex, p, &b->down, h, GATE_MLP));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status block_forward(oq_exec *ex, step *p, int64_t layer)
{
    const oq_dit_wan_block *b = &p->s->blocks[layer];
    OQ_TRY(oq_check_canceled(ex->env));
    for (int r = 0; r < p->n_ranges; r++)
        OQ_TRY(oq_add_forward(ex, p->ranges[r].mod, oq_vector_tensor(&b->table), p->ranges[r].time));
    OQ_TRY(self_attention(ex, p, b));
    OQ_TRY(cross_attention(ex, p, b, layer));
    if (ex->measure || p->trace) OQ_TRY(mlp_traced(ex, p, b)); /* measuring takes the scratch of either */
    return p->trace ? OQ_OK : mlp(ex, p, b);
}

/* ---- what steps share ---------------------------------------------------------------------------------- */

/* Angles in double; a head is split into time, rows, columns: rows and columns take 2 * (d / 6) each, time the rest. */
static void fill_rope(const oq_dit_wan *s, const oq_dit_wan_grid *g, float *cos_out, float *sin_out)
{
    const int64_t side = 2 * (s->head_dim / 6), dims[3] = {s->head_dim - 2 * side, side, side};
    int64_t at = 0;
    for (int64_t i = 0; i < g->n; i++) {
        const int64_t pos[3] = {i / (g->rows * g->columns), i / g->columns % g->rows, i % g->columns};
        for (int axis = 0; axis < 3; axis++)
            for (int64_t k = 0; k < dims[axis]; k += 2, at++) {
                const double angle = (double)pos[axis] / pow(10000.0, (double)k / (double)dims[axis]);
                cos_out[at] = (float)cos(angle);
                sin_out[at] = (float)sin(angle);
            }
    }
}

oq_status oq_dit_wan_grid_new(oq_exec *ex, const oq_dit_wan *s, int64_t frames, int64_t h, int64_t w,
                              oq_dit_wan_grid *out)
{
    oq_dit_wan_grid g = {.frames = frames, .rows = h / OQ_DIT_WAN_PATCH, .columns = w / OQ_DIT_WAN_PATCH};
    g.n = frames * g.rows * g.columns;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, g.n, s->head_dim / 2, &g.cos));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, g.n, s->head_dim / 2, &g.sin));
    *out = g;
    if (ex->measure) return OQ_OK;
    const size_t values = (size_t)(g.n * (s->head_dim / 2));
    float *host = NULL;
    OQ_TRY(oq_new(ex->env, 2 * values, sizeof *host, "rotary tables", &host));
    fill_rope(s, &g, host, host + values);
    const oq_status st = oq_dit_rope_upload(ex, g.cos, g.sin, host);
    oq_free(ex->env, host);
    return st;
}

oq_status oq_dit_wan_condition_new(oq_exec *ex, const oq_dit_wan *s, int64_t n_text, int64_t n_padded,
                                   oq_dit_wan_condition *out)
{
    if (n_padded > OQ_DIT_WAN_MAX_TEXT || n_text > n_padded)
        return oq_fail(ex->env, OQ_E_ARG, "transformer: a text of %lld rows in %lld, %d at most",
                       (long long)n_text, (long long)n_padded, (int)OQ_DIT_WAN_MAX_TEXT);
    *out = (oq_dit_wan_condition){.n = n_text + (n_text < n_padded ? 1 : 0)};
    OQ_TRY(oq_tmp(ex, s->n_layers * out->n, 2 * s->dim, &out->kv));
    return oq_tmp_typed(ex, &oq_dtype_f32, 1, out->n, &out->bias);
}

/* Row n_text stands for n_padded - n_text equal ones: n equal keys weigh like one whose score is larger by ln(n). */
static oq_status upload_bias(oq_exec *ex, const oq_dit_wan_condition *c, int64_t n_text, int64_t n_padded)
{
    float host[OQ_DIT_WAN_MAX_TEXT + 1] = {0};
    if (ex->measure) return OQ_OK;
    if (c->n > n_text) host[n_text] = (float)log((double)(n_padded - n_text));
    return oq_upload(ex, c->bias, host);
}

/* rows: [n, text_dim], the prompt's and a row of zeros for the padding */
static oq_status pad_text(oq_exec *ex, oq_tensor rows, oq_tensor text)
{
    OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(rows, 0, text.rows), text));
    if (rows.rows == text.rows) return OQ_OK;
    const oq_tensor zero = oq_tensor_rows(rows, text.rows, 1), some = oq_tensor_rows(text, 0, 1);
    OQ_TRY(oq_copy_forward(ex, zero, some));
    return oq_axpby_forward(ex, zero, -1.0f, some, 1.0f);
}

oq_status oq_dit_wan_condition_run(oq_exec *ex, const oq_dit_wan *s, oq_tensor text, int64_t n_padded,
                                   const oq_dit_wan_condition *c)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t D = s->dim;
    oq_tensor rows, h, embedded;
    OQ_TRY(upload_bias(ex, c, text.rows, n_padded));
    OQ_TRY(oq_tmp(ex, c->n, s->text_dim, &rows));
    OQ_TRY(oq_tmp(ex, c->n, D, &h));
    OQ_TRY(oq_tmp(ex, c->n, D, &embedded));
    OQ_TRY(pad_text(ex, rows, text));
    OQ_TRY(oq_linear_forward(ex, &s->text1, h, rows));
    OQ_TRY(oq_unary_forward(ex, OQ_GELU_TANH, h, h));
    OQ_TRY(oq_linear_forward(ex, &s->text2, embedded, h));
    for (int64_t i = 0; i < s->n_layers; i++) {
        const oq_dit_wan_block *b = &s->blocks[i];
        const oq_tensor kv = oq_tensor_rows(c->kv, i * c->n, c->n), k = oq_tensor_cols(kv, 0, D);
        OQ_TRY(oq_check_canceled(ex->env));
        OQ_TRY(oq_linear_forward(ex, &b->cross_k, k, embedded));
        OQ_TRY(oq_rms_norm_forward(ex, k, k, &b->cross_norm_k, (float)s->eps, 0));
        OQ_TRY(oq_linear_forward(ex, &b->cross_v, oq_tensor_cols(kv, D, D), embedded));
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- one step ------------------------------------------------------------------------------------------ */

/* cos | sin of t * 10000^(-i / half); see docs/numerics.md for the exponential. */
static oq_status sinusoid(oq_exec *ex, float t, oq_tensor out)
{
    const int64_t half = out.cols / 2;
    float host[OQ_DIT_WAN_MAX_FREQUENCIES];
    for (int64_t i = 0; i < half; i++) {
        const float exponent = -9.210340371976184f * (float)i / (float)half;
        const float angle = t * (float)exp((double)exponent);
        host[i] = (float)cos((double)angle);
        host[half + i] = (float)sin((double)angle);
    }
    return oq_upload(ex, out, host);
}

/* temb = linear_2(silu(linear_1(sinusoid))) in float32, then rounded; time = time_proj(silu(temb)) */
static oq_status time_forward(oq_exec *ex, const oq_dit_wan *s, float t, range *r, const char *trace)
{
    const int64_t D = s->dim;
    oq_tensor wave, h, wide, act;
    OQ_TRY(oq_tmp(ex, 1, D, &r->temb));
    OQ_TRY(oq_tmp(ex, 1, N_MOD * D, &r->time));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, 1, N_MOD * D, &r->mod));
    const oq_mark mark = oq_mark_get(ex);
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, 1, s->freq_dim, &wave));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, 1, D, &h));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, 1, D, &wide));
    OQ_TRY(oq_tmp(ex, 1, D, &act));
    OQ_TRY(sinusoid(ex, t, wave));
    if (trace) OQ_TRY(oq_trace_put(ex, wave, NULL, 0, "%s.time_sinusoid", trace));
    OQ_TRY(oq_linear_forward(ex, &s->t1, h, wave));
    OQ_TRY(oq_unary_forward(ex, OQ_SILU, h, h));
    OQ_TRY(oq_linear_forward(ex, &s->t2, wide, h));
    if (trace) OQ_TRY(oq_trace_put(ex, wide, NULL, 0, "%s.temb", trace));
    OQ_TRY(oq_copy_forward(ex, r->temb, wide));
    OQ_TRY(oq_unary_forward(ex, OQ_SILU, act, r->temb));
    OQ_TRY(oq_linear_forward(ex, &s->t_proj, r->time, act));
    if (trace) OQ_TRY(oq_trace_put(ex, r->time, NULL, 0, "%s.time_proj", trace));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* [channels, frames * h * w] and tokens [S, 4 channels]: (channel, dy, dx) on the way in, (dy, dx, channel) out */
static oq_status repack(oq_exec *ex, const oq_dit_wan_grid *g, oq_tensor y, oq_tensor x, int64_t channels,
                        bool in)
{
    const int64_t P = OQ_DIT_WAN_PATCH, h = g->rows * P, w = g->columns * P, K = P * P * channels;
    const int64_t dim[6] = {g->frames, g->rows, g->columns, P, P, channels};
    const int64_t planes[6] = {h * w, P * w, P, w, 1, g->frames * h * w};
    const int64_t tokens[6] = {g->rows * g->columns * K, g->columns * K,    K,
                               in ? P : P * channels,    in ? 1 : channels, in ? P * P : 1};
    return in ? oq_permute_forward(ex, y, x, dim, tokens, planes)
              : oq_permute_forward(ex, y, x, dim, planes, tokens);
}

static oq_status embed(oq_exec *ex, const step *p, oq_tensor x)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor patches;
    OQ_TRY(oq_tmp(ex, p->grid->n, p->s->patch.spec.k, &patches));
    OQ_TRY(repack(ex, p->grid, patches, x, p->s->in_channels, true));
    OQ_TRY(oq_linear_forward(ex, &p->s->patch, p->x, patches));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* y = unpatchify(proj_out(LayerNorm(x) * (1 + scale) + shift)), both from the table and temb itself */
static oq_status head(oq_exec *ex, const step *p, oq_tensor y, const char *trace)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_dit_wan *s = p->s;
    const oq_tensor table = oq_vector_tensor(&s->table);
    oq_tensor tokens, shift, scale;
    OQ_TRY(oq_tmp(ex, p->grid->n, s->proj_out.spec.n, &tokens));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, 1, s->dim, &shift));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, 1, s->dim, &scale));
    for (int r = 0; r < p->n_ranges; r++) {
        OQ_TRY(oq_add_forward(ex, shift, oq_tensor_cols(table, 0, s->dim), p->ranges[r].temb));
        OQ_TRY(oq_add_forward(ex, scale, oq_tensor_cols(table, s->dim, s->dim), p->ranges[r].temb));
        const oq_rows rows = {.x = rows_of(p, r, p->x),
                              .norm = {.kind = OQ_LAYER_NORM, .eps = (float)s->eps},
                              .scale = scale,
                              .shift = shift,
                              .one = 1.0f};
        OQ_TRY(oq_linear_rows_forward(ex, &s->proj_out, rows_of(p, r, tokens), &rows, NULL));
    }
    if (trace) OQ_TRY(oq_trace_put(ex, tokens, NULL, 0, "%s.proj_out", trace));
    OQ_TRY(repack(ex, p->grid, y, tokens, s->out_channels, false));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status check_shapes(oq_exec *ex, const oq_dit_wan *s, const oq_dit_wan_grid *g, oq_tensor x,
                              oq_tensor y, const oq_dit_wan_time *times, int n_times)
{
    const int64_t pixels = g->n * OQ_DIT_WAN_PATCH * OQ_DIT_WAN_PATCH;
    int64_t tokens = 0;
    for (int i = 0; i < n_times; i++) tokens += times[i].n;
    if (x.rows == s->in_channels && y.rows == s->out_channels && x.cols == pixels && y.cols == pixels &&
        n_times <= OQ_DIT_WAN_MAX_TIMES && tokens == g->n)
        return OQ_OK;
    return oq_fail(
        ex->env, OQ_E_ARG,
        "transformer: latents [%lld,%lld] to [%lld,%lld] with times of %lld tokens do not fit %lld channels, "
        "%lld channels and %lld tokens",
        (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols, (long long)tokens,
        (long long)s->in_channels, (long long)s->out_channels, (long long)g->n);
}

typedef struct step_args {
    step *p;
    oq_tensor x, y;
    const char *trace;
} step_args;

/* What every step does alike, once its times are made. */
static oq_status step_forward(oq_exec *ex, void *user)
{
    const step_args *a = user;
    step *p = a->p;
    char name[96];
    OQ_TRY(embed(ex, p, a->x));
    for (int64_t i = 0; i < p->s->n_layers; i++) {
        if (a->trace) snprintf(name, sizeof name, "%s.block%lld", a->trace, (long long)i);
        p->trace = a->trace && i == 0 ? name : NULL;
        OQ_TRY(block_forward(ex, p, i));
        if (a->trace) OQ_TRY(oq_trace_put(ex, p->x, NULL, 0, "%s", name));
    }
    return head(ex, p, a->y, a->trace);
}

/* Two experts may run in one request, and a step may have one time or two. */
static uint64_t step_key(const step_args *a)
{
    uint64_t key = oq_repeat_key((uintptr_t)a->x.data, a->y.data);
    key = oq_repeat_key(oq_repeat_key(key, a->p->s), a->p->text);
    for (int r = 0; r < a->p->n_ranges; r++)
        key = oq_repeat_key(key, (const void *)(uintptr_t)a->p->ranges[r].n);
    return key;
}

oq_status oq_dit_wan_forward(oq_exec *ex, const oq_dit_wan *s, const oq_dit_wan_grid *g,
                             const oq_dit_wan_condition *c, oq_tensor x, const oq_dit_wan_time *times,
                             int n_times, oq_tensor y, const char *trace)
{
    OQ_TRY(check_shapes(ex, s, g, x, y, times, n_times));
    const oq_mark mark = oq_mark_get(ex);
    step p = {.s = s, .grid = g, .text = c, .n_ranges = n_times};
    step_args args = {.p = &p, .x = x, .y = y, .trace = trace};
    OQ_TRY(oq_tmp(ex, g->n, s->dim, &p.x));
    for (int i = 0; i < n_times; i++) {
        p.ranges[i] = (range){.first = i ? p.ranges[i - 1].first + p.ranges[i - 1].n : 0, .n = times[i].n};
        OQ_TRY(time_forward(ex, s, times[i].t, &p.ranges[i], i == n_times - 1 ? trace : NULL));
    }
    OQ_TRY(oq_repeat(ex, step_key(&args), step_forward, &args));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}
