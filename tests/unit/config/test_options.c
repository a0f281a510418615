/* test_options.c -- the options table holds together, and values are set, refused, read back and copied as it says. */
#include "config/options.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static oq_env *env;

static int start(void **state)
{
    (void)state;
    return oq_env_new(&(oq_env_params){.size = sizeof(oq_env_params), .n_threads = 1}, &env) == OQ_OK ? 0
                                                                                                      : -1;
}

static int stop(void **state)
{
    (void)state;
    oq_env_free(env);
    return 0;
}

static oq_options *options_for(const char *command)
{
    oq_options *o = NULL;
    oq_env_clear(env);
    assert_int_equal(oq_options_new(env, command, &o), OQ_OK);
    return o;
}

static void expect_error(oq_status got, oq_status want, const char *text)
{
    assert_string_equal(oq_status_name(got), oq_status_name(want));
    if (!strstr(oq_env_error(env), text)) fail_msg("'%s' does not contain '%s'", oq_env_error(env), text);
    oq_env_clear(env);
}

/* ---- the table ----------------------------------------------------------------------------------------- */

static bool types_fit(const oq_option_info *r)
{
    const bool number = r->type == OQ_OPTION_INT || r->type == OQ_OPTION_REAL;
    return (r->type == OQ_OPTION_CHOICE) == (r->choices != NULL) && (!number || r->min <= r->max) &&
           (r->type == OQ_OPTION_FLAG) == (r->value == NULL);
}

static void rows_are_complete(void **state)
{
    (void)state;
    size_t n = 0;
    char word[64];
    const oq_option_info *rows = oq_option_list(&n);
    assert_true(n > 40);
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].name || strlen(rows[i].name) < 2 || !rows[i].help || strlen(rows[i].help) < 8 ||
            !rows[i].group)
            fail_msg("row %zu lacks name, help or group", i);
        if (!types_fit(&rows[i]))
            fail_msg("%s: type, choices, bounds and placeholder do not fit", rows[i].name);
        if (rows[i].help[strlen(rows[i].help) - 1] == '.' || strchr(rows[i].name, '_'))
            fail_msg("%s: help ends like a sentence, or the name has '_'", rows[i].name);
        for (size_t c = 0; oq_csv_word(rows[i].commands, c, word, sizeof word); c++)
            if (!oq_csv_has(oq_option_commands, word)) fail_msg("%s: no command '%s'", rows[i].name, word);
    }
}

static void check_name(const char *command, const oq_option_info *row, const char *name)
{
    if (oq_option_find(command, name) != row) fail_msg("%s: '%s' means two options", command, name);
}

static void names_mean_one_option_per_command(void **state)
{
    (void)state;
    size_t n = 0;
    char command[32], alias[64];
    const oq_option_info *rows = oq_option_list(&n);
    for (size_t c = 0; oq_csv_word(oq_option_commands, c, command, sizeof command); c++)
        for (size_t i = 0; i < n; i++) {
            if (!oq_csv_has(rows[i].commands, command)) continue;
            check_name(command, &rows[i], rows[i].name);
            for (size_t a = 0; oq_csv_word(rows[i].aliases, a, alias, sizeof alias); a++)
                check_name(command, &rows[i], alias);
        }
}

static void groups_are_contiguous(void **state)
{
    (void)state;
    size_t n = 0;
    const oq_option_info *rows = oq_option_list(&n);
    for (size_t i = 1; i < n; i++)
        for (size_t k = 0; k + 1 < i; k++)
            if (strcmp(rows[k].group, rows[i].group) == 0 && strcmp(rows[i - 1].group, rows[i].group) != 0)
                fail_msg("%s: group '%s' stands in two places", rows[i].name, rows[i].group);
}

/* One value below and one above the bounds of every number in the table. */
static void bounds_hold(void **state)
{
    (void)state;
    size_t n = 0;
    char command[32], text[64];
    const oq_option_info *rows = oq_option_list(&n);
    for (size_t i = 0; i < n; i++) {
        if (rows[i].type != OQ_OPTION_INT && rows[i].type != OQ_OPTION_REAL) continue;
        assert_true(oq_csv_word(rows[i].commands, 0, command, sizeof command));
        oq_options *o = options_for(command);
        snprintf(text, sizeof text, "%.17g", rows[i].min - 1);
        expect_error(oq_options_set(o, rows[i].name, text), OQ_E_ARG, rows[i].name);
        snprintf(text, sizeof text, "%.17g", rows[i].max * 2 + 1);
        expect_error(oq_options_set(o, rows[i].name, text), OQ_E_ARG, rows[i].name);
        snprintf(text, sizeof text, "%.17g", rows[i].min);
        assert_int_equal(oq_options_set(o, rows[i].name, text), OQ_OK);
        oq_options_free(o);
    }
}

/* ---- values -------------------------------------------------------------------------------------------- */

