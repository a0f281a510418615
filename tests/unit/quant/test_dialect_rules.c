/* test_dialect_rules.c -- what producers' metadata says about a layer is held against its tensors: each way in which
 * the two do not fit is refused with one sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/format_e5m2.h"

#include "support/dialect_world.h"

#include <stdio.h>
#include <string.h>

enum { N = 4, K = 8 };

static uint8_t codes[N * K];
static uint16_t plain[N * K];
static float one = 0.5f, row_scales[N] = {1, 2, 3, 4};

static int setup(void **state)
{
    memset(codes, 0x38, sizeof codes);
    return world_setup(state);
}

static void start(world *w, const oq_dtype *dtype)
{
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight", dtype, dtype->bytes == 1 ? (const void *)codes : plain, N, K);
}

static void add(world *w, const char *name, const oq_dtype *dtype, const void *data, int64_t n)
{
    memory_ckpt_add(&w->ckpt, name, dtype, data, n, -1);
}

static void refuse(world *w, const char *config, oq_status status, const char *text)
{
    oq_part_source part;
    bool found = false;
    assert_int_equal(world_locate(w, config, N, K, &part, &found), status);
    assert_false(found);
    assert_string_equal(oq_env_error(w->env), text);
}

static void accept(world *w, const char *config, const oq_format *format, oq_act_scale act)
{
    oq_part_source part;
    bool found = false;
    if (world_locate(w, config, N, K, &part, &found) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_int_equal(found, format != NULL);
    if (!format) return;
    assert_ptr_equal(part.format, format);
    assert_int_equal(part.act_scale, act);
}

#define MODELOPT(algo) "{\"quant_method\": \"modelopt\", \"quant_algo\": \"" algo "\"}"
#define MIXED(name, algo)                                                                                    \
    "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": {\"" name   \
    "\": {\"quant_algo\": \"" algo "\"}}}"

static void test_modelopt(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_f8_e4m3);
    add(w, "a.weight_scale", &oq_dtype_f32, &one, -1);
    refuse(w, MODELOPT("FP8"), OQ_E_FORMAT,
           "tensor 'a.input_scale' is missing: the checkpoint declares static activations");
    refuse(w, MODELOPT("FP8_PER_CHANNEL_PER_TOKEN"), OQ_E_FORMAT,
           "scale 'a.weight_scale' is []; for a weight of [4, 8] it must be [4] or [4, 1]");
    add(w, "a.input_scale", &oq_dtype_f32, &one, -1);
    accept(w, MODELOPT("FP8"), &oq_format_fp8_e4m3_tensor, OQ_ACT_STATIC_TENSOR);
    accept(w, MIXED("a", "FP8"), &oq_format_fp8_e4m3_tensor, OQ_ACT_STATIC_TENSOR);
    refuse(w, MIXED("b", "FP8"), OQ_E_FORMAT,
           "tensor 'a.weight' is F8_E4M3, but quantized_layers does not name 'a'");
    refuse(w, MIXED("a", "W5A9"), OQ_E_UNSUPPORTED,
           "layer 'a': quant_algo 'W5A9' is not in this build yet; FP8, FP8_PER_CHANNEL_PER_TOKEN, "
           "FP8_PB_WO, "
           "W8A8_SQ_PER_CHANNEL, W8A16, W4A16_AWQ, W4A8_AWQ, NVFP4, NVFP4_AWQ, NVFP4_SVD, W4A16_NVFP4, "
           "W4A8_NVFP4_FP8, W4A8_MXFP4_FP8, MXFP4 and MXFP8 are");
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N);
    refuse(w, MODELOPT("FP8"), OQ_E_FORMAT,
           "scale 'a.weight_scale' is [4]; the metadata says one scale for the whole weight");
    refuse(w, MODELOPT("FP8_PER_CHANNEL_PER_TOKEN"), OQ_E_FORMAT,
           "tensor 'a.input_scale' is there although the checkpoint declares dynamic activations");
    start(w, &oq_dtype_i8);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N);
    add(w, "a.input_scale", &oq_dtype_f32, &one, -1);
    accept(w, MODELOPT("W8A8_SQ_PER_CHANNEL"), &oq_format_int8_channel, OQ_ACT_STATIC_TENSOR);
    add(w, "a.pre_quant_scale", &oq_dtype_bf16, plain, K);
    refuse(w, MODELOPT("W8A8_SQ_PER_CHANNEL"), OQ_E_FORMAT,
           "tensor 'a.pre_quant_scale' is 0 at index 0; it must be positive and finite");
    static float factors[K] = {1, 2, 1, 2, 1, 2, 1, 2};
    add(w, "a.pre_quant_scale", &oq_dtype_f32, factors, K);
    accept(w, MODELOPT("W8A8_SQ_PER_CHANNEL"), &oq_format_int8_channel, OQ_ACT_STATIC_TENSOR);
    add(w, "a.pre_quant_scale", &oq_dtype_f32, factors, K - 1);
    refuse(w, MODELOPT("W8A8_SQ_PER_CHANNEL"), OQ_E_FORMAT,
           "tensor 'a.pre_quant_scale' has 7 values in 1 dimensions, its layer needs [8]");
    start(w, &oq_dtype_f8_e4m3);
    add(w, "a.weight_scale", &oq_dtype_f32, &one, -1);
    add(w, "a.input_scale", &oq_dtype_f32, &one, -1);
    add(w, "a.pre_quant_scale", &oq_dtype_f32, factors, K);
    refuse(w, MODELOPT("FP8"), OQ_E_FORMAT,
           "tensor 'a.pre_quant_scale' changes what layer 'a' computes, but its quant_algo is FP8, which has "
           "none");
    start(w, &oq_dtype_bf16);
    accept(w, MODELOPT("FP8"), NULL, OQ_ACT_NONE);
    accept(w, MIXED("b", "FP8"), NULL, OQ_ACT_NONE);
    add(w, "a.weight_scale", &oq_dtype_f32, &one, -1);
    refuse(w, MODELOPT("FP8"), OQ_E_FORMAT,
           "tensor 'a.weight_scale' is there, but 'a.weight' is BF16, not F8_E4M3");
}

static void comfy_word(world *w, const char *text)
{
    add(w, "a.comfy_quant", &oq_dtype_u8, text, (int64_t)strlen(text));
}

static void test_comfy(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_f8_e4m3);
    add(w, "a.weight_scale", &oq_dtype_f32, &one, -1);
    comfy_word(w, "{\"format\": \"float8_e4m3fn\"}");
    accept(w, NULL, &oq_format_fp8_e4m3_tensor, OQ_ACT_DYNAMIC_TOKEN);
    add(w, "a.input_scale", &oq_dtype_f32, &one, -1);
    accept(w, NULL, &oq_format_fp8_e4m3_tensor, OQ_ACT_STATIC_TENSOR);
    comfy_word(w, "{\"format\": \"float8_e4m3fn\", \"params\": {\"full_precision_matrix_mult\": true}}");
    accept(w, NULL, &oq_format_fp8_e4m3_tensor, OQ_ACT_NONE);
    add(w, "a.scale_input", &oq_dtype_f32, &one, -1);
    refuse(w, NULL, OQ_E_FORMAT,
           "tensors 'a.input_scale' and 'a.scale_input' are two scales of one layer's activations");
    comfy_word(w, "{\"full_precision_matrix_mult\": true}");
    refuse(w, NULL, OQ_E_FORMAT, "tensor 'a.comfy_quant' says nothing about the format of layer 'a'");
    comfy_word(w, "{\"format\": \"float8_e4m3fn\"");
    assert_int_equal(world_resolve(w, NULL), OQ_E_FORMAT);
    assert_non_null(strstr(oq_env_error(w->env), "a.comfy_quant"));

    start(w, &oq_dtype_bf16);
    comfy_word(w, "{\"format\": \"float8_e4m3fn\"}");
    refuse(w, NULL, OQ_E_FORMAT,
           "layer 'a' is said to be in ComfyUI's format 'float8_e4m3fn', but 'a.weight' is BF16");
    memory_ckpt_remove(&w->ckpt, "a.weight");
    memory_ckpt_add(&w->ckpt, "b.weight", &oq_dtype_f8_e4m3, codes, N, K);
    refuse(w, NULL, OQ_E_FORMAT, "tensor 'a.comfy_quant' describes layer 'a', but 'a.weight' is missing");

    start(w, &oq_dtype_f8_e4m3);
    add(w, "scaled_fp8", &oq_dtype_f8_e4m3, codes, 0);
    refuse(w, NULL, OQ_E_FORMAT, "tensor 'a.weight' is F8_E4M3, but its scale 'a.weight_scale' is missing");

    /* INT8, its columns rotated in runs of a power of four; 79 */
    oq_part_source part;
    bool found = false;
    start(w, &oq_dtype_i8);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N);
    comfy_word(w, "{\"format\": \"int8_tensorwise\"}");
    assert_int_equal(world_locate(w, NULL, N, K, &part, &found), OQ_OK);
    assert_true(part.rotate == 0 && part.format == &oq_format_int8_channel && part.act == &oq_dtype_i8);
    comfy_word(
        w, "{\"format\": \"int8_tensorwise\", \"params\": {\"convrot\": true, \"convrot_groupsize\": 4}}");
    assert_int_equal(world_locate(w, "{\"quant_method\": \"int8_convrot\"}", N, K, &part, &found), OQ_OK);
    assert_int_equal(part.rotate, 4);
    comfy_word(w, "{\"format\": \"int8_tensorwise\", \"convrot\": true, \"convrot_groupsize\": 100}");
    refuse(w, NULL, OQ_E_FORMAT, "layer 'a': convrot_groupsize is 100, it must be a power of four");
    comfy_word(w, "{\"format\": \"int8_tensorwise\", \"convrot\": true, \"convrot_groupsize\": 8}");
    refuse(w, NULL, OQ_E_FORMAT, "layer 'a': convrot_groupsize is 8, it must be a power of four");
    comfy_word(w, "{\"format\": \"int8_tensorwise\", \"convrot\": true}");
    refuse(w, NULL, OQ_E_FORMAT,
           "layer 'a' has 8 columns, which runs of convrot_groupsize 256 do not divide");
}

