/* test_resolve_files.c -- what a quantized file declares: adopted, refined by a request, refused, read layer by layer; and weights
 * that are made up in its place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/resolve_world.h"

/* ---- quantized checkpoints ----------------------------------------------------------------------------- */

/* 28, 39, 40: nothing asked, the checkpoint decides. */
static void test_adopted(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0,
            "{\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", \"modules_to_not_convert\": "
            "[\"w2\"]}");
    quantize_all(w, &oq_dtype_f8_e4m3);
    memory_ckpt_remove(&w->ckpt[0], "layers.1.feed_forward.w2.weight_scale");
    memory_ckpt_add(&w->ckpt[0], "layers.1.feed_forward.w2.weight", &oq_dtype_bf16, plain, D, D);
    accept(w, NULL, c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_SERIALIZED);
    assert_string_equal(component(w, 0)->from, "checkpoint");
    assert_string_equal(component(w, 0)->dialect->name, "fp8");
    assert_true(component(w, 0)->routes[0].args->serialized);
    assert_int_equal(component(w, 1)->source, OQ_SOURCE_NONE);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_channel, "fp8");
    assert_true(c[QKV].serialized);
    assert_string_equal(c[QKV].part[2].plane[OQ_PLANE_SCALE].tensor->name,
                        "layers.0.attention.to_v.weight_scale");
    expect_layer(&c[W2], NULL, "ignored by 'w2'");
    expect_layer(&c[EMBEDDER], NULL, "embedder");
    assert_int_equal(w->resolved->n_warnings, 0);

    declare(w, 0, "\"fp8\""); /* a bare name; w2 is then plain without being listed */
    accept(w, NULL, c);
    expect_layer(&c[W2], NULL, "plain in the file");
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(strstr(w->resolved->warnings[0], "1 layers are plain in the file although 'fp8'"));
    assert_non_null(strstr(w->resolved->warnings[0], "'layers.1.feed_forward.w2'"));

    declare(w, 0, "{\"quant_method\": \"fp8\", \"modules_to_not_convert\": [\"w2\", \"lm_head\"]}");
    accept(w, NULL, c);
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(
        strstr(w->resolved->warnings[0], "the checkpoint ignores 'lm_head', which matches no layer"));

    declare(w, 0, "{\"quant_method\": \"mxfp8\", \"is_checkpoint_mxfp8_serialized\": true}");
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].args->method->name, "mxfp8");
    assert_true(component(w, 0)->routes[0].args->serialized);
    assert_string_equal(component(w, 0)->dialect->name, "mx");
    refuse_plan(w, NULL, OQ_E_FORMAT,
                "scale 'layers.0.attention.to_q.weight_scale' has 128 values of F32|of U8");
}

static void test_int8_adopted(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0, "{\"quant_method\": \"int8\"}");
    quantize_all(w, &oq_dtype_i8);
    accept(w, NULL, c);
    assert_true(component(w, 0)->routes[0].args->serialized);
    expect_layer(&c[W13], &oq_format_int8_channel, "int8");
    declare(w, 0, NULL); /* the tensors alone say it too */
    accept(w, NULL, c);
    assert_string_equal(component(w, 0)->from, "checkpoint");
    expect_layer(&c[W13], &oq_format_int8_channel, "int8");
    accept(w, "{\"method\": \"int8\"}", c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_SERIALIZED);
    assert_int_equal(component(w, 1)->source, OQ_SOURCE_ONLINE);
    refuse(w, "fp8", OQ_E_MISMATCH, "'transformer'|asks for 'fp8'|the tensors of 'memory' are 'int8'");
}

