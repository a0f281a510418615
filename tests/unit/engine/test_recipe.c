/* test_recipe.c -- the assignment within a budget: exact bytes, the best trade first; and on the demo model: better than
 * every single method at equal bytes, for a prompt that was held out, and taken by plan and quantize; recipes by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/recipe.h"

#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

static int setup(void **state)
{
    oq_env *env = NULL;
    const oq_env_params params = {.size = sizeof params, .n_threads = 2};
    if (oq_env_new(&params, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

/* Three layers; methods of 4 and 8 bits, plain 16. */
static void fill(oq_recipe *r, oq_recipe_layer *layers, oq_env *env)
{
    static const double error4[] = {100, 1, 10}, error8[] = {1, 0.01, 0.1};
    *r = (oq_recipe){.env = env, .n_methods = 3, .layers = layers, .n_layers = 3, .weights = 600};
    for (int i = 0; i < 3; i++) {
        layers[i] = (oq_recipe_layer){.name = "layer", .n = 20, .k = 10};
        layers[i].choice[0] = (oq_recipe_choice){.bytes = 100, .error = error4[i]};
        layers[i].choice[1] = (oq_recipe_choice){.bytes = 200, .error = error8[i]};
        layers[i].choice[2] = (oq_recipe_choice){.bytes = 400};
    }
}

static void test_solve(void **state)
{
    static const struct {
        size_t budget, bytes;
        int chosen[3];
    } rows[] = {
        {1200, 1200, {2, 2, 2}}, {1199, 1000, {2, 1, 2}}, {600, 600, {1, 1, 1}},
        {599, 500, {1, 0, 1}},   {499, 400, {1, 0, 0}},   {300, 300, {0, 0, 0}},
    };
    oq_recipe r;
    oq_recipe_layer layers[3];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fill(&r, layers, *state);
        assert_int_equal(oq_recipe_solve(&r, rows[i].budget), OQ_OK);
        assert_int_equal(oq_recipe_bytes(&r), rows[i].bytes);
        for (int l = 0; l < 3; l++) assert_int_equal(layers[l].chosen, rows[i].chosen[l]);
    }
    fill(&r, layers, *state);
    assert_int_equal(oq_recipe_solve(&r, 299), OQ_E_ARG);
    assert_string_equal(oq_env_error(*state),
                        "a budget of 299 bytes (3.99 bits a weight): these methods need at least 300 (4.00)");
}

/* A plain layer whose only method is left out by its shape stays plain and is paid for. */
static void test_solve_gaps(void **state)
{
    oq_recipe r;
    oq_recipe_layer layers[3];
    fill(&r, layers, *state);
    layers[1].choice[0].bytes = layers[1].choice[1].bytes = 0;
    assert_int_equal(oq_recipe_solve(&r, 700), OQ_OK);
    assert_int_equal(layers[1].chosen, 2);
    assert_int_equal(oq_recipe_bytes(&r), 700);
}

static oq_status run(oq_env *env, const char *command, const char *const *pairs, oq_json **json)
{
    oq_options *o = NULL;
    oq_report *report = NULL;
    oq_env_clear(env);
    assert_int_equal(oq_options_new(env, command, &o), OQ_OK);
    if (strcmp(command, "quantize") == 0) assert_int_equal(oq_options_add_argument(o, MODEL), OQ_OK);
    for (; *pairs; pairs += 2) assert_int_equal(oq_options_set(o, pairs[0], pairs[1]), OQ_OK);
    const oq_status st = oq_run(o, &report);
    if (st == OQ_OK) {
        const char *text = oq_report_json(report);
        assert_int_equal(oq_json_parse(env, text, strlen(text), "report", json), OQ_OK);
    }
    oq_report_free(report);
    oq_options_free(o);
    return st;
}

#ifndef OMNIQ_SANITIZED /* it takes some three hundred forwards */
/* On prompts that it was not searched on, the recipe predicts better than every method that fits its budget. */
static void test_better_than_uniform(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "recipe")), file[512];
    oq_json *json = NULL, *written = NULL;
    snprintf(file, sizeof file, "%s/recipe.json", root);
    const char *const search[] = {"model",   MODEL,
                                  "prompt",  "a large red ball to the left of a small blue star",
                                  "prompt",  "a small striped green triangle above a large yellow heart",
                                  "steps",   "4",
                                  "budget",  "4.51bpw",
                                  "methods", "nvfp4,int3,int4,int8",
                                  "output",  file,
                                  NULL};
    if (run(env, "recipe", search, &json) != OQ_OK) fail_msg("%s", oq_env_error(env));
    const double ours = oq_json_real(oq_json_get(json, "prediction_snr_db"), 0);
    const int64_t budget = oq_json_int(oq_json_get(json, "budget_bytes"), 0);
    const oq_json *uniform = oq_json_get(json, "uniform"), *held = oq_json_get(json, "held_out_prompts");
    assert_true(oq_json_int(oq_json_get(json, "bytes"), 0) <= budget);
    assert_true(oq_json_bool(oq_json_get(json, "beats_uniform"), false));
    assert_int_equal(oq_json_size(held), 1);
    assert_string_equal(oq_json_string(oq_json_at(held, 0)), search[5]);
    int compared = 0;
    for (size_t i = 0; i < oq_json_size(uniform); i++) {
        const oq_json *u = oq_json_at(uniform, i);
        const double db = oq_json_real(oq_json_get(u, "prediction_snr_db"), 0);
        const int64_t bytes = oq_json_int(oq_json_get(u, "bytes"), 0);
        print_message("%s: %.2f dB, the recipe %.2f\n", oq_json_string(oq_json_get(u, "method")), db, ours);
        assert_true(bytes > budget || ours > db + 0.8);
        compared += bytes <= budget;
    }
    assert_int_equal(compared, 3); /* nvfp4, int3, int4 */
    assert_int_equal(run(env, "plan", (const char *const[]){"model", MODEL, "recipe", file, NULL}, &written),
                     OQ_OK);
    const oq_json *layers =
        oq_json_get(oq_json_get(oq_json_get(written, "components"), "transformer"), "layers");
    size_t quantized = 0;
    for (size_t i = 0; i < oq_json_size(layers); i++)
        quantized += oq_json_bool(oq_json_get(oq_json_at(layers, i), "quantized"), false);
    assert_true(quantized > 40);
    oq_json_free(written);
    oq_json_free(json);
    free(root);
}
#endif

