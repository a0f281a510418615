/* test_dialect.c -- serialized FP8 and INT8: which tensors are which planes, and what does not fit together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/float8.h"
#include "quant/dialect.h"

#include "support/memory_ckpt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 130, K = 200 };

extern const oq_method oq_method_fp8, oq_method_int8;

static uint8_t codes[N * K];
static uint16_t plain[N * K];
static float one = 0.5f, rows_f32[N], blocks[4] = {1, 2, 3, 4};
static uint16_t rows_bf16[N];

static int setup(void **state)
{
    oq_env *env = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    for (int i = 0; i < N * K; i++) codes[i] = (uint8_t)(i % 100 + 1);
    for (int i = 0; i < N; i++)
        rows_f32[i] = (float)(i + 1) / 64, rows_bf16[i] = oq_bf16_from_f32(rows_f32[i]);
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

static const oq_dialect *find(const char *name)
{
    for (const oq_dialect *const *d = oq_dialect_list; *d; d++)
        if (strcmp((*d)->name, name) == 0) return *d;
    return NULL;
}

static oq_status locate(oq_env *env, const char *dialect, const memory_ckpt *m, const char *options,
                        oq_part_source *out, bool *found)
{
    const oq_dialect *d = find(dialect);
    oq_json *json = NULL;
    assert_int_equal(oq_json_parse(env, options, strlen(options), "t", &json), OQ_OK);
    const oq_declared declared = {.method = d->method, .options = json};
    const oq_status st = d->locate(env, &declared, &m->ckpt, "a.b", N, K, out, found);
    oq_json_free(json);
    return st;
}

static void base(memory_ckpt *m, const oq_dtype *dtype)
{
    memory_ckpt_init(m);
    memory_ckpt_add(m, "a.b.weight", dtype, codes, N, K);
    memory_ckpt_add(m, "a.b.bias", &oq_dtype_bf16, plain, N, -1);
    memory_ckpt_add(m, "a.b.c.weight_zero_point", &oq_dtype_i8, codes, 1, -1); /* another layer's business */
    memory_ckpt_add(m, "a.bc.weight_zero_point", &oq_dtype_i8, codes, 1, -1);
}

