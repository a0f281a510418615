/* test_method.c -- methods: names, option rows, checks, what they choose; methods of the calling program; the lists
 * against the files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "base/names.h"
#include "quant/dialect.h"
#include "quant/method_modelopt.h"
#include "quant/method_mxfp4.h"

#include <stdio.h>
#include <string.h>

typedef struct fixture {
    oq_env *env;
    oq_arena arena;
    oq_json *held;
} fixture;

static int setup(void **state)
{
    static fixture f;
    f = (fixture){0};
    if (oq_env_new(NULL, &f.env) != OQ_OK) return -1;
    oq_arena_init(&f.arena, f.env);
    f.held = oq_json_new_array();
    *state = &f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    oq_json_free(f->held);
    oq_arena_deinit(&f->arena);
    oq_env_free(f->env);
    return 0;
}

static oq_status parse(fixture *f, const char *method, const char *json, bool serialized,
                       oq_method_args **out)
{
    oq_json *options = NULL;
    const oq_method *m = oq_method_find(f->env, method);
    if (!m) fail_msg("no method '%s'", method);
    assert_int_equal(oq_json_parse(f->env, json, strlen(json), "t", &options), OQ_OK);
    const oq_status st =
        oq_method_args_parse(f->env, "quantization_config", &f->arena, f->held, m, options, serialized, out);
    oq_json_free(options);
    return st;
}

static const oq_method_args *accept(fixture *f, const char *method, const char *json, bool serialized)
{
    oq_method_args *args = NULL;
    if (parse(f, method, json, serialized, &args) != OQ_OK)
        fail_msg("%s %s: %s", method, json, oq_env_error(f->env));
    assert_int_equal(args->serialized, serialized);
    return args;
}

static void refuse(fixture *f, const char *method, const char *json, bool serialized, const char *words)
{
    oq_method_args *args = NULL;
    const oq_status st = parse(f, method, json, serialized, &args);
    if (st != OQ_E_CONFIG) fail_msg("%s %s: %s", method, json, oq_status_name(st));
    assert_null(args);
    if (!strstr(oq_env_error(f->env), words) || !strstr(oq_env_error(f->env), method))
        fail_msg("%s %s: '%s' does not hold '%s'", method, json, oq_env_error(f->env), words);
    oq_env_clear(f->env);
}

static const char *text(const oq_method_args *args, const char *key)
{
    return oq_json_string(oq_json_get(args->options, key));
}

/* ---- lists --------------------------------------------------------------------------------------------- */

/* 26: at least twenty methods, the well-known ones among them; none shares a spelling with another. */
static void test_method_list(void **state)
{
    static const char *const known[] = {"fp8", "awq", "gptq", "bitsandbytes", "modelopt"};
    size_t n = 0;
    (void)state;
    for (const oq_method *const *m = oq_method_list; *m; m++, n++) {
        assert_true((*m)->help && *(*m)->help);
        assert_ptr_equal(oq_method_find(NULL, (*m)->name), *m);
        char alias[64];
        for (size_t i = 0; oq_csv_word((*m)->aliases, i, alias, sizeof alias); i++)
            assert_ptr_equal(oq_method_find(NULL, alias), *m);
        assert_false(oq_name_equal((*m)->name, "none"));
        assert_true((*m)->online || (*m)->serialized);
        if (!(*m)->missing)
            assert_true(((*m)->online && (*m)->choose) || oq_dialect_reads(*m));
        else
            assert_string_equal((*m)->missing, "not in this build yet");
        assert_non_null((*m)->options);
        for (const oq_method_option *row = (*m)->options; row->name; row++) {
            assert_true(row->help && *row->help);
            assert_int_equal(row->choices != NULL, row->type == OQ_METHOD_CHOICE);
            for (const oq_method_option *other = row + 1; other->name; other++)
                assert_false(oq_name_equal(row->name, other->name));
        }
    }
    assert_true(n >= 20);
    for (size_t i = 0; i < OQ_COUNT(known); i++) assert_non_null(oq_method_find(NULL, known[i]));
    assert_null(oq_method_find(NULL, "none"));
}