#define GROUP(weights, inputs)                                                                               \
    "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"targets\": [\"Linear\"], "     \
    "\"format\": \"float-quantized\", \"weights\": " weights ", \"input_activations\": " inputs "}}}"
#define FLOAT8(strategy)                                                                                     \
    "{\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, \"strategy\": \"" strategy "\"}"
#define INPUT8(strategy, dynamic)                                                                            \
    "{\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, \"strategy\": \"" strategy                  \
    "\", \"dynamic\": " dynamic "}"

static void test_compressed_tensors(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_f8_e4m3);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N);
    accept(w, GROUP(FLOAT8("channel"), "null"), &oq_format_fp8_e4m3_channel, OQ_ACT_NONE);
    accept(w, GROUP(FLOAT8("channel"), INPUT8("token", "true")), &oq_format_fp8_e4m3_channel,
           OQ_ACT_DYNAMIC_TOKEN);
    refuse(w, GROUP(FLOAT8("channel"), INPUT8("tensor", "false")), OQ_E_FORMAT,
           "tensor 'a.input_scale' is missing: the checkpoint declares static activations");
    refuse(
        w, GROUP(FLOAT8("channel"), INPUT8("tensor", "true")), OQ_E_UNSUPPORTED,
        "layer 'a': group 'g' has input_activations of 8 bits, type 'float', strategy 'tensor', which is not "
        "in this "
        "build yet; symmetric 8 bits of the weights' own type are: dynamic per token (per 128 columns beside "
        "blocks), or static per tensor");
    refuse(w, GROUP(FLOAT8("tensor"), "null"), OQ_E_FORMAT,
           "scale 'a.weight_scale' is [4]; the metadata says one scale for the whole weight");
    refuse(w, GROUP("{\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\"}", "null"),
           OQ_E_UNSUPPORTED,
           "layer 'a': group 'g' has weights of 4 bits, type 'int', strategy 'group', which is not in this "
           "build yet; "
           "symmetric 8 bits of type float or int are, per tensor, channel or 128 x 128 block");
    refuse(
        w,
        "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"targets\": [\"re:b.*\"]}}}",
        OQ_E_FORMAT, "layer 'a' is quantized, but no group of config_groups means it");
    /* A name goes before a pattern, a pattern before a class. */
    accept(
        w,
        "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"targets\": [\"Linear\"], "
        "\"weights\": {\"num_bits\": 4}}, \"h\": {\"targets\": [\"re:a\"], \"weights\": " FLOAT8(
            "channel") "}}}",
        &oq_format_fp8_e4m3_channel, OQ_ACT_NONE);
    start(w, &oq_dtype_bf16);
    accept(w, GROUP(FLOAT8("channel"), "null"), NULL, OQ_ACT_NONE);
    memory_ckpt_remove(&w->ckpt, "a.weight");
    add(w, "a.weight_packed", &oq_dtype_i32, plain, 2);
    refuse(w,
           "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"config_groups\": "
           "{\"g\": "
           "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"int\"}}}}",
           OQ_E_UNSUPPORTED,
           "layer 'a': group 'g' has weights of 4 bits, type 'int', strategy '', which is not in this build "
           "yet; "
           "integers in groups or per channel are packed this way");
    refuse(w,
           "{\"quant_method\": \"compressed-tensors\", \"format\": \"marlin-24\", \"config_groups\": {\"g\": "
           "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"int\"}}}}",
           OQ_E_UNSUPPORTED,
           "tensor 'a.weight_packed' is in the layout 'marlin-24', which is not in this build yet");
}