static void expect(oq_env *env, const char *dialect, const memory_ckpt *m, const char *options,
                   const oq_format *format, oq_act_scale act, float first, float last)
{
    oq_part_source part;
    bool found = false;
    if (locate(env, dialect, m, options, &part, &found) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_true(found);
    assert_ptr_equal(part.format, format);
    assert_ptr_equal(part.act, format->element);
    assert_int_equal(part.act_scale, act);
    assert_string_equal(part.plane[OQ_PLANE_DATA].tensor->name, "a.b.weight");
    assert_null(part.plane[OQ_PLANE_DATA].fix);
    assert_int_equal(part.plane[OQ_PLANE_INPUT_SCALE].tensor != NULL, act == OQ_ACT_STATIC_TENSOR);

    const oq_plane_source *scale = &part.plane[OQ_PLANE_SCALE];
    const size_t n = format->plane_bytes(format, OQ_PLANE_SCALE, N, K) / sizeof(float);
    float values[N];
    assert_int_equal(scale->tensor->elems, n);
    if (scale->fix)
        scale->fix(values, scale->tensor, N, K);
    else
        memcpy(values, scale->tensor->data, n * sizeof *values);
    assert_true(values[0] >= first && values[0] <= first);
    assert_true(values[n - 1] >= last && values[n - 1] <= last);
}

/* Every shape and type of scale that files of this meaning have. */
static void test_fp8(void **state)
{
    oq_env *env = *state;
    memory_ckpt m;
    base(&m, &oq_dtype_f8_e4m3);
    const float bf16_last = oq_bf16_to_f32(rows_bf16[N - 1]);

    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, &one, -1, -1);
    expect(env, "fp8", &m, "{}", &oq_format_fp8_e4m3_tensor, OQ_ACT_DYNAMIC_TOKEN, 0.5f, 0.5f);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_bf16, rows_bf16, 1, -1);
    expect(env, "fp8", &m, "{}", &oq_format_fp8_e4m3_tensor, OQ_ACT_DYNAMIC_TOKEN, 1.0f / 64, 1.0f / 64);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, rows_f32, N, -1);
    expect(env, "fp8", &m, "{}", &oq_format_fp8_e4m3_channel, OQ_ACT_DYNAMIC_TOKEN, 1.0f / 64, 130.0f / 64);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_bf16, rows_bf16, N, 1);
    expect(env, "fp8", &m, "{\"activation_scheme\": \"dynamic\"}", &oq_format_fp8_e4m3_channel,
           OQ_ACT_DYNAMIC_TOKEN, 1.0f / 64, bf16_last);
    memory_ckpt_add(&m, "a.b.input_scale", &oq_dtype_f32, &one, -1, -1);
    expect(env, "fp8", &m, "{}", &oq_format_fp8_e4m3_channel, OQ_ACT_STATIC_TENSOR, 1.0f / 64, bf16_last);
    memory_ckpt_add(&m, "a.b.input_scale", &oq_dtype_bf16, rows_bf16, 1, -1);
    expect(env, "fp8", &m, "{\"activation_scheme\": \"static\"}", &oq_format_fp8_e4m3_channel,
           OQ_ACT_STATIC_TENSOR, 1.0f / 64, bf16_last);
    memory_ckpt_remove(&m, "a.b.input_scale");
    memory_ckpt_remove(&m, "a.b.weight_scale");
    memory_ckpt_add(&m, "a.b.weight_scale_inv", &oq_dtype_f32, blocks, 2,
                    2); /* 130 x 200: ragged at both edges */
    expect(env, "fp8", &m, "{\"weight_block_size\": [128, 128]}", &oq_format_fp8_e4m3_block128,
           OQ_ACT_DYNAMIC_GROUP, 1, 4);
    expect(env, "fp8", &m, "{}", &oq_format_fp8_e4m3_block128, OQ_ACT_DYNAMIC_GROUP, 1, 4);
}

static void test_int8(void **state)
{
    oq_env *env = *state;
    memory_ckpt m;
    base(&m, &oq_dtype_i8);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, rows_f32, N, 1);
    expect(env, "int8", &m, "{}", &oq_format_int8_channel, OQ_ACT_DYNAMIC_TOKEN, 1.0f / 64, 130.0f / 64);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, &one, 1, -1);
    expect(env, "int8", &m, "{}", &oq_format_int8_tensor, OQ_ACT_DYNAMIC_TOKEN, 0.5f, 0.5f);
    memory_ckpt_add(&m, "a.b.input_scale", &oq_dtype_f32, &one, -1, -1);
    expect(env, "int8", &m, "{}", &oq_format_int8_tensor, OQ_ACT_STATIC_TENSOR, 0.5f, 0.5f);
}

static void expect_plain(oq_env *env, const char *dialect, const memory_ckpt *m)
{
    oq_part_source part;
    bool found = true;
    assert_int_equal(locate(env, dialect, m, "{}", &part, &found), OQ_OK);
    assert_false(found);
}

static void test_plain(void **state)
{
    memory_ckpt m;
    base(&m, &oq_dtype_bf16);
    expect_plain(*state, "fp8", &m);
    expect_plain(*state, "int8", &m);
    memory_ckpt_init(&m); /* nothing at all: whoever needs the weight will say so */
    expect_plain(*state, "fp8", &m);
}

static void refuse(oq_env *env, const char *dialect, const memory_ckpt *m, const char *options,
                   oq_status status, const char *words)
{
    oq_part_source part;
    bool found = false;
    const oq_status st = locate(env, dialect, m, options, &part, &found);
    if (st != status) fail_msg("%s instead of '%s': %s", oq_status_name(st), words, oq_env_error(env));
    assert_false(found);
    char copy[256];
    snprintf(copy, sizeof copy, "%s", words);
    for (char *rest = NULL, *word = strtok_r(copy, "|", &rest); word; word = strtok_r(NULL, "|", &rest))
        if (!strstr(oq_env_error(env), word)) fail_msg("'%s' does not hold '%s'", oq_env_error(env), word);
    oq_env_clear(env);
}

