/* model.c -- opens a model: folder -> pipeline -> components -> resolve -> plan -> load. */
#include "engine/verify.h"

#include "base/names.h"
#include "engine/backend_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- which pipeline ------------------------------------------------------------------------------------ */

static oq_status unknown_pipeline(oq_env *env, const oq_folder *folder)
{
    oq_strbuf known;
    oq_strbuf_init(&known, env);
    for (size_t i = 0; oq_pipeline_list[i]; i++)
        oq_strbuf_printf(&known, "%s%s", i ? ", " : "", oq_pipeline_list[i]->class_name);
    const oq_status st =
        oq_fail(env, OQ_E_UNSUPPORTED, "%s: pipeline class '%s' is not supported; this build runs %s",
                folder->path, folder->class_name, oq_strbuf_text(&known));
    oq_strbuf_deinit(&known);
    return st;
}

static oq_status find_component(oq_env *env, const oq_model *model, const char *name,
                                const oq_folder_component **out)
{
    *out = oq_folder_find(model->folder, name);
    if (*out && (*out)->class_name) return OQ_OK;
    return oq_fail(env, OQ_E_NOTFOUND, "%s: component '%s' of %s is missing in model_index.json",
                   model->folder->path, name, model->type->class_name);
}

static oq_status find_module(oq_env *env, const oq_folder_component *c, const oq_module_type **out)
{
    *out = oq_module_find(c->class_name);
    if (*out) return OQ_OK;
    oq_strbuf known;
    oq_strbuf_init(&known, env);
    for (size_t i = 0; oq_module_list[i]; i++)
        for (size_t j = 0; oq_module_list[i]->class_names[j]; j++)
            oq_strbuf_printf(&known, "%s%s", known.size ? ", " : "", oq_module_list[i]->class_names[j]);
    const oq_status st =
        oq_fail(env, OQ_E_UNSUPPORTED, "component '%s': class '%s' is not supported; this build runs %s",
                c->name, c->class_name, oq_strbuf_text(&known));
    oq_strbuf_deinit(&known);
    return st;
}

/* ---- components ---------------------------------------------------------------------------------------- */

typedef struct opening { /* inputs of resolve and plan, one per component of the pipeline */
    oq_resolve_input *resolve;
    oq_plan_input *plan;
    const char **names;
    size_t n;
} opening;

static oq_status note_hashes(oq_env *env, oq_model *model, const char *component, const oq_ckpt *ckpt)
{
    for (int i = 0; ckpt && i < ckpt->n_files; i++) {
        char hash[64], data[17];
        OQ_TRY(oq_file_sample_hash(env, ckpt->files[i].path,
                                   data)); /* headers are alike where weights are not */
        snprintf(hash, sizeof hash, "%s-%s", ckpt->files[i].header_hash, data);
        oq_strbuf key;
        oq_strbuf_init(&key, env);
        oq_strbuf_printf(&key, "%s/%s", component, oq_path_leaf(ckpt->files[i].path));
        const bool ok =
            !key.failed && oq_json_set(model->hashes, oq_strbuf_text(&key), oq_json_new_string(hash));
        oq_strbuf_deinit(&key);
        if (!ok) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", ckpt->path);
    }
    return OQ_OK;
}

static oq_status open_component(oq_env *env, oq_model *model, const oq_options *options, bool dummy, size_t i,
                                opening *o)
{
    const oq_pipeline_component *want = &model->type->components[i];
    const oq_folder_component *c = oq_folder_find(model->folder, want->name);
    const oq_module_type *module = NULL;
    const size_t at = o->n;
    if (want->optional && (!c || !c->class_name)) return OQ_OK;
    OQ_TRY(find_component(env, model, want->name, &c));
    OQ_TRY(find_module(env, c, &module));
    OQ_TRY(oq_component_open(env, model, options, dummy, i, module, &c));
    if (!c->config)
        return oq_fail(env, OQ_E_NOTFOUND, "%s: component '%s' has no config.json", c->path, want->name);
    OQ_TRY(note_hashes(env, model, want->name, model->ckpts[i]));
    o->resolve[at] = (oq_resolve_input){.name = want->name,
                                        .class_name = c->class_name,
                                        .quantizable = want->quantizable,
                                        .encoder = want->encoder,
                                        .quant = c->quant,
                                        .quant_source = c->quant_source,
                                        .ckpt = model->ckpts[i]};
    o->plan[at] = (oq_plan_input){.name = want->name,
                                  .class_name = c->class_name,
                                  .module = module,
                                  .config = c->config,
                                  .trim = want->trim,
                                  .model_index = model->folder->index,
                                  .ckpt = model->ckpts[i],
                                  .wide = want->wide,
                                  .denoiser = want->quantizable && !want->encoder};
    o->names[at] = want->name;
    o->n++;
    return OQ_OK;
}