/* One row of bytes for one or two groups is full of codes of either width. */
static void test_quanto_width(void **state)
{
    static const uint8_t bytes[32] = {0x12, 0x31};
    static const float numbers[2] = {0.5f, 0.25f};
    world *w = *state;
    oq_part_source part;
    bool found = false;
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight._data._data", &oq_dtype_u8, bytes, 1, 32);
    memory_ckpt_add(&w->ckpt, "a.weight._scale", &oq_dtype_f32, numbers, 2, 1);
    memory_ckpt_add(&w->ckpt, "a.weight._shift", &oq_dtype_f32, numbers, 2, 1);
    assert_int_equal(world_locate(w, "{\"quant_method\": \"quanto\"}", 2, 32, &part, &found), OQ_E_FORMAT);
    assert_string_equal(
        oq_env_error(w->env),
        "tensor 'a.weight._data._data' may hold codes of 4 or of 2 bits: one row of bytes for 2 "
        "groups, and no metadata says which");
    static const char *const says[] = {"int4", "int2"};
    for (int i = 0; i < 2; i++) {
        char config[96];
        snprintf(config, sizeof config, "{\"quant_method\": \"quanto\", \"weights_dtype\": \"%s\"}", says[i]);
        assert_int_equal(world_locate(w, config, 2, 32, &part, &found), OQ_OK);
        assert_ptr_equal(part.format, oq_format_affine(OQ_AFFINE_SUM, i ? 2 : 4, 32, &oq_dtype_f32));
    }
}

