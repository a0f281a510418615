/* test_cpu_backend.c -- levels, refusals, buffers, and the reference product worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cpu/cpu.h"
#include "cpu/linear/linear_panel.h"

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

static void test_levels(void **state)
{
    oq_env *env = *state;
    static const char *const levels[] = {"avx2", "avxvnni", "avx512",  "avx512vnni", "avx512bf16",
                                         "amx",  "neon",    "dotprod", "i8mm",       "bf16"};
    static const uint64_t bits[] = {OQ_CPU_AVX2,       OQ_CPU_AVXVNNI, OQ_CPU_AVX512, OQ_CPU_AVX512VNNI,
                                    OQ_CPU_AVX512BF16, OQ_CPU_AMX,     OQ_CPU_NEON,   OQ_CPU_DOTPROD,
                                    OQ_CPU_I8MM,       OQ_CPU_BF16};
    const uint64_t choices = OQ_CPU_AVX512BF16 | OQ_CPU_BF16 | OQ_CPU_DOTPROD | OQ_CPU_I8MM;
    const uint64_t probed = oq_cpu_probe();
    uint64_t features = 1;
    assert_int_equal(oq_cpu_mask(env, "auto", &features, NULL), OQ_OK);
    assert_true((features | choices) == (probed | choices) && !(features & ~probed));
    assert_int_equal(oq_cpu_mask(env, "ref", &features, NULL), OQ_OK);
    assert_true(features == 0);
    for (size_t i = 0; i < OQ_COUNT(levels); i++) {
        features = 0;
        const oq_status status = oq_cpu_mask(env, levels[i], &features, NULL);
        if (probed & bits[i]) {
            assert_int_equal(status, OQ_OK);
            assert_true((features & bits[i]) && !(features & ~probed));
        } else {
            char text[64];
            snprintf(text, sizeof text, "this machine has no %s", levels[i]);
            assert_int_equal(status, OQ_E_UNSUPPORTED);
            assert_string_equal(oq_env_error(env), text);
            oq_env_clear(env);
        }
    }
    if (probed & OQ_CPU_AVX2) {
        oq_cpu_mask(env, "avx2", &features, NULL);
        assert_true(features == OQ_CPU_AVX2);
    }
    if (probed & OQ_CPU_NEON) {
        oq_cpu_mask(env, "neon", &features, NULL);
        assert_true(features == OQ_CPU_NEON);
    }
}

static void test_refusals(void **state)
{
    oq_env *env = *state;
    oq_device *device = NULL;
    assert_int_equal(oq_backend_cpu.open(env, 0, "sse9", &device), OQ_E_ARG);
    assert_string_equal(oq_env_error(env),
                        "unknown cpu level 'sse9'; known are auto, ref, avx2, avxvnni, avx512, "
                        "avx512vnni, avx512bf16, amx, neon, dotprod, i8mm, bf16");
    oq_env_clear(env);
    assert_int_equal(oq_backend_cpu.open(env, 1, NULL, &device), OQ_E_NOTFOUND);
    assert_string_equal(oq_env_error(env), "cpu device 1 does not exist, there is only 0");
    oq_env_clear(env);
    assert_null(device);
    void *buffer = NULL;
    assert_int_equal(oq_backend_cpu.buffer_new(env, NULL, SIZE_MAX - 5, &buffer), OQ_E_NOMEM);
    assert_non_null(strstr(oq_env_error(env), "is beyond memory"));
    assert_null(buffer);
    oq_env_clear(env);
}

static void test_describe(void **state)
{
    (void)state;
    char text[64];
    oq_cpu_describe(OQ_CPU_AVX2 | OQ_CPU_AVX512 | OQ_CPU_AVX512VNNI, text, sizeof text);
    assert_string_equal(text, "avx2 avx512 avx512vnni");
    oq_cpu_describe(OQ_CPU_NEON | OQ_CPU_DOTPROD | OQ_CPU_I8MM | OQ_CPU_BF16, text, sizeof text);
    assert_string_equal(text, "neon dotprod i8mm bf16");
    oq_cpu_describe(0, text, sizeof text);
    assert_string_equal(text, "plain C");
    oq_cpu_describe(OQ_CPU_AVX2 | OQ_CPU_AVXVNNI | OQ_CPU_AVX512, text, 8);
    assert_string_equal(text, "avx2 av");
}

static void test_device(void **state)
{
    oq_env *env = *state;
    oq_device *device = NULL;
    assert_int_equal(oq_backend_cpu.open(env, 0, NULL, &device), OQ_OK);
    oq_device_info info;
    oq_backend_cpu.info(device, &info);
    assert_true(info.name[0] && info.detail[0] && info.memory_bytes > 1 << 20);
    void *buffer = NULL;
    assert_int_equal(oq_backend_cpu.buffer_new(env, device, 1000, &buffer), OQ_OK);
    assert_true((uintptr_t)buffer % 256 == 0);
    char back[5] = "";
    assert_int_equal(oq_backend_cpu.upload(env, device, buffer, "abcd", 5), OQ_OK);
    assert_int_equal(oq_backend_cpu.download(env, device, back, buffer, 5), OQ_OK);
    assert_string_equal(back, "abcd");
    assert_int_equal(oq_backend_cpu.sync(env, device), OQ_OK);
    oq_backend_cpu.buffer_free(env, device, buffer);
    oq_backend_cpu.buffer_free(env, device, NULL);
    assert_non_null(oq_backend_cpu.ops(device)->rms_norm);
    oq_backend_cpu.close(env, device);
    oq_backend_cpu.close(env, NULL);
}

/* Every pair of a format and a treatment of activations finds a kernel, at the lowest level too. */
static void test_every_scheme_runs_somewhere(void **state)
{
    oq_env *env = *state;
    oq_device *device = NULL;
    assert_int_equal(oq_backend_cpu.open(env, 0, "ref", &device), OQ_OK);
    for (size_t f = 0; oq_format_list[f]; f++)
        for (int s = OQ_ACT_NONE; s < OQ_N_ACT_SCALES; s++) {
            const oq_dtype *const act = s == OQ_ACT_NONE ? NULL : &oq_dtype_f8_e4m3;
            const oq_linear_spec spec = {
                {.weight = oq_format_list[f], .act = act, .act_scale = (oq_act_scale)s}, 3, 5};
            const oq_linear_kernel *const kernel = oq_backend_cpu.find_linear(device, &spec);
            assert_non_null(kernel);
            assert_string_equal(kernel->name, "linear_wany_aany_ref");
        }
    const oq_linear_spec around = {{.weight = &oq_format_int4_g32, .order = true}, 3, 5};
    assert_string_equal(oq_backend_cpu.find_linear(device, &around)->name, "linear_wany_aany_ref");
    oq_backend_cpu.close(env, device);
}

