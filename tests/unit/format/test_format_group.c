/* test_format_group.c -- four-bit numbers, powers of two, and the formats that scale short groups: every code, known
 * vectors, layouts, ragged ends, and how much signal each keeps. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"
#include "format/format.h"
#include "format/format_int.h"

/* ---- numbers ------------------------------------------------------------------------------------------- */

static void test_e2m1(void **state)
{
    (void)state;
    static const struct {
        float x;
        uint8_t code;
    } known[] = {{0.0f, 0},  {0.25f, 0},      {0.26f, 1},    {0.5f, 1},   {0.75f, 2},  {1.25f, 2},
                 {1.26f, 3}, {1.75f, 4},      {2.5f, 4},     {2.51f, 5},  {3.5f, 6},   {5.0f, 6},
                 {5.01f, 7}, {7.0f, 7},       {-0.0f, 8},    {-0.25f, 8}, {-1.0f, 10}, {-5.5f, 15},
                 {1e30f, 7}, {-INFINITY, 15}, {INFINITY, 7}, {NAN, 7}};
    for (size_t i = 0; i < OQ_COUNT(known); i++)
        assert_int_equal(oq_e2m1_from_f32(known[i].x), known[i].code);
    for (uint8_t code = 0; code < 7; code++) {
        const float middle = (oq_e2m1_table[code] + oq_e2m1_table[code + 1]) / 2;
        assert_int_equal(oq_e2m1_from_f32(oq_e2m1_table[code]), code);
        assert_int_equal(oq_e2m1_from_f32(-oq_e2m1_table[code]), code | 8);
        assert_int_equal(oq_e2m1_from_f32(middle), code & 1 ? code + 1 : code);
        assert_int_equal(oq_e2m1_from_f32(nextafterf(middle, 0.0f)), code);
        assert_int_equal(oq_e2m1_from_f32(nextafterf(middle, 9.0f)), code + 1);
        /* sign, two bits of exponent with bias 1, one of mantissa */
        const float value = code < 2 ? 0.5f * code : ldexpf(1.0f + 0.5f * (code & 1), (code >> 1) - 1);
        assert_true(oq_e2m1_table[code] == value && oq_e2m1_table[code | 8] == -value);
    }
    assert_true(signbit(oq_e2m1_table[8]) && oq_e2m1_table[7] == 6.0f);
}

static void test_e8m0(void **state)
{
    (void)state;
    for (int byte = 0; byte < 255; byte++) {
        assert_true(oq_e8m0_to_f32((uint8_t)byte) == ldexpf(1.0f, byte - 127));
        assert_true(oq_e8m0_inverse((uint8_t)byte) == ldexpf(1.0f, 127 - byte));
    }
    assert_true(isnan(oq_e8m0_to_f32(255)));
    static const struct {
        float amax;
        int ceil8, floor4, q725; /* bytes */
    } known[] = {{1.0f, 119, 125, 125}, {3.0f, 120, 126, 126},   {6.0f, 121, 127, 127},
                 {7.0f, 121, 127, 127}, {7.25f, 122, 127, 127},  {7.3f, 122, 127, 128},
                 {8.0f, 122, 128, 128}, {448.0f, 127, 133, 133}, {448.1f, 128, 133, 133},
                 {0.0f, 0, 0, 0},       {1e-40f, 0, 0, 0},       {INFINITY, 255, 255, 255},
                 {NAN, 255, 255, 255},  {1.75f, 119, 125, 125},  {1.76f, 120, 125, 125}};
    for (size_t i = 0; i < OQ_COUNT(known); i++) {
        assert_int_equal(oq_e8m0_choose(known[i].amax, oq_e8m0_e4m3_ceil), known[i].ceil8);
        assert_int_equal(oq_e8m0_choose(known[i].amax, oq_e8m0_e2m1_floor), known[i].floor4);
        assert_int_equal(oq_e8m0_choose(known[i].amax, oq_e8m0_e2m1_q725), known[i].q725);
    }
}

