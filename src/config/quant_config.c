/* quant_config.c -- every spelling of `quantization_config` to one value: none, a name, a mapping, a map of
 * components; as JSON, YAML or a file of either. Nothing here knows a method. */
#include "config/quant_attention.h"

#include "base/file.h"
#include "base/names.h"

#include <stdio.h>
#include <string.h>

#define SUBJECT "quantization_config"

enum { MAX_FILE_BYTES = 4 << 20 };

/* ---- one request --------------------------------------------------------------------------------------- */

static bool is_method_key(const char *key)
{
    return oq_name_equal(key, "method") || oq_name_equal(key, "quant_method");
}

static bool has_method_key(const oq_json *object)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(object, &at, &key, &value))
        if (is_method_key(key)) return true;
    return false;
}

/* ModelOpt's own metadata carries no method key but its producer's name. */
static bool is_modelopt_metadata(const oq_json *object)
{
    const char *producer = oq_json_string(oq_json_get(oq_json_get(object, "producer"), "name"));
    return producer && oq_name_equal(producer, "modelopt");
}

static oq_status keep_options(oq_env *env, oq_quant_config *config, oq_json *options, oq_quant_spec *out)
{
    out->options = options;
    if (oq_json_append(config->held, options)) return OQ_OK;
    return oq_fail(env, OQ_E_NOMEM, SUBJECT ": no memory for options");
}

/* Reads `method` and `quant_method` and copies everything else into new options. */
static oq_status split_mapping(oq_env *env, const oq_json *object, const char *where, oq_json *options,
                               const char **method, const char **quant_method)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(object, &at, &key, &value)) {
        if (!is_method_key(key)) {
            if (!oq_json_set(options, key, oq_json_copy(value)))
                return oq_fail(env, OQ_E_NOMEM, "%s: no memory for '%s'", where, key);
            continue;
        }
        const char *text = oq_json_string(value);
        if (!text || !*text)
            return oq_fail(env, OQ_E_CONFIG, "%s: '%s' must be a method's name, not %s", where, key,
                           text ? "an empty string" : oq_json_type_name(value));
        const char **slot = oq_name_equal(key, "method") ? method : quant_method;
        if (*slot && !oq_name_equal(*slot, text)) /* two spellings of one key */
            return oq_fail(env, OQ_E_CONFIG,
                           "%s names two methods under '%s' in two spellings: '%s' and '%s'", where, key,
                           *slot, text);
        *slot = text;
    }
    if (*method && *quant_method && !oq_name_equal(*method, *quant_method))
        return oq_fail(env, OQ_E_CONFIG, "%s names two methods: method '%s' and quant_method '%s'", where,
                       *method, *quant_method);
    return OQ_OK;
}

static oq_status set_method(oq_env *env, oq_quant_config *config, const char *where, const char *text,
                            oq_quant_spec *out)
{
    if (!*text) return oq_fail(env, OQ_E_CONFIG, "%s is an empty string", where);
    if (oq_name_equal(text, "none")) {
        if (oq_json_size(out->options) > 0)
            return oq_fail(env, OQ_E_CONFIG, "%s: method 'none' takes no options", where);
        *out = (oq_quant_spec){0};
        return OQ_OK;
    }
    out->method = oq_arena_strdup(&config->arena, text);
    return out->method ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "%s: no memory for a method's name", where);
}

static oq_status read_mapping(oq_env *env, oq_quant_config *config, const oq_json *object, const char *where,
                              oq_quant_spec *out)
{
    const char *method = NULL, *quant_method = NULL;
    oq_json *options = oq_json_new_object();
    if (!options) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for options", where);
    OQ_TRY(keep_options(env, config, options, out));
    OQ_TRY(split_mapping(env, object, where, options, &method, &quant_method));
    out->serialized_form = quant_method != NULL;
    if (!method) method = quant_method;
    if (!method && is_modelopt_metadata(object)) {
        method = "modelopt";
        out->serialized_form = true;
    }
    if (!method) return oq_fail(env, OQ_E_CONFIG, "%s has no 'method'", where);
    return set_method(env, config, where, method, out);
}

static oq_status read_spec(oq_env *env, oq_quant_config *config, const oq_json *json, const char *where,
                           oq_quant_spec *out)
{
    *out = (oq_quant_spec){0};
    switch (oq_json_type(json)) {
    case OQ_JSON_NULL:
        return OQ_OK;
    case OQ_JSON_STRING:
        return set_method(env, config, where, oq_json_string(json), out);
    case OQ_JSON_OBJECT:
        return read_mapping(env, config, json, where, out);
    default:
        break;
    }
    return oq_fail(env, OQ_E_CONFIG, "%s must be a method's name, a mapping or null, not %s", where,
                   oq_json_type_name(json));
}

