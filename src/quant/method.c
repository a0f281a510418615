/* method.c -- names and options of methods: finding them, reading option rows, defaults, bounds. */
#include "quant/method.h"

#include "base/names.h"
#include "base/strbuf.h"
#include "format/gguf_type.h"
#include "quant/method_registry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- names --------------------------------------------------------------------------------------------- */

static bool csv_has_name(const char *csv, const char *name)
{
    char word[128];
    for (size_t i = 0; oq_csv_word(csv, i, word, sizeof word); i++)
        if (oq_name_equal(word, name)) return true;
    return false;
}

const oq_method *oq_method_find(const oq_env *env, const char *name)
{
    for (const oq_method *const *m = oq_method_list; *m; m++)
        if (oq_name_equal((*m)->name, name) || csv_has_name((*m)->aliases, name)) return *m;
    return env ? oq_registry_find(env->registry, name) : NULL;
}

/* Every known name as one text, and the one nearest to `name` (NULL: none is near). */
static const char *nearest_method(const oq_env *env, const char *name, oq_strbuf *all)
{
    const char *names[64];
    size_t n = 0;
    oq_strbuf_puts(all, "none");
    for (const oq_method *const *m = oq_method_list; *m; m++) {
        oq_strbuf_printf(all, ", %s", (*m)->name);
        if (n < OQ_COUNT(names)) names[n++] = (*m)->name;
    }
    for (const oq_method *m = oq_registry_first(env->registry); m; m = oq_registry_next(m)) {
        oq_strbuf_printf(all, ", %s", m->name);
        if (n < OQ_COUNT(names)) names[n++] = m->name;
    }
    const int i = oq_name_nearest(name, names, n);
    return i < 0 ? NULL : names[i];
}

oq_status oq_method_unknown(oq_env *env, const char *where, const char *name)
{
    oq_strbuf all;
    oq_strbuf_init(&all, env);
    const char *near = nearest_method(env, name, &all);
    const oq_gguf_type *type = oq_gguf_type_by_name(name);
    const oq_status st =
        type ? oq_fail(
                   env, OQ_E_CONFIG,
                   "%s: '%s' is no method but a type of method 'gguf': {\"method\":\"gguf\",\"type\":\"%s\"}",
                   where, name, type->name)
        : near
            ? oq_fail(env, OQ_E_CONFIG, "%s: unknown quantization method '%s'; did you mean '%s'? known: %s",
                      where, name, near, oq_strbuf_text(&all))
            : oq_fail(env, OQ_E_CONFIG, "%s: unknown quantization method '%s'; known: %s", where, name,
                      oq_strbuf_text(&all));
    oq_strbuf_deinit(&all);
    return st;
}

/* ---- one value ----------------------------------------------------------------------------------------- */

typedef struct value_reader {
    oq_env *env;
    const char *where;
    const oq_method *method;
    const oq_method_option *row;
} value_reader;

static oq_status fail_type(const value_reader *r, const char *wanted, const oq_json *value)
{
    return oq_fail(r->env, OQ_E_CONFIG, "%s: method '%s': option '%s' must be %s, not %s", r->where,
                   r->method->name, r->row->name, wanted, oq_json_type_name(value));
}

static oq_status fail_memory(const value_reader *r)
{
    return oq_fail(r->env, OQ_E_NOMEM, "%s: method '%s': no memory for option '%s'", r->where,
                   r->method->name, r->row->name);
}

static bool bounded(const oq_method_option *row)
{
    return row->min < row->max || row->min > row->max || row->min > 0 || row->min < 0;
}

static oq_status check_bounds(const value_reader *r, double x)
{
    const oq_method_option *row = r->row;
    if (isfinite(x) && (!bounded(row) || (x >= row->min && x <= row->max))) return OQ_OK;
    return oq_fail(r->env, OQ_E_CONFIG, "%s: method '%s': option '%s' is %g, it must be between %g and %g",
                   r->where, r->method->name, row->name, x, row->min, row->max);
}

static oq_status read_int(const value_reader *r, const oq_json *value, oq_json **out)
{
    if (oq_json_type(value) != OQ_JSON_INT) return fail_type(r, "a whole number", value);
    OQ_TRY(check_bounds(r, (double)oq_json_int(value, 0)));
    *out = oq_json_copy(value);
    return OQ_OK;
}

static oq_status read_real(const value_reader *r, const oq_json *value, oq_json **out)
{
    const oq_json_kind kind = oq_json_type(value);
    if (kind != OQ_JSON_INT && kind != OQ_JSON_REAL) return fail_type(r, "a number", value);
    OQ_TRY(check_bounds(r, oq_json_real(value, 0)));
    *out = oq_json_copy(value);
    return OQ_OK;
}

static oq_status read_choice(const value_reader *r, const oq_json *value, oq_json **out)
{
    const char *text = oq_json_string(value);
    char word[64];
    if (!text) return fail_type(r, "a string", value);
    for (size_t i = 0; oq_csv_word(r->row->choices, i, word, sizeof word); i++) {
        if (!oq_name_equal(word, text)) continue;
        *out = oq_json_new_string(word);
        return OQ_OK;
    }
    return oq_fail(r->env, OQ_E_CONFIG, "%s: method '%s': option '%s' is '%s', it must be one of %s",
                   r->where, r->method->name, r->row->name, text, r->row->choices);
}

