/* test_format_snr.c -- what each format that is encoded keeps of four kinds of weights, within 0.3 dB of published figures
 * or of tests/reference/snr.py: too good is as wrong as too bad, for then something was not quantized. GGUF's blocks have
 * the like in test_format_gguf.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/env.h"
#include "format/format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAUSS, LAPLACE, STUDENT4, OUTLIERS, N_KINDS };
enum { N = 256, K = 4096 };

/* NAN: one largest number of them all decides, which is chance. */
static const struct {
    const oq_format *f;
    double db[N_KINDS];
} rows[] = {
    {&oq_format_bf16, {55.60, 55.60, 55.59, 55.55}},
    {&oq_format_fp8_e4m3_tensor, {31.57, 31.54, 31.56, 31.62}},
    {&oq_format_fp8_e4m3_channel, {31.55, 31.58, 31.67, 32.44}},
    {&oq_format_fp8_e4m3_group128, {31.81, 32.09, 32.37, 34.24}},
    {&oq_format_fp8_e4m3_block128, {31.54, 31.55, 31.61, 31.62}},
    {&oq_format_int8_tensor, {38.90, NAN, NAN, NAN}},
    {&oq_format_int8_channel, {41.22, 36.92, NAN, 24.11}},
    {&oq_format_int8_scb, {41.22, 36.92, NAN, 24.11}},
    {&oq_format_mxfp8, {31.52, 31.53, 31.52, 31.56}},
    {&oq_format_nvfp4, {20.44, 20.65, 20.75, 20.66}},
    {&oq_format_nvfp4_rows, {20.44, 20.65, 20.75, 20.66}},
    {&oq_format_nvfp4_inverse, {20.44, 20.65, 20.75, 20.66}},
    {&oq_format_nvfp4_inverse_rows, {20.44, 20.65, 20.75, 20.66}},
    {&oq_format_nf4_b64, {20.72, 19.70, 19.07, 17.25}},
    {&oq_format_nf4_b64_nested, {20.72, 19.69, 19.05, 17.23}},
    {&oq_format_fp4_b64, {18.28, 16.45, 15.49, 14.78}},
    {&oq_format_fp4_b64_nested, {18.28, 16.45, 15.49, 14.78}},
    {&oq_format_mxfp4, {18.79, 17.95, 17.65, 16.57}},
    {&oq_format_f16, {73.65, 73.67, 73.65, 73.57}},
    {&oq_format_mxfp4_q725, {19.03, 18.21, 17.82, 16.94}},
    {&oq_format_mxfp4_dual, {18.77, 18.16, 18.09, 18.56}},
    {&oq_format_int2_g32, {8.82, 7.79, 7.44, 10.17}},
    {&oq_format_int2z_g32, {7.83, 7.24, 7.02, 9.35}},
    {&oq_format_int2_g64, {8.08, 6.72, 6.10, 8.80}},
    {&oq_format_int2z_g64, {6.81, 5.95, 5.56, 7.94}},
    {&oq_format_int2_g128, {7.45, 5.81, 4.94, 7.26}},
    {&oq_format_int2z_g128, {5.96, 4.92, 4.35, 6.52}},
    {&oq_format_int3_g32, {15.17, 13.49, 12.84, 14.34}},
    {&oq_format_int3z_g32, {15.24, 14.00, 13.74, 14.88}},
    {&oq_format_int3_g64, {14.33, 12.25, 11.22, 12.19}},
    {&oq_format_int3z_g64, {14.19, 12.52, 11.94, 12.83}},
    {&oq_format_int3_g128, {13.63, 11.17, 9.71, 9.85}},
    {&oq_format_int3z_g128, {13.32, 11.27, 10.29, 10.63}},
    {&oq_format_int4_g32, {21.31, 19.42, 18.69, 18.05}},
    {&oq_format_int4z_g32, {21.86, 20.50, 20.30, 20.37}},
    {&oq_format_int4_g64, {20.44, 18.14, 16.96, 15.47}},
    {&oq_format_int4z_g64, {20.80, 18.98, 18.44, 18.07}},
    {&oq_format_int4_g128, {19.73, 17.04, 15.41, 12.70}},
    {&oq_format_int4z_g128, {19.95, 17.71, 16.76, 15.50}},
    {&oq_format_int8_g32, {45.50, 43.49, 42.73, 40.75}},
    {&oq_format_int8z_g32, {46.47, 45.08, 44.88, 44.79}},
    {&oq_format_int8_g64, {44.59, 42.18, 40.96, 38.00}},
    {&oq_format_int8z_g64, {45.42, 43.54, 43.03, 42.39}},
    {&oq_format_int8_g128, {43.84, 41.03, 39.27, 35.19}},
    {&oq_format_int8z_g128, {44.54, 42.23, 41.28, 39.85}},
    {&oq_format_int4f_g32, {22.13, 20.74, 20.54, 20.36}},
    {&oq_format_uint4f_g32, {22.13, 20.74, 20.54, 20.36}},
    {&oq_format_int4f_g64, {20.95, 19.07, 18.56, 17.87}},
    {&oq_format_uint4f_g64, {20.95, 19.07, 18.56, 17.87}},
    {&oq_format_int4f_g128, {20.01, 17.70, 16.75, 15.30}},
    {&oq_format_uint4f_g128, {20.01, 17.70, 16.75, 15.30}},
    {&oq_format_nf4_b32, {21.17, 20.60, 20.33, 19.54}},
    {&oq_format_nf4_b32_nested, {21.17, 20.59, 20.30, 19.49}},
    {&oq_format_nf4_b128, {20.38, 18.88, 17.71, 14.83}},
    {&oq_format_nf4_b128_nested, {20.38, 18.88, 17.70, 14.81}},
    {&oq_format_nf4_b256, {20.10, 18.18, 16.37, 12.12}},
    {&oq_format_nf4_b256_nested, {20.10, 18.17, 16.36, 12.03}},
    {&oq_format_nf4_b512, {19.85, 17.50, 15.01, 9.29}},
    {&oq_format_nf4_b512_nested, {19.85, 17.50, 15.00, 9.27}},
    {&oq_format_nf4_b1024, {19.62, 16.89, NAN, 7.26}},
    {&oq_format_nf4_b1024_nested, {19.62, 16.89, NAN, 7.26}},
    {&oq_format_nf4_b2048, {19.40, 16.31, NAN, 5.73}},
    {&oq_format_nf4_b2048_nested, {19.40, 16.31, NAN, 5.73}},
    {&oq_format_nf4_b4096, {19.16, 15.74, NAN, 4.52}},
    {&oq_format_nf4_b4096_nested, {19.16, 15.74, NAN, 4.52}},
    {&oq_format_fp4_b32, {18.84, 17.56, 17.01, 17.12}},
    {&oq_format_fp4_b32_nested, {18.84, 17.55, 17.00, 17.10}},
    {&oq_format_fp4_b128, {17.80, 15.44, 13.87, 12.34}},
    {&oq_format_fp4_b128_nested, {17.80, 15.44, 13.87, 12.33}},
    {&oq_format_fp4_b256, {17.40, 14.56, 12.34, 9.65}},
    {&oq_format_fp4_b256_nested, {17.40, 14.56, 12.33, 9.59}},
    {&oq_format_fp4_b512, {17.03, 13.73, 10.87, 6.83}},
    {&oq_format_fp4_b512_nested, {17.03, 13.73, 10.87, 6.82}},
    {&oq_format_fp4_b1024, {16.68, 12.98, NAN, 5.25}},
    {&oq_format_fp4_b1024_nested, {16.68, 12.98, NAN, 5.25}},
    {&oq_format_fp4_b2048, {16.36, 12.29, NAN, 4.38}},
    {&oq_format_fp4_b2048_nested, {16.36, 12.29, NAN, 4.37}},
    {&oq_format_fp4_b4096, {16.03, 11.64, NAN, 4.02}},
    {&oq_format_fp4_b4096_nested, {16.03, 11.64, NAN, 4.02}},
    {&oq_format_int2_g16, {9.76, 9.12, 8.99, 11.52}},
    {&oq_format_int2z_g16, {9.13, 8.86, 8.76, 10.90}},
    {&oq_format_int3_g16, {16.20, 14.98, 14.65, 16.38}},
    {&oq_format_int3z_g16, {16.54, 15.77, 15.71, 16.89}},
    {&oq_format_int4_g16, {22.40, 20.97, 20.58, 20.55}},
    {&oq_format_int4z_g16, {23.16, 22.31, 22.27, 22.64}},
    {&oq_format_int8_g16, {46.62, 45.07, 44.66, 43.46}},
    {&oq_format_int8z_g16, {47.77, 46.89, 46.89, 47.09}},
};