/* The nearest entry of the table, ties to the lower value: by search, not by the encoder's thresholds. */
static void test_code_tables(void **state)
{
    (void)state;
    for (int i = -4000; i <= 4000; i++) {
        const float x = (float)i / 4000.0f;
        const float nf4 = oq_nf4_table[oq_nf4_from_f32(x)], fp4 = oq_fp4_table[oq_fp4_from_f32(x)];
        for (int code = 0; code < 16; code++) {
            assert_true(fabsf(nf4 - x) <= fabsf(oq_nf4_table[code] - x) + 1e-7f);
            assert_true(fabsf(fp4 - x) <= fabsf(oq_fp4_table[code] - x) + 1e-6f);
        }
    }
    for (uint8_t code = 0; code < 16; code++) {
        assert_int_equal(oq_nf4_from_f32(oq_nf4_table[code]), code);
        assert_int_equal(oq_fp4_from_f32(oq_fp4_table[code]), code == 8 ? 0 : code);
    }
}

/* ---- known vectors ------------------------------------------------------------------------------------- */

static oq_planes view(const oq_planes_mut *p)
{
    oq_planes out;
    for (int i = 0; i < OQ_N_PLANES; i++) out.plane[i] = p->plane[i];
    return out;
}

static void test_nf4_and_fp4_known(void **state)
{
    (void)state;
    static const float w[8] = {2.0f, -2.0f, 1.0f, 0.1f, 0.0f, -0.4f, 0.9f, -1.5f};
    static const uint8_t nf4[] = {0x0f, 0x8c, 0x57, 0x1c}, fp4[] = {0xb3, 0x15, 0xe0, 0xa5};
    uint8_t data[4];
    float scale;
    oq_planes_mut planes = {{data, &scale}};
    oq_format_nf4_b64.encode(&oq_format_nf4_b64, &planes, w, 1, 8);
    assert_true(scale == 2.0f);
    assert_memory_equal(data, nf4, 4);
    oq_format_fp4_b64.encode(&oq_format_fp4_b64, &planes, w, 1, 8);
    assert_true(scale == 2.0f);
    assert_memory_equal(data, fp4, 4);
}

static void test_nvfp4_known(void **state)
{
    (void)state;
    static const uint8_t want[16] = {0, 1, 2, 2, 3, 4, 4, 5, 5, 6, 6, 6, 6, 7, 7, 7};
    float w[16], row[16], global;
    uint8_t data[8], scale;
    oq_planes_mut planes = {{data, &scale, &global}};
    for (int i = 0; i < 16; i++) w[i] = (float)i / 10.0f;
    oq_format_nvfp4.encode(&oq_format_nvfp4, &planes, w, 1, 16);
    assert_true(fabsf(global - 0.000558036f) < 1e-9f);
    assert_int_equal(scale, 0x7e); /* 448 */
    const oq_planes v = view(&planes);
    oq_format_nvfp4.decode_row(&oq_format_nvfp4, row, &v, 0, 1, 16);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(data[i / 2] >> 4 * (i & 1) & 15, want[i]);
        assert_true(row[i] == oq_e2m1_table[want[i]] * (448.0f * global)); /* the scales first */
    }
}

/* Byte 254 is the largest scale, 0 the smallest (no zero), 255 NaN. */
static void test_mx_scales_at_the_ends(void **state)
{
    (void)state;
    uint8_t data[3 * 32], scale[3] = {0, 254, 255};
    float row[96];
    for (int i = 0; i < 96; i++) data[i] = 0x38; /* 1.0 */
    const oq_planes v = {{data, scale}};
    oq_format_mxfp8.decode_row(&oq_format_mxfp8, row, &v, 0, 1, 96);
    assert_true(row[0] == 0x1p-127f && row[32] == 0x1p127f && isnan(row[64]) && isnan(row[95]));
    memset(data, 0x72, 48); /* codes 2, 7: 1 and 6 */
    oq_format_mxfp4.decode_row(&oq_format_mxfp4, row, &v, 0, 1, 96);
    assert_true(row[0] == 0x1p-127f && row[1] == 6 * 0x1p-127f && row[62] == 0x1p127f && isnan(row[64]));
}