static void test_quanto_and_autoround(void **state)
{
    world *w = *state;
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight._data", &oq_dtype_f8_e4m3, codes, N, K);
    refuse(w, "{\"quant_method\": \"quanto\"}", OQ_E_FORMAT,
           "tensor 'a.weight._data' is F8_E4M3, but its scale 'a.weight._scale' is missing");
    memory_ckpt_add(&w->ckpt, "a.weight._scale", &oq_dtype_f32, row_scales, N, 1);
    accept(w, "{\"quant_method\": \"quanto\"}", &oq_format_fp8_e4m3_channel, OQ_ACT_NONE);
    accept(w, NULL, &oq_format_fp8_e4m3_channel, OQ_ACT_NONE);
    accept(w, "{\"quant_method\": \"quanto\", \"weights_dtype\": \"float8\"}", &oq_format_fp8_e4m3_channel,
           OQ_ACT_NONE);
    refuse(w, "{\"quant_method\": \"quanto\", \"weights_dtype\": \"int8\"}", OQ_E_MISMATCH,
           "tensor 'a.weight._data' is F8_E4M3, but the metadata says weights_dtype 'int8'");
    refuse(w, "{\"quant_method\": \"quanto\", \"weights\": \"int4\"}", OQ_E_MISMATCH,
           "tensor 'a.weight._data' is F8_E4M3, but the metadata says weights_dtype 'int4'");
    refuse(w, "{\"quant_method\": \"quanto\", \"activations\": \"int8\"}", OQ_E_UNSUPPORTED,
           "method 'quanto': activations_dtype 'int8' is not in this build yet; plain activations are");

    start(w, &oq_dtype_f8_e4m3);
    add(w, "a.weight_scale", &oq_dtype_f32, row_scales, N);
    static const char autoround[] =
        "{\"quant_method\": \"auto-round\", \"bits\": 8, \"group_size\": -1, \"data_type\": "
        "\"fp\", \"packing_format\": \"auto_round:fp8_static\"}";
    refuse(w, autoround, OQ_E_FORMAT,
           "tensor 'a.input_scale' is missing: the checkpoint declares static activations");
    add(w, "a.input_scale", &oq_dtype_bf16, plain, 1);
    refuse(w, autoround, OQ_E_FORMAT, "tensor 'a.input_scale' is 0; it must be positive and finite");
    add(w, "a.input_scale", &oq_dtype_f32, &one, 1);
    accept(w, autoround, &oq_format_fp8_e4m3_channel, OQ_ACT_STATIC_TENSOR);
}

