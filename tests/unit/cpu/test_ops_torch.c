/* test_ops_torch.c -- references and vector versions alike give what torch gives (ops_golden.h); rounding to bf16
 * happens where torch rounds. Also the moves that torch has no name for: permute, embed, copy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "cpu/cpu.h"
#include "format/float8.h"
#include "unit/cpu/ops_golden.h"

/* Numbers that bf16 holds exactly; ops_golden.py has the same rule. */
static float *pattern(float *x, int64_t n, int64_t seed)
{
    for (int64_t i = 0; i < n; i++) x[i] = (float)((i * 37 + seed * 11) % 101 - 50) / 32.0f;
    return x;
}

static oq_tensor f32(float *x, int64_t rows, int64_t cols)
{
    return oq_tensor_make(x, &oq_dtype_f32, rows, cols);
}

static oq_tensor bf16_pattern(uint16_t *x, int64_t n, int64_t seed)
{
    float line[64];
    pattern(line, n, seed);
    for (int64_t i = 0; i < n; i++) x[i] = oq_bf16_from_f32(line[i]);
    return oq_tensor_make(x, &oq_dtype_bf16, 1, n);
}

static void expect(const float *got, const double *want, size_t n, double slack)
{
    for (size_t i = 0; i < n; i++) {
        if (fabs((double)got[i] - want[i]) <= slack * (1.0 + fabs(want[i]))) continue;
        fail_msg("element %zu is %.9g, torch has %.9g", i, (double)got[i], want[i]);
    }
}

static void expect_bits(const uint16_t *got, const double *want, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (oq_bf16_to_f32(got[i]) != (float)want[i])
            fail_msg("element %zu is %g, torch has %g", i, (double)oq_bf16_to_f32(got[i]), want[i]);
}

#define EXPECT(got, want) expect(got, want, OQ_COUNT(want), 1e-6)

/* Every table that this machine can hold: references, AVX2, AVX-512, NEON. */
static const uint64_t levels[] = {0, OQ_CPU_AVX2, OQ_CPU_AVX2 | OQ_CPU_AVX512, OQ_CPU_NEON};

static bool level_device(size_t level, oq_device *d)
{
    *d = (oq_device){.features = levels[level]};
    oq_cpu_ops_init(levels[level], &d->ops);
    return (levels[level] & ~oq_cpu_probe()) == 0;
}

static void norms(oq_device *d)
{
    float x[72], w[8], b[8], y[72];
    oq_norm_args a = {
        .x = f32(pattern(x, 24, 1), 3, 8), .y = f32(y, 3, 8), .weight = pattern(w, 8, 2), .eps = 1e-5f};
    d->ops.rms_norm(d, &a);
    EXPECT(y, rms_8);
    a.group = 4;
    d->ops.rms_norm(d, &a);
    EXPECT(y, rms_4);
    uint16_t xb[24], yb[24];
    a = (oq_norm_args){.x = bf16_pattern(xb, 24, 1),
                       .y = oq_tensor_make(yb, &oq_dtype_bf16, 3, 8),
                       .weight = w,
                       .eps = 1e-6f,
                       .round_before_weight = true};
    a.x = oq_tensor_reshape(a.x, 3, 8);
    d->ops.rms_norm(d, &a);
    expect_bits(yb, rms_early_bf16, 24);
    a = (oq_norm_args){
        .x = f32(x, 3, 8), .y = f32(y, 3, 8), .weight = w, .bias = pattern(b, 8, 3), .eps = 1e-6f};
    d->ops.layer_norm(d, &a);
    EXPECT(y, layer_8);
}

/* [b, c, h, w] of the pattern -> rows (b, h, w), columns c. */
static void to_rows(oq_device *d, oq_tensor y, float *nchw, int64_t b, int64_t c, int64_t h, int64_t w)
{
    const int64_t dim[6] = {1, 1, b, h, w, c}, ys[6] = {0, 0, h * w * c, w * c, c, 1};
    const int64_t xs[6] = {0, 0, c * h * w, w, 1, h * w};
    d->ops.permute(d, y, f32(nchw, 1, b * c * h * w), dim, ys, xs);
}

static void group_norms(oq_device *d)
{
    float image[72], x[72], y[72], w[6], b[6];
    pattern(image, 72, 4);
    to_rows(d, f32(x, 12, 6), image, 2, 6, 3, 2);
    oq_norm_args a = {.x = f32(x, 12, 6),
                      .y = f32(y, 12, 6),
                      .weight = pattern(w, 6, 5),
                      .bias = pattern(b, 6, 6),
                      .eps = 1e-6f,
                      .group = 3,
                      .batch = 2};
    d->ops.group_norm(d, &a);
    EXPECT(y, group_3);
    a.silu = true;
    d->ops.group_norm(d, &a);
    EXPECT(y, group_3_silu);
    for (int64_t image_at = 0; image_at < 12; image_at += 6) { /* each image in pieces of four rows and two */
        double moments[2 * 3 * 3];
        d->ops.group_moments(d, oq_tensor_rows(f32(x, 12, 6), image_at, 4), 3, moments);
        d->ops.group_moments(d, oq_tensor_rows(f32(x, 12, 6), image_at + 4, 2), 3, moments + 9);
        a.batch = 1, a.moments = moments, a.n_moments = 2;
        for (int64_t at = image_at; at < image_at + 6; at += 2) {
            a.x = oq_tensor_rows(f32(x, 12, 6), at, 2);
            a.y = oq_tensor_rows(f32(y, 12, 6), at, 2);
            memset(y + at * 6, 0, 12 * sizeof *y);
            d->ops.group_norm(d, &a);
        }
    }
    EXPECT(y, group_3_silu);
}