/* Which kernel each level takes for the schemes that the methods give; levels that the machine lacks are passed over. */
static void test_choice_at_each_level(void **state)
{
    oq_env *env = *state;
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_f32, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_bf16, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_mxfp8, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_MX},
        {.weight = &oq_format_nf4_b64_nested, .act = NULL, .act_scale = OQ_ACT_NONE},
        {.weight = &oq_format_q4_k, .act = NULL, .act_scale = OQ_ACT_NONE},
    };
    static const struct {
        const char *level, *kernel[OQ_COUNT(schemes)];
    } rows[] = {
        {"avx2",
         {"linear_wf32_af32_avx2", "linear_wbf16_af32_avx2", "linear_wfp8_afp8_avx2", "linear_wfp8_afp8_avx2",
          "linear_wi8_ai8_avx2", "linear_wany_af32_avx2", "linear_wany_af32_avx2", "linear_wany_af32_avx2"}},
        {"avxvnni",
         {"linear_wf32_af32_avx2", "linear_wbf16_af32_avx2", "linear_wfp8_afp8_avx2", "linear_wfp8_afp8_avx2",
          "linear_wi8_ai8_avxvnni", "linear_wany_af32_avx2", "linear_wany_af32_avx2",
          "linear_wany_af32_avx2"}},
        {"avx512",
         {"linear_wf32_af32_avx512", "linear_wbf16_af32_avx512", "linear_wfp8_afp8_avx512",
          "linear_wfp8_afp8_avx512", "linear_wi8_ai8_avx2", "linear_wany_af32_avx512",
          "linear_wany_af32_avx512", "linear_wany_af32_avx512"}},
        {"avx512vnni",
         {"linear_wf32_af32_avx512", "linear_wbf16_af32_avx512", "linear_wfp8_afp8_avx512",
          "linear_wfp8_afp8_avx512", "linear_wi8_ai8_avx512vnni", "linear_wany_af32_avx512",
          "linear_wcode_ai16_avx512vnni", "linear_wany_af32_avx512"}},
        {"avx512bf16",
         {"linear_wf32_af32_avx512", "linear_wbf16_abf16_avx512bf16", "linear_wfp8_afp8_avx512bf16",
          "linear_wfp8_afp8_avx512bf16", "linear_wi8_ai8_avx512vnni", "linear_wany_abf16_avx512bf16",
          "linear_wany_abf16_avx512bf16", "linear_wany_abf16_avx512bf16"}},
        {"neon",
         {"linear_wf32_af32_neon", "linear_wbf16_af32_neon", "linear_wfp8_afp8_neon", "linear_wfp8_afp8_neon",
          "linear_wi8_ai8_neon", "linear_wany_af32_neon", "linear_wany_af32_neon", "linear_wany_af32_neon"}},
        {"dotprod",
         {"linear_wf32_af32_neon", "linear_wbf16_af32_neon", "linear_wfp8_afp8_neon", "linear_wfp8_afp8_neon",
          "linear_wi8_ai8_dotprod", "linear_wany_af32_neon", "linear_wany_af32_neon",
          "linear_wany_af32_neon"}},
        {"i8mm",
         {"linear_wf32_af32_neon", "linear_wbf16_af32_neon", "linear_wfp8_afp8_neon", "linear_wfp8_afp8_neon",
          "linear_wi8_ai8_i8mm", "linear_wany_af32_neon", "linear_wany_af32_neon", "linear_wany_af32_neon"}},
        {"bf16",
         {"linear_wf32_af32_neon", "linear_wbf16_abf16_bf16", "linear_wfp8_afp8_bf16",
          "linear_wfp8_afp8_neon", "linear_wi8_ai8_i8mm", "linear_wany_abf16_bf16", "linear_wany_abf16_bf16",
          "linear_wany_abf16_bf16"}},
    };
    for (size_t r = 0; r < OQ_COUNT(rows); r++) {
        oq_device *device = NULL;
        const oq_status status = oq_backend_cpu.open(env, 0, rows[r].level, &device);
        oq_env_clear(env);
        if (status != OQ_OK) continue;
        for (size_t i = 0; i < OQ_COUNT(schemes); i++) {
            const oq_linear_spec spec = {schemes[i], 64, 192};
            assert_string_equal(oq_backend_cpu.find_linear(device, &spec)->name, rows[r].kernel[i]);
        }
        oq_backend_cpu.close(env, device);
    }
}

