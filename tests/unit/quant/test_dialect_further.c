/* test_dialect_further.c -- layouts of producers whose values lie in tests/data/quant/cases: what else their words may say, and
 * what is refused by one sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/size.h"
#include "format/float4.h"
#include "support/dialect_world.h"

#include <math.h>
#include <string.h>

enum { N = 16, K = 64 };

static uint8_t codes[N * K];
static float ones[N * K];

static int setup(void **state)
{
    memset(codes, 0x13, sizeof codes);
    for (int i = 0; i < N * K; i++) ones[i] = 1.0f;
    return world_setup(state);
}

static oq_part_source take(world *w, const char *config)
{
    oq_part_source part;
    bool found = false;
    if (world_locate(w, config, N, K, &part, &found) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_true(found);
    return part;
}

static void refuse(world *w, const char *config, const char *text)
{
    oq_part_source part;
    bool found = false;
    if (world_locate(w, config, N, K, &part, &found) == OQ_OK) fail_msg("taken, where '%s' is due", text);
    assert_false(found);
    if (!strstr(oq_env_error(w->env), text)) fail_msg("'%s' lacks '%s'", oq_env_error(w->env), text);
}

static void add(world *w, const char *name, const oq_dtype *dtype, const void *data, int64_t rows,
                int64_t cols)
{
    memory_ckpt_remove(&w->ckpt, name);
    memory_ckpt_add(&w->ckpt, name, dtype, data, rows, cols);
}

/* ---- TorchAO ------------------------------------------------------------------------------------------------ */

#define TORCHAO "{\"quant_method\": \"torchao\"}"

static void test_torchao_words(void **state)
{
    world *w = *state;
    oq_ckpt_file file = {.path = "a.safetensors"};
    static int8_t zeros[2 * N];
    memory_ckpt_init(&w->ckpt);
    add(w, "a._weight_qdata", &oq_dtype_i32, codes, N, K / 8);
    add(w, "a._weight_scale", &oq_dtype_f32, ones, 2, N);
    add(w, "a._weight_zero_point", &oq_dtype_i8, zeros, 2, N);
    world_set_class(w, &file, "{\"_type\": \"Int4PlainInt32Tensor\", \"_data\": {\"block_size\": [1, 32]}}");
    assert_ptr_equal(take(w, TORCHAO).format, &oq_format_int4z_g32);
    zeros[5] = 16;
    refuse(w, TORCHAO, "tensor 'a._weight_zero_point' has zero point 16 at index 5, outside of 4 bits");
    zeros[5] = -1;
    refuse(w, TORCHAO, "zero point -1 at index 5");
    zeros[5] = 15;
    take(w, TORCHAO);
    add(w, "a._weight_zero_point", &oq_dtype_f32, ones, 2, N);
    refuse(w, TORCHAO, "tensor 'a._weight_zero_point' is F32: Int4PlainInt32Tensor as NPUs write it");
    add(w, "a._weight_zero_point", &oq_dtype_i8, zeros, N, 2);
    refuse(w, TORCHAO, "tensor 'a._weight_zero_point' has 32 values of I8, it needs [2, 16] of I8");
    add(w, "a._weight_qdata", &oq_dtype_i32, codes, N, K / 8 + 1);
    refuse(w, TORCHAO, "tensor 'a._weight_qdata' has 144 values of I32, it needs [16, 8] of I32");
    world_set_class(w, &file, "{\"_type\": \"Int4PreshuffledTensor\", \"_data\": {\"block_size\": [1, 32]}}");
    refuse(w, TORCHAO,
           "layer 'a' is a TorchAO tensor of class 'Int4PreshuffledTensor', which is not in this build yet");
    add(w, "a._weight_qdata", &oq_dtype_u8, codes, N, K / 2);
    add(w, "a._weight_zero_point", &oq_dtype_f32, ones, 2, N);
    world_set_class(
        w, &file,
        "{\"_type\": \"Int4Tensor\", \"_data\": {\"block_size\": [1, 32], \"activation_dtype\": {\"_data\": "
        "\"float8_e5m2\"}}}");
    refuse(w, TORCHAO, "activations of type 'float8_e5m2' are not in this build yet");
    oq_json_free(file.metadata);
}

