/* ckpt_narrow.c -- names of one network in a file: without the prefix that they all have, other networks' tensors left out,
 * without the wrappers of smoothed layers. */
#include "ckpt/reader.h"

#include "base/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool oq_ckpt_any_below(const oq_ckpt *ckpt, const char *prefix)
{
    size_t low = 0, high = ckpt->n_tensors;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(ckpt->tensors[middle].name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    /* "a-b" sorts between "a" and "a.b": walk on while the plain prefix still fits. */
    for (const size_t n = strlen(prefix); low < ckpt->n_tensors; low++) {
        const char *name = ckpt->tensors[low].name;
        if (strncmp(name, prefix, n) != 0) return false;
        if (name[n] == '\0' || name[n] == '.') return true;
    }
    return false;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const oq_ckpt_tensor *)a)->name, ((const oq_ckpt_tensor *)b)->name);
}

oq_status oq_ckpt_narrow(oq_env *env, oq_ckpt *ckpt, const char *prefix, bool (*elsewhere)(const char *name))
{
    const size_t n = strlen(prefix);
    size_t kept = 0, left = 0;
    ckpt->prefix = oq_arena_strdup(&ckpt->arena, prefix);
    if (!ckpt->prefix) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", ckpt->path);
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        oq_ckpt_tensor t = ckpt->tensors[i];
        const bool inside = strncmp(t.name, prefix, n) == 0 && t.name[n];
        left += !inside && elsewhere(t.name);
        if (!inside && elsewhere(t.name)) continue;
        if (inside) t.name += n;
        ckpt->tensors[kept++] = t;
    }
    ckpt->n_tensors = kept;
    if (left) oq_log(env, OQ_LOG_DEBUG, "%s: %zu tensors belong to other networks", ckpt->path, left);
    if (kept) qsort(ckpt->tensors, kept, sizeof *ckpt->tensors, compare_names);
    for (size_t i = 1; i < kept; i++)
        if (strcmp(ckpt->tensors[i - 1].name, ckpt->tensors[i].name) == 0)
            return oq_fail(env, OQ_E_FORMAT, "%s: holds '%s' with and without the prefix '%s'", ckpt->path,
                           ckpt->tensors[i].name, prefix);
    return OQ_OK;
}

/* ---- wrappers ------------------------------------------------------------------------------------------ */

#define FACTORS ".div.mul_scale"
#define INNER   ".linear."

/* Is there a "X.div.mul_scale" for the first n characters X of the name? */
static bool is_wrapped(const oq_ckpt *ckpt, const char *name, size_t n)
{
    char key[1024];
    const int length = snprintf(key, sizeof key, "%.*s%s", (int)n, name, FACTORS);
    return n < sizeof key && length > 0 && (size_t)length < sizeof key && oq_ckpt_find(ckpt, key);
}

/* The name without its wrapper; NULL in *out: it has none. */
static oq_status unwrap_name(oq_env *env, oq_ckpt *ckpt, const char *name, const char **out)
{
    const char *inner = NULL;
    *out = NULL;
    for (const char *s = strstr(name, INNER); s; s = strstr(s + 1, INNER)) inner = s;
    if (oq_name_ends(name, FACTORS))
        *out = oq_arena_printf(&ckpt->arena, "%.*s.mul_scale", (int)(strlen(name) - strlen(FACTORS)), name);
    else if (inner && is_wrapped(ckpt, name, (size_t)(inner - name)))
        *out = oq_arena_printf(&ckpt->arena, "%.*s.%s", (int)(inner - name), name, inner + strlen(INNER));
    else
        return OQ_OK;
    return *out ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory for names", ckpt->path);
}

oq_status oq_ckpt_unwrap(oq_env *env, oq_ckpt *ckpt)
{
    const char **names = NULL;
    size_t wrapped = 0;
    for (size_t i = 0; i < ckpt->n_tensors; i++) wrapped += oq_name_ends(ckpt->tensors[i].name, FACTORS);
    if (!wrapped) return OQ_OK;
    OQ_TRY(oq_arena_new(&ckpt->arena, ckpt->n_tensors, sizeof *names, "names", &names));
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        OQ_TRY(unwrap_name(env, ckpt, ckpt->tensors[i].name, &names[i]));
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        if (names[i]) ckpt->tensors[i].name = names[i];
    qsort(ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, compare_names);
    for (size_t i = 1; i < ckpt->n_tensors; i++)
        if (strcmp(ckpt->tensors[i - 1].name, ckpt->tensors[i].name) == 0)
            return oq_fail(env, OQ_E_FORMAT, "%s: holds '%s' inside of a wrapper and beside it", ckpt->path,
                           ckpt->tensors[i].name);
    return OQ_OK;
}

const char *oq_ckpt_inside(const oq_ckpt *ckpt, const char *name)
{
    const size_t n = ckpt->prefix ? strlen(ckpt->prefix) : 0;
    return n && strncmp(name, ckpt->prefix, n) == 0 ? name + n : name;
}