/* Weights in whole numbers whose rows are units of 256 columns: x meets them in fixed point where bytes are multiplied four at
 * a time, by AVX2 those of up to six bits. */
static void test_fixed_point_at_each_level(void **state)
{
    oq_env *env = *state;
    static const oq_format *const formats[] = {&oq_format_q6_k, &oq_format_int4z_g128, &oq_format_int8_g64,
                                               &oq_format_nf4_b64};
    static const struct {
        const char *level, *kernel[OQ_COUNT(formats)];
    } rows[] = {
        {"avx2",
         {"linear_wany_ai16_avx2", "linear_wany_ai16_avx2", "linear_wany_af32_avx2",
          "linear_wany_af32_avx2"}},
        {"avxvnni",
         {"linear_wany_ai16_avxvnni", "linear_wany_ai16_avxvnni", "linear_wany_ai16_avxvnni",
          "linear_wany_af32_avx2"}},
        {"avx512",
         {"linear_wany_af32_avx512", "linear_wany_af32_avx512", "linear_wany_af32_avx512",
          "linear_wany_af32_avx512"}},
        {"avx512vnni",
         {"linear_wany_ai16_avx512vnni", "linear_wany_ai16_avx512vnni", "linear_wany_ai16_avx512vnni",
          "linear_wcode_ai16_avx512vnni"}},
        {"neon",
         {"linear_wany_af32_neon", "linear_wany_af32_neon", "linear_wany_af32_neon",
          "linear_wany_af32_neon"}},
        {"dotprod",
         {"linear_wany_ai16_dotprod", "linear_wany_ai16_dotprod", "linear_wany_ai16_dotprod",
          "linear_wany_af32_neon"}},
    };
    for (size_t r = 0; r < OQ_COUNT(rows); r++) {
        oq_device *device = NULL;
        const oq_status status = oq_backend_cpu.open(env, 0, rows[r].level, &device);
        oq_env_clear(env);
        if (status != OQ_OK) continue;
        for (size_t i = 0; i < OQ_COUNT(formats); i++) {
            const oq_linear_spec whole = {{.weight = formats[i]}, 64, 512},
                                 part = {{.weight = formats[i]}, 64, 200};
            assert_string_equal(oq_backend_cpu.find_linear(device, &whole)->name, rows[r].kernel[i]);
            assert_null(strstr(oq_backend_cpu.find_linear(device, &part)->name, "_ai16_"));
        }
        oq_backend_cpu.close(env, device);
    }
}

