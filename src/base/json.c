/* json.c -- jansson behind the house's own words, plus a writer that knows NaN and infinities.
 * A non-finite real is kept as an object {"\u0001real": "NaN"}: a key that no file can hold, since parsing
 * rejects control characters in keys. */
#include "base/json.h"

#include "base/file.h"
#include "base/names.h"
#include "base/strbuf.h"
#include "base/unicode.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH      64
#define NON_FINITE_KEY "\x01real"

static json_t *raw(const oq_json *json)
{
    return (json_t *)(uintptr_t)json;
}

static oq_json *wrap(json_t *json)
{
    return (oq_json *)json;
}

/* ---- reading ------------------------------------------------------------------------------------------- */

/* Depth of brackets outside strings, before jansson recurses over them. */
static size_t nesting(const char *text, size_t n)
{
    size_t depth = 0, deepest = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > deepest) deepest = depth;
        } else if ((c == '}' || c == ']') && depth) {
            depth--;
        }
    }
    return deepest;
}

static bool keys_are_clean(const json_t *json)
{
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_array(json)) {
        json_array_foreach(json, i, value) if (!keys_are_clean(value)) return false;
    } else if (json_is_object(json)) {
        json_object_foreach((json_t *)(uintptr_t)json, key, value)
        {
            if (key[0] == '\x01' || !keys_are_clean(value)) return false;
        }
    }
    return true;
}

/* The string literal that ends where jansson stopped, quotes included: the key it found twice. */
static const char *literal_before(const char *text, size_t end, int *length)
{
    const char *open = NULL;
    for (size_t i = 0; i < end; i++) {
        if (open && text[i] == '\\')
            i++;
        else if (text[i] == '"') {
            if (open && i + 1 == end) {
                *length = (int)(text + end - open);
                return open;
            }
            open = open ? NULL : text + i;
        }
    }
    *length = 0;
    return "";
}

static oq_status fail_parse(oq_env *env, const char *text, const char *source, const json_error_t *error)
{
    const enum json_error_code code = json_error_code(error);
    if (code == json_error_duplicate_key) {
        int length = 0;
        const char *key = literal_before(text, (size_t)error->position, &length);
        return oq_fail(env, OQ_E_FORMAT, "%s: duplicate key %.*s at line %d, column %d", source, length, key,
                       error->line, error->column);
    }
    const char *near = strstr(error->text, " near '");
    const int length = near ? (int)(near - error->text) : (int)strlen(error->text);
    return oq_fail(env, code == json_error_out_of_memory ? OQ_E_NOMEM : OQ_E_FORMAT,
                   "%s: not valid JSON at line %d, column %d: %.*s", source, error->line, error->column,
                   length, error->text);
}

oq_status oq_json_parse(oq_env *env, const char *text, size_t n, const char *source, oq_json **out)
{
    *out = NULL;
    json_error_t error;
    const size_t depth = nesting(text, n);
    if (depth > MAX_DEPTH)
        return oq_fail(env, OQ_E_FORMAT, "%s: JSON nested %zu deep, at most %d are read", source, depth,
                       MAX_DEPTH);
    json_t *json = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!json) return fail_parse(env, text, source, &error);
    if (!keys_are_clean(json)) {
        json_decref(json);
        return oq_fail(env, OQ_E_FORMAT, "%s: a JSON key begins with a control character", source);
    }
    *out = wrap(json);
    return OQ_OK;
}

oq_status oq_json_parse_file(oq_env *env, const char *path, size_t max_bytes, oq_json **out)
{
    char *text = NULL;
    size_t n = 0;
    *out = NULL;
    OQ_TRY(oq_file_read_fetched(env, path, max_bytes, &text, &n));
    const oq_status st = oq_json_parse(env, text, n, path, out);
    oq_free(env, text);
    return st;
}

void oq_json_free(oq_json *json)
{
    json_decref(raw(json));
}