/* 21, 42 and their kind: both sides are named. */
static void test_conflicts(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}");
    refuse(w, "fp8", OQ_E_MISMATCH, "'transformer'|asks for 'fp8'|'net/config.json' declares 'modelopt_fp4'");
    declare(w, 0, "{\"quant_method\": \"mxfp8\"}");
    refuse(w, "fp8", OQ_E_MISMATCH, "asks for 'fp8'|'mxfp8'");
    refuse(w, "none", OQ_E_MISMATCH, "asks for 'none'|'mxfp8'");
    refuse(w, "{\"transformer\": null, \"vae\": null}", OQ_E_MISMATCH, "asks for 'none'|'mxfp8'");
    refuse(w, "{\"transformer.layers.0\": {\"method\": \"fp8\"}}", OQ_E_MISMATCH, "asks for 'fp8'|'mxfp8'");
    declare(w, 0, "{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\"}");
    refuse(w, "{\"method\": \"fp8\", \"activation_scheme\": \"dynamic\"}", OQ_E_MISMATCH,
           "sets activation_scheme to \"dynamic\"|'net/config.json' declares \"static\"");
    declare(w, 0, "{\"quant_method\": \"vptq\"}");
    refuse(w, NULL, OQ_E_UNSUPPORTED,
           "'net/config.json' declares quantization method 'vptq'|not in this build yet");
    declare(w, 0, "{\"quant_method\": \"fp8\", \"colour\": \"red\"}");
    refuse(w, NULL, OQ_E_CONFIG, "net/config.json: method 'fp8' has no option 'colour'");
    declare(w, 0, NULL);
    declare(w, 2, "{\"quant_method\": \"fp8\"}");
    refuse(w, NULL, OQ_E_UNSUPPORTED, "'vae'|'net/config.json'|AutoencoderKL is read plain");
}

/* 22, 45: a block that names no method cannot be read, whatever was asked. */
static void test_unreadable(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"foo\": \"bar\"}");
    refuse(w, NULL, OQ_E_FORMAT, "'transformer'|'net/config.json' names no quant_method|foo");
    declare(w, 0, "{\"method\": \"mxfp8\"}");
    refuse(w, NULL, OQ_E_FORMAT, "'net/config.json' names no quant_method|method");
    refuse(w, "mxfp8", OQ_E_FORMAT, "'net/config.json' names no quant_method");
    declare(w, 0, "{}");
    refuse(w, NULL, OQ_E_FORMAT, "its keys are: none");
    declare(w, 0, "[1]");
    refuse(w, NULL, OQ_E_FORMAT, "'net/config.json' must be a mapping, not a list");
    declare(w, 0, "{\"quant_method\": 3}");
    refuse(w, NULL, OQ_E_FORMAT, "names no quant_method");
}

/* 41, 43, 44, 46: agreement; what the file says replaces what the request only assumed. */
static void test_refined(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"quant_method\": \"mxfp8\", \"is_checkpoint_mxfp8_serialized\": true}");
    assert_int_equal(resolve(w, "mxfp8"), OQ_OK);
    assert_true(component(w, 0)->routes[0].args->serialized);
    assert_string_equal(component(w, 0)->from, "flag");
    assert_int_equal(resolve(w, "{\"quant_method\": \"mxfp8\"}"),
                     OQ_OK); /* the file's own block, given again */
    assert_int_equal(component(w, 1)->source, OQ_SOURCE_NONE);

    declare(w, 0, "{\"quant_method\": \"mxfp8\", \"ignored_layers\": [\"w2\", \"to_qkv\"]}");
    assert_int_equal(resolve(w, "{\"quant_method\": \"mxfp8\", \"ignored_layers\": [\"to_qkv\", \"w2\"]}"),
                     OQ_OK);
    assert_int_equal(w->resolved->n_warnings, 0);
    assert_int_equal(component(w, 0)->routes[0].n_ignored, 2);

    assert_int_equal(resolve(w, "{\"method\": \"mxfp8\", \"ignored_layers\": [\"other\"]}"), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].ignored[0].text, "w2");
    assert_false(component(w, 0)->routes[0].ignored[0].user);
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(
        strstr(w->resolved->warnings[0], "'transformer': ignored_layers of the request are replaced"));

    declare(w, 0,
            "{\"quant_method\": \"auto-round\", \"bits\": 8, \"group_size\": 32, \"data_type\": \"mx_fp\"}");
    assert_int_equal(resolve(w, "{\"method\": \"inc\", \"bits\": 8, \"group_size\": 32}"), OQ_OK);
    assert_true(component(w, 0)->routes[0].args->serialized);
    assert_string_equal(oq_json_string(option(w, 0, "data_type")), "mx_fp");
    assert_int_equal(resolve(w, "auto_round"),
                     OQ_OK); /* the name alone is enough where the file knows the rest */
    refuse(w, "{\"method\": \"inc\", \"bits\": 4}", OQ_E_MISMATCH, "sets weight_bits to 4|declares 8");
}