#define INT8(more)                                                                                           \
    "{\"_type\": \"Int8Tensor\", \"_data\": {\"block_size\": [1, 64], \"act_quant_kwargs\": {\"_data\": "    \
    "{\"granularity\": {\"_type\": \"PerRow\"}, \"mapping_type\": {\"_data\": \"ASYMMETRIC\"}}}" more "}}"

#define INT8_ACT(more)                                                                                       \
    "{\"_type\": \"Int8Tensor\", \"_data\": {\"block_size\": [1, 64], \"act_quant_kwargs\": {\"_data\": "    \
    "{\"granularity\": {\"_type\": \"PerRow\", \"_data\": {\"dim\": -1}}, " more "}}}}"

static void test_torchao_activations(void **state)
{
    world *w = *state;
    oq_ckpt_file file = {.path = "a.safetensors"};
    memory_ckpt_init(&w->ckpt);
    add(w, "a._weight_qdata", &oq_dtype_i8, codes, N, K);
    add(w, "a._weight_scale", &oq_dtype_f32, ones, N, 1);
    world_set_class(w, &file, INT8(""));
    assert_int_equal(take(w, TORCHAO).act_scale, OQ_ACT_DYNAMIC_ZERO);
    add(w, "a._weight_act_quant_scale", &oq_dtype_f32, ones, 1, -1);
    refuse(w, TORCHAO, "layer 'a': activations with a zero point of the file are not in this build yet");
    memory_ckpt_remove(&w->ckpt, "a._weight_act_quant_scale");
    world_set_class(w, &file, INT8_ACT("\"mapping_type\": {\"_data\": \"SYMMETRIC_NO_CLIPPING_ERR\"}"));
    refuse(w, TORCHAO, "mapping_type 'SYMMETRIC_NO_CLIPPING_ERR' of activations is not in this build yet");
    world_set_class(w, &file, INT8_ACT("\"mapping_type\": {\"_data\": 2}"));
    refuse(w, TORCHAO, "mapping_type 'SYMMETRIC_NO_CLIPPING_ERR' of activations is not in this build yet");
    world_set_class(w, &file,
                    INT8_ACT("\"reduce_range\": false, \"kernel_preference\": {\"_data\": \"AUTO\"}"));
    assert_int_equal(take(w, TORCHAO).act_scale, OQ_ACT_DYNAMIC_TOKEN);
    world_set_class(w, &file, INT8_ACT("\"reduce_range\": true"));
    refuse(w, TORCHAO, "layer 'a': activations of half a byte's range (reduce_range)");
    world_set_class(w, &file,
                    INT8_ACT("\"reduce_range\": true, \"mapping_type\": {\"_data\": \"ASYMMETRIC\"}"));
    refuse(w, TORCHAO, "layer 'a': activations of half a byte's range (reduce_range)");
    world_set_class(w, &file, INT8_ACT("\"eps\": 0.5"));
    refuse(w, TORCHAO, "layer 'a': 'eps' changes how activations are quantized");
    world_set_class(
        w, &file,
        "{\"_type\": \"Int8Tensor\", \"_data\": {\"block_size\": [1, 64], \"act_quant_kwargs\": {\"_data\": "
        "{\"granularity\": {\"_type\": \"PerRow\", \"_data\": {\"dim\": 0}}}}}}");
    refuse(w, TORCHAO, "activations of granularity 'PerRow' are not in this build yet; 'PerRow' of the last");
    oq_json_free(file.metadata);
}

/* ---- SDNQ --------------------------------------------------------------------------------------------------- */

static void test_sdnq_floats(void **state)
{
    world *w = *state;
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight", &oq_dtype_f8_e5m2, codes, N, K);
    add(w, "a.scale", &oq_dtype_f32, ones, N, 1);
    static const char config[] = "{\"quant_method\": \"sdnq\", \"weights_dtype\": \"float8_e5m2\"}";
    assert_ptr_equal(take(w, config).format, &oq_format_e5m2fn_channel);
    codes[70] = 0x7c;
    refuse(w, config, "tensor 'a.weight' is not finite at index 70");
    codes[70] = 0xff;
    refuse(w, config, "tensor 'a.weight' is not finite at index 70");
    codes[70] = 0x13;
    refuse(w,
           "{\"quant_method\": \"sdnq\", \"weights_dtype\": \"int8\", \"modules_dtype_dict\": "
           "{\"FLOAT8_E5M2\": [\"b\"]}}",
           "tensor 'a.weight' is F8_E5M2, but the metadata says that its layer is int8");
    take(w, "{\"quant_method\": \"sdnq\", \"weights_dtype\": \"int8\", \"modules_dtype_dict\": "
            "{\"FLOAT8_E5M2\": [\"a\"]}}");
}

