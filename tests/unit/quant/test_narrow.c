/* test_narrow.c -- ComfyUI's layers of four and six bits and AWQ's packings: what metadata and tensors say, held against each other; each
 * way in which they do not fit is refused with one sentence. Their values are cases of test_producer_cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/dialect_world.h"

#include <string.h>

enum { N = 16, K = 128, RANK = 2 };

static uint8_t codes[N * K], group_scales[N * K / 16];
static uint16_t halves[K * N];
static float numbers[K * N];

static int setup(void **state)
{
    for (size_t i = 0; i < sizeof codes; i++) codes[i] = (uint8_t)(i * 37 + 11);
    memset(group_scales, 0x38, sizeof group_scales);
    for (int i = 0; i < K * N; i++) {
        numbers[i] = 0.5f + (float)(i % 7);
        oq_dtype_f16.from_f32(&halves[i], &numbers[i], 1);
    }
    return world_setup(state);
}

static void add(world *w, const char *name, const oq_dtype *dtype, const void *data, int64_t rows,
                int64_t cols)
{
    memory_ckpt_add(&w->ckpt, name, dtype, data, rows, cols);
}

static void say(world *w, const char *word)
{
    memory_ckpt_remove(&w->ckpt, "a.comfy_quant");
    memory_ckpt_add(&w->ckpt, "a.comfy_quant", &oq_dtype_u8, word, (int64_t)strlen(word), -1);
}

static void refuse(world *w, const char *config, const char *text)
{
    oq_part_source part;
    bool found = false;
    assert_int_not_equal(world_locate(w, config, N, K, &part, &found), OQ_OK);
    assert_false(found);
    assert_string_equal(oq_env_error(w->env), text);
}

static oq_part_source accept(world *w, const char *config)
{
    oq_part_source part;
    bool found = false;
    if (world_locate(w, config, N, K, &part, &found) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_true(found);
    return part;
}

/* One tensor in the place of another; the caller puts the right one back. */
static void swap(world *w, const char *name, const oq_dtype *dtype, const void *data, int64_t rows,
                 int64_t cols)
{
    memory_ckpt_remove(&w->ckpt, name);
    if (dtype) add(w, name, dtype, data, rows, cols);
}

#define W4A4 "{\"format\": \"convrot_w4a4\", \"convrot_groupsize\": 64"

static void test_w4a4(void **state)
{
    world *w = *state;
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight", &oq_dtype_i8, codes, N, K / 2);
    add(w, "a.weight_scale", &oq_dtype_f32, numbers, N, -1);
    say(w, W4A4 "}");
    oq_part_source part = accept(w, NULL);
    assert_true(part.format == &oq_format_int4_channel && part.rotate == 64 &&
                part.act_scale == OQ_ACT_DYNAMIC_TOKEN4);
    say(w, "{\"format\": \"convrot_w4a4\", \"params\": {\"convrot_groupsize\": 16, \"linear_dtype\": "
           "\"int8\"}}");
    part = accept(w, NULL);
    assert_true(part.rotate == 16 && part.act_scale == OQ_ACT_DYNAMIC_TOKEN);
    say(w, W4A4 ", \"full_precision_matrix_mult\": true}");
    part = accept(w, NULL);
    assert_true(part.rotate == 64 && !part.act);
    say(w, W4A4 ", \"linear_dtype\": \"int2\"}");
    refuse(w, NULL, "layer 'a': linear_dtype is 'int2', it must be int4 or int8");
    say(w, "{\"format\": \"convrot_w4a4\"}");
    refuse(w, NULL, "layer 'a' has 128 columns, which runs of convrot_groupsize 256 do not divide");
    say(w, "{\"format\": \"convrot_w4a4\", \"convrot_groupsize\": -4}");
    refuse(w, NULL, "layer 'a': convrot_groupsize is -4, it must be a power of four");
    say(w, W4A4 "}");
    numbers[3] = -1;
    refuse(w, NULL, "scale 'a.weight_scale' is -1 at index 3; it must be finite and not negative");
    numbers[3] = 3.5f;
    swap(w, "a.weight_scale", &oq_dtype_f32, numbers, N - 1, -1);
    refuse(w, NULL,
           "scale 'a.weight_scale' has 15 values of F32, its layer needs a float for each of 16 rows");
    swap(w, "a.weight_scale", NULL, NULL, 0, 0);
    refuse(w, NULL, "tensor 'a.weight_scale' is missing beside 'a.weight'");
    add(w, "a.weight_scale", &oq_dtype_f32, numbers, N, 1);
    add(w, "a.input_scale", &oq_dtype_f32, numbers, 1, -1);
    refuse(w, NULL,
           "tensor 'a.input_scale' changes what layer 'a' computes, in a way that is not in this build yet");
    memory_ckpt_remove(&w->ckpt, "a.input_scale");
    swap(w, "a.weight", &oq_dtype_i8, codes, N, K);
    refuse(w, NULL,
           "tensor 'a.weight' has 2048 bytes of I8; a weight of [16, 128] in codes of 4 bits needs [16, 64] "
           "of I8");
}

