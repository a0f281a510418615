/* test_recipe.c -- the assignment within a budget: exact bytes, the best trade first; and on the demo model: nearer pictures than
 * every single method at equal bytes, for prompts that were held out, and taken by plan and quantize; recipes by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/recipe.h"

#include "support/env_setup.h"
#include "support/quality_budgets.h"
#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

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

#ifndef OMNIQ_SANITIZED /* a thousand forwards */
/* On the six prompts of docs/QUALITY.md, under other noise, pictures are nearer the plain model's than those of every method
 * that fits the same bytes. QUALITY.md has the long version: more methods, prompts, steps and budgets. */
static void test_better_than_uniform(void **state)
{
    static const char methods[] = "int2-g32,int3,nf4,q4_0,nvfp4,q4_1,q5_0";
    static const struct {
        const char *budget;
        double margin_db;
    } rows[] = {{"3.51bpw", 1}, {"4.51bpw", 0.5}, {"5.01bpw", 1}};
    oq_env *env = *state;
    oq_options *o = quality_budget_options(env, methods, 3, "4");
    oq_recipe r = {.env = env, .options = o};
    oq_recipe_outcome uniform[OQ_RECIPE_METHODS] = {0};
    if (oq_recipe_begin(&r) != OQ_OK || oq_recipe_look(&r) != OQ_OK) fail_msg("%s", oq_env_error(env));
    quality_budget_uniforms(&r, uniform);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const quality_budget q = quality_budget_run(&r, uniform, rows[i].budget);
        print_message("%s: the recipe %.2f dB, %s alone %.2f\n", rows[i].budget, q.recipe.mean_db,
                      r.method[q.best], uniform[q.best].mean_db);
        assert_true(q.best >= 0);
        assert_true(q.recipe.mean_db > uniform[q.best].mean_db + rows[i].margin_db);
    }
    oq_recipe_end(&r);
    oq_options_free(o);
}
#endif

/* The command: a small search, its report and its file; the same again gives the same file. */
static void test_command(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "recipe")), file[512], again[512];
    oq_json *json = NULL, *dry = NULL, *other = NULL, *planned = NULL;
    snprintf(file, sizeof file, "%s/recipe.json", root);
    snprintf(again, sizeof again, "%s/again.json", root);
    const char *search[] = {"model",      MODEL,
                            "prompt",     "a large red ball to the left of a small blue star",
                            "prompt",     "a small striped green triangle above a large yellow heart",
                            "steps",      "2",
                            "width",      "64",
                            "height",     "64",
                            "budget",     "4.51bpw",
                            "methods",    "nvfp4,int3,int4-g32,q8_0",
                            "measure-by", "forwards",
                            "output",     file,
                            "dry-run",    "true",
                            NULL};
    if (run(env, "recipe", search, &dry) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_false(oq_file_exists(file));
    search[20] = NULL;
    if (run(env, "recipe", search, &json) != OQ_OK) fail_msg("%s", oq_env_error(env));
    search[19] = again;
    assert_int_equal(run(env, "recipe", search, &other), OQ_OK);
    assert_true(oq_json_equal(oq_json_get(json, "recipe"), oq_json_get(other, "recipe")));
    const oq_json *uniform = oq_json_get(json, "uniform"), *sizes = oq_json_get(dry, "uniform");
    const oq_json *held = oq_json_get(json, "held_out_prompts");
    assert_int_equal(oq_json_size(uniform), 4);
    for (size_t i = 0; i < 4; i++) /* --dry-run tells the sizes that there are */
        assert_int_equal(oq_json_int(oq_json_get(oq_json_at(uniform, i), "bytes"), -1),
                         oq_json_int(oq_json_get(oq_json_at(sizes, i), "bytes"), 0));
    assert_int_equal(oq_json_size(sizes), 5);
    assert_true(oq_json_int(oq_json_get(json, "bytes"), 0) <=
                oq_json_int(oq_json_get(dry, "budget_bytes"), 0));
    assert_true(oq_json_real(oq_json_get(json, "psnr_db"), 0) > 10);
    assert_int_equal(oq_json_size(held), 1);
    assert_string_equal(oq_json_string(oq_json_at(held, 0)), search[5]);
    assert_int_equal(run(env, "plan", (const char *const[]){"model", MODEL, "recipe", file, NULL}, &planned),
                     OQ_OK);
    const oq_json *layers =
        oq_json_get(oq_json_get(oq_json_get(planned, "components"), "transformer"), "layers");
    size_t quantized = 0;
    for (size_t i = 0; i < oq_json_size(layers); i++)
        quantized += oq_json_bool(oq_json_get(oq_json_at(layers, i), "quantized"), false);
    assert_true(quantized > 40);
    oq_json_free(planned);
    oq_json_free(other);
    oq_json_free(json);
    oq_json_free(dry);
    free(root);
}

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

static void expect_refused(oq_env *env, const char *model, const char *option, const char *value,
                           oq_status status, const char *text)
{
    const char *const pairs[] = {"model", model,    "prompt", "x",     option, value, "width",
                                 "64",    "height", "64",     "steps", "1",    NULL};
    oq_json *json = NULL;
    assert_int_equal(run(env, "recipe", pairs, &json), status);
    if (!strstr(oq_env_error(env), text)) fail_msg("%s", oq_env_error(env));
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
        {"methods", "int8,fp8,int8", OQ_E_ARG, "--methods 'int8,fp8,int8' names 'int8' twice"},
        {"methods", "int5", OQ_E_CONFIG, "int5"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows;
         i++) /* before anything is opened, let alone measured */
        expect_refused(env, "no/model", rows[i].option, rows[i].value, rows[i].status, rows[i].text);
    expect_refused(env, MODEL, "budget", "2bpw", OQ_E_ARG, "bits a weight): these methods need at least");
    expect_refused(env, MODEL, "components", "vae", OQ_E_CONFIG,
                   "component 'vae' (AutoencoderKL) is never quantized");
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
        cmocka_unit_test_setup_teardown(test_solve, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_solve_gaps, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_recipe_is_written, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_command, env_setup, env_teardown),
#ifndef OMNIQ_SANITIZED
        cmocka_unit_test_setup_teardown(test_better_than_uniform, env_setup, env_teardown),
#endif
    };
    return cmocka_run_group_tests_name("recipe", tests, NULL, NULL);
}