static void test_mx_and_torchao(void **state)
{
    world *w = *state;
    static uint8_t scales[N];
    static const char nv_fp[] =
        "{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 16, \"data_type\": \"nv_fp\"}";
    static const char mx_fp[] =
        "{\"quant_method\": \"auto-round\", \"bits\": 4, \"group_size\": 32, \"data_type\": \"mx_fp\"}";
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight_packed", &oq_dtype_u8, codes, N, K / 2);
    refuse(w, nv_fp, OQ_E_FORMAT, "tensor 'a.weight_scale' is missing: layer 'a' is in NVFP4");
    refuse(w, "{\"quant_method\": \"auto-round\", \"bits\": 8, \"group_size\": 16, \"data_type\": \"nv_fp\"}",
           OQ_E_UNSUPPORTED,
           "layer 'a': data_type 'nv_fp' of 8 bits is not in this build yet; int, fp, mx_fp and nv_fp are");
    refuse(w, mx_fp, OQ_E_FORMAT, "tensor 'a.weight_scale' is missing: layer 'a' is in MXFP4");
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_u8, scales, N, 1);
    accept(w, mx_fp, &oq_format_mxfp4, OQ_ACT_NONE);
    scales[2] = 0xff;
    refuse(w, mx_fp, OQ_E_FORMAT, "scale 'a.weight_scale' is byte 0xff at index 2, which is NaN");
    scales[2] = 0;
    refuse(
        w,
        "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"targets\": [\"Linear\"], "
        "\"format\": \"mxfp4-pack-quantized\", \"weights\": {\"num_bits\": 4}, \"input_activations\": "
        "{\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"group\", \"group_size\": 32, \"dynamic\": "
        "true}}}}",
        OQ_E_UNSUPPORTED,
        "layer 'a': group 'g' has input_activations of 8 bits, type 'float', strategy 'group', which is not "
        "in this "
        "build yet; the weights' own type in dynamic groups of 32 is");

    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a._weight_qdata", &oq_dtype_i8, codes, N, K);
    refuse(w, "{\"quant_method\": \"torchao\"}", OQ_E_UNSUPPORTED,
           "layer 'a' is a TorchAO tensor of class '(none in the header)', which is not in this build yet; "
           "Float8Tensor, Int8Tensor, Int4Tensor, Int4PlainInt32Tensor, Int4TilePackedTo4dTensor, "
           "IntxUnpackedToInt8Tensor, MXTensor, NVFP4Tensor and AffineQuantizedTensor are");
    start(w, &oq_dtype_bf16);
    accept(w, "{\"quant_method\": \"torchao\"}", NULL, OQ_ACT_NONE);
}