static void names_and_aliases_reach_one_value(void **state)
{
    (void)state;
    oq_options *o = options_for("generate");
    assert_int_equal(oq_options_set(o, "num_inference_steps", "9"), OQ_OK);
    assert_int_equal(oq_options_set(o, "cfg-scale", "2.5"), OQ_OK);
    assert_int_equal(oq_options_set(o, "W", "64"), OQ_OK);
    assert_int_equal(oq_options_set(o, "s", "9223372036854775807"), OQ_OK);
    assert_int_equal(oq_options_set(o, "DTYPE", "FP32"), OQ_OK);
    assert_int_equal(oq_options_int(o, "steps", 0), 9);
    assert_true(fabs(oq_options_real(o, "guidance-scale", 0) - 2.5) < 1e-15);
    assert_int_equal(oq_options_int(o, "width", 0), 64);
    assert_int_equal(oq_options_int(o, "seed", 0), INT64_MAX);
    assert_string_equal(oq_options_text(o, "dtype", ""), "fp32");
    assert_false(oq_options_given(o, "height"));
    assert_int_equal(oq_options_int(o, "height", 77), 77);
    oq_options_free(o);
}

static void lists_append_and_others_replace(void **state)
{
    (void)state;
    oq_options *o = options_for("generate");
    for (int i = 0; i < 5; i++) assert_int_equal(oq_options_set(o, "prompt", i % 2 ? "odd" : "even"), OQ_OK);
    assert_int_equal(oq_options_set(o, "steps", "3"), OQ_OK);
    assert_int_equal(oq_options_set(o, "steps", "4"), OQ_OK);
    assert_int_equal(oq_options_count(o, "prompt"), 5);
    assert_string_equal(oq_options_item(o, "p", 3), "odd");
    assert_null(oq_options_item(o, "prompt", 5));
    assert_int_equal(oq_options_count(o, "steps"), 1);
    assert_int_equal(oq_options_int(o, "steps", 0), 4);
    oq_options_free(o);
}

static void a_refused_value_leaves_the_earlier_one(void **state)
{
    (void)state;
    oq_options *o = options_for("generate");
    assert_int_equal(oq_options_set(o, "steps", "4"), OQ_OK);
    expect_error(oq_options_set(o, "steps", "0"), OQ_E_ARG, "steps must be from 1 to 1000, not 0");
    expect_error(oq_options_set(o, "steps", " 4"), OQ_E_ARG, "whole number");
    expect_error(oq_options_set(o, "steps", "4x"), OQ_E_ARG, "not '4x'");
    expect_error(oq_options_set(o, "guidance-scale", "-inf"), OQ_E_ARG, "guidance-scale must be finite");
    expect_error(oq_options_set(o, "guidance-scale", "0x1p3"), OQ_E_ARG, "not '0x1p3'");
    expect_error(oq_options_set(o, "show", "yes"), OQ_E_ARG, "show must be true or false, not 'yes'");
    expect_error(oq_options_set(o, "rng", "cuda"), OQ_E_ARG, "rng must be one of cpu, not 'cuda'");
    expect_error(oq_options_set(o, "stesp", "1"), OQ_E_ARG, "the nearest is 'steps'");
    expect_error(oq_options_set(o, "fps", "0"), OQ_E_ARG, "fps");
    expect_error(oq_options_set(o, "step-execution", "x"), OQ_E_UNSUPPORTED,
                 "'step-execution' is not in this build yet");
    assert_int_equal(oq_options_int(o, "steps", 0), 4);
    oq_options_free(o);
}

static void commands_have_names(void **state)
{
    (void)state;
    oq_options *o = NULL;
    expect_error(oq_options_new(env, "generatte", &o), OQ_E_ARG, "the nearest is 'generate'");
    expect_error(oq_options_new(env, NULL, &o), OQ_E_ARG, "there is no command ''");
    assert_null(o);
}

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static void json_sets_every_type(void **state)
{
    (void)state;
    oq_options *o = options_for("generate");
    assert_int_equal(
        oq_options_set_json(o, "{\"prompt\":[\"a\",\"b\"],\"num_inference_steps\":8.0,\"guidance_scale\":0,"
                               "\"show\":true,\"sigmas\":[1,0.5],\"ignored_layers\":[\"x\",\"y\"],"
                               "\"quantization\":{\"method\":\"fp8\"},\"dtype\":\"bf16\",\"seed\":null}"),
        OQ_OK);
    assert_int_equal(oq_options_count(o, "prompt"), 2);
    assert_int_equal(oq_options_int(o, "steps", 0), 8);
    assert_true(oq_options_flag(o, "show"));
    assert_string_equal(oq_options_text(o, "sigmas", ""), "1,0.5");
    assert_string_equal(oq_options_text(o, "ignored-layers", ""), "x,y");
    assert_non_null(strstr(oq_options_text(o, "quantization", ""), "\"fp8\""));
    assert_false(oq_options_given(o, "seed"));
    oq_options_free(o);
}