#define W4A8 "{\"format\": \"asym_w4a8_int8\", \"convrot_groupsize\": 64"

static void start_w4a8(world *w, int64_t row_bytes)
{
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight", &oq_dtype_i8, codes, N, row_bytes);
    add(w, "a.weight_s_rel", &oq_dtype_f8_e4m3, group_scales, N, K / 16);
    add(w, "a.weight_s_channel", &oq_dtype_f32, numbers, N, -1);
    say(w, W4A8 "}");
}

static void test_w4a8(void **state)
{
    world *w = *state;
    start_w4a8(w, 3 * K / 4);
    oq_part_source part = accept(w, NULL);
    assert_true(part.format == &oq_format_whole6_g16 && part.act_scale == OQ_ACT_DYNAMIC_TOKEN);
    add(w, "a.weight_codebook", &oq_dtype_f32, numbers, 16, -1);
    refuse(
        w, NULL,
        "tensor 'a.weight_codebook' has 16 values of F32 beside codes of 6 bits; 16 of F32 beside codes of 4 "
        "bits are read");
    start_w4a8(w, K / 2);
    assert_ptr_equal(accept(w, NULL).format, &oq_format_whole4_g16);
    group_scales[5] = 0x5e; /* 28 */
    refuse(w, NULL,
           "scale 'a.weight_s_rel' is 28 at index 5, which takes codes of -8 to 7 beyond 127: tensor "
           "'a.weight_codebook' is missing");
    add(w, "a.weight_codebook", &oq_dtype_f32, numbers, 16, -1);
    part = accept(w, NULL);
    group_scales[5] = 0x38;
    assert_true(part.format == &oq_format_whole4_g16 && part.rotate == 64);
    swap(w, "a.weight_s_rel", &oq_dtype_u8, group_scales, N, K / 16); /* e4m3 all the same */
    assert_ptr_equal(accept(w, NULL).format, &oq_format_whole4_g16);
    group_scales[5] = 0x7f;
    refuse(w, NULL, "scale 'a.weight_s_rel' is nan at index 5; it must be finite and not negative");
    group_scales[5] = 0xb8;
    refuse(w, NULL, "scale 'a.weight_s_rel' is -1 at index 5; it must be finite and not negative");
    group_scales[5] = 0x38;
    say(w, W4A8 ", \"group_size\": 32}");
    refuse(
        w, NULL,
        "scale 'a.weight_s_rel' has 128 values of U8; a weight of [16, 128] in groups of 32 needs [16, 4] of "
        "F8_E4M3");
    say(w, W4A8 ", \"group_size\": 8}");
    refuse(w, NULL, "layer 'a' has groups of 8 over 128 columns; multiples of 16 that divide them are read");
    say(w, W4A8 "}");
    swap(w, "a.weight_s_rel", &oq_dtype_f32, numbers, N, K / 16);
    refuse(w, NULL, "scale 'a.weight_s_rel' is F32; F8_E4M3 is read");
    start_w4a8(w, K / 2);
    swap(w, "a.weight_codebook", &oq_dtype_f32, numbers, 15, -1);
    refuse(
        w, NULL,
        "tensor 'a.weight_codebook' has 15 values of F32 beside codes of 4 bits; 16 of F32 beside codes of 4 "
        "bits are read");
    start_w4a8(w, K / 2);
    add(w, "a.weight_correction", &oq_dtype_f32, numbers, K / 16, N);
    refuse(w, NULL,
           "tensor 'a.weight_correction' changes what layer 'a' computes, in a way that is not in this build "
           "yet");
}

static void start_svdquant(world *w, const char *word)
{
    memory_ckpt_init(&w->ckpt);
    add(w, "a.weight", &oq_dtype_i8, codes, N, K / 2);
    add(w, "a.weight_scale", &oq_dtype_f16, halves, K / 64, N);
    add(w, "a.smooth_factor", &oq_dtype_f16, halves, K, -1);
    add(w, "a.proj_down", &oq_dtype_f16, halves, K, RANK);
    add(w, "a.proj_up", &oq_dtype_f16, halves, N, RANK);
    say(w, word);
}

