/* recipe_words.c -- a search's words: short names of methods, budgets, and the assignment as a quantization that every command
 * takes. */
#include "engine/recipe.h"

#include "base/names.h"
#include "format/gguf_type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- methods ------------------------------------------------------------------------------------------- */

static const struct {
    const char *word, *spec;
} short_words[] = {
    {"nf4", "{\"method\":\"bitsandbytes\"}"},
    {"fp4", "{\"method\":\"bitsandbytes\",\"quant_type\":\"fp4\"}"},
    {"fp8-channel", "{\"method\":\"fp8\",\"weight_strategy\":\"channel\"}"},
    {"fp8-block", "{\"method\":\"fp8\",\"weight_strategy\":\"block\"}"},
};

/* int2, int3, int4 in groups of 64; int4-g32, int8-g128, int4z-g32 (with zero points). False: another word. */
static bool read_integers(const char *word, char spec[128])
{
    int bits = 0, group = 64, used = 0;
    const bool zeros = sscanf(word, "int%1d%n", &bits, &used) == 1 && word[used] == 'z';
    const char *rest = word + used + zeros;
    if (!used || (bits != 2 && bits != 3 && bits != 4 && bits != 8)) return false;
    if (*rest == '\0' && bits == 8 && !zeros) return false; /* the method of that name */
    used = 0;
    if (*rest && (sscanf(rest, "-g%4d%n", &group, &used) != 1 || rest[used] || group <= 0)) return false;
    snprintf(spec, 128, "{\"method\":\"w4a16\",\"bits\":%d,\"group_size\":%d%s}", bits, group,
             zeros ? ",\"sym\":false" : "");
    return true;
}

/* Short words for methods with options; GGUF's types (gguf-mxfp4 is GGUF's, mxfp4 the method); else a method's name. */
static void spec_of(const char *word, char spec[128])
{
    const bool prefixed = strncmp(word, "gguf-", 5) == 0;
    const oq_gguf_type *type = oq_gguf_type_by_name(word + (prefixed ? 5 : 0));
    if (read_integers(word, spec)) return;
    if (type && (prefixed || strchr("qQiItT", word[0])))
        snprintf(spec, 128, "{\"method\":\"gguf\",\"type\":\"%s\"}", type->name);
    else
        snprintf(spec, 128, "%s", word);
    for (size_t s = 0; s < OQ_COUNT(short_words); s++)
        if (oq_name_equal(short_words[s].word, word)) snprintf(spec, 128, "%s", short_words[s].spec);
}

static oq_status check_method(oq_env *env, const char *word)
{
    const oq_method *method = oq_method_find(env, word);
    if (!method) return oq_method_unknown(env, "--methods", word);
    if (method->online && !method->missing) return OQ_OK;
    return oq_fail(env, OQ_E_ARG, "--methods: '%s' reads checkpoints, it quantizes nothing while loading",
                   method->name);
}

/* One word that is not "bf16". */
static oq_status take_method(oq_recipe *r, const char *csv, const char *word)
{
    char spec[128];
    if (r->n_methods + 1 >= OQ_RECIPE_METHODS)
        return oq_fail(r->env, OQ_E_ARG, "--methods '%s': at most %d are compared", csv,
                       OQ_RECIPE_METHODS - 1);
    if (word[0] == '@' || word[0] == '{')
        return oq_fail(r->env, OQ_E_ARG, "--methods '%s': takes names of methods, not files or objects", csv);
    for (int m = 0; m < r->n_methods; m++)
        if (oq_name_equal(r->method[m], word))
            return oq_fail(r->env, OQ_E_ARG, "--methods '%s' names '%s' twice", csv, word);
    spec_of(word, spec);
    if (strcmp(spec, word) == 0) OQ_TRY(check_method(r->env, word));
    r->method[r->n_methods] = oq_arena_strdup(&r->arena, word);
    r->spec[r->n_methods] = oq_arena_strdup(&r->arena, spec);
    if (!r->method[r->n_methods] || !r->spec[r->n_methods])
        return oq_fail(r->env, OQ_E_NOMEM, "recipe: no memory");
    r->n_methods++;
    return OQ_OK;
}

