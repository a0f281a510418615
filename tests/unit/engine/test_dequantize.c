/* test_dequantize.c -- layers with something around their product (factors of the input, a low-rank branch) become plain
 * weights that have it inside; what described the quantized weights is not taken along. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"

#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES OMNIQ_SOURCE_DIR "/tests/data/quant/cases/"

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

static void dequantize(oq_env *env, const char *in, const char *out)
{
    oq_options *o = NULL;
    oq_report *report = NULL;
    assert_int_equal(oq_options_new(env, "dequantize", &o), OQ_OK);
    assert_int_equal(oq_options_add_argument(o, in), OQ_OK);
    assert_int_equal(oq_options_set(o, "output", out), OQ_OK);
    assert_int_equal(oq_options_set(o, "dtype", "f32"), OQ_OK);
    if (oq_run(o, &report) != OQ_OK) fail_msg("%s: %s", in, oq_env_error(env));
    oq_report_free(report);
    oq_options_free(o);
}

static float *values(const oq_ckpt *ckpt, const char *layer, const char *suffix, int64_t *rows)
{
    char name[512];
    snprintf(name, sizeof name, "%s.%s", layer, suffix);
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, name);
    if (!t) return NULL;
    float *x = malloc((size_t)t->elems * sizeof *x);
    assert_non_null(x);
    t->dtype->to_f32(x, t->data, (size_t)t->elems);
    if (rows) *rows = t->dim[0];
    return x;
}

typedef struct row {
    const char *folder, *file, *layer;
    int64_t k;
    const char *smooth, *down, *up; /* suffixes; NULL: none */
    int64_t index[8];               /* rows of the producer's values */
} row;

static const row rows[] = {
    {"msmodelslim/mxfp4_svd",
     "quant_model_weights.safetensors",
     "blocks.0.self_attn.q",
     128,
     "mul_scale",
     "svd_lowrank_l1",
     "svd_lowrank_l2",
     {0, 1, 6, 15}},
    {"msmodelslim/dualscale",
     "quant_model_weights.safetensors",
     "blocks.0.self_attn.q",
     1024,
     "mul_scale",
     NULL,
     NULL,
     {0, 1, 6, 15}},
    {"modelopt/w4a8_awq",
     "model.safetensors",
     "model.layers.0.mlp.down_proj",
     256,
     "pre_quant_scale",
     NULL,
     NULL,
     {0, 1, 6, 15}},
    {"modelopt/nvfp4_svdquant_toybox",
     "model.safetensors",
     "layers.4.attention.to_q",
     192,
     "pre_quant_scale",
     "svdquant_lora_a",
     "svdquant_lora_b",
     {0, 1}},
};

/* w of the codes -> (w + up down) * smooth, column by column: both producers' branches take x after its factors. */
static void check(oq_env *env, const row *r)
{
    char path[1200], out[1024];
    oq_ckpt *file = NULL, *expected = NULL, *plain = NULL;
    int64_t n_rows = 0, rank = 0;
    snprintf(out, sizeof out, "%s/out", scratch_dir(OMNIQ_BINARY_DIR, "dequantize"));
    snprintf(path, sizeof path, CASES "%s", r->folder);
    dequantize(env, path, out);
    snprintf(path, sizeof path, CASES "%s/%s", r->folder, r->file);
    assert_int_equal(oq_ckpt_open(env, path, &file), OQ_OK);
    snprintf(path, sizeof path, CASES "%s/expected.safetensors", r->folder);
    assert_int_equal(oq_ckpt_open(env, path, &expected), OQ_OK);
    assert_int_equal(oq_ckpt_open_folder(env, out, NULL, &plain), OQ_OK);
    assert_int_equal(plain->n_tensors, 1);
    float *w = values(plain, r->layer, "weight", NULL),
          *codes = values(expected, r->layer, "dequant_rows", &n_rows);
    float *smooth = values(file, r->layer, r->smooth, NULL);
    float *down = r->down ? values(file, r->layer, r->down, &rank) : NULL;
    float *up = r->up ? values(file, r->layer, r->up, NULL) : NULL;
    assert_true(w && codes && smooth && (!r->down || (down && up && rank > 0)) && n_rows >= 2);
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t c = 0; c < r->k; c++) {
            double sum = codes[i * r->k + c];
            for (int64_t j = 0; j < rank; j++)
                sum += (double)up[r->index[i] * rank + j] * (double)down[j * r->k + c];
            const double wanted = sum * (double)smooth[c], is = w[r->index[i] * r->k + c];
            if (fabs(is - wanted) > 1e-6 + 1e-6 * fabs(wanted))
                fail_msg("%s: row %d column %d is %.9g, not %.9g", r->folder, (int)r->index[i], (int)c, is,
                         wanted);
        }
    snprintf(path, sizeof path, "%s/quant_model_description.json", out);
    assert_false(oq_file_exists(path));
    free(w), free(codes), free(smooth), free(down), free(up);
    oq_ckpt_close(file);
    oq_ckpt_close(expected);
    oq_ckpt_close(plain);
}

