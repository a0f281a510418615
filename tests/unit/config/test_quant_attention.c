/* test_quant_attention.c -- attention options in every spelling and place of a configuration, and the policy they make. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "config/quant_attention.h"
#include "quant/attention_policy.h"

#include <stdio.h>
#include <string.h>

static const char *const components[] = {"transformer", "transformer_2", "text_encoder", "vae"};

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

static oq_quant_config *parse(oq_env *env, const char *text)
{
    oq_quant_config *config = NULL;
    if (oq_quant_config_parse(env, text, components, OQ_COUNT(components), &config) != OQ_OK)
        fail_msg("%s: %s", text, oq_env_error(env));
    return config;
}

static oq_status read_policy(oq_env *env, oq_arena *arena, const char *text, const char *component,
                             oq_attention_policy *out)
{
    oq_quant_config *config = NULL;
    oq_status st = oq_quant_config_parse(env, text, components, OQ_COUNT(components), &config);
    if (st == OQ_OK) st = oq_attention_policy_read(env, arena, config, component, out);
    oq_quant_config_free(config);
    return st;
}

/* ---- where the options may stand ----------------------------------------------------------------------- */

typedef struct form {
    const char *text;
    oq_quant_form weights;
    const char *method;                      /* of the single form; NULL: another form */
    const char *transformer, *transformer_2; /* precision of each; NULL: plain */
} form;

static const form forms[] = {
    {"{\"method\":\"fp8\",\"attention\":{\"dtype\":\"mxfp8\"}}", OQ_QUANT_SINGLE, "fp8", "mxfp8", "mxfp8"},
    {"{\"method\":\"fp8\",\"attention\":\"fp8\"}", OQ_QUANT_SINGLE, "fp8", "fp8", "fp8"},
    {"{\"attention\":{\"dtype\":\"fp8\"}}", OQ_QUANT_NONE, NULL, "fp8", "fp8"},
    {"{\"diffusion_kv_cache_dtype\":\"mxfp4\"}", OQ_QUANT_NONE, NULL, "mxfp4", "mxfp4"},
    {"{\"kv_cache_dtype\":\"FP8\"}", OQ_QUANT_NONE, NULL, "fp8", "fp8"},
    {"{\"quantization_config\":{\"method\":\"int8\"},\"diffusion_kv_cache_dtype\":\"fp8\"}", OQ_QUANT_SINGLE,
     "int8", "fp8", "fp8"},
    {"{\"quantization_config\":{\"method\":\"int8\",\"attention\":\"fp8\"}}", OQ_QUANT_SINGLE, "int8", "fp8",
     "fp8"},
    {"{\"transformer\":{\"method\":\"fp8\",\"attention\":\"fp8\"},\"text_encoder\":null}",
     OQ_QUANT_COMPONENTS, NULL, "fp8", NULL},
    {"{\"transformer\":{\"attention\":\"fp8\"},\"transformer_2\":{\"attention\":\"mxfp8\"}}", OQ_QUANT_NONE,
     NULL, "fp8", "mxfp8"},
    {"{\"attention\":\"fp8\",\"transformer_2\":{\"method\":\"fp8\",\"attention\":\"mxfp4\"}}",
     OQ_QUANT_COMPONENTS, NULL, "fp8", "mxfp4"},
    {"{\"default\":{\"method\":\"fp8\",\"attention\":\"fp8\"}}", OQ_QUANT_COMPONENTS, NULL, "fp8", "fp8"},
    {"{\"method\":\"fp8\"}", OQ_QUANT_SINGLE, "fp8", NULL, NULL},
    {"attention:\n  dtype: fp8\n  skip_steps: 0,1\nmethod: int8\n", OQ_QUANT_SINGLE, "int8", "fp8", "fp8"},
    {"diffusion_kv_cache_dtype: mxfp8\ndiffusion_attention_config:\n  per_role:\n    self:\n"
     "      backend: FLASH_ATTN\n",
     OQ_QUANT_NONE, NULL, "mxfp8", "mxfp8"},
};

static void expect_precision(oq_env *env, oq_arena *arena, const oq_quant_config *config, const form *f,
                             const char *component, const char *want)
{
    oq_attention_policy p;
    if (oq_attention_policy_read(env, arena, config, component, &p) != OQ_OK)
        fail_msg("%s: %s", f->text, oq_env_error(env));
    const char *got = oq_attention_precision_name(p.precision);
    if (strcmp(got, want ? want : "plain") != 0) fail_msg("%s: %s is %s", f->text, component, got);
}