static void json_refuses_wrong_types(void **state)
{
    (void)state;
    oq_options *o = options_for("generate");
    expect_error(oq_options_set_json(o, "{\"steps\":\"8\"}"), OQ_E_ARG, "steps cannot be a string");
    expect_error(oq_options_set_json(o, "{\"steps\":8.5}"), OQ_E_ARG, "steps must be a whole number");
    expect_error(oq_options_set_json(o, "{\"prompt\":{}}"), OQ_E_ARG, "prompt cannot be an object");
    expect_error(oq_options_set_json(o, "{\"show\":1}"), OQ_E_ARG, "show cannot be a whole number");
    expect_error(oq_options_set_json(o, "{\"steps\":1,\"num_inference_steps\":2}"), OQ_E_ARG,
                 "'steps' and 'num_inference_steps' are the same option");
    assert_int_equal(oq_options_set_json(o, "{\"steps\":1,\"num_inference_steps\":null}"), OQ_OK);
    expect_error(oq_options_set_json(o, "[1]"), OQ_E_ARG, "must be a JSON object, not a list");
    expect_error(oq_options_set_json(o, "{\"steps\":1"), OQ_E_FORMAT, "not valid JSON");
    expect_error(oq_options_set_json(o, "{\"height_\":1}"), OQ_E_ARG, "the nearest is 'height'");
    oq_options_free(o);
}

static void options_return_as_the_json_that_sets_them(void **state)
{
    (void)state;
    const char *text = "{\"prompt\": [\"a\"], \"width\": 64, \"guidance-scale\": 1.5, \"show\": true}";
    char *once = NULL, *twice = NULL;
    oq_options *o = options_for("generate"), *again = options_for("generate");
    assert_int_equal(oq_options_set_json(o, text), OQ_OK);
    oq_json *json = oq_options_to_json(o);
    assert_int_equal(oq_json_dump(env, json, OQ_JSON_SORT, &once), OQ_OK);
    assert_int_equal(oq_options_set_json(again, once), OQ_OK);
    oq_json *second = oq_options_to_json(again);
    assert_int_equal(oq_json_dump(env, second, OQ_JSON_SORT, &twice), OQ_OK);
    assert_string_equal(once, twice);
    assert_non_null(strstr(once, "\"width\": 64"));
    oq_json_free(json);
    oq_json_free(second);
    oq_free(env, once);
    oq_free(env, twice);
    oq_options_free(o);
    oq_options_free(again);
}

static void defaults_fill_gaps_alone(void **state)
{
    (void)state;
    oq_json *json = NULL;
    oq_options *o = options_for("generate");
    const char *text = "{\"steps\":8,\"width\":256}";
    assert_int_equal(oq_json_parse(env, text, strlen(text), "omniq.json", &json), OQ_OK);
    assert_int_equal(oq_options_set(o, "steps", "20"), OQ_OK);
    assert_int_equal(oq_options_set_defaults(o, json, "omniq.json"), OQ_OK);
    assert_int_equal(oq_options_int(o, "steps", 0), 20);
    assert_int_equal(oq_options_int(o, "width", 0), 256);
    oq_json_free(json);
    oq_options_free(o);
}

static void copying_keeps_to_what_the_other_command_takes(void **state)
{
    (void)state;
    oq_options *from = options_for("compare"), *to = options_for("generate");
    assert_int_equal(oq_options_set(from, "prompt", "a"), OQ_OK);
    assert_int_equal(oq_options_set(from, "prompt", "b"), OQ_OK);
    assert_int_equal(oq_options_set(from, "policy", "strict"), OQ_OK);
    assert_int_equal(oq_options_set(from, "candidate-quantization", "fp8"), OQ_OK);
    assert_int_equal(oq_options_set(from, "steps", "3"), OQ_OK);
    assert_int_equal(oq_options_copy(from, to), OQ_OK);
    assert_int_equal(oq_options_count(to, "prompt"), 2);
    assert_int_equal(oq_options_int(to, "steps", 0), 3);
    assert_false(oq_options_given(to, "quantization"));
    oq_options_free(from);
    oq_options_free(to);
}

static void arguments_keep_their_order(void **state)
{
    (void)state;
    oq_options *o = options_for("compare");
    assert_int_equal(oq_options_add_argument(o, "a.png"), OQ_OK);
    assert_int_equal(oq_options_add_argument(o, "b.png"), OQ_OK);
    assert_int_equal(oq_options_n_arguments(o), 2);
    assert_string_equal(oq_options_argument(o, 1), "b.png");
    assert_null(oq_options_argument(o, 2));
    oq_options_free(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_complete),
        cmocka_unit_test(names_mean_one_option_per_command),
        cmocka_unit_test(groups_are_contiguous),
        cmocka_unit_test(bounds_hold),
        cmocka_unit_test(names_and_aliases_reach_one_value),
        cmocka_unit_test(lists_append_and_others_replace),
        cmocka_unit_test(a_refused_value_leaves_the_earlier_one),
        cmocka_unit_test(commands_have_names),
        cmocka_unit_test(json_sets_every_type),
        cmocka_unit_test(json_refuses_wrong_types),
        cmocka_unit_test(options_return_as_the_json_that_sets_them),
        cmocka_unit_test(defaults_fill_gaps_alone),
        cmocka_unit_test(copying_keeps_to_what_the_other_command_takes),
        cmocka_unit_test(arguments_keep_their_order),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