/* ---- maps of components -------------------------------------------------------------------------------- */

static bool is_known(const char *key, const char *const *known, size_t n_known)
{
    if (strcmp(key, "default") == 0) return true;
    for (size_t i = 0; i < n_known; i++)
        if (oq_dotted_prefix(known[i], key)) return true;
    return false;
}

/* A map of components: only mappings, names and nulls, and at least one null or mapping with a method; names
 * alone are taken as one when every key is a component of the model. */
static bool is_component_map(const oq_json *object, const char *const *known, size_t n_known)
{
    bool marked = false, all_known = oq_json_size(object) > 0;
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(object, &at, &key, &value)) {
        const oq_json_kind kind = oq_json_type(value);
        if (kind != OQ_JSON_NULL && kind != OQ_JSON_STRING && kind != OQ_JSON_OBJECT) return false;
        marked |= kind == OQ_JSON_NULL || has_method_key(value);
        all_known &= is_known(key, known, n_known);
    }
    return marked || all_known;
}

static oq_quant_entry *find_entry(const oq_quant_config *config, const char *key)
{
    for (size_t i = 0; i < config->n_entries; i++)
        if (strcmp(config->entries[i].component, key) == 0) return &config->entries[i];
    return NULL;
}

static oq_status add_entry(oq_env *env, oq_quant_config *config, const char *key, oq_quant_spec spec)
{
    if (strcmp(key, "default") == 0) {
        if (config->has_default) return oq_fail(env, OQ_E_CONFIG, SUBJECT ": 'default' is given twice");
        config->has_default = true;
        config->fallback = spec;
        return OQ_OK;
    }
    if (find_entry(config, key))
        return oq_fail(env, OQ_E_CONFIG, SUBJECT ": component '%s' is given twice", key);
    if (config->n_entries == config->cap_entries) {
        const size_t capacity = config->cap_entries ? 2 * config->cap_entries : 8;
        oq_quant_entry *entries = NULL;
        OQ_TRY(oq_arena_new(&config->arena, capacity, sizeof *entries, SUBJECT, &entries));
        if (config->n_entries) memcpy(entries, config->entries, config->n_entries * sizeof *entries);
        config->entries = entries;
        config->cap_entries = capacity;
    }
    const char *name = oq_arena_strdup(&config->arena, key);
    if (!name) return oq_fail(env, OQ_E_NOMEM, SUBJECT ": no memory for component '%s'", key);
    config->entries[config->n_entries++] = (oq_quant_entry){name, spec};
    return OQ_OK;
}

static oq_status read_components(oq_env *env, oq_quant_config *config, const oq_json *object)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    config->form = OQ_QUANT_COMPONENTS;
    while (oq_json_next(object, &at, &key, &value)) {
        char where[160];
        snprintf(where, sizeof where, SUBJECT " of '%.100s'", key);
        oq_quant_spec spec;
        OQ_TRY(read_spec(env, config, value, where, &spec));
        OQ_TRY(add_entry(env, config, key, spec));
    }
    return OQ_OK;
}

/* ---- the whole value ----------------------------------------------------------------------------------- */

/* Why a mapping is neither a request nor a map of components. */
static oq_status fail_mapping(oq_env *env, const oq_json *object, const char *const *known, size_t n_known)
{
    void *at = NULL;
    const char *key = NULL, *only = NULL;
    const oq_json *value = NULL;
    if (oq_json_size(object) == 0)
        return oq_fail(env, OQ_E_CONFIG, SUBJECT " is empty: it has no 'method' and names no component");
    while (oq_json_next(object, &at, &key, &value)) {
        const oq_json_kind kind = oq_json_type(value);
        if (!only) only = key;
        if (kind != OQ_JSON_NULL && kind != OQ_JSON_STRING && kind != OQ_JSON_OBJECT)
            return oq_fail(env, OQ_E_CONFIG,
                           SUBJECT " has no 'method', and is no map of components because '%s' is %s", key,
                           oq_json_type_name(value));
    }
    const int nearest = oq_name_nearest(only, known, n_known);
    return oq_fail(
        env, OQ_E_CONFIG,
        SUBJECT " has no 'method', and is no map of components: '%s' is not a component of this model%s%s%s",
        only, nearest < 0 ? "" : "; did you mean '", nearest < 0 ? "" : known[nearest],
        nearest < 0 ? "" : "'?");
}

