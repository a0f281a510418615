/* test_dialect_words.c -- SDNQ and HQQ: what the metadata (SDNQ) or small tensors (HQQ) say about a layer, by name, pattern and
 * number, and how it is refused where its tensors are something else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/dialect_world.h"

#include <stdio.h>
#include <string.h>

enum { N = 16, K = 64 };

static uint8_t codes[N * K];
static float scales[N], zeros[N], bad[N];

static int setup(void **state)
{
    for (int i = 0; i < N * K; i++) codes[i] = (uint8_t)(i * 7);
    for (int i = 0; i < N; i++) scales[i] = 0.5f, zeros[i] = (float)i - 3.0f, bad[i] = -0.5f;
    return world_setup(state);
}

static void refuse(world *w, const char *config, oq_status status, const char *text)
{
    oq_part_source part;
    bool found = false;
    assert_int_equal(world_locate(w, config, N, K, &part, &found), status);
    assert_false(found);
    assert_string_equal(oq_env_error(w->env), text);
}

static oq_part_source accept(world *w, const char *config, const oq_format *format)
{
    oq_part_source part;
    bool found = false;
    if (world_locate(w, config, N, K, &part, &found) != OQ_OK)
        fail_msg("%s: %s", config, oq_env_error(w->env));
    assert_true(found);
    assert_string_equal(part.format->name, format->name);
    return part;
}

/* ---- SDNQ -------------------------------------------------------------------------------------------------- */

#define SDNQ(words) "{\"quant_method\": \"sdnq\", " words "}"
#define UINT4       "\"weights_dtype\": \"uint4\""

static void start_sdnq(world *w, int bits, bool has_zero)
{
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.weight", &oq_dtype_u8, codes, N * K * bits / 8, -1);
    memory_ckpt_add(&w->ckpt, "a.scale", &oq_dtype_f32, scales, N, 1);
    if (has_zero) memory_ckpt_add(&w->ckpt, "a.zero_point", &oq_dtype_f32, zeros, N, 1);
}

static void test_sdnq_types(void **state)
{
    world *w = *state;
    start_sdnq(w, 4, true);
    accept(w, SDNQ(UINT4), &oq_format_uint4fma_channel);
    accept(w, SDNQ("\"weights_dtype\": \"int8\", \"modules_dtype_dict\": {\"uint4\": [\"b\", \"a\"]}"),
           &oq_format_uint4fma_channel);
    refuse(w, SDNQ("\"weights_dtype\": \"int4\""), OQ_E_MISMATCH,
           "tensor 'a.zero_point' is there, but the metadata says that its layer is int4");
    refuse(w, SDNQ("\"weights_dtype\": \"uint8\""), OQ_E_FORMAT,
           "tensor 'a.weight' has 512 bytes in 1 dimensions, which are no [16, 64] codes of uint8");
    refuse(w, SDNQ("\"weights_dtype\": \"float9_e4m4fn\""), OQ_E_UNSUPPORTED,
           "layer 'a' is of SDNQ's type 'float9_e4m4fn', which is not in this build yet; int2 to int8, uint2 "
           "to uint8 and "
           "floats of 2 to 8 bits (fn, fnu) are");
    refuse(w, SDNQ("\"weights_dtype\": \"float4_e2m2fn\""), OQ_E_UNSUPPORTED,
           "layer 'a' is of SDNQ's type 'float4_e2m2fn', which is not in this build yet; int2 to int8, uint2 "
           "to uint8 and "
           "floats of 2 to 8 bits (fn, fnu) are");
    accept(w, SDNQ("\"weights_dtype\": \"float4_e2m2fnu\", \"sdnq_version\": \"0.2.8\""),
           &oq_format_e2m2fnu_channel);
    accept(w, SDNQ("\"weights_dtype\": \"float4_e2m2fnu\", \"sdnq_version\": \"0.2.2\""),
           &oq_format_e2m2fnu_channel);
    refuse(w, SDNQ("\"weights_dtype\": \"float4_e2m2fnu\", \"sdnq_version\": \"0.2.1\""), OQ_E_UNSUPPORTED,
           "layer 'a' is of SDNQ's type 'float4_e2m2fnu' as version '0.2.1' writes it, which is not in this "
           "build yet; "
           "that of 0.2.2 and later is");
    refuse(w, SDNQ("\"weights_dtype\": \"float4_e2m2fnu\""), OQ_E_UNSUPPORTED,
           "layer 'a' is of SDNQ's type 'float4_e2m2fnu' as version '(not told)' writes it, which is not in "
           "this build "
           "yet; that of 0.2.2 and later is");
    start_sdnq(w, 4, false);
    refuse(w, SDNQ(UINT4), OQ_E_FORMAT,
           "tensor 'a.zero_point' is missing: the metadata says that layer 'a' is uint4");
    accept(w, SDNQ("\"weights_dtype\": \"int4\""), &oq_format_int4_g128);
    accept(w, SDNQ("\"weights_dtype\": \"float4_e2m1fn\", \"sdnq_version\": \"1.0.0\""),
           &oq_format_e2m1fn_channel);
    start_sdnq(w, 2, true);
    accept(w, SDNQ("\"weights_dtype\": \"uint2\""), &oq_format_uint2fma_channel);
}