#if defined(__x86_64__)
/* Rows go through fixed point where that was measured to be faster; unmeasured, where there are no pairs of bf16. */
static void test_choice_of_fixed_point(void **state)
{
    (void)state;
    static const struct {
        uint64_t features;
        double f32, bf16, int8;
        bool few, many;
    } rows[] = {
        {0, 0, 0, 0, true, true},
        {0, 1, 0, 4, true, true},
        {0, 1, 0, 2, false, false},
        {OQ_CPU_AVX512BF16, 0, 0, 0, false, false},
        {OQ_CPU_AVX512BF16, 1, 2, 4, true, false}, /* pairs twice as fast as f32 */
        {OQ_CPU_AVX512BF16, 1, 1, 4, true, true},
        {OQ_CPU_BF16, 0, 0, 0, false, false},
        {OQ_CPU_BF16 | OQ_CPU_I8MM, 1, 4, 8, false, false}, /* sdot: 4 */
        {OQ_CPU_I8MM, 1, 0, 8, true, true},
    };
    const oq_linear_spec spec = {{.weight = &oq_format_q4_k}, 64, 512},
                         short_groups = {{.weight = &oq_format_int4_g16}, 64, 512};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_device device = {.features = rows[i].features | OQ_CPU_AVX512 | OQ_CPU_AVX512VNNI};
        device.rates.gflops[OQ_RATE_F32] = rows[i].f32;
        device.rates.gflops[OQ_RATE_BF16] = rows[i].bf16;
        device.rates.gflops[OQ_RATE_INT8] = rows[i].int8;
        assert_int_equal(oq_panel_fixed_pays(&device), rows[i].few);
        if (rows[i].features & (OQ_CPU_BF16 | OQ_CPU_I8MM)) continue; /* whose many rows go elsewhere */
        assert_int_equal(oq_panel_whole_multiplies(&device, &spec, &oq_dtype_bf16, 17), rows[i].many);
        assert_false(oq_panel_whole_multiplies(&device, &spec, &oq_dtype_bf16, 16));
        assert_false(oq_panel_whole_multiplies(&device, &spec, &oq_dtype_f32, 17));
        assert_false(oq_panel_whole_multiplies(&device, &short_groups, &oq_dtype_bf16, 17));
    }
}

