/* test_nunchaku.c -- nunchaku's files beyond what its cases show (test_producer_cases): biases in the order of the lanes and
 * of interleaved modulation, detection by the tensors alone, and every way in which planes do not fit together. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/float8.h"
#include "quant/nunchaku_tiles.h"
#include "quant/resolve.h"

#include "support/memory_ckpt.h"

#include <stdio.h>
#include <string.h>

enum { N = 128, K = 128, RANK = 16 };

static uint8_t codes[N * K / 2], scales8[N * K / 16];
static uint16_t scales[N * K / 64], vector[N], matrix[N * RANK];
static uint32_t awq_codes[3 * 64 * 64 / 8];
static uint16_t awq_numbers[3 * 64], awq_bias[3 * 64];

typedef struct world {
    oq_env *env;
    memory_ckpt ckpt;
    oq_resolved *resolved;
} world;

static uint16_t bf16(float x)
{
    uint16_t out;
    oq_dtype_bf16.from_f32(&out, &x, 1);
    return out;
}

static int setup(void **state)
{
    static world w;
    memset(&w, 0, sizeof w);
    for (int i = 0; i < N; i++) vector[i] = bf16((float)i + 1);
    for (size_t i = 0; i < OQ_COUNT(matrix); i++) matrix[i] = bf16(0.5f);
    for (size_t i = 0; i < OQ_COUNT(scales); i++) scales[i] = bf16(0.25f);
    for (int i = 0; i < 3 * 64; i++) awq_numbers[i] = bf16(1.0f), awq_bias[i] = bf16((float)i);
    if (oq_env_new(NULL, &w.env) != OQ_OK) return -1;
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    oq_resolved_free(w->resolved);
    oq_env_free(w->env);
    return 0;
}

/* A whole layer "a" in integers. */
static void start(world *w)
{
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.qweight", &oq_dtype_i8, codes, N, K / 2);
    memory_ckpt_add(&w->ckpt, "a.wscales", &oq_dtype_bf16, scales, K / 64, N);
    memory_ckpt_add(&w->ckpt, "a.smooth_factor", &oq_dtype_bf16, vector, K, -1);
    memory_ckpt_add(&w->ckpt, "a.proj_down", &oq_dtype_bf16, matrix, K, RANK);
    memory_ckpt_add(&w->ckpt, "a.proj_up", &oq_dtype_bf16, matrix, N, RANK);
    memory_ckpt_add(&w->ckpt, "a.bias", &oq_dtype_bf16, vector, N, -1);
}

static oq_status resolve(world *w)
{
    oq_resolved_free(w->resolved);
    w->resolved = NULL;
    oq_env_clear(w->env);
    const oq_resolve_input in = {
        .name = "transformer", .class_name = "Net", .quantizable = true, .ckpt = &w->ckpt.ckpt};
    return oq_resolve(w->env, NULL, &in, 1, &w->resolved);
}

static oq_status locate(world *w, const char *name, int64_t n, int64_t k, oq_part_source *part)
{
    bool found = false;
    OQ_TRY(resolve(w));
    const oq_resolved_component *c = &w->resolved->components[0];
    assert_non_null(c->dialect);
    assert_string_equal(c->dialect->name, "nunchaku");
    const oq_status st = c->dialect->locate(w->env, &c->declared, &w->ckpt.ckpt, name, n, k, part, &found);
    assert_true(found == (st == OQ_OK));
    return st;
}

static void refuse(world *w, const char *text)
{
    oq_part_source part;
    const oq_status st = locate(w, "a", N, K, &part);
    if (st == OQ_OK) fail_msg("accepted: %s", text);
    assert_string_equal(oq_env_error(w->env), text);
}

