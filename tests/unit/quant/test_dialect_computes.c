/* test_dialect_computes.c -- words of producers' metadata that change what a layer computes, with tensors that look the same
 * without them: followed, or refused with one sentence, never passed over. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/dialect_world.h"

#include <string.h>

enum { N = 4, K = 32 };

static uint8_t codes[N * K], exponents[N];
static float one = 0.5f, row_scales[N] = {1, 2, 3, 4};

static int setup(void **state)
{
    memset(codes, 0x38, sizeof codes);
    memset(exponents, 127, sizeof exponents);
    return world_setup(state);
}

/* e4m3 codes with a scale per row. */
static void start_fp8(world *w)
{
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight", &oq_dtype_f8_e4m3, codes, N, K);
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_f32, row_scales, N, -1);
}

static void refuse_as(world *w, oq_status status, const char *config, const char *text)
{
    oq_part_source part;
    bool found = false;
    assert_int_equal(world_locate(w, config, N, K, &part, &found), status);
    assert_false(found);
    if (!strstr(oq_env_error(w->env), text)) fail_msg("'%s' lacks '%s'", oq_env_error(w->env), text);
}

static void refuse(world *w, const char *config, const char *text)
{
    refuse_as(w, OQ_E_UNSUPPORTED, config, text);
}

static void accept(world *w, const char *config, oq_act_scale act)
{
    oq_part_source part;
    bool found = false;
    if (world_locate(w, config, N, K, &part, &found) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_true(found);
    assert_int_equal(part.act_scale, act);
}

#define GROUPS(more)                                                                                         \
    "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {\"targets\": [\"Linear\"], "     \
    "\"format\": "                                                                                           \
    "\"float-quantized\", \"weights\": {\"num_bits\": 8, \"type\": \"float\", \"symmetric\": true, "         \
    "\"strategy\": "                                                                                         \
    "\"channel\"}, \"input_activations\": null" more "}"
#define TRANSFORM(place)                                                                                     \
    "\"transform_config\": {\"config_groups\": {\"R4\": {\"type\": \"hadamard\", \"apply\": [{\"targets\": " \
    "[\"Linear\"], \"location\": \"" place "\"}]}}}}"

static void test_compressed_tensors(void **state)
{
    world *w = *state;
    start_fp8(w);
    accept(w, GROUPS("") "}, \"transform_config\": {}}", OQ_ACT_NONE);
    accept(w, GROUPS("") "}, " TRANSFORM("weight_input"), OQ_ACT_NONE);
    refuse(
        w, GROUPS("") "}, " TRANSFORM("input"),
        "transform_config's 'R4' transforms 'input' while the network runs, which is not in this build yet");
    refuse(w, GROUPS("") "}, " TRANSFORM("k_cache"), "transform_config's 'R4' transforms 'k_cache'");
    accept(w, GROUPS(", \"output_activations\": null") "}}", OQ_ACT_NONE);
    refuse(w, GROUPS(", \"output_activations\": {\"num_bits\": 8}") "}}",
           "group 'g' quantizes output_activations, which is not in this build yet");
}

#define QUARK(layer, more)                                                                                   \
    "{\"quant_method\": \"quark\", \"global_quant_config\": {\"weight\": {\"dtype\": \"fp8_e4m3\", "         \
    "\"qscheme\": "                                                                                          \
    "\"per_channel\"}" layer "}" more "}"

static void test_quark(void **state)
{
    world *w = *state;
    start_fp8(w);
    accept(w, QUARK("", ", \"algo_config\": null, \"softmax_quant_spec\": null"), OQ_ACT_NONE);
    accept(w, QUARK("", ", \"algo_config\": [{\"name\": \"rotation\", \"r1\": true, \"r4\": false}]"),
           OQ_ACT_NONE);
    refuse(w, QUARK("", ", \"algo_config\": [{\"name\": \"awq\"}, {\"name\": \"rotation\", \"r4\": true}]"),
           "algo_config's 'rotation' has 'r4': activations are rotated while the network runs");
    refuse(w, QUARK("", ", \"algo_config\": {\"name\": \"quarot\", \"online_r1_rotation\": true}"),
           "algo_config's 'quarot' has 'online_r1_rotation'");
    refuse(w, QUARK("", ", \"softmax_quant_spec\": {\"dtype\": \"fp8_e4m3\"}"),
           "method 'quark': 'softmax_quant_spec' changes what layers compute, in a way that is not in this "
           "build yet");
    refuse(w, QUARK(", \"output_tensors\": {\"dtype\": \"fp8_e4m3\", \"qscheme\": \"per_tensor\"}", ""),
           "layer 'a': Quark's metadata gives its output dtype 'fp8_e4m3', qscheme 'per_tensor'");
    accept(w,
           QUARK(", \"output_tensors\": {\"dtype\": \"fp8_e4m3\", \"qscheme\": \"per_tensor\"}",
                 ", \"export\": {\"kv_cache_group\": [\"*a\"]}"),
           OQ_ACT_NONE);
    refuse(w, QUARK(", \"bias\": {\"dtype\": \"int8\"}", ""), "Quark's metadata gives its bias dtype 'int8'");
}

#define AUTOROUND(bits, type, more)                                                                          \
    "{\"quant_method\": \"auto-round\", \"bits\": " bits ", \"group_size\": 32, \"data_type\": \"" type      \
    "\"" more "}"

static void test_autoround_floats(void **state)
{
    world *w = *state;
    start_fp8(w);
    accept(w, AUTOROUND("8", "fp", ""), OQ_ACT_DYNAMIC_TOKEN);
    accept(w, AUTOROUND("8", "fp", ", \"act_bits\": 16"), OQ_ACT_NONE);
    accept(w, AUTOROUND("8", "fp", ", \"act_bits\": 8, \"act_data_type\": \"fp\", \"act_dynamic\": true"),
           OQ_ACT_DYNAMIC_TOKEN);
    refuse(w, AUTOROUND("8", "fp", ", \"act_bits\": 4"),
           "layer 'a': activations of 4 bits, act_data_type '(none)', act_group_size 0, act_dynamic true, "
           "are not in "
           "this build yet beside weights of data_type 'fp' and 8 bits");
    refuse(w, AUTOROUND("8", "fp", ", \"rotation_config\": {\"algorithm\": \"spinquant\"}"),
           "method 'inc': 'rotation_config' changes what layers compute");
    accept(w, AUTOROUND("8", "fp", ", \"rotation_config\": {}"), OQ_ACT_DYNAMIC_TOKEN);
    memory_ckpt_add(&w->ckpt, "a.input_scale", &oq_dtype_f32, &one, 1, -1);
    accept(w, AUTOROUND("8", "fp", ", \"act_bits\": 8, \"act_dynamic\": false"), OQ_ACT_STATIC_TENSOR);
}

static void test_autoround_blocks(void **state)
{
    world *w = *state;
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight_packed", &oq_dtype_u8, codes, N, K / 2);
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_u8, exponents, N, 1);
    accept(w, AUTOROUND("4", "mx_fp", ""), OQ_ACT_NONE);
    accept(
        w,
        AUTOROUND(
            "4", "mx_fp",
            ", \"act_bits\": 4, \"act_data_type\": \"mx_fp\", \"act_group_size\": 32, \"act_dynamic\": true"),
        OQ_ACT_DYNAMIC_MX);
    refuse(w, AUTOROUND("4", "mx_fp", ", \"act_bits\": 8"), "activations of 8 bits");
    refuse(w, AUTOROUND("4", "mx_fp", ", \"act_bits\": 4, \"act_data_type\": \"mx_fp_rceil\""),
           "act_data_type 'mx_fp_rceil'");
    refuse(w, AUTOROUND("4", "mx_fp", ", \"act_bits\": 4, \"act_group_size\": 16"), "act_group_size 16");
    refuse(w, AUTOROUND("4", "mx_fp", ", \"act_bits\": 4, \"act_dynamic\": false"), "act_dynamic false");
    refuse(w, AUTOROUND("4", "int", ", \"act_bits\": 8"), "beside integers they stay as they are");
}

