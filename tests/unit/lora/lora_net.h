/* lora_net.h -- small networks with adapters, for the tests of this folder. cmocka's headers come before, and LORA_SCRATCH: a
 * folder's name of the program's own, since they run side by side. */
#ifndef OQ_TESTS_LORA_NET_H
#define OQ_TESTS_LORA_NET_H

#include "cpu/cpu.h"
#include "load/load.h"
#include "lora/lora.h"
#include "modules/dit_flux1/dit_flux1.h"
#include "pipelines/pipeline.h"
#include "support/scratch.h"
#include "support/st_writer.h"
#include "support/tiny_net.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 3 };

typedef struct fixture {
    oq_env *env;
    oq_device *device;
    char dir[512];
} fixture;

static inline int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f || oq_env_new(NULL, &f->env) != OQ_OK || oq_backend_cpu.open(f->env, 0, NULL, &f->device) != OQ_OK)
        return -1;
    snprintf(f->dir, sizeof f->dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, LORA_SCRATCH));
    *state = f;
    return 0;
}

static inline int teardown(void **state)
{
    fixture *f = *state;
    oq_backend_cpu.close(f->env, f->device);
    oq_env_free(f->env);
    free(f);
    return 0;
}

/* ---- networks with weights by name --------------------------------------------------------------------- */

typedef struct net {
    oq_plan *plan;
    oq_weights *weights;
    oq_loras *loras;
} net;

static inline void net_plan(fixture *f, const oq_module_type *module, const char *config_text,
                     const char *quantization, net *out)
{
    static const char *const components[] = {"transformer"};
    const char *class_name = module->class_names[0];
    const oq_resolve_input ri = {.name = "transformer", .class_name = class_name, .quantizable = true};
    oq_json *config = NULL;
    oq_quant_config *wish = NULL;
    oq_resolved *resolved = NULL;
    *out = (net){0};
    assert_int_equal(oq_json_parse(f->env, config_text, strlen(config_text), "config", &config), OQ_OK);
    if (quantization)
        assert_int_equal(oq_quant_config_parse(f->env, quantization, components, 1, &wish), OQ_OK);
    assert_int_equal(oq_resolve(f->env, wish, &ri, 1, &resolved), OQ_OK);
    const oq_plan_input pi = {
        .name = "transformer", .class_name = class_name, .module = module, .config = config};
    const oq_plan_params params = {.backend = &oq_backend_cpu,
                                   .device = f->device,
                                   .compute = &oq_dtype_f32,
                                   .resolved = resolved,
                                   .inputs = &pi,
                                   .n_inputs = 1};
    if (oq_plan_build(f->env, &params, &out->plan) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    oq_quant_config_free(wish);
    oq_json_free(config);
}

static inline oq_status net_attach(fixture *f, net *n, const oq_lora_request *requests, size_t count)
{
    oq_env_clear(f->env);
    return count ? oq_loras_attach(f->env, n->plan, requests, count, &n->loras) : OQ_OK;
}

static inline void net_load(fixture *f, net *n)
{
    if (oq_load(f->env, n->plan, &n->weights) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    if (n->loras && oq_loras_load(f->env, n->loras) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
}

static inline void net_free(fixture *f, net *n)
{
    oq_weights_free(f->env, n->weights);
    oq_loras_free(f->env, n->loras);
    oq_plan_free(n->plan);
}

/* y [ROWS, n] = product of x [ROWS, k]: once to measure, once for real. */
static inline void product(fixture *f, const oq_linear *l, const float *x, float *y)
{
    oq_exec ex = {.env = f->env,
                  .backend = &oq_backend_cpu,
                  .device = f->device,
                  .ops = oq_backend_cpu.ops(f->device),
                  .compute = &oq_dtype_f32,
                  .measure = true};
    void *scratch = NULL;
    oq_tensor in = oq_tensor_make(NULL, &oq_dtype_f32, ROWS, l->spec.k);
    oq_tensor to = oq_tensor_make(NULL, &oq_dtype_f32, ROWS, l->spec.n);
    assert_int_equal(oq_linear_forward(&ex, l, to, in), OQ_OK);
    assert_int_equal(oq_backend_cpu.buffer_new(f->env, f->device, ex.peak ? ex.peak : 1, &scratch), OQ_OK);
    ex.measure = false;
    ex.base = scratch;
    ex.size = ex.peak;
    in.data = (void *)(uintptr_t)x;
    to.data = y;
    if (oq_linear_forward(&ex, l, to, in) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    oq_backend_cpu.buffer_free(f->env, f->device, scratch);
}

static inline float *values(const char *name, float scale, int64_t n)
{
    float *v = malloc((size_t)n * sizeof *v);
    if (!v) abort();
    oq_dummy_fill_as(v, name, n, scale, 0);
    return v;
}

static inline void add_tensor(st_tensor *t, char name[200], const char *layer, const char *end, int64_t rows,
                       int64_t cols, const float *data)
{
    snprintf(name, 200, "%s%s", layer, end);
    *t = (st_tensor){name, &oq_dtype_f32, rows ? 2 : 0, {rows, cols}, data};
}

/* A small FLUX.1. */
#define LORA_FLUX                                                                                                        \
    "{\"attention_head_dim\":16,\"num_attention_heads\":2,\"num_layers\":1,\"num_single_layers\":1,"                     \
    "\"joint_attention_dim\":24,\"pooled_projection_dim\":8,\"axes_dims_rope\":[4,6,6],\"in_channels\":16}"

#endif
