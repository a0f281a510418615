/* fuzz_json.c -- any configuration file. Property: what is read, written and read again is equal, in every
 * form of writing that promises to be JSON. */
#include "fuzz/fuzz.h"

#include "base/json.h"

static void check_round_trip(oq_env *env, const oq_json *json, unsigned flags)
{
    char *text = NULL;
    oq_json *again = NULL;
    FUZZ_CHECK(oq_json_dump(env, json, flags, &text) == OQ_OK);
    FUZZ_CHECK(oq_json_parse(env, text, strlen(text), "written", &again) == OQ_OK);
    FUZZ_CHECK(oq_json_equal(json, again));
    oq_json_free(again);
    oq_free(env, text);
}

/* Both ways of walking an object see the same members. */
static void check_members(const oq_json *json)
{
    void *at = NULL;
    const char *key, *same;
    const oq_json *value;
    size_t n = 0;
    if (oq_json_size(json) > 64) return; /* oq_json_member is O(i) */
    for (; oq_json_next(json, &at, &key, &value); n++) {
        FUZZ_CHECK(oq_json_member(json, n, &same) == value && same == key);
        FUZZ_CHECK(oq_json_get(json, key) == value);
    }
    FUZZ_CHECK(oq_json_type(json) != OQ_JSON_OBJECT || n == oq_json_size(json));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    oq_env *env = fuzz_env();
    oq_json *json = NULL;
    const oq_status st = oq_json_parse(env, (const char *)data, n, "input", &json);
    fuzz_check_status(env, st);
    if (st == OQ_OK) {
        check_round_trip(env, json, OQ_JSON_COMPACT);
        check_round_trip(env, json, OQ_JSON_INDENT | OQ_JSON_SORT);
        check_members(json);
    }
    oq_json_free(json);
    return 0;
}
