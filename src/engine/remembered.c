/* remembered.c -- a run's options as its pictures remember them, who go to other people: what belongs to the result and not to
 * this machine. Files of settings become their text; names of other files keep what tells them apart, without the folders
 * that nobody else has. */
#include "engine/command.h"

#include "base/names.h"

#include <stdlib.h>
#include <string.h>

/* Options that say where results go or how this machine works: not part of what a picture is. */
static const char *const forgotten[] = {
    "output",         "show",        "from",    "no-metadata", "trace", "trace-keys",
    "verify-against", "json",        "threads", "device",      "cpu",   "quiet",
    "verbose",        "prompt-file", "preview", "previews",    NULL};

bool oq_remembered_never(const char *name)
{
    for (size_t i = 0; forgotten[i]; i++)
        if (strcmp(forgotten[i], name) == 0) return true;
    return false;
}

static bool names_a_file(const oq_option_info *row)
{
    return row && row->value && (strncmp(row->value, "FILE", 4) == 0 || strcmp(row->value, "DIR") == 0);
}

/* ---- names --------------------------------------------------------------------------------------------- */

/* Is one of the parts between slashes ".."? */
static bool climbs(const char *path)
{
    for (const char *at = path; (at = strstr(at, "..")); at += 2)
        if ((at == path || at[-1] == '/') && (at[2] == '/' || at[2] == '\0')) return true;
    return false;
}

/* ".../models--org--name/snapshots/COMMIT" is "org/name" to everybody who has it; NULL: another place. */
static const char *cached_name(oq_arena *arena, const char *path)
{
    static const char mark[] = "/models--", behind[] = "/snapshots/";
    const char *at = strstr(path, mark), *org = at ? at + sizeof mark - 1 : NULL;
    const char *end = org ? strstr(org, behind) : NULL, *dashes = org ? strstr(org, "--") : NULL;
    if (!end || !dashes || dashes >= end) return NULL;
    const char *inside = strchr(end + sizeof behind - 1, '/');
    if (inside && inside[1]) return NULL; /* a file of it */
    return oq_arena_printf(arena, "%.*s/%.*s", (int)(dashes - org), org, (int)(end - dashes) - 2, dashes + 2);
}

static const char *last_part(oq_arena *arena, const char *path)
{
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/') n--;
    size_t from = n;
    while (from > 0 && path[from - 1] != '/') from--;
    return oq_arena_strndup(arena, path + from, n - from);
}

static bool is_no_name(const char *part)
{
    return !*part || strcmp(part, ".") == 0 || strcmp(part, "..") == 0;
}

const char *oq_remembered_name(oq_arena *arena, const char *path, bool bare)
{
    const char *name = cached_name(arena, path);
    if (name) return name;
    /* A name that no file has here ("org/name") means one in the cache. */
    const bool stays = path[0] != '/' && !climbs(path) && !is_no_name(path);
    if (stays && !(bare && oq_file_exists(path))) return oq_arena_strdup(arena, path);
    name = last_part(arena, path);
    if (!name || !is_no_name(name)) return name;
    char *real = realpath(path, NULL); /* "-m .": the folder has a name */
    if (real) name = last_part(arena, real);
    free(real);
    return name;
}

/* How much of "FILE:SCALE" is FILE. */
static size_t file_length(const oq_option_info *row, const char *text)
{
    const char *colon = strchr(row->value, ':') ? strrchr(text, ':') : NULL;
    char *end = NULL;
    if (!colon || colon == text || strchr(colon, '/')) return strlen(text);
    strtod(colon + 1, &end);
    return end > colon + 1 && !*end ? (size_t)(colon - text) : strlen(text);
}

