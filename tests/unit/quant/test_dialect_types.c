/* test_dialect_types.c -- dialects that name a type for each layer (msModelSlim, Quark, ModelOpt's AWQ, a list of NVFP4
 * layers): what is read, and each way in which type and tensors do not fit is refused with one sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/float4.h"

#include "support/dialect_world.h"

#include <string.h>

enum { N = 4, K = 64 };

static uint8_t codes[N * K], exponents[N * K / 32];
static uint16_t plain[N * K];
static float one = 0.5f, minus = -3.0f, row_scales[N] = {1, 2, 3, 4}, halves[N] = {0.5f, 1, 1, 1};
static int32_t units[N] = {0, 7, 0, 0};
static int64_t bits[N] = {0x3f800000, 0x3f800000, 0x3f800000, 0x3f800000};

static int setup(void **state)
{
    memset(codes, 0x38, sizeof codes);
    memset(exponents, 127, sizeof exponents);
    for (int i = 0; i < N * K; i++) plain[i] = 0x3f80;
    return world_setup(state);
}

static void start(world *w, const oq_dtype *dtype, const void *data, int64_t rows, int64_t cols)
{
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight", dtype, data, rows, cols);
}

static void add(world *w, const char *name, const oq_dtype *dtype, const void *data, int64_t rows,
                int64_t cols)
{
    memory_ckpt_add(&w->ckpt, name, dtype, data, rows, cols);
}

static void refuse(world *w, const char *config, oq_status status, const char *text)
{
    oq_part_source part;
    bool found = false;
    assert_int_equal(world_locate(w, config, N, K, &part, &found), status);
    assert_false(found);
    if (strncmp(oq_env_error(w->env), text, strlen(text)) != 0) fail_msg("%s", oq_env_error(w->env));
}

/* format NULL: the layer is plain. */
static void accept(world *w, const char *config, const oq_format *format, const oq_dtype *act,
                   oq_act_scale scale)
{
    oq_part_source part;
    bool found = false;
    if (world_locate(w, config, N, K, &part, &found) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_int_equal(found, format != NULL);
    if (!format) return;
    assert_ptr_equal(part.format, format);
    assert_ptr_equal(part.act, act);
    assert_int_equal(part.act_scale, scale);
}

/* ---- msModelSlim --------------------------------------------------------------------------------------- */

#define ASCEND(word)                                                                                         \
    "{\"quant_method\": \"ascend\", \"quant_model_description\": {\"a.weight\": \"" word "\"}}"

static void test_msmodelslim_words(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_bf16, plain, N, K);
    accept(w, ASCEND("FLOAT"), NULL, NULL, OQ_ACT_NONE);
    refuse(w, ASCEND("W8A8_DYNAMIC"), OQ_E_FORMAT,
           "layer 'a' is plain in the file, but quant_model_description says W8A8_DYNAMIC");
    refuse(w, ASCEND("W4A4_FLATQUANT_DYNAMIC"), OQ_E_UNSUPPORTED,
           "layer 'a': msModelSlim's type 'W4A4_FLATQUANT_DYNAMIC' is not in this build yet; W8A8, ");
    refuse(w, ASCEND("W16A16S"), OQ_E_UNSUPPORTED,
           "layer 'a': msModelSlim's type 'W16A16S' is not in this build");
    start(w, &oq_dtype_i8, codes, N, K);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N, 1);
    accept(w, ASCEND("W8A8_DYNAMIC"), &oq_format_int8_channel, &oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN);
    accept(w, ASCEND("W8A16"), &oq_format_int8_channel, NULL, OQ_ACT_NONE);
    refuse(w, ASCEND("FLOAT"), OQ_E_FORMAT,
           "layer 'a' is quantized in the file, but quant_model_description says FLOAT");
    refuse(w, "{\"quant_method\": \"ascend\", \"quant_model_description\": {\"b.weight\": \"W8A16\"}}",
           OQ_E_FORMAT, "layer 'a' is quantized in the file, but quant_model_description does not name it");
    add(w, "a.weight_offset", &oq_dtype_f32, halves, N, 1);
    refuse(w, ASCEND("W8A16"), OQ_E_FORMAT,
           "tensor 'a.weight_offset' is 0.5 at index 0; a zero point is one of");
    add(w, "a.weight_offset", &oq_dtype_f32, row_scales, N, 1);
    accept(w, ASCEND("W8A16"), &oq_format_int8z_g128, NULL, OQ_ACT_NONE);
    add(w, "a.kv_cache_scale", &oq_dtype_f32, row_scales, N, -1);
    memory_ckpt_remove(&w->ckpt, "a.weight_offset");
    refuse(w, ASCEND("W8A8_DYNAMIC"), OQ_E_UNSUPPORTED, "tensor 'a.kv_cache_scale' stands beside 'a.weight'");
}

