/* policy.c -- a policy by name or from a JSON file, and its verdict over metrics. */
#include "compare/metrics.h"

#include "base/file.h"
#include "base/names.h"

#include <math.h>
#include <string.h>

enum { MAX_METRICS = 16, MAX_FILE_BYTES = 1 << 16 };

struct oq_policy_storage {
    oq_policy policy;
    oq_policy_rule rules[MAX_METRICS];
    char *path;
};

static const oq_metric_info *find_metric(const char *name)
{
    for (const oq_metric_info *i = oq_metric_list; i->name; i++)
        if (strcmp(i->name, name) == 0) return i;
    return NULL;
}

static oq_status unknown_metric(oq_env *env, const char *path, const char *name)
{
    const char *names[MAX_METRICS];
    size_t n = 0;
    for (const oq_metric_info *i = oq_metric_list; i->name && n < MAX_METRICS; i++) names[n++] = i->name;
    const int nearest = oq_name_nearest(name, names, n);
    return oq_fail(env, OQ_E_CONFIG, "%s: there is no metric '%s'%s%s%s", path, name,
                   nearest >= 0 ? ", did you mean '" : "", nearest >= 0 ? names[nearest] : "",
                   nearest >= 0 ? "'" : "");
}

static oq_status parse_bound(oq_env *env, const char *path, const char *metric, const char *key,
                             const oq_json *value, oq_policy_rule *out)
{
    const oq_json_kind kind = oq_json_type(value);
    double *target = strcmp(key, "min") == 0 ? &out->min : strcmp(key, "max") == 0 ? &out->max : NULL;
    if (!target)
        return oq_fail(env, OQ_E_CONFIG, "%s: '%s' of '%s' is unknown, bounds are 'min' and 'max'", path, key,
                       metric);
    if (kind != OQ_JSON_INT && kind != OQ_JSON_REAL)
        return oq_fail(env, OQ_E_CONFIG, "%s: '%s' of '%s' is %s, a number is needed", path, key, metric,
                       oq_json_type_name(value));
    *target = oq_json_real(value, 0);
    return OQ_OK;
}

static oq_status parse_rule(oq_env *env, const char *path, const char *key, const oq_json *bounds,
                            oq_policy_rule *out)
{
    const oq_metric_info *info = find_metric(key);
    if (!info) return unknown_metric(env, path, key);
    if (oq_json_type(bounds) != OQ_JSON_OBJECT || oq_json_size(bounds) == 0)
        return oq_fail(env, OQ_E_CONFIG, "%s: '%s' needs an object with 'min', 'max' or both", path, key);
    *out = (oq_policy_rule){.metric = info->name, .min = -INFINITY, .max = INFINITY};
    for (size_t i = 0; i < oq_json_size(bounds); i++) {
        const char *bound = NULL;
        const oq_json *value = oq_json_member(bounds, i, &bound);
        OQ_TRY(parse_bound(env, path, key, bound, value, out));
    }
    if (out->min > out->max)
        return oq_fail(env, OQ_E_CONFIG, "%s: '%s' cannot be at least %g and at most %g", path, key, out->min,
                       out->max);
    return OQ_OK;
}

static oq_status parse_rules(oq_env *env, const char *path, const oq_json *json, oq_policy_storage *storage)
{
    if (oq_json_type(json) != OQ_JSON_OBJECT || oq_json_size(json) == 0)
        return oq_fail(env, OQ_E_CONFIG, "%s: a policy is an object with a member per metric", path);
    for (size_t i = 0; i < oq_json_size(json); i++) {
        const char *key = NULL;
        const oq_json *bounds = oq_json_member(json, i, &key);
        /* There are fewer metrics than rules and no key comes twice: an overflow is an unknown metric. */
        if (i == MAX_METRICS) return unknown_metric(env, path, key);
        OQ_TRY(parse_rule(env, path, key, bounds, &storage->rules[i]));
    }
    storage->policy =
        (oq_policy){.name = storage->path, .rules = storage->rules, .n_rules = oq_json_size(json)};
    return OQ_OK;
}

static oq_status read_policy(oq_env *env, const char *path, oq_policy_storage *storage)
{
    oq_json *json = NULL;
    storage->path = oq_strdup(env, path);
    if (!storage->path) return oq_fail(env, OQ_E_NOMEM, "%s: no memory", path);
    OQ_TRY(oq_json_parse_file(env, path, MAX_FILE_BYTES, &json));
    const oq_status st = parse_rules(env, path, json, storage);
    oq_json_free(json);
    return st;
}

oq_status oq_policy_open(oq_env *env, const char *name_or_path, const oq_policy **out,
                         oq_policy_storage **storage)
{
    *out = NULL;
    *storage = NULL;
    for (size_t i = 0; oq_policy_list[i]; i++) {
        if (!oq_name_equal(name_or_path, oq_policy_list[i]->name)) continue;
        *out = oq_policy_list[i];
        return OQ_OK;
    }
    if (!oq_file_exists(name_or_path))
        return oq_fail(env, OQ_E_ARG, "policy '%s' is neither 'smoke' nor 'strict' nor a file", name_or_path);
    oq_policy_storage *s = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *s, "policy", &s));
    const oq_status st = read_policy(env, name_or_path, s);
    if (st != OQ_OK) {
        oq_policy_close(env, s);
        return st;
    }
    *out = &s->policy;
    *storage = s;
    return OQ_OK;
}

void oq_policy_close(oq_env *env, oq_policy_storage *storage)
{
    if (!storage) return;
    oq_free(env, storage->path);
    oq_free(env, storage);
}

static oq_json *failure(const oq_policy_rule *rule, double value)
{
    const bool too_low = !(value >= rule->min) && rule->min > -INFINITY;
    oq_json *json = oq_json_new_object();
    oq_json_set(json, "metric", oq_json_new_string(rule->metric));
    oq_json_set(json, "value", oq_json_new_real(value));
    oq_json_set(json, too_low ? "min" : "max", oq_json_new_real(too_low ? rule->min : rule->max));
    return json;
}

oq_json *oq_policy_judge(const oq_policy *policy, const oq_metrics *metrics, bool *passed)
{
    oq_json *json = oq_json_new_object(), *failed = oq_json_new_array();
    *passed = true;
    for (size_t i = 0; i < policy->n_rules; i++) {
        const oq_policy_rule *rule = &policy->rules[i];
        const oq_metric_info *info = find_metric(rule->metric);
        const double value = info ? oq_metric_value(metrics, info) : NAN;
        if (value >= rule->min && value <= rule->max) continue;
        *passed = false;
        oq_json_append(failed, failure(rule, value));
    }
    oq_json_set(json, "name", oq_json_new_string(policy->name));
    oq_json_set(json, "passed", oq_json_new_bool(*passed));
    oq_json_set(json, "failed", failed);
    return json;
}
