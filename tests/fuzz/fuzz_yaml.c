/* fuzz_yaml.c -- a configuration in YAML. Property: the value is one that JSON can hold: written as JSON it reads
 * back equal, and short texts read back equal as YAML too, since YAML holds JSON. */
#include "fuzz/fuzz.h"

#include "config/quant_config.h"

static bool all_finite(const oq_json *json)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    if (oq_json_type(json) == OQ_JSON_REAL) return __builtin_isfinite(oq_json_real(json, 0));
    for (size_t i = 0; oq_json_type(json) == OQ_JSON_ARRAY && i < oq_json_size(json); i++)
        if (!all_finite(oq_json_at(json, i))) return false;
    while (oq_json_type(json) == OQ_JSON_OBJECT && oq_json_next(json, &at, &key, &value))
        if (!all_finite(value)) return false;
    return true;
}

static void check_round_trip(oq_env *env, const oq_json *json, bool as_yaml)
{
    char *text = NULL;
    oq_json *again = NULL;
    FUZZ_CHECK(oq_json_dump(env, json, OQ_JSON_COMPACT, &text) == OQ_OK);
    FUZZ_CHECK(oq_json_parse(env, text, strlen(text), "written", &again) == OQ_OK);
    FUZZ_CHECK(oq_json_equal(json, again));
    oq_json_free(again);
    if (as_yaml) {
        FUZZ_CHECK(oq_yaml_parse(env, text, strlen(text), "written", &again) == OQ_OK);
        FUZZ_CHECK(oq_json_equal(json, again));
        oq_json_free(again);
    }
    oq_free(env, text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    oq_json *json = NULL;
    const oq_status st = oq_yaml_parse(env, (const char *)data, n, "input", &json);
    fuzz_check_status(env, st);
    FUZZ_CHECK((st == OQ_OK) == (json != NULL));
    /* A key in braces has at most 1024 characters in YAML; an escape takes six. */
    if (st == OQ_OK && all_finite(json)) check_round_trip(env, json, n < 160);
    oq_json_free(json);
    return 0;
}