/* ---- quanto ------------------------------------------------------------------------------------------------- */

static void test_quanto_scales(void **state)
{
    world *w = *state;
    static const float half = 0.5f;
    static const char config[] = "{\"quant_method\": \"quanto\", \"weights_dtype\": \"int8\"}";
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight._data", &oq_dtype_i8, codes, N, K);
    add(w, "a.weight._scale", &oq_dtype_f32, ones, N, 1);
    add(w, "a.input_scale", &oq_dtype_f32, ones, 1, -1);
    add(w, "a.output_scale", &oq_dtype_f32, ones, 1, -1);
    take(w, config);
    add(w, "a.output_scale", &oq_dtype_f32, &half, 1, -1);
    refuse(w, config, "tensor 'a.output_scale' is 0.5: layer 'a' has quantized activations");
    refuse(w, "{\"quant_method\": \"quanto\", \"weights_dtype\": \"float8_e5m2\"}",
           "tensor 'a.output_scale' is 0.5");
    add(w, "a.output_scale", &oq_dtype_f32, ones, 2, -1);
    refuse(w, config, "tensor 'a.output_scale' has 2 values of F32, it must be one float");
    add(w, "a.output_scale", &oq_dtype_i8, ones, 1, -1);
    refuse(w, config, "tensor 'a.output_scale' has 1 values of I8, it must be one float");
    add(w, "a.output_scale", &oq_dtype_f32, ones, 1, -1);
    add(w, "a.input_scale", &oq_dtype_f32, ones, 2, -1);
    refuse(w, config, "tensor 'a.input_scale' has 2 values of F32, it must be one float");
}

static void test_quanto_numbers(void **state)
{
    world *w = *state;
    static const char config[] = "{\"quant_method\": \"quanto\", \"weights_dtype\": \"float8_e5m2\"}";
    static uint8_t floats[N * K];
    memory_ckpt_init(&w->ckpt);
    memset(floats, 0x3c, sizeof floats);
    add(w, "a.weight._data", &oq_dtype_f8_e5m2, floats, N, K);
    add(w, "a.weight._scale", &oq_dtype_f32, ones, N, 1);
    take(w, config);
    floats[70] = 0xfc;
    refuse(w, config, "tensor 'a.weight._data' is not finite at index 70");
    floats[70] = 0x7d;
    refuse(w, config, "tensor 'a.weight._data' is not finite at index 70");
}

/* ---- ModelOpt, HQQ ------------------------------------------------------------------------------------------ */

static void test_modelopt_mxfp4(void **state)
{
    world *w = *state;
    static uint8_t exponents[N * K / 32];
    memset(exponents, 127, sizeof exponents);
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight", &oq_dtype_u8, codes, N, K / 2);
    add(w, "a.weight_scale", &oq_dtype_u8, exponents, N, K / 32);
    const oq_part_source part = take(w, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"mxfp4\"}");
    assert_ptr_equal(part.format, &oq_format_mxfp4);
    assert_ptr_equal(part.act, &oq_dtype_f4_e2m1);
    assert_int_equal(part.act_scale, OQ_ACT_DYNAMIC_MX_CEIL);
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(strstr(w->resolved->warnings[0], "mxfp4_activations 'none' leaves them as they are"));
    take(w, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"mxfp4\", \"mxfp4_activations\": \"none\"}");
    assert_int_equal(w->resolved->n_warnings, 0);
    const oq_layer_desc layer = {.component = "transformer", .name = "a", .n_parts = 1, .n = N, .k = K};
    const oq_method_args *args = w->resolved->components[0].routes[0].args;
    oq_scheme scheme = {
        .weight = &oq_format_mxfp4, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_DYNAMIC_MX_CEIL};
    assert_int_equal(args->method->adjust(w->env, args, &layer, &scheme), OQ_OK);
    assert_null(scheme.act);
    assert_int_equal(scheme.act_scale, OQ_ACT_NONE);
    refuse(w, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"W8A16\", \"mxfp4_activations\": \"none\"}",
           "mxfp4_activations goes with checkpoints of quant_algo MXFP4");
    refuse(w, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP6\"}",
           "option 'quant_algo' is 'MXFP6', it must be one of");
}