static void test_int4_known(void **state)
{
    (void)state;
    static const float w[8] = {-4.0f, 3.5f, 0.0f, 1.0f, 2.0f, -0.24f, 0.26f, 0.75f};
    static const uint8_t symmetric[8] = {0, 15, 8, 10, 12, 8, 9, 10}; /* scale 0.5; 0.75 is a tie, to even */
    float scale, row[8];
    uint8_t data[4], zero;
    oq_planes_mut planes = {{data, &scale, NULL, &zero}};
    oq_format_int4_g32.encode(&oq_format_int4_g32, &planes, w, 1, 8);
    assert_true(scale == 0.5f);
    for (int i = 0; i < 8; i++) assert_int_equal(data[i / 2] >> 4 * (i & 1) & 15, symmetric[i]);
    oq_format_int4z_g32.encode(&oq_format_int4z_g32, &planes, w, 1, 8);
    assert_true(fabsf(scale - 0.5f) < 1e-6f);
    assert_int_equal(zero, 8);
    const oq_planes v = view(&planes);
    oq_format_int4z_g32.decode_row(&oq_format_int4z_g32, row, &v, 0, 1, 8);
    assert_true(row[2] == 0.0f && fabsf(row[0] + 4.0f) < 1e-5f && fabsf(row[1] - 3.5f) < 1e-5f);
}

/* ---- all group formats --------------------------------------------------------------------------------- */

typedef struct weight { /* one W in a format */
    const oq_format *f;
    oq_planes_mut planes;
    size_t bytes;
} weight;

static weight weight_of(const oq_format *f, const float *w, int64_t n, int64_t k)
{
    weight out = {.f = f};
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)p, n, k);
        assert_true((bytes != 0) == ((f->planes >> p & 1u) != 0));
        if (!bytes) continue;
        out.planes.plane[p] = malloc(bytes);
        assert_non_null(out.planes.plane[p]);
        memset(out.planes.plane[p], 0xa5, bytes);
        out.bytes += bytes;
    }
    if (f->encode) f->encode(f, &out.planes, w, n, k);
    return out;
}

static void weight_free(weight *w)
{
    for (int p = 0; p < OQ_N_PLANES; p++) free(w->planes.plane[p]);
}

/* With an encoder: those that are only read are looked at in test_format_gguf. */
static bool is_group(const oq_format *f)
{
    return !f->element && f->encode;
}

/* The same numbers in every run. */
static double next_uniform(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return ((double)(*seed >> 11) + 0.5) * 0x1p-53;
}