static void expect_form(oq_env *env, const oq_quant_config *config, const form *f)
{
    oq_arena arena;
    oq_arena_init(&arena, env);
    assert_int_equal(config->form, f->weights);
    if (f->method) assert_string_equal(config->single.method, f->method);
    expect_precision(env, &arena, config, f, "transformer", f->transformer);
    expect_precision(env, &arena, config, f, "transformer_2", f->transformer_2);
    oq_arena_deinit(&arena);
}

/* Each form, and each form again after it was printed. */
static void test_forms(void **state)
{
    oq_env *env = *state;
    for (size_t i = 0; i < OQ_COUNT(forms); i++) {
        oq_quant_config *config = parse(env, forms[i].text), *again = NULL;
        expect_form(env, config, &forms[i]);
        oq_json *json = oq_quant_config_to_json(config);
        assert_int_equal(oq_quant_config_from_json(env, json, components, OQ_COUNT(components), &again),
                         OQ_OK);
        expect_form(env, again, &forms[i]);
        oq_json_free(json);
        oq_quant_config_free(again);
        oq_quant_config_free(config);
    }
}

/* ---- what the options mean ----------------------------------------------------------------------------- */

static void test_every_option(void **state)
{
    oq_env *env = *state;
    oq_arena arena;
    oq_attention_policy p;
    oq_arena_init(&arena, env);
    assert_int_equal(
        read_policy(env, &arena,
                    "{\"attention\":{\"dtype\":\"mxfp4\",\"skip_steps\":\"0,1,38-39\",\"skip_layers\":[0,"
                    "39],\"sparsity\":0.7,\"start_step\":2,\"end_step\":30,\"sparse_skip_layers\":\"3\"}}",
                    "transformer", &p),
        OQ_OK);
    assert_int_equal(p.precision, OQ_ATTENTION_MXFP4);
    assert_true(oq_selector_has(&p.skip_steps, 38) && !oq_selector_has(&p.skip_steps, 2));
    assert_true(oq_selector_has(&p.skip_layers, 39) && !oq_selector_has(&p.skip_layers, 1));
    assert_true(p.sparsity == 0.7 && p.start_step == 2 && p.end_step == 30);
    assert_true(oq_selector_has(&p.sparse_skip_layers, 3));
    assert_int_equal(
        read_policy(env, &arena,
                    "{\"diffusion_attention_config\":{\"per_role\":{\"self\":{\"backend\":\"RAINFUSION_"
                    "ATTN\"}}},\"diffusion_kv_cache_dtype\":\"fp8\"}",
                    "transformer", &p),
        OQ_OK);
    assert_true(p.sparsity == 0.8 && p.end_step == INT64_MAX); /* upstream's default */
    static const char *const plain[] = {"null", "\"auto\"", "\"float\"", "\"none\""};
    for (size_t i = 0; i < OQ_COUNT(plain); i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"diffusion_kv_cache_dtype\":%s}", plain[i]);
        assert_int_equal(read_policy(env, &arena, text, "transformer", &p), OQ_OK);
        assert_false(oq_attention_policy_active(&p));
        snprintf(text, sizeof text,
                 "{\"diffusion_kv_cache_dtype\":%s,\"diffusion_kv_cache_skip_steps\":\"0\"}", plain[i]);
        assert_int_equal(read_policy(env, &arena, text, "transformer", &p), OQ_E_CONFIG);
        assert_non_null(strstr(oq_env_error(env), "skip_steps is without effect, because"));
        oq_env_clear(env);
    }
    /* What a component leaves plain takes nothing from the skips of all the others. */
    assert_int_equal(read_policy(env, &arena,
                                 "{\"attention\":{\"dtype\":\"fp8\",\"skip_steps\":\"0\"},"
                                 "\"transformer_2\":{\"attention\":\"float\"}}",
                                 "transformer_2", &p),
                     OQ_OK);
    assert_false(oq_attention_policy_active(&p));
    oq_arena_deinit(&arena);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"{\"attention\":{\"dtype\":\"int4\"}}", "attention: dtype 'int4' is not one of fp8, mxfp8, mxfp4"},
        {"{\"attention\":{\"dtype\":8}}", "dtype must be a precision's name, not"},
        {"{\"attention\":7}", "'attention' must be a mapping or a precision's name"},
        {"{\"attention\":{\"dtyp\":\"fp8\"}}", "did you mean 'dtype'?"},
        {"{\"attention\":{\"dtype\":\"fp8\"},\"kv_cache_dtype\":\"mxfp8\"}", "'dtype' is given twice"},
        {"{\"attention\":{\"skip_steps\":\"0\"}}", "skip_steps is without effect, because no dtype is given"},
        {"{\"attention\":{\"dtype\":\"float\",\"skip_steps\":\"0\"}}",
         "skip_steps is without effect, because dtype 'float' leaves attention as it is"},
        {"{\"attention\":{\"dtype\":\"auto\",\"skip_layers\":[1]}}",
         "skip_layers is without effect, because dtype 'auto'"},
        {"{\"attention\":{\"dtype\":\"fp8\",\"start_step\":1}}",
         "start_step is without effect, because no sparsity"},
        {"{\"attention\":{\"dtype\":\"fp8\",\"skip_steps\":\"5-3\"}}",
         "attention: skip_steps: range '5-3' runs backwards"},
        {"{\"attention\":{\"dtype\":\"fp8\",\"skip_layers\":[-1]}}", "attention: skip_layers"},
        {"{\"attention\":{\"sparsity\":1}}", "sparsity must be a number from 0 to below 1"},
        {"{\"attention\":{\"sparsity\":0.5,\"start_step\":9,\"end_step\":3}}",
         "end_step 3 lies before start_step 9"},
        {"{\"attention\":{\"sparsity\":0.5,\"backend\":\"FLASH_ATTN\"}}",
         "backend 'FLASH_ATTN' is dense, but sparsity is 0.5"},
        {"{\"attention\":{\"backend\":\"SAGE_ATTN\"}}", "backend 'SAGE_ATTN' is not known here"},
        {"{\"diffusion_attention_config\":{\"per_role\":{\"cross\":{\"backend\":\"FLASH_ATTN\"}}}}",
         "role 'cross'"},
        {"{\"diffusion_attention_config\":{\"backend\":\"FLASH_ATTN\"}}", "'per_role' and nothing else"},
    };
    oq_env *env = *state;
    for (size_t i = 0; i < OQ_COUNT(bad); i++) {
        oq_arena arena;
        oq_attention_policy p;
        oq_arena_init(&arena, env);
        const oq_status st = read_policy(env, &arena, bad[i].text, "transformer", &p);
        if (st != OQ_E_CONFIG || !strstr(oq_env_error(env), bad[i].words))
            fail_msg("%s: %s, %s", bad[i].text, oq_status_name(st), oq_env_error(env));
        oq_env_clear(env);
        oq_arena_deinit(&arena);
    }
}

