/* model_config.c -- reads config.json by the module's table. */
#include "modules/model_config.h"

#include <math.h>
#include <string.h>

static const oq_model_field *find(const oq_model_field *fields, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(fields[i].key, key) == 0) return &fields[i];
    return NULL;
}

/* The value's JSON text for a message; oq_free. NULL: no memory. */
static char *text_of(oq_env *env, const oq_json *value)
{
    char *text = NULL;
    return oq_json_dump(env, value, OQ_JSON_COMPACT, &text) == OQ_OK ? text : NULL;
}

static oq_status wrong_type(oq_env *env, const char *what, const char *key, const oq_json *value,
                            const char *need)
{
    return oq_fail(env, OQ_E_FORMAT, "config.json of %s: '%s' is %s, %s is needed", what, key,
                   oq_json_type_name(value), need);
}

static oq_status read_number(oq_env *env, const char *what, const oq_model_field *field, const oq_json *value,
                             void *self)
{
    const bool whole = field->kind == OQ_FIELD_INT;
    double x = field->fallback;
    if (oq_json_type(value) != OQ_JSON_NULL) {
        const oq_json_kind kind = oq_json_type(value);
        if (whole ? !oq_json_is_int(value) : kind != OQ_JSON_INT && kind != OQ_JSON_REAL)
            return wrong_type(env, what, field->key, value, whole ? "a whole number" : "a number");
        x = oq_json_real(value, x);
        if (!(x >= field->min && x <= field->max))
            return oq_fail(env, OQ_E_FORMAT,
                           "config.json of %s: '%s' is %.10g, it must be between %.10g and %.10g", what,
                           field->key, x, field->min, field->max);
    } else if (isnan(x)) {
        return oq_fail(env, OQ_E_FORMAT, "config.json of %s: '%s' is missing", what, field->key);
    }
    if (whole)
        *(int64_t *)(void *)((char *)self + field->offset) = (int64_t)x;
    else
        *(double *)(void *)((char *)self + field->offset) = x;
    return OQ_OK;
}

static oq_status read_bool(oq_env *env, const char *what, const oq_model_field *field, const oq_json *value,
                           void *self)
{
    if (oq_json_type(value) != OQ_JSON_NULL && oq_json_type(value) != OQ_JSON_BOOL)
        return wrong_type(env, what, field->key, value, "true or false");
    *(bool *)((char *)self + field->offset) = oq_json_bool(value, field->fallback != 0);
    return OQ_OK;
}

static oq_status check_fixed(oq_env *env, const char *what, const oq_model_field *field, const oq_json *value)
{
    if (!value) return OQ_OK;
    oq_json *only = NULL;
    OQ_TRY(oq_json_parse(env, field->only, strlen(field->only), field->key, &only));
    const bool equal = oq_json_equal(only, value);
    oq_json_free(only);
    if (equal) return OQ_OK;
    char *text = text_of(env, value);
    const oq_status st = oq_fail(env, OQ_E_UNSUPPORTED, "config.json of %s: '%s' is %s, only %s is supported",
                                 what, field->key, text ? text : "something else", field->only);
    oq_free(env, text);
    return st;
}

/* Keys without a row: off is off, whatever it would switch on; the rest changes something we do not know. */
static oq_status check_unknown(oq_env *env, const char *what, const oq_json *config,
                               const oq_model_field *fields, size_t n_fields)
{
    for (size_t i = 0; i < oq_json_size(config); i++) {
        const char *key = NULL;
        const oq_json *value = oq_json_member(config, i, &key);
        const oq_model_field *field = find(fields, n_fields, key);
        const bool off = oq_json_type(value) == OQ_JSON_NULL ||
                         (oq_json_type(value) == OQ_JSON_BOOL && !oq_json_bool(value, true));
        if (field && field->kind != OQ_FIELD_IGNORED) continue;
        if (!field && !off && key[0] != '_' && strcmp(key, "quantization_config") != 0) {
            char *text = text_of(env, value);
            const oq_status st =
                oq_fail(env, OQ_E_UNSUPPORTED, "config.json of %s: '%s' is %.200s, which is not known here",
                        what, key, text ? text : "set");
            oq_free(env, text);
            return st;
        }
        oq_log(env, OQ_LOG_DEBUG, "config.json of %s: '%s' does not change the computation", what, key);
    }
    return OQ_OK;
}

oq_status oq_model_config_read(oq_env *env, const char *what, const oq_json *config,
                               const oq_model_field *fields, size_t n_fields, void *self)
{
    if (oq_json_type(config) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_FORMAT, "config.json of %s is %s, an object is needed", what,
                       oq_json_type_name(config));
    OQ_TRY(check_unknown(env, what, config, fields, n_fields));
    for (size_t i = 0; i < n_fields; i++) {
        const oq_json *value = oq_json_get(config, fields[i].key);
        switch (fields[i].kind) {
        case OQ_FIELD_INT:
        case OQ_FIELD_REAL:
            OQ_TRY(read_number(env, what, &fields[i], value, self));
            break;
        case OQ_FIELD_BOOL:
            OQ_TRY(read_bool(env, what, &fields[i], value, self));
            break;
        case OQ_FIELD_FIXED:
            OQ_TRY(check_fixed(env, what, &fields[i], value));
            break;
        case OQ_FIELD_IGNORED:
        case OQ_FIELD_CUSTOM:
            break;
        }
    }
    return OQ_OK;
}

oq_status oq_model_config_ints(oq_env *env, const char *what, const oq_json *config, const char *key,
                               int64_t min, int64_t max, int64_t *dst, int64_t capacity, int64_t *count)
{
    const oq_json *list = oq_json_get(config, key);
    if (oq_json_type(list) != OQ_JSON_ARRAY)
        return wrong_type(env, what, key, list, "an array of whole numbers");
    const size_t n = oq_json_size(list);
    if (n < 1 || n > (size_t)capacity)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "config.json of %s: '%s' has %zu entries, 1 to %lld are supported", what, key, n,
                       (long long)capacity);
    for (size_t i = 0; i < n; i++) {
        const oq_json *item = oq_json_at(list, i);
        if (!oq_json_is_int(item)) return wrong_type(env, what, key, item, "an array of whole numbers");
        dst[i] = oq_json_int(item, 0);
        if (dst[i] < min || dst[i] > max)
            return oq_fail(env, OQ_E_FORMAT,
                           "config.json of %s: '%s' holds %lld, it must be between %lld and %lld", what, key,
                           (long long)dst[i], (long long)min, (long long)max);
    }
    *count = (int64_t)n;
    return OQ_OK;
}

oq_status oq_model_config_axes(oq_env *env, const char *what, const oq_json *config, const char *key,
                               const int64_t *published, int64_t n, int64_t width, const char *of,
                               int64_t *axes)
{
    int64_t given = n, sum = 0;
    if (oq_json_get(config, key))
        OQ_TRY(oq_model_config_ints(env, what, config, key, 2, 4096, axes, n, &given));
    else
        memcpy(axes, published, (size_t)n * sizeof *axes);
    for (int64_t i = 0; i < given; i++) {
        sum += axes[i];
        if (axes[i] % 2)
            return oq_fail(env, OQ_E_FORMAT, "config.json of %s: '%s' holds the odd %lld", what, key,
                           (long long)axes[i]);
    }
    if (given == n && sum == width) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "config.json of %s: %lld '%s' with sum %lld do not fit %s", what,
                   (long long)given, key, (long long)sum, of);
}
