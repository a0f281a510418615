/* inspect_open.c -- from a path to parts: one weight file, one component folder, or every component of a
 * model. */
#include "engine/inspect.h"
#include "engine/recognize.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* NULL in `have` stands for any tensor: a plan's sentence names it itself. */
static bool same_text(const char *tensor, const char *have)
{
    return !have || (tensor && strcmp(tensor, have) == 0);
}

void oq_inspect_problem(oq_inspect *inspect, const oq_inspect_part *part, const char *severity,
                        const char *tensor, const char *fmt, ...)
{
    char text[2048];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    for (size_t i = 0; i < oq_json_size(inspect->problems); i++)
        if (strcmp(text, oq_json_string(oq_json_get(oq_json_at(inspect->problems, i), "message"))) == 0 &&
            same_text(tensor, oq_json_string(oq_json_get(oq_json_at(inspect->problems, i), "tensor"))))
            return;
    oq_json *row = oq_json_new_object();
    if (part && part->name) oq_json_set(row, "component", oq_json_new_string(part->name));
    oq_json_set(row, "severity", oq_json_new_string(severity));
    oq_json_set(row, "tensor", oq_json_new_string(tensor));
    oq_json_set(row, "message", oq_json_new_string(text));
    oq_json_append(inspect->problems, row);
}

const char *oq_inspect_severity(const oq_inspect *inspect)
{
    return inspect->planned ? "warning" : "error";
}

bool oq_inspect_refused(const oq_inspect *inspect)
{
    for (size_t i = 0; i < oq_json_size(inspect->problems); i++)
        if (strcmp(oq_json_string(oq_json_get(oq_json_at(inspect->problems, i), "severity")), "error") == 0)
            return true;
    return false;
}

oq_status oq_inspect_note(oq_inspect *inspect, const oq_inspect_part *part, const char *tensor, oq_status st)
{
    if (st == OQ_OK || st == OQ_E_NOMEM || st == OQ_E_CANCELED) return st;
    oq_inspect_problem(inspect, part, oq_inspect_severity(inspect), tensor, "%s", oq_env_error(inspect->env));
    oq_env_clear(inspect->env);
    return OQ_OK;
}

/* The class as a configuration names itself: diffusers' way, then transformers'. */
static const char *class_of(const oq_json *config)
{
    const char *name = oq_json_string(oq_json_get(config, "_class_name"));
    return name ? name : oq_json_string(oq_json_at(oq_json_get(config, "architectures"), 0));
}

static oq_status new_parts(oq_inspect *inspect, size_t n)
{
    inspect->n_parts = n;
    return oq_arena_new(&inspect->arena, n, sizeof *inspect->parts, "inspected parts", &inspect->parts);
}

/* The single part, described by the configuration files of `folder`: their errors are problems, not the end.
 */
static oq_status describe_alone(oq_inspect *inspect, const char *folder)
{
    oq_inspect_part *part = &inspect->parts[0];
    const oq_status st = oq_folder_component_read(inspect->env, &inspect->arena, folder, &inspect->alone);
    part->component = &inspect->alone;
    part->class_name = class_of(inspect->alone.config);
    return oq_inspect_note(inspect, part, NULL, st);
}

/* A file among those of another network: the configuration beside it does not count, as for generate. */
static void forget_strangers_config(oq_inspect *inspect)
{
    oq_inspect_part *part = &inspect->parts[0];
    const oq_module_type *module = oq_recognize(part->ckpt, NULL).module;
    if (!module || oq_module_has_class(module, part->class_name)) return;
    const char *path = inspect->alone.path;
    oq_folder_component_deinit(&inspect->alone);
    inspect->alone.path = path;
    part->class_name = NULL;
}

