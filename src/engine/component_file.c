/* component_file.c -- the weights of one component: the model folder's own, or a single file (or folder) given in its
 * place. The tensors tell what a file is; a config.json beside it counts where it is of the same class. */
#include "engine/engine.h"
#include "engine/recognize.h"

#include "base/names.h"

#include <stdio.h>
#include <string.h>

/* "text_encoder" -> "text-encoder"; NULL: the command has no such option. */
static const char *option_name(const oq_options *options, const char *component, char *out, size_t n)
{
    snprintf(out, n, "%s", component);
    for (char *p = out; *p; p++)
        if (*p == '_') *p = '-';
    return oq_option_find(oq_options_command(options), out) ? out : NULL;
}

static const char *file_for(const oq_options *options, const char *component)
{
    char name[64];
    return option_name(options, component, name, sizeof name) ? oq_options_text(options, name, NULL) : NULL;
}

oq_status oq_component_check_options(oq_env *env, const oq_model *model, const oq_options *options)
{
    static const char *const all[] = {"transformer", "transformer_2", "text_encoder", "text_encoder_2",
                                      "vae"};
    for (size_t i = 0; i < OQ_COUNT(all); i++) {
        const char *path = file_for(options, all[i]);
        bool has = !path;
        for (size_t j = 0; j < model->type->n_components; j++)
            has |= strcmp(model->type->components[j].name, all[i]) == 0;
        if (!has)
            return oq_fail(env, OQ_E_ARG, "'%s' is given as %s, which %s does not have", path, all[i],
                           model->type->class_name);
    }
    return OQ_OK;
}

/* What stands beside the weights, if it speaks of this network. */
static oq_status read_beside(oq_env *env, oq_model *model, const char *folder, const oq_module_type *module,
                             oq_folder_component *own)
{
    OQ_TRY(oq_folder_component_read(env, &model->folder->arena, folder, own));
    const oq_json *config = own->config;
    const char *name = oq_json_string(oq_json_get(config, "_class_name"));
    if (!name) name = oq_json_string(oq_json_at(oq_json_get(config, "architectures"), 0));
    if (oq_module_has_class(module, name)) {
        own->class_name = name;
        return OQ_OK;
    }
    if (config)
        oq_log(env, OQ_LOG_DEBUG, "%s: its config.json is of another network and does not count", folder);
    oq_folder_component_deinit(own);
    return OQ_OK;
}

static oq_status open_given(oq_env *env, oq_model *model, const char *path, size_t i,
                            const oq_module_type *module, const char *variant)
{
    if (oq_file_is_dir(path)) {
        OQ_TRY(oq_ckpt_open_folder(env, path, variant, &model->ckpts[i]));
        return read_beside(env, model, path, module, &model->files[i]);
    }
    if (!oq_file_exists(path))
        return oq_fail(env, OQ_E_NOTFOUND, "%s: there is no such file or folder", path);
    OQ_TRY(oq_ckpt_open(env, path, &model->ckpts[i]));
    char *folder = oq_path_folder(env, path);
    if (!folder) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    oq_status st = read_beside(env, model, folder, module, &model->files[i]);
    oq_free(env, folder);
    if (st == OQ_OK) st = oq_folder_component_read_header(env, model->ckpts[i], &model->files[i]);
    return st;
}

/* The GGUF file that the request names for this component: by its own entry, or globally for a transformer. NULL: none. */
static const char *gguf_model_of(const oq_model *model, const oq_pipeline_component *c)
{
    const oq_quant_spec *spec = model->config ? oq_quant_config_route(model->config, c->name) : NULL;
    bool named = false;
    for (size_t i = 0; model->config && i < model->config->n_entries; i++)
        named |= strcmp(model->config->entries[i].component, c->name) == 0;
    if (!c->quantizable || !spec || !spec->method || !oq_name_equal(spec->method, "gguf")) return NULL;
    return c->encoder && !named ? NULL : oq_json_string(oq_json_get(spec->options, "gguf_model"));
}

/* What stands in the place of the folder's weights, and which words ask for it. *path NULL: nothing. */
static oq_status find_given(oq_env *env, oq_model *model, const oq_options *options, size_t i,
                            const char **path, char *slot, size_t n)
{
    const oq_pipeline_component *want = &model->type->components[i];
    const char *gguf = gguf_model_of(model, want);
    char name[64], *found = NULL;
    *path = file_for(options, want->name);
    if (*path) snprintf(slot, n, "--%s", option_name(options, want->name, name, sizeof name));
    if (!gguf) return OQ_OK;
    if (*path && strcmp(*path, gguf) != 0)
        return oq_fail(env, OQ_E_CONFIG, "%s: %s is '%s' but gguf_model is '%s'", want->name, slot, *path,
                       gguf);
    OQ_TRY(oq_gguf_find(env, gguf, &found));
    *path = oq_arena_strdup(&model->folder->arena, found);
    oq_free(env, found);
    snprintf(slot, n, "gguf_model");
    return *path ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory", want->name);
}

oq_status oq_component_open(oq_env *env, oq_model *model, const oq_options *options, bool dummy, size_t i,
                            const oq_module_type *module, const oq_folder_component **c)
{
    char slot[80];
    const char *path = NULL, *variant = oq_options_text(options, "variant", NULL);
    oq_folder_component *own = &model->files[i];
    OQ_TRY(find_given(env, model, options, i, &path, slot, sizeof slot));
    if (!path) {
        if (dummy) return OQ_OK;
        if (!oq_file_is_dir((*c)->path))
            return oq_fail(env, OQ_E_NOTFOUND, OQ_NO_FOLDER, (*c)->path, (*c)->name);
        OQ_TRY(oq_ckpt_open_folder(env, (*c)->path, variant, &model->ckpts[i]));
        if (oq_recognize(model->ckpts[i], module).module != module)
            return OQ_OK; /* the plan says what is missing */
        return oq_recognize_as(env, model->ckpts[i], module, model->type->components[i].name);
    }
    if (dummy) return oq_fail(env, OQ_E_ARG, "'%s' is given, but dummy loading reads no weights", path);
    OQ_TRY(open_given(env, model, path, i, module, variant));
    OQ_TRY(oq_recognize_as(env, model->ckpts[i], module, slot));
    own->name = (*c)->name;
    own->library = (*c)->library;
    if (!own->class_name) own->class_name = (*c)->class_name;
    if (!own->config) own->config = oq_json_ref((*c)->config);
    *c = own;
    return OQ_OK;
}
