/* quant_attention.c -- takes the options of runtime attention quantization out of a configuration. */
#include "config/quant_attention.h"

#include "base/names.h"

#include <stdio.h>
#include <string.h>

const char *const oq_attention_options[] = {"dtype",    "skip_steps",         "skip_layers",
                                            "backend",  "sparsity",           "start_step",
                                            "end_step", "sparse_skip_layers", NULL};

static const struct {
    const char *flat, *name;
} spellings[] = {
    {"diffusion_kv_cache_dtype", "dtype"},
    {"diffusion_kv_cache_skip_steps", "skip_steps"},
    {"diffusion_kv_cache_skip_layers", "skip_layers"},
    {"kv_cache_dtype", "dtype"},
    {"kv_cache_skip_steps", "skip_steps"},
    {"kv_cache_skip_layers", "skip_layers"},
};

static const char *flat_name(const char *key)
{
    for (size_t i = 0; i < OQ_COUNT(spellings); i++)
        if (oq_name_equal(spellings[i].flat, key)) return spellings[i].name;
    return NULL;
}

static bool is_option(const char *key)
{
    for (size_t i = 0; oq_attention_options[i]; i++)
        if (strcmp(oq_attention_options[i], key) == 0) return true;
    return false;
}

static oq_status no_memory(oq_env *env)
{
    return oq_fail(env, OQ_E_NOMEM, "attention: no memory");
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* One option under its one name; given twice it must say the same. */
static oq_status put(oq_env *env, oq_json *options, const char *name, const char *key, const oq_json *value)
{
    const oq_json *old = oq_json_get(options, name);
    if (old && !oq_json_equal(old, value))
        return oq_fail(env, OQ_E_CONFIG, "attention: '%s' is given twice with different values, once as '%s'",
                       name, key);
    return oq_json_set(options, name, oq_json_copy(value)) ? OQ_OK : no_memory(env);
}

/* {"dtype": "fp8", ...}, or the precision's name alone. */
static oq_status read_mapping(oq_env *env, const oq_json *json, oq_json *options)
{
    if (oq_json_type(json) == OQ_JSON_NULL) return OQ_OK;
    if (oq_json_type(json) == OQ_JSON_STRING) return put(env, options, "dtype", "attention", json);
    if (oq_json_type(json) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_CONFIG, "'attention' must be a mapping or a precision's name, not %s",
                       oq_json_type_name(json));
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(json, &at, &key, &value)) {
        const char *name = is_option(key) ? key : flat_name(key);
        if (!name) {
            size_t n = 0;
            while (oq_attention_options[n]) n++;
            const int nearest = oq_name_nearest(key, oq_attention_options, n);
            return oq_fail(env, OQ_E_CONFIG, "attention has no option '%s'%s%s%s", key,
                           nearest < 0 ? "" : "; did you mean '",
                           nearest < 0 ? "" : oq_attention_options[nearest], nearest < 0 ? "" : "'?");
        }
        OQ_TRY(put(env, options, name, key, value));
    }
    return OQ_OK;
}

/* {"per_role": {"self": {"backend": "RAINFUSION_ATTN"}}}: the role of self-attention is the one that has a choice. */
static oq_status read_roles(oq_env *env, const oq_json *json, oq_json *options)
{
    const oq_json *roles = oq_json_get(json, "per_role"), *value = NULL;
    void *at = NULL;
    const char *key = NULL;
    if (oq_json_type(roles) != OQ_JSON_OBJECT || oq_json_size(json) != 1)
        return oq_fail(env, OQ_E_CONFIG,
                       "diffusion_attention_config must be a mapping with 'per_role' and nothing else");
    while (oq_json_next(roles, &at, &key, &value)) {
        const char *backend = oq_json_string(oq_json_get(value, "backend"));
        if (strcmp(key, "self") != 0)
            return oq_fail(env, OQ_E_CONFIG,
                           "diffusion_attention_config: role '%s' has no choice of backends, only 'self' has",
                           key);
        if (!backend || oq_json_size(value) != 1)
            return oq_fail(
                env, OQ_E_CONFIG,
                "diffusion_attention_config: role 'self' must name its 'backend' and nothing else");
        OQ_TRY(put(env, options, "backend", "diffusion_attention_config", oq_json_get(value, "backend")));
    }
    return OQ_OK;
}