static void test_folded(void **state)
{
    for (size_t i = 0; i < OQ_COUNT(rows); i++) check(*state, &rows[i]);
}

/* The file's layers are refused by a sentence that says `text`, and nothing is written. */
static void refuse(oq_env *env, const char *in, const char *out, const char *text)
{
    oq_options *o = NULL;
    oq_report *report = NULL;
    oq_env_clear(env);
    assert_int_equal(oq_options_new(env, "dequantize", &o), OQ_OK);
    assert_int_equal(oq_options_add_argument(o, in), OQ_OK);
    assert_int_equal(oq_options_set(o, "output", out), OQ_OK);
    if (oq_run(o, &report) == OQ_OK) fail_msg("%s is written, where '%s' is due", in, text);
    if (!strstr(oq_env_error(env), text)) fail_msg("'%s' lacks '%s'", oq_env_error(env), text);
    assert_false(oq_file_exists(out));
    oq_options_free(o);
}

#define HQQ(shape_dims, shape_end)                                                                           \
    "{\"__metadata__\":{\"quantization_config\":\"{\\\"quant_method\\\":\\\"hqq\\\"}\"},"                    \
    "\"a.W_q\":{\"dtype\":\"U8\",\"shape\":[64,64],\"data_offsets\":[0,4096]},"                              \
    "\"a.scale\":{\"dtype\":\"F32\",\"shape\":[128,1],\"data_offsets\":[4096,4608]},"                        \
    "\"a.shape\":{\"dtype\":\"I64\",\"shape\":[" shape_dims "],\"data_offsets\":[4608," shape_end "]}}"

/* Codes whose layer has no shape: they do not become the file's only tensors that lose their meaning. */
static void test_hqq_shapes(void **state)
{
    static const int64_t shapes[][2] = {{(int64_t)1 << 31, (int64_t)1 << 31}, {0, 64}, {-128, 32}};
    static const char text[] =
        "tensor 'a.W_q' holds codes of the spelling 'hqq', but the shape of their layer is "
        "not told by 'shape' beside it";
    static uint8_t data[4624];
    const char *dir = scratch_dir(OMNIQ_BINARY_DIR, "dequantize_shapes");
    const char *in = scratch_path(dir, "in.safetensors"), *out = scratch_path(dir, "out.safetensors");
    for (size_t i = 0; i < OQ_COUNT(shapes); i++) {
        memcpy(data + 4608, shapes[i], sizeof shapes[i]);
        scratch_safetensors(dir, "in.safetensors", HQQ("2", "4624"), data, sizeof data);
        refuse(*state, in, out, text);
    }
    scratch_safetensors(dir, "in.safetensors", HQQ("1", "4616"), data, 4616);
    refuse(*state, in, out, text);
}

