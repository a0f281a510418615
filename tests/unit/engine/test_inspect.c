/* test_inspect.c -- the inspect command through the public interface: what it finds, what it calls a problem, which values
 * it prints, and what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct bench {
    oq_env *env;
    const char *dir;
    oq_report *report;
    oq_json *json; /* of the report */
} bench;

static int setup(void **state)
{
    static bench b;
    static char dir[1024];
    if (oq_env_new(NULL, &b.env) != OQ_OK) return -1;
    snprintf(dir, sizeof dir, "%s", scratch_dir(OMNIQ_BINARY_DIR, "inspect"));
    b.dir = dir;
    *state = &b;
    return 0;
}

static int forget(void **state)
{
    bench *b = *state;
    oq_report_free(b->report);
    oq_json_free(b->json);
    b->report = NULL;
    b->json = NULL;
    oq_env_clear(b->env);
    return 0;
}

static int teardown(void **state)
{
    bench *b = *state;
    oq_env_free(b->env);
    return 0;
}

/* `flag` and `value` may be NULL. */
static oq_status inspect(bench *b, const char *path, const char *flag, const char *value)
{
    oq_options *options = NULL;
    forget((void **)&b);
    assert_int_equal(oq_options_new(b->env, "inspect", &options), OQ_OK);
    if (path) assert_int_equal(oq_options_add_argument(options, path), OQ_OK);
    if (flag) assert_int_equal(oq_options_set(options, flag, value), OQ_OK);
    assert_int_equal(oq_options_set(options, "limit", "5"), OQ_OK);
    const oq_status st = oq_run(options, &b->report);
    oq_options_free(options);
    if (st != OQ_OK) return st;
    const char *text = oq_report_json(b->report);
    assert_int_equal(oq_json_parse(b->env, text, strlen(text), "report", &b->json), OQ_OK);
    return OQ_OK;
}

static void refused(bench *b, const char *path, const char *flag, const char *value, oq_status status,
                    const char *message)
{
    assert_int_equal(inspect(b, path, flag, value), status);
    assert_string_equal(oq_env_error(b->env), message);
    oq_env_clear(b->env);
}

/* The member as compact JSON equals the text. */
static void member_is(bench *b, const oq_json *object, const char *key, const char *expected)
{
    char *text = NULL;
    assert_int_equal(oq_json_dump(b->env, oq_json_get(object, key), OQ_JSON_COMPACT, &text), OQ_OK);
    assert_string_equal(text, expected);
    oq_free(b->env, text);
}

static void problem_is(bench *b, size_t i, const char *severity, const char *tensor, const char *message)
{
    const oq_json *row = oq_json_at(oq_json_get(b->json, "problems"), i);
    assert_non_null(row);
    assert_string_equal(oq_json_string(oq_json_get(row, "severity")), severity);
    if (tensor) assert_string_equal(oq_json_string(oq_json_get(row, "tensor")), tensor);
    assert_string_equal(oq_json_string(oq_json_get(row, "message")), message);
}

static size_t n_problems(bench *b)
{
    return oq_json_size(oq_json_get(b->json, "problems"));
}

/* ---- files that tests make ----------------------------------------------------------------------------- */

#define WEIGHT(shape, end)                                                                                   \
    "\"l.weight\":{\"dtype\":\"F8_E4M3\",\"shape\":" shape ",\"data_offsets\":[0," end "]}"
#define TENSOR(name, dtype, shape, begin, end)                                                               \
    ",\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

/* Codes 1, -1, 0, 448 and 2, 2, 2, 2; scales 0.5 and 2 per row. */
static const char fp8_bytes[] = "\x38\xb8\x00\x7e\x40\x40\x40\x40\x00\x00\x00\x3f\x00\x00\x00\x40";

static const char *put_fp8(bench *b, const char *name)
{
    scratch_safetensors(b->dir, name,
                        "{" WEIGHT("[2,4]", "8") TENSOR("l.weight_scale", "F32", "[2]", "8", "16") "}",
                        fp8_bytes, 16);
    return scratch_path(b->dir, name);
}

