/* network.h -- one network by itself, beside whole pipelines: a call with scratch of its own, and rows traced as planes. */
#ifndef OQ_TESTS_PARITY_NETWORK_H
#define OQ_TESTS_PARITY_NETWORK_H

#include "engine/engine.h"
#include "parity/stages.h"

typedef oq_status (*network_call)(oq_exec *ex, void *user);

/* Scratch is measured by the same call. */
static inline void network_run(oq_env *env, const oq_model *model, network_call call, void *user, stages *kept)
{
    oq_exec ex = {.env = env,
                  .backend = model->backend,
                  .device = model->device,
                  .ops = model->backend->ops(model->device),
                  .compute = model->plan->compute,
                  .measure = true};
    void *scratch = NULL;
    oq_status st = call(&ex, user);
    if (st == OQ_OK) st = ex.backend->buffer_new(env, ex.device, ex.peak, &scratch);
    ex.measure = false;
    ex.base = scratch;
    ex.size = ex.peak;
    ex.peak = ex.used = 0;
    ex.trace = stages_keep;
    ex.trace_user = kept;
    if (st == OQ_OK) st = call(&ex, user);
    assert_true(ex.peak == ex.size || st != OQ_OK);
    ex.backend->buffer_free(env, ex.device, scratch);
    if (st != OQ_OK) fail_msg("%s", oq_env_error(env));
}

/* rows [n, c] as planes [c, n] under `key` */
static inline oq_status network_trace_planes(oq_exec *ex, oq_tensor x, const char *key)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor planes;
    OQ_TRY(oq_tmp(ex, x.cols, x.rows, &planes));
    const int64_t dim[6] = {1, 1, 1, 1, x.cols, x.rows}, to[6] = {0, 0, 0, 0, x.rows, 1},
                  from[6] = {0, 0, 0, 0, 1, x.ld};
    OQ_TRY(oq_permute_forward(ex, planes, x, dim, to, from));
    OQ_TRY(oq_trace_put(ex, planes, NULL, 0, "%s", key));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

#endif