/* Codes as numbers, as Ascend's tools write them: each must be a number of the format; two scales; factors. */
static void test_mx_numbers(void **state)
{
    world *w = *state;
    static uint8_t exponents[N] = {127, 128, 126, 127};
    static float numbers[N * K], dual[N] = {1, 0.5f, 2, 3}, factors[K] = {1, 2, 3, 4, 5, 6, 7, 8};
    for (int i = 0; i < N * K; i++) numbers[i] = (float)(i % 5) - 2.0f;
    static const char mxfp4[] = "{\"quant_method\": \"mxfp4\"}",
                      two[] = "{\"quant_method\": \"mxfp4_dualscale\"}",
                      must[] = "{\"quant_method\": \"mxfp4\", \"require_smooth_scale\": true}",
                      mxfp8[] = "{\"quant_method\": \"mxfp8\"}";
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight", &oq_dtype_f32, numbers, N, K);
    accept(w, mxfp4, NULL, OQ_ACT_NONE); /* plain */
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_u8, exponents, N, 1);
    accept(w, mxfp4, &oq_format_mxfp4, OQ_ACT_DYNAMIC_MX);
    accept(w, mxfp8, &oq_format_mxfp8, OQ_ACT_DYNAMIC_MX);
    refuse(w, must, OQ_E_FORMAT, "tensor 'a.mul_scale' is missing: require_smooth_scale is true");
    add(w, "a.mul_scale", &oq_dtype_f32, factors, K);
    accept(w, must, &oq_format_mxfp4, OQ_ACT_DYNAMIC_MX);
    refuse(w, two, OQ_E_FORMAT, "tensor 'a.weight_dual_scale' is missing");
    memory_ckpt_add(&w->ckpt, "a.weight_dual_scale", &oq_dtype_f32, dual, N, 1);
    accept(w, two, &oq_format_mxfp4_dual, OQ_ACT_DYNAMIC_MX_DUAL);
    refuse(w, mxfp4, OQ_E_FORMAT,
           "tensor 'a.weight_dual_scale' is a second scale, which method 'mxfp4' does not have");
    oq_part_source part;
    bool found = false;
    uint8_t bytes[N * K / 2];
    float row[K], scales[N];
    assert_int_equal(world_locate(w, two, N, K, &part, &found), OQ_OK);
    oq_plane_read(&part.plane[OQ_PLANE_DATA], bytes, sizeof bytes, N, K);
    oq_plane_read(&part.plane[OQ_PLANE_GLOBAL], scales, sizeof scales, N, K);
    part.format->decode_row(part.format, row, &(oq_planes){{bytes, exponents, scales}}, 3, N, K);
    for (int c = 0; c < K; c++)
        assert_true(row[c] >= 3 * numbers[3 * K + c] && row[c] <= 3 * numbers[3 * K + c]);
    numbers[5] = 2.5f;
    refuse(w, two, OQ_E_FORMAT, "tensor 'a.weight' is 2.5 at index 5, which is no number of fp4_e2m1");
    numbers[5] = 3;
    exponents[1] = 255;
    refuse(w, two, OQ_E_FORMAT, "scale 'a.weight_scale' is byte 0xff at index 1, which is NaN");
}

#define STATE(block, shape) "{\"quant_type\": \"nf4\", \"blocksize\": " block ", \"shape\": " shape "}"