static void test_plain_file(void **state)
{
    bench *b = *state;
    assert_int_equal(inspect(b, "tests/data/ckpt/S30_meta_braces.safetensors", NULL, NULL), OQ_OK);
    member_is(b, b->json, "format", "\"safetensors\"");
    member_is(b, b->json, "metadata",
              "{\"note\": \"unbalanced }} \\\"quoted\\\\\\\" { brace\", \"format\": \"pt\"}");
    member_is(b, b->json, "tensors",
              "[{\"name\": \"a\", \"dtype\": \"F32\", \"shape\": [4], \"bytes\": 16}]");
    member_is(b, b->json, "quantization", "null");
    member_is(b, b->json, "problems", "[]");
    assert_string_equal(oq_report_text(b->report),
                        "path         tests/data/ckpt/S30_meta_braces.safetensors\n"
                        "weights      safetensors, 1 file, 168 B, 1 tensor: 1 F32\n"
                        "metadata     note = unbalanced }} \"quoted\\\" { brace\n"
                        "             format = pt\n"
                        "quantization none\n"
                        "  a     F32      [4]\n"
                        "\n"
                        "judged       by its tensors alone; with --model DIR as generate would take it\n"
                        "problems     none\n");
    assert_true(oq_report_passed(b->report));
}

static void test_model(void **state)
{
    bench *b = *state;
    assert_int_equal(inspect(b, "models/toybox", NULL, NULL), OQ_OK);
    member_is(b, b->json, "format", "\"model\"");
    member_is(b, b->json, "class", "\"ZImagePipeline\"");
    member_is(b, b->json, "quantization", "null");
    member_is(b, b->json, "problems", "[]");
    const oq_json *tensors = oq_json_get(b->json, "tensors"),
                  *components = oq_json_get(b->json, "components");
    assert_int_equal(oq_json_size(tensors), 223 + 35 + 184);
    member_is(b, oq_json_at(tensors, 0), "component", "\"text_encoder\"");
    assert_int_equal(oq_json_size(components), 5);
    member_is(b, oq_json_get(components, "transformer"), "class", "\"ZImageTransformer2DModel\"");
    assert_int_equal(oq_json_size(oq_json_get(oq_json_get(components, "transformer"), "files")), 2);
    member_is(b, oq_json_get(components, "scheduler"), "files", "[]");
}

static void test_component_folder(void **state)
{
    bench *b = *state;
    assert_int_equal(inspect(b, "models/toybox/vae/", NULL, NULL), OQ_OK);
    member_is(b, b->json, "format", "\"folder\"");
    member_is(b, b->json, "class", "\"AutoencoderKL\"");
    member_is(b, b->json, "path", "\"models/toybox/vae\"");
    assert_int_equal(oq_json_size(oq_json_get(b->json, "tensors")), 184);
}

/* A folder that holds one variant alone says how to ask for it, and then is read. */
static void test_variant(void **state)
{
    bench *b = *state;
    char path[1024], message[2048];
    scratch_subdir(b->dir, "variant");
    put_fp8(b, "variant/model.fp16.safetensors");
    snprintf(path, sizeof path, "%s/variant", b->dir);
    snprintf(message, sizeof message,
             "%s: holds weights of variant 'fp16' alone: ask for it by --variant fp16", path);
    refused(b, path, NULL, NULL, OQ_E_NOTFOUND, message);
    assert_int_equal(inspect(b, path, "variant", "fp16"), OQ_OK);
    assert_int_equal(oq_json_size(oq_json_get(b->json, "tensors")), 2);
}

/* A quantized file without a word about it: found by its tensors. */
static void test_quantized_file(void **state)
{
    bench *b = *state;
    assert_int_equal(inspect(b, put_fp8(b, "fp8.safetensors"), NULL, NULL), OQ_OK);
    const oq_json *q = oq_json_get(b->json, "quantization");
    member_is(b, q, "dialect", "\"fp8\"");
    member_is(b, q, "method", "\"fp8\"");
    member_is(b, q, "unclaimed", "[]");
    member_is(
        b, q, "layers",
        "[{\"name\": \"l\", \"format\": \"fp8_e4m3_channel\", \"shape\": [2, 4], \"act\": \"fp8_e4m3\", "
        "\"act_scale\": \"dynamic_token\", \"planes\": {\"data\": {\"tensor\": \"l.weight\", \"dtype\": "
        "\"F8_E4M3\", \"shape\": [2, 4]}, \"scale\": {\"tensor\": \"l.weight_scale\", \"dtype\": \"F32\", "
        "\"shape\": [2]}}}]");
    assert_int_equal(n_problems(b), 0);
    assert_non_null(strstr(oq_report_text(b->report),
                           "quantization fp8, spelled as fp8: 1 quantized layer\n"
                           "  l  [2, 4]  fp8_e4m3_channel, activations fp8_e4m3 dynamic_token\n"));
}

