/* network.h -- one network by itself: out of an open model, or loaded alone and whole (a pipeline leaves out what it never
 * runs); a call with scratch of its own, and rows traced as planes. */
#ifndef OQ_TESTS_PARITY_NETWORK_H
#define OQ_TESTS_PARITY_NETWORK_H

#include "cpu/cpu.h"
#include "engine/engine.h"
#include "load/load.h"
#include "parity/stages.h"

typedef oq_status (*network_call)(oq_exec *ex, void *user);

typedef struct network_place {
    oq_env *env;
    const oq_backend *backend;
    oq_device *device;
    const oq_dtype *compute;
} network_place;

/* Scratch is measured by the same call. */
static inline void network_call_at(const network_place *at, network_call call, void *user, stages *kept)
{
    oq_exec ex = {.env = at->env,
                  .backend = at->backend,
                  .device = at->device,
                  .ops = at->backend->ops(at->device),
                  .compute = at->compute,
                  .measure = true};
    void *scratch = NULL;
    oq_status st = call(&ex, user);
    if (st == OQ_OK) st = ex.backend->buffer_new(at->env, ex.device, ex.peak, &scratch);
    ex.measure = false;
    ex.base = scratch;
    ex.size = ex.peak;
    ex.peak = ex.used = 0;
    ex.trace = stages_keep;
    ex.trace_user = kept;
    if (st == OQ_OK) st = call(&ex, user);
    assert_true(ex.peak == ex.size || st != OQ_OK);
    ex.backend->buffer_free(at->env, ex.device, scratch);
    if (st != OQ_OK) fail_msg("%s", oq_env_error(at->env));
}

static inline void network_run(oq_env *env, const oq_model *model, network_call call, void *user, stages *kept)
{
    const network_place at = {env, model->backend, model->device, model->plan->compute};
    network_call_at(&at, call, user, kept);
}

typedef struct network_part { /* one component of a folder, alone; float32 on the CPU */
    oq_env *env;
    oq_device *device;
    oq_ckpt *ckpt;
    oq_json *config;
    oq_plan *plan;
    oq_weights *weights;
    void *self; /* the network */
} network_part;

static inline void network_part_plan(network_part *p, const char *component, const char *class_name)
{
    const oq_resolve_input ri = {.name = component, .class_name = class_name, .ckpt = p->ckpt};
    const oq_plan_input pi = {.name = component,
                              .class_name = class_name,
                              .module = oq_module_find(class_name),
                              .config = p->config,
                              .ckpt = p->ckpt};
    oq_resolved *resolved = NULL;
    oq_status st = oq_resolve(p->env, NULL, &ri, 1, &resolved);
    const oq_plan_params params = {.backend = &oq_backend_cpu,
                                   .device = p->device,
                                   .compute = &oq_dtype_f32,
                                   .resolved = resolved,
                                   .inputs = &pi,
                                   .n_inputs = 1};
    if (st == OQ_OK) st = oq_plan_build(p->env, &params, &p->plan);
    if (st == OQ_OK) st = oq_load(p->env, p->plan, &p->weights);
    if (st != OQ_OK) fail_msg("%s", oq_env_error(p->env));
    p->self = p->plan->components[0].self;
}

static inline void network_part_open(network_part *p, oq_env *env, const char *folder, const char *component,
                                     const char *class_name)
{
    char path[1200];
    *p = (network_part){.env = env};
    oq_status st = oq_backend_cpu.open(env, 0, NULL, &p->device);
    snprintf(path, sizeof path, "%s/%s", folder, component);
    if (st == OQ_OK) st = oq_ckpt_open_folder(env, path, NULL, &p->ckpt);
    snprintf(path, sizeof path, "%s/%s/config.json", folder, component);
    if (st == OQ_OK) st = oq_json_parse_file(env, path, 1 << 20, &p->config);
    if (st != OQ_OK) fail_msg("%s", oq_env_error(env));
    network_part_plan(p, component, class_name);
}

static inline void network_part_close(network_part *p)
{
    oq_weights_free(p->env, p->weights);
    oq_plan_free(p->plan);
    oq_json_free(p->config);
    oq_ckpt_close(p->ckpt);
    oq_backend_cpu.close(p->env, p->device);
}

static inline void network_part_run(const network_part *p, network_call call, void *user, stages *kept)
{
    const network_place at = {p->env, &oq_backend_cpu, p->device, &oq_dtype_f32};
    network_call_at(&at, call, user, kept);
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
