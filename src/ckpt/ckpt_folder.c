/* ckpt_folder.c -- which files of a component folder are its weights: both producers' names, variants in
 * every spelling that was ever written, single or sharded; and a sentence for folders that hold something
 * else. */
#include "ckpt/reader.h"

#include "base/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct listing {
    char **names; /* sorted */
    size_t n;
} listing;

static void free_listing(oq_env *env, listing *l)
{
    for (size_t i = 0; i < l->n; i++) oq_free(env, l->names[i]);
    oq_free(env, l->names);
}

static int compare_to_name(const void *key, const void *element)
{
    return strcmp(key, *(char *const *)element);
}

static const char *find_name(const listing *l, const char *name)
{
    if (!l->n) return NULL;
    char *const *found = bsearch(name, l->names, l->n, sizeof *l->names, compare_to_name);
    return found ? *found : NULL;
}

/* Diffusers' name first, transformers' second, msModelSlim's third. The index decides where there is one: leftovers of another
 * split or a single file beside it are not read. %1$s stem, %2$s variant, %3$s ending. */
static const char *const stems[] = {"diffusion_pytorch_model", "model", "quant_model_weights"};
static const char *const pickle_stems[OQ_COUNT(stems)] = {"diffusion_pytorch_model", "pytorch_model",
                                                          "quant_model_weights"};
static const char *const plain_forms[] = {"%1$s.%3$s.index.json", "%1$s.%3$s"};
static const char *const variant_forms[] = {
    "%1$s.%3$s.index.%2$s.json",
    "%1$s.%2$s.%3$s.index.json",
    "%1$s.%3$s.%2$s.index.json",
    "%1$s.%2$s.%3$s",
};

/* msModelSlim's older name of the one weight file or index of a folder: quant_model_weight_<type>. */
static const char *find_typed(const listing *l)
{
    for (int index = 1; index >= 0; index--)
        for (size_t i = 0; i < l->n; i++)
            if (strncmp(l->names[i], "quant_model_weight_", 19) == 0 &&
                oq_name_ends(l->names[i], index ? ".safetensors.index.json" : ".safetensors") &&
                !strstr(l->names[i], "-of-"))
                return l->names[i];
    return NULL;
}

static oq_status find_ending(oq_env *env, const listing *l, const char *const *names, const char *ending,
                             const char *variant, const char **out)
{
    const char *const *forms = variant ? variant_forms : plain_forms;
    const size_t n_forms = variant ? OQ_COUNT(variant_forms) : OQ_COUNT(plain_forms);
    const size_t room = 64 + (variant ? strlen(variant) : 0);
    char *name = oq_alloc(env, room);
    *out = NULL;
    if (!name) return oq_fail(env, OQ_E_NOMEM, "weights' name: no memory for %zu bytes", room);
    for (size_t i = 0; i < OQ_COUNT(stems) && !*out; i++)
        for (size_t j = 0; j < n_forms && !*out; j++) {
            snprintf(name, room, forms[j], names[i], variant ? variant : "", ending);
            *out = find_name(l, name);
        }
    oq_free(env, name);
    return OQ_OK;
}

static oq_status find_weights(oq_env *env, const listing *l, const char *variant, const char **out)
{
    return find_ending(env, l, stems, "safetensors", variant, out);
}

/* Pickled weights only where there are no others. */
static oq_status find_pickle(oq_env *env, const listing *l, const char *variant, const char **out)
{
    *out = NULL;
    for (size_t i = 0; i < l->n; i++)
        if (oq_name_ends(l->names[i], ".safetensors")) return OQ_OK;
    return find_ending(env, l, pickle_stems, "bin", variant, out);
}

/* The variant in "model.fp16.safetensors" or "model.fp16-00001-of-00002.safetensors": its begin and length.
 */
static const char *variant_of(const char *name, int *n)
{
    for (size_t i = 0; i < OQ_COUNT(stems); i++) {
        const size_t stem = strlen(stems[i]);
        if (strncmp(name, stems[i], stem) != 0 || name[stem] != '.') continue;
        const char *begin = name + stem + 1;
        const size_t length = strcspn(begin, ".-");
        if (strcmp(begin, "safetensors") == 0 || begin[length] == '\0') continue;
        *n = (int)length;
        return begin;
    }
    return NULL;
}

