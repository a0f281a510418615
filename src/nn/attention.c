/* attention.c -- forward of attention: in each step the kernel of the mode that applies. */
#include "nn/nn_internal.h"

#include "base/size.h"

#include <math.h>

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

/* What of the layer's modes the running step switches on. */
static unsigned mode_of_step(const oq_exec *ex, const oq_attention *a)
{
    const int64_t step = ex->step - 1;
    unsigned mode = a->modes;
    for (size_t i = 0; i < a->steps->n_plain; i++)
        if (step >= a->steps->plain[i].first && step <= a->steps->plain[i].last)
            mode &= ~(unsigned)OQ_MODE_QUANTIZED;
    if (step < a->steps->sparse.first || step > a->steps->sparse.last) mode &= ~(unsigned)OQ_MODE_SPARSE;
    return mode;
}

static oq_status check_sparse(oq_exec *ex, const oq_attention *a, oq_tensor q, oq_tensor k,
                              const oq_attention_extra *extra)
{
    const int64_t blocks = oq_ceil_div(q.rows, OQ_ATTENTION_SPARSE_BLOCK);
    if (q.rows != k.rows || (extra && extra->bias))
        return oq_fail(ex->env, OQ_E_UNSUPPORTED,
                       "layer '%s': block-sparse attention is for self-attention%s", a->name,
                       q.rows == k.rows ? " without a bias" : "");
    if (blocks >= OQ_ATTENTION_SPARSE_LEAST) return OQ_OK;
    return oq_fail(
        ex->env, OQ_E_ARG,
        "layer '%s': block-sparse attention needs %d blocks of %d tokens, this request has %lld tokens",
        a->name, OQ_ATTENTION_SPARSE_LEAST, OQ_ATTENTION_SPARSE_BLOCK, (long long)q.rows);
}

/* The largest that any step may need. */
static size_t scratch_of_modes(const oq_attention *a, int64_t n_q, int64_t n_kv)
{
    size_t most = a->kernel->scratch_bytes(&a->spec, n_q, n_kv);
    for (unsigned mode = 1; mode < OQ_N_MODES; mode++) {
        if (!a->mode_kernel[mode]) continue;
        const size_t bytes = a->mode_kernel[mode]->scratch_bytes(&a->mode_spec[mode], n_q, n_kv);
        if (bytes > most) most = bytes;
    }
    return most;
}

static void run_attention(oq_exec *ex, const oq_attention *a, unsigned mode, oq_attention_args *args,
                          const oq_attention_extra *extra)
{
    if (extra) {
        args->scale = extra->scale;
        args->key_mask = extra->key_mask;
        args->bias = extra->bias;
        args->bias_head = extra->bias_head;
        args->bias_row = extra->bias_row;
    }
    if (!(args->scale > 0.0f)) args->scale = 1.0f / sqrtf((float)a->spec.head_dim);
    args->spec = mode ? &a->mode_spec[mode] : &a->spec;
    (mode ? a->mode_kernel[mode] : a->kernel)->run(ex->device, args);
}

oq_status oq_attention_forward(oq_exec *ex, const oq_attention *a, oq_tensor o, oq_tensor q, oq_tensor k,
                               oq_tensor v, const oq_attention_extra *extra)
{
    OQ_TRY(check_attention(ex, a, o, q, k, v));
    if (a->modes & OQ_MODE_SPARSE) OQ_TRY(check_sparse(ex, a, q, k, extra));
    if (a->modes && !ex->measure && ex->step < 1)
        return oq_fail(ex->env, OQ_E_ARG, "layer '%s': quantized attention runs outside of a step", a->name);
    const oq_mark mark = oq_mark_get(ex);
    void *scratch = NULL;
    OQ_TRY(oq_kernel_scratch(ex, scratch_of_modes(a, q.rows, k.rows), &scratch));
    oq_mark_reset(ex, mark);
    if (ex->measure || q.rows == 0) return OQ_OK;
    oq_attention_args args = {.q = q, .k = k, .v = v, .o = o, .scratch = scratch};
    const unsigned mode = a->modes ? mode_of_step(ex, a) : 0;
    run_attention(ex, a, mode, &args, extra);
    if (!mode || !ex->attention_observer) return OQ_OK;
    OQ_TRY(ex->backend->sync(ex->env, ex->device));
    return ex->attention_observer(ex->observer_user, a, &args);
}