static oq_status resolve_and_plan(oq_env *env, oq_model *model, const oq_options *options, opening *o)
{
    oq_resolved *resolved = NULL;
    OQ_TRY(oq_resolve(env, model->config, o->resolve, o->n, &resolved));
    const bool fp32 = strcmp(oq_options_text(options, "dtype", "bf16"), "fp32") == 0;
    const oq_plan_params params = {.backend = model->backend,
                                   .device = model->device,
                                   .compute = fp32 ? &oq_dtype_f32 : &oq_dtype_bf16,
                                   .resolved = resolved,
                                   .inputs = o->plan,
                                   .n_inputs = o->n,
                                   .config = model->config};
    return oq_plan_build(env, &params, &model->plan);
}

static oq_status open_components(oq_env *env, oq_model *model, const oq_options *options)
{
    const size_t n = model->type->n_components;
    const bool dummy = strcmp(oq_options_text(options, "load-format", "default"), "dummy") == 0;
    opening o = {0};
    model->hashes = oq_json_new_object();
    if (!model->hashes) return oq_fail(env, OQ_E_NOMEM, "model: no memory");
    OQ_TRY(oq_new(env, n, sizeof(oq_ckpt *), "model", &model->ckpts));
    model->n_ckpts = n;
    OQ_TRY(oq_new(env, n, sizeof *model->files, "model", &model->files));
    OQ_TRY(oq_component_check_options(env, model, options));
    oq_status st = oq_new(env, n, sizeof *o.resolve, "model", &o.resolve);
    if (st == OQ_OK) st = oq_new(env, n, sizeof *o.plan, "model", &o.plan);
    if (st == OQ_OK) st = oq_new(env, n, sizeof *o.names, "model", &o.names);
    for (size_t i = 0; st == OQ_OK && i < n; i++) o.names[i] = model->type->components[i].name;
    if (st == OQ_OK) st = oq_quant_request(env, options, model->type, o.names, n, &model->config);
    for (size_t i = 0; st == OQ_OK && i < n; i++) st = open_component(env, model, options, dummy, i, &o);
    if (st == OQ_OK) st = resolve_and_plan(env, model, options, &o);
    oq_free(env, o.names);
    oq_free(env, o.plan);
    oq_free(env, o.resolve);
    return st;
}

/* ---- the pipeline's own state, and what the plan still lacks ------------------------------------------- */

static const oq_json *component_config(const oq_model *model, const char *name)
{
    for (size_t i = 0; i < model->n_ckpts; i++)
        if (strcmp(model->type->components[i].name, name) == 0 && model->files[i].config)
            return model->files[i].config;
    const oq_folder_component *c = oq_folder_find(model->folder, name);
    return c ? c->config : NULL;
}

static oq_status start_pipeline(oq_env *env, oq_model *model)
{
    void **modules = NULL;
    OQ_TRY(oq_new(env, model->type->n_components, sizeof *modules, "model", &modules));
    for (size_t i = 0; i < model->type->n_components; i++) {
        const oq_plan_component *c = oq_plan_find(model->plan, model->type->components[i].name);
        modules[i] = c ? c->self : NULL;
    }
    const oq_pipeline_setup setup = {.folder = model->folder->path,
                                     .model_index = model->folder->index,
                                     .scheduler = component_config(model, "scheduler"),
                                     .vae = component_config(model, "vae"),
                                     .modules = modules,
                                     .dummy = model->n_ckpts > 0 && !model->ckpts[0]};
    void *self = NULL;
    oq_status st = oq_new(env, 1, model->type->self_bytes, model->type->name, &self);
    if (st == OQ_OK) st = model->type->init(env, &setup, self);
    if (st == OQ_OK)
        model->self = self;
    else
        oq_free(env, self);
    oq_free(env, modules);
    return st;
}