#define TILES(type, shape, end)                                                                              \
    "{\"__metadata__\":{\"quantization_config\":\"{\\\"quant_method\\\":\\\"torchao\\\"}\","                 \
    "\"a.weight\":\"{\\\"_type\\\":\\\"" type "\\\",\\\"_data\\\":{\\\"block_size\\\":[1,32]" shape "}}\"}," \
    "\"a._weight_qdata\":{\"dtype\":\"I32\",\"shape\":[" end

/* A class without its shape: tiles do not tell it; words of eight codes in rows do. */
static void test_torchao_shapes(void **state)
{
    static uint8_t data[4096];
    static const float one = 1.0f;
    const char *dir = scratch_dir(OMNIQ_BINARY_DIR, "dequantize_classes");
    const char *in = scratch_path(dir, "in.safetensors"), *out = scratch_path(dir, "out.safetensors");
    static const char text[] =
        "tensor 'a._weight_qdata' holds codes of the spelling 'torchao', but the shape of their "
        "layer is not told by 'shape' of its class";
    scratch_safetensors(dir, "in.safetensors",
                        TILES("Int4TilePackedTo4dTensor", "", "1,1,32,4],\"data_offsets\":[0,512]}}"), data,
                        512);
    refuse(*state, in, out, text);
    scratch_safetensors(
        dir, "in.safetensors",
        TILES("Int4PlainInt32Tensor", ",\\\"shape\\\":[0,32]", "4,4],\"data_offsets\":[0,64]}}"), data, 64);
    refuse(*state, in, out, text);
    for (int i = 0; i < 4; i++) memcpy(data + 64 + 4 * i, &one, sizeof one);
    memset(data, 0x21, 64);
    scratch_safetensors(
        dir, "in.safetensors",
        TILES("Int4PlainInt32Tensor", "",
              "4,4],\"data_offsets\":[0,64]},"
              "\"a._weight_scale\":{\"dtype\":\"F32\",\"shape\":[1,4],\"data_offsets\":[64,80]},"
              "\"a._weight_zero_point\":{\"dtype\":\"I8\",\"shape\":[1,4],\"data_offsets\":[80,84]}}"),
        data, 84);
    oq_env_clear(*state);
    dequantize(*state, in, out);
    oq_ckpt *ckpt = NULL;
    assert_int_equal(oq_ckpt_open(*state, out, &ckpt), OQ_OK);
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, "a.weight");
    assert_true(t && ckpt->n_tensors == 1 && t->dim[0] == 4 && t->dim[1] == 32);
    oq_ckpt_close(ckpt);
}

#define QUANTO(type)                                                                                         \
    "{\"__metadata__\":{\"quantization_config\":\"{\\\"quant_method\\\":\\\"quanto\\\"}\"},"                 \
    "\"a.weight._data\":{\"dtype\":\"" type "\",\"shape\":[4,16],\"data_offsets\":[0,64]},"                  \
    "\"a.weight._scale\":{\"dtype\":\"F32\",\"shape\":[4,1],\"data_offsets\":[64,80]}}"

/* Codes that are no numbers make no plain weights. */
static void test_not_finite(void **state)
{
    static const float scales[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    uint8_t data[80];
    const char *dir = scratch_dir(OMNIQ_BINARY_DIR, "dequantize_finite");
    const char *in = scratch_path(dir, "in.safetensors"), *out = scratch_path(dir, "out.safetensors");
    memset(data, 0x30, 64);
    memcpy(data + 64, scales, sizeof scales);
    data[20] = 0x7f; /* NaN of both types */
    scratch_safetensors(dir, "in.safetensors", QUANTO("F8_E4M3"), data, sizeof data);
    refuse(*state, in, out, "layer 'a' of [4, 16] holds values that are not finite");
    scratch_safetensors(dir, "in.safetensors", QUANTO("F8_E5M2"), data, sizeof data);
    refuse(*state, in, out, "tensor 'a.weight._data' is not finite at index 20");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_folded, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_hqq_shapes, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_torchao_shapes, setup, teardown),
                                       cmocka_unit_test_setup_teardown(test_not_finite, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