static void test_bitsandbytes(void **state)
{
    world *w = *state;
    static const float scb[N] = {1, 2, 3, 4};
    static const char config[] = "{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}";
    static const char small[] = STATE("16", "[4, 8]"), other[] = STATE("96", "[4, 8]"),
                      bare[] = STATE("128", "[4, 8]"), shape[] = STATE("64", "[8, 8]"),
                      none[] = "{\"blocksize\": 64}", huge[] = STATE("64", "[4294967296, 4294967296]");
    static const struct {
        const char *text, *message;
        oq_status status;
    } rows[] = {
        {small, "layer 'a' has blocks of 16 weights; powers of two from 32 to 4096 are read",
         OQ_E_UNSUPPORTED},
        {other, "layer 'a' has blocks of 96 weights; powers of two from 32 to 4096 are read",
         OQ_E_UNSUPPORTED},
        {bare, "tensor 'a.weight.quant_map' is missing", OQ_E_FORMAT},
        {shape, "layer 'a': quant_state says [8, 8], its layer needs [4, 8]", OQ_E_FORMAT},
        {huge,
         "tensor 'a.weight.quant_state.bitsandbytes__nf4' names no quant_type nf4 or fp4 with a shape of two "
         "numbers",
         OQ_E_FORMAT},
        {none,
         "tensor 'a.weight.quant_state.bitsandbytes__nf4' names no quant_type nf4 or fp4 with a shape of two "
         "numbers",
         OQ_E_FORMAT},
    };
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight", &oq_dtype_u8, codes, N * K / 2, 1);
    refuse(w, config, OQ_E_FORMAT, "tensor 'a.weight' is U8, but its quant_state is missing");
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        add(w, "a.weight.quant_state.bitsandbytes__nf4", &oq_dtype_u8, rows[i].text,
            (int64_t)strlen(rows[i].text));
        refuse(w, config, rows[i].status, rows[i].message);
    }
    start(w, &oq_dtype_i8);
    add(w, "a.SCB", &oq_dtype_f32, scb, N);
    accept(w, config, &oq_format_int8_scb, OQ_ACT_DYNAMIC_TOKEN);
    accept(w, NULL, &oq_format_int8_scb, OQ_ACT_DYNAMIC_TOKEN);
    static uint8_t tiles = 3;
    add(w, "a.weight_format", &oq_dtype_u8, &tiles, -1);
    refuse(
        w, config, OQ_E_UNSUPPORTED,
        "tensor 'a.weight_format' is 3: codes in the order of a GPU are not in this build yet; 0, rows, is");
    add(w, "a.SCB", &oq_dtype_f32, scb, N - 1);
    refuse(w, config, OQ_E_FORMAT, "tensor 'a.SCB' has 3 values of F32, it needs 4 of F32");
    start(w, &oq_dtype_bf16);
    accept(w, config, NULL, OQ_ACT_NONE);
}

/* Codes and scales of blocks: what is missing, what has another size, what cannot be told apart. */
static void test_blocks(void **state)
{
    world *w = *state;
    static uint8_t e4m3[128 * 4], packed[128 * 32];
    memset(e4m3, 0x38, sizeof e4m3);
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight", &oq_dtype_u8, packed, N, K / 2);
    refuse(w, MODELOPT("NVFP4"), OQ_E_FORMAT, "tensor 'a.weight_scale' is missing: layer 'a' is in NVFP4");
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_f8_e4m3, e4m3, N, 1);
    refuse(w, MODELOPT("NVFP4"), OQ_E_FORMAT, "tensor 'a.weight_scale_2' is missing: layer 'a' is in NVFP4");
    add(w, "a.weight_scale_2", &oq_dtype_f32, &one, -1);
    refuse(w, MODELOPT("NVFP4"), OQ_E_FORMAT, "tensor 'a.input_scale' is missing: layer 'a' is in NVFP4");
    accept(w, MODELOPT("W4A16_NVFP4"), &oq_format_nvfp4, OQ_ACT_NONE);
    accept(w, NULL, &oq_format_nvfp4, OQ_ACT_NONE);
    add(w, "a.input_scale", &oq_dtype_f32, &one, -1);
    accept(w, MODELOPT("NVFP4"), &oq_format_nvfp4, OQ_ACT_STATIC_NVFP4);
    accept(w, NULL, &oq_format_nvfp4, OQ_ACT_STATIC_NVFP4);
    accept(w, MODELOPT("W4A16_NVFP4"), &oq_format_nvfp4, OQ_ACT_NONE);
    refuse(w, MODELOPT("MXFP8"), OQ_E_FORMAT, "tensor 'a.weight' is U8, MXFP8 codes are F8_E4M3");
    add(w, "a.svdquant_lora_a", &oq_dtype_bf16, plain, K);
    refuse(w, MODELOPT("NVFP4"), OQ_E_FORMAT,
           "tensor 'a.svdquant_lora_a' changes what layer 'a' computes, but its quant_algo is NVFP4, which "
           "has none");
    refuse(w, MODELOPT("NVFP4_SVD"), OQ_E_FORMAT,
           "tensor 'a.svdquant_lora_a' is there, 'a.svdquant_lora_b' is missing");
    static uint16_t lora[N * 2];
    memory_ckpt_add(&w->ckpt, "a.svdquant_lora_b", &oq_dtype_bf16, lora, N, 2);
    refuse(w, MODELOPT("NVFP4_SVD"), OQ_E_FORMAT,
           "tensor 'a.svdquant_lora_a' has 8 values, a branch of rank 0 needs [0, 8]");
    memory_ckpt_add(&w->ckpt, "a.svdquant_lora_a", &oq_dtype_bf16, lora, 1, K);
    refuse(w, MODELOPT("NVFP4_SVD"), OQ_E_FORMAT,
           "tensor 'a.svdquant_lora_b' has 8 values, a branch of rank 1 needs [4, 1]");
    memory_ckpt_add(&w->ckpt, "a.svdquant_lora_b", &oq_dtype_bf16, lora, N, 1);
    accept(w, MODELOPT("NVFP4_SVD"), &oq_format_nvfp4, OQ_ACT_STATIC_NVFP4);
    memory_ckpt_remove(&w->ckpt, "a.svdquant_lora_b");
    memory_ckpt_remove(&w->ckpt, "a.svdquant_lora_a");
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_f8_e4m3, e4m3, N, 2);
    refuse(w, MODELOPT("NVFP4"), OQ_E_FORMAT,
           "scale 'a.weight_scale' has 8 values; a weight of [4, 8] needs [4, 1], or tiles of 128 x 4");
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_f8_e4m3, e4m3, N, 1);
    add(w, "a.weight_scale_2", &oq_dtype_f32, &(float){0}, -1);
    refuse(w, MODELOPT("NVFP4"), OQ_E_FORMAT,
           "tensor 'a.weight_scale_2' is 0; it must be positive and finite");

    add(w, "a.weight_scale_2", &oq_dtype_f32, &one, -1);
    memory_ckpt_add(&w->ckpt, "a.weight", &oq_dtype_u8, packed, 128, 32);
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_f8_e4m3, e4m3, 128, 4);
    assert_int_equal(world_resolve(w, NULL), OQ_E_FORMAT);
    assert_string_equal(oq_env_error(w->env),
                        "component 'transformer': its tensors fit the spellings 'modelopt' and 'comfy'; "
                        "--quantization or a quantization_config in its config.json must say which it is");
    assert_int_equal(world_resolve(w, "{\"quant_method\": \"comfy_nvfp4\"}"), OQ_OK);
    assert_string_equal(w->resolved->components[0].dialect->name, "comfy");
}