/* What a model may decide: the options of which request.c reads a default. Others would be without effect. */
static oq_status check_defaults(oq_env *env, const oq_json *defaults)
{
    static const char *const words =
        "width, height, steps, guidance-scale, sigmas, negative-prompt, batch-count, "
        "batch-noise, max-sequence-length, cfg-normalization, cfg-truncation, num-frames, fps, "
        "guidance-scale-2, "
        "flow-shift, vae-tile, vae-frames";
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(defaults, &at, &key, &value)) {
        const oq_option_info *row = oq_option_find("generate", key);
        if (row && !oq_csv_has(words, row->name))
            return oq_fail(env, OQ_E_CONFIG, "'%s' is for the caller to decide; a model may set %s", key,
                           words);
    }
    return OQ_OK;
}

static oq_status read_defaults(oq_env *env, oq_model *model)
{
    if (!model->folder->defaults) return OQ_OK;
    OQ_TRY(oq_options_new(env, "generate", &model->defaults));
    oq_status st = check_defaults(env, model->folder->defaults);
    if (st == OQ_OK) st = oq_options_set_defaults(model->defaults, model->folder->defaults, "omniq.json");
    if (st == OQ_OK) return OQ_OK;
    char path[1024];
    snprintf(path, sizeof path, "%s/omniq.json", model->folder->path);
    return oq_fail_within(env, st, path);
}

/* --lora FILE[:SCALE], in their order. */
static oq_status attach_loras(oq_env *env, oq_model *model, const oq_options *options)
{
    const size_t n = oq_options_count(options, "lora");
    oq_lora_request *requests = NULL;
    if (n == 0) return OQ_OK;
    oq_arena arena;
    oq_arena_init(&arena, env);
    oq_status st = oq_arena_new(&arena, n, sizeof *requests, "--lora", &requests);
    for (size_t i = 0; st == OQ_OK && i < n; i++) {
        char *text = oq_arena_strdup(&arena, oq_options_item(options, "lora", i));
        st = text ? oq_lora_parse(env, text, &requests[i]) : oq_fail(env, OQ_E_NOMEM, "--lora: no memory");
    }
    if (st == OQ_OK) st = oq_loras_attach(env, model->plan, requests, n, &model->loras);
    oq_arena_deinit(&arena);
    return st;
}

static oq_status limit_memory(oq_env *env, oq_model *model, const oq_options *options)
{
    const char *const text = oq_options_text(options, "max-memory", NULL);
    size_t bytes = 0;
    if (!text) return OQ_OK;
    OQ_TRY(oq_size_parse(env, "max-memory", text, &bytes));
    return oq_plan_limit(model->plan, bytes);
}

static oq_status measure(oq_env *env, oq_model *model, const oq_options *options)
{
    oq_arena arena;
    oq_request request;
    oq_arena_init(&arena, env);
    oq_status st = oq_request_make(env, model, options, &arena, &request);
    if (st == OQ_OK)
        st = oq_request_measure(env, model, &request, &model->plan->scratch_bytes, model->plan->phase_bytes);
    if (st == OQ_OK) st = limit_memory(env, model, options);
    if (st == OQ_OK) /* loading refuses it; a plan tells it */
        oq_request_fits(model, &request, model->plan->scratch_bytes, model->lacks, sizeof model->lacks);
    oq_arena_deinit(&arena);
    return st;
}

static oq_status verify(oq_env *env, oq_model *model, const oq_options *options)
{
    oq_verify v;
    oq_strbuf text;
    oq_strbuf_init(&text, env);
    oq_status st = oq_verify_model(env, model, oq_options_text(options, "verify-against", NULL), &v);
    if (st == OQ_OK) st = oq_verify_run(&v);
    if (st == OQ_OK) {
        oq_verify_print(&v, oq_options_flag(options, "verbose"), &text);
        model->verified = oq_verify_json(&v);
        model->verified_text = oq_strbuf_take(&text);
    }
    oq_strbuf_deinit(&text);
    oq_verify_deinit(&v);
    return st;
}