/* Moves what is about attention from `json` to `options`, the rest to `rest`. */
static oq_status split_object(oq_env *env, const oq_json *json, oq_json *options, oq_json *rest)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(json, &at, &key, &value)) {
        const char *name = flat_name(key);
        if (name)
            OQ_TRY(put(env, options, name, key, value));
        else if (strcmp(key, "attention") == 0)
            OQ_TRY(read_mapping(env, value, options));
        else if (strcmp(key, "diffusion_attention_config") == 0)
            OQ_TRY(read_roles(env, value, options));
        else if (!oq_json_set(rest, key, oq_json_copy(value)))
            return no_memory(env);
    }
    return OQ_OK;
}

/* The split of one mapping; *rest NULL: nothing else was in it. */
static oq_status split_one(oq_env *env, oq_quant_config *config, const char *component, const oq_json *json,
                           oq_json **rest)
{
    oq_json *options = oq_json_new_object();
    *rest = oq_json_new_object();
    oq_status st = options && *rest ? split_object(env, json, options, *rest) : no_memory(env);
    const bool any = oq_json_size(options) > 0;
    if (st == OQ_OK && any) st = oq_quant_attention_add(env, config, component, options);
    oq_json_free(options);
    if (st != OQ_OK || (any && oq_json_size(*rest) == 0)) {
        oq_json_free(*rest);
        *rest = NULL;
    }
    return st;
}

/* Mappings of a mapping without method are its components'. */
static oq_status split_components(oq_env *env, oq_quant_config *config, const oq_json *json, oq_json **rest)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    bool taken = false;
    oq_json *out = oq_json_new_object();
    oq_status st = out ? OQ_OK : no_memory(env);
    while (st == OQ_OK && oq_json_next(json, &at, &key, &value)) {
        oq_json *inner = NULL;
        if (oq_json_type(value) == OQ_JSON_OBJECT) {
            st = split_one(env, config, strcmp(key, "default") == 0 ? NULL : key, value, &inner);
            taken |= st == OQ_OK && !inner;
        } else {
            inner = oq_json_copy(value);
            if (!inner) st = no_memory(env);
        }
        if (st == OQ_OK && inner && !oq_json_set(out, key, inner)) st = no_memory(env);
    }
    if (st != OQ_OK || (taken && oq_json_size(out) == 0)) {
        oq_json_free(out);
        out = NULL;
    }
    *rest = out;
    return st;
}

static bool has_method(const oq_json *object)
{
    return oq_json_get(object, "method") || oq_json_get(object, "quant_method") ||
           oq_json_get(object, "producer");
}

/* NULL becomes null. */
static oq_status finish(oq_env *env, oq_status st, oq_json **rest)
{
    if (st == OQ_OK && !*rest) *rest = oq_json_new_null();
    return st == OQ_OK && !*rest ? no_memory(env) : st;
}

oq_status oq_quant_attention_take(oq_env *env, oq_quant_config *config, const oq_json *json, oq_json **rest)
{
    *rest = NULL;
    if (oq_json_type(json) == OQ_JSON_OBJECT)
        return finish(env, split_one(env, config, NULL, json, rest), rest);
    *rest = oq_json_copy(json);
    return finish(env, OQ_OK, rest);
}

oq_status oq_quant_attention_take_inner(oq_env *env, oq_quant_config *config, const oq_json *json,
                                        oq_json **rest)
{
    *rest = NULL;
    if (oq_json_type(json) == OQ_JSON_OBJECT && !has_method(json))
        return finish(env, split_components(env, config, json, rest), rest);
    *rest = oq_json_copy(json);
    return finish(env, OQ_OK, rest);
}

/* ---- keeping ------------------------------------------------------------------------------------------- */