static void test_svdquant(void **state)
{
    world *w = *state;
    start_svdquant(w, "{\"format\": \"svdquant_w4a4\", \"act_unsigned\": true}");
    oq_part_source part = accept(w, NULL);
    assert_true(part.format == &oq_format_int4_g64_f16 && part.rank == RANK && part.shift > 0 &&
                part.act_scale == OQ_ACT_DYNAMIC_UINT4);
    say(w, "{\"format\": \"svdquant_w4a4\"}");
    part = accept(w, NULL);
    assert_true(part.act_scale == OQ_ACT_DYNAMIC_INT4 && !(part.shift > 0));
    say(w, "{\"format\": \"svdquant_w4a4\", \"layout\": \"kitchen_tile_packed_w4a4\"}");
    refuse(w, NULL,
           "layer 'a': layout is 'kitchen_tile_packed_w4a4', but tensor 'a.weight' has 2 dimensions");
    say(w, "{\"format\": \"svdquant_w4a4\", \"lowrank_branch_input_basis\": \"rotated\"}");
    refuse(w, NULL,
           "layer 'a': lowrank_branch_input_basis is 'rotated'; 'raw' and 'post_smoothing' are read");
    say(w, "{\"format\": \"svdquant_w4a4\"}");
    add(w, "a.weight_proj_up", &oq_dtype_f16, halves, N, RANK);
    refuse(w, NULL, "tensors 'a.proj_up' and 'a.weight_proj_up' say the same of one layer");
    memory_ckpt_remove(&w->ckpt, "a.proj_up");
    accept(w, NULL);
    swap(w, "a.weight_proj_up", &oq_dtype_f16, halves, N, RANK + 1);
    refuse(
        w, NULL,
        "tensor 'a.weight_proj_up' has 48 values in 2 dimensions, which do not fit beside 'a.weight' of [16, "
        "128] and rank 2");
    swap(w, "a.weight_proj_up", NULL, NULL, 0, 0);
    refuse(w, NULL, "tensor 'a.proj_up' is missing beside 'a.weight'");
    start_svdquant(w, "{\"format\": \"svdquant_w4a4\"}");
    const uint16_t was = halves[7];
    halves[7] = 0;
    refuse(w, NULL, "tensor 'a.smooth_factor' is 0 at index 7; it must be other than 0 and finite");
    halves[7] = was;
    float tiny[K];
    for (int i = 0; i < K; i++) tiny[i] = i == 9 ? 1e-39f : 1.0f;
    swap(w, "a.smooth_factor", &oq_dtype_f32, tiny, K, -1);
    refuse(w, NULL,
           "tensor 'a.smooth_factor' is 1e-39 at index 9: x of layer 'a' divided by it would not be finite");
}

#define AWQ(more) "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 128" more "}"

static void test_awq(void **state)
{
    world *w = *state;
    memory_ckpt_init(&w->ckpt);
    add(w, "a.qweight", &oq_dtype_i32, codes, N, K / 8);
    add(w, "a.qzeros", &oq_dtype_i32, codes, N, 1);
    add(w, "a.scales", &oq_dtype_f16, halves, N, 8);
    assert_ptr_equal(accept(w, AWQ(", \"version\": \"GEMV\"")).format, &oq_format_int4z_g128_f16);
    refuse(w, AWQ(", \"version\": \"gemm\""),
           "tensor 'a.qweight' is [16, 16]; a weight of [16, 128] in codes of 4 bits, groups of 128, needs "
           "[128, 2]");
    refuse(w, AWQ(", \"version\": \"exllama\""),
           "tensor 'a.qweight' is [16, 16]; a weight of [16, 128] in codes of 4 bits, groups of 128, needs "
           "[128, 2]");
    refuse(w, AWQ(", \"version\": \"gemv_fast\""),
           "tensor 'a.qweight' has 256 values of I32; a weight of [16, 128] in AWQ's packing 'gemv_fast', "
           "groups of "
           "128, needs [4, 128] of I16");
    refuse(w, AWQ(", \"version\": \"gemv\", \"zero_point\": false"),
           "tensor 'a.qzeros' has zero point 11 for row 0, group 0, but the metadata says symmetric codes, "
           "whose zero "
           "point is 8");
    refuse(w, AWQ(", \"version\": \"marlin\", \"zero_point\": false"),
           "layer 'a' is [16, 128]; AWQ's packing 'marlin' has multiples of [64, 16]");
    swap(w, "a.qzeros", NULL, NULL, 0, 0);
    refuse(w, AWQ(", \"version\": \"gemv\""), "tensor 'a.qzeros' is missing beside 'a.qweight'");
    refuse(w, "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 48, \"version\": \"gemv\"}",
           "layer 'a' has groups of 48 over 128 columns; multiples of 32 that divide them are read in AWQ's "
           "packing "
           "'gemv'");

    memory_ckpt_init(&w->ckpt); /* llm-awq's own: another name for the zero points */
    add(w, "a.qweight", &oq_dtype_i16, codes, N / 4, K);
    add(w, "a.scaled_zeros", &oq_dtype_f16, halves, 8, N);
    add(w, "a.scales", &oq_dtype_f16, halves, 8, N);
    assert_ptr_equal(accept(w, AWQ(", \"backend\": \"llm-awq\"")).format, &oq_format_uint4f_g128_f16);
    add(w, "a.qzeros", &oq_dtype_f16, halves, 8, N);
    refuse(w, AWQ(", \"version\": \"gemv_fast\""),
           "tensor 'a.scaled_zeros' changes what layer 'a' computes, in a way that is not in this build yet");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_w4a4, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_w4a8, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_svdquant, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_awq, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