/* config.json beside the file is read with it, for a file and for its folder. */
static void test_declaration(void **state)
{
    bench *b = *state;
    scratch_subdir(b->dir, "declared");
    put_fp8(b, "declared/model.safetensors");
    scratch_text(b->dir, "declared/config.json",
                 "{\"architectures\":[\"OtherModel\"],\"quantization_config\":{\"quant_method\":\"fp8\","
                 "\"activation_scheme\":\"dynamic\"}}");
    for (int folder = 0; folder < 2; folder++) {
        const char *path = scratch_path(b->dir, folder ? "declared" : "declared/model.safetensors");
        assert_int_equal(inspect(b, path, NULL, NULL), OQ_OK);
        member_is(b, b->json, "class", "\"OtherModel\"");
        member_is(b, b->json, "declared", "{\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\"}");
        assert_string_equal(oq_path_leaf(oq_json_string(oq_json_get(b->json, "declared_in"))), "config.json");
        assert_int_equal(oq_json_size(oq_json_get(oq_json_get(b->json, "quantization"), "layers")), 1);
        assert_int_equal(n_problems(b), 1);
        problem_is(b, 0, "error", NULL, "class 'OtherModel' is no network that this build runs");
    }
    scratch_text(b->dir, "declared/config.json", "{\"quantization_config\":[8]}");
    assert_int_equal(inspect(b, scratch_path(b->dir, "declared"), NULL, NULL), OQ_OK);
    assert_int_equal(n_problems(b), 1);
    assert_non_null(
        strstr(oq_report_text(b->report), "config.json: quantization_config is a list, not an object\n"));
}

/* ---- health -------------------------------------------------------------------------------------------- */

static void test_nan_codes(void **state)
{
    bench *b = *state;
    scratch_safetensors(b->dir, "nan.safetensors",
                        "{" WEIGHT("[1,4]", "4") TENSOR("l.weight_scale", "F32", "[]", "4", "8") "}",
                        "\x38\x7f\x38\xff\x00\x00\x80\x3f", 8);
    assert_int_equal(inspect(b, scratch_path(b->dir, "nan.safetensors"), NULL, NULL), OQ_OK);
    assert_int_equal(n_problems(b), 1);
    assert_false(oq_report_passed(b->report));
    problem_is(b, 0, "error", "l.weight", "2 of 4 values are not finite, the first at index 1 is NaN (0x7f)");
}

/* One bad value per type, at odd addresses; the largest finite values are none. */
static void test_bad_values_of_every_type(void **state)
{
    bench *b = *state;
    static const char header[] =
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}" TENSOR("bf", "BF16", "[2]", "1", "5")
            TENSOR("f16", "F16", "[2]", "5", "9") TENSOR("f32", "F32", "[2]", "9", "17")
                TENSOR("f64", "F64", "[2]", "17", "33") TENSOR("f8", "F8_E5M2", "[2]", "33", "35") "}";
    static const unsigned char data[] = {
        0xff, 0x7f, 0x7f, 0x80, 0xff,                   /* bf16: largest, -infinity */
        0xff, 0x7b, 0x01, 0x7c,                         /* f16: largest, NaN */
        0xff, 0xff, 0x7f, 0x7f, 0x00, 0x00, 0xc0, 0xff, /* f32: largest, -NaN */
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xef, 0x7f,
        0,    0,    0,    0,    0,    0,    0xf0, 0x7f, /* f64: largest, infinity */
        0x7b, 0xfd,                                     /* e5m2: largest, -NaN */
    };
    scratch_safetensors(b->dir, "bad.safetensors", header, data, sizeof data);
    assert_int_equal(inspect(b, scratch_path(b->dir, "bad.safetensors"), NULL, NULL), OQ_OK);
    problem_is(b, 0, "error", "f8", "1 tensor looks quantized, but in no spelling that this build reads");
    problem_is(b, 1, "error", "bf",
               "1 of 2 values are not finite, the first at index 1 is infinite (0xff80)");
    problem_is(b, 2, "error", "f16", "1 of 2 values are not finite, the first at index 1 is NaN (0x7c01)");
    problem_is(b, 3, "error", "f32",
               "1 of 2 values are not finite, the first at index 1 is NaN (0xffc00000)");
    problem_is(b, 4, "error", "f64",
               "1 of 2 values are not finite, the first at index 1 is infinite (0x7ff0000000000000)");
    problem_is(b, 5, "error", "f8", "1 of 2 values are not finite, the first at index 1 is NaN (0xfd)");
}