static void test_half_present(void **state)
{
    oq_env *env = *state;
    memory_ckpt m;
    base(&m, &oq_dtype_f8_e4m3);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.weight' is F8_E4M3|'a.b.weight_scale' is missing");
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, &one, -1, -1);
    refuse(env, "fp8", &m, "{\"activation_scheme\": \"static\"}", OQ_E_FORMAT,
           "'a.b.input_scale' is missing|static");
    memory_ckpt_add(&m, "a.b.weight_scale_inv", &oq_dtype_f32, &one, -1, -1);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.weight_scale'|'a.b.weight_scale_inv'|two scales");
    memory_ckpt_remove(&m, "a.b.weight_scale_inv");
    memory_ckpt_add(&m, "a.b.input_scale", &oq_dtype_f32, &one, -1, -1);
    refuse(env, "fp8", &m, "{\"activation_scheme\": \"dynamic\"}", OQ_E_FORMAT,
           "'a.b.input_scale'|declares dynamic");
    memory_ckpt_remove(&m, "a.b.weight");
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.weight_scale' is there|'a.b.weight' is missing");
    memory_ckpt_add(&m, "a.b.weight", &oq_dtype_bf16, plain, N, K);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT,
           "'a.b.weight_scale' is there|'a.b.weight' is BF16, not F8_E4M3");
    memory_ckpt_remove(&m, "a.b.weight_scale");
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.input_scale' is there|BF16");
}

static void test_unknown_planes(void **state)
{
    oq_env *env = *state;
    memory_ckpt m;
    base(&m, &oq_dtype_f8_e4m3);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, &one, -1, -1);
    memory_ckpt_add(&m, "a.b.weight_zero_point", &oq_dtype_i8, codes, 1, -1);
    refuse(env, "fp8", &m, "{}", OQ_E_UNSUPPORTED, "'a.b.weight_zero_point' stands beside 'a.b.weight'");
    memory_ckpt_remove(&m, "a.b.weight_zero_point");
    memory_ckpt_add(&m, "a.b.pre_quant_scale", &oq_dtype_bf16, plain, K, -1);
    refuse(env, "fp8", &m, "{}", OQ_E_UNSUPPORTED, "'a.b.pre_quant_scale'");
    base(&m, &oq_dtype_f8_e5m2);
    refuse(env, "fp8", &m, "{}", OQ_E_UNSUPPORTED,
           "'a.b.weight' is F8_E5M2|method 'fp8' reads F8_E4M3|not in this build");
    base(&m, &oq_dtype_i8);
    refuse(env, "fp8", &m, "{}", OQ_E_UNSUPPORTED, "'a.b.weight' is I8");
    base(&m, &oq_dtype_u8);
    refuse(env, "int8", &m, "{}", OQ_E_UNSUPPORTED, "'a.b.weight' is U8|reads I8");
}

static void test_shapes(void **state)
{
    oq_env *env = *state;
    memory_ckpt m;
    base(&m, &oq_dtype_f8_e4m3);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, rows_f32, 3, -1);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.weight_scale' is [3]|[130, 200]|[130, 1]|128 x 128");
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, rows_f32, 1, N);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.weight_scale' is [1, 130]");
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, &one, -1, -1);
    refuse(env, "fp8", &m, "{\"weight_block_size\": [128, 128]}", OQ_E_FORMAT,
           "'a.b.weight_scale' is []|128 x 128 blocks");
    refuse(env, "fp8", &m, "{\"weight_block_size\": [64, 64]}", OQ_E_UNSUPPORTED,
           "[64, 64]|'a.b.weight'|not in this build");
    memory_ckpt_add(&m, "a.b.weight", &oq_dtype_f8_e4m3, codes, K, N);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.weight' is [200, 130], its layer needs [130, 200]");
    base(&m, &oq_dtype_i8);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, blocks, 2, 2);
    refuse(env, "int8", &m, "{}", OQ_E_FORMAT, "'a.b.weight_scale' is [2, 2]");
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_i32, codes, N, -1);
    refuse(env, "int8", &m, "{}", OQ_E_FORMAT, "'a.b.weight_scale' is I32|floating point");
}