/* The request decides how to run, the file what it holds; either may ask for smoothing scales. */
static void test_sides(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"quant_method\": \"mxfp4\", \"mxfp4_scale_alg\": 2, \"w4a8_fallback_steps\": [1]}");
    assert_int_equal(resolve(w, "{\"transformer\": {\"method\": \"mxfp4\", \"w4a8_fallback_steps\": [], "
                                "\"require_smooth_scale\": true}}"),
                     OQ_OK);
    assert_int_equal(oq_json_int(option(w, 0, "mxfp4_scale_alg"), 9), 0);
    assert_int_equal(oq_json_size(option(w, 0, "w4a8_fallback_steps")), 0);
    assert_true(oq_json_bool(option(w, 0, "require_smooth_scale"), false));
    declare(w, 0, "{\"quant_method\": \"mxfp4\", \"require_smooth_scale\": true}");
    assert_int_equal(resolve(w, "{\"method\": \"mxfp4\", \"require_smooth_scale\": false}"), OQ_OK);
    assert_true(oq_json_bool(option(w, 0, "require_smooth_scale"), false));
    declare(w, 0, "{\"quant_method\": \"mxfp4\", \"require_smooth_scale\": \"yes\"}");
    refuse(w, "mxfp4", OQ_E_CONFIG, "net/config.json|require_smooth_scale");
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    assert_int_equal(resolve(w, "{\"method\": \"fp8\", \"weight_strategy\": \"block\"}"), OQ_OK);
    assert_int_equal(w->resolved->n_warnings, 1);
    assert_non_null(strstr(w->resolved->warnings[0], "weight_strategy has no effect"));
}

/* A file may only name a method to apply while loading. */
static void test_declared_online(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0,
            "{\"quant_method\": \"fp8\", \"is_checkpoint_fp8_serialized\": false, \"weight_strategy\": "
            "\"channel\"}");
    accept(w, NULL, c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_ONLINE);
    assert_string_equal(component(w, 0)->from, "checkpoint");
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_channel, "fp8");
    accept(w, "{\"transformer\": {\"method\": \"fp8\", \"weight_strategy\": \"block\"}}", c);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_block128, "fp8");
}

/* 24, 25 and the adoption rules between fp8 and ModelOpt's FP8. */
static void test_modelopt(void **state)
{
    world *w = *state;
    declare(w, 0,
            "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": \"FP8\", "
            "\"exclude_modules\": []}}");
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].args->method->name, "modelopt");
    assert_int_equal(resolve(w, "fp8"), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].args->method->name, "modelopt");
    refuse(w, "{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", OQ_E_MISMATCH,
           "options of method 'fp8'|'modelopt'");
    assert_int_equal(resolve(w, "modelopt"), OQ_OK);
    declare(w, 0,
            "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": "
            "{\"a\": {}}}");
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_string_equal(component(w, 0)->routes[0].args->method->name, "modelopt_mixed");
    declare(w, 0, "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}");
    static const char *const agree[] = {"modelopt", "modelopt_fp4", "nvfp4", "FP4"};
    for (size_t i = 0; i < OQ_COUNT(agree); i++) {
        assert_int_equal(resolve(w, agree[i]), OQ_OK);
        assert_string_equal(component(w, 0)->routes[0].args->method->name, "modelopt_fp4");
        assert_int_equal(component(w, 1)->source, OQ_SOURCE_NONE);
    }
    refuse_plan(w, NULL, OQ_E_MISMATCH,
                "'modelopt_fp4' is declared|none of its 5 layers is quantized in the file");
}