static oq_attention_entry *find(const oq_quant_config *config, const char *component)
{
    for (size_t i = 0; i < config->n_attention; i++) {
        oq_attention_entry *e = &config->attention[i];
        if (component ? e->component && strcmp(e->component, component) == 0 : !e->component) return e;
    }
    return NULL;
}

static oq_status grow(oq_quant_config *config)
{
    if (config->n_attention < config->cap_attention) return OQ_OK;
    const size_t capacity = config->cap_attention ? 2 * config->cap_attention : 4;
    oq_attention_entry *entries = NULL;
    OQ_TRY(oq_arena_new(&config->arena, capacity, sizeof *entries, "attention", &entries));
    if (config->n_attention) memcpy(entries, config->attention, config->n_attention * sizeof *entries);
    config->attention = entries;
    config->cap_attention = capacity;
    return OQ_OK;
}

oq_status oq_quant_attention_add(oq_env *env, oq_quant_config *config, const char *component,
                                 const oq_json *options)
{
    oq_attention_entry *e = find(config, component);
    if (!e) {
        OQ_TRY(grow(config));
        oq_json *empty = oq_json_new_object();
        if (!empty || !oq_json_append(config->held, empty)) return no_memory(env);
        e = &config->attention[config->n_attention];
        *e = (oq_attention_entry){component ? oq_arena_strdup(&config->arena, component) : NULL, empty};
        if (component && !e->component) return no_memory(env);
        config->n_attention++;
    }
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(options, &at, &key, &value))
        if (!oq_json_set(e->options, key, oq_json_copy(value))) return no_memory(env);
    return OQ_OK;
}

oq_status oq_quant_attention_override(oq_env *env, oq_quant_config *config, const oq_json *options)
{
    OQ_TRY(oq_quant_attention_add(env, config, NULL, options));
    for (size_t i = 0; i < config->n_attention; i++)
        if (config->attention[i].component)
            OQ_TRY(oq_quant_attention_add(env, config, config->attention[i].component, options));
    return OQ_OK;
}

oq_json *oq_quant_attention_join(const oq_quant_config *config, oq_json *json)
{
    if (config->n_attention == 0 || !json) return json;
    oq_json *object = NULL;
    if (oq_json_type(json) == OQ_JSON_OBJECT) object = json;
    if (!object) object = oq_json_new_object();
    bool ok = object != NULL;
    if (ok && oq_json_type(json) == OQ_JSON_STRING) ok = oq_json_set(object, "method", oq_json_copy(json));
    for (size_t i = 0; i < config->n_attention && ok; i++) {
        const oq_attention_entry *e = &config->attention[i];
        const oq_json *old = e->component ? oq_json_get(object, e->component) : NULL;
        if (!e->component) {
            ok = oq_json_set(object, "attention", oq_json_copy(e->options));
            continue;
        }
        oq_json *inner = oq_json_type(old) == OQ_JSON_OBJECT ? oq_json_copy(old) : oq_json_new_object();
        if (old && oq_json_type(old) == OQ_JSON_NULL)
            ok = oq_json_set(inner, "method", oq_json_new_string("none"));
        ok = ok && oq_json_set(inner, "attention", oq_json_copy(e->options)) &&
             oq_json_set(object, e->component, inner);
    }
    if (object != json) oq_json_free(json);
    if (ok) return object;
    oq_json_free(object);
    return NULL;
}

static bool overlay(oq_json *out, const oq_attention_entry *e)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    bool ok = true;
    while (e && ok && oq_json_next(e->options, &at, &key, &value))
        ok = oq_json_set(out, key, oq_json_copy(value));
    return ok;
}

oq_status oq_quant_attention_of(oq_env *env, const oq_quant_config *config, const char *component,
                                oq_json **out)
{
    const oq_attention_entry *all = config ? find(config, NULL) : NULL,
                             *own = config ? find(config, component) : NULL;
    *out = NULL;
    if (!all && !own) return OQ_OK;
    oq_json *options = oq_json_new_object();
    if (options && overlay(options, all) && overlay(options, own)) {
        *out = options;
        return OQ_OK;
    }
    oq_json_free(options);
    return no_memory(env);
}