/* Defaults are values that the rows themselves accept. */
static void test_defaults(void **state)
{
    fixture *f = *state;
    for (const oq_method *const *m = oq_method_list; *m; m++) {
        if (strcmp((*m)->name, "inc") == 0) continue; /* has options without which it means nothing */
        const oq_method_args *args = accept(f, (*m)->name, "{}", false);
        for (const oq_method_option *row = (*m)->options; row->name; row++)
            assert_int_equal(oq_json_get(args->options, row->name) != NULL, row->fallback != NULL);
        oq_json *again = NULL;
        assert_int_equal(oq_method_options_read(f->env, "defaults", *m, args->options, true, &again), OQ_OK);
        assert_true(oq_json_equal(again, args->options));
        oq_json_free(again);
    }
}

static void test_dialect_list(void **state)
{
    (void)state;
    for (const oq_dialect *const *d = oq_dialect_list; *d; d++) {
        assert_true((*d)->help && *(*d)->help);
        assert_true((*d)->method && (*d)->method->serialized && !(*d)->method->missing);
        assert_true((*d)->detect && (*d)->read && (*d)->locate);
        for (const oq_dialect *const *other = d + 1; *other; other++)
            assert_string_not_equal((*d)->name, (*other)->name);
    }
}

/* Every method_<x>.c (dialect_<x>.c) is named in its list, and the list names nothing without a file. */
static void check_files(oq_env *env, const char *prefix, const char *list_name, size_t n_rows, size_t n_extra)
{
    static const char *const helpers[] = {"method_list.c", "method_registry.c", "dialect_list.c"};
    char **names = NULL, *list = NULL, path[1024];
    size_t n = 0, n_bytes = 0, n_files = 0;
    snprintf(path, sizeof path, "%s/src/quant/%s", OMNIQ_SOURCE_DIR, list_name);
    assert_int_equal(oq_file_read(env, path, 1 << 20, &list, &n_bytes), OQ_OK);
    assert_int_equal(oq_dir_list(env, OMNIQ_SOURCE_DIR "/src/quant", &names, &n), OQ_OK);
    for (size_t i = 0; i < n; i++) {
        const size_t length = strlen(names[i]);
        bool helper =
            strncmp(names[i], prefix, strlen(prefix)) != 0 || strcmp(names[i] + length - 2, ".c") != 0;
        for (size_t j = 0; j < OQ_COUNT(helpers); j++) helper |= strcmp(names[i], helpers[j]) == 0;
        if (!helper) {
            char symbol[160];
            snprintf(symbol, sizeof symbol, "&oq_%.*s,", (int)(length - 2), names[i]);
            if (!strstr(list, symbol)) fail_msg("%s has no line in %s", names[i], list_name);
            n_files++;
        }
        oq_free(env, names[i]);
    }
    oq_free(env, names);
    oq_free(env, list);
    assert_int_equal(n_files + n_extra, n_rows);
}

static void test_lists_and_files(void **state)
{
    fixture *f = *state;
    size_t methods = 0, dialects = 0;
    while (oq_method_list[methods]) methods++;
    while (oq_dialect_list[dialects]) dialects++;
    check_files(f->env, "method_", "method_list.c", methods, 3); /* method_modelopt.c holds four */
    check_files(f->env, "dialect_", "dialect_list.c", dialects, 0);
}

/* ---- names --------------------------------------------------------------------------------------------- */