/* Must the parts of a layer be multiplied one by one? */
static void expect_apart(world *w, int layer, bool wanted)
{
    bool apart = !wanted;
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_int_equal(oq_resolve_apart(w->env, w->resolved, component(w, 0), &layers[layer], w->in[0].ckpt,
                                      NULL, NULL, &apart),
                     OQ_OK);
    assert_int_equal(apart, wanted);
}

/* Per-tensor scales of fused parts become a scale per row; parts must be of one kind. */
static void test_fused(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    quantize_all(w, &oq_dtype_f8_e4m3);
    quantize(w, "layers.0.attention.to_q", D, 0, &oq_dtype_f8_e4m3);
    quantize(w, "layers.0.feed_forward.w1", 2 * D, 0, &oq_dtype_f8_e4m3);
    quantize(w, "layers.0.feed_forward.w3", 2 * D, 0, &oq_dtype_f8_e4m3);
    quantize(w, "layers.1.feed_forward.w2", D, 0, &oq_dtype_f8_e4m3);
    accept(w, NULL, c);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_channel, "fp8");
    assert_ptr_equal(c[QKV].part[0].format, &oq_format_fp8_e4m3_tensor);
    expect_layer(&c[W13], &oq_format_fp8_e4m3_channel, "fp8");
    expect_layer(&c[W2], &oq_format_fp8_e4m3_tensor, "fp8");

    memory_ckpt_add(&w->ckpt[0], "layers.0.feed_forward.w1.input_scale", &oq_dtype_f32, scales, -1, -1);
    expect_apart(w, W13, true); /* treatments of activations that differ: two products */
    memory_ckpt_add(&w->ckpt[0], "layers.0.feed_forward.w3.input_scale", &oq_dtype_f32, scales, -1, -1);
    accept(w, NULL, c);
    assert_int_equal(c[W13].scheme.act_scale, OQ_ACT_STATIC_TENSOR);
    assert_string_equal(c[W13].part[1].plane[OQ_PLANE_INPUT_SCALE].tensor->name,
                        "layers.0.feed_forward.w3.input_scale");
    expect_apart(w, W13, false);

    memory_ckpt_remove(&w->ckpt[0], "layers.0.attention.to_k.weight_scale");
    memory_ckpt_add(&w->ckpt[0], "layers.0.attention.to_k.weight", &oq_dtype_bf16, plain, D, D);
    expect_apart(w, QKV, true); /* one part is plain */
    quantize(w, "layers.0.attention.to_k", D, 0, &oq_dtype_f8_e4m3);
    memory_ckpt_remove(&w->ckpt[0], "layers.0.attention.to_k.weight_scale");
    memory_ckpt_add(&w->ckpt[0], "layers.0.attention.to_k.weight_scale_inv", &oq_dtype_f32, scales, 1, 1);
    accept(w, NULL, c); /* one number is one scale, whatever its name */
}