/* Scales that would make zeros or NaN of weights. A zero scale over zero codes is what an all-zero row has. */
static void test_scale_values(void **state)
{
    oq_env *env = *state;
    memory_ckpt m;
    base(&m, &oq_dtype_f8_e4m3);
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, rows_f32, N, -1);
    static const struct {
        float value;
        const char *words;
    } rows[] = {{0.0f, "is 0 at index 7|codes that are not zero"},
                {NAN, "is nan at index 7|positive and finite"},
                {INFINITY, "is inf at index 7"},
                {-1.0f, "is -1 at index 7"}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        rows_f32[7] = rows[i].value;
        refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, rows[i].words);
    }
    rows_f32[7] = 0;
    memset(codes + 7 * K, 0x80, K); /* minus zero */
    expect(env, "fp8", &m, "{}", &oq_format_fp8_e4m3_channel, OQ_ACT_DYNAMIC_TOKEN, 1.0f / 64, 130.0f / 64);
    memory_ckpt_remove(&m, "a.b.weight_scale");
    float grid[4] = {1, 2, 3, 0};
    memory_ckpt_add(&m, "a.b.weight_scale_inv", &oq_dtype_f32, grid, 2, 2);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.weight_scale_inv' is 0 at index 3");
    for (int r = 128; r < N; r++) memset(codes + r * K + 128, 0, K - 128);
    expect(env, "fp8", &m, "{}", &oq_format_fp8_e4m3_block128, OQ_ACT_DYNAMIC_GROUP, 1, 0);
    float bad = 0;
    memory_ckpt_remove(&m, "a.b.weight_scale_inv");
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, &one, -1, -1);
    memory_ckpt_add(&m, "a.b.input_scale", &oq_dtype_f32, &bad, -1, -1);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.input_scale' is 0");
    memory_ckpt_add(&m, "a.b.input_scale", &oq_dtype_f32, blocks, 4, -1);
    refuse(env, "fp8", &m, "{}", OQ_E_FORMAT, "'a.b.input_scale' has 4 elements");
    memory_ckpt_add(&m, "a.b.weight_scale", &oq_dtype_f32, NULL, N,
                    -1); /* header alone: values are not judged */
    memory_ckpt_add(&m, "a.b.input_scale", &oq_dtype_f32, NULL, -1, -1);
    oq_part_source part;
    bool found = false;
    assert_int_equal(locate(env, "fp8", &m, "{}", &part, &found), OQ_OK);
    assert_true(found);
}

static void test_detect(void **state)
{
    memory_ckpt m;
    (void)state;
    const oq_dialect *fp8 = find("fp8"), *int8 = find("int8");
    assert_true(fp8->detect(&oq_method_fp8, NULL));
    assert_false(fp8->detect(&oq_method_int8, NULL));
    assert_true(int8->detect(&oq_method_int8, NULL));
    assert_false(fp8->detect(NULL, NULL));
    base(&m, &oq_dtype_f8_e4m3);
    assert_false(fp8->detect(NULL, &m.ckpt)); /* codes without any scale are a way to store plain numbers */
    memory_ckpt_add(&m, "a.b.weight_scale_inv", &oq_dtype_f32, blocks, 2, 2);
    assert_true(fp8->detect(NULL, &m.ckpt));
    assert_false(int8->detect(NULL, &m.ckpt));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_fp8, setup, teardown),
        cmocka_unit_test_setup_teardown(test_int8, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_half_present, setup, teardown),
        cmocka_unit_test_setup_teardown(test_unknown_planes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shapes, setup, teardown),
        cmocka_unit_test_setup_teardown(test_scale_values, setup, teardown),
        cmocka_unit_test_setup_teardown(test_detect, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
