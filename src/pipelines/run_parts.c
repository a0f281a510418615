/* run_parts.c -- what families do alike while they run. */
#include "pipelines/run_parts.h"

#include "pipelines/finite_probe.h"

#include <stdio.h>

void oq_run_tell(const oq_exec *ex, const char *phase, int64_t done, int64_t total, double started_s)
{
    if (!ex->measure) oq_report_progress(ex->env, phase, done, total, oq_now_s() - started_s);
}

const char *oq_run_prefix(const oq_exec *ex, const char *name, int64_t item, char out[OQ_RUN_PREFIX_MAX])
{
    if (!ex->trace) return NULL;
    if (item == 0)
        snprintf(out, OQ_RUN_PREFIX_MAX, "%s", name);
    else
        snprintf(out, OQ_RUN_PREFIX_MAX, "%s.%lld", name, (long long)item);
    return out;
}

oq_status oq_run_not_finite(oq_exec *ex, oq_run_again again, void *user, const char *component,
                            const char *what)
{
    oq_finite_probe probe;
    const oq_trace_sink sink = ex->trace;
    oq_finite_probe_begin(&probe, ex);
    ex->trace = NULL;
    const oq_status st = again(ex, user);
    ex->trace = sink;
    oq_finite_probe_end(&probe);
    return st == OQ_OK ? oq_finite_probe_fail(&probe, component, what) : st;
}

oq_status oq_run_checked(oq_exec *ex, oq_run_again again, void *user, oq_tensor y, const char *component,
                         const char *what)
{
    OQ_TRY(again(ex, user));
    if (ex->measure || !ex->ops->all_finite || ex->ops->all_finite(ex->device, y)) return OQ_OK;
    return oq_run_not_finite(ex, again, user, component, what);
}

void oq_values_transpose(float *dst, const float *src, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) dst[j * rows + i] = src[i * cols + j];
}
