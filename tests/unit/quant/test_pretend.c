/* test_pretend.c -- made-up weights of declared checkpoints (dummy loading): what compressed-tensors' groups and Quark's words make
 * of a layer. ModelOpt's algorithms are in test_resolve_files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/float4.h"
#include "quant/method.h"

#include <stdio.h>
#include <string.h>

/* The scheme of layer "blocks.0.q" of 128 columns. */
static oq_status pretend(oq_env *env, const char *method, const char *options, oq_scheme *out)
{
    static const char *const part = "blocks.0.q";
    static const int64_t rows = 64;
    const oq_layer_desc layer = {.component = "transformer",
                                 .name = part,
                                 .parts = &part,
                                 .part_n = &rows,
                                 .n_parts = 1,
                                 .n = rows,
                                 .k = 128};
    oq_json *json = NULL, *held = oq_json_new_array();
    oq_method_args *args = NULL;
    oq_arena arena;
    oq_arena_init(&arena, env);
    *out = (oq_scheme){0};
    assert_int_equal(oq_json_parse(env, options, strlen(options), "t", &json), OQ_OK);
    const oq_method *m = oq_method_find(env, method);
    assert_true(m && m->pretend);
    oq_status st = oq_method_args_parse(env, "t", &arena, held, m, json, false, &args);
    if (st == OQ_OK) st = m->pretend(env, args, &layer, out);
    oq_json_free(json);
    oq_json_free(held);
    oq_arena_deinit(&arena);
    return st;
}

typedef struct row {
    const char *words, *inputs; /* inputs NULL: none */
    const oq_format *weight;
    const oq_dtype *act;
    oq_act_scale scale;
} row;

static void expect(oq_env *env, const char *method, const char *options, const row *r)
{
    oq_scheme s;
    if (pretend(env, method, options, &s) != OQ_OK) fail_msg("%s: %s", options, oq_env_error(env));
    assert_ptr_equal(s.weight, r->weight);
    assert_ptr_equal(s.act, r->act);
    assert_int_equal(s.act_scale, r->scale);
}

static void test_groups(void **state)
{
    static const row rows[] = {
        {"8, \"type\": \"float\", \"strategy\": \"channel\"", "8, \"type\": \"float\"",
         &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
        {"8, \"type\": \"float\", \"strategy\": \"block\"", "8, \"type\": \"float\"",
         &oq_format_fp8_e4m3_block128, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_GROUP},
        {"8, \"type\": \"int\", \"strategy\": \"channel\"", "8, \"type\": \"int\"", &oq_format_int8_channel,
         &oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN},
        {"4, \"type\": \"int\", \"group_size\": 32, \"symmetric\": false", NULL, &oq_format_int4z_g32, NULL,
         OQ_ACT_NONE},
        {"4, \"type\": \"float\", \"group_size\": 16", "4, \"type\": \"float\"", &oq_format_nvfp4_inverse,
         &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_NVFP4},
        {"4, \"type\": \"float\", \"group_size\": 32", "4, \"type\": \"float\"", &oq_format_mxfp4,
         &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_EVEN},
        {"8, \"type\": \"float\", \"group_size\": 32", NULL, &oq_format_mxfp8, NULL, OQ_ACT_NONE},
        {"4, \"type\": \"int\", \"group_size\": 96", NULL, NULL, NULL,
         OQ_ACT_NONE}, /* 128 columns stay plain */
    };
    oq_env *env = *state;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char text[512], inputs[96] = "null";
        if (rows[i].inputs) snprintf(inputs, sizeof inputs, "{\"num_bits\": %s}", rows[i].inputs);
        snprintf(
            text, sizeof text,
            "{\"config_groups\": {\"a\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, "
            "\"type\": \"int\", "
            "\"strategy\": \"tensor\"}}, \"b\": {\"targets\": [\"re:.*q\"], \"weights\": {\"num_bits\": %s}, "
            "\"input_activations\": %s}}}",
            rows[i].words, inputs);
        expect(env, "compressed-tensors", text, &rows[i]);
    }
    oq_scheme s;
    assert_int_equal(pretend(env, "compressed-tensors",
                             "{\"config_groups\": {\"a\": {\"targets\": [\"Linear\"], \"weights\": "
                             "{\"num_bits\": 6, \"type\": "
                             "\"float\", \"strategy\": \"channel\"}}}}",
                             &s),
                     OQ_E_UNSUPPORTED);
    assert_string_equal(
        oq_env_error(env),
        "layer 'blocks.0.q': group 'a' has weights of 6 bits that dummy loading does not make up");
    oq_env_clear(env);
}

static void test_quark(void **state)
{
    static const row rows[] = {
        {"\"weight\": {\"dtype\": \"fp8_e4m3\", \"qscheme\": \"per_tensor\"}, \"input_tensors\": {\"dtype\": "
         "\"fp8_e4m3\"}",
         NULL, &oq_format_fp8_e4m3_tensor, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
        {"\"weight\": {\"dtype\": \"uint4\", \"qscheme\": \"per_group\", \"group_size\": 32, \"symmetric\": "
         "false}",
         NULL, &oq_format_int4z_g32, NULL, OQ_ACT_NONE},
        {"\"weight\": {\"dtype\": \"fp4\", \"qscheme\": \"per_group\", \"group_size\": 32}, "
         "\"input_tensors\": {\"dtype\": "
         "\"fp4\", \"scale_calculation_mode\": \"ceil\"}",
         NULL, &oq_format_mxfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_CEIL},
    };
    oq_env *env = *state;
    oq_scheme s;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char text[512];
        snprintf(text, sizeof text,
                 "{\"global_quant_config\": {\"weight\": {\"dtype\": \"int8\", \"qscheme\": "
                 "\"per_tensor\"}}, \"layer_quant_config\": {\"*.q\": {%s}}}",
                 rows[i].words);
        expect(env, "quark", text, &rows[i]);
    }
    assert_int_equal(pretend(env, "quark",
                             "{\"svd_rank\": 8, \"global_quant_config\": {\"weight\": {\"dtype\": \"int8\", "
                             "\"qscheme\": \"per_tensor\"}}}",
                             &s),
                     OQ_E_UNSUPPORTED);
    oq_env_clear(env);
}

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_groups), cmocka_unit_test(test_quark)};
    return cmocka_run_group_tests_name("made-up weights", tests, setup, teardown);
}
