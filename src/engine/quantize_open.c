/* quantize_open.c -- from a path to a plan of the output: the source as inspect sees it, its networks, and the schemes that
 * the wish gives their layers when weights are plain. */
#include "engine/quantize.h"

#include "base/names.h"
#include "engine/backend_list.h"
#include "engine/recognize.h"

#include <string.h>

/* ---- networks ------------------------------------------------------------------------------------------ */

/* The source itself, or what -m names for a lone file; NULL: neither is a model folder. */
static const oq_folder *model_folder(const oq_quantize *q)
{
    return q->source.folder ? q->source.folder : q->base;
}

/* Of the model folder; NULL: none is known. */
static const oq_pipeline_type *family_of(const oq_quantize *q)
{
    const oq_folder *folder = model_folder(q);
    return folder ? oq_pipeline_find(folder->class_name) : NULL;
}

/* The family's component that the part stands for; NULL: none of its class. */
static const oq_pipeline_component *pipeline_component(const oq_quantize *q, const oq_quantize_part *p)
{
    const oq_folder *folder = model_folder(q);
    bool known = false;
    for (size_t i = 0; folder && i < folder->n_components; i++)
        known |= strcmp(folder->components[i].name, p->name) == 0 &&
                 oq_module_has_class(p->module, folder->components[i].class_name);
    const oq_pipeline_type *type = family_of(q);
    for (size_t i = 0; known && type && i < type->n_components; i++)
        if (strcmp(type->components[i].name, p->name) == 0) return &type->components[i];
    return NULL;
}

/* Does the source lie in this component's folder, or in one of that name? */
static bool lies_in(const oq_quantize *q, const oq_folder_component *c, bool *named)
{
    const char *path = q->source.path;
    char *folder = oq_file_is_dir(path) ? NULL : oq_path_folder(q->env, path);
    *named = strcmp(oq_path_leaf(folder ? folder : path), c->name) == 0;
    oq_free(q->env, folder);
    return oq_file_within(path, c->path);
}

/* The component of the base model that a lone file stands for: the one of its class. Of several (Wan's two experts are alike)
 * the one in whose folder it lies, else the one whose name its folder bears, else the first, and another is noted. */
static void name_alone(oq_quantize *q, oq_quantize_part *p)
{
    const char *first = NULL, *second = NULL, *alike = NULL;
    bool named = false;
    for (size_t i = 0; q->base && i < q->base->n_components; i++) {
        const oq_folder_component *c = &q->base->components[i];
        if (!oq_module_has_class(p->module, c->class_name)) continue;
        if (lies_in(q, c, &named)) {
            p->name = c->name;
            return;
        }
        if (named) alike = c->name;
        if (first && !second) second = c->name;
        if (!first) first = c->name;
    }
    p->name = alike ? alike : first;
    p->or_name = alike ? NULL : second;
}

/* A lone file: its tensors tell the network, a configuration stands beside it or in the base model. */
static oq_status find_alone(oq_quantize *q, oq_quantize_part *p)
{
    oq_env *env = q->env;
    oq_ckpt *ckpt = p->part->ckpt;
    const oq_recognized found = oq_recognize(ckpt, p->module);
    if (!found.module)
        return oq_fail(env, OQ_E_UNSUPPORTED, "%s: %s%s", q->source.path,
                       found.what ? "this build does not run this kind of network, a "
                                  : "its tensors are no network that this build knows",
                       found.what ? found.what : "");
    OQ_TRY(oq_recognize_as(env, ckpt, found.module, "source"));
    p->config = p->module == found.module ? p->part->component->config : NULL;
    p->module = found.module;
    name_alone(q, p);
    for (size_t i = 0; !p->config && q->base && i < q->base->n_components; i++)
        if (oq_module_has_class(found.module, q->base->components[i].class_name))
            p->config = q->base->components[i].config;
    if (p->config) return OQ_OK;
    return oq_fail(env, OQ_E_NOTFOUND,
                   "%s: a %s without its configuration: name a model folder that has one with -m DIR",
                   q->source.path, found.what);
}

static oq_status add_part(oq_quantize *q, oq_inspect_part *part)
{
    oq_quantize_part *p = &q->parts[q->n_parts];
    *p = (oq_quantize_part){.part = part, .name = part->name};
    if (part->class_name) p->module = oq_module_find(part->class_name);
    if (part->component) p->config = part->component->config;
    if (!q->source.folder) OQ_TRY(find_alone(q, p));
    if (!p->module || !p->config) {
        oq_log(q->env, OQ_LOG_DEBUG, "%s: no network of this build; copied as it is", part->name);
        return OQ_OK;
    }
    if (!p->name) p->name = oq_usual_component(p->module);
    q->n_parts++;
    return OQ_OK;
}