static void ropes(oq_device *d)
{
    float x[24], c[6], s[6];
    for (int i = 0; i < 6; i++) c[i] = (float)rope_cos[i], s[i] = (float)rope_sin[i];
    oq_rope_args a = {.x = f32(pattern(x, 24, 7), 2, 12), .cos = c, .sin = s, .n_heads = 2, .head_dim = 6};
    a.kind = OQ_ROPE_INTERLEAVED;
    d->ops.rope(d, &a);
    EXPECT(x, rope_interleaved);
    a.kind = OQ_ROPE_HALF;
    pattern(x, 24, 7);
    d->ops.rope(d, &a);
    EXPECT(x, rope_half);
}

static void activations(oq_device *d)
{
    static const double *const want[OQ_N_UNARY] = {silu, gelu_tanh, gelu_erf, quick_gelu, tanh_};
    float x[16], y[16];
    for (int kind = 0; kind < OQ_N_UNARY; kind++) {
        pattern(x, 16, 9);
        for (int i = 0; i < 16; i++) x[i] *= 3.0f;
        d->ops.unary(d, (oq_unary)kind, f32(y, 2, 8), f32(x, 2, 8));
        expect(y, want[kind], 16, 1e-6);
    }
}

static void roundings(oq_device *d)
{
    uint16_t a[16], b[16], c[16], y[16];
    const oq_tensor out = oq_tensor_make(y, &oq_dtype_bf16, 1, 16);
    d->ops.glu(d, OQ_SILU, out, bf16_pattern(a, 16, 9), bf16_pattern(b, 16, 10));
    expect_bits(y, glu_silu_bf16, 16);
    d->ops.add_gated(d, out, bf16_pattern(a, 16, 1), bf16_pattern(b, 16, 2), bf16_pattern(c, 16, 3));
    expect_bits(y, gated_bf16, 16);
    float x[16], scale[8], shift[8], z[16];
    d->ops.modulate(d, f32(z, 2, 8), f32(pattern(x, 16, 1), 2, 8), f32(pattern(scale, 8, 2), 1, 8),
                    f32(pattern(shift, 8, 3), 1, 8), 1.0f);
    EXPECT(z, modulated);
}

static void moves(oq_device *d)
{
    float nchw[12], x[12], y[48];
    pattern(nchw, 12, 4);
    to_rows(d, f32(x, 6, 2), nchw, 1, 2, 2, 3);
    d->ops.upsample2x(d, f32(y, 24, 2), f32(x, 6, 2), 1, 2, 3);
    EXPECT(y, upsampled);
    const int32_t ids[3] = {5, 0, 5};
    uint16_t h[6];
    d->ops.embed(d, oq_tensor_make(h, &oq_dtype_bf16, 3, 2), f32(x, 6, 2), ids);
    for (int i = 0; i < 6; i++) assert_true(oq_bf16_to_f32(h[i]) == x[ids[i / 2] * 2 + i % 2]);
    /* Repeat: two copies of each of three values, reversed. */
    const int64_t dim[6] = {1, 1, 1, 1, 3, 2}, ys[6] = {0, 0, 0, 0, 2, 1}, xs[6] = {0, 0, 0, 0, -1, 0};
    d->ops.permute(d, f32(y, 1, 6), f32(x + 2, 1, 1), dim, ys, xs);
    for (int i = 0; i < 6; i++) assert_true(y[i] == x[2 - i / 2]);
    /* y = 2 x - y, in f32, rounded once. */
    d->ops.copy(d, oq_tensor_make(h, &oq_dtype_bf16, 1, 6), f32(x, 1, 6));
    d->ops.axpby(d, oq_tensor_make(h, &oq_dtype_bf16, 1, 6), 2.0f, f32(x + 6, 1, 6), -1.0f);
    for (int i = 0; i < 6; i++) assert_true(oq_bf16_to_f32(h[i]) == oq_bf16_round(2 * x[6 + i] - x[i]));
}

static void each_table(void **state)
{
    (void)state;
    for (size_t level = 0; level < OQ_COUNT(levels); level++) {
        oq_device d;
        if (!level_device(level, &d)) continue;
        norms(&d);
        group_norms(&d);
        ropes(&d);
        activations(&d);
        roundings(&d);
        moves(&d);
    }
}

