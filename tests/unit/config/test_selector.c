/* test_selector.c -- "0,1,4-6" and its refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "config/selector.h"

#include <string.h>

static int setup(void **state)
{
    oq_env *env = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

static oq_status read(oq_env *env, oq_arena *arena, const char *json, oq_selector *out)
{
    oq_json *value = NULL;
    assert_int_equal(oq_json_parse(env, json, strlen(json), "t", &value), OQ_OK);
    const oq_status st = oq_selector_from_json(env, arena, "skip_steps", value, out);
    oq_json_free(value);
    return st;
}

/* The members below 64 as bits. */
static uint64_t bits(const oq_selector *s)
{
    uint64_t b = 0;
    for (int i = 0; i < 64; i++) b |= (uint64_t)oq_selector_has(s, i) << i;
    return b;
}

static void test_accepted(void **state)
{
    static const struct {
        const char *json;
        bool given;
        uint64_t bits;
        size_t n_ranges;
    } rows[] = {
        {"null", false, 0, 0},
        {"\"\"", false, 0, 0},
        {"\"  \"", false, 0, 0},
        {"\"0,1,4-6\"", true, 0x73, 2},
        {"\"0-2,10\"", true, 0x407, 2},
        {"\" 3 - 5 , 7 \"", true, 0xb8, 2},
        {"\"1,,2\"", true, 0x6, 1},
        {"\",\"", true, 0, 0},
        {"\"5,3-9,4,10\"", true, 0x7f8, 1},
        {"[]", true, 0, 0},
        {"[0, 3]", true, 0x9, 2},
        {"[3, 0, 3, 1]", true, 0xb, 2},
        {"[true]", true, 0x2, 1},
        {"\"0-9223372036854775807\"", true, ~(uint64_t)0, 1},
    };
    oq_arena arena;
    oq_arena_init(&arena, *state);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_selector s;
        if (read(*state, &arena, rows[i].json, &s) != OQ_OK)
            fail_msg("%s: %s", rows[i].json, oq_env_error(*state));
        assert_int_equal(s.given, rows[i].given);
        assert_int_equal(bits(&s), rows[i].bits);
        assert_int_equal(s.n_ranges, rows[i].n_ranges);
        assert_false(oq_selector_has(&s, -1));
    }
    oq_arena_deinit(&arena);
}

static void test_refused(void **state)
{
    static const struct {
        const char *json, *words;
    } rows[] = {
        {"\"5-3\"", "'5-3' runs backwards"},
        {"\"2-0\"", "'2-0' runs backwards"},
        {"\"-3\"", "'-3' is not a range"},
        {"\"1-b\"", "'1-b' is not a range"},
        {"\"1-2-3\"", "'1-2-3' is not a range"},
        {"\"a\"", "'a' is not a number"},
        {"\"0,1.5\"", "'1.5' is not a number"},
        {"\"99999999999999999999\"", "is not a number"},
        {"[-1]", "entry 0 is -1"},
        {"[0, \"0\"]", "entry 1 must be a whole number, not a string"},
        {"[1.5]", "entry 0 must be a whole number, not a number"},
        {"7", "skip_steps must be a text like '0,1,4-6' or a list"},
        {"{}", "skip_steps must be a text"},
    };
    oq_arena arena;
    oq_arena_init(&arena, *state);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_selector s;
        assert_int_equal(read(*state, &arena, rows[i].json, &s), OQ_E_CONFIG);
        if (!strstr(oq_env_error(*state), rows[i].words) ||
            strncmp(oq_env_error(*state), "skip_steps", 10) != 0)
            fail_msg("%s: '%s'", rows[i].json, oq_env_error(*state));
        oq_env_clear(*state);
    }
    oq_arena_deinit(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_accepted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