static bool is_pickle_name(const char *name)
{
    return oq_name_ends(name, ".bin") || oq_name_ends(name, ".pt") || oq_name_ends(name, ".pth") ||
           oq_name_ends(name, ".ckpt");
}

/* No weights under any of the names: say what is there instead. */
static oq_status fail_weights(oq_env *env, const char *folder, const char *variant, const listing *l)
{
    const char *other = NULL, *pickle = NULL, *named = NULL;
    int n = 0;
    for (size_t i = 0; i < l->n; i++) {
        if (is_pickle_name(l->names[i])) pickle = l->names[i];
        if (!oq_name_ends(l->names[i], ".safetensors")) continue;
        if (!other) other = l->names[i];
        if (!named) named = variant_of(l->names[i], &n);
    }
    if (other && strstr(other, "-of-"))
        return oq_fail(env, OQ_E_NOTFOUND,
                       "%s: holds shards ('%s') without their index (*.safetensors.index.json)", folder,
                       other);
    if (named && variant)
        return oq_fail(env, OQ_E_NOTFOUND, "%s: holds no weights of variant '%s', but of variant '%.*s'",
                       folder, variant, n, named);
    if (named)
        return oq_fail(env, OQ_E_NOTFOUND,
                       "%s: holds weights of variant '%.*s' alone: ask for it by --variant %.*s", folder, n,
                       named, n, named);
    if (other)
        return oq_fail(
            env, OQ_E_NOTFOUND,
            "%s: holds '%s', but neither diffusion_pytorch_model.safetensors nor model.safetensors", folder,
            other);
    if (pickle)
        return oq_fail(
            env, OQ_E_NOTFOUND,
            "%s: holds '%s', but neither diffusion_pytorch_model.bin nor pytorch_model.bin: name the "
            "file itself",
            folder, pickle);
    return oq_fail(env, OQ_E_NOTFOUND,
                   "%s: holds no weights (diffusion_pytorch_model.safetensors or model.safetensors)", folder);
}

/* The one GGUF file of a folder without other weights; of a split one the first part. */
static oq_status find_gguf(oq_env *env, const char *folder, const listing *l, const char **out)
{
    *out = NULL;
    for (size_t i = 0; i < l->n; i++) {
        const char *name = l->names[i], *part = strstr(name, "-of-");
        if (!oq_name_ends(name, ".gguf")) continue;
        if (part && part - name >= 6 && part[-6] == '-' && strncmp(part - 5, "00001", 5) != 0) continue;
        if (*out)
            return oq_fail(env, OQ_E_NOTFOUND, "%s: holds '%s' and '%s': name one of them", folder, *out,
                           name);
        *out = name;
    }
    for (size_t i = 0; *out && i < l->n; i++)
        if (oq_name_ends(l->names[i], ".safetensors")) *out = NULL; /* what these are is asked first */
    return OQ_OK;
}

static oq_status pick_weights(oq_env *env, const char *folder, const char *variant, const listing *l,
                              const char **out)
{
    OQ_TRY(find_weights(env, l, variant, out));
    if (!*out && !variant) *out = find_typed(l);
    if (!*out && !variant) OQ_TRY(find_gguf(env, folder, l, out));
    if (!*out) OQ_TRY(find_pickle(env, l, variant, out));
    if (*out || !variant) return *out ? OQ_OK : fail_weights(env, folder, variant, l);
    OQ_TRY(find_weights(env, l, NULL, out));
    if (!*out) OQ_TRY(find_pickle(env, l, NULL, out));
    if (!*out) return fail_weights(env, folder, variant, l);
    oq_log(env, OQ_LOG_WARN, "%s: no weights of variant '%s', '%s' is used", folder, variant, *out);
    return OQ_OK;
}

oq_status oq_ckpt_open_folder(oq_env *env, const char *folder, const char *variant, oq_ckpt **out)
{
    listing l = {0};
    const char *name = NULL;
    char *path = NULL;
    *out = NULL;
    if (variant && !*variant) variant = NULL;
    OQ_TRY(oq_dir_list(env, folder, &l.names, &l.n));
    oq_status st = pick_weights(env, folder, variant, &l, &name);
    if (st == OQ_OK && !(path = oq_path_join(env, folder, name)))
        st = oq_fail(env, OQ_E_NOMEM, "%s: no memory", folder);
    if (st == OQ_OK) st = oq_ckpt_open(env, path, out);
    oq_free(env, path);
    free_listing(env, &l);
    return st;
}