/* Sparse numbers of fused parts are plain ones once they stand in their places. */
static void test_fused_sparse(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    static uint8_t bits[2 * D * D / 8];
    static const int64_t shape[2] = {2 * D, D};
    static const char *const removed[2] = {"layers.0.feed_forward.w1.weight",
                                           "layers.0.feed_forward.w3.weight"};
    static char names[2][3][96];
    memset(bits, 0x33, sizeof bits);
    declare(w, 0,
            "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {}, \"quantization_status\": "
            "\"compressed\", \"sparsity_config\": {\"format\": \"sparse-24-bitmask\", \"ignore\": [], "
            "\"sparsity_structure\": \"2:4\", \"targets\": [\"Linear\"]}}");
    for (int i = 0; i < 2; i++) {
        const char *part = layers[W13].parts[i];
        memory_ckpt_remove(&w->ckpt[0], removed[i]);
        snprintf(names[i][0], 96, "%s.compressed", part);
        snprintf(names[i][1], 96, "%s.bitmask", part);
        snprintf(names[i][2], 96, "%s.shape", part);
        memory_ckpt_add(&w->ckpt[0], names[i][0], &oq_dtype_bf16, plain, 2 * D, D / 2);
        memory_ckpt_add(&w->ckpt[0], names[i][1], &oq_dtype_u8, bits, 2 * D, D / 8);
        memory_ckpt_add(&w->ckpt[0], names[i][2], &oq_dtype_i64, shape, 2, 1);
    }
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_int_equal(choose(w, W13, c), OQ_OK);
    expect_layer(c, &oq_format_bf16, "compressed-tensors");
}

static void test_fused_blocks(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    declare(w, 0, "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}");
    static char names[2][96];
    for (int i = 0; i < 2; i++) {
        snprintf(names[i], 96, "%s.weight_scale_inv", layers[W13].parts[i]);
        quantize(w, layers[W13].parts[i], 2 * D, 1, &oq_dtype_f8_e4m3);
    }
    memory_ckpt_remove(&w->ckpt[0], "layers.0.feed_forward.w1.weight_scale");
    memory_ckpt_remove(&w->ckpt[0], "layers.0.feed_forward.w3.weight_scale");
    for (int i = 0; i < 2; i++) memory_ckpt_add(&w->ckpt[0], names[i], &oq_dtype_f32, scales, 2, 1);
    accept(w, NULL, c);
    expect_layer(&c[W13], &oq_format_fp8_e4m3_block128, "fp8");
    assert_int_equal(c[W13].scheme.act_scale, OQ_ACT_DYNAMIC_GROUP);

    oq_layer_desc ragged = layers[W13]; /* 192 rows: a block would reach from w1 into w3 */
    ragged.part_n = (const int64_t[]){192, 192};
    ragged.n = 384;
    memory_ckpt_add(&w->ckpt[0], "layers.0.feed_forward.w1.weight", &oq_dtype_f8_e4m3, codes, 192, D);
    memory_ckpt_add(&w->ckpt[0], "layers.0.feed_forward.w3.weight", &oq_dtype_f8_e4m3, codes, 192, D);
    assert_int_equal(resolve(w, NULL), OQ_OK);
    assert_int_equal(
        oq_resolve_layer(w->env, w->resolved, component(w, 0), &ragged, w->in[0].ckpt, NULL, NULL, c), OQ_OK);
    expect_layer(c, &oq_format_fp8_e4m3_group128, "fp8");
    assert_int_equal(c->scheme.act_scale, OQ_ACT_DYNAMIC_GROUP);
    float rows[192];
    const oq_plane_source *scale = &c->part[1].plane[OQ_PLANE_SCALE];
    scale->fix(rows, scale->tensor, 192, D);
    assert_true(rows[0] <= scales[0] && rows[127] >= scales[0]);
    assert_true(rows[128] >= scales[1] && rows[191] <= scales[1]);
}

/* What is ignored or asked to stay plain must be plain in the file; what a network keeps may be quantized there. */
static void test_file_against_wishes(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    quantize_all(w, &oq_dtype_f8_e4m3);
    declare(w, 0, "{\"quant_method\": \"fp8\", \"ignored_layers\": [\"w2\"]}");
    refuse_plan(w, NULL, OQ_E_MISMATCH,
                "'layers.1.feed_forward.w2' is ignored by 'w2'|'layers.1.feed_forward.w2.weight' is F8_E4M3");
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    refuse_plan(w, "{\"method\": \"fp8\", \"ignored_layers\": [\"w2\"]}", OQ_E_MISMATCH,
                "is ignored by 'w2'");
    refuse_plan(w, "{\"transformer\": \"fp8\", \"transformer.layers.1\": null}", OQ_E_MISMATCH,
                "'layers.1.feed_forward.w2' is asked to stay unquantized");
    quantize(w, "t_embedder", D, 0, &oq_dtype_f8_e4m3);
    accept(w, NULL, c);
    expect_layer(&c[EMBEDDER], &oq_format_fp8_e4m3_tensor, "fp8");
}