static oq_status open_file(oq_inspect *inspect)
{
    oq_env *env = inspect->env;
    const char *leaf = oq_path_leaf(inspect->path);
    if (strcmp(leaf, "config.json") == 0 || strcmp(leaf, "model_index.json") == 0)
        return oq_fail(env, OQ_E_ARG, "%s: describes the weights of its folder; name the folder",
                       inspect->path);
    OQ_TRY(new_parts(inspect, 1));
    OQ_TRY(oq_ckpt_open(env, inspect->path, &inspect->parts[0].ckpt));
    inspect->format = inspect->parts[0].ckpt->container;
    char *folder = oq_path_folder(env, inspect->path);
    oq_status st =
        folder ? describe_alone(inspect, folder) : oq_fail(env, OQ_E_NOMEM, "%s: no memory", inspect->path);
    oq_free(env, folder);
    if (st == OQ_OK) forget_strangers_config(inspect);
    if (st == OQ_OK)
        st = oq_inspect_note(inspect, &inspect->parts[0], NULL,
                             oq_folder_component_read_header(env, inspect->parts[0].ckpt, &inspect->alone));
    return st;
}

static oq_status open_component_folder(oq_inspect *inspect)
{
    inspect->format = "folder";
    OQ_TRY(new_parts(inspect, 1));
    OQ_TRY(oq_ckpt_open_folder(inspect->env, inspect->path, inspect->variant, &inspect->parts[0].ckpt));
    return describe_alone(inspect, inspect->path);
}

static bool has_file(oq_env *env, const char *folder, const char *name)
{
    char *path = oq_path_join(env, folder, name);
    const bool found = path && oq_file_exists(path);
    oq_free(env, path);
    return found;
}

/* Components with a config.json are networks and must have weights; schedulers and tokenizers have other
 * files. */
static oq_status open_model(oq_inspect *inspect)
{
    oq_env *env = inspect->env;
    inspect->format = "model";
    OQ_TRY(oq_folder_open(env, inspect->path, &inspect->folder));
    inspect->path = inspect->folder->path;
    OQ_TRY(new_parts(inspect, inspect->folder->n_components));
    for (size_t i = 0; i < inspect->n_parts; i++) {
        const oq_folder_component *c = &inspect->folder->components[i];
        oq_inspect_part *part = &inspect->parts[i];
        *part = (oq_inspect_part){
            .name = c->name, .library = c->library, .class_name = c->class_name, .component = c};
        if (!c->class_name) continue;
        if (!oq_file_is_dir(c->path))
            oq_inspect_problem(inspect, part, "error", NULL, OQ_NO_FOLDER, c->path, c->name);
        else if (has_file(env, c->path, "config.json"))
            OQ_TRY(oq_inspect_note(inspect, part, NULL,
                                   oq_ckpt_open_folder(env, c->path, inspect->variant, &part->ckpt)));
    }
    return OQ_OK;
}

oq_status oq_inspect_open(oq_env *env, const char *path, const char *variant, oq_inspect *out)
{
    *out = (oq_inspect){.env = env, .variant = variant, .problems = oq_json_new_array()};
    oq_arena_init(&out->arena, env);
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    out->path = oq_arena_strndup(&out->arena, path, n);
    if (!out->path || !out->problems) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    if (!oq_file_exists(out->path)) return open_model(out); /* org/name, or a sentence */
    if (!oq_file_is_dir(out->path)) return open_file(out);
    return has_file(env, out->path, "model_index.json") ? open_model(out) : open_component_folder(out);
}

void oq_inspect_deinit(oq_inspect *inspect)
{
    for (size_t i = inspect->parts ? inspect->n_parts : 0; i-- > 0;) {
        oq_resolved_free(inspect->parts[i].resolved);
        oq_ckpt_close(inspect->parts[i].ckpt);
    }
    oq_json_free(inspect->problems);
    oq_json_free(inspect->verified);
    oq_free(inspect->env, inspect->verified_text);
    oq_folder_component_deinit(&inspect->alone);
    oq_folder_close(inspect->folder);
    oq_arena_deinit(&inspect->arena);
}