static oq_status read_csv(const value_reader *r, const oq_json *value, oq_json **out)
{
    *out = oq_json_new_array();
    return oq_json_append_words(*out, oq_json_string(value)) ? OQ_OK : fail_memory(r);
}

static int compare_ints(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Whole numbers in ascending order, each once. */
static oq_status sorted_once(const value_reader *r, const oq_json *list, oq_json **out)
{
    const size_t n = oq_json_size(list);
    int64_t *values = NULL;
    *out = oq_json_new_array();
    OQ_TRY(oq_new(r->env, n ? n : 1, sizeof *values, r->row->name, &values));
    for (size_t i = 0; i < n; i++) values[i] = oq_json_int(oq_json_at(list, i), 0);
    qsort(values, n, sizeof *values, compare_ints);
    bool ok = true;
    for (size_t i = 0; i < n && ok; i++)
        if (i == 0 || values[i] != values[i - 1]) ok = oq_json_append(*out, oq_json_new_int(values[i]));
    oq_free(r->env, values);
    return ok ? OQ_OK : fail_memory(r);
}

static oq_status read_list(const value_reader *r, const oq_json *value, oq_json **out)
{
    const bool names = r->row->type != OQ_METHOD_INTS && r->row->type != OQ_METHOD_INT_SET;
    const char *wanted = names ? "a list of strings" : "a list of whole numbers";
    if (oq_json_type(value) != OQ_JSON_ARRAY) return fail_type(r, wanted, value);
    for (size_t i = 0; i < oq_json_size(value); i++) {
        const oq_json *item = oq_json_at(value, i);
        if (oq_json_type(item) != (names ? OQ_JSON_STRING : OQ_JSON_INT))
            return oq_fail(r->env, OQ_E_CONFIG, "%s: method '%s': option '%s' must be %s; entry %zu is %s",
                           r->where, r->method->name, r->row->name, wanted, i, oq_json_type_name(item));
        if (names && !*oq_json_string(item))
            return oq_fail(r->env, OQ_E_CONFIG,
                           "%s: method '%s': entry %zu of option '%s' is an empty string", r->where,
                           r->method->name, i, r->row->name);
        if (!names) OQ_TRY(check_bounds(r, (double)oq_json_int(item, 0)));
    }
    if (r->row->type == OQ_METHOD_INT_SET) return sorted_once(r, value, out);
    *out = oq_json_copy(value);
    return OQ_OK;
}

static oq_status read_value(const value_reader *r, const oq_json *value, oq_json **out)
{
    const oq_json_kind kind = oq_json_type(value);
    *out = NULL;
    oq_status st = OQ_OK;
    switch (r->row->type) {
    case OQ_METHOD_INT:
        st = read_int(r, value, out);
        break;
    case OQ_METHOD_REAL:
        st = read_real(r, value, out);
        break;
    case OQ_METHOD_CHOICE:
        st = read_choice(r, value, out);
        break;
    case OQ_METHOD_CSV:
        st = kind == OQ_JSON_STRING ? read_csv(r, value, out) : read_list(r, value, out);
        break;
    case OQ_METHOD_NAMES:
    case OQ_METHOD_INTS:
    case OQ_METHOD_INT_SET:
        st = read_list(r, value, out);
        break;
    case OQ_METHOD_BOOL:
        if (kind != OQ_JSON_BOOL) return fail_type(r, "true or false", value);
        break;
    case OQ_METHOD_STRING:
        if (kind != OQ_JSON_STRING) return fail_type(r, "a string", value);
        break;
    case OQ_METHOD_OBJECT:
        if (kind != OQ_JSON_OBJECT) return fail_type(r, "a mapping", value);
        break;
    case OQ_METHOD_ANY:
        break;
    }
    if (st == OQ_OK && !*out) *out = oq_json_copy(value);
    if (st == OQ_OK && !*out) st = fail_memory(r);
    if (st == OQ_OK) return OQ_OK;
    oq_json_free(*out);
    *out = NULL;
    return st;
}

/* ---- all values ---------------------------------------------------------------------------------------- */

static const oq_method_option *find_row(const oq_method *method, const char *key)
{
    for (const oq_method_option *row = method->options; row->name; row++)
        if (oq_name_equal(row->name, key) || csv_has_name(row->aliases, key)) return row;
    return NULL;
}

static oq_status fail_unknown_option(oq_env *env, const char *where, const oq_method *method, const char *key)
{
    const char *names[64];
    size_t n = 0;
    oq_strbuf all;
    oq_strbuf_init(&all, env);
    for (const oq_method_option *row = method->options; row->name && n < OQ_COUNT(names); row++) {
        oq_strbuf_printf(&all, "%s%s", n ? ", " : "", row->name);
        names[n++] = row->name;
    }
    const int i = oq_name_nearest(key, names, n);
    const oq_status st =
        i >= 0 ? oq_fail(env, OQ_E_CONFIG, "%s: method '%s' has no option '%s'; did you mean '%s'?", where,
                         method->name, key, names[i])
               : oq_fail(env, OQ_E_CONFIG, "%s: method '%s' has no option '%s'; it has %s", where,
                         method->name, key, oq_strbuf_text(&all));
    oq_strbuf_deinit(&all);
    return st;
}

static bool tolerated(const oq_method *method, const char *key)
{
    return method->tolerated && (strcmp(method->tolerated, "*") == 0 || csv_has_name(method->tolerated, key));
}

/* null, false, {} and []: the producer wrote the key down and did not use it. */
static bool says_nothing(const oq_json *value)
{
    switch (oq_json_type(value)) {
    case OQ_JSON_NULL:
        return true;
    case OQ_JSON_BOOL:
        return !oq_json_bool(value, false);
    case OQ_JSON_OBJECT:
    case OQ_JSON_ARRAY:
        return oq_json_size(value) == 0;
    default:
        return false;
    }
}

static oq_status refuse_unread(oq_env *env, const char *where, const oq_method *method, const char *key,
                               const oq_json *value)
{
    if (!method->unread || !csv_has_name(method->unread, key) || says_nothing(value)) return OQ_OK;
    return oq_fail(
        env, OQ_E_UNSUPPORTED,
        "%s: method '%s': '%s' changes what layers compute, in a way that is not in this build yet", where,
        method->name, key);
}

static oq_status add_value(const value_reader *r, const char *key, const oq_json *value, oq_json *into)
{
    oq_json *checked = NULL;
    OQ_TRY(read_value(r, value, &checked));
    const oq_json *other = oq_json_get(into, r->row->name);
    if (other) {
        const bool equal = oq_json_equal(other, checked);
        oq_json_free(checked);
        if (equal) return OQ_OK;
        return oq_fail(r->env, OQ_E_CONFIG,
                       "%s: method '%s': option '%s' is given twice with different values, once as '%s'",
                       r->where, r->method->name, r->row->name, key);
    }
    return oq_json_set(into, r->row->name, checked) ? OQ_OK : fail_memory(r);
}

static oq_status read_members(oq_env *env, const char *where, const oq_method *method, const oq_json *options,
                              bool strict, oq_json *into)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    while (oq_json_next(options, &at, &key, &value)) {
        const value_reader r = {env, where, method, find_row(method, key)};
        if (*key == '_' || (r.row && oq_json_type(value) == OQ_JSON_NULL)) continue;
        if (!strict) OQ_TRY(refuse_unread(env, where, method, key, value));
        if (r.row)
            OQ_TRY(add_value(&r, key, value, into));
        else if (strict || !tolerated(method, key))
            return fail_unknown_option(env, where, method, key);
        else
            oq_log(env, OQ_LOG_DEBUG, "method '%s': key '%s' of the checkpoint changes nothing", method->name,
                   key);
    }
    return OQ_OK;
}