/* Layers of several formats in one file, some plain: what is written is what the recipe says. */
static void test_recipe_is_written(void **state)
{
    static const char recipe[] =
        "{\"transformer\": {\"method\": \"int8\"}, "
        "\"transformer.layers.0.attention.to_qkv\": {\"method\": \"w4a16\", \"group_size\": 64}, "
        "\"transformer.layers.1.feed_forward.w2\": null}";
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "recipe-written")), file[512], out[512];
    oq_json *json = NULL;
    snprintf(file, sizeof file, "%s/recipe.json", root);
    snprintf(out, sizeof out, "%s/toybox", root);
    scratch_text(root, "recipe.json", recipe);
    const oq_status st =
        run(env, "quantize", (const char *const[]){"recipe", file, "output", out, NULL}, &json);
    if (st != OQ_OK) fail_msg("%s", oq_env_error(env));
    const oq_json *dit = oq_json_get(oq_json_get(json, "components"), "transformer");
    const oq_json *layers = oq_json_get(dit, "layers");
    size_t n4 = 0, n8 = 0;
    assert_string_equal(oq_json_string(oq_json_get(dit, "layout")), "compressed-tensors");
    for (size_t i = 0; i < oq_json_size(layers); i++) {
        const char *format = oq_json_string(oq_json_get(oq_json_at(layers, i), "format"));
        n4 += strcmp(format, "int4_g64") == 0, n8 += strcmp(format, "int8_channel") == 0;
    }
    assert_int_equal(n4, 3);
    assert_int_equal(n8, 94);
    oq_json_free(json);
    free(root);
}

static void test_refusals(void **state)
{
    oq_env *env = *state;
    oq_json *json = NULL;
    const struct {
        const char *option, *value;
        oq_status status;
        const char *text;
    } rows[] = {
        {"budget", "many", OQ_E_ARG, "--budget 'many' is not bits a weight (4.5bpw) or a size of all layers"},
        {"budget", "-4bpw", OQ_E_ARG, "--budget '-4bpw' is not"},
        {"methods", "bf16", OQ_E_ARG, "--methods 'bf16' names no method"},
        {"methods", "nvfp5", OQ_E_CONFIG, "--methods: unknown quantization method 'nvfp5'"},
        {"methods", "gptq", OQ_E_ARG,
         "--methods: 'gptq' reads checkpoints, it quantizes nothing while loading"},
        {"methods", ",,,", OQ_E_ARG, "--methods ',,,': word 1 is empty; want names with commas between them"},
        {"methods", "int8,", OQ_E_ARG, "--methods 'int8,': word 2 is empty"},
        {"output", MODEL "/model_index.json", OQ_E_ARG, "model_index.json: exists; --force replaces it"},
        {"output", MODEL, OQ_E_IO, "toybox: is a folder"},
        {"output", "no/such/folder/r.json", OQ_E_NOTFOUND, "no/such/folder"},
        {"output", "-", OQ_E_ARG, "without --output the recipe ends the report already"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows;
         i++) { /* before anything is opened, let alone measured */
        const char *const pairs[] = {"model",       "no/model", "prompt", "x",      rows[i].option,
                                     rows[i].value, "width",    "64",     "height", "64",
                                     "steps",       "1",        NULL};
        assert_int_equal(run(env, "recipe", pairs, &json), rows[i].status);
        if (!strstr(oq_env_error(env), rows[i].text)) fail_msg("%s", oq_env_error(env));
    }
    assert_int_equal(run(env, "recipe", (const char *const[]){"model", MODEL, NULL}, &json), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "recipe measures on prompts"));
    assert_int_equal(run(env, "quantize",
                         (const char *const[]){"recipe", "no/file.json", "output", "/nowhere/x", NULL},
                         &json),
                     OQ_E_NOTFOUND);
    assert_non_null(strstr(oq_env_error(env), "--recipe 'no/file.json' is no file and no recipe of z-image"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_solve, setup, teardown),
        cmocka_unit_test_setup_teardown(test_solve_gaps, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(test_recipe_is_written, setup, teardown),
#ifndef OMNIQ_SANITIZED
        cmocka_unit_test_setup_teardown(test_better_than_uniform, setup, teardown),
#endif
    };
    return cmocka_run_group_tests_name("recipe", tests, NULL, NULL);
}