/* A checkpoint that says it is quantized and is not. */
static void test_declared_without_effect(void **state)
{
    world *w = *state;
    declare(w, 0, "{\"quant_method\": \"fp8\"}");
    refuse_plan(w, NULL, OQ_E_MISMATCH,
                "'transformer'|'fp8' is declared, but none of its 5 layers is quantized");
}

/* Made-up weights are plain: a declared method is applied while loading. */
static void test_dummy(void **state)
{
    world *w = *state;
    oq_layer_choice c[OQ_COUNT(layers)];
    w->in[0].ckpt = w->in[1].ckpt = NULL;
    declare(w, 0,
            "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"ignored_layers\": [\"w2\"]}");
    accept(w, NULL, c);
    assert_int_equal(component(w, 0)->source, OQ_SOURCE_ONLINE);
    expect_layer(&c[QKV], &oq_format_fp8_e4m3_tensor, "fp8");
    expect_layer(&c[W2], NULL, "ignored by 'w2'");
    assert_non_null(
        strstr(w->resolved->warnings[0], "'net/config.json' declares 'fp8'; its weights are made up"));
    declare(w, 0, NULL);
    accept(w, "int8", c);
    expect_layer(&c[QKV], &oq_format_int8_channel, "int8");
    accept(w, NULL, c);
    expect_layer(&c[QKV], NULL, "no method for this component");
}

/* A producer's algorithm is what the made-up layers get; static scales, which only a file has, become dynamic. */
static void test_dummy_of_producers(void **state)
{
    world *w = *state;
    static const struct {
        const char *algo;
        const oq_format *weight;
        const oq_dtype *act;
        oq_act_scale scale;
    } rows[] = {
        {"FP8", &oq_format_fp8_e4m3_tensor, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
        {"FP8_PER_CHANNEL_PER_TOKEN", &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
        {"fp8_pb_wo", &oq_format_fp8_e4m3_block128, NULL, OQ_ACT_NONE},
        {"NVFP4", &oq_format_nvfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_NVFP4},
        {"W4A16_NVFP4", &oq_format_nvfp4, NULL, OQ_ACT_NONE},
        {"W4A16_AWQ", &oq_format_int4_g128, NULL, OQ_ACT_NONE},
        {"MXFP8", &oq_format_mxfp8, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX},
    };
    w->in[0].ckpt = w->in[1].ckpt = NULL;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_layer_choice c[OQ_COUNT(layers)];
        char text[160];
        snprintf(text, sizeof text,
                 "{\"quant_method\": \"modelopt\", \"quant_algo\": \"%s\", \"ignore\": [\"*w2\"]}",
                 rows[i].algo);
        declare(w, 0, text);
        accept(w, NULL, c);
        assert_ptr_equal(c[QKV].scheme.weight, rows[i].weight);
        assert_ptr_equal(c[QKV].scheme.act, rows[i].act);
        assert_int_equal(c[QKV].scheme.act_scale, rows[i].scale);
        expect_layer(&c[W2], NULL, "ignored by '*w2'");
    }
    declare(w, 0, "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 32}");
    refuse(w, NULL, OQ_E_UNSUPPORTED,
           "'net/config.json' declares 'gptq', whose layers dummy loading does not make up");
    declare(w, 0, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_adopted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_int8_adopted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_conflicts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unreadable, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refined, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sides, setup, teardown),
        cmocka_unit_test_setup_teardown(test_declared_online, setup, teardown),
        cmocka_unit_test_setup_teardown(test_modelopt, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fused, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fused_sparse, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fused_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_file_against_wishes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_declared_without_effect, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dummy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_dummy_of_producers, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