/* 3, 4, 7, 18: one spelling is as good as another; an unknown one is named with its neighbour. */
static void test_names(void **state)
{
    fixture *f = *state;
    assert_string_equal(oq_method_find(f->env, "fp8")->name, "fp8");
    assert_string_equal(oq_method_find(f->env, "FP8")->name, "fp8");
    assert_string_equal(oq_method_find(f->env, "auto-round")->name, "inc");
    assert_string_equal(oq_method_find(f->env, "Auto_Round")->name, "inc");
    assert_string_equal(oq_method_find(f->env, "inc")->name, "inc");
    assert_string_equal(oq_method_find(f->env, "compressed_tensors")->name, "compressed-tensors");
    assert_null(oq_method_find(f->env, "not_a_method"));
    assert_int_equal(oq_method_unknown(f->env, "quantization_config", "not_a_method"), OQ_E_CONFIG);
    assert_non_null(strstr(oq_env_error(f->env),
                           "quantization_config: unknown quantization method 'not_a_method'; known: "
                           "none, fp8, int8,"));
    oq_env_clear(f->env);
    oq_method_unknown(f->env, "quantization_config", "bitsandbites");
    assert_non_null(strstr(oq_env_error(f->env), "did you mean 'bitsandbytes'?"));
}

/* ---- options ------------------------------------------------------------------------------------------- */

/* 8, 30, 31. */
static void test_fp8_int8(void **state)
{
    fixture *f = *state;
    const oq_method_args *args = accept(f, "fp8", "{\"activation_scheme\": \"static\"}", false);
    assert_string_equal(text(args, "activation_scheme"), "static");
    assert_string_equal(text(args, "weight_strategy"), "tensor");
    assert_string_equal(
        text(accept(f, "fp8", "{\"Weight-Strategy\": \"CHANNEL\"}", false), "weight_strategy"), "channel");
    accept(f, "fp8", "{\"weight_block_size\": [128, 128]}", true);
    refuse(f, "fp8", "{\"weight_block_size\": [128, 128]}", false, "weight_strategy");
    refuse(f, "fp8", "{\"weight_block_size\": [128]}", true, "1 entries, it needs 2");
    refuse(f, "fp8", "{\"weight_block_size\": [128, 0]}", true, "is 0, it must be between 1 and 65536");
    refuse(f, "fp8", "{\"weight_block_size\": [128, true]}", true, "entry 1 is a boolean");
    refuse(f, "fp8", "{\"weight_block_size\": [128, 128], \"activation_scheme\": \"static\"}", true,
           "dynamic");
    refuse(f, "fp8", "{\"activation_scheme\": \"sometimes\"}", false,
           "'sometimes', it must be one of dynamic,static");
    refuse(f, "fp8", "{\"activation_scheme\": 1}", false, "must be a string, not a whole number");
    refuse(f, "fp8", "{\"weight_strategie\": \"tensor\"}", false, "did you mean 'weight_strategy'?");
    refuse(f, "fp8", "{\"colour\": \"red\"}", false,
           "no option 'colour'; it has is_checkpoint_fp8_serialized,");
    refuse(f, "fp8", "{\"colour\": \"red\"}", true, "no option 'colour'"); /* not in a file either */
    refuse(f, "int8", "{\"activation_scheme\": \"static\"}", false, "'static', it must be one of dynamic");
}

static void test_ignored_layers(void **state)
{
    fixture *f = *state;
    const oq_method_args *args = accept(f, "fp8", "{\"ignored_layers\": \"img_mlp, to_out\"}", false);
    assert_int_equal(oq_json_size(oq_json_get(args->options, "ignored_layers")), 2);
    args =
        accept(f, "int8", "{\"modules_to_not_convert\": [\"a,b\"]}", false); /* no splitting inside a list */
    assert_string_equal(oq_json_string(oq_json_at(oq_json_get(args->options, "ignored_layers"), 0)), "a,b");
    accept(f, "fp8", "{\"ignored_layers\": [\"a\"], \"modules_to_not_convert\": [\"a\"]}", false);
    accept(f, "fp8", "{\"ignored_layers\": null, \"_internal\": 3}", false);
    refuse(f, "fp8", "{\"ignored_layers\": [\"a\"], \"modules_to_not_convert\": [\"b\"]}", false, "twice");
    refuse(f, "fp8", "{\"ignored_layers\": [1]}", false, "entry 0 is a whole number");
    refuse(f, "fp8", "{\"ignored_layers\": [\"\"]}", false,
           "entry 0 of option 'ignored_layers' is an empty string");
    refuse(f, "fp8", "{\"ignored_layers\": 3}", false, "a list of strings");
}