/* Rows that share their scales stand apart: a part of them has none of its own. */
static void test_spread_rows(void **state)
{
    (void)state;
    const oq_format *f = oq_format_spread(4, 64, &oq_dtype_f16);
    assert_ptr_equal(f, &oq_format_uint4zf_s64_f16);
    assert_null(oq_format_spread(4, 48, &oq_dtype_f16));
    assert_null(oq_format_spread(5, 64, &oq_dtype_f16));
    assert_true(oq_format_rows_separable(f, 0, 128, 128, K));
    assert_false(oq_format_rows_separable(f, 0, 64, 128, K));
    assert_int_equal(f->plane_bytes(f, OQ_PLANE_SCALE, 128, K), 2 * K * 2);
    assert_int_equal(f->plane_bytes(f, OQ_PLANE_SCALE, 65, K), 2 * K * 2);
}

/* ---- what a weight file says beside its folder's metadata ---------------------------------------------------- */

static void test_header(void **state)
{
    world *w = *state;
    static const char config[] = "{\"quant_method\": \"quanto\", \"weights_dtype\": \"int8\"}";
    oq_ckpt_file file = {.path = "a.safetensors", .metadata = oq_json_new_object()};
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight._data", &oq_dtype_i8, codes, N, K);
    add(w, "a.weight._scale", &oq_dtype_f32, ones, N, 1);
    w->ckpt.ckpt.files = &file, w->ckpt.ckpt.n_files = 1;
    assert_true(oq_json_set(file.metadata, "quantization_config", oq_json_new_string(config)));
    take(w, config);
    assert_int_equal(w->resolved->n_warnings, 0);
    assert_true(
        oq_json_set(file.metadata, "quantization_config", oq_json_new_string("{\"quant_method\": \"fp8\"}")));
    take(w, config);
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(strstr(w->resolved->warnings[0],
                           "has another quantization_config than 'net/config.json', which counts"));
    oq_json_free(file.metadata);
}

/* One scale among others may be of a row that training let die; all of them make no picture. */
static void test_subnormal_scales(void **state)
{
    world *w = *state;
    static const char config[] = "{\"quant_method\": \"quanto\", \"weights_dtype\": \"int8\"}";
    static float scales[N];
    oq_part_source part;
    bool found = false;
    memory_ckpt_init(&w->ckpt);
    codes[5] = 7;
    for (int i = 0; i < N; i++) scales[i] = 1e-44f;
    add(w, "a.weight._data", &oq_dtype_i8, codes, N, K);
    add(w, "a.weight._scale", &oq_dtype_f32, scales, N, 1);
    assert_int_equal(world_resolve(w, config), OQ_OK);
    const oq_resolved_component *c = &w->resolved->components[0];
    assert_int_equal(
        oq_dialect_locate(w->env, c->dialect, &c->declared, &w->ckpt.ckpt, "a", N, K, &part, &found),
        OQ_E_FORMAT);
    assert_non_null(strstr(oq_env_error(w->env), "scale 'a.weight._scale' is subnormal"));
    oq_env_clear(w->env);
    scales[3] = 0.5f;
    assert_int_equal(
        oq_dialect_locate(w->env, c->dialect, &c->declared, &w->ckpt.ckpt, "a", N, K, &part, &found), OQ_OK);
    assert_true(found);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_torchao_words, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_torchao_activations, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_quanto_scales, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_header, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_subnormal_scales, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_quanto_numbers, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_modelopt_mxfp4, setup, world_teardown),
        cmocka_unit_test(test_spread_rows),
        cmocka_unit_test_setup_teardown(test_sdnq_floats, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