#define FLOAT8(more)                                                                                         \
    "{\"_type\": \"Float8Tensor\", \"_data\": {\"block_size\": [1, 32], \"act_quant_kwargs\": {\"_type\": "  \
    "\"QuantizeTensorToFloat8Kwargs\", \"_data\": {\"granularity\": {\"_type\": \"PerRow\"}" more "}}}}"

static void test_torchao(void **state)
{
    static const char config[] = "{\"quant_method\": \"torchao\"}";
    world *w = *state;
    oq_ckpt_file file = {.path = "a.safetensors"};
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a._weight_qdata", &oq_dtype_f8_e4m3, codes, N, K);
    memory_ckpt_add(&w->ckpt, "a._weight_scale", &oq_dtype_f32, row_scales, N, 1);
    world_set_class(w, &file, FLOAT8(""));
    accept(w, config, OQ_ACT_DYNAMIC_TOKEN);
    world_set_class(w, &file,
                    FLOAT8(", \"hp_value_ub\": null, \"float8_dtype\": {\"_data\": \"float8_e4m3fn\"}"));
    accept(w, config, OQ_ACT_DYNAMIC_TOKEN);
    world_set_class(w, &file, FLOAT8(", \"hp_value_ub\": 1200.0"));
    refuse(w, config,
           "layer 'a': activations whose scale is bounded (hp_value_ub) are not in this build yet");
    world_set_class(w, &file,
                    FLOAT8(", \"float8_dtype\": {\"_type\": \"torch.dtype\", \"_data\": \"float8_e5m2\"}"));
    refuse(w, config, "activations of type 'float8_e5m2' are not in this build yet; float8_e4m3fn is");
    oq_json_free(file.metadata);
}