/* 19, 20 and the rest of AutoRound's checks. */
static void test_inc(void **state)
{
    fixture *f = *state;
    const oq_method_args *args = accept(f, "inc", "{\"bits\": 4, \"group_size\": 128}", false);
    assert_int_equal(oq_json_int(oq_json_get(args->options, "weight_bits"), 0), 4);
    assert_string_equal(text(args, "packing_format"), "auto_round:auto_gptq");
    accept(f, "inc", "{\"bits\": 4, \"weight_bits\": 4, \"group_size\": -1}", false);
    accept(f, "inc",
           "{\"bits\": 8, \"group_size\": [128, 128], \"iters\": 200, \"autoround_version\": \"0.16\"}",
           true);
    args = accept(f, "inc", "{\"bits\": 4, \"group_size\": 32, \"to_quant_block_names\": \"a, b\"}", true);
    assert_int_equal(oq_json_size(oq_json_get(args->options, "block_name_to_quantize")), 2);
    refuse(f, "inc", "{\"bits\": 4, \"weight_bits\": 8, \"group_size\": 128}", false,
           "'weight_bits' is given twice");
    refuse(f, "inc", "{\"bits\": 5, \"group_size\": 128}", false, "weight_bits is 5");
    refuse(f, "inc", "{\"bits\": 16, \"group_size\": 128}", false, "is 16, it must be between 2 and 8");
    refuse(f, "inc", "{\"group_size\": 128}", false, "needs weight_bits");
    refuse(f, "inc", "{\"bits\": 4}", false, "needs group_size");
    refuse(f, "inc", "{\"bits\": 4, \"group_size\": 0}", false, "group_size is 0");
    refuse(f, "inc", "{\"bits\": 4, \"group_size\": \"128\"}", false, "not a string");
    refuse(f, "inc", "{\"bits\": 4, \"group_size\": 128, \"packing_format\": \"zip\"}", false,
           "packing_format");
    refuse(f, "inc", "{\"bits\": 4, \"group_size\": 128, \"iters\": 200}", false, "no option 'iters'");
}

/* 24, 25 and the two shapes of ModelOpt's metadata. */
static void test_modelopt(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *json, *method;
    } rows[] = {
        {"{\"quant_algo\": \"FP8\"}", "modelopt"},
        {"{\"quant_algo\": \"fp8_pb_wo\"}", "modelopt"},
        {"{\"quantization\": {\"quant_algo\": \"FP8\"}}", "modelopt"},
        {"{\"quant_algo\": \"NVFP4\"}", "modelopt_fp4"},
        {"{\"quantization\": {\"quant_algo\": \"NVFP4\", \"group_size\": 16}}", "modelopt_fp4"},
        {"{\"quant_algo\": \"MXFP8\"}", "modelopt_mxfp8"},
        {"{\"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"a\": {\"quant_algo\": \"FP8\"}}}",
         "modelopt_mixed"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_json *json = NULL;
        assert_int_equal(oq_json_parse(f->env, rows[i].json, strlen(rows[i].json), "t", &json), OQ_OK);
        assert_string_equal(oq_modelopt_refine(&oq_method_modelopt, json)->name, rows[i].method);
        assert_string_equal(oq_modelopt_refine(oq_method_find(NULL, "fp8"), json)->name, "fp8");
        oq_json_free(json);
        accept(f, rows[i].method, rows[i].json, true);
    }
    const oq_method_args *args =
        accept(f, "modelopt",
               "{\"quantization\": {\"quant_algo\": \"FP8\", \"exclude_modules\": [\"lm_head\"]}}", true);
    assert_string_equal(oq_json_string(oq_json_at(oq_json_get(args->options, "ignored_layers"), 0)),
                        "lm_head");
    args =
        accept(f, "modelopt", "{\"quant_algo\": \"FP8\", \"ignore\": [\"a*\"], \"config_groups\": {}}", true);
    assert_int_equal(oq_json_size(oq_json_get(args->options, "ignored_layers")), 1);
    refuse(f, "modelopt", "{}", true, "no quant_algo");
    refuse(f, "modelopt", "{\"quant_algo\": \"FP3\"}", true, "'FP3', it must be one of FP8,");
    refuse(f, "modelopt", "{\"quantization\": 3}", true, "must be a mapping");
    refuse(f, "modelopt", "{\"quant_algo\": \"FP8\", \"quantization\": {\"quant_algo\": \"NVFP4\"}}", true,
           "twice");
    refuse(f, "modelopt", "{\"quant_algo\": \"FP8\", \"ignore\": \"x\", \"group_size\": \"16\"}", true,
           "whole number");
    refuse(f, "modelopt_fp4", "{\"quant_algo\": \"FP8\"}", true, "which is method 'modelopt'");
    refuse(f, "modelopt_mixed", "{\"quant_algo\": \"MIXED_PRECISION\"}", true, "needs quantized_layers");
}

