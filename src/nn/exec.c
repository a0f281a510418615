/* exec.c -- scratch as a stack, transfers, trace: what every forward stands on. */
#include "base/size.h"
#include "nn/nn.h"

#include <stdarg.h>
#include <stdio.h>

#define SCRATCH_ALIGNMENT 256 /* what device memory wants; cache lines are content with less */

oq_status oq_tmp_typed(oq_exec *ex, const oq_dtype *dtype, int64_t rows, int64_t cols, oq_tensor *out)
{
    int64_t elems;
    size_t bytes, used;
    if (rows < 0 || cols < 0 || !oq_i64_mul(rows, cols, &elems) ||
        !oq_size_mul((size_t)elems, dtype->bytes, &bytes) || bytes > SIZE_MAX / 2 ||
        !oq_size_add(ex->used, oq_align_up(bytes, SCRATCH_ALIGNMENT), &used))
        return oq_fail(ex->env, OQ_E_NOMEM, "a tensor of %lld x %lld does not fit in memory", (long long)rows,
                       (long long)cols);
    if (!ex->measure && used > ex->size)
        return oq_fail(ex->env, OQ_E_ARG, "scratch of %zu bytes was measured, %zu are needed", ex->size,
                       used);
    *out = oq_tensor_make(ex->measure ? NULL : ex->base + ex->used, dtype, rows, cols);
    ex->used = used;
    if (used > ex->peak) ex->peak = used;
    if (used > ex->peaks[ex->phase]) ex->peaks[ex->phase] = used;
    return OQ_OK;
}

oq_status oq_tmp(oq_exec *ex, int64_t rows, int64_t cols, oq_tensor *out)
{
    return oq_tmp_typed(ex, ex->compute, rows, cols, out);
}

oq_status oq_tmp_resize(oq_exec *ex, int64_t cols, oq_tensor *last)
{
    const oq_tensor old = *last;
    const size_t bytes = oq_align_up(oq_tensor_bytes(old), SCRATCH_ALIGNMENT);
    if (old.rows != 1 || ex->used < bytes || (!ex->measure && ex->base + (ex->used - bytes) != old.data))
        return oq_fail(ex->env, OQ_E_ARG, "scratch of [%lld,%lld] is not what was taken last",
                       (long long)old.rows, (long long)old.cols);
    ex->used -= bytes;
    return oq_tmp_typed(ex, old.dtype, 1, cols, last);
}

oq_status oq_upload(oq_exec *ex, oq_tensor dst, const void *src)
{
    if (ex->measure) return OQ_OK;
    return ex->backend->upload(ex->env, ex->device, dst.data, src, oq_tensor_bytes(dst));
}

oq_status oq_download(oq_exec *ex, void *dst, oq_tensor src)
{
    if (ex->measure) return OQ_OK;
    return ex->backend->download(ex->env, ex->device, dst, src.data, oq_tensor_bytes(src));
}

oq_status oq_repeat(oq_exec *ex, uint64_t key, oq_repeat_fn fn, void *user)
{
    const bool watched = ex->trace || ex->observer || ex->attention_observer;
    if (ex->measure || watched || !ex->step_kinds || ex->step < 1 || !ex->backend->graph_replay)
        return fn(ex, user);
    key = oq_repeat_key(oq_repeat_key(key, ex->base + ex->used),
                        (const void *)(uintptr_t)ex->step_kinds[ex->step - 1]);
    if (ex->backend->graph_replay(ex->device, key)) return OQ_OK;
    const bool recording = ex->backend->graph_begin(ex->device, key);
    const oq_status st = fn(ex, user);
    if (recording) ex->backend->graph_end(ex->device, key);
    return st;
}

/* Contiguous F32 (or integer) copy of t in scratch, then in host memory. */
static oq_status trace_download(oq_exec *ex, oq_tensor t, const oq_dtype *dtype, void *host)
{
    if (t.ld == t.cols && t.dtype == dtype) return oq_download(ex, host, t);
    oq_status st = OQ_OK;
    char *to = host;
    float *row = NULL;
    OQ_TRY(oq_new(ex->env, (size_t)t.cols, 8, "trace", &row));
    for (int64_t r = 0; st == OQ_OK && r < t.rows; r++) {
        st = oq_download(ex, row, oq_tensor_rows(t, r, 1));
        if (st == OQ_OK) t.dtype->to_f32((float *)to + r * t.cols, row, (size_t)t.cols);
    }
    oq_free(ex->env, row);
    return st;
}

/* A key of any length. */
static oq_status make_name(oq_env *env, const char *format, va_list args, char **out)
{
    va_list again;
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    OQ_TRY(oq_new(env, (size_t)(n > 0 ? n : 0) + 1, 1, "trace", out));
    vsnprintf(*out, (size_t)(n > 0 ? n : 0) + 1, format, args);
    return OQ_OK;
}

static oq_status trace_named(oq_exec *ex, oq_tensor t, const int64_t *shape, int n_dims, const char *name)
{
    const int64_t flat[2] = {t.rows, t.cols};
    const oq_dtype *dtype = t.dtype->floating ? &oq_dtype_f32 : t.dtype;
    void *host = NULL;
    OQ_TRY(ex->backend->sync(ex->env, ex->device));
    OQ_TRY(oq_new(ex->env, (size_t)(t.rows * t.cols), dtype->bytes, "trace", &host));
    oq_status st = trace_download(ex, t, dtype, host);
    if (st == OQ_OK)
        st = ex->trace(ex->trace_user, name, dtype, host, shape ? shape : flat, shape ? n_dims : 2);
    oq_free(ex->env, host);
    return st;
}

oq_status oq_trace_put(oq_exec *ex, oq_tensor t, const int64_t *shape, int n_dims, const char *key, ...)
{
    if (!ex->trace || ex->measure) return OQ_OK;
    char *name = NULL;
    va_list args;
    va_start(args, key);
    oq_status st = make_name(ex->env, key, args, &name);
    va_end(args);
    if (st == OQ_OK) st = trace_named(ex, t, shape, n_dims, name);
    oq_free(ex->env, name);
    return st;
}