oq_json *oq_json_ref(const oq_json *json)
{
    return wrap(json_incref(raw(json)));
}

oq_json *oq_json_copy(const oq_json *json)
{
    return json ? wrap(json_deep_copy(raw(json))) : NULL;
}

static bool is_non_finite(const json_t *json)
{
    return json_is_object(json) && json_object_size(json) == 1 && json_object_get(json, NON_FINITE_KEY);
}

static bool objects_equal(const json_t *a, const json_t *b)
{
    const char *key;
    json_t *value;
    if (json_object_size(a) != json_object_size(b)) return false;
    json_object_foreach((json_t *)(uintptr_t)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!other || !oq_json_equal(wrap(value), wrap((json_t *)(uintptr_t)other))) return false;
    }
    return true;
}

bool oq_json_equal(const oq_json *a, const oq_json *b)
{
    const json_t *x = raw(a), *y = raw(b);
    if (!x || !y) return oq_json_type(a) == OQ_JSON_NULL && oq_json_type(b) == OQ_JSON_NULL;
    if (json_is_number(x) && json_is_number(y)) {
        if (json_is_integer(x) && json_is_integer(y)) return json_integer_value(x) == json_integer_value(y);
        const double p = json_number_value(x), q = json_number_value(y);
        return !(p < q) && !(p > q);
    }
    if (json_is_object(x) && json_is_object(y)) return objects_equal(x, y);
    if (json_is_array(x) && json_is_array(y)) {
        if (json_array_size(x) != json_array_size(y)) return false;
        for (size_t i = 0; i < json_array_size(x); i++)
            if (!oq_json_equal(wrap(json_array_get(x, i)), wrap(json_array_get(y, i)))) return false;
        return true;
    }
    return json_equal(x, y) == 1;
}

oq_json_kind oq_json_type(const oq_json *json)
{
    if (!json) return OQ_JSON_NULL;
    if (is_non_finite(raw(json))) return OQ_JSON_REAL;
    switch (json_typeof(raw(json))) {
    case JSON_OBJECT:
        return OQ_JSON_OBJECT;
    case JSON_ARRAY:
        return OQ_JSON_ARRAY;
    case JSON_STRING:
        return OQ_JSON_STRING;
    case JSON_INTEGER:
        return OQ_JSON_INT;
    case JSON_REAL:
        return OQ_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return OQ_JSON_BOOL;
    case JSON_NULL:
        break;
    }
    return OQ_JSON_NULL;
}

const char *oq_json_type_name(const oq_json *json)
{
    static const char *const names[] = {"null",     "a boolean", "a whole number", "a number",
                                        "a string", "a list",    "an object"};
    return names[oq_json_type(json)];
}

const oq_json *oq_json_get(const oq_json *object, const char *key)
{
    return wrap(json_object_get(raw(object), key));
}

size_t oq_json_size(const oq_json *json)
{
    if (json_is_object(raw(json))) return json_object_size(raw(json));
    return json_array_size(raw(json));
}

const oq_json *oq_json_at(const oq_json *array, size_t i)
{
    return wrap(json_array_get(raw(array), i));
}

const oq_json *oq_json_member(const oq_json *object, size_t i, const char **key)
{
    void *iter = json_object_iter(raw(object));
    while (iter && i-- > 0) iter = json_object_iter_next(raw(object), iter);
    if (key) *key = iter ? json_object_iter_key(iter) : NULL;
    return iter ? wrap(json_object_iter_value(iter)) : NULL;
}

bool oq_json_next(const oq_json *object, void **at, const char **key, const oq_json **value)
{
    *at = *at ? json_object_iter_next(raw(object), *at) : json_object_iter(raw(object));
    if (!*at) return false;
    *key = json_object_iter_key(*at);
    *value = wrap(json_object_iter_value(*at));
    return true;
}

const char *oq_json_string(const oq_json *json)
{
    return json_string_value(raw(json));
}