/* Runs the case if the kernel takes it: how many it ran. */
static int convolve(oq_device *d, const oq_conv2d_kernel *kernel, oq_conv2d_spec spec, int64_t shape[3],
                    int64_t seed, bool has_bias, const double *want, size_t n)
{
    if (!kernel->accepts(&spec)) return 0;
    static _Alignas(64) float packed[2048], scratch[8192];
    float nchw[256], x[256], w[256], b[8], y[256];
    assert_true(kernel->packed_bytes(&spec) <= sizeof packed);
    assert_true(kernel->scratch_bytes(&spec, shape[0], shape[1], shape[2]) <= sizeof scratch);
    pattern(nchw, shape[0] * spec.c_in * shape[1] * shape[2], seed);
    const oq_tensor rows = f32(x, shape[0] * shape[1] * shape[2], spec.c_in);
    to_rows(d, rows, nchw, shape[0], spec.c_in, shape[1], shape[2]);
    kernel->pack(packed, pattern(w, spec.c_out * spec.c_in * 9, seed + 1), &spec);
    const oq_conv2d_args a = {.spec = &spec,
                              .packed = packed,
                              .bias = has_bias ? pattern(b, spec.c_out, seed + 2) : NULL,
                              .scratch = scratch,
                              .x = rows,
                              .y = f32(y, (int64_t)n / spec.c_out, spec.c_out),
                              .batch = shape[0],
                              .h = shape[1],
                              .w = shape[2]};
    kernel->run(d, &a);
    expect(y, want, n, 2e-6);
    return 1;
}

static void each_convolution(void **state)
{
    (void)state;
    int n_run = 0;
    for (int i = 0; oq_cpu_conv2d_list[i]; i++) {
        const oq_conv2d_kernel *const kernel = oq_cpu_conv2d_list[i];
        if (kernel->need & ~oq_cpu_probe()) continue;
        oq_device d;
        level_device(0, &d);
        n_run += convolve(
            &d, kernel,
            (oq_conv2d_spec){
                .c_out = 4, .c_in = 3, .kh = 3, .kw = 3, .stride = 2, .pad_bottom = 1, .pad_right = 1},
            (int64_t[3]){2, 5, 4}, 1, true, conv_down, OQ_COUNT(conv_down));
        n_run += convolve(&d, kernel, oq_conv2d_same(2, 3, 3), (int64_t[3]){1, 3, 4}, 5, false, conv_same,
                          OQ_COUNT(conv_same));
    }
    assert_true(n_run >= 2); /* the reference takes both */
}

static void each_attention(void **state)
{
    (void)state;
    static _Alignas(64) char scratch[1 << 20];
    float q[96], k[80], v[80], o[96], bias[60];
    const uint8_t mask[5] = {1, 0, 1, 1, 0};
    for (int i = 0; oq_cpu_attention_list[i]; i++) {
        const oq_attention_kernel *const kernel = oq_cpu_attention_list[i];
        if (kernel->need & ~oq_cpu_probe()) continue;
        oq_device d;
        level_device(0, &d);
        oq_attention_spec spec = {.head_dim = 8, .n_heads = 4, .n_kv_heads = 2};
        assert_true(kernel->accepts(&spec) && kernel->scratch_bytes(&spec, 3, 5) <= sizeof scratch);
        oq_attention_args a = {.spec = &spec,
                               .scale = 0.3f,
                               .q = f32(pattern(q, 96, 1), 3, 32),
                               .k = f32(pattern(k, 80, 2), 5, 16),
                               .v = f32(pattern(v, 80, 3), 5, 16),
                               .o = f32(o, 3, 32),
                               .bias = pattern(bias, 60, 4),
                               .bias_head = 15,
                               .bias_row = 5,
                               .scratch = scratch};
        kernel->run(&d, &a);
        EXPECT(o, attention_bias);
        a.bias = NULL;
        a.key_mask = mask;
        kernel->run(&d, &a);
        EXPECT(o, attention_masked);
        a.key_mask = NULL;
        spec.causal = true;
        kernel->run(&d, &a);
        EXPECT(o, attention_causal);
    }
}

/* A row that sees no key is zero, in every kernel. */
static void nobody_seen(void **state)
{
    (void)state;
    static _Alignas(64) char scratch[1 << 20];
    float q[8] = {1, 2}, k[16] = {3, 4}, o[8];
    const uint8_t mask[2] = {0, 0};
    const oq_attention_spec spec = {.head_dim = 8, .n_heads = 1, .n_kv_heads = 1};
    for (int i = 0; oq_cpu_attention_list[i]; i++) {
        if (oq_cpu_attention_list[i]->need & ~oq_cpu_probe()) continue;
        oq_device d;
        level_device(0, &d);
        for (int c = 0; c < 8; c++) o[c] = NAN;
        const oq_attention_args a = {.spec = &spec,
                                     .scale = 1.0f,
                                     .q = f32(q, 1, 8),
                                     .k = f32(k, 2, 8),
                                     .v = f32(k, 2, 8),
                                     .o = f32(o, 1, 8),
                                     .key_mask = mask,
                                     .scratch = scratch};
        oq_cpu_attention_list[i]->run(&d, &a);
        for (int c = 0; c < 8; c++) assert_true(o[c] == 0.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_table),
        cmocka_unit_test(each_convolution),
        cmocka_unit_test(each_attention),
        cmocka_unit_test(nobody_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