/* The producer's own ways to name layers. */
static void test_sdnq_lists(void **state)
{
    world *w = *state;
    static const char *const names_it[] = {"a", "a.weight", ".a", "a*", "*.weight", "a.*", "weight"},
                             *const others[] = {"b", "a.b", ".b", "b*", "weigh", "*.bias", "aa", "x.a"};
    char config[256];
    start_sdnq(w, 4, true);
    for (size_t i = 0; i < OQ_COUNT(names_it); i++) {
        snprintf(config, sizeof config, SDNQ("\"modules_dtype_dict\": {\"uint4\": [\"%s\"]}"), names_it[i]);
        accept(w, config, &oq_format_uint4fma_channel);
        snprintf(config, sizeof config, SDNQ("\"modules_quant_config\": {\"%s\": {" UINT4 "}}"), names_it[i]);
        accept(w, config, &oq_format_uint4fma_channel);
    }
    for (size_t i = 0; i < OQ_COUNT(others); i++) {
        snprintf(config, sizeof config, SDNQ("\"modules_dtype_dict\": {\"uint4\": [\"%s\"]}"), others[i]);
        refuse(w, config, OQ_E_MISMATCH,
               "tensor 'a.weight' is U8, but the metadata says that its layer is int8");
    }
    accept(w, SDNQ("\"weights_dtype\": \"uint2\", \"modules_dtype_dict\": {\"minimum_4bit\": [\"a\"]}"),
           &oq_format_uint4fma_channel);
    accept(w, SDNQ(UINT4 ", \"modules_dtype_dict\": {\"minimum_uint3bits\": \"a\"}"),
           &oq_format_uint4fma_channel);
    /* a least number that is met leaves the say to the next entry */
    accept(w,
           SDNQ("\"weights_dtype\": \"int3\", \"modules_dtype_dict\": {\"minimum_2bit\": \"a\", \"uint4\": "
                "\"a\"}"),
           &oq_format_uint4fma_channel);
    refuse(w, SDNQ(UINT4 ", \"modules_dtype_dict\": {\"6bit\": [\"a\"]}"), OQ_E_FORMAT,
           "tensor 'a.weight' has 512 bytes in 1 dimensions, which are no [16, 64] codes of int6");
    refuse(w, SDNQ(UINT4 ", \"modules_to_not_convert\": [\"b\", \"a\"]"), OQ_E_MISMATCH,
           "layer 'a' is quantized in the file, but 'a' of modules_to_not_convert names it");
}