/* Lane 0 holds rows 0, 1, 8, 9; lane 1 rows 2, 3, 10, 11; lane 4 begins with row 16. */
static void test_int4(void **state)
{
    world *w = *state;
    oq_part_source part;
    float bias[N], smooth[K];
    start(w);
    if (locate(w, "a", N, K, &part) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_ptr_equal(part.format, &oq_format_int4_g64_bf16);
    assert_int_equal(part.act_scale, OQ_ACT_DYNAMIC_INT4);
    assert_int_equal(part.rank, RANK);
    oq_plane_read(&part.bias, bias, sizeof bias, N, K);
    static const struct {
        int row;
        float value;
    } rows[] = {{0, 1}, {1, 2}, {8, 3}, {9, 4}, {2, 5}, {3, 6}, {10, 7}, {16, 17}, {127, 128}, {126, 127}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) assert_true(bias[rows[i].row] == rows[i].value);
    oq_plane_read(&part.plane[OQ_PLANE_SMOOTH], smooth, sizeof smooth, N, K);
    assert_true(smooth[8] == 1.0f / 3.0f);
}

/* Row s * 64 + c stands at 3 c + s; the 1 of "1 + scale" is in the second part alone. */
static void test_modulation(void **state)
{
    world *w = *state;
    oq_part_source part;
    float bias[3 * 64];
    start(w);
    memory_ckpt_add(&w->ckpt, "m.qweight", &oq_dtype_i32, awq_codes, 3 * 64 / 4, 64 / 2);
    memory_ckpt_add(&w->ckpt, "m.wscales", &oq_dtype_bf16, awq_numbers, 1, 3 * 64);
    memory_ckpt_add(&w->ckpt, "m.wzeros", &oq_dtype_bf16, awq_numbers, 1, 3 * 64);
    memory_ckpt_add(&w->ckpt, "m.bias", &oq_dtype_bf16, awq_bias, 3 * 64, -1);
    if (locate(w, "m", 3 * 64, 64, &part) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_ptr_equal(part.format, &oq_format_uint4f_g64_bf16);
    assert_null(part.act);
    oq_plane_read(&part.bias, bias, sizeof bias, 3 * 64, 64);
    for (int s = 0; s < 3; s++)
        for (int c = 0; c < 64; c++) assert_true(bias[s * 64 + c] == (float)(3 * c + s - (s == 1)));
    assert_int_equal(locate(w, "m", 4 * 64, 64, &part), OQ_E_UNSUPPORTED);
    assert_non_null(strstr(oq_env_error(w->env), "a modulation of 3 or 6 parts"));
}

static void test_refusals(void **state)
{
    world *w = *state;
    static const struct {
        const char *without, *text;
    } rows[] = {{"a.wscales", "tensor 'a.wscales' is missing beside 'a.qweight'"},
                {"a.smooth_factor", "tensor 'a.smooth_factor' is missing beside 'a.qweight'"},
                {"a.proj_up", "tensor 'a.proj_up' is missing beside 'a.qweight'"}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        start(w);
        memory_ckpt_remove(&w->ckpt, rows[i].without);
        refuse(w, rows[i].text);
    }
    start(w);
    memory_ckpt_add(&w->ckpt, "a.wcscales", &oq_dtype_bf16, vector, N, -1);
    refuse(w, "tensor 'a.wcscales' scales integers a second time, which is not in this build yet");
    start(w);
    memory_ckpt_add(&w->ckpt, "a.shift", &oq_dtype_bf16, vector, N, -1);
    refuse(w, "tensor 'a.shift' changes what layer 'a' computes, in a way that is not in this build yet");
    start(w);
    memory_ckpt_remove(&w->ckpt, "a.proj_up");
    memory_ckpt_add(&w->ckpt, "a.proj_up", &oq_dtype_bf16, matrix, N, 8);
    refuse(w, "tensor 'a.proj_up' has 1024 values; beside 'a.qweight' it needs [128, 16]");
    start(w);
    memory_ckpt_remove(&w->ckpt, "a.qweight");
    memory_ckpt_add(&w->ckpt, "a.qweight", &oq_dtype_i8, codes, 64, K / 2);
    refuse(w, "tensor 'a.qweight' has 4096 bytes, which are no tiles of 128 x 64 codes around [128, 128]");
}

static void test_bad_numbers(void **state)
{
    world *w = *state;
    start(w);
    const uint16_t kept = vector[5];
    vector[5] = 0;
    refuse(w, "tensor 'a.smooth_factor' is 0 at index 5; it must be other than 0 and finite");
    vector[5] = kept;
    memory_ckpt_remove(&w->ckpt, "a.wscales");
    memory_ckpt_add(&w->ckpt, "a.wscales", &oq_dtype_f8_e4m3, scales8, K / 16, N);
    scales8[3] = 0x7f;
    refuse(w, "scale 'a.wscales' is NaN at index 3");
    scales8[3] = 0;
}

/* Behind GELU x is shifted and without sign, which only the layer's name tells. */
static void test_other_networks(void **state)
{
    world *w = *state;
    oq_part_source part;
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "b.img_mlp.net.2.qweight", &oq_dtype_i8, codes, N, K / 2);
    memory_ckpt_add(&w->ckpt, "b.img_mlp.net.2.wscales", &oq_dtype_bf16, scales, K / 64, N);
    memory_ckpt_add(&w->ckpt, "b.img_mlp.net.2.proj_down", &oq_dtype_bf16, matrix, K, RANK);
    memory_ckpt_add(&w->ckpt, "b.img_mlp.net.2.proj_up", &oq_dtype_bf16, matrix, N, RANK);
    memory_ckpt_add(&w->ckpt, "b.img_mlp.net.2.smooth", &oq_dtype_bf16, vector, K, -1);
    if (locate(w, "b.img_mlp.net.2", N, K, &part) != OQ_OK) fail_msg("%s", oq_env_error(w->env));
    assert_int_equal(part.act_scale, OQ_ACT_DYNAMIC_UINT4);
    assert_true(part.shift == 0.171875f);
    memory_ckpt_remove(&w->ckpt, "b.img_mlp.net.2.proj_up");
    assert_int_equal(locate(w, "b.img_mlp.net.2", N, K, &part), OQ_E_FORMAT); /* half a branch */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int4),           cmocka_unit_test(test_modulation),
        cmocka_unit_test(test_refusals),       cmocka_unit_test(test_bad_numbers),
        cmocka_unit_test(test_other_networks),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