static oq_status prepare(oq_env *env, oq_model *model, const oq_options *options)
{
    const char *path = oq_options_text(options, "model", NULL);
    int index = 0;
    if (!path) return oq_fail(env, OQ_E_ARG, "no model is named; give one with -m DIR");
    model->given = oq_options_to_json(options);
    OQ_TRY(oq_folder_open(env, path, &model->folder));
    model->type = oq_pipeline_find(model->folder->class_name);
    if (!model->type) return unknown_pipeline(env, model->folder);
    OQ_TRY(oq_backend_select(env, oq_options_text(options, "device", NULL), &model->backend, &index));
    OQ_TRY(model->backend->open(env, index, oq_options_text(options, "cpu", NULL), &model->device));
    OQ_TRY(read_defaults(env, model));
    OQ_TRY(open_components(env, model, options));
    OQ_TRY(start_pipeline(env, model));
    OQ_TRY(attach_loras(env, model, options));
    if (oq_options_given(options, "verify-against")) OQ_TRY(verify(env, model, options));
    return measure(env, model, options);
}

oq_status oq_model_prepare(oq_env *env, const oq_options *options, oq_model **out)
{
    oq_model *model = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *model, "model", &model));
    model->env = env;
    const oq_status st = prepare(env, model, options);
    if (st != OQ_OK) {
        oq_model_close(model);
        return st;
    }
    *out = model;
    return OQ_OK;
}

/* Weights are in memory of their own now: the files are closed, and nothing in the plan points into them any
 * more. */
static void close_files(oq_model *model)
{
    for (size_t i = 0; i < model->n_ckpts; i++) {
        oq_ckpt_close(model->ckpts[i]);
        model->ckpts[i] = NULL;
    }
    for (size_t i = 0; model->plan && i < model->plan->n_components; i++) {
        oq_plan_component *c = &model->plan->components[i];
        c->ckpt = NULL;
        for (size_t j = 0; j < c->n_layers; j++) c->layers[j].choice.part = NULL;
    }
}

oq_status oq_model_load(oq_env *env, oq_model *model)
{
    const double started_s = oq_now_s();
    if (model->lacks[0]) return oq_fail(env, OQ_E_NOMEM, "%s", model->lacks);
    OQ_TRY(oq_load(env, model->plan, &model->weights));
    if (model->loras) OQ_TRY(oq_loras_load(env, model->loras));
    OQ_TRY(oq_files_check(env));
    close_files(model);
    model->load_s = oq_now_s() - started_s;
    return OQ_OK;
}

oq_status oq_model_open(oq_env *env, const oq_options *options, oq_model **out)
{
    if (!env || !options || !out)
        return oq_fail(env, OQ_E_ARG, "oq_model_open needs an environment, options and a result");
    oq_status st = oq_model_prepare(env, options, out);
    if (st == OQ_OK) st = oq_model_load(env, *out);
    if (st == OQ_OK) return OQ_OK;
    oq_model_close(*out);
    *out = NULL;
    return oq_files_settle(env, st);
}

void oq_model_close(oq_model *model)
{
    if (!model) return;
    oq_env *env = model->env;
    oq_weights_free(env, model->weights);
    oq_loras_free(env, model->loras);
    if (model->self) model->type->deinit(env, model->self);
    oq_free(env, model->self);
    oq_plan_free(model->plan);
    oq_quant_config_free(model->config);
    for (size_t i = 0; i < model->n_ckpts; i++) oq_ckpt_close(model->ckpts[i]);
    oq_free(env, model->ckpts);
    for (size_t i = 0; model->files && i < model->n_ckpts; i++) oq_folder_component_deinit(&model->files[i]);
    oq_free(env, model->files);
    oq_json_free(model->hashes);
    oq_json_free(model->given);
    oq_json_free(model->verified);
    oq_free(env, model->verified_text);
    oq_options_free(model->defaults);
    if (model->device) model->backend->close(env, model->device);
    oq_folder_close(model->folder);
    oq_free(env, model);
}

oq_status oq_model_plan(oq_env *env, const oq_model *model, oq_report **out)
{
    oq_strbuf text;
    oq_strbuf_init(&text, env);
    const oq_status st = oq_plan_print(model->plan, false, &text);
    if (st != OQ_OK) {
        oq_strbuf_deinit(&text);
        return st;
    }
    return oq_report_new(env, oq_plan_to_json(model->plan), oq_strbuf_take(&text), true, out);
}
