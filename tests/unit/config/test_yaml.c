/* test_yaml.c -- YAML becomes the JSON value that its core schema says, or is refused with its line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/strbuf.h"
#include "config/quant_config.h"

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

static void test_values(void **state)
{
    static const struct {
        const char *yaml, *json;
    } rows[] = {
        {"a: 1\nb: -2\nc: 0x1F\nd: 0o17\n", "{\"a\": 1, \"b\": -2, \"c\": 31, \"d\": 15}"},
        {"[1.5, 1e3, -.5, 1., .inf, -.Inf, .nan]",
         "[1.5, 1000.0, -0.5, 1.0, \"Infinity\", \"-Infinity\", \"NaN\"]"},
        {"[true, False, null, ~, yes, on, '1', \"2\", !!str 3]",
         "[true, false, null, null, \"yes\", \"on\", \"1\", \"2\", \"3\"]"},
        {"a:\n  - x\n  - {y: z}\nempty:\n", "{\"a\": [\"x\", {\"y\": \"z\"}], \"empty\": null}"},
        {"fp8", "\"fp8\""},
        {"---\nkey: \"\\u00e9 \\n\"\n...\n", "{\"key\": \"\xc3\xa9 \\n\"}"},
        {"a: &x [1, 2]\nb: *x\n", "{\"a\": [1, 2], \"b\": [1, 2]}"},
        {"text: |\n  one\n  two\n", "{\"text\": \"one\\ntwo\\n\"}"},
        {"12345678901234567890", "12345678901234567000.0"},
        {"1.2.3", "\"1.2.3\""},
        {"'it''s'", "\"it's\""},
        {"'''a'''", "\"'a'\""},
        {"{\"json\": [1, \"two\", null]}", "{\"json\": [1, \"two\", null]}"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_json *json = NULL;
        char *text = NULL;
        const oq_status st = oq_yaml_parse(*state, rows[i].yaml, strlen(rows[i].yaml), "t", &json);
        if (st != OQ_OK) fail_msg("%s: %s", rows[i].yaml, oq_env_error(*state));
        assert_int_equal(oq_json_dump(*state, json, OQ_JSON_COMPACT, &text), OQ_OK);
        if (i != 8)
            assert_string_equal(text, rows[i].json);
        else
            assert_int_equal(oq_json_type(json), OQ_JSON_REAL);
        oq_free(*state, text);
        oq_json_free(json);
    }
}

static void refuse(oq_env *env, const char *yaml, size_t n, const char *words)
{
    oq_json *json = NULL;
    const oq_status st = oq_yaml_parse(env, yaml, n, "file.yaml", &json);
    if (st != OQ_E_FORMAT) fail_msg("%.40s: %s", yaml, oq_status_name(st));
    assert_null(json);
    if (!strstr(oq_env_error(env), words)) fail_msg("'%s' does not hold '%s'", oq_env_error(env), words);
    assert_non_null(strstr(oq_env_error(env), "file.yaml"));
    oq_env_clear(env);
}

static void test_refused(void **state)
{
    static const struct {
        const char *yaml, *words;
    } rows[] = {
        {"a: 1\na: 2\n", "uplicate"},
        {"a: [1, 2\nb: 3\n", "not valid YAML at line"},
        {"a: *nowhere\n", "anchor"},
        {"a: {b: 1}\nc: */a/b\n", "anchor"},
        /* libfyaml's paths are not YAML's aliases */ {"", "no value"},
        {"# only a comment\n", "no value"},
        {"a: 1\n---\nb: 2\n", "more than one"},
        {"<<: {a: 1}\n", "merge key"},
        {"a: !python/object:os.system {}\n", "tag"},
        {"? [a, b]\n: 1\n", "key"},
        {"a: \"\\0\"\n", "NUL"},
        {"a: \x01\n", "0x01 at byte 3"},
        {"a: 'x''''y'\n", "four single quotes in a row at byte 5"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        refuse(*state, rows[i].yaml, strlen(rows[i].yaml), rows[i].words);
    refuse(*state, "a\0b", 3, "UTF-8");
    refuse(*state, "a: \xff", 4, "UTF-8");
}

/* Depth, a value that holds itself, and aliases that double ten times over. */
static void test_bombs(void **state)
{
    oq_env *env = *state;
    char deep[401];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    deep[400] = '\0';
    refuse(env, deep, 400, "");
    static const char self[] = "a: &x [*x]\n";
    refuse(env, self, sizeof self - 1, "");

    oq_strbuf bomb;
    oq_strbuf_init(&bomb, env);
    oq_strbuf_puts(&bomb, "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for (int i = 1; i < 10; i++) {
        oq_strbuf_printf(&bomb, "a%d: &a%d [", i, i);
        for (int j = 0; j < 10; j++) oq_strbuf_printf(&bomb, "%s*a%d", j ? ", " : "", i - 1);
        oq_strbuf_puts(&bomb, "]\n");
    }
    refuse(env, oq_strbuf_text(&bomb), bomb.size, "65536 values");
    oq_strbuf_deinit(&bomb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bombs, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