/* What tells the file from another of its name; a folder's files have theirs with the model (oq_model.hashes). */
static oq_status note_input(const oq_remembering *r, const oq_option_info *row, const char *file,
                            const char *name)
{
    char hash[17];
    if (!oq_file_exists(file) || oq_file_is_dir(file) || oq_file_is_special(file)) return OQ_OK;
    OQ_TRY(oq_file_sample_hash(r->arena->env, file, hash));
    const char *key = oq_arena_printf(r->arena, "%s %s", row->name, oq_path_leaf(name));
    return key && oq_json_set(r->inputs, key, oq_json_new_string(hash))
               ? OQ_OK
               : oq_fail(r->arena->env, OQ_E_NOMEM, "metadata: no memory");
}

static oq_status portable_name(const oq_remembering *r, const oq_option_info *row, const char *text,
                               const char **out)
{
    const size_t n = file_length(row, text);
    const char *file = oq_arena_strndup(r->arena, text, n),
               *name = file ? oq_remembered_name(r->arena, file, r->bare) : NULL;
    *out = name ? oq_arena_printf(r->arena, "%s%s", name, text + n) : NULL;
    return *out ? note_input(r, row, file, name) : oq_fail(r->arena->env, OQ_E_NOMEM, "metadata: no memory");
}

/* ---- files of settings ----------------------------------------------------------------------------------- */

static bool is_component(const oq_option_info *row)
{
    return strcmp(row->name, "component") == 0;
}

/* "@FILE"; of options that need no '@', also FILE itself. NULL: no file is meant. */
static const char *settings_file(const oq_option_info *row, const char *spec)
{
    const bool bare = row->value && strstr(row->value, "|FILE");
    if (spec[0] == '@') return spec + 1;
    return bare && oq_file_exists(spec) ? spec : NULL;
}

static bool has_recipe(const oq_pipeline_type *family, const char *name)
{
    for (const oq_pipeline_recipe *r = family->recipes; r && r->name; r++)
        if (oq_name_equal(r->name, name)) return true;
    return false;
}

static bool some_family_has(const char *recipe)
{
    for (size_t i = 0; oq_pipeline_list[i]; i++)
        if (has_recipe(oq_pipeline_list[i], recipe)) return true;
    return false;
}

bool oq_remembered_reads(const oq_option_info *row, const char *text)
{
    const char *equals = is_component(row) ? strchr(text, '=') : NULL;
    if (equals) return equals[1] == '@';
    if (strcmp(row->name, "recipe") == 0)
        return !some_family_has(text); /* one of no family is looked for as a file */
    return row->type == OQ_OPTION_SPEC && settings_file(row, text);
}

/* What the file says; NULL in *out: no file is meant. */
static oq_status settings_text(oq_arena *arena, const oq_option_info *row, const char *spec, const char **out)
{
    const char *file = settings_file(row, spec);
    char *text = NULL;
    size_t n = 0;
    *out = NULL;
    if (!file) return OQ_OK;
    OQ_TRY(oq_file_read(arena->env, file, (size_t)1 << 20, &text, &n));
    *out = oq_arena_strdup(arena, text);
    oq_free(arena->env, text);
    return *out ? OQ_OK : oq_fail(arena->env, OQ_E_NOMEM, "metadata: no memory");
}

/* "KEY=@FILE" */
static oq_status component_text(oq_arena *arena, const oq_option_info *row, const char *item,
                                const char **out)
{
    const char *equals = strchr(item, '='), *text = NULL;
    *out = NULL;
    if (!equals || equals[1] != '@') return OQ_OK;
    OQ_TRY(settings_text(arena, row, equals + 1, &text));
    *out = oq_arena_printf(arena, "%.*s%s", (int)(equals + 1 - item), item, text);
    return OQ_OK;
}

/* ---- an option ------------------------------------------------------------------------------------------- */

/* One text of an option; what means no file stays as it is: a prompt may begin with '@'. */
static oq_status portable_text(const oq_remembering *r, const oq_option_info *row, const oq_json *value,
                               oq_json **out)
{
    oq_arena *arena = r->arena;
    const char *text = oq_json_string(value), *other = NULL;
    if (text && row && row->type == OQ_OPTION_SPEC) OQ_TRY(settings_text(arena, row, text, &other));
    if (text && row && is_component(row)) OQ_TRY(component_text(arena, row, text, &other));
    if (text && names_a_file(row)) OQ_TRY(portable_name(r, row, text, &other));
    *out = other ? oq_json_new_string(other) : oq_json_ref(value);
    return *out ? OQ_OK : oq_fail(arena->env, OQ_E_NOMEM, "metadata: no memory");
}

