/* layers.c -- forward of the handles that hold weights or kernels: linear, convolution, attention. */
#include "base/size.h"
#include "nn/nn.h"

#include <math.h>

/* Raw scratch for a kernel, given back by the caller's mark. */
static oq_status kernel_scratch(oq_exec *ex, size_t bytes, void **out)
{
    oq_tensor t;
    *out = NULL;
    if (bytes == 0) return OQ_OK;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_u8, 1, (int64_t)bytes, &t));
    *out = t.data;
    return OQ_OK;
}

oq_status oq_linear_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x)
{
    const int64_t n = l->spec.n, k = l->spec.k;
    if (x.cols != k || y.cols != n || x.rows != y.rows)
        return oq_fail(ex->env, OQ_E_ARG,
                       "layer '%s': [%lld,%lld] to [%lld,%lld] does not fit its [%lld,%lld]", l->name,
                       (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols,
                       (long long)n, (long long)k);
    if (!l->kernel) return oq_fail(ex->env, OQ_E_UNSUPPORTED, "layer '%s' has no kernel", l->name);

    const oq_mark mark = oq_mark_get(ex);
    void *scratch = NULL;
    OQ_TRY(kernel_scratch(ex, l->kernel->scratch_bytes(&l->spec, x.rows), &scratch));
    oq_mark_reset(ex, mark);
    if (ex->measure || x.rows == 0) return OQ_OK;
    const oq_linear_args args = {
        .spec = &l->spec, .packed = l->packed, .bias = l->bias, .scratch = scratch, .x = x, .y = y};
    l->kernel->run(ex->device, &args);
    if (!ex->observer) return OQ_OK;
    OQ_TRY(ex->backend->sync(ex->env, ex->device));
    return ex->observer(ex->observer_user, l, x, y);
}

static int64_t conv_out(int64_t size, int pad, int kernel, int stride)
{
    return (size + pad - kernel) / stride + 1;
}

oq_status oq_conv2d_forward(oq_exec *ex, const oq_conv2d *c, oq_tensor y, oq_tensor x, int64_t batch,
                            int64_t h, int64_t w)
{
    const oq_conv2d_spec *s = &c->spec;
    const int64_t oh = conv_out(h, s->pad_top + s->pad_bottom, s->kh, s->stride);
    const int64_t ow = conv_out(w, s->pad_left + s->pad_right, s->kw, s->stride);
    if (x.cols != s->c_in || y.cols != s->c_out || x.rows != batch * h * w || y.rows != batch * oh * ow)
        return oq_fail(ex->env, OQ_E_ARG,
                       "layer '%s': [%lld,%lld] to [%lld,%lld] does not fit %lld x %lld x %lld pixels",
                       c->name, (long long)x.rows, (long long)x.cols, (long long)y.rows, (long long)y.cols,
                       (long long)batch, (long long)h, (long long)w);
    if (!c->kernel) return oq_fail(ex->env, OQ_E_UNSUPPORTED, "layer '%s' has no kernel", c->name);

    const oq_mark mark = oq_mark_get(ex);
    void *scratch = NULL;
    OQ_TRY(kernel_scratch(ex, c->kernel->scratch_bytes(s, batch, h, w), &scratch));
    oq_mark_reset(ex, mark);
    if (ex->measure) return OQ_OK;
    const oq_conv2d_args args = {.spec = s,
                                 .packed = c->packed,
                                 .bias = c->bias,
                                 .scratch = scratch,
                                 .x = x,
                                 .y = y,
                                 .batch = batch,
                                 .h = h,
                                 .w = w};
    c->kernel->run(ex->device, &args);
    return OQ_OK;
}

static oq_status check_attention(oq_exec *ex, const oq_attention *a, oq_tensor o, oq_tensor q, oq_tensor k,
                                 oq_tensor v)
{
    const int64_t width = a->spec.n_heads * a->spec.head_dim,
                  kv_width = a->spec.n_kv_heads * a->spec.head_dim;
    if (q.cols == width && o.cols == width && k.cols == kv_width && v.cols == kv_width && o.rows == q.rows &&
        k.rows == v.rows)
        return a->kernel ? OQ_OK : oq_fail(ex->env, OQ_E_UNSUPPORTED, "layer '%s' has no kernel", a->name);
    return oq_fail(
        ex->env, OQ_E_ARG,
        "layer '%s': q [%lld,%lld], k [%lld,%lld], v [%lld,%lld], o [%lld,%lld] do not fit %lld heads over "
        "%lld of %lld",
        a->name, (long long)q.rows, (long long)q.cols, (long long)k.rows, (long long)k.cols,
        (long long)v.rows, (long long)v.cols, (long long)o.rows, (long long)o.cols,
        (long long)a->spec.n_heads, (long long)a->spec.n_kv_heads, (long long)a->spec.head_dim);
}

oq_status oq_attention_forward(oq_exec *ex, const oq_attention *a, oq_tensor o, oq_tensor q, oq_tensor k,
                               oq_tensor v, const oq_attention_extra *extra)
{
    OQ_TRY(check_attention(ex, a, o, q, k, v));
    const oq_mark mark = oq_mark_get(ex);
    void *scratch = NULL;
    OQ_TRY(kernel_scratch(ex, a->kernel->scratch_bytes(&a->spec, q.rows, k.rows), &scratch));
    oq_mark_reset(ex, mark);
    if (ex->measure || q.rows == 0) return OQ_OK;
    oq_attention_args args = {.spec = &a->spec, .q = q, .k = k, .v = v, .o = o, .scratch = scratch};
    if (extra) {
        args.scale = extra->scale;
        args.key_mask = extra->key_mask;
        args.bias = extra->bias;
        args.bias_head = extra->bias_head;
        args.bias_row = extra->bias_row;
    }
    if (!(args.scale > 0.0f)) args.scale = 1.0f / sqrtf((float)a->spec.head_dim);
    a->kernel->run(ex->device, &args);
    return OQ_OK;
}
