/* model_folder.c -- a model in diffusers' layout: model_index.json, the components' folders, their
 * configurations and what these say about quantization. Opens no weight file. */
#include "ckpt/reader.h"

#include <string.h>

#define DESCRIPTION "quant_model_description"
#define CONFIG_MAX  ((size_t)64 << 20) /* bytes of any one configuration file */

static oq_status fail_memory(oq_env *env, const char *path)
{
    return oq_fail(env, OQ_E_NOMEM, "%s: no memory for its description", path);
}

/* `folder`/`name` as a JSON object; *out NULL when there is no such file. *path is the arena's. */
static oq_status read_object(oq_env *env, oq_arena *arena, const char *folder, const char *name,
                             oq_json **out, const char **path)
{
    *out = NULL;
    *path = oq_arena_printf(arena, "%s/%s", folder, name);
    if (!*path) return fail_memory(env, folder);
    if (!oq_file_exists(*path)) return OQ_OK;
    OQ_TRY(oq_json_parse_file(env, *path, CONFIG_MAX, out));
    if (oq_json_type(*out) == OQ_JSON_OBJECT) return OQ_OK;
    const oq_status st =
        oq_fail(env, OQ_E_FORMAT, "%s: is %s, not an object", *path, oq_json_type_name(*out));
    oq_json_free(*out);
    *out = NULL;
    return st;
}

/* The one file of msModelSlim's that names each tensor's type; NULL in *out: none. */
static oq_status find_description(oq_env *env, oq_arena *arena, const char *folder, const char **out)
{
    char **names = NULL;
    size_t n = 0;
    oq_status st = OQ_OK;
    *out = NULL;
    if (!oq_file_is_dir(folder)) return OQ_OK;
    OQ_TRY(oq_dir_list(env, folder, &names, &n));
    for (size_t i = 0; i < n && st == OQ_OK; i++) {
        const size_t length = strlen(names[i]);
        if (strncmp(names[i], DESCRIPTION, strlen(DESCRIPTION)) != 0 || length < 5 ||
            strcmp(names[i] + length - 5, ".json") != 0)
            continue;
        if (*out)
            st = oq_fail(env, OQ_E_FORMAT, "%s: holds '%s' and '%s', two descriptions", folder, *out,
                         names[i]);
        if (st == OQ_OK && !(*out = oq_arena_strdup(arena, names[i]))) st = fail_memory(env, folder);
    }
    for (size_t i = 0; i < n; i++) oq_free(env, names[i]);
    oq_free(env, names);
    return st;
}

static oq_status read_description(oq_env *env, oq_arena *arena, oq_folder_component *c)
{
    const char *name = NULL, *path = NULL;
    oq_json *text = NULL;
    OQ_TRY(find_description(env, arena, c->path, &name));
    if (!name) return OQ_OK;
    OQ_TRY(read_object(env, arena, c->path, name, &text, &path));
    c->quant = oq_json_new_object();
    const bool ok = oq_json_set(c->quant, "quant_method", oq_json_new_string("ascend"));
    c->quant_source = path;
    return oq_json_set(c->quant, DESCRIPTION, text) && ok ? OQ_OK : fail_memory(env, c->path);
}

/* What the folder says about quantization: inside config.json, else in a producer's own file. */
static oq_status read_quant(oq_env *env, oq_arena *arena, const char *config_path, oq_folder_component *c)
{
    static const char *const files[] = {"hf_quant_config.json", "quantization_config.json"};
    const oq_json *quant = oq_json_get(c->config, "quantization_config");
    if (oq_json_type(quant) == OQ_JSON_NULL) {
        const char *path = NULL;
        for (size_t i = 0; i < OQ_COUNT(files) && !c->quant; i++)
            OQ_TRY(read_object(env, arena, c->path, files[i], &c->quant, &path));
        c->quant_source = c->quant ? path : NULL;
        return c->quant ? OQ_OK : read_description(env, arena, c);
    }
    if (oq_json_type(quant) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_CONFIG, "%s: quantization_config is %s, not an object", config_path,
                       oq_json_type_name(quant));
    c->quant = oq_json_ref(quant);
    c->quant_source = config_path;
    return OQ_OK;
}

oq_status oq_folder_component_read(oq_env *env, oq_arena *arena, const char *path, oq_folder_component *c)
{
    const char *config_path = NULL;
    c->path = oq_arena_strdup(arena, path);
    if (!c->path) return fail_memory(env, path);
    OQ_TRY(read_object(env, arena, path, "config.json", &c->config, &config_path));
    if (!c->config) OQ_TRY(read_object(env, arena, path, "scheduler_config.json", &c->config, &config_path));
    return read_quant(env, arena, config_path, c);
}

oq_status oq_folder_component_read_header(oq_env *env, const oq_ckpt *ckpt, oq_folder_component *c)
{
    const char *text = oq_json_string(oq_ckpt_metadata(ckpt, "quantization_config"));
    oq_json *own = NULL;
    if (!text) return OQ_OK;
    OQ_TRY(oq_json_parse(env, text, strlen(text), ckpt->path, &own));
    if (oq_json_type(own) != OQ_JSON_OBJECT) {
        const oq_status st =
            oq_fail(env, OQ_E_FORMAT, "%s: quantization_config in its header is %s, not an object",
                    ckpt->path, oq_json_type_name(own));
        oq_json_free(own);
        return st;
    }
    if (c->quant && !oq_json_equal(c->quant, own)) /* of the file that it was written for, among several */
        oq_log(env, OQ_LOG_WARN,
               "%s: its header's quantization_config is another than that of %s, and counts", ckpt->path,
               c->quant_source);
    oq_json_free(c->quant);
    c->quant = own;
    c->quant_source = ckpt->path;
    return OQ_OK;
}

