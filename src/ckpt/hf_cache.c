/* hf_cache.c -- "org/name" to the folder of its snapshot in the Hugging Face cache. Reads only; downloads
 * nothing. Layout: hub/models--org--name/{refs/main, snapshots/<commit>/...}. */
#include "ckpt/reader.h"

#include <stdlib.h>
#include <string.h>

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
}

bool oq_hf_repo_name_valid(const char *text)
{
    const char *slash = strchr(text, '/');
    if (!slash || slash == text || slash[1] == '\0' || text[0] == '.' || slash[1] == '.') return false;
    for (const char *p = text; *p; p++)
        if (p != slash && !is_name_char(*p)) return false;
    return true;
}

/* Where the hub keeps its files, by the variables that its own tools read, most special first. */
static const char *cache_root(oq_arena *arena)
{
    const char *value;
    if ((value = getenv("HF_HUB_CACHE")) && *value) return oq_arena_strdup(arena, value);
    if ((value = getenv("HUGGINGFACE_HUB_CACHE")) && *value) return oq_arena_strdup(arena, value);
    if ((value = getenv("HF_HOME")) && *value) return oq_arena_printf(arena, "%s/hub", value);
    if ((value = getenv("XDG_CACHE_HOME")) && *value)
        return oq_arena_printf(arena, "%s/huggingface/hub", value);
    value = getenv("HOME");
    return oq_arena_printf(arena, "%s/.cache/huggingface/hub", value ? value : "");
}

/* The commit that refs/main names; NULL: no such file, or not a commit. */
static const char *read_main(oq_env *env, oq_arena *arena, const char *repo_folder)
{
    char *text = NULL;
    size_t n = 0;
    const char *path = oq_arena_printf(arena, "%s/refs/main", repo_folder);
    if (!path || !oq_file_exists(path) || oq_file_read(env, path, 256, &text, &n) != OQ_OK) return NULL;
    n = strspn(text, "0123456789abcdef");
    const char *commit =
        n >= 7 && strspn(text + n, " \r\n") == strlen(text + n) ? oq_arena_strndup(arena, text, n) : NULL;
    oq_free(env, text);
    return commit;
}

/* The one snapshot of a repository without refs/main; several are an error that names the variable's folder.
 */
static oq_status only_snapshot(oq_env *env, oq_arena *arena, const char *repo, const char *snapshots,
                               const char **out)
{
    char **names = NULL;
    size_t n = 0;
    OQ_TRY(oq_dir_list(env, snapshots, &names, &n));
    oq_status st = OQ_OK;
    if (n != 1)
        st = oq_fail(env, OQ_E_NOTFOUND,
                     "model '%s' has %zu snapshots in %s and no refs/main: name the folder of one of them",
                     repo, n, snapshots);
    else if (!(*out = oq_arena_printf(arena, "%s/%s", snapshots, names[0])))
        st = oq_fail(env, OQ_E_NOMEM, "model '%s': no memory for its path", repo);
    for (size_t i = 0; i < n; i++) oq_free(env, names[i]);
    oq_free(env, names);
    return st;
}

static oq_status find_snapshot(oq_env *env, oq_arena *arena, const char *repo, const char **out)
{
    const char *root = cache_root(arena);
    const int org = (int)strcspn(repo, "/");
    const char *folder =
        root ? oq_arena_printf(arena, "%s/models--%.*s--%s", root, org, repo, repo + org + 1) : NULL;
    const char *snapshots = folder ? oq_arena_printf(arena, "%s/snapshots", folder) : NULL;
    if (!snapshots) return oq_fail(env, OQ_E_NOMEM, "model '%s': no memory for its path", repo);
    if (!oq_file_is_dir(snapshots))
        return oq_fail(env, OQ_E_NOTFOUND,
                       "model '%s' is neither a folder nor in the Hugging Face cache %s: run 'hf download "
                       "%s', or name the folder that holds its model_index.json",
                       repo, root, repo);
    const char *commit = read_main(env, arena, folder);
    if (!commit) return only_snapshot(env, arena, repo, snapshots, out);
    *out = oq_arena_printf(arena, "%s/%s", snapshots, commit);
    if (!*out) return oq_fail(env, OQ_E_NOMEM, "model '%s': no memory for its path", repo);
    if (!oq_file_is_dir(*out))
        return oq_fail(env, OQ_E_NOTFOUND,
                       "model '%s': refs/main names snapshot %s, which is not in %s: run 'hf download %s'",
                       repo, commit, snapshots, repo);
    return OQ_OK;
}

oq_status oq_hf_cache_find(oq_env *env, const char *repo, char **out)
{
    oq_arena arena;
    const char *path = NULL;
    *out = NULL;
    oq_arena_init(&arena, env);
    oq_status st = find_snapshot(env, &arena, repo, &path);
    if (st == OQ_OK && !(*out = oq_strdup(env, path)))
        st = oq_fail(env, OQ_E_NOMEM, "model '%s': no memory for its path", repo);
    oq_arena_deinit(&arena);
    return st;
}