static void say_comfy(world *w, const char *word)
{
    memory_ckpt_remove(&w->ckpt, "a.comfy_quant");
    memory_ckpt_add(&w->ckpt, "a.comfy_quant", &oq_dtype_u8, word, (int64_t)strlen(word), -1);
}

/* NVFP4 of ComfyUI: under the file's scale of x, or one of all of x; as it is where the word says so or there is none. */
static void test_comfy_nvfp4(void **state)
{
    static uint8_t tiles[128 * 4];
    world *w = *state;
    memory_ckpt_init(&w->ckpt);
    memset(tiles, 0x38, sizeof tiles);
    memory_ckpt_add(&w->ckpt, "a.weight", &oq_dtype_u8, codes, N, K / 2);
    memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_f8_e4m3, tiles, 128, 4);
    memory_ckpt_add(&w->ckpt, "a.weight_scale_2", &oq_dtype_f32, &one, -1, -1);
    accept(w, "{\"quant_method\": \"comfy_nvfp4\"}", OQ_ACT_NONE);
    say_comfy(w, "{\"format\": \"nvfp4\"}");
    accept(w, NULL, OQ_ACT_DYNAMIC_NVFP4);
    say_comfy(w, "{\"format\": \"nvfp4\", \"full_precision_matrix_mult\": true}");
    accept(w, NULL, OQ_ACT_NONE);
    memory_ckpt_add(&w->ckpt, "a.input_scale", &oq_dtype_f32, &one, -1, -1);
    accept(w, NULL, OQ_ACT_NONE);
    say_comfy(w, "{\"format\": \"nvfp4\"}");
    accept(w, NULL, OQ_ACT_STATIC_NVFP4);
    say_comfy(w, "{\"format\": \"nvfp4\", \"group_size\": 16}");
    accept(w, NULL, OQ_ACT_STATIC_NVFP4);
    say_comfy(w, "{\"format\": \"nvfp4\", \"params\": {\"group_size\": 32}}");
    refuse_as(w, OQ_E_FORMAT, NULL,
              "layer 'a' is said to be in ComfyUI's format 'nvfp4' with group_size 32; that format has 16");
}

/* Scales under which nothing is left of x. */
static void test_absurd_scales(void **state)
{
    static const float tiny = 1e-44f, huge = 3e38f;
    world *w = *state;
    start_fp8(w);
    say_comfy(w, "{\"format\": \"float8_e4m3fn\"}");
    memory_ckpt_add(&w->ckpt, "a.input_scale", &oq_dtype_f32, &tiny, 1, -1);
    refuse_as(w, OQ_E_FORMAT, NULL,
              "tensor 'a.input_scale' is 9.80909e-45: under it activations are infinities");
    memory_ckpt_remove(&w->ckpt, "a.input_scale");
    memory_ckpt_add(&w->ckpt, "a.input_scale", &oq_dtype_f32, &huge, 1, -1);
    refuse_as(w, OQ_E_FORMAT, NULL, "tensor 'a.input_scale' is 3e+38: under it activations are zeros");
}

/* ComfyUI runs its text encoders in floats, whatever their layers' words are. */
static void test_comfy_encoder(void **state)
{
    static const struct {
        const char *word;
        oq_act_scale act;
    } rows[] = {{"{\"format\": \"float8_e4m3fn\"}", OQ_ACT_DYNAMIC_TOKEN},
                {"{\"format\": \"nvfp4\"}", OQ_ACT_DYNAMIC_NVFP4},
                {"{\"format\": \"convrot_w4a4\", \"convrot_groupsize\": 16}", OQ_ACT_DYNAMIC_TOKEN4}};
    static uint8_t tiles[128 * 4];
    world *w = *state;
    memset(tiles, 0x38, sizeof tiles);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        start_fp8(w);
        if (i > 0) {
            memory_ckpt_init(&w->ckpt);
            memory_ckpt_add(&w->ckpt, "a.weight", i == 1 ? &oq_dtype_u8 : &oq_dtype_i8, codes, N, K / 2);
        }
        if (i == 1) {
            memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_f8_e4m3, tiles, 128, 4);
            memory_ckpt_add(&w->ckpt, "a.weight_scale_2", &oq_dtype_f32, &one, -1, -1);
        } else if (i == 2) {
            memory_ckpt_add(&w->ckpt, "a.weight_scale", &oq_dtype_f32, row_scales, N, -1);
        }
        say_comfy(w, rows[i].word);
        w->encoder = false;
        accept(w, NULL, rows[i].act);
        w->encoder = true;
        accept(w, NULL, OQ_ACT_NONE);
    }
    w->encoder = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_compressed_tensors, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_quark, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_autoround_floats, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_autoround_blocks, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_torchao, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_comfy_nvfp4, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_absurd_scales, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_comfy_encoder, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
