/* gguf_find.c -- the forms in which people name a GGUF file: a path, owner/repo/file.gguf, owner/repo:TYPE. The last two
 * are looked up in the Hugging Face cache; nothing is downloaded. */
#include "ckpt/reader.h"

#include <ctype.h>
#include <string.h>

static bool same_letters(const char *a, const char *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (toupper((unsigned char)a[i]) != toupper((unsigned char)b[i])) return false;
    return true;
}

/* Does a word of the file's name, between '-', '.' and the ends, say the type? */
static bool names_type(const char *leaf, const char *type)
{
    const size_t n = strlen(type), length = strlen(leaf);
    static const char ending[] = ".gguf";
    if (length < sizeof ending - 1 || strcmp(leaf + length - (sizeof ending - 1), ending) != 0) return false;
    for (size_t i = 0; i + n <= length; i++) {
        const bool begins = i == 0 || leaf[i - 1] == '-' || leaf[i - 1] == '.';
        const bool ends = leaf[i + n] == '-' || leaf[i + n] == '.';
        if (begins && ends && same_letters(leaf + i, type, n)) return true;
    }
    return false;
}

/* The one file of the folder whose name says the type; of parts the first. */
static oq_status find_type(oq_env *env, const char *text, const char *folder, const char *type, char **out)
{
    char **names = NULL;
    size_t n = 0, found = 0, at = 0;
    OQ_TRY(oq_dir_list(env, folder, &names, &n));
    for (size_t i = 0; i < n; i++) {
        const char *part = strstr(names[i], "-of-");
        const bool later = part && part - names[i] >= 6 && strncmp(part - 6, "-00001", 6) != 0;
        if (names_type(names[i], type) && !later) found++, at = i;
    }
    oq_status st = OQ_OK;
    if (found != 1)
        st = oq_fail(env, OQ_E_NOTFOUND, "'%s': %zu files in '%s' are named after type '%s', one is needed",
                     text, found, folder, type);
    else if (!(*out = oq_path_join(env, folder, names[at])))
        st = oq_fail(env, OQ_E_NOMEM, "'%s': no memory", text);
    for (size_t i = 0; i < n; i++) oq_free(env, names[i]);
    oq_free(env, names);
    return st;
}

static oq_status find_in(oq_env *env, const char *text, const char *folder, const char *rest, char **out)
{
    if (*rest == ':') return find_type(env, text, folder, rest + 1, out);
    char *path = oq_path_join(env, folder, rest + 1);
    if (!path) return oq_fail(env, OQ_E_NOMEM, "'%s': no memory", text);
    if (oq_file_exists(path) && !strstr(rest, "..")) {
        *out = path;
        return OQ_OK;
    }
    const oq_status st = oq_fail(env, OQ_E_NOTFOUND, "'%s': there is no file '%s'", text, path);
    oq_free(env, path);
    return st;
}

oq_status oq_gguf_find(oq_env *env, const char *text, char **out)
{
    const char *slash = strchr(text, '/'), *rest = slash ? strpbrk(slash + 1, "/:") : NULL;
    char repo[256], *folder = NULL;
    *out = NULL;
    if (oq_file_exists(text) || !rest || (size_t)(rest - text) >= sizeof repo) {
        *out = oq_alloc(env, strlen(text) + 1);
        if (!*out) return oq_fail(env, OQ_E_NOMEM, "'%s': no memory", text);
        memcpy(*out, text, strlen(text));
        return OQ_OK; /* whoever opens it says what is wrong */
    }
    memcpy(repo, text, (size_t)(rest - text));
    repo[rest - text] = '\0';
    if (!oq_hf_repo_name_valid(repo))
        return oq_fail(env, OQ_E_NOTFOUND, "'%s': there is no such file, and '%s' is no name of a repository",
                       text, repo);
    OQ_TRY(oq_hf_cache_find(env, repo, &folder));
    const oq_status st = find_in(env, text, folder, rest, out);
    oq_free(env, folder);
    return st;
}