static void test_bad_scales(void **state)
{
    bench *b = *state;
    static const struct {
        const char *scale, *message; /* the bytes of one F32 */
    } rows[] = {
        {"\x00\x00\x00\x00", "scale 'l.weight_scale' is 0 at index 0, beside codes that are not zero"},
        {"\x00\x00\xc0\x7f", "scale 'l.weight_scale' is nan at index 0; it must be positive and finite"},
        {"\x00\x00\x80\xbf", "scale 'l.weight_scale' is -1 at index 0; it must be positive and finite"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char data[8] = "\x38\x38\x38\x38";
        memcpy(data + 4, rows[i].scale, 4);
        scratch_safetensors(b->dir, "scale.safetensors",
                            "{" WEIGHT("[1,4]", "4") TENSOR("l.weight_scale", "F32", "[]", "4", "8") "}",
                            data, 8);
        assert_int_equal(inspect(b, scratch_path(b->dir, "scale.safetensors"), NULL, NULL), OQ_OK);
        problem_is(b, 0, "error", "l.weight", rows[i].message);
        member_is(b, oq_json_get(b->json, "quantization"), "layers", "[]");
        member_is(b, oq_json_get(b->json, "quantization"), "unclaimed", "[\"l.weight\", \"l.weight_scale\"]");
    }
}

/* ComfyUI#11764: a renamed layer leaves its scale behind. */
static void test_orphan_scale(void **state)
{
    bench *b = *state;
    scratch_safetensors(b->dir, "orphan.safetensors",
                        "{\"k.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}" TENSOR(
                            "l.weight_scale", "F32", "[]", "4", "8") "}",
                        "\0\0\0\0\0\0\x80\x3f", 8);
    assert_int_equal(inspect(b, scratch_path(b->dir, "orphan.safetensors"), NULL, NULL), OQ_OK);
    problem_is(b, 0, "error", "l.weight_scale",
               "1 tensor looks quantized, but in no spelling that this build reads");
    problem_is(b, 1, "error", "l.weight_scale", "a scale without its weight 'l.weight'");
}

/* ComfyUI#15511: packed codes that no dialect knows are never taken for a plain matrix without a word. */
static void test_unknown_spelling(void **state)
{
    bench *b = *state;
    scratch_safetensors(b->dir, "packed.safetensors",
                        "{\"l.weight\":{\"dtype\":\"U8\",\"shape\":[1,8],\"data_offsets\":[0,8]}" TENSOR(
                            "l.weight_scale", "F8_E4M3", "[1,1]", "8", "9") "}",
                        "\x11\x22\x33\x44\x55\x66\x77\x88\x38", 9);
    assert_int_equal(inspect(b, scratch_path(b->dir, "packed.safetensors"), NULL, NULL), OQ_OK);
    member_is(b, oq_json_get(b->json, "quantization"), "dialect", "null");
    member_is(b, oq_json_get(b->json, "quantization"), "unclaimed", "[\"l.weight_scale\"]");
    problem_is(b, 0, "error", "l.weight_scale",
               "1 tensor looks quantized, but in no spelling that this build reads");
}

/* A lone file is judged in the place of a model's component, and says when it is of none. */
static void test_model_of_a_file(void **state)
{
    bench *b = *state;
    const char *const shard = "models/toybox/transformer/diffusion_pytorch_model-00001-of-00002.safetensors";
    assert_int_equal(inspect(b, "models/toybox/text_encoder/model.safetensors", "model", "models/toybox"),
                     OQ_OK);
    assert_int_equal(n_problems(b), 0);
    assert_true(oq_report_passed(b->report));
    member_is(b, b->json, "judged", "\"model\"");
    assert_int_equal(inspect(b, shard, "model", "models/toybox"), OQ_OK);
    assert_int_equal(n_problems(b), 1);
    assert_false(oq_report_passed(b->report));
    problem_is(b, 0, "error", NULL,
               "transformer: tensor 'layers.9.attention.to_v.weight' is missing in "
               "'diffusion_pytorch_model-00001-of-00002.safetensors' (182 tensors)");
    assert_int_equal(inspect(b, put_fp8(b, "fp8.safetensors"), "model", "models/toybox"), OQ_OK);
    assert_int_equal(n_problems(b), 1);
    assert_non_null(strstr(oq_report_text(b->report), "ZImagePipeline has no component for"));
    assert_int_equal(inspect(b, "models/toybox", "model", "models/toybox"), OQ_E_ARG);
    oq_env_clear(b->env);
}

/* One broken component does not hide the others. */
static void test_broken_model(void **state)
{
    bench *b = *state;
    scratch_subdir(b->dir, "model");
    scratch_text(b->dir, "model/model_index.json",
                 "{\"_class_name\":\"P\",\"a\":[\"diffusers\",\"A\"],\"b\":[\"diffusers\",\"B\"],"
                 "\"c\":[\"diffusers\",\"C\"],\"off\":[null,null]}");
    scratch_subdir(b->dir, "model/a");
    scratch_text(b->dir, "model/a/config.json", "{}");
    put_fp8(b, "model/a/model.safetensors");
    scratch_subdir(b->dir, "model/b");
    scratch_text(b->dir, "model/b/config.json", "{}");
    scratch_text(b->dir, "model/b/model.safetensors", "<html>");
    const char *path = scratch_path(b->dir, "model");
    char message[2048];
    assert_int_equal(inspect(b, path, NULL, NULL), OQ_OK);
    assert_int_equal(n_problems(b), 3);
    assert_false(oq_report_passed(b->report));
    snprintf(message, sizeof message,
             "%s/b/model.safetensors: is a web page (HTML), not the file itself: download it again", path);
    problem_is(b, 0, "error", NULL, message);
    snprintf(message, sizeof message, "%s/c: there is no such folder, which component 'c' is in", path);
    problem_is(b, 1, "error", NULL, message);
    const oq_json *third = oq_json_at(oq_json_get(b->json, "problems"), 2);
    snprintf(message, sizeof message, "%s: pipeline class 'P' is not supported; this build runs ", path);
    assert_int_equal(strncmp(oq_json_string(oq_json_get(third, "message")), message, strlen(message)), 0);
    member_is(b, b->json, "judged", "\"model\"");
    const oq_json *layers = oq_json_get(oq_json_get(b->json, "quantization"), "layers");
    assert_int_equal(oq_json_size(layers), 1);
    member_is(b, oq_json_at(layers, 0), "component", "\"a\"");
    assert_int_equal(inspect(b, path, "layer", "a.l"), OQ_OK);
}

/* ---- values -------------------------------------------------------------------------------------------- */

static void test_tensor_values(void **state)
{
    bench *b = *state;
    assert_int_equal(inspect(b, put_fp8(b, "fp8.safetensors"), "tensor", "l.weight"), OQ_OK);
    assert_string_equal(oq_report_json(b->report),
                        "{\"name\": \"l.weight\", \"dtype\": \"F8_E4M3\", \"shape\": [2, 4], "
                        "\"values\": [1.0, -1.0, 0.0, 448.0, 2.0]}");
    assert_string_equal(oq_report_text(b->report),
                        "l.weight  F8_E4M3 [2, 4]\n"
                        "             1           -1            0          448            2\n"
                        "  ... 3 more (--limit)\n");
    assert_int_equal(inspect(b, "tests/data/ckpt/S31_scalar_0d.safetensors", "tensor", "s"), OQ_OK);
    assert_string_equal(oq_report_json(b->report),
                        "{\"name\": \"s\", \"dtype\": \"F32\", \"shape\": [], \"values\": [0.5]}");
    assert_int_equal(inspect(b, "tests/data/ckpt/S32_empty.safetensors", "tensor", "scaled_fp8"), OQ_OK);
    member_is(b, b->json, "values", "[]");
    assert_int_equal(inspect(b, "models/toybox", "tensor", "vae.decoder.conv_in.bias"), OQ_OK);
    member_is(b, b->json, "shape", "[128]");
}

/* Whole numbers are exact, NaN and infinities are strings. */
static void test_exact_values(void **state)
{
    bench *b = *state;
    static const unsigned char data[] = {
        0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x01, 0, 0, 0, 0, 0, 0, 0x80, /* i64: max, min + 1 */
        0xff, 0x80,                                                                   /* i8 */
        0,    0,    0xc0, 0x7f, 0,    0,    0x80, 0xff, /* f32: NaN, -infinity */
        0x9a, 0x99, 0x99, 0x99, 0x99, 0x99, 0xb9, 0x3f, /* f64: 0.1 */
        0xff, 0x01,                                     /* u8, bool */
    };
    scratch_safetensors(b->dir, "exact.safetensors",
                        "{\"i64\":{\"dtype\":\"I64\",\"shape\":[2],\"data_offsets\":[0,16]}" TENSOR(
                            "i8", "I8", "[2]", "16", "18") TENSOR("f32", "F32", "[2]", "18", "26")
                            TENSOR("f64", "F64", "[1]", "26", "34") TENSOR("u8", "U8", "[1]", "34", "35")
                                TENSOR("bool", "BOOL", "[1]", "35", "36") "}",
                        data, sizeof data);
    static const struct {
        const char *name, *values;
    } rows[] = {
        {"i64", "[9223372036854775807, -9223372036854775807]"},
        {"i8", "[-1, -128]"},
        {"f32", "[\"NaN\", \"-Infinity\"]"},
        {"f64", "[0.1]"},
        {"u8", "[255]"},
        {"bool", "[1]"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        assert_int_equal(inspect(b, scratch_path(b->dir, "exact.safetensors"), "tensor", rows[i].name),
                         OQ_OK);
        member_is(b, b->json, "values", rows[i].values);
    }
}

static void test_layer_values(void **state)
{
    bench *b = *state;
    assert_int_equal(inspect(b, put_fp8(b, "fp8.safetensors"), "layer", "l"), OQ_OK);
    assert_string_equal(
        oq_report_json(b->report),
        "{\"name\": \"l\", \"dtype\": \"F32\", \"format\": \"fp8_e4m3_channel\", \"shape\": [2, 4], "
        "\"values\": [0.5, -0.5, 0.0, 224.0, 4.0]}");
}

/* Scales of another type pass through the dialect first. */
static void test_layer_values_bf16_scale(void **state)
{
    bench *b = *state;
    scratch_safetensors(b->dir, "bf16scale.safetensors",
                        "{" WEIGHT("[1,4]", "4") TENSOR("l.weight_scale", "BF16", "[1]", "4", "6") "}",
                        "\x38\xb8\x00\x7e\x00\x3f", 6);
    assert_int_equal(inspect(b, scratch_path(b->dir, "bf16scale.safetensors"), "layer", "l"), OQ_OK);
    member_is(b, b->json, "values", "[0.5, -0.5, 0.0, 224.0]");
}

static void test_refusals(void **state)
{
    bench *b = *state;
    char message[2048], path[1024];
    refused(b, NULL, NULL, NULL, OQ_E_ARG,
            "inspect needs one path (a weight file, a component folder, a model or a picture), 0 are given");
    refused(b, "no/such/file", NULL, NULL, OQ_E_NOTFOUND, "no/such/file: there is no such file or folder");
    refused(b, "models", NULL, NULL, OQ_E_NOTFOUND,
            "models: holds no weights (diffusion_pytorch_model.safetensors or model.safetensors)");
    refused(
        b, "models/toybox/vae", "tensor", "decoder.conv_in.bios", OQ_E_NOTFOUND,
        "models/toybox/vae: holds no tensor 'decoder.conv_in.bios'; the nearest is 'decoder.conv_in.bias'");
    refused(b, "models/toybox", "tensor", "vae.decoder.conv_in.bios", OQ_E_NOTFOUND,
            "models/toybox: holds no tensor 'vae.decoder.conv_in.bios'; the nearest is "
            "'vae.decoder.conv_in.bias'");
    refused(b, "models/toybox", "layer", "transformer.layers.0.attention.to_q", OQ_E_NOTFOUND,
            "layer 'transformer.layers.0.attention.to_q' is not quantized: --tensor "
            "transformer.layers.0.attention.to_q.weight shows its BF16 values");
    snprintf(path, sizeof path, "%s", put_fp8(b, "fp8.safetensors"));
    snprintf(message, sizeof message, "%s: holds no quantized layer 'nothing'", path);
    refused(b, path, "layer", "nothing", OQ_E_NOTFOUND, message);
    scratch_safetensors(b->dir, "opaque.safetensors",
                        "{\"s\":{\"dtype\":\"F8_E8M0\",\"shape\":[1],\"data_offsets\":[0,1]}}", "\x7f", 1);
    refused(b, scratch_path(b->dir, "opaque.safetensors"), "tensor", "s", OQ_E_UNSUPPORTED,
            "tensor 's' is F8_E8M0, whose values are not read by this build yet");
}

/* Memory that ends at the n-th allocation, for every n: a sentence, no crash, no leak. */
static void *failing_allocate(void *user, size_t bytes)
{
    long *left = user;
    return (*left)-- > 0 ? aligned_alloc(64, (bytes + 127) / 64 * 64) : NULL;
}

static void failing_release(void *user, void *ptr)
{
    (void)user;
    free(ptr);
}

static void no_memory(const char *path, const char *flag, const char *value)
{
    long left = 1000;
    oq_env *env = NULL;
    oq_options *options = NULL;
    const oq_env_params params = {.size = sizeof params,
                                  .allocate = failing_allocate,
                                  .release = failing_release,
                                  .alloc_user = &left,
                                  .n_threads = 1};
    assert_int_equal(oq_env_new(&params, &env), OQ_OK);
    assert_int_equal(oq_options_new(env, "inspect", &options), OQ_OK);
    assert_int_equal(oq_options_add_argument(options, path), OQ_OK);
    if (flag) assert_int_equal(oq_options_set(options, flag, value), OQ_OK);
    oq_status st = OQ_E_NOMEM;
    int n = 0;
    for (; st != OQ_OK && n < 2000; n++) {
        oq_report *report = NULL;
        oq_env_clear(env);
        left = n;
        st = oq_run(options, &report);
        if (st != OQ_OK && st != OQ_E_NOMEM) fail_msg("allocation %d: %s", n, oq_env_error(env));
        assert_true((st == OQ_OK) == (report != NULL));
        oq_report_free(report);
    }
    assert_in_range(n, 5, 1999);
    left = 1000;
    oq_options_free(options);
    oq_env_free(env);
}

static void test_no_memory(void **state)
{
    bench *b = *state;
    char path[1024];
    snprintf(path, sizeof path, "%s", put_fp8(b, "fp8.safetensors"));
    no_memory(path, NULL, NULL);
    no_memory(path, "layer", "l");
    scratch_subdir(b->dir, "small");
    scratch_text(b->dir, "small/model_index.json", "{\"_class_name\":\"P\",\"a\":[\"diffusers\",\"A\"]}");
    scratch_subdir(b->dir, "small/a");
    scratch_text(b->dir, "small/a/config.json", "{\"quantization_config\":{\"quant_method\":\"fp8\"}}");
    put_fp8(b, "small/a/x.safetensors");
    scratch_text(b->dir, "small/a/model.safetensors.index.json",
                 "{\"weight_map\":{\"l.weight\":\"x.safetensors\",\"l.weight_scale\":\"x.safetensors\"}}");
    snprintf(path, sizeof path, "%s/small", b->dir);
    no_memory(path, NULL, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_plain_file, forget),
        cmocka_unit_test_teardown(test_model, forget),
        cmocka_unit_test_teardown(test_component_folder, forget),
        cmocka_unit_test_teardown(test_variant, forget),
        cmocka_unit_test_teardown(test_quantized_file, forget),
        cmocka_unit_test_teardown(test_declaration, forget),
        cmocka_unit_test_teardown(test_nan_codes, forget),
        cmocka_unit_test_teardown(test_bad_values_of_every_type, forget),
        cmocka_unit_test_teardown(test_bad_scales, forget),
        cmocka_unit_test_teardown(test_orphan_scale, forget),
        cmocka_unit_test_teardown(test_unknown_spelling, forget),
        cmocka_unit_test_teardown(test_model_of_a_file, forget),
        cmocka_unit_test_teardown(test_broken_model, forget),
        cmocka_unit_test_teardown(test_tensor_values, forget),
        cmocka_unit_test_teardown(test_exact_values, forget),
        cmocka_unit_test_teardown(test_layer_values, forget),
        cmocka_unit_test_teardown(test_layer_values_bf16_scale, forget),
        cmocka_unit_test_teardown(test_refusals, forget),
        cmocka_unit_test_teardown(test_no_memory, forget),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