static float *gauss(int64_t count, uint64_t seed)
{
    float *const x = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) {
        const double u = next_uniform(&seed), v = next_uniform(&seed);
        x[i] = (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    return x;
}

/* Any piece of a row has the bits of the whole row, whatever its ends; a row does not depend on the rows around it. */
static void test_spans(void **state)
{
    (void)state;
    static const int64_t ks[] = {1, 33, 64, 200};
    for (size_t i = 0; oq_format_list[i]; i++)
        for (size_t s = 0; s < OQ_COUNT(ks); s++) {
            const oq_format *const f = oq_format_list[i];
            const int64_t n = 5, k = ks[s];
            float *const x = gauss(n * k, 7), row[200], part[200];
            weight w = weight_of(f, x, n, k);
            const oq_planes v = view(&w.planes);
            for (int64_t r = 0; r < n; r++) {
                f->decode_row(f, row, &v, r, n, k);
                for (int64_t first = 0; first < k; first += 13)
                    for (int64_t count = 1; first + count <= k; count += 29) {
                        f->decode_span(f, part, &v, r, first, count, n, k);
                        assert_memory_equal(part, row + first, (size_t)count * sizeof *part);
                    }
            }
            weight_free(&w);
            free(x);
        }
}

/* A number that is not finite makes its group NaN, so that the run stops; zeros stay zeros. */
static void test_zero_and_bad_weights(void **state)
{
    (void)state;
    float zero[130] = {0}, bad[130] = {0}, row[130];
    bad[100] = INFINITY;
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *const f = oq_format_list[i];
        if (!is_group(f)) continue;
        weight w = weight_of(f, zero, 1, 130);
        oq_planes v = view(&w.planes);
        f->decode_row(f, row, &v, 0, 1, 130);
        for (int c = 0; c < 130; c++) assert_true(row[c] == 0.0f);
        weight_free(&w);
        if (f->block && !f->block->poison) continue; /* cannot say it: who encodes looks at the weights */
        w = weight_of(f, bad, 1, 130);
        v = view(&w.planes);
        f->decode_row(f, row, &v, 0, 1, 130);
        assert_true(f->block ? !isfinite(row[100]) && !isfinite(row[97]) : isnan(row[100]) && isnan(row[97]));
        weight_free(&w);
    }
}

static double snr_db(const oq_format *f, const float *x, int64_t n, int64_t k)
{
    float *const row = malloc((size_t)k * sizeof *row);
    assert_non_null(row);
    weight w = weight_of(f, x, n, k);
    const oq_planes v = view(&w.planes);
    double signal = 0, noise = 0;
    for (int64_t r = 0; r < n; r++) {
        f->decode_row(f, row, &v, r, n, k);
        for (int64_t c = 0; c < k; c++) {
            const double a = (double)x[r * k + c], e = (double)row[c] - a;
            signal += a * a, noise += e * e;
        }
    }
    weight_free(&w);
    free(row);
    return 10 * log10(signal / noise);
}

/* Signal to noise for Gaussian weights, and bits per weight. Too good is as wrong as too bad: something was not
 * quantized. */
static void test_what_each_format_keeps(void **state)
{
    (void)state;
    static const struct {
        const oq_format *f;
        double db, bits;
    } rows[] = {
        {&oq_format_mxfp8, 31.52, 8.25},        {&oq_format_mxfp4, 18.79, 4.25},
        {&oq_format_mxfp4_q725, 19.02, 4.25},   {&oq_format_nvfp4, 20.44, 4.5},
        {&oq_format_nvfp4_inverse, 20.44, 4.5}, {&oq_format_int8_g128, 43.79, 8.25},
        {&oq_format_int8_scb, 41.22, 8.01},     {&oq_format_mxfp4_dual, 18.75, 4.31},
        {&oq_format_nf4_b64, 20.72, 4.5},       {&oq_format_nf4_b64_nested, 20.72, 4.127},
        {&oq_format_fp4_b64, 18.28, 4.5},       {&oq_format_fp4_b64_nested, 18.28, 4.127},
        {&oq_format_int4_g128, 19.73, 4.25},    {&oq_format_int4z_g128, 19.95, 4.3125},
        {&oq_format_int4z_g32, 21.86, 5.25},
    };
    enum { N = 64, K = 4096 };
    float *const x = gauss(N * K, 1);
    int missed = 0;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const double db = snr_db(rows[i].f, x, N, K);
        weight w = weight_of(rows[i].f, x, N, K);
        const double bits = 8.0 * (double)w.bytes / (N * K);
        weight_free(&w);
        print_message("%-16s %.2f dB, expected %.2f; %.3f bits\n", rows[i].f->name, db, rows[i].db, bits);
        missed += !(fabs(db - rows[i].db) <= 0.3) || !(fabs(bits - rows[i].bits) <= 0.04);
    }
    free(x);
    assert_int_equal(missed, 0);
}