void oq_folder_component_deinit(oq_folder_component *c)
{
    oq_json_free(c->quant);
    oq_json_free(c->config);
    *c = (oq_folder_component){0};
}

/* ---- the whole model ----------------------------------------------------------------------------------- */

/* A component is written as [library, class], both strings or both null; other members are the pipeline's own
 * values. */
static bool is_component(const char *key, const oq_json *value)
{
    if (key[0] == '_' || oq_json_type(value) != OQ_JSON_ARRAY || oq_json_size(value) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        const oq_json *item = oq_json_at(value, i);
        if (!oq_json_string(item) && oq_json_type(item) != OQ_JSON_NULL) return false;
    }
    return true;
}

static oq_status read_component(oq_env *env, oq_folder *f, const char *name, const oq_json *value)
{
    oq_folder_component *c = &f->components[f->n_components];
    if (!*name || strpbrk(name, "/\\") || name[0] == '.')
        return oq_fail(env, OQ_E_FORMAT,
                       "%s/model_index.json: component name '%s' is not the name of a folder", f->path, name);
    const char *path = oq_arena_printf(&f->arena, "%s/%s", f->path, name);
    c->name = oq_arena_strdup(&f->arena, name);
    c->library = oq_json_string(oq_json_at(value, 0));
    c->class_name = oq_json_string(oq_json_at(value, 1));
    if (!path || !c->name) return fail_memory(env, f->path);
    f->n_components++;
    if (c->class_name) return oq_folder_component_read(env, &f->arena, path, c);
    c->path = path;
    return OQ_OK;
}

static oq_status read_components(oq_env *env, oq_folder *f)
{
    void *at = NULL;
    const char *key;
    const oq_json *value;
    const size_t n = oq_json_size(f->index);
    f->class_name = oq_json_string(oq_json_get(f->index, "_class_name"));
    if (!f->class_name)
        return oq_fail(env, OQ_E_FORMAT, "%s/model_index.json: has no _class_name (the pipeline's class)",
                       f->path);
    OQ_TRY(oq_arena_new(&f->arena, n, sizeof *f->components, "components", &f->components));
    while (oq_json_next(f->index, &at, &key, &value))
        if (is_component(key, value)) OQ_TRY(read_component(env, f, key, value));
    if (!f->n_components)
        return oq_fail(env, OQ_E_FORMAT, "%s/model_index.json: names no component", f->path);
    return OQ_OK;
}

static oq_status fail_index(oq_env *env, const char *path)
{
    char *config = oq_path_join(env, path, "config.json");
    const bool component = config && oq_file_exists(config);
    oq_free(env, config);
    return oq_fail(env, OQ_E_NOTFOUND, "%s: has no model_index.json%s", path,
                   component ? ": it is one component's folder, not a model's" : "");
}

static oq_status read_folder(oq_env *env, const char *path, oq_folder *f)
{
    const char *index_path = NULL, *defaults_path = NULL;
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    f->path = oq_arena_strndup(&f->arena, path, n);
    if (!f->path) return fail_memory(env, path);
    OQ_TRY(read_object(env, &f->arena, f->path, "model_index.json", &f->index, &index_path));
    if (!f->index) return fail_index(env, f->path);
    OQ_TRY(read_object(env, &f->arena, f->path, "omniq.json", &f->defaults, &defaults_path));
    return read_components(env, f);
}

/* An existing path is that path; "org/name" is looked up in the cache. */
static oq_status locate_model(oq_env *env, const char *model, char **out)
{
    if (oq_file_is_dir(model)) {
        *out = oq_strdup(env, model);
        return *out ? OQ_OK : fail_memory(env, model);
    }
    if (oq_file_exists(model))
        return oq_fail(
            env, OQ_E_ARG,
            "%s: is a file; a model is a folder with a model_index.json (a file goes beside one: -m DIR "
            "--transformer FILE)",
            model);
    if (strncmp(model, "http://", 7) == 0 || strncmp(model, "https://", 8) == 0)
        return oq_fail(
            env, OQ_E_ARG,
            "%s: nothing is downloaded here; run 'hf download ORG/NAME', then the model is ORG/NAME", model);
    if (oq_hf_repo_name_valid(model)) return oq_hf_cache_find(env, model, out);
    return oq_fail(env, OQ_E_NOTFOUND, "%s: there is no such file or folder", *model ? model : "model ''");
}

oq_status oq_folder_open(oq_env *env, const char *model, oq_folder **out)
{
    char *path = NULL;
    oq_folder *f = NULL;
    *out = NULL;
    OQ_TRY(locate_model(env, model, &path));
    oq_status st = oq_new(env, 1, sizeof *f, "model folder", &f);
    if (st == OQ_OK) {
        oq_arena_init(&f->arena, env);
        st = read_folder(env, path, f);
    }
    oq_free(env, path);
    if (st == OQ_OK)
        *out = f;
    else
        oq_folder_close(f);
    return st;
}

void oq_folder_close(oq_folder *folder)
{
    if (!folder) return;
    oq_env *env = folder->arena.env;
    for (size_t i = folder->n_components; i-- > 0;) oq_folder_component_deinit(&folder->components[i]);
    oq_json_free(folder->defaults);
    oq_json_free(folder->index);
    oq_arena_deinit(&folder->arena);
    oq_free(env, folder);
}

const oq_folder_component *oq_folder_find(const oq_folder *folder, const char *name)
{
    for (size_t i = 0; i < folder->n_components; i++)
        if (strcmp(folder->components[i].name, name) == 0) return &folder->components[i];
    return NULL;
}