static void test_names_and_steps(void **state)
{
    oq_env *env = *state;
    const char *const eligible[] = {"transformer"};
    oq_quant_config *config = parse(env, "{\"vae\":{\"attention\":\"fp8\"}}");
    assert_int_equal(oq_attention_policy_check_names(env, config, eligible, 1), OQ_E_CONFIG);
    assert_non_null(strstr(oq_env_error(env), "component 'vae' takes no attention quantization"));
    oq_env_clear(env);
    oq_quant_config_free(config);
    oq_arena arena;
    oq_attention_policy p;
    oq_arena_init(&arena, env);
    assert_int_equal(read_policy(env, &arena, "{\"attention\":{\"dtype\":\"fp8\",\"skip_steps\":\"0,9\"}}",
                                 "transformer", &p),
                     OQ_OK);
    assert_int_equal(oq_attention_policy_check_steps(env, &p, "transformer", 10), OQ_OK);
    assert_int_equal(oq_attention_policy_check_steps(env, &p, "transformer", 9), OQ_E_CONFIG);
    assert_string_equal(oq_env_error(env),
                        "attention of 'transformer': skip_steps selects step 9, this run has steps 0 to 8");
    oq_env_clear(env);
    oq_arena_deinit(&arena);
}

static void test_layer_index(void **state)
{
    (void)state;
    assert_int_equal(oq_attention_layer_index("layers.11.attention"), 11);
    assert_int_equal(oq_attention_layer_index("blocks.0.attn1"), 0);
    assert_int_equal(oq_attention_layer_index("transformer_blocks.7.attn.2"), 7);
    assert_int_equal(oq_attention_layer_index("attn1.layer2"), -1);
    assert_int_equal(oq_attention_layer_index(""), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forms),       cmocka_unit_test(test_every_option),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_names_and_steps),
        cmocka_unit_test(test_layer_index),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