/* ---- activations --------------------------------------------------------------------------------------- */

static void test_act_mx(void **state)
{
    (void)state;
    enum { K = 70 };
    const oq_scheme w8a8 = {
        .weight = &oq_format_mxfp8, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_MX};
    const oq_scheme w4a4 = {
        .weight = &oq_format_mxfp4, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_DYNAMIC_MX};
    const oq_scheme q725 = {
        .weight = &oq_format_mxfp4_q725, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_DYNAMIC_MX_Q725};
    float x[K] = {0}, scale[4] = {-1, -1, -1, -1};
    uint8_t codes[K];
    x[0] = 450.0f, x[1] = -1.0f, x[32] = 7.5f, x[33] = 0.3f;
    oq_act_quantize_row(&w8a8, 0.0f, x, K, codes, scale);
    assert_true(scale[0] == 2.0f && scale[1] == 0x1p-5f && scale[2] == 0x1p-127f && scale[3] == -1.0f);
    assert_int_equal(codes[0], oq_e4m3_from_f32(225.0f));
    assert_int_equal(codes[33], oq_e4m3_from_f32(9.6f));
    oq_act_quantize_row(&w4a4, 0.0f, x, K, codes, scale);
    assert_true(scale[0] == 64.0f && scale[1] == 1.0f);
    assert_int_equal(codes[32], 7); /* 7.5 saturates at 6 */
    assert_int_equal(codes[33], 1);
    oq_act_quantize_row(&q725, 0.0f, x, K, codes, scale);
    assert_true(scale[1] == 2.0f);
    assert_int_equal(codes[32], 6); /* 3.75 becomes 4 */
    x[69] = NAN;
    oq_act_quantize_row(&w4a4, 0.0f, x, K, codes, scale);
    assert_true(isnan(scale[2]) && scale[1] == 1.0f);
    assert_int_equal(oq_act_run(OQ_ACT_DYNAMIC_MX, 70), 32);
    assert_int_equal(oq_act_run(OQ_ACT_DYNAMIC_TOKEN, 70), 70);
    char text[64];
    oq_scheme_describe(&w4a4, text, sizeof text);
    assert_string_equal(text, "w: mxfp4 a: fp4_e2m1 dynamic_mx32");
    for (int s = 0; s < OQ_N_ACT_SCALES; s++)
        assert_string_not_equal(oq_act_scale_name((oq_act_scale)s), "unknown");
}

/* Whole numbers within 7 under amax / 7 of 64 columns. */
static void test_act_int4(void **state)
{
    (void)state;
    enum { K = 70 };
    const oq_scheme scheme = {
        .weight = &oq_format_int4_g64, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_INT4};
    float x[K] = {0}, scale[2];
    int8_t codes[K];
    for (int i = 0; i < 64; i++) x[i] = (float)(i - 35) * 0.1f;
    x[64] = 14.0f, x[65] = -3.0f, x[66] = 5.0f;
    oq_act_quantize_row(&scheme, 0.0f, x, K, codes, scale);
    assert_true(scale[0] == 3.5f / 7.0f && scale[1] == 2.0f);
    assert_int_equal(codes[0], -7);
    assert_int_equal(codes[63], 6); /* 5.6 */
    assert_int_equal(codes[64], 7);
    assert_int_equal(codes[65], -2); /* -1.5 to even */
    assert_int_equal(codes[66], 2);  /* 2.5 to even */
    for (int i = 0; i < K; i++) assert_in_range(codes[i] + 7, 0, 14);
    memset(x, 0, sizeof x);
    oq_act_quantize_row(&scheme, 0.0f, x, K, codes, scale);
    assert_true(scale[0] == 0.0f && codes[3] == 0);
    x[1] = NAN;
    oq_act_quantize_row(&scheme, 0.0f, x, K, codes, scale);
    assert_true(isnan(scale[0]) && scale[1] == 0.0f);
    assert_int_equal(oq_act_run(OQ_ACT_DYNAMIC_INT4, 70), 64);
    const oq_scheme positive = {
        .weight = &oq_format_int4_g64, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_UINT4};
    x[1] = 30.0f, x[2] = -0.5f, x[3] = 5.0f, x[4] = -20.0f;
    oq_act_quantize_row(&positive, 0.0f, x, K, codes, scale);
    assert_true(scale[0] == 2.0f);
    assert_int_equal(codes[1], 15);
    assert_int_equal(codes[2], 0);
    assert_int_equal(codes[3], 2); /* 2.5 to even */
    assert_int_equal(codes[4], 0);
}

