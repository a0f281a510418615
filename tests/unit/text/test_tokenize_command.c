/* test_tokenize_command.c -- `omniq tokenize` through the public interface: flags, standard input, reports, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "omniq/omniq.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MODEL     OMNIQ_SOURCE_DIR "/models/toybox"
#define TOKENIZER MODEL "/tokenizer/tokenizer.json"

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

/* `flags`: name, value, name, value, …, NULL; `input`: standard input, or NULL to leave it alone. */
static oq_status run(oq_env *env, const char *const *flags, const char *input, size_t n, oq_report **out)
{
    oq_options *o = NULL;
    const int kept = dup(STDIN_FILENO);
    if (input) {
        FILE *file = tmpfile();
        assert_non_null(file);
        assert_int_equal(fwrite(input, 1, n, file), n);
        rewind(file);
        assert_true(dup2(fileno(file), STDIN_FILENO) >= 0);
        fclose(file);
    }
    assert_int_equal(oq_options_new(env, "tokenize", &o), OQ_OK);
    for (; flags[0]; flags += 2) assert_int_equal(oq_options_set(o, flags[0], flags[1]), OQ_OK);
    *out = NULL;
    const oq_status st = oq_run(o, out);
    oq_options_free(o);
    assert_true(dup2(kept, STDIN_FILENO) >= 0);
    close(kept);
    return st;
}

static void test_prompts(void **state)
{
    oq_report *r = NULL;
    const char *const one[] = {"model", MODEL, "prompt", "a red ball", NULL};
    assert_int_equal(run(*state, one, NULL, 0, &r), OQ_OK);
    assert_string_equal(oq_report_text(r), "      64  a\n     388  \xc4\xa0red\n     351  \xc4\xa0"
                                           "ball\n3 tokens\n");
    assert_string_equal(oq_report_json(r),
                        "{\"ids\": [64, 388, 351], \"pieces\": [\"a\", \"\xc4\xa0red\", \"\xc4\xa0"
                        "ball\"], \"texts\": [{\"ids\": [64, 388, 351], \"pieces\": [\"a\", "
                        "\"\xc4\xa0red\", \"\xc4\xa0"
                        "ball\"]}]}");
    oq_report_free(r);
    const char *const two[] = {"tokenizer", TOKENIZER, "prompt", "a", "prompt", "", NULL};
    assert_int_equal(run(*state, two, NULL, 0, &r), OQ_OK);
    assert_string_equal(oq_report_json(r),
                        "{\"texts\": [{\"ids\": [64], \"pieces\": [\"a\"]}, {\"ids\": [], \"pieces\": []}]}");
    oq_report_free(r);
}

static void test_template(void **state)
{
    oq_report *r = NULL;
    const char *const flags[] = {"model", MODEL,   "prompt", "a red ball", "template",
                                 "true",  "jsonl", "true",   NULL};
    assert_int_equal(run(*state, flags, NULL, 0, &r), OQ_OK);
    assert_string_equal(oq_report_text(r), "[4098, 717, 198, 64, 388, 351, 4096, 198, 4098, 728, 198]\n");
    oq_report_free(r);
}

static void test_input(void **state)
{
    oq_report *r = NULL;
    const char *const whole[] = {"tokenizer", TOKENIZER, NULL};
    assert_int_equal(run(*state, whole, "a\0a", 3, &r), OQ_OK);
    assert_non_null(strstr(oq_report_json(r), "{\"ids\": [64, 188, 64], "));
    oq_report_free(r);
    const char *const lines[] = {"tokenizer", TOKENIZER, "jsonl", "true", NULL};
    static const char input[] = "\"a red ball\"\n  \"a\\u0000b\" \r\n\"\"\n\"\xff\"";
    assert_int_equal(run(*state, lines, input, strlen(input), &r), OQ_OK);
    assert_string_equal(oq_report_text(r), "[64, 388, 351]\n[64, 188, 65]\n[]\n[171, 123, 121]\n");
    assert_string_equal(oq_report_json(r),
                        "{\"texts\": [[64, 388, 351], [64, 188, 65], [], [171, 123, 121]]}");
    oq_report_free(r);
    assert_int_equal(run(*state, lines, "", 0, &r), OQ_OK);
    assert_string_equal(oq_report_text(r), "");
    oq_report_free(r);
}

static void expect(oq_env *env, const char *const *flags, const char *input, oq_status status,
                   const char *text)
{
    oq_report *r = NULL;
    assert_int_equal(run(env, flags, input, strlen(input), &r), status);
    assert_null(r);
    assert_string_equal(oq_env_error(env), text);
    oq_env_clear(env);
}

static void test_refusals(void **state)
{
    oq_env *env = *state;
    const char *const none[] = {"prompt", "a", NULL};
    expect(env, none, "", OQ_E_ARG, "tokenize needs --model DIR or --tokenizer PATH");
    const char *const both[] = {"model", MODEL, "tokenizer", TOKENIZER, NULL};
    expect(env, both, "", OQ_E_ARG, "tokenize takes --model or --tokenizer, not both");
    const char *const template[] = {"tokenizer", TOKENIZER, "template", "true", NULL};
    expect(env, template, "", OQ_E_ARG, "--template needs --model DIR: a tokenizer alone has no pipeline");
    const char *const lines[] = {"tokenizer", TOKENIZER, "jsonl", "true", NULL};
    expect(env, lines, "\"a\"\n[1]\n", OQ_E_FORMAT,
           "standard input, line 2: '[' at byte 0 where a string is needed");
    expect(env, lines, "\n", OQ_E_FORMAT, "standard input, line 1: ends at byte 0 where a string is needed");
    expect(env, lines, "\"a\" \"b\"\n", OQ_E_FORMAT,
           "standard input, line 1: text behind the string at byte 4");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_input),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