static void test_sdnq_refusals(void **state)
{
    world *w = *state;
    start_sdnq(w, 4, true);
    refuse(w, SDNQ(UINT4 ", \"use_codebook\": true"), OQ_E_UNSUPPORTED,
           "layer 'a' has tables of numbers (use_codebook), which are not in this build yet");
    refuse(w, SDNQ(UINT4 ", \"scale_dtype\": \"uint8\""), OQ_E_UNSUPPORTED,
           "layer 'a' has scale_dtype 'uint8', which is not in this build yet; scales and zero points that "
           "are floats "
           "are");
    assert_int_equal(accept(w, SDNQ(UINT4 ", \"use_hadamard\": true"), &oq_format_uint4fma_channel).rotate,
                     K);
    refuse(w, SDNQ(UINT4 ", \"use_hadamard\": true, \"hadamard_group_size\": 32"), OQ_E_UNSUPPORTED,
           "layer 'a' rotates runs of 32 columns; powers of four are read");
    memory_ckpt_add(&w->ckpt, "a.scale", &oq_dtype_f32, bad, N, 1);
    refuse(w, SDNQ(UINT4), OQ_E_FORMAT, "scale 'a.scale' is -0.5 at index 0; SDNQ's are not below zero");
    start_sdnq(w, 4, true);
    memory_ckpt_add(&w->ckpt, "a.scale_2", &oq_dtype_f32, scales, 1, -1);
    refuse(w, SDNQ(UINT4), OQ_E_UNSUPPORTED,
           "tensor 'a.scale_2' changes what layer 'a' computes, in a way that is not in this build yet");
}

static const struct multiplied {
    const char *type, *by;
    int bits;
    int64_t scales;
    const oq_dtype *act;
    const char *refused;
} multiplied[] = {
    {"float4_e2m1fn", "float8_e4m3fn", 4, 32, &oq_dtype_f8_e4m3, NULL},
    {"float4_e2m1fn", "int8", 4, 32, NULL, NULL}, /* made anew */
    {"int4", "int8", 4, 32, &oq_dtype_i8, NULL},
    {"int4", "float8_e4m3fn", 4, 32, NULL, NULL},
    {"float7_e5m1fn", "fp8", 7, 32, NULL, NULL}, /* beyond 448 */
    {"float4_e2m1fn", "float16", 4, 32, NULL,
     "layer 'a' of float4_e2m1fn is multiplied by activations of float16, which is not in this build yet; "
     "int8, "
     "uint8 and float8_e4m3fn of weights of their kind are"},
    {"float7_e2m4fn", "fp8", 7, 32, NULL,
     "layer 'a' of float7_e2m4fn is rounded to float8_e4m3fn for its product, which is not in this build "
     "yet"},
    {"int4", "int8", 4, 1, NULL,
     "layer 'a' has one scale for all and is multiplied by activations of int8, which is not in this build "
     "yet; a "
     "scale for each row is"},
};

/* What it multiplies as codes: rows of packed floats by e4m3, from 32 rows of x on. */
static void test_sdnq_matmul(void **state)
{
    static float rows[32];
    world *w = *state;
    for (int i = 0; i < 32; i++) rows[i] = 0.5f;
    for (size_t i = 0; i < OQ_COUNT(multiplied); i++) {
        const struct multiplied *m = &multiplied[i];
        oq_part_source part = {0};
        bool found = false;
        char config[300];
        memory_ckpt_init(&w->ckpt);
        memory_ckpt_add(&w->ckpt, "a.weight", &oq_dtype_u8, codes, m->bits == 4 ? 512 : 128,
                        m->bits == 4 ? -1 : 7);
        memory_ckpt_add(&w->ckpt, "a.scale", &oq_dtype_f32, rows, m->scales, 1);
        snprintf(config, sizeof config,
                 SDNQ("\"sdnq_version\": \"0.2.8\", \"use_quantized_matmul\": true, "
                      "\"weights_dtype\": \"%s\", \"quantized_matmul_dtype\": \"%s\""),
                 m->type, m->by);
        const oq_status st = world_locate(w, config, 32, 32, &part, &found);
        if (m->refused) {
            assert_int_equal(st, OQ_E_UNSUPPORTED);
            assert_string_equal(oq_env_error(w->env), m->refused);
            continue;
        }
        if (st != OQ_OK) fail_msg("%s by %s: %s", m->type, m->by, oq_env_error(w->env));
        assert_ptr_equal(part.act, m->act);
        assert_int_equal(part.act_min_rows, m->act ? 32 : 0);
    }
}