/* The value inside {"quantization_config": …} and its older spellings; the object itself when there is no
 * such key. */
static oq_status unwrap(oq_env *env, const oq_json *object, const oq_json **out)
{
    static const char *const spellings[] = {SUBJECT, "quantization", "diffusion_quantization_config"};
    const char *found = NULL;
    *out = object;
    if (has_method_key(object) || is_modelopt_metadata(object)) return OQ_OK;
    for (size_t i = 0; i < OQ_COUNT(spellings); i++) {
        const oq_json *inner = oq_json_get(object, spellings[i]);
        if (!inner) continue;
        if (found)
            return oq_fail(env, OQ_E_CONFIG, SUBJECT " is given twice, as '%s' and as '%s'", found,
                           spellings[i]);
        found = spellings[i];
        *out = inner;
    }
    if (!found) return OQ_OK;
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(object, &at, &key, &value))
        if (strcmp(key, found) != 0)
            return oq_fail(env, OQ_E_CONFIG, SUBJECT ": '%s' stands beside '%s' and means nothing here", key,
                           found);
    return OQ_OK;
}

static oq_status read_value(oq_env *env, oq_quant_config *config, const oq_json *json,
                            const char *const *known, size_t n_known)
{
    if (oq_json_type(json) == OQ_JSON_NULL) return OQ_OK;
    const bool mapping = oq_json_type(json) == OQ_JSON_OBJECT;
    if (mapping && !has_method_key(json) && !is_modelopt_metadata(json)) {
        if (is_component_map(json, known, n_known)) return read_components(env, config, json);
        return fail_mapping(env, json, known, n_known);
    }
    OQ_TRY(read_spec(env, config, json, SUBJECT, &config->single));
    if (config->single.method)
        config->form = OQ_QUANT_SINGLE;
    else
        config->has_default = true; /* the word none: a wish for unquantized layers */
    return OQ_OK;
}

/* Attention's options may stand beside the key `quantization_config`, inside its value, and inside its components'. */
static oq_status read_whole(oq_env *env, oq_quant_config *config, const oq_json *json,
                            const char *const *known, size_t n_known)
{
    const oq_json *inner = NULL;
    oq_json *outer = NULL, *value = NULL, *rest = NULL;
    oq_status st = oq_quant_attention_take(env, config, json, &outer);
    inner = outer;
    if (st == OQ_OK && oq_json_type(outer) == OQ_JSON_OBJECT) st = unwrap(env, outer, &inner);
    if (st == OQ_OK) st = oq_quant_attention_take(env, config, inner, &value);
    if (st == OQ_OK) st = oq_quant_attention_take_inner(env, config, value, &rest);
    if (st == OQ_OK) st = read_value(env, config, rest, known, n_known);
    oq_json_free(rest);
    oq_json_free(value);
    oq_json_free(outer);
    return st;
}

static oq_status config_new(oq_env *env, oq_quant_config **out)
{
    OQ_TRY(oq_new(env, 1, sizeof **out, SUBJECT, out));
    oq_arena_init(&(*out)->arena, env);
    (*out)->held = oq_json_new_array();
    if ((*out)->held) return OQ_OK;
    oq_quant_config_free(*out);
    *out = NULL;
    return oq_fail(env, OQ_E_NOMEM, SUBJECT ": no memory");
}

oq_status oq_quant_config_from_json(oq_env *env, const oq_json *json, const char *const *known,
                                    size_t n_known, oq_quant_config **out)
{
    oq_quant_config *config = NULL;
    *out = NULL;
    OQ_TRY(config_new(env, &config));
    config->from = "config";
    const oq_status st = read_whole(env, config, json, known, n_known);
    if (st == OQ_OK)
        *out = config;
    else
        oq_quant_config_free(config);
    return st;
}

/* JSON's brackets followed by a quoted key (or nothing) are JSON, so that its errors speak of JSON; all else
 * is YAML. */
static bool looks_like_json(const char *text)
{
    static const char space[] = " \t\r\n";
    text += strspn(text, space);
    if (*text == '"') return true;
    if (*text != '{' && *text != '[') return false;
    text++;
    text += strspn(text, space);
    return *text == '"' || *text == '}' || *text == ']' || *text == '{' || *text == '[' || *text == '\0';
}

