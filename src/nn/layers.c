/* layers.c -- forward of the handles that hold weights: linear, convolution. */
#include "base/size.h"
#include "nn/nn_internal.h"

#include <math.h>

oq_status oq_kernel_scratch(oq_exec *ex, size_t bytes, void **out)
{
    oq_tensor t;
    *out = NULL;
    if (bytes == 0) return OQ_OK;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_u8, 1, (int64_t)bytes, &t));
    *out = t.data;
    return OQ_OK;
}

/* Shape of what the product gives is [rows, n]; `post` makes y of it. */
static oq_status check_linear(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, const oq_post *post)
{
    const int64_t n = l->spec.n, k = l->spec.k;
    const bool halves = post && post->kind == OQ_POST_GLU;
    if (x.cols != k || (halves ? 2 * y.cols : y.cols) != n || x.rows != y.rows)
        return oq_fail(ex->env, OQ_E_ARG,
                       "layer '%s': [%lld,%lld] to [%lld,%lld] does not fit its [%lld,%lld]", l->name,
                       (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols,
                       (long long)n, (long long)k);
    if (!l->kernel && !l->apart)
        return oq_fail(ex->env, OQ_E_UNSUPPORTED, "layer '%s' has no kernel", l->name);
    return OQ_OK;
}

/* What surrounds a product in the same call; NULL: absent. */
typedef struct around {
    const oq_rows_args *rows;
    const oq_pre *pre;
    const oq_post *post;
    bool again; /* the last product's x */
} around;

static oq_status run_linear(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, around with);

/* y = the sum of what each part makes of its own columns of x; rounded to y's type part by part. */
static oq_status run_apart_columns(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor more;
    OQ_TRY(run_linear(ex, &l->apart[0], y, oq_tensor_cols(x, 0, l->apart[0].spec.k), (around){0}));
    OQ_TRY(oq_tmp_typed(ex, y.dtype, y.rows, y.cols, &more));
    int64_t at = l->apart[0].spec.k;
    for (int i = 1; i < l->n_apart; at += l->apart[i++].spec.k) {
        OQ_TRY(run_linear(ex, &l->apart[i], more, oq_tensor_cols(x, at, l->apart[i].spec.k), (around){0}));
        OQ_TRY(oq_add_forward(ex, y, y, more));
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* Each part of rows into its own columns of y. */
static oq_status run_apart(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x)
{
    int64_t at = 0;
    if (l->apart_columns) return run_apart_columns(ex, l, y, x);
    for (int i = 0; i < l->n_apart; at += l->apart[i++].spec.n)
        OQ_TRY(run_linear(ex, &l->apart[i], oq_tensor_cols(y, at, l->apart[i].spec.n), x, (around){0}));
    return OQ_OK;
}

/* [batch, m, n] -> [batch, n, m] in rows of n and of m */
static oq_status turn(oq_exec *ex, oq_tensor y, oq_tensor x, int64_t batch, int64_t m, int64_t n)
{
    const int64_t dim[6] = {1, 1, 1, batch, m, n}, to[6] = {0, 0, 0, m * n, 1, m},
                  from[6] = {0, 0, 0, m * n, n, 1};
    return oq_permute_forward(ex, y, x, dim, to, from);
}

/* more = (up (x) down) x with up [a, b], down [c, d], x in rows of b d, more in rows of a c: down on each of a row's b parts, then
 * up across them. */
static oq_status run_kronecker(oq_exec *ex, const oq_lora_pair *pair, oq_tensor more, oq_tensor x)
{
    const int64_t a = pair->up.spec.n, b = pair->up.spec.k, c = pair->down.spec.n, d = pair->down.spec.k,
                  m = x.rows;
    oq_tensor parts, inner, turned, outer;
    OQ_TRY(oq_tmp_typed(ex, x.dtype, m, b * d, &parts));
    OQ_TRY(oq_tmp_typed(ex, x.dtype, m * b, c, &inner));
    OQ_TRY(oq_tmp_typed(ex, x.dtype, m * c, b, &turned));
    OQ_TRY(oq_tmp_typed(ex, more.dtype, m * c, a, &outer));
    OQ_TRY(oq_copy_forward(ex, parts, x));
    OQ_TRY(run_linear(ex, &pair->down, inner, oq_tensor_reshape(parts, m * b, d), (around){0}));
    OQ_TRY(turn(ex, turned, inner, m, b, c));
    OQ_TRY(run_linear(ex, &pair->up, outer, turned, (around){0}));
    return turn(ex, oq_tensor_reshape(more, m * a, c), outer, m, c, a);
}

static oq_status run_product(oq_exec *ex, const oq_lora_pair *pair, oq_tensor more, oq_tensor x)
{
    oq_tensor inner;
    OQ_TRY(oq_tmp_typed(ex, x.dtype, x.rows, pair->down.spec.n, &inner));
    OQ_TRY(run_linear(ex, &pair->down, inner, x, (around){0}));
    return run_linear(ex, &pair->up, more, inner, (around){0});
}

/* Columns of y += what each adapter gives. */
static oq_status add_adapters(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x)
{
    for (const oq_lora_pair *pair = l->lora; pair; pair = pair->next) {
        const oq_mark mark = oq_mark_get(ex);
        const oq_tensor part = oq_tensor_cols(y, pair->at, pair->n);
        const bool kronecker = pair->form == OQ_LORA_KRONECKER;
        oq_tensor more;
        OQ_TRY(oq_tmp_typed(ex, y.dtype, y.rows, kronecker ? pair->up.spec.n * pair->down.spec.n : pair->n,
                            &more));
        if (kronecker)
            OQ_TRY(run_kronecker(ex, pair, more, x));
        else if (pair->form == OQ_LORA_WHOLE)
            OQ_TRY(run_linear(ex, &pair->up, more, x, (around){0}));
        else
            OQ_TRY(run_product(ex, pair, more, x));
        OQ_TRY(oq_add_forward(ex, part, part, oq_tensor_cols(more, pair->from, pair->n)));
        oq_mark_reset(ex, mark);
    }
    return OQ_OK;
}

/* How the layer is multiplied in the running step. */
static const oq_linear_spec *spec_of_step(const oq_exec *ex, const oq_linear *l)
{
    for (size_t i = 0; i < l->n_steps; i++)
        if (l->steps[i] == ex->step - 1) return &l->at_steps;
    return &l->spec;
}

static size_t most_scratch(const oq_linear *l, int64_t m)
{
    const size_t bytes = l->kernel->scratch_bytes(&l->spec, m);
    const size_t other = l->n_steps ? l->kernel->scratch_bytes(&l->at_steps, m) : 0;
    return other > bytes ? other : bytes;
}

/* Weights that live in host memory, where the device finds them now. */
static const void *stream(const oq_exec *ex, const oq_linear *l)
{
    return ex->backend->window_get(l->window, l->packed, l->stream_bytes);
}

static const float *bias_behind(const oq_linear *l, const char *at)
{
    if (!l->bias) return NULL;
    return (const float *)(const void *)(at + ((const char *)l->bias - (const char *)l->packed));
}

/* One call of the layer's kernel; `with` only as it fuses it. */
static oq_status run_kernel(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, around with)
{
    const oq_mark mark = oq_mark_get(ex);
    void *scratch = NULL;
    OQ_TRY(oq_kernel_scratch(ex, most_scratch(l, x.rows), &scratch));
    oq_mark_reset(ex, mark);
    if (!ex->measure && x.rows) {
        const char *const at = l->streamed ? stream(ex, l) : l->packed;
        const oq_linear_args args = {.spec = spec_of_step(ex, l),
                                     .packed = at,
                                     .bias = l->streamed ? bias_behind(l, at) : l->bias,
                                     .scratch = scratch,
                                     .x = x,
                                     .y = y,
                                     .rows = with.rows,
                                     .post = with.post,
                                     .pre = with.pre,
                                     .again = with.again};
        l->kernel->run(ex->device, &args);
    }
    return OQ_OK;
}

static oq_status run_linear(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, around with)
{
    OQ_TRY(check_linear(ex, l, y, x, with.post));
    OQ_TRY(l->apart ? run_apart(ex, l, y, x) : run_kernel(ex, l, y, x, with));
    OQ_TRY(add_adapters(ex, l, y, x));
    if (ex->measure || x.rows == 0 || !ex->observer) return OQ_OK;
    OQ_TRY(ex->backend->sync(ex->env, ex->device));
    return ex->observer(ex->observer_user, l, x, y);
}

oq_status oq_linear_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x)
{
    return run_linear(ex, l, y, x, (around){0});
}

/* ---- products with what surrounds them ----------------------------------------------------------------- */

/* What is fused now: an observer wants to see the product itself. */
static unsigned fused_now(const oq_exec *ex, const oq_linear *l)
{
    return ex->observer ? 0 : l->fused;
}

static unsigned fusion_of(const oq_post *post)
{
    static const unsigned bits[] = {[OQ_POST_NONE] = 0,
                                    [OQ_POST_UNARY] = OQ_FUSE_UNARY,
                                    [OQ_POST_GLU] = OQ_FUSE_GLU,
                                    [OQ_POST_ADD] = OQ_FUSE_ADD};
    return post ? bits[post->kind] : 0;
}

static oq_status apply_post(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor product,
                            const oq_post *post)
{
    const int64_t half = l->spec.n / 2;
    if (post->kind == OQ_POST_UNARY) return oq_unary_forward(ex, post->unary, y, product);
    if (post->kind == OQ_POST_ADD) return oq_add_gated_forward(ex, y, post->residual, post->gate, product);
    return oq_glu_forward(ex, post->unary, y, oq_tensor_cols(product, 0, half),
                          oq_tensor_cols(product, half, half));
}

static oq_status product_then_post(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor product,
                                   oq_tensor x, around with)
{
    const oq_post *const post = with.post;
    with.post = NULL;
    OQ_TRY(run_linear(ex, l, product, x, with));
    return apply_post(ex, l, y, product, post);
}

/* A fused layer that is observed: its product has no place in the scratch that was measured. */
static oq_status observed_post(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, around with)
{
    oq_tensor product = oq_tensor_make(NULL, y.dtype, x.rows, l->spec.n);
    OQ_TRY(ex->backend->buffer_new(ex->env, ex->device, oq_tensor_bytes(product), &product.data));
    oq_status st = product_then_post(ex, l, y, product, x, with);
    const oq_status synced = ex->backend->sync(ex->env, ex->device);
    ex->backend->buffer_free(ex->env, ex->device, product.data);
    return st == OQ_OK ? synced : st;
}

/* In one call where the kernel can, else the product into scratch and the operation on it. */
static oq_status with_post(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, around with)
{
    const unsigned want = fusion_of(with.post);
    if (!want) return run_linear(ex, l, y, x, with);
    OQ_TRY(check_linear(ex, l, y, x, with.post));
    const oq_tensor shape = oq_tensor_make(NULL, y.dtype, x.rows, l->spec.n);
    if (fused_now(ex, l) & want) {
        if (ex->measure)
            OQ_TRY(apply_post(ex, l, y, shape, with.post)); /* checks shapes, and that an observer could */
        return run_linear(ex, l, y, x, with);
    }
    if ((l->fused & want) && !ex->measure) return observed_post(ex, l, y, x, with);
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor product;
    OQ_TRY(oq_tmp_typed(ex, shape.dtype, shape.rows, shape.cols, &product));
    OQ_TRY(product_then_post(ex, l, y, product, x, with));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

oq_status oq_linear_post_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x,
                                 const oq_post *post)
{
    return with_post(ex, l, y, x, (around){.post = post});
}

oq_status oq_linear_post_traced(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x,
                                const oq_post *post, const char *key)
{
    if (!key || !ex->trace || ex->measure) return with_post(ex, l, y, x, (around){.post = post});
    oq_tensor product = oq_tensor_make(NULL, y.dtype, x.rows, l->spec.n);
    OQ_TRY(ex->backend->buffer_new(ex->env, ex->device, oq_tensor_bytes(product), &product.data));
    oq_status st = run_linear(ex, l, product, x, (around){0});
    if (st == OQ_OK) st = oq_trace_put(ex, product, NULL, 0, "%s", key);
    if (st == OQ_OK) st = apply_post(ex, l, y, product, post);
    const oq_status synced = ex->backend->sync(ex->env, ex->device);
    ex->backend->buffer_free(ex->env, ex->device, product.data);
    return st == OQ_OK ? synced : st;
}

oq_status oq_linear_rows_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, const oq_rows *rows,
                                 const oq_post *post)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor h;
    OQ_TRY(oq_tmp_typed(ex, rows->x.dtype, rows->x.rows, rows->x.cols, &h));
    if (ex->measure || !(fused_now(ex, l) & OQ_FUSE_ROWS)) { /* measuring checks the shapes of every step */
        OQ_TRY(oq_rows_forward(ex, rows, h));
        OQ_TRY(with_post(ex, l, y, h, (around){.post = post}));
    } else {
        const oq_rows_args args = oq_rows_args_of(rows, h);
        OQ_TRY(with_post(ex, l, y, h, (around){.rows = &args, .post = post}));
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* Does b's kernel find in its scratch what it would make of the x of a, which it multiplied just before? */
static bool shares_x(const oq_exec *ex, const oq_linear *a, const oq_linear *b, const oq_post *post)
{
    const oq_scheme *s = &a->spec.scheme, *t = &b->spec.scheme;
    const unsigned want = fusion_of(post);
    return !ex->measure && a->kernel == b->kernel && s->act == t->act && s->act_scale == t->act_scale &&
           s->act_scale != OQ_ACT_STATIC_TENSOR && !a->n_steps && !b->n_steps &&
           (fused_now(ex, a) & fused_now(ex, b) & OQ_FUSE_AGAIN) && (fused_now(ex, b) & want) == want;
}

oq_status oq_linear_two_rows_forward(oq_exec *ex, const oq_linear *a, oq_tensor y, const oq_linear *b,
                                     oq_tensor z, const oq_post *post, const oq_rows *rows)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor h;
    OQ_TRY(oq_tmp_typed(ex, rows->x.dtype, rows->x.rows, rows->x.cols, &h));
    const bool shared = shares_x(ex, a, b, post);
    const oq_rows_args args = oq_rows_args_of(rows, h);
    if (!shared) OQ_TRY(oq_rows_forward(ex, rows, h));
    OQ_TRY(run_linear(ex, a, y, h, (around){.rows = shared ? &args : NULL}));
    OQ_TRY(with_post(ex, b, z, h, (around){.post = post, .again = shared}));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status apply_pre(oq_exec *ex, oq_tensor x, const oq_pre *pre)
{
    const oq_tensor to = oq_tensor_cols(x, pre->from, x.cols - pre->from);
    return pre->b.rows ? oq_glu_forward(ex, pre->unary, to, pre->a, pre->b)
                       : oq_unary_forward(ex, pre->unary, to, pre->a);
}

oq_status oq_linear_pre_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, const oq_pre *pre,
                                const oq_post *post)
{
    if (pre->from < 0 || pre->from > x.cols)
        return oq_fail(ex->env, OQ_E_ARG, "layer '%s': columns from %lld of %lld cannot be made", l->name,
                       (long long)pre->from, (long long)x.cols);
    if (!ex->measure && (fused_now(ex, l) & OQ_FUSE_PRE))
        return with_post(ex, l, y, x, (around){.pre = pre, .post = post});
    OQ_TRY(apply_pre(ex, x, pre));
    return with_post(ex, l, y, x, (around){.post = post});
}

static oq_status first_of_pair(oq_exec *ex, const oq_pair *p, oq_tensor y, const oq_post *act)
{
    return p->rows ? oq_linear_rows_forward(ex, p->first, y, p->rows, act)
                   : oq_linear_post_forward(ex, p->first, y, p->x, act);
}

oq_status oq_pair_forward(oq_exec *ex, const oq_pair *p, oq_tensor y)
{
    const oq_mark mark = oq_mark_get(ex);
    const oq_tensor x = p->rows ? p->rows->x : p->x;
    const int64_t k = p->second->spec.k;
    const bool gated = p->act->kind == OQ_POST_GLU;
    oq_tensor h;
    if (!(p->second->fused & OQ_FUSE_PRE)) {
        OQ_TRY(oq_tmp_typed(ex, x.dtype, x.rows, k, &h));
        OQ_TRY(first_of_pair(ex, p, h, p->act));
        OQ_TRY(oq_linear_post_forward(ex, p->second, y, h, p->post));
    } else {
        OQ_TRY(oq_tmp_typed(ex, x.dtype, x.rows, p->first->spec.n, &h));
        OQ_TRY(first_of_pair(ex, p, h, NULL));
        if (h.cols != (gated ? 2 * k : k))
            return oq_fail(ex->env, OQ_E_ARG, "layers '%s' and '%s': %lld columns do not fit %lld",
                           p->first->name, p->second->name, (long long)h.cols, (long long)k);
        const oq_pre pre = {.unary = p->act->unary,
                            .a = oq_tensor_cols(h, 0, k),
                            .b = gated ? oq_tensor_cols(h, k, k) : oq_absent()};
        OQ_TRY(oq_linear_pre_forward(ex, p->second, y, pre.a, &pre, p->post));
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- convolutions -------------------------------------------------------------------------------------- */

/* Runs a convolution whose shapes were checked. */
static oq_status run_conv(oq_exec *ex, const oq_conv2d *c, oq_conv2d_args args)
{
    if (!c->kernel) return oq_fail(ex->env, OQ_E_UNSUPPORTED, "layer '%s' has no kernel", c->name);
    const oq_mark mark = oq_mark_get(ex);
    args.spec = &c->spec;
    args.packed = c->packed;
    args.bias = c->bias;
    OQ_TRY(
        oq_kernel_scratch(ex, c->kernel->scratch_bytes(&c->spec, args.batch, args.h, args.w), &args.scratch));
    oq_mark_reset(ex, mark);
    if (ex->measure || args.y.rows == 0) return OQ_OK;
    c->kernel->run(ex->device, &args);
    return OQ_OK;
}

/* As oq_conv2d_forward for x twice as large as it is. */
static oq_status upsample_then_conv(oq_exec *ex, const oq_conv2d *c, oq_tensor y, oq_tensor x, int64_t batch,
                                    int64_t h, int64_t w)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor large;
    OQ_TRY(oq_tmp_typed(ex, x.dtype, 4 * x.rows, x.cols, &large));
    OQ_TRY(oq_upsample2x_forward(ex, large, x, batch, h, w));
    OQ_TRY(run_conv(ex, c, (oq_conv2d_args){.x = large, .y = y, .batch = batch, .h = 2 * h, .w = 2 * w}));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

oq_status oq_conv2d_forward(oq_exec *ex, const oq_conv2d *c, oq_tensor y, oq_tensor x, int64_t batch,
                            int64_t h, int64_t w)
{
    const oq_conv2d_spec *s = &c->spec;
    const int64_t up = c->upsample_first ? 2 : 1;
    const int64_t oh = oq_conv2d_out_h(s, h * up), ow = oq_conv2d_out_w(s, w * up);
    if (x.cols != s->c_in || y.cols != s->c_out || x.rows != batch * h * w || y.rows != batch * oh * ow ||
        s->kt)
        return oq_fail(ex->env, OQ_E_ARG,
                       "layer '%s': [%lld,%lld] to [%lld,%lld] does not fit %lld x %lld x %lld pixels",
                       c->name, (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols,
                       (long long)batch, (long long)h, (long long)w);
    if (c->upsample_first) return upsample_then_conv(ex, c, y, x, batch, h, w);
    return run_conv(ex, c, (oq_conv2d_args){.x = x, .y = y, .batch = batch, .h = h, .w = w});
}

/* Are `before` frames that go before x's? */
static bool fits_before(const oq_conv2d_spec *s, oq_tensor before, oq_tensor x, int64_t entry_pixels)
{
    if (before.rows == 0) return true;
    return before.cols == x.cols && before.dtype == x.dtype && entry_pixels > 0 &&
           before.rows % entry_pixels == 0 && before.rows / entry_pixels <= s->pad_front;
}

oq_status oq_conv3d_forward(oq_exec *ex, const oq_conv2d *c, oq_tensor y, oq_tensor x, oq_tensor before,
                            int64_t batch, int64_t frames, int64_t h, int64_t w)
{
    const oq_conv2d_spec *s = &c->spec;
    const int64_t out = s->kt ? batch * oq_conv2d_out_frames(s, frames) : 0;
    if (s->kt == 0 || x.cols != s->c_in || y.cols != s->c_out || x.rows != batch * frames * h * w ||
        y.rows != out * oq_conv2d_out_h(s, h) * oq_conv2d_out_w(s, w))
        return oq_fail(
            ex->env, OQ_E_ARG,
            "layer '%s': [%lld,%lld] to [%lld,%lld] does not fit %lld x %lld frames of %lld x %lld "
            "pixels",
            c->name, (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols,
            (long long)batch, (long long)frames, (long long)h, (long long)w);
    if (!fits_before(s, before, x, batch * h * w))
        return oq_fail(
            ex->env, OQ_E_ARG,
            "layer '%s': [%lld,%lld] are not at most %d frames of %lld x %lld x %lld pixels before "
            "the first",
            c->name, (long long)before.rows, (long long)before.cols, s->pad_front, (long long)batch,
            (long long)h, (long long)w);
    const int64_t n_before = before.rows ? before.rows / (batch * h * w) : 0;
    return run_conv(ex, c,
                    (oq_conv2d_args){.x = x,
                                     .y = y,
                                     .batch = batch,
                                     .h = h,
                                     .w = w,
                                     .frames = frames,
                                     .before = before,
                                     .n_before = n_before});
}