static void test_msmodelslim_static(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_i8, codes, N, K);
    refuse(w, ASCEND("W8A8"), OQ_E_FORMAT, "tensor 'a.input_scale' is missing");
    add(w, "a.input_scale", &oq_dtype_f32, &one, 1, -1);
    refuse(w, ASCEND("W8A8"), OQ_E_FORMAT, "tensor 'a.deq_scale' is missing beside its codes");
    add(w, "a.deq_scale", &oq_dtype_i64, bits, N, -1);
    accept(w, ASCEND("W8A8"), &oq_format_int8_channel, &oq_dtype_i8, OQ_ACT_STATIC_TENSOR);
    add(w, "a.quant_bias", &oq_dtype_i32, units, N, -1);
    refuse(w, ASCEND("W8A8"), OQ_E_UNSUPPORTED,
           "tensor 'a.quant_bias' holds a bias in units of the product, and 'a.bias' is missing");
    add(w, "a.bias", &oq_dtype_f32, row_scales, N, -1);
    accept(w, ASCEND("W8A8"), &oq_format_int8_channel, &oq_dtype_i8, OQ_ACT_STATIC_TENSOR);
    add(w, "a.input_offset", &oq_dtype_f32, &minus, 1, -1);
    accept(w, ASCEND("W8A8"), &oq_format_int8_channel, &oq_dtype_i8, OQ_ACT_STATIC_TENSOR);
    oq_part_source part;
    bool found = false;
    float bias[N];
    assert_int_equal(world_locate(w, ASCEND("W8A8"), N, K, &part, &found), OQ_OK);
    assert_true(part.shift == -1.5f && part.bias.tensor);
    oq_plane_read(&part.bias, bias, sizeof bias, N, K);
    for (int r = 0; r < N; r++) {
        float unit;
        memcpy(&unit, (const char *)bits + 8 * r, sizeof unit);
        assert_true(bias[r] == (float)((double)units[r] * (double)unit));
    }
    add(w, "a.mul_scale", &oq_dtype_f32, codes, K, -1);
    refuse(w, ASCEND("W8A8"), OQ_E_UNSUPPORTED,
           "tensor 'a.input_offset' is -3: a zero point of smoothed activations is not in this build yet");
    memory_ckpt_remove(&w->ckpt, "a.mul_scale");
    memory_ckpt_remove(&w->ckpt, "a.quant_bias");
    refuse(w, ASCEND("W8A8"), OQ_E_FORMAT,
           "tensor 'a.quant_bias' has 0 values; beside 'a.input_offset', which it makes up for, it needs 4");
    add(w, "a.input_offset", &oq_dtype_f32, halves, 1, -1);
    refuse(w, ASCEND("W8A8"), OQ_E_FORMAT,
           "tensor 'a.input_offset' has 1 values, the first is 0.5; a zero point is one of the codes");
}

static void test_msmodelslim_four_bits(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_i8, codes, N / 2, K);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N, 1);
    accept(w, ASCEND("W4A8_DYNAMIC"), &oq_format_int4_g128, &oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN);
    add(w, "a.weight_offset", &oq_dtype_f32, row_scales, N, 1);
    refuse(w, ASCEND("W4A8_DYNAMIC"), OQ_E_UNSUPPORTED, "tensor 'a.weight_offset' holds zero points");
    start(w, &oq_dtype_i8, codes, N, K);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N, 1);
    refuse(w, ASCEND("W4A8_DYNAMIC"), OQ_E_FORMAT,
           "tensor 'a.weight' has 256 bytes of I8; a weight of [4, 64] in 4 bits needs [2, 64] of two rows "
           "each");
    accept(w, ASCEND("W4A4_DYNAMIC"), &oq_format_int8_channel, &oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN4);
    start(w, &oq_dtype_u8, codes, N, K / 2);
    add(w, "a.weight_scale", &oq_dtype_u8, exponents, N, K / 32);
    accept(w, ASCEND("W4A4_MXFP4"), &oq_format_mxfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX);
    accept(w, ASCEND("W4A8_MXFP"), &oq_format_mxfp4, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX);
    refuse(w, ASCEND("W4A4_MXFP4_DUALSCALE"), OQ_E_FORMAT,
           "tensor 'a.weight_dual_scale' is missing, but the layer's type is W4A4_MXFP4_DUALSCALE");
    add(w, "a.weight_dual_scale", &oq_dtype_f32, row_scales, N, 1);
    accept(w, ASCEND("W4A4_MXFP4_DUALSCALE"), &oq_format_mxfp4_dual, &oq_dtype_f4_e2m1,
           OQ_ACT_DYNAMIC_MX_DUAL);
    refuse(w, ASCEND("W4A4_MXFP4"), OQ_E_FORMAT,
           "tensor 'a.weight_dual_scale' is there, but the layer's type is W4A4_MXFP4");
    accept(w, "{\"quant_method\": \"mxfp4_dualscale\"}", &oq_format_mxfp4_dual, &oq_dtype_f4_e2m1,
           OQ_ACT_DYNAMIC_MX_DUAL); /* packed codes under the seed's own name */
}

