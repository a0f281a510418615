/* rewrite_output.c -- the place of an output: filled under a temporary name, renamed when it is complete. */
#include "engine/rewrite.h"

#include "base/names.h"

#include <string.h>
#include <strings.h>

static bool ends_with(const char *text, const char *ending)
{
    const size_t n = strlen(text), m = strlen(ending);
    return n >= m && strcasecmp(text + n - m, ending) == 0;
}

static bool is_weights(const char *name)
{
    static const char *const endings[] = {".safetensors", ".index.json", ".bin", ".pt",
                                          ".pth",         ".ckpt",       ".gguf"};
    for (size_t i = 0; i < OQ_COUNT(endings); i++)
        if (ends_with(name, endings[i])) return true;
    return strstr(name, ".safetensors.index.") != NULL;
}

/* What replaces an output must not take the source along, nor write into what is being read. */
static oq_status check_apart(oq_env *env, const char *source, const char *path)
{
    const bool inside = oq_file_within(path, source), around = oq_file_within(source, path);
    if (inside && around)
        return oq_fail(env, OQ_E_ARG, "%s: is the source; an output needs a name of its own", path);
    if (!inside && !around) return OQ_OK;
    return oq_fail(env, OQ_E_ARG, inside ? "%s: lies in the source, %s" : "%s: holds the source, %s", path,
                   source);
}

oq_status oq_output_begin(oq_env *env, const char *source, const char *path, bool force, bool whole_model,
                          oq_output_place *out)
{
    *out = (oq_output_place){.path = path, .is_file = oq_write_container_of(path) != NULL};
    const bool from_folder = oq_file_is_dir(source);
    if (!*path) return oq_fail(env, OQ_E_ARG, "an output needs a name, not ''");
    if (whole_model && out->is_file)
        return oq_fail(env, OQ_E_ARG,
                       "%s: a whole model becomes a folder; name a component's folder for one file", path);
    if (!from_folder && !whole_model && !out->is_file)
        return oq_fail(env, OQ_E_ARG,
                       "%s: a weight file becomes a file: its name must end in .safetensors or .gguf", path);
    if (!out->is_file && (is_weights(path) || strcmp(path, "-") == 0))
        return oq_fail(env, OQ_E_ARG, "%s: a weight file's name must end in .safetensors or .gguf", path);
    if (oq_file_is_special(path))
        return oq_fail(env, OQ_E_ARG, "%s: is a device or a pipe, the output is a %s", path,
                       out->is_file ? "file" : "folder");
    OQ_TRY(check_apart(env, source, path));
    if (oq_file_exists(path) && !force)
        return oq_fail(env, OQ_E_ARG, "%s: exists; --force replaces it", path);
    if (oq_file_exists(path) && out->is_file == oq_file_is_dir(path))
        return oq_fail(env, OQ_E_ARG, "%s: is a %s, the output is a %s", path,
                       out->is_file ? "folder" : "file", out->is_file ? "file" : "folder");
    return oq_dir_stage(env, path, &out->staged);
}

/* A single file is taken out of its staging folder. */
static oq_status commit_file(oq_env *env, const oq_output_place *place)
{
    char *from = oq_path_join(env, place->staged, oq_path_leaf(place->path));
    if (!from) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", place->path);
    const oq_status st = oq_dir_commit(env, from, place->path);
    oq_free(env, from);
    if (st == OQ_OK) oq_dir_remove(place->staged);
    return st;
}

oq_status oq_output_commit(oq_env *env, oq_output_place *place)
{
    OQ_TRY(oq_files_check(env)); /* the sources are open still */
    const oq_status st =
        place->is_file ? commit_file(env, place) : oq_dir_commit(env, place->staged, place->path);
    if (st != OQ_OK) return st;
    oq_free(env, place->staged);
    place->staged = NULL;
    return OQ_OK;
}

void oq_output_abort(oq_env *env, oq_output_place *place)
{
    if (!place->staged) return;
    oq_dir_remove(place->staged);
    oq_free(env, place->staged);
    place->staged = NULL;
}

/* What a producer says about weights that are written anew. */
static bool is_description(const char *name)
{
    return strncmp(name, "quant_model_description", strlen("quant_model_description")) == 0;
}

oq_status oq_output_copy_files(oq_env *env, const char *from, const char *to, const char *except)
{
    char **names = NULL;
    size_t n = 0;
    OQ_TRY(oq_dir_list(env, from, &names, &n));
    oq_status st = oq_dir_make(env, to);
    for (size_t i = 0; i < n; i++) {
        if (st == OQ_OK && !is_weights(names[i]) && !is_description(names[i]) &&
            !oq_csv_has(except, names[i]) && names[i][0] != '.') {
            char *a = oq_path_join(env, from, names[i]), *b = oq_path_join(env, to, names[i]);
            if (!a || !b)
                st = oq_fail(env, OQ_E_NOMEM, "%s: no memory", from);
            else if (!oq_file_is_dir(a))
                st = oq_file_copy(env, a, b);
            oq_free(env, b);
            oq_free(env, a);
        }
        oq_free(env, names[i]);
    }
    oq_free(env, names);
    return st;
}