static oq_status portable_list(const oq_remembering *r, const oq_option_info *row, const oq_json *list,
                               oq_json *out)
{
    for (size_t i = 0; i < oq_json_size(list); i++) {
        oq_json *item = NULL;
        OQ_TRY(portable_text(r, row, oq_json_at(list, i), &item));
        oq_json_append(out, item);
    }
    return OQ_OK;
}

static oq_status put(const oq_remembering *r, const char *key, const oq_json *value, oq_json *out)
{
    const oq_option_info *row = oq_option_find("generate", key);
    const char *text = oq_json_string(value), *recipe = NULL;
    oq_json *kept = NULL;
    if (oq_json_type(value) == OQ_JSON_ARRAY) {
        oq_json_set(out, key, kept = oq_json_new_array());
        return portable_list(r, row, value, kept);
    }
    /* A recipe of the family has a name; one from a file is a quantization like any other. */
    if (text && row && strcmp(row->name, "recipe") == 0 && !has_recipe(r->family, text))
        OQ_TRY(settings_text(r->arena, row, text, &recipe));
    if (recipe) return oq_json_set(out, "quantization", oq_json_new_string(recipe)), OQ_OK;
    OQ_TRY(portable_text(r, row, value, &kept));
    oq_json_set(out, key, kept);
    return OQ_OK;
}

oq_status oq_remembered_options(const oq_remembering *r, const oq_json *all, bool request, oq_json *out)
{
    for (size_t i = 0; i < oq_json_size(all); i++) {
        const char *key = NULL;
        const oq_json *value = oq_json_member(all, i, &key);
        const oq_option_info *row = oq_option_find("generate", key);
        const bool of_request = row && strcmp(row->group, "request") == 0;
        if (oq_remembered_never(key) || of_request != request) continue;
        OQ_TRY(put(r, key, value, out));
    }
    return OQ_OK;
}

/* ---- the way back ---------------------------------------------------------------------------------------- */

/* Is a file, or a folder, of this name here? "org/name" may lie in the cache. */
static bool is_here(oq_arena *arena, const oq_option_info *row, const char *text)
{
    const char *file = oq_arena_strndup(arena, text, file_length(row, text));
    return !file || oq_file_exists(file) || (strcmp(row->value, "DIR") == 0 && strchr(file, '/'));
}

static oq_status check_file(oq_arena *arena, const char *picture, const oq_option_info *row,
                            const oq_json *value, const char *given)
{
    const char *text = oq_json_string(value);
    if (!text || !given || strcmp(text, given) != 0) return OQ_OK; /* another one was given */
    if (is_here(arena, row, text)) return OQ_OK;
    return oq_fail(
        arena->env, OQ_E_NOTFOUND,
        "%s was made with %s '%s', which is not here: pictures remember names without their folders; "
        "give --%s %s",
        picture, row->name, text, row->name, row->value);
}

oq_status oq_remembered_check_files(oq_arena *arena, const char *picture, const oq_json *remembered,
                                    const oq_options *options)
{
    for (size_t i = 0; i < oq_json_size(remembered); i++) {
        const char *key = NULL;
        const oq_json *value = oq_json_member(remembered, i, &key);
        const oq_option_info *row = oq_option_find("generate", key);
        if (!names_a_file(row)) continue;
        if (row->type != OQ_OPTION_LIST) {
            OQ_TRY(check_file(arena, picture, row, value, oq_options_text(options, row->name, NULL)));
            continue;
        }
        const size_t n = oq_options_count(options, row->name);
        for (size_t k = 0; k < n && k < oq_json_size(value); k++)
            OQ_TRY(check_file(arena, picture, row, oq_json_at(value, k),
                              oq_options_item(options, row->name, k)));
    }
    return OQ_OK;
}