/* ---- Quark --------------------------------------------------------------------------------------------- */

#define TENSOR(dtype, scheme, more) "{\"dtype\": \"" dtype "\", \"qscheme\": \"" scheme "\"" more "}"
#define QUARK(weight, input)                                                                                 \
    "{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": " weight                            \
    ", \"input_tensors\": " input "}}"
#define MX    ", \"group_size\": 32, \"scale_format\": \"e8m0\", \"is_dynamic\": true"
#define GROUP ", \"group_size\": 32, \"symmetric\": true"

static void test_quark_8(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_f8_e4m3, codes, N, K);
    refuse(w, "{\"quant_method\": \"quark\"}", OQ_E_FORMAT,
           "layer 'a' is quantized in the file, but neither layer_quant_config nor global_quant_config says "
           "how");
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N, -1);
    accept(w, QUARK(TENSOR("fp8_e4m3", "per_channel", ""), "null"), &oq_format_fp8_e4m3_channel, NULL,
           OQ_ACT_NONE);
    accept(w,
           QUARK(TENSOR("fp8_e4m3", "per_channel", ""),
                 TENSOR("fp8_e4m3", "per_channel", ", \"is_dynamic\": true")),
           &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN);
    refuse(
        w, QUARK(TENSOR("fp8_e4m3", "per_channel", ""), TENSOR("int8", "per_tensor", "")), OQ_E_UNSUPPORTED,
        "layer 'a': Quark's metadata gives its activations dtype 'int8', qscheme 'per_tensor', group_size 0, "
        "which is not in this build yet; the weights' own type is");
    refuse(w, QUARK(TENSOR("fp6_e2m3", "per_group", ", \"group_size\": 32"), "null"), OQ_E_UNSUPPORTED,
           "layer 'a': Quark's metadata gives its weight dtype 'fp6_e2m3', qscheme 'per_group', group_size "
           "32, which");
    refuse(w, QUARK("[" TENSOR("fp8_e4m3", "per_tensor", "") "]", "null"), OQ_E_UNSUPPORTED,
           "layer 'a': Quark's metadata describes its weight by ");
    accept(w,
           "{\"quant_method\": \"quark\", \"global_quant_config\": null, \"layer_quant_config\": {\"*a\": "
           "{\"weight\": "
           "{\"dtype\": \"fp8_e4m3\", \"qscheme\": \"per_channel\"}}}}",
           &oq_format_fp8_e4m3_channel, NULL, OQ_ACT_NONE);
    start(w, &oq_dtype_i8, codes, N, K);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N, -1);
    add(w, "a.weight_zero_point", &oq_dtype_i8, codes, N, -1);
    refuse(w, QUARK(TENSOR("int8", "per_channel", ""), "null"), OQ_E_UNSUPPORTED,
           "tensor 'a.weight_zero_point' holds zero points that are not zero");
}

