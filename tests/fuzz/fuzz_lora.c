/* fuzz_lora.c -- any adapter file, for a FLUX.1 transformer of one block of each kind. Properties: it is refused with a
 * sentence, or every pair that hangs on a layer has the layer's width and rows within it. */
#include "fuzz/fuzz.h"

#include "cpu/cpu.h"
#include "lora/lora.h"
#include "modules/dit_flux1/dit_flux1.h"

#include <stdio.h>
#include <unistd.h>

static oq_plan *make_plan(oq_env *env)
{
    static oq_device *device;
    static const char config[] =
        "{\"attention_head_dim\":8,\"num_attention_heads\":1,\"num_layers\":1,\"num_single_layers\":1,"
        "\"joint_attention_dim\":4,\"pooled_projection_dim\":4,\"axes_dims_rope\":[2,2,4],\"in_channels\":4}";
    oq_json *json = NULL;
    oq_resolved *resolved = NULL;
    oq_plan *plan = NULL;
    if (!device) FUZZ_CHECK(oq_backend_cpu.open(env, 0, NULL, &device) == OQ_OK);
    FUZZ_CHECK(oq_json_parse(env, config, strlen(config), "config", &json) == OQ_OK);
    const oq_resolve_input ri = {.name = "transformer", .class_name = "FluxTransformer2DModel"};
    const oq_plan_input pi = {.name = "transformer",
                              .class_name = "FluxTransformer2DModel",
                              .module = &oq_module_dit_flux1,
                              .config = json};
    FUZZ_CHECK(oq_resolve(env, NULL, &ri, 1, &resolved) == OQ_OK);
    const oq_plan_params params = {.backend = &oq_backend_cpu,
                                   .device = device,
                                   .compute = &oq_dtype_f32,
                                   .resolved = resolved,
                                   .inputs = &pi,
                                   .n_inputs = 1};
    FUZZ_CHECK(oq_plan_build(env, &params, &plan) == OQ_OK);
    oq_json_free(json);
    return plan;
}

static void check_layers(const oq_plan *plan)
{
    const oq_plan_component *c = &plan->components[0];
    for (size_t i = 0; i < c->n_layers; i++) {
        const oq_linear *l = c->layers[i].linear;
        for (const oq_lora_pair *p = l->lora; p; p = p->next) {
            const int64_t up_n = p->up.spec.n, up_k = p->up.spec.k, down_n = p->down.spec.n,
                          down_k = p->down.spec.k;
            FUZZ_CHECK(p->at >= 0 && p->n >= 1 && p->at + p->n <= l->spec.n && up_n >= 1 && up_k >= 1);
            if (p->form == OQ_LORA_KRONECKER)
                FUZZ_CHECK(up_k * down_k == l->spec.k && p->from >= 0 && p->from + p->n <= up_n * down_n);
            else if (p->form == OQ_LORA_WHOLE)
                FUZZ_CHECK(up_n == p->n && up_k == l->spec.k && !p->down.kernel);
            else
                FUZZ_CHECK(up_n == p->n && down_k == l->spec.k && down_n == up_k);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    char path[] = "/tmp/omniq-fuzz-lora-XXXXXX";
    const int file = mkstemp(path);
    FUZZ_CHECK(file >= 0 && write(file, data, n) == (ssize_t)n);
    close(file);
    oq_plan *plan = make_plan(env);
    oq_loras *loras = NULL;
    const oq_lora_request request = {path, 0.5};
    oq_status st = oq_loras_attach(env, plan, &request, 1, &loras);
    if (st == OQ_OK) {
        check_layers(plan);
        st = oq_loras_load(env, loras);
    }
    fuzz_check_status(env, st);
    oq_loras_free(env, loras);
    oq_plan_free(plan);
    unlink(path);
    return 0;
}