static uint64_t state_of_random;

static double uniform(void)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return ((double)(state_of_random >> 11) + 0.5) * 0x1p-53;
}

static double normal(void)
{
    const double u = uniform(), v = uniform();
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static double student(void)
{
    double chi = 0;
    for (int i = 0; i < 4; i++) {
        const double c = normal();
        chi += c * c;
    }
    return normal() / sqrt(chi / 4);
}

static void fill(float *x, int kind)
{
    state_of_random = 7;
    for (int64_t i = 0; i < (int64_t)N * K; i++)
        x[i] = (float)(kind == LAPLACE    ? -log(uniform()) * (uniform() < 0.5 ? -1 : 1)
                       : kind == STUDENT4 ? student()
                       : kind == OUTLIERS ? normal() * (i % K % 512 == 77 ? 20 : 1)
                                          : normal());
}

static double snr_db(const oq_format *f, const float *x)
{
    oq_planes_mut planes = {{NULL}};
    oq_planes view = {{NULL}};
    float *row = malloc(K * sizeof *row);
    double signal = 0, noise = 0;
    assert_non_null(row);
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)p, N, K);
        view.plane[p] = planes.plane[p] = bytes ? malloc(bytes) : NULL;
    }
    f->encode(f, &planes, x, N, K);
    for (int64_t r = 0; r < N; r++) {
        f->decode_row(f, row, &view, r, N, K);
        for (int64_t c = 0; c < K; c++) {
            const double a = (double)x[r * K + c], e = (double)row[c] - a;
            signal += a * a, noise += e * e;
        }
    }
    for (int p = 0; p < OQ_N_PLANES; p++) free(planes.plane[p]);
    free(row);
    return 10 * log10(signal / noise);
}