/* Files that fit two spellings are not guessed at; one that lost its scales is no cast file. */
static void test_evidence(void **state)
{
    world *w = *state;
    start(w, &oq_dtype_f8_e4m3);
    add(w, "a.weight_scale", &oq_dtype_f32, &one, -1);
    memory_ckpt_add(&w->ckpt, "b.weight", &oq_dtype_i8, codes, N, K);
    add(w, "b.weight_scale", &oq_dtype_f32, &one, -1);
    assert_int_equal(world_resolve(w, NULL), OQ_E_FORMAT);
    assert_string_equal(
        oq_env_error(w->env),
        "component 'transformer': its tensors fit the spellings 'fp8' and 'int8'; --quantization or a "
        "quantization_config in its config.json must say which it is");

    start(w, &oq_dtype_f8_e4m3);
    add(w, "b.weight_scale", &oq_dtype_f32, &one, -1);
    assert_int_equal(world_resolve(w, NULL), OQ_OK);
    assert_null(w->resolved->components[0].dialect);
    memory_ckpt_remove(&w->ckpt, "b.weight_scale");
    accept(w, NULL, &oq_format_fp8_e4m3_tensor, OQ_ACT_NONE);
    start(w, &oq_dtype_f8_e5m2); /* cast; then with a scale, whose name is ComfyUI's */
    accept(w, NULL, &oq_format_fp8_e5m2_tensor, OQ_ACT_NONE);
    add(w, "a.scale_weight", &oq_dtype_f32, row_scales, N);
    accept(w, NULL, &oq_format_fp8_e5m2_channel, OQ_ACT_NONE);
    comfy_word(w, "{\"format\": \"float8_e4m3fn\"}");
    refuse(w, NULL, OQ_E_FORMAT,
           "layer 'a' is said to be in ComfyUI's format 'float8_e4m3fn', but 'a.weight' is F8_E5M2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_modelopt, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_comfy, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_compressed_tensors, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_quanto_width, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_quanto_and_autoround, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_bitsandbytes, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_mx_and_torchao, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_mx_numbers, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_blocks, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_evidence, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