/* value = (code - 8) * scale + zero, or without the 8; the product is rounded first. */
static void test_float_zeros(void **state)
{
    (void)state;
    enum { K = 40 };
    uint8_t codes[K / 2];
    float row[K];
    const float scale[2] = {0.3f, 1.7f}, zero[2] = {-0.1f, 1e3f};
    for (int i = 0; i < K / 2; i++) codes[i] = (uint8_t)(i * 37 + 5);
    const oq_planes planes = {{codes, scale, NULL, zero}};
    for (int middle = 0; middle < 2; middle++) {
        const oq_format *f = oq_format_int4_float(32, middle != 0, &oq_dtype_f32);
        f->decode_row(f, row, &planes, 0, 1, K);
        for (int i = 0; i < K; i++) {
            const float code = (float)(codes[i / 2] >> (i & 1) * 4 & 15);
            const volatile float product = (code - (middle ? 8.0f : 0.0f)) * scale[i / 32];
            assert_true(row[i] == product + zero[i / 32]);
        }
    }
    assert_null(oq_format_int4_float(256, true, &oq_dtype_f32));
}

/* Zero points that are floats: one rounding, or one for each step, to the type of the scales. */
static void test_affine_known(void **state)
{
    (void)state;
    static const uint8_t codes[4] = {0x31, 0xf0, 0, 0}; /* 1, 3, 0, 15 */
    const float scale = 0x1.000002p-1f, zero = -0x1.8p0f;
    const uint16_t scale16 = 0x3f01, zero16 = 0xbfc1; /* 0.50390625, -1.5078125 */
    float fma[8], sum[8], zf[8];
    const oq_planes wide = {{codes, &scale, NULL, &zero}}, narrow = {{codes, &scale16, NULL, &zero16}};
    oq_format_uint4fma_g16.decode_row(&oq_format_uint4fma_g16, fma, &wide, 0, 1, 8);
    oq_format_uint4sum_g16.decode_row(&oq_format_uint4sum_g16, sum, &wide, 0, 1, 8);
    assert_true(fma[1] == 3 * 0x1p-24f && sum[1] == 0x1p-22f); /* 1.5 + 3 * 2^-24 is no f32 */
    assert_true(fma[2] == zero && sum[2] == zero);
    oq_format_uint4sum_channel_bf16.decode_row(&oq_format_uint4sum_channel_bf16, sum, &narrow, 0, 1, 8);
    oq_format_uint4zf_channel_bf16.decode_row(&oq_format_uint4zf_channel_bf16, zf, &narrow, 0, 1, 8);
    assert_true(sum[3] == 6.0625f); /* 7.55859375 to 7.5625, less 1.5078125 to 6.0625 */
    assert_true(zf[3] == 8.3125f);  /* 16.5078125 to 16.5, its product 8.314453125 to 8.3125 */
    assert_null(oq_format_affine(OQ_AFFINE_ZF, 5, 64, &oq_dtype_f32));
    assert_ptr_equal(oq_format_affine(OQ_AFFINE_SUM, 2, 96, &oq_dtype_bf16), &oq_format_uint2sum_g96_bf16);
}