/* Within 0.3 dB of it? */
static bool is_near(const oq_format *f, const float *x, double wanted, int kind)
{
    const double db = snr_db(f, x);
    if (fabs(db - wanted) <= 0.3) return true;
    print_message("%s, kind %d: %.2f dB, not %.2f\n", f->name, kind, db, wanted);
    return false;
}

/* The format whose scales are f32, of one with narrow ones. */
static const oq_format *widened(const oq_format *f)
{
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(strrchr(f->name, '_') - f->name), f->name);
    return oq_format_find(name);
}

static void test_what_each_format_keeps(void **state)
{
    (void)state;
    float *x = malloc((size_t)N * K * sizeof *x);
    int missed = 0;
    assert_non_null(x);
    for (int kind = 0; kind < N_KINDS; kind++) {
        fill(x, kind);
        for (size_t i = 0; i < OQ_COUNT(rows); i++) {
            if (isnan(rows[i].db[kind])) continue;
            missed += !is_near(rows[i].f, x, rows[i].db[kind], kind);
            for (size_t j = 0; oq_format_list[j]; j++) /* scales of 16 bits round no code otherwise */
                if (oq_format_list[j]->scale_type && widened(oq_format_list[j]) == rows[i].f)
                    missed += !is_near(oq_format_list[j], x, rows[i].db[kind], kind);
        }
    }
    free(x);
    assert_int_equal(missed, 0);
}

/* A format that is encoded has its row; f32 loses nothing, and blocks have rows of their own. */
static void test_every_format_has_a_row(void **state)
{
    (void)state;
    for (size_t i = 0; oq_format_list[i]; i++) {
        const oq_format *f = oq_format_list[i];
        bool found = !f->encode || f->block || f == &oq_format_f32;
        for (size_t j = 0; j < OQ_COUNT(rows); j++) found |= rows[j].f == (f->scale_type ? widened(f) : f);
        if (!found) fail_msg("%s has no row", f->name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_what_each_format_keeps),
                                       cmocka_unit_test(test_every_format_has_a_row)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
