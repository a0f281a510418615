/* inspect_judge.c -- what generate would say: the same plan over the model, over one component's folder, or over the file
 * in the place of a model's component. */
#include "engine/backend_list.h"
#include "engine/inspect.h"
#include "engine/recognize.h"

#include <string.h>

/* ---- a whole model ------------------------------------------------------------------------------------- */

/* Every component is planned, so that one refusal does not hide another's: the plan stops at the first. */
static oq_status keep_warnings(oq_inspect *inspect, const oq_plan *plan)
{
    for (size_t i = 0; i < plan->n_warnings; i++)
        oq_inspect_problem(inspect, NULL, "warning", NULL, "%s", plan->warnings[i]);
    inspect->planned = true;
    return OQ_OK;
}

/* `slot` and `path`: what stands in the place of a component; NULL: nothing. */
static oq_status judge_model(oq_inspect *inspect, const char *model_path, const char *slot, const char *path)
{
    oq_env *env = inspect->env;
    oq_options *options = NULL;
    oq_model *model = NULL;
    OQ_TRY(oq_options_new(env, "plan", &options));
    oq_status st = oq_options_set(options, "model", model_path);
    if (st == OQ_OK) st = oq_options_set(options, "device", "cpu");
    if (st == OQ_OK && inspect->variant) st = oq_options_set(options, "variant", inspect->variant);
    if (st == OQ_OK && slot) st = oq_options_set(options, slot, path);
    if (st == OQ_OK) st = oq_model_prepare(env, options, &model);
    if (st == OQ_OK) st = keep_warnings(inspect, model->plan);
    oq_model_close(model);
    oq_options_free(options);
    inspect->judged = "model";
    return oq_inspect_note(inspect, NULL, NULL, st);
}

/* ---- a lone component --------------------------------------------------------------------------------- */

static oq_status open_again(oq_inspect *inspect, const oq_module_type *module, const char *name,
                            oq_ckpt **ckpt)
{
    oq_env *env = inspect->env;
    OQ_TRY(oq_file_is_dir(inspect->path) ? oq_ckpt_open_folder(env, inspect->path, inspect->variant, ckpt)
                                         : oq_ckpt_open(env, inspect->path, ckpt));
    if (oq_recognize(*ckpt, module).module != module) return OQ_OK; /* the plan says what is missing */
    return oq_recognize_as(env, *ckpt, module, name);
}

static oq_status plan_alone(oq_inspect *inspect, const oq_module_type *module, const oq_ckpt *ckpt,
                            const char *name)
{
    oq_env *env = inspect->env;
    const oq_inspect_part *part = &inspect->parts[0];
    const oq_folder_component *c = part->component;
    const oq_backend *backend = NULL;
    oq_device *device = NULL;
    oq_resolved *resolved = NULL;
    oq_plan *plan = NULL;
    int index = 0;
    const oq_resolve_input resolve = {.name = name,
                                      .class_name = part->class_name,
                                      .quantizable = strcmp(name, "vae") != 0,
                                      .encoder = strcmp(name, "text_encoder") == 0,
                                      .quant = c->quant,
                                      .quant_source = c->quant_source,
                                      .ckpt = ckpt};
    const oq_plan_input input = {
        .name = name, .class_name = part->class_name, .module = module, .config = c->config, .ckpt = ckpt};
    OQ_TRY(oq_backend_select(env, "cpu", &backend, &index));
    OQ_TRY(backend->open(env, index, NULL, &device));
    oq_status st = oq_resolve(env, NULL, &resolve, 1, &resolved);
    if (st == OQ_OK) {
        const oq_plan_params params = {.backend = backend,
                                       .device = device,
                                       .compute = &oq_dtype_bf16,
                                       .resolved = resolved,
                                       .inputs = &input,
                                       .n_inputs = 1};
        st = oq_plan_build(env, &params, &plan);
    }
    if (st == OQ_OK) st = keep_warnings(inspect, plan);
    oq_plan_free(plan);
    backend->close(env, device);
    return st;
}

static oq_status judge_alone(oq_inspect *inspect, const oq_module_type *module)
{
    oq_ckpt *ckpt = NULL;
    const char *name = oq_usual_component(module);
    inspect->judged = "component";
    oq_status st = open_again(inspect, module, name, &ckpt);
    if (st == OQ_OK) st = plan_alone(inspect, module, ckpt, name);
    oq_ckpt_close(ckpt);
    return oq_inspect_note(inspect, NULL, NULL, st);
}

/* ---- in the place of a model's component --------------------------------------------------------------- */

/* The first component of the model whose network the file holds. */
static oq_status find_slot(oq_inspect *inspect, const oq_folder *folder, char *slot, size_t n)
{
    const oq_inspect_part *part = &inspect->parts[0];
    const oq_pipeline_type *type = oq_pipeline_find(folder->class_name);
    *slot = '\0';
    for (size_t i = 0; type && i < type->n_components; i++) {
        const oq_folder_component *c = oq_folder_find(folder, type->components[i].name);
        const oq_module_type *module = c && c->class_name ? oq_module_find(c->class_name) : NULL;
        if (!module || oq_recognize(part->ckpt, module).module != module) continue;
        if (strlen(c->name) >= n) continue;
        for (size_t j = 0; j <= strlen(c->name); j++) slot[j] = c->name[j] == '_' ? '-' : c->name[j];
        return OQ_OK;
    }
    const oq_recognized found = oq_recognize(part->ckpt, NULL);
    return oq_fail(inspect->env, OQ_E_MISMATCH, "--model '%s': %s has no component for '%s', which is %s%s",
                   inspect->model, folder->class_name, inspect->path, found.what ? "a " : "",
                   found.what ? found.what : "no network that this build knows");
}

static oq_status judge_inside(oq_inspect *inspect)
{
    oq_folder *folder = NULL;
    char slot[64] = "";
    OQ_TRY(oq_folder_open(inspect->env, inspect->model, &folder));
    const oq_status st = find_slot(inspect, folder, slot, sizeof slot);
    oq_folder_close(folder);
    inspect->judged = "model";
    if (st != OQ_OK) return oq_inspect_note(inspect, NULL, NULL, st);
    return judge_model(inspect, inspect->model, slot, inspect->path);
}

oq_status oq_inspect_judge(oq_inspect *inspect)
{
    const oq_inspect_part *part = &inspect->parts[0];
    inspect->judged = "tensors";
    if (inspect->folder) return judge_model(inspect, inspect->path, NULL, NULL);
    if (inspect->model) return judge_inside(inspect);
    if (!part->class_name || !part->component->config) return OQ_OK;
    const oq_module_type *module = oq_module_find(part->class_name);
    if (module) return judge_alone(inspect, module);
    oq_inspect_problem(inspect, NULL, "error", NULL, "class '%s' is no network that this build runs",
                       part->class_name);
    return OQ_OK;
}