oq_status oq_method_options_read(oq_env *env, const char *where, const oq_method *method,
                                 const oq_json *options, bool strict, oq_json **out)
{
    oq_json *raw = options ? oq_json_copy(options) : oq_json_new_object();
    oq_json *read = oq_json_new_object();
    *out = NULL;
    oq_status st = OQ_OK;
    if (!raw || !read)
        st = oq_fail(env, OQ_E_NOMEM, "%s: method '%s': no memory for options", where, method->name);
    if (st == OQ_OK && method->prepare) st = method->prepare(env, raw);
    if (st == OQ_OK) st = read_members(env, where, method, raw, strict, read);
    oq_json_free(raw);
    if (st == OQ_OK)
        *out = read;
    else
        oq_json_free(read);
    return st;
}

static oq_status fill_defaults(oq_env *env, const char *where, const oq_method *method, oq_json *options)
{
    for (const oq_method_option *row = method->options; row->name; row++) {
        if (!row->fallback || oq_json_get(options, row->name)) continue;
        oq_json *value = NULL;
        OQ_TRY(oq_json_parse(env, row->fallback, strlen(row->fallback), row->name, &value));
        if (!oq_json_set(options, row->name, value))
            return fail_memory(&(value_reader){env, where, method, row});
    }
    return OQ_OK;
}

oq_status oq_method_args_parse(oq_env *env, const char *where, oq_arena *arena, oq_json *held,
                               const oq_method *method, const oq_json *options, bool serialized,
                               oq_method_args **out)
{
    oq_method_args *args = NULL;
    oq_json *read = NULL;
    *out = NULL;
    OQ_TRY(oq_arena_new(arena, 1, sizeof *args, method->name, &args));
    OQ_TRY(oq_method_options_read(env, where, method, options, !serialized, &read));
    if (!oq_json_append(held, read))
        return oq_fail(env, OQ_E_NOMEM, "%s: method '%s': no memory for options", where, method->name);
    OQ_TRY(fill_defaults(env, where, method, read));
    *args = (oq_method_args){.method = method, .options = read, .serialized = serialized};
    if (method->validate) OQ_TRY(method->validate(env, args));
    *out = args;
    return OQ_OK;
}