/* Scales of 16 bits: the values are those of the same scales as f32; encoding holds the scale that is stored. */
static void test_narrow_scales(void **state)
{
    (void)state;
    enum { ROWS = 3, COLS = 100, MOST = ROWS * COLS };
    static uint8_t codes[MOST], zeros[4 * MOST], narrow[2 * MOST];
    static float wide[MOST], wide_zeros[MOST], w[MOST], a[COLS], b[COLS];
    for (int i = 0; i < MOST; i++) w[i] = sinf((float)i * 1.7f) * (float)(1 + i % 5);
    int seen = 0;
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *f = oq_format_list[i];
        char name[64];
        if (!f->scale_type || !f->encode) continue;
        snprintf(name, sizeof name, "%.*s", (int)(strrchr(f->name, '_') - f->name), f->name);
        const oq_format *plain = oq_format_find(name);
        const bool floats = !f->int_bits; /* zero points, too */
        oq_planes_mut planes = {{codes, narrow, NULL, zeros}};
        assert_true(plain && !plain->scale_type && plain->block_k == f->block_k);
        f->encode(f, &planes, w, ROWS, COLS);
        const size_t count = f->plane_bytes(f, OQ_PLANE_SCALE, ROWS, COLS) / 2;
        assert_int_equal(plain->plane_bytes(plain, OQ_PLANE_SCALE, ROWS, COLS), 4 * count);
        f->scale_type->to_f32(wide, narrow, count);
        if (floats) f->scale_type->to_f32(wide_zeros, zeros, count);
        const oq_planes is = {{codes, narrow, NULL, zeros}};
        const oq_planes same = {{codes, wide, NULL, floats ? (const void *)wide_zeros : zeros}};
        for (int r = 0; r < ROWS; r++) {
            f->decode_row(f, a, &is, r, ROWS, COLS);
            plain->decode_row(plain, b, &same, r, ROWS, COLS);
            assert_memory_equal(a, b, sizeof a);
        }
        seen++;
    }
    assert_int_equal(seen, 2 * (4 * 2 * 4 + 2 * 3)); /* types: bits, zero points, groups; middles, groups */
}

/* Integers at rest: codes, scales and zero points of all groups, no more than 1.05 times their bits; a zero point comes back in
 * any place, and its neighbours stay. */
static void test_zeros_at_rest(void **state)
{
    (void)state;
    enum { N = 3, K = 512 };
    int seen = 0;
    for (const oq_format *const *l = oq_format_list; *l; l++) {
        const oq_format *f = *l;
        uint8_t plane[N * K / 16];
        if (!f->int_bits || !(f->planes & 1u << OQ_PLANE_ZERO)) continue;
        const int64_t groups = K / f->block_k;
        const double scale = f->scale_type ? 16 : 32,
                     least = N * (K * f->int_bits + (double)groups * (scale + f->int_bits)) / 8;
        double held = 0;
        for (int p = OQ_PLANE_DATA; p <= OQ_PLANE_ZERO; p++)
            held += (double)f->plane_bytes(f, (oq_plane)p, N, K);
        if (!(held >= least && held <= 1.05 * least)) fail_msg("%s: %g bytes for %g", f->name, held, least);
        const size_t bytes = f->plane_bytes(f, OQ_PLANE_ZERO, N, K);
        const unsigned mask = (1u << f->int_bits) - 1u;
        assert_true(bytes <= sizeof plane);
        memset(plane, 0xff, sizeof plane);
        for (int64_t i = 0; i < N * groups; i++)
            oq_int_put_zero(plane, f->int_bits, i / groups, i % groups, groups, (unsigned)(i * 5 + 1) & mask);
        for (int64_t i = 0; i < N * groups; i++)
            assert_int_equal(oq_int_zero(plane, f->int_bits, i / groups, i % groups, groups),
                             (unsigned)(i * 5 + 1) & mask);
        for (size_t i = bytes; i < sizeof plane; i++) assert_int_equal(plane[i], 0xff);
        seen++;
    }
    assert_int_equal(seen, 7 * 4 * 3);
}