/* Bounds of the other methods' options (63 to 65, 79, 80 among them). */
static void test_bounds(void **state)
{
    fixture *f = *state;
    static const struct {
        const char *method, *json;
        bool serialized;
        const char *words; /* NULL: accepted */
    } rows[] = {
        {"bitsandbytes", "{\"quant_type\": \"fp4\", \"compress_statistics\": false}", false, NULL},
        {"bitsandbytes", "{\"bnb_4bit_quant_type\": \"NF4\", \"load_in_4bit\": true, \"x\": 1}", true, NULL},
        {"bitsandbytes", "{\"quant_type\": \"int4\"}", false, "must be one of nf4,fp4"},
        {"bitsandbytes", "{\"load_in_4bit\": true, \"load_in_8bit\": true}", true, "both true"},
        {"bitsandbytes", "{\"compress_statistics\": 1}", false, "true or false"},
        {"mxfp4", "{\"w4a8_fallback_steps\": [2, 0, 2], \"mxfp4_scale_alg\": 2}", false, NULL},
        {"mxfp4", "{\"w4a8_fallback_steps\": null}", false, NULL},
        {"mxfp4", "{\"w4a8_fallback_steps\": [-1]}", false, "is -1"},
        {"mxfp4", "{\"w4a8_fallback_steps\": [true]}", false, "entry 0 is a boolean"},
        {"mxfp4", "{\"w4a8_fallback_steps\": [1.5]}", false, "entry 0 is a number"},
        {"mxfp4", "{\"w4a8_fallback_steps\": [\"2\"]}", false, "entry 0 is a string"},
        {"mxfp4", "{\"w4a8_fallback_steps\": \"0,2\"}", false, "a list of whole numbers, not a string"},
        {"mxfp4", "{\"w4a8_fallback_layers\": [\"blocks.0.ffn.net_0.proj\"]}", false, NULL},
        {"mxfp4", "{\"w4a8_fallback_layers\": [\"0.ffn\"]}", false, "'0.ffn', which is no layer's full name"},
        {"mxfp4", "{\"w4a8_fallback_layers\": [\"a..b\"]}", false, "'a..b'"},
        {"mxfp4", "{\"w4a8_fallback_layers\": [\"a.*\"]}", false, "'a.*'"},
        {"mxfp4", "{\"mxfp4_scale_alg\": true}", false, "not a boolean"},
        {"mxfp4", "{\"mxfp4_scale_alg\": \"2\"}", false, "not a string"},
        {"mxfp4", "{\"mxfp4_scale_alg\": 2.0}", false, "not a number"},
        {"mxfp4", "{\"mxfp4_scale_alg\": 1}", false, "is 1, it must be 0 or 2"},
        {"mxfp4", "{\"mxfp4_scale_alg\": 3}", false, "is 3"},
        {"mxfp4", "{\"require_smooth_scale\": true}", false, "needs a checkpoint"},
        {"mxfp4", "{\"require_smooth_scale\": true}", true, NULL},
        {"mxfp4_dualscale", "{\"num_bf16_fallback_layers\": 0}", false, NULL},
        {"mxfp4_dualscale", "{\"num_bf16_fallback_layers\": -1}", false, "is -1"},
        {"mxfp4_dualscale", "{\"w4a8_fallback_steps\": [1]}", false, "w4a8_fallback_steps must be empty"},
        {"comfy_nvfp4", "{\"quantized_layers\": \"a\"}", true, "a list of strings, not a string"},
        {"comfy_nvfp4", "{\"quantized_layers\": [\"a\"]}", true, NULL},
        {"gptq", "{\"bits\": 4, \"group_size\": 128, \"desc_act\": false, \"damp_percent\": 0.01}", true,
         NULL},
        {"gptq", "{\"group_size\": 128}", true, "has no 'bits'"},
        {"awq", "{\"w_bit\": 4, \"q_group_size\": 128, \"version\": \"GEMM\"}", true, NULL},
        {"awq", "{\"bits\": 4, \"version\": \"warp\"}", true, "'warp', it must be one of gemm"},
        {"svdquant", "{\"rank\": 0}", true, "is 0"},
        {"svdquant", "{\"precision\": \"int8\"}", true, "must be one of nvfp4,int4"},
        {"int8_convrot", "{\"group_size\": 64}", true, NULL},
        {"int8_convrot", "{\"group_size\": 100}", true, "is 100, it must be a power of four"},
        {"int8_convrot", "{\"group_size\": 8}", true, "is 8, it must be a power of four"},
        {"quark", "{\"rank\": 32, \"quark_export_format\": \"mxfp4_packed\"}", true, NULL},
        {"quark", "{\"quark_export_format\": \"zip\"}", true, "must be one of bf16"},
        {"compressed-tensors", "{\"config_groups\": {\"group_0\": {}}, \"format\": \"float-quantized\"}",
         true, NULL},
        {"compressed-tensors", "{\"format\": \"float-quantized\"}", true, "no config_groups"},
        {"quanto", "{\"weights_dtype\": \"float8\"}", true, NULL},
        {"quanto", "{\"weights_dtype\": \"int3\"}", true, "must be one of int8"},
        {"torchao", "{\"quant_type\": {\"default\": {\"_type\": \"Float8WeightOnlyConfig\"}}}", true, NULL},
        {"gguf", "{\"gguf_model\": 3}", true, "must be a string"},
        {"fp8_blockwise_mixed", "{\"recipe\": \"fp8_blockwise_mixed\"}", true, NULL},
        {"fp8_blockwise_mixed", "{\"recipe\": \"soup\"}", true, "must be one of fp8_blockwise_mixed"},
        {"ascend", "{\"quant_model_description\": {\"a.weight\": \"FLOAT\"}}", true, NULL},
        {"mxfp8", "{\"is_checkpoint_mxfp8_serialized\": \"yes\"}", true, "true or false"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        if (rows[i].words)
            refuse(f, rows[i].method, rows[i].json, rows[i].serialized, rows[i].words);
        else
            accept(f, rows[i].method, rows[i].json, rows[i].serialized);
    }
}

/* 63: steps are kept in ascending order, each once. */
static void test_steps(void **state)
{
    fixture *f = *state;
    const oq_method_args *args = accept(f, "mxfp4", "{\"w4a8_fallback_steps\": [2, 0, 2]}", false);
    const oq_json *steps = oq_json_get(args->options, "w4a8_fallback_steps");
    assert_int_equal(oq_json_size(steps), 2);
    assert_int_equal(oq_json_int(oq_json_at(steps, 0), -1), 0);
    assert_int_equal(oq_json_int(oq_json_at(steps, 1), -1), 2);
    args = accept(f, "mxfp4", "{\"w4a8_fallback_steps\": null}", false);
    assert_int_equal(oq_json_size(oq_json_get(args->options, "w4a8_fallback_steps")), 0);
}

/* 76: the short name means what the serialized configuration says. */
static void test_torchao_short(void **state)
{
    fixture *f = *state;
    const oq_method_args *longer = accept(
        f, "torchao",
        "{\"quant_type\": {\"default\": {\"_type\": \"Float8WeightOnlyConfig\", \"_version\": 2, \"_data\": "
        "{\"weight_dtype\": "
        "{\"_type\": \"torch.dtype\", \"_data\": \"float8_e4m3fn\"}, \"set_inductor_config\": false}}}}",
        true);
    oq_json *kept = oq_json_copy(longer->options);
    const oq_method *method = longer->method;
    const oq_method_args *shorter = accept(f, "torchao_float8_weight_only", "{}", true);
    const oq_json *config = oq_json_get(oq_json_get(shorter->options, "quant_type"), "default");
    assert_ptr_equal(shorter->method, method);
    assert_string_equal(method->name, "torchao");
    assert_true(shorter->serialized && oq_json_equal(kept, shorter->options));
    assert_int_equal(oq_json_int(oq_json_get(config, "_version"), 0), 2);
    assert_false(oq_json_bool(oq_json_get(oq_json_get(config, "_data"), "set_inductor_config"), true));
    oq_json_free(kept);
}

/* ---- what methods choose ------------------------------------------------------------------------------- */

static const oq_layer_desc layer = {.component = "transformer",
                                    .name = "layers.0.w2",
                                    .parts = (const char *const[]){"layers.0.w2"},
                                    .part_n = (const int64_t[]){200},
                                    .n_parts = 1,
                                    .n = 200,
                                    .k = 100};

static void expect_scheme(fixture *f, const char *method, const char *json, const oq_format *weight,
                          const oq_dtype *act, oq_act_scale scale)
{
    const oq_method_args *args = accept(f, method, json, false);
    oq_scheme scheme = {0};
    assert_int_equal(args->method->choose(f->env, args, &layer, &scheme), OQ_OK);
    assert_true(oq_scheme_equal(&scheme, &(oq_scheme){.weight = weight, .act = act, .act_scale = scale}));
}

/* Edges that do not fill a block (200 x 100 here) change nothing. */
static void test_choose(void **state)
{
    fixture *f = *state;
    expect_scheme(f, "fp8", "{}", &oq_format_fp8_e4m3_tensor, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN);
    expect_scheme(f, "fp8", "{\"weight_strategy\": \"channel\"}", &oq_format_fp8_e4m3_channel,
                  &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN);
    expect_scheme(f, "fp8", "{\"weight_strategy\": \"block\"}", &oq_format_fp8_e4m3_block128,
                  &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_GROUP);
    expect_scheme(f, "int8", "{}", &oq_format_int8_channel, &oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN);
    const oq_method_args *args = accept(f, "fp8", "{\"activation_scheme\": \"static\"}", false);
    oq_scheme scheme = {0};
    assert_int_equal(args->method->choose(f->env, args, &layer, &scheme), OQ_E_MISMATCH);
    assert_non_null(strstr(oq_env_error(f->env), "transformer: layer 'layers.0.w2'"));
    assert_non_null(strstr(oq_env_error(f->env), "input_scale"));
    assert_null(scheme.weight);
}

/* 55: the block of a name, and what it decides. */
static void test_dualscale_blocks(void **state)
{
    fixture *f = *state;
    assert_int_equal(oq_mxfp4_block("blocks.5.ffn.net.0.proj"), 5);
    assert_int_equal(oq_mxfp4_block("blocks.12.x"), 12);
    assert_int_equal(oq_mxfp4_block("model.layers.0.x"), -1);
    assert_int_equal(oq_mxfp4_block("blocks.5"), -1);
    assert_int_equal(oq_mxfp4_block("blocks.x.y"), -1);
    assert_int_equal(oq_mxfp4_block("blocks.99999999999999999999.y"), -1);
    const oq_method_args *args = accept(f, "mxfp4_dualscale", "{}", false);
    oq_layer_desc l = layer;
    oq_scheme scheme = {0};
    l.name = "blocks.4.ffn.net.0.proj";
    assert_int_equal(args->method->choose(f->env, args, &l, &scheme), OQ_OK);
    assert_null(scheme.weight);
    l.name = "blocks.5.ffn.net.0.proj";
    assert_int_equal(args->method->choose(f->env, args, &l, &scheme), OQ_OK);
    assert_ptr_equal(scheme.weight, &oq_format_mxfp4_dual);
    assert_int_equal(scheme.act_scale, OQ_ACT_DYNAMIC_MX_DUAL);
}

/* ---- methods of the calling program -------------------------------------------------------------------- */

static const char *choose_by_size(void *user, const char *name, int64_t n, int64_t k)
{
    int *calls = user;
    ++*calls;
    if (strcmp(name, "transformer.layers.0.w2") != 0 || n != 200 || k != 100) return "wrong";
    static const char *const answers[] = {"fp8", "none", "int8", NULL, "nonsense", "quark"};
    return answers[*calls - 1];
}

static void test_registered(void **state)
{
    fixture *f = *state;
    int calls = 0;
    oq_custom_method custom = {sizeof custom, "My-Mix", choose_by_size, &calls};
    assert_int_equal(oq_method_register(f->env, &custom), OQ_OK);
    assert_string_equal(oq_method_find(f->env, "my_mix")->name, "My-Mix");
    assert_null(oq_method_find(NULL, "my_mix"));
    const oq_method_args *args = accept(f, "My-Mix", "{\"ignored_layers\": [\"a\"]}", false);
    oq_scheme scheme = {0};
    assert_int_equal(args->method->choose(f->env, args, &layer, &scheme), OQ_OK);
    assert_ptr_equal(scheme.weight, &oq_format_fp8_e4m3_tensor);
    assert_int_equal(args->method->choose(f->env, args, &layer, &scheme), OQ_OK);
    assert_null(scheme.weight);
    assert_int_equal(args->method->choose(f->env, args, &layer, &scheme), OQ_OK);
    assert_ptr_equal(scheme.weight, &oq_format_int8_channel);
    static const struct {
        oq_status status;
        const char *words;
    } rows[] = {{OQ_E_UNSUPPORTED, "method 'My-Mix' refuses layer 'transformer.layers.0.w2' of 200 x 100"},
                {OQ_E_CONFIG, "My-Mix: unknown quantization method 'nonsense'"},
                {OQ_E_UNSUPPORTED, "method 'quark', which is not an online method"}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        assert_int_equal(args->method->choose(f->env, args, &layer, &scheme), rows[i].status);
        if (!strstr(oq_env_error(f->env), rows[i].words)) fail_msg("%s", oq_env_error(f->env));
        oq_env_clear(f->env);
    }
    refuse(f, "My-Mix", "{\"bits\": 4}", false, "no option 'bits'");

    const char *const taken[] = {"fp8", "NONE", "auto-round", "my-mix"};
    for (size_t i = 0; i < OQ_COUNT(taken); i++) {
        custom.name = taken[i];
        assert_int_equal(oq_method_register(f->env, &custom), OQ_E_ARG);
        assert_non_null(strstr(oq_env_error(f->env), "the name is taken"));
        oq_env_clear(f->env);
    }
    custom.name = "second";
    assert_int_equal(oq_method_register(f->env, &custom), OQ_OK);
    assert_non_null(oq_method_find(f->env, "second"));
    oq_method_unknown(f->env, "x", "secnod");
    assert_non_null(strstr(oq_env_error(f->env), "did you mean 'second'?"));
    oq_env_clear(f->env);
    custom.size = 8;
    assert_int_equal(oq_method_register(f->env, &custom), OQ_E_ARG);
    assert_int_equal(oq_method_register(f->env, NULL), OQ_E_ARG);
    assert_int_equal(oq_method_register(NULL, &custom), OQ_E_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_method_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_defaults, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dialect_list, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lists_and_files, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fp8_int8, setup, teardown),
        cmocka_unit_test_setup_teardown(test_ignored_layers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_inc, setup, teardown),
        cmocka_unit_test_setup_teardown(test_modelopt, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_steps, setup, teardown),
        cmocka_unit_test_setup_teardown(test_torchao_short, setup, teardown),
        cmocka_unit_test_setup_teardown(test_choose, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dualscale_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_registered, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