static oq_status parse_text(oq_env *env, const char *text, size_t n, const char *source, oq_json **out)
{
    return looks_like_json(text) ? oq_json_parse(env, text, n, source, out)
                                 : oq_yaml_parse(env, text, n, source, out);
}

/* Text that cannot be parsed is a wrong configuration, wherever it stands. */
static oq_status parse_config(oq_env *env, const char *text, size_t n, const char *source, oq_json **out)
{
    const oq_status st = parse_text(env, text, n, source, out);
    if (st != OQ_E_FORMAT) return st;
    env->status = OQ_E_CONFIG;
    return OQ_E_CONFIG;
}

static oq_status parse_file(oq_env *env, const char *path, oq_json **out)
{
    char *text = NULL;
    size_t n = 0;
    OQ_TRY(oq_file_read_fetched(env, path, MAX_FILE_BYTES, &text, &n));
    const oq_status st = parse_config(env, text, n, path, out);
    oq_free(env, text);
    OQ_TRY(st);
    const char *name = oq_json_string(*out);
    if (!name || !strpbrk(name, " \t\r\n")) return OQ_OK;
    oq_json_free(*out);
    *out = NULL;
    return oq_fail(env, OQ_E_CONFIG, "%s: holds text, not a method's name or a mapping", path);
}

/* The value of a file remembers it, and what is wrong with it names it. */
static oq_status from_file(oq_env *env, const char *path, const char *const *known, size_t n_known,
                           oq_quant_config **out)
{
    oq_json *json = NULL;
    OQ_TRY(parse_file(env, path, &json));
    const oq_status st = oq_quant_config_from_json(env, json, known, n_known, out);
    oq_json_free(json);
    if (st != OQ_OK) return oq_fail_within(env, st, path);
    (*out)->file = oq_arena_strdup(&(*out)->arena, path);
    if ((*out)->file) return OQ_OK;
    oq_quant_config_free(*out);
    *out = NULL;
    return oq_fail(env, OQ_E_NOMEM, SUBJECT ": no memory");
}

oq_status oq_quant_config_parse(oq_env *env, const char *text, const char *const *known, size_t n_known,
                                oq_quant_config **out)
{
    *out = NULL;
    text += strspn(text, " \t\r\n");
    if (!*text) return oq_fail(env, OQ_E_CONFIG, SUBJECT " is empty");
    oq_json *json = NULL;
    oq_status st = OQ_OK;
    if (*text == '@') {
        st = from_file(env, text + 1, known, n_known, out);
    } else {
        OQ_TRY(parse_config(env, text, strlen(text), SUBJECT, &json));
        st = oq_quant_config_from_json(env, json, known, n_known, out);
        oq_json_free(json);
    }
    if (st == OQ_OK) (*out)->from = "flag";
    return st;
}

void oq_quant_config_free(oq_quant_config *config)
{
    if (!config) return;
    oq_env *env = config->arena.env;
    oq_json_free(config->held);
    oq_arena_deinit(&config->arena);
    oq_free(env, config);
}

/* ---- additions from the command line ------------------------------------------------------------------- */

/* A spec of another config, owned by this one from now on. */
static oq_status adopt_spec(oq_env *env, oq_quant_config *config, const oq_quant_spec *from,
                            oq_quant_spec *out)
{
    *out = *from;
    if (from->method && !(out->method = oq_arena_strdup(&config->arena, from->method)))
        return oq_fail(env, OQ_E_NOMEM, SUBJECT ": no memory for a method's name");
    return from->options ? keep_options(env, config, oq_json_copy(from->options), out) : OQ_OK;
}

oq_status oq_quant_config_add_component(oq_env *env, oq_quant_config *config, const char *key,
                                        const char *spec)
{
    oq_quant_config *parsed = NULL;
    oq_quant_spec adopted = {0};
    OQ_TRY(oq_quant_config_parse(env, spec, NULL, 0, &parsed));
    oq_status st;
    if (parsed->form == OQ_QUANT_COMPONENTS)
        st = oq_fail(env, OQ_E_CONFIG, SUBJECT " of '%s' is a map of components itself", key);
    else
        st = adopt_spec(env, config, &parsed->single, &adopted);
    oq_quant_config_free(parsed);
    if (st != OQ_OK) return st;
    if (config->form == OQ_QUANT_SINGLE) {
        config->has_default = true;
        config->fallback = config->single;
        config->single = (oq_quant_spec){0};
    }
    config->form = OQ_QUANT_COMPONENTS;
    return add_entry(env, config, key, adopted);
}