static void test_act_nvfp4(void **state)
{
    (void)state;
    enum { K = 40 };
    const oq_scheme scheme = {
        .weight = &oq_format_nvfp4, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_STATIC_NVFP4};
    float x[K] = {0}, scale[4] = {-1, -1, -1, -1};
    uint8_t codes[K];
    x[0] = 6.0f, x[1] = -1.4f, x[16] = 4000.0f, x[33] = NAN;
    oq_act_quantize_row(&scheme, 0.125f, x, K, codes, scale);
    assert_true(scale[0] == 8.0f * 0.125f && scale[1] == 448.0f * 0.125f); /* the second saturates */
    assert_int_equal(codes[0], 7);
    assert_int_equal(codes[1], 8 | 3); /* -1.5 */
    assert_int_equal(codes[16], 7);
    assert_true(isnan(scale[2]) && scale[3] == -1.0f);
    assert_int_equal(oq_act_run(OQ_ACT_STATIC_NVFP4, K), 16);
    assert_true(oq_act_is_static(OQ_ACT_STATIC_NVFP4) && !oq_act_is_static(OQ_ACT_DYNAMIC_MX));
}

/* The Kronecker power of the matrix of four, entry by entry; twice is nothing. */
static void test_rotate(void **state)
{
    (void)state;
    static const int four[4][4] = {{1, 1, 1, -1}, {1, 1, -1, 1}, {1, -1, 1, 1}, {-1, 1, 1, 1}};
    for (int64_t group = 4; group <= 256; group *= 4) {
        float *x = gauss(group, 3), y[256];
        memcpy(y, x, (size_t)group * sizeof *y);
        oq_rotate(y, group);
        for (int64_t i = 0; i < group; i++) {
            double sum = 0.0;
            for (int64_t j = 0; j < group; j++) {
                int sign = 1;
                for (int64_t a = i, b = j, size = group; size > 1; a /= 4, b /= 4, size /= 4)
                    sign *= four[a % 4][b % 4];
                sum += (double)sign * (double)x[j];
            }
            assert_true(fabs(sum / sqrt((double)group) - (double)y[i]) < 1e-5);
        }
        oq_rotate(y, group);
        for (int64_t i = 0; i < group; i++) assert_true(fabsf(y[i] - x[i]) < 1e-5f);
        free(x);
    }
}

/* A row of sixteen columns under one scale is no group of sixteen. */
static void test_act_token_of_sixteen(void **state)
{
    (void)state;
    const oq_scheme scheme = {
        .weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN};
    float x[16] = {0}, scale;
    int8_t codes[16];
    x[3] = -2.54f;
    oq_act_quantize_row(&scheme, 0.0f, x, 16, codes, &scale);
    assert_int_equal(codes[3], -127);
    assert_true(fabsf(scale - 0.02f) < 1e-6f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_e2m1),
        cmocka_unit_test(test_e8m0),
        cmocka_unit_test(test_code_tables),
        cmocka_unit_test(test_nf4_and_fp4_known),
        cmocka_unit_test(test_nvfp4_known),
        cmocka_unit_test(test_mx_scales_at_the_ends),
        cmocka_unit_test(test_int4_known),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_zero_and_bad_weights),
        cmocka_unit_test(test_what_each_format_keeps),
        cmocka_unit_test(test_act_mx),
        cmocka_unit_test(test_act_int4),
        cmocka_unit_test(test_float_zeros),
        cmocka_unit_test(test_affine_known),
        cmocka_unit_test(test_narrow_scales),
        cmocka_unit_test(test_zeros_at_rest),
        cmocka_unit_test(test_act_nvfp4),
        cmocka_unit_test(test_rotate),
        cmocka_unit_test(test_act_token_of_sixteen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