static void test_quark_4(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_u8, codes, N, K / 2);
    add(w, "a.weight_scale", &oq_dtype_u8, exponents, N, K / 32);
    accept(w, QUARK(TENSOR("fp4", "per_group", MX), "null"), &oq_format_mxfp4, NULL, OQ_ACT_NONE);
    accept(w,
           QUARK(TENSOR("fp4", "per_group", MX),
                 TENSOR("fp4", "per_group", MX ", \"scale_calculation_mode\": \"even\"")),
           &oq_format_mxfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_EVEN);
    refuse(w, QUARK(TENSOR("fp4", "per_group", MX), TENSOR("fp8_e4m3", "per_tensor", "")), OQ_E_FORMAT,
           "tensor 'a.input_scale' is missing: layer 'a' is in MXFP4");
    refuse(w, QUARK(TENSOR("fp4", "per_group", MX), TENSOR("fp6_e3m2", "per_group", MX)), OQ_E_UNSUPPORTED,
           "layer 'a': Quark's metadata gives its activations dtype 'fp6_e3m2'");
    static int32_t words[K];
    start(w, &oq_dtype_i32, words, K, 1);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, 1, N);
    refuse(w, QUARK(TENSOR("int4", "per_group", GROUP), "null"), OQ_E_FORMAT,
           "tensor 'a.weight_scale' is [1, 4]; a weight of [4, 64] in codes of 4 bits, groups of 32, needs "
           "[2, 4]");
    refuse(w,
           "{\"quant_method\": \"quark\", \"export\": {\"pack_method\": \"order\"}, \"global_quant_config\": "
           "{\"weight\": {\"dtype\": \"int4\", \"qscheme\": \"per_group\", \"group_size\": 32}}}",
           OQ_E_UNSUPPORTED, "layer 'a': Quark's pack_method 'order' is not in this build yet; 'reorder' is");
}

/* ---- ModelOpt's AWQ, Black Forest Labs' list ----------------------------------------------------------- */

#define AWQ(algo) "{\"quant_method\": \"modelopt\", \"quant_algo\": \"" algo "\", \"group_size\": 64}"

static void test_modelopt_awq(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_u8, codes, N / 2, K);
    refuse(w, AWQ("W4A16_AWQ"), OQ_E_FORMAT, "tensor 'a.weight_scale' is missing: layer 'a' is in 4 bits");
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N, 1);
    accept(w, AWQ("W4A16_AWQ"), &oq_format_int4_g128, NULL, OQ_ACT_NONE);
    accept(w, AWQ("INT4_AWQ"), &oq_format_int4_g128, NULL, OQ_ACT_NONE);
    refuse(w, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A16_AWQ\", \"group_size\": 32}",
           OQ_E_FORMAT,
           "scale 'a.weight_scale' has 4 values; a weight of [4, 64] in the groups of the metadata needs one "
           "for");
    refuse(w, AWQ("W4A8_AWQ"), OQ_E_FORMAT, "tensor 'a.weight_scale_2' is missing");
    add(w, "a.weight_scale_2", &oq_dtype_f32, &one, -1, -1);
    refuse(w, AWQ("W4A8_AWQ"), OQ_E_FORMAT, "tensor 'a.input_scale' is missing");
    refuse(w, AWQ("W4A16_AWQ"), OQ_E_UNSUPPORTED,
           "tensor 'a.weight_scale_2' changes what layer 'a' computes");
    add(w, "a.input_scale", &oq_dtype_f32, &one, -1, -1);
    accept(w, AWQ("W4A8_AWQ"), &oq_format_int4_e4m3_g128, &oq_dtype_f8_e4m3, OQ_ACT_STATIC_TENSOR);
}

static void test_listed_layers(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_u8, codes, N, K / 2);
    add(w, "a.weight_scale", &oq_dtype_f8_e4m3, codes, N, K / 16);
    add(w, "a.weight_scale_2", &oq_dtype_f32, &one, -1, -1);
    add(w, "a.input_scale", &oq_dtype_f32, &one, -1, -1);
    accept(w, "{\"quantized_layers\": [\"transformer.a\"]}", &oq_format_nvfp4, &oq_dtype_f4_e2m1,
           OQ_ACT_STATIC_NVFP4);
    refuse(w, "{\"quantized_layers\": []}", OQ_E_FORMAT,
           "tensor 'a.weight' is U8, but quantized_layers does not name 'a'");
    refuse(w, "{\"quantized_layers\": [\"a\", \"b\"]}", OQ_E_FORMAT,
           "quantized_layers names 'b', but 'b.weight' is missing, not U8");
    refuse(w, "{\"quantized_layers\": \"a\"}", OQ_E_CONFIG,
           "net/config.json: method 'comfy_nvfp4'"); /* case 80 */
    start(w, &oq_dtype_f8_e4m3, codes, N, K);
    add(w, "a.weight_scale", &oq_dtype_bf16, plain, 1, 1);
    accept(w, "{\"recipe\": \"fp8_blockwise_mixed\"}", &oq_format_fp8_e4m3_block128, NULL, OQ_ACT_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_msmodelslim_words, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_msmodelslim_static, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_msmodelslim_four_bits, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_quark_8, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_quark_4, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_modelopt_awq, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_listed_layers, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