/* ---- HQQ --------------------------------------------------------------------------------------------------- */

static int32_t nbits = 4, group = K, axis = 1;
static uint8_t flag = 0;

static void start_hqq(world *w)
{
    static const int64_t shape[2] = {N, K};
    static const uint8_t packing[] = "4bit_u8";
    nbits = 4, group = K, axis = 1, flag = 0;
    memory_ckpt_init(&w->ckpt);
    memory_ckpt_add(&w->ckpt, "a.W_q", &oq_dtype_u8, codes, N / 2, K);
    memory_ckpt_add(&w->ckpt, "a.scale", &oq_dtype_f32, scales, N, 1);
    memory_ckpt_add(&w->ckpt, "a.zero", &oq_dtype_f32, zeros, N, 1);
    memory_ckpt_add(&w->ckpt, "a.shape", &oq_dtype_i64, shape, 2, -1);
    memory_ckpt_add(&w->ckpt, "a.packing", &oq_dtype_u8, packing, 7, -1);
    memory_ckpt_add(&w->ckpt, "a.nbits", &oq_dtype_i32, &nbits, -1, -1);
    memory_ckpt_add(&w->ckpt, "a.group_size", &oq_dtype_i32, &group, -1, -1);
    memory_ckpt_add(&w->ckpt, "a.axis", &oq_dtype_i32, &axis, -1, -1);
    memory_ckpt_add(&w->ckpt, "a.view_as_float", &oq_dtype_u8, &flag, -1, -1);
}

static void test_hqq(void **state)
{
    world *w = *state;
    static const char named[] = "{\"quant_method\": \"hqq\"}";
    start_hqq(w);
    accept(w, named, &oq_format_uint4zf_channel);
    accept(w, NULL, &oq_format_uint4zf_channel); /* by its tensors */
    axis = 0;
    refuse(w, named, OQ_E_UNSUPPORTED,
           "layer 'a' has groups of 64 across its 16 rows; 32, 64 and 128 that divide them are read");
    axis = 2;
    refuse(w, named, OQ_E_FORMAT, "layer 'a' has groups along axis 2; there are 0 and 1");
    axis = 1, nbits = 5;
    refuse(w, named, OQ_E_UNSUPPORTED, "layer 'a' has codes of 5 bits; 1, 2, 3, 4 and 8 are read");
    nbits = 2;
    refuse(w, named, OQ_E_UNSUPPORTED,
           "tensor 'a.packing' does not say '2bit_u8', which codes of 2 bits are read in");
    nbits = 4, group = 24;
    refuse(w, named, OQ_E_UNSUPPORTED,
           "layer 'a' has groups of 24 over 64 columns; multiples of 16 that divide them and whole rows are "
           "read");
    group = 32;
    refuse(w, named, OQ_E_FORMAT,
           "tensor 'a.W_q' has 512 elements of U8 in 2 dimensions; [16, 64] codes of 4 bits in groups of 32 "
           "need [16, 32] "
           "of U8");
    group = K;
    memory_ckpt_add(&w->ckpt, "a.quant_zero", &oq_dtype_u8, &flag, -1, -1);
    accept(w, named, &oq_format_uint4zf_channel);
    static uint8_t yes = 1;
    memory_ckpt_add(&w->ckpt, "a.quant_zero", &oq_dtype_u8, &yes, -1, -1);
    refuse(w, named, OQ_E_UNSUPPORTED,
           "layer 'a' has quantized scales or zero points (quant_zero), which are not in this build yet");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sdnq_types, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_sdnq_lists, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_sdnq_refusals, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_sdnq_matmul, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_hqq, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