enum { LARGE_M = 17, LARGE_K = 256 };

/* y [m, 1] of x [m, 256], every number of which is `x`, by the kernel that the instruction set of that name takes; false: this
 * machine has none. */
static bool multiply_large(oq_env *env, const char *level, const oq_format *f, const void *block, float x,
                           const oq_dtype *type, int64_t m, float *y)
{
    oq_device *device = NULL;
    const oq_linear_spec spec = {{.weight = f}, 1, LARGE_K};
    float wide[LARGE_M * LARGE_K];
    uint16_t narrow[LARGE_M * LARGE_K];
    if (oq_backend_cpu.open(env, 0, level, &device) != OQ_OK) {
        oq_env_clear(env);
        return false;
    }
    for (int i = 0; i < LARGE_M * LARGE_K; i++) wide[i] = x;
    oq_dtype_bf16.from_f32(narrow, wide, LARGE_M * LARGE_K);
    const oq_linear_kernel *const kernel = oq_backend_cpu.find_linear(device, &spec);
    void *packed = oq_alloc(env, kernel->packed_bytes(&spec)),
         *scratch = oq_alloc(env, kernel->scratch_bytes(&spec, m));
    kernel->pack(packed, &(oq_planes){{block}}, &spec);
    kernel->run(device, &(oq_linear_args){.spec = &spec,
                                          .packed = packed,
                                          .scratch = scratch,
                                          .x = oq_tensor_make(type == &oq_dtype_f32 ? (void *)wide : narrow,
                                                              type, m, LARGE_K),
                                          .y = oq_tensor_make(y, &oq_dtype_f32, m, 1)});
    oq_free(env, packed);
    oq_free(env, scratch);
    oq_backend_cpu.close(env, device);
    return true;
}

/* Beyond half of the largest number x is a number still; and where weights have minima, sums of x are none, but products are;
 * and so is nothing where terms cancel that are none. */
static void test_large_numbers_stay_finite(void **state)
{
    oq_env *env = *state;
    static const char *const levels[] = {"avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"};
    static const oq_dtype *const types[] = {&oq_dtype_f32, &oq_dtype_bf16};
    static const int64_t rows[] = {1, 6, LARGE_M};
    static const uint8_t zeros[210];                            /* of q6_k */
    uint8_t minima[144] = {0};                                  /* of q4_k: codes 0, minima of 1 * 2^-20 */
    uint8_t cancel[8 * 20];                                     /* of q4_1: codes 8 of 1 less 8, so zero */
    const uint16_t least = 0x0010, one = 0x3c00, less = 0xc800; /* of F16 */
    float y[LARGE_M];
    memcpy(minima + 2, &least, sizeof least);
    memset(cancel, 0x88, sizeof cancel);
    for (int b = 0; b < 8; b++) {
        memcpy(cancel + 20 * b, &one, sizeof one);
        memcpy(cancel + 20 * b + 2, &less, sizeof less);
    }
    for (int i = 0; i < 4; i++) minima[4 + 4 + i] = 1, minima[4 + 8 + i] = 1 << 4;
    for (size_t i = 0; i < OQ_COUNT(levels) * OQ_COUNT(types) * OQ_COUNT(rows); i++) {
        const char *level = levels[i % OQ_COUNT(levels)];
        const oq_dtype *type = types[i / OQ_COUNT(levels) % OQ_COUNT(types)];
        const int64_t m = rows[i / OQ_COUNT(levels) / OQ_COUNT(types)];
        if (!multiply_large(env, level, &oq_format_q6_k, zeros, 0x1.8p127f, type, m, y)) continue;
        for (int64_t r = 0; r < m; r++) assert_true(y[r] == 0.0f);
        assert_true(multiply_large(env, level, &oq_format_q4_k, minima, 0x1.8p127f, type, m, y));
        for (int64_t r = 0; r < m; r++)
            if (!(fabsf(y[r] + 0x1.8p115f) <= 0x1p105f))
                fail_msg("%s: %lld rows of %s: %g", level, (long long)m, type->name, (double)y[r]);
        assert_true(multiply_large(env, level, &oq_format_q4_1, cancel, 1e37f, type, m, y));
        for (int64_t r = 0; r < m; r++)
            if (y[r] != 0.0f)
                fail_msg("%s: %lld rows of %s, nothing: %g", level, (long long)m, type->name, (double)y[r]);
    }
}
#endif