bool oq_json_bool(const oq_json *json, bool fallback)
{
    return json_is_boolean(raw(json)) ? json_is_true(raw(json)) : fallback;
}

bool oq_json_is_int(const oq_json *json)
{
    if (json_is_integer(raw(json))) return true;
    const double x = json_real_value(raw(json));
    return json_is_real(raw(json)) && x >= -9.2e18 && x <= 9.2e18 && x == floor(x);
}

int64_t oq_json_int(const oq_json *json, int64_t fallback)
{
    if (json_is_integer(raw(json))) return json_integer_value(raw(json));
    return oq_json_is_int(json) ? (int64_t)json_real_value(raw(json)) : fallback;
}

double oq_json_real(const oq_json *json, double fallback)
{
    if (is_non_finite(raw(json)))
        return strtod(json_string_value(json_object_get(raw(json), NON_FINITE_KEY)), NULL);
    return json_is_number(raw(json)) ? json_number_value(raw(json)) : fallback;
}

/* ---- building ------------------------------------------------------------------------------------------ */

oq_json *oq_json_new_object(void)
{
    return wrap(json_object());
}

oq_json *oq_json_new_array(void)
{
    return wrap(json_array());
}

static oq_json *new_text(const char *text, size_t bytes)
{
    json_t *json = json_stringn(text, bytes);
    if (json) return wrap(json);
    oq_env *env = NULL;
    if (oq_env_new(&(oq_env_params){.size = sizeof(oq_env_params), .n_threads = 1}, &env) != OQ_OK)
        return NULL;
    size_t n = 0;
    char *repaired = oq_utf8_repair(env, text, bytes, &n);
    if (repaired) json = json_stringn(repaired, n);
    oq_free(env, repaired);
    oq_env_free(env);
    return wrap(json);
}

oq_json *oq_json_new_string(const char *text)
{
    return text ? new_text(text, strlen(text)) : wrap(json_null());
}

oq_json *oq_json_new_int(int64_t value)
{
    return wrap(json_integer(value));
}

oq_json *oq_json_new_real(double value)
{
    if (isfinite(value)) return wrap(json_real(value));
    json_t *object = json_object();
    const char *text = isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    if (object) json_object_set_new(object, NON_FINITE_KEY, json_string(text));
    return wrap(object);
}

oq_json *oq_json_new_bool(bool value)
{
    return wrap(json_boolean(value));
}

oq_json *oq_json_new_null(void)
{
    return wrap(json_null());
}

bool oq_json_set(oq_json *object, const char *key, oq_json *value)
{
    if (!object || !value) {
        json_decref(raw(value));
        return false;
    }
    return json_object_set_new(raw(object), key, raw(value)) == 0;
}

bool oq_json_append(oq_json *array, oq_json *value)
{
    if (!array || !value) {
        json_decref(raw(value));
        return false;
    }
    return json_array_append_new(raw(array), raw(value)) == 0;
}

bool oq_json_append_words(oq_json *array, const char *csv)
{
    size_t n = 0;
    for (const char *at = csv, *word = NULL; at;) {
        at = oq_csv_next(at, &word, &n);
        if (n && !oq_json_append(array, new_text(word, n))) return false;
    }
    return array != NULL;
}

/* ---- writing ------------------------------------------------------------------------------------------- */

static void put_string(oq_strbuf *buf, const char *text, size_t n)
{
    oq_strbuf_putc(buf, '"');
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '"' || c == '\\')
            oq_strbuf_printf(buf, "\\%c", c);
        else if (c == '\n')
            oq_strbuf_puts(buf, "\\n");
        else if (c == '\t')
            oq_strbuf_puts(buf, "\\t");
        else if (c == '\r')
            oq_strbuf_puts(buf, "\\r");
        else if (c < 0x20 || c == 0x7f)
            oq_strbuf_printf(buf, "\\u%04x", c);
        else
            oq_strbuf_putc(buf, (char)c);
    }
    oq_strbuf_putc(buf, '"');
}