oq_status oq_recipe_read_methods(oq_recipe *r, const char *csv)
{
    char word[64];
    for (size_t i = 0; oq_csv_word(csv, i, word, sizeof word); i++) {
        if (!*word)
            return oq_fail(r->env, OQ_E_ARG,
                           "--methods '%s': word %zu is empty; want names with commas between them, as in "
                           "nvfp4,int4,int8",
                           csv, i + 1);
        if (!oq_name_equal(word, "bf16")) OQ_TRY(take_method(r, csv, word));
    }
    if (r->n_methods == 0) return oq_fail(r->env, OQ_E_ARG, "--methods '%s' names no method", csv);
    r->method[r->n_methods++] = "bf16";
    return OQ_OK;
}

oq_status oq_recipe_read_budget(const oq_recipe *r, const char *text, size_t *bytes)
{
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1},     {"B", 1},      {"KB", 1e3},      {"MB", 1e6},
                 {"GB", 1e9}, {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}};
    char *end = NULL;
    const double x = strtod(text, &end);
    while (*end == ' ') end++;
    if (end != text && x > 0 && isfinite(x) && strcmp(end, "bpw") == 0) {
        *bytes = (size_t)(x * r->weights / 8.0);
        return OQ_OK;
    }
    for (size_t i = 0; end != text && x > 0 && x < 1e15 && i < OQ_COUNT(units); i++)
        if (strcmp(end, units[i].unit) == 0) {
            *bytes = (size_t)(x * units[i].bytes);
            return OQ_OK;
        }
    return oq_fail(r->env, OQ_E_ARG,
                   "--budget '%s' is not bits a weight (4.5bpw) or a size of all layers (6GB, 700MiB)", text);
}

static oq_json *spec_json(oq_env *env, const oq_recipe *r, int m)
{
    oq_json *json = NULL;
    if (!r->spec[m]) return oq_json_new_null();
    if (r->spec[m][0] == '{')
        return oq_json_parse(env, r->spec[m], strlen(r->spec[m]), "recipe", &json) == OQ_OK ? json : NULL;
    json = oq_json_new_object();
    oq_json_set(json, "method", oq_json_new_string(r->spec[m]));
    return json;
}

/* ---- components ---------------------------------------------------------------------------------------- */

bool oq_recipe_has_component(const oq_recipe *r, const char *component)
{
    const char *only = oq_options_text(r->options, "components", NULL);
    return !only || oq_csv_has(only, component);
}

oq_status oq_recipe_uniform(oq_recipe *r, int m, const char **spec)
{
    const char *only = oq_options_text(r->options, "components", NULL);
    *spec = r->spec[m];
    if (!only || !*spec) return OQ_OK;
    char word[64], *text = NULL;
    oq_json *o = oq_json_new_object();
    for (size_t i = 0; oq_csv_word(only, i, word, sizeof word); i++)
        oq_json_set(o, word, spec_json(r->env, r, m));
    oq_status st = oq_json_dump(r->env, o, OQ_JSON_COMPACT, &text);
    if (st == OQ_OK && !(*spec = oq_arena_strdup(&r->arena, text)))
        st = oq_fail(r->env, OQ_E_NOMEM, "recipe: no memory");
    oq_free(r->env, text);
    oq_json_free(o);
    return st;
}

/* ---- the assignment ------------------------------------------------------------------------------------ */

/* Each component's most frequent method stands for the whole of it; other layers have entries of their own. */
static int common_method(const oq_recipe *r, const char *component)
{
    size_t count[OQ_RECIPE_METHODS] = {0};
    int best = r->n_methods - 1;
    for (size_t i = 0; i < r->n_layers; i++)
        if (strcmp(r->layers[i].component, component) == 0) count[r->layers[i].chosen]++;
    for (int m = 0; m < r->n_methods; m++)
        if (count[m] > count[best]) best = m;
    return best;
}

oq_json *oq_recipe_json(const oq_recipe *r)
{
    oq_json *o = oq_json_new_object();
    char key[512];
    for (size_t i = 0; i < r->n_layers; i++) {
        const oq_recipe_layer *l = &r->layers[i];
        const int common = common_method(r, l->component);
        if (!oq_json_get(o, l->component)) oq_json_set(o, l->component, spec_json(r->env, r, common));
        if (l->chosen == common) continue;
        snprintf(key, sizeof key, "%s.%s", l->component, l->name);
        oq_json_set(o, key, spec_json(r->env, r, l->chosen));
    }
    return o;
}