/* Appends csv's words to those under whichever spelling the options already use, a list or comma separated themselves. */
static oq_status add_ignored(oq_env *env, oq_quant_config *config, oq_quant_spec *spec, const char *csv)
{
    static const char *const spellings[] = {"ignored_layers", "modules_to_not_convert"};
    if (!spec->method) return OQ_OK;
    oq_json *options = spec->options ? oq_json_copy(spec->options) : oq_json_new_object();
    const char *key = oq_json_get(options, spellings[1]) ? spellings[1] : spellings[0];
    const oq_json *old = oq_json_get(options, key);
    const oq_json_kind kind = oq_json_type(old);
    if (kind != OQ_JSON_ARRAY && kind != OQ_JSON_STRING && kind != OQ_JSON_NULL) {
        oq_json_free(options); /* the method refuses such an option */
        return OQ_OK;
    }
    oq_json *list = kind == OQ_JSON_ARRAY ? oq_json_copy(old) : oq_json_new_array();
    bool ok = !oq_json_string(old) || oq_json_append_words(list, oq_json_string(old));
    ok = ok && oq_json_append_words(list, csv);
    ok = oq_json_set(options, key, list) && ok;
    if (!ok) {
        oq_json_free(options);
        return oq_fail(env, OQ_E_NOMEM, SUBJECT ": no memory for ignored layers");
    }
    return keep_options(env, config, options, spec);
}

oq_status oq_quant_config_add_ignored(oq_env *env, oq_quant_config *config, const char *csv)
{
    bool any = config->form == OQ_QUANT_SINGLE || (config->has_default && config->fallback.method);
    for (size_t i = 0; i < config->n_entries; i++) any |= config->entries[i].spec.method != NULL;
    if (!any)
        return oq_fail(env, OQ_E_CONFIG, "ignored layers '%s' are given without a quantization method", csv);
    oq_json *common = oq_json_new_array();
    const bool kept = oq_json_append_words(common, csv);
    if (!oq_json_append(config->held, common) || !kept)
        return oq_fail(env, OQ_E_NOMEM, SUBJECT ": no memory for ignored layers");
    config->common_ignored = common;
    OQ_TRY(add_ignored(env, config, &config->single, csv));
    OQ_TRY(add_ignored(env, config, &config->fallback, csv));
    for (size_t i = 0; i < config->n_entries; i++)
        OQ_TRY(add_ignored(env, config, &config->entries[i].spec, csv));
    return OQ_OK;
}

/* ---- reading the value --------------------------------------------------------------------------------- */

static oq_json *spec_to_json(const oq_quant_spec *spec)
{
    if (!spec->method) return oq_json_new_null();
    oq_json *object = spec->options ? oq_json_copy(spec->options) : oq_json_new_object();
    if (!oq_json_set(object, spec->serialized_form ? "quant_method" : "method",
                     oq_json_new_string(spec->method))) {
        oq_json_free(object);
        return NULL;
    }
    return object;
}

static oq_json *weights_to_json(const oq_quant_config *config)
{
    if (config->form == OQ_QUANT_SINGLE) return spec_to_json(&config->single);
    if (config->form == OQ_QUANT_NONE)
        return config->has_default ? oq_json_new_string("none") : oq_json_new_null();
    oq_json *object = oq_json_new_object();
    bool ok = object != NULL;
    for (size_t i = 0; i < config->n_entries && ok; i++)
        ok = oq_json_set(object, config->entries[i].component, spec_to_json(&config->entries[i].spec));
    if (ok && config->has_default) ok = oq_json_set(object, "default", spec_to_json(&config->fallback));
    if (ok) return object;
    oq_json_free(object);
    return NULL;
}

oq_json *oq_quant_config_to_json(const oq_quant_config *config)
{
    return oq_quant_attention_join(config, weights_to_json(config));
}

const oq_quant_spec *oq_quant_config_route(const oq_quant_config *config, const char *prefix)
{
    if (config->form == OQ_QUANT_SINGLE) return &config->single;
    const oq_quant_entry *best = NULL;
    for (size_t i = 0; i < config->n_entries; i++) {
        const oq_quant_entry *e = &config->entries[i];
        if (!oq_dotted_prefix(e->component, prefix)) continue;
        if (!best || strlen(e->component) > strlen(best->component)) best = e;
    }
    if (best) return &best->spec;
    return config->has_default ? &config->fallback : NULL;
}