static oq_status open_parts(oq_quantize *q)
{
    OQ_TRY(oq_arena_new(&q->source.arena, q->source.n_parts + 1, sizeof *q->parts, "parts", &q->parts));
    for (size_t i = 0; i < q->source.n_parts; i++)
        if (q->source.parts[i].ckpt) OQ_TRY(add_part(q, &q->source.parts[i]));
    if (q->n_parts) return OQ_OK;
    return oq_fail(q->env, OQ_E_UNSUPPORTED, "%s: holds weights of no network that this build runs",
                   q->source.path);
}

/* ---- what each layer shall become ---------------------------------------------------------------------- */

static oq_status plan_target(oq_quantize *q)
{
    oq_env *env = q->env;
    oq_arena *arena = &q->source.arena;
    oq_resolve_input *resolve = NULL;
    oq_plan_input *plan = NULL;
    const char **names = NULL;
    oq_resolved *resolved = NULL;
    OQ_TRY(oq_arena_new(arena, q->n_parts, sizeof *resolve, "parts", &resolve));
    OQ_TRY(oq_arena_new(arena, q->n_parts, sizeof *plan, "parts", &plan));
    OQ_TRY(oq_arena_new(arena, q->n_parts, sizeof *names, "parts", &names));
    for (size_t i = 0; i < q->n_parts; i++) {
        const oq_quantize_part *p = &q->parts[i];
        const oq_folder *folder = model_folder(q);
        const oq_pipeline_component *c = pipeline_component(q, p);
        const bool is_vae = strncmp(p->module->name, "vae_", 4) == 0;
        names[i] = p->name;
        resolve[i] = (oq_resolve_input){.name = p->name,
                                        .class_name = p->module->class_names[0],
                                        .calibrated = true,
                                        .quantizable = c ? c->quantizable : !is_vae,
                                        .encoder = c ? c->encoder : strncmp(p->module->name, "te_", 3) == 0};
        plan[i] = (oq_plan_input){.name = p->name,
                                  .class_name = p->module->class_names[0],
                                  .module = p->module,
                                  .config = p->config,
                                  .trim = c ? c->trim : NULL,
                                  .model_index = folder ? folder->index : NULL};
    }
    OQ_TRY(oq_quant_request(env, q->options, family_of(q), names, q->n_parts, &q->config));
    if (!q->config)
        return oq_fail(env, OQ_E_ARG,
                       "quantize needs to know into what: --quantization SPEC or --recipe NAME");
    OQ_TRY(oq_resolve(env, q->config, resolve, q->n_parts, &resolved));
    const oq_plan_params params = {.backend = q->backend,
                                   .device = q->device,
                                   .compute = &oq_dtype_bf16,
                                   .resolved = resolved,
                                   .inputs = plan,
                                   .n_inputs = q->n_parts};
    OQ_TRY(oq_plan_build(env, &params, &q->plan));
    for (size_t i = 0; i < q->n_parts; i++) {
        q->parts[i].planned = &q->plan->components[i];
        q->parts[i].planned->ckpt = q->parts[i].part->ckpt; /* names are looked up there from now on */
    }
    return OQ_OK;
}

oq_status oq_quantize_open(oq_env *env, const oq_options *options, const char *path, oq_quantize *q)
{
    const char *base = oq_options_text(options, "model", NULL);
    int index = 0;
    *q = (oq_quantize){.env = env, .options = options};
    OQ_TRY(oq_inspect_open(env, path, oq_options_text(options, "variant", NULL), &q->source));
    if (base) OQ_TRY(oq_folder_open(env, base, &q->base));
    OQ_TRY(oq_backend_select(env, "cpu", &q->backend, &index));
    OQ_TRY(q->backend->open(env, index, NULL, &q->device));
    OQ_TRY(open_parts(q));
    for (size_t i = 0; i < q->n_parts; i++) OQ_TRY(oq_inspect_quant(&q->source, q->parts[i].part));
    for (size_t i = 0; i < oq_json_size(q->source.problems); i++) {
        const oq_json *problem = oq_json_at(q->source.problems, i);
        if (strcmp(oq_json_string(oq_json_get(problem, "severity")), "error") == 0)
            return oq_fail(env, OQ_E_FORMAT, "%s: %s", path, oq_json_string(oq_json_get(problem, "message")));
    }
    return plan_target(q);
}

void oq_quantize_deinit(oq_quantize *q)
{
    oq_calibration_close(q->calibration);
    for (size_t i = 0; i < q->n_parts; i++) {
        oq_rewrite_end(&q->parts[i].rewrite);
        oq_json_free(q->parts[i].metadata);
        oq_json_free(q->parts[i].quant);
        if (q->parts[i].planned) q->parts[i].planned->ckpt = NULL;
    }
    oq_plan_free(q->plan);
    oq_quant_config_free(q->config);
    if (q->device) q->backend->close(q->env, q->device);
    oq_json_free(q->own_quant);
    oq_folder_close(q->base);
    oq_inspect_deinit(&q->source);
}