/* Shortest of 15, 16, 17 digits that reads back equal; always looks like a real. */
static void put_real(oq_strbuf *buf, double x)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        const double back = strtod(text, NULL);
        if (!(back < x) && !(back > x)) break;
    }
    oq_strbuf_puts(buf, text);
    if (!strpbrk(text, ".e")) oq_strbuf_puts(buf, ".0");
}

static void put_break(oq_strbuf *buf, unsigned flags, int depth)
{
    if (!(flags & OQ_JSON_INDENT)) return;
    oq_strbuf_putc(buf, '\n');
    for (int i = 0; i < depth; i++) oq_strbuf_puts(buf, "  ");
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void put_value(oq_strbuf *buf, const json_t *json, unsigned flags, int depth);

static void put_object(oq_strbuf *buf, const json_t *json, unsigned flags, int depth)
{
    const size_t n = json_object_size(json);
    const char **keys = oq_alloc(buf->env, (n ? n : 1) * sizeof *keys);
    if (!keys) {
        buf->failed = true;
        return;
    }
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach((json_t *)(uintptr_t)json, key, value) keys[i++] = key;
    if (flags & OQ_JSON_SORT) qsort(keys, n, sizeof *keys, compare_keys);
    oq_strbuf_putc(buf, '{');
    for (i = 0; i < n; i++) {
        if (i) oq_strbuf_puts(buf, flags & OQ_JSON_INDENT ? "," : ", ");
        put_break(buf, flags, depth + 1);
        put_string(buf, keys[i], strlen(keys[i]));
        oq_strbuf_puts(buf, ": ");
        put_value(buf, json_object_get(json, keys[i]), flags, depth + 1);
    }
    if (n) put_break(buf, flags, depth);
    oq_strbuf_putc(buf, '}');
    oq_free(buf->env, keys);
}

static void put_array(oq_strbuf *buf, const json_t *json, unsigned flags, int depth)
{
    const size_t n = json_array_size(json);
    oq_strbuf_putc(buf, '[');
    for (size_t i = 0; i < n; i++) {
        if (i) oq_strbuf_puts(buf, flags & OQ_JSON_INDENT ? "," : ", ");
        put_break(buf, flags, depth + 1);
        put_value(buf, json_array_get(json, i), flags, depth + 1);
    }
    if (n) put_break(buf, flags, depth);
    oq_strbuf_putc(buf, ']');
}

static void put_value(oq_strbuf *buf, const json_t *json, unsigned flags, int depth)
{
    if (is_non_finite(json)) {
        const char *text = json_string_value(json_object_get(json, NON_FINITE_KEY));
        oq_strbuf_printf(buf, flags & OQ_JSON_LITERALS ? "%s" : "\"%s\"", text);
    } else if (json_is_object(json)) {
        put_object(buf, json, flags, depth);
    } else if (json_is_array(json)) {
        put_array(buf, json, flags, depth);
    } else if (json_is_string(json)) {
        put_string(buf, json_string_value(json), json_string_length(json));
    } else if (json_is_integer(json)) {
        oq_strbuf_printf(buf, "%lld", (long long)json_integer_value(json));
    } else if (json_is_real(json)) {
        put_real(buf, json_real_value(json));
    } else {
        oq_strbuf_puts(buf, json_is_true(json) ? "true" : json_is_false(json) ? "false" : "null");
    }
}

oq_status oq_json_dump(oq_env *env, const oq_json *json, unsigned flags, char **out)
{
    *out = NULL;
    oq_strbuf buf;
    oq_strbuf_init(&buf, env);
    if (json)
        put_value(&buf, raw(json), flags, 0);
    else
        oq_strbuf_puts(&buf, "null");
    const oq_status st = oq_strbuf_check(&buf, "JSON text");
    if (st == OQ_OK) *out = oq_strbuf_take(&buf);
    oq_strbuf_deinit(&buf);
    return st;
}