static void test_linear_list(void **state)
{
    (void)state;
    size_t n = 0;
    for (; oq_cpu_linear_list[n]; n++) {
        const oq_linear_kernel *const kernel = oq_cpu_linear_list[n];
        assert_true(kernel->accepts && kernel->packed_bytes && kernel->pack && kernel->scratch_bytes &&
                    kernel->run);
        assert_true(
            strncmp(kernel->name, kernel->around && kernel->need ? "linear_around_" : "linear_w", 8) == 0);
        for (size_t i = 0; i < n; i++) assert_string_not_equal(oq_cpu_linear_list[i]->name, kernel->name);
    }
    assert_true(n > 0 && oq_cpu_linear_list[n - 1]->need == 0);
}

/* y = [1 -2; 3 0.5] [2 4; 0.5 -1]^T + [10, 20] through int8 weights and activations. */
static void test_reference_product(void **state)
{
    oq_env *env = *state;
    oq_device *device = NULL;
    assert_int_equal(oq_backend_cpu.open(env, 0, "ref", &device), OQ_OK);
    const oq_linear_spec spec = {
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN}, 2, 2};
    const oq_linear_kernel *const kernel = oq_backend_cpu.find_linear(device, &spec);
    const int8_t codes[] = {64, 127, 64, -127};
    const float scales[] = {4.0f / 127.0f, 1.0f / 127.0f}, bias[] = {10.0f, 20.0f};
    const oq_planes planes = {{codes, scales}};
    float x[] = {1.0f, -2.0f, 3.0f, 0.5f}, y[4];
    void *packed = oq_alloc(env, kernel->packed_bytes(&spec)),
         *scratch = oq_alloc(env, kernel->scratch_bytes(&spec, 2));
    kernel->pack(packed, &planes, &spec);
    const oq_linear_args args = {.spec = &spec,
                                 .packed = packed,
                                 .bias = bias,
                                 .scratch = scratch,
                                 .x = oq_tensor_make(x, &oq_dtype_f32, 2, 2),
                                 .y = oq_tensor_make(y, &oq_dtype_f32, 2, 2)};
    kernel->run(device, &args);
    const double a[2][2] = {{64 * 2.0 / 127, -2.0}, {3.0, 21 * 3.0 / 127}};
    const double w[2][2] = {{64 * 4.0 / 127, 4.0}, {64 / 127.0, -1.0}};
    for (int i = 0; i < 2; i++)
        for (int n = 0; n < 2; n++) {
            const double expected = a[i][0] * w[n][0] + a[i][1] * w[n][1] + (double)bias[n];
            assert_true(fabs((double)y[2 * i + n] - expected) < 1e-5);
        }
    oq_free(env, packed);
    oq_free(env, scratch);
    oq_backend_cpu.close(env, device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_levels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_refusals, setup, teardown),
        cmocka_unit_test(test_describe),
        cmocka_unit_test_setup_teardown(test_device, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_scheme_runs_somewhere, setup, teardown),
        cmocka_unit_test_setup_teardown(test_choice_at_each_level, setup, teardown),
        cmocka_unit_test_setup_teardown(test_fixed_point_at_each_level, setup, teardown),
#if defined(__x86_64__)
        cmocka_unit_test(test_choice_of_fixed_point),
        cmocka_unit_test_setup_teardown(test_large_numbers_stay_finite, setup, teardown),
#endif
        cmocka_unit_test(test_linear_list),
        cmocka_unit_test_setup_teardown(test_reference_product, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
