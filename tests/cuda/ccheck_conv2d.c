/* ccheck_conv2d.c -- convolutions against the CPU's reference, which sums in double. */
#include "ccheck.h"

#include "base/size.h"

#include <math.h>

typedef struct conv_case {
    int64_t batch, h, w, c_in, c_out;
    int k, stride, pad_before, pad_after;
    bool f32, bias, strided;
    int kt, frames, n_before, stride_t; /* kt 0: an image */
} conv_case;

static const conv_case cases[] = {
    {1, 8, 8, 16, 32, 3, 1, 1, 1, false, true, false, 0, 0, 0, 0},
    {2, 7, 5, 16, 128, 3, 1, 1, 1, false, true, true, 0, 0, 0, 0},
    {1, 9, 12, 3, 32, 3, 1, 1, 1, false, true, false, 0, 0, 0, 0},
    {1, 16, 16, 32, 3, 3, 1, 1, 1, false, true, false, 0, 0, 0, 0},
    {1, 16, 16, 96, 64, 1, 1, 0, 0, false, true, false, 0, 0, 0, 0},
    {1, 15, 16, 32, 48, 3, 2, 0, 1, false, true, false, 0, 0, 0, 0},
    {2, 6, 6, 20, 12, 1, 1, 0, 0, false, false, true, 0, 0, 0, 0},
    {1, 40, 48, 128, 128, 3, 1, 1, 1, false, true, false, 0, 0, 0, 0},
    {1, 16, 16, 64, 64, 3, 1, 1, 1, false, true, false, 0, 0, 0, 0},
    {2, 19, 21, 64, 48, 3, 1, 1, 1, false, true, true, 0, 0, 0, 0},
    {1, 20, 33, 128, 320, 3, 1, 1, 1, false, true, false, 0, 0, 0, 0},
    {1, 17, 16, 64, 3, 3, 1, 1, 1, false, true, true, 0, 0, 0, 0},
    {3, 9, 40, 192, 130, 3, 1, 0, 1, false, false, false, 0, 0, 0, 0},
    {1, 24, 24, 64, 72, 5, 1, 2, 2, false, true, false, 0, 0, 0, 0},
    {1, 8, 8, 16, 32, 3, 1, 1, 1, true, true, false, 0, 0, 0, 0},
    {2, 7, 5, 3, 5, 3, 1, 1, 1, true, true, true, 0, 0, 0, 0},
    {1, 15, 16, 32, 48, 3, 2, 0, 1, true, false, false, 0, 0, 0, 0},
    {1, 12, 12, 64, 3, 5, 1, 2, 2, true, true, false, 0, 0, 0, 0},
    {1, 9, 8, 16, 24, 3, 1, 1, 1, false, true, false, 3, 4, 2, 1},
    {2, 7, 6, 64, 64, 3, 1, 1, 1, false, true, true, 3, 3, 0, 1},
    {1, 6, 6, 32, 40, 1, 1, 0, 0, false, true, false, 3, 5, 1, 2},
    {1, 8, 9, 16, 8, 1, 1, 0, 0, false, true, false, 1, 3, 0, 1},
    {2, 5, 5, 12, 3, 3, 1, 1, 1, true, true, false, 3, 2, 2, 1},
};

static oq_conv2d_spec spec_of(const conv_case *t)
{
    return (oq_conv2d_spec){.c_out = t->c_out,
                            .c_in = t->c_in,
                            .kh = t->k,
                            .kw = t->k,
                            .stride = t->stride,
                            .pad_top = t->pad_before,
                            .pad_left = t->pad_before,
                            .pad_bottom = t->pad_after,
                            .pad_right = t->pad_after,
                            .kt = t->kt,
                            .stride_t = t->stride_t,
                            .pad_front = t->kt ? t->kt - 1 : 0};
}

static float *rounded(ccheck *c, const oq_dtype *type, int64_t n, float scale)
{
    float *x = cc_new(c, (size_t)(n + 1) * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        const float v = cc_normal(c) * scale;
        uint32_t bits;
        type->from_f32(&bits, &v, 1);
        type->to_f32(x + i, &bits, 1);
    }
    return x;
}

static float *absolute(ccheck *c, const float *x, int64_t n)
{
    float *y = cc_new(c, (size_t)(n + 1) * sizeof *y);
    for (int64_t i = 0; i < n; i++) y[i] = fabsf(x[i]);
    return y;
}

static int64_t images(const conv_case *t)
{
    return t->batch * (t->kt ? t->frames : 1);
}

static float *conv_want(ccheck *c, const conv_case *t, int64_t rows, const float *x, const float *before,
                        const float *w, const float *bias)
{
    const oq_conv2d_spec spec = spec_of(t);
    const oq_conv2d_kernel *ref = oq_backend_cpu.find_conv2d(c->cpu, &spec);
    void *packed = cc_new(c, ref->packed_bytes(&spec));
    ref->pack(packed, w, &spec);
    float *want = cc_new(c, (size_t)(rows * t->c_out) * sizeof *want);
    const oq_conv2d_args a = {
        .spec = &spec,
        .packed = packed,
        .bias = bias,
        .scratch = cc_new(c, ref->scratch_bytes(&spec, t->batch, t->h, t->w)),
        .x = oq_tensor_make((void *)(size_t)x, &oq_dtype_f32, images(t) * t->h * t->w, t->c_in),
        .before = oq_tensor_make((void *)(size_t)before, &oq_dtype_f32, t->batch * t->n_before * t->h * t->w,
                                 t->c_in),
        .frames = t->frames,
        .n_before = t->n_before,
        .y = oq_tensor_make(want, &oq_dtype_f32, rows, t->c_out),
        .batch = t->batch,
        .h = t->h,
        .w = t->w};
    ref->run(c->cpu, &a);
    oq_free(c->env, a.scratch);
    oq_free(c->env, packed);
    return want;
}

static void check_case(ccheck *c, const conv_case *t, const oq_conv2d_kernel *kernel, cc_row *row)
{
    const oq_dtype *type = t->f32 ? &oq_dtype_f32 : &oq_dtype_bf16;
    const oq_conv2d_spec spec = spec_of(t);
    const int64_t oh = oq_conv2d_out_h(&spec, t->h), ow = oq_conv2d_out_w(&spec, t->w);
    const int64_t rows = t->batch * (t->kt ? oq_conv2d_out_frames(&spec, t->frames) : 1) * oh * ow;
    const int64_t n_x = images(t) * t->h * t->w * t->c_in,
                  n_before = t->batch * t->n_before * t->h * t->w * t->c_in;
    const int64_t taps = t->c_in * t->k * t->k * oq_conv2d_taps_t(&spec), n_w = t->c_out * taps;
    float *x = rounded(c, type, n_x, 1.0f), *w = rounded(c, type, n_w, 1.0f / sqrtf((float)taps));
    float *bias = rounded(c, type, t->c_out, 1.0f), *before = rounded(c, type, n_before, 1.0f);
    float *ax = absolute(c, x, n_x), *aw = absolute(c, w, n_w), *ab = absolute(c, bias, t->c_out);
    float *abefore = absolute(c, before, n_before);
    float *want = conv_want(c, t, rows, x, before, w, t->bias ? bias : NULL);
    float *sum = conv_want(c, t, rows, ax, abefore, aw, t->bias ? ab : NULL);
    cc_tensor dbefore = cc_tensor_new(c, type, t->batch * t->n_before * t->h * t->w, t->c_in, 0, before);
    cc_tensor dx = cc_tensor_new(c, type, images(t) * t->h * t->w, t->c_in, t->strided ? t->c_in + 8 : 0, x);
    cc_tensor dy = cc_tensor_new(c, type, rows, t->c_out, t->strided ? t->c_out + 8 : 0, NULL);
    char *packed = cc_new(c, kernel->packed_bytes(&spec));
    kernel->pack(packed, w, &spec);
    void *packed_device = cc_upload(c, packed, kernel->packed_bytes(&spec));
    void *bias_device = cc_upload(c, bias, (size_t)t->c_out * 4);
    void *scratch = cc_device(c, kernel->scratch_bytes(&spec, t->batch, t->h, t->w) + 1);
    const oq_conv2d_args a = {.spec = &spec,
                              .packed = packed_device,
                              .bias = t->bias ? bias_device : NULL,
                              .scratch = scratch,
                              .x = dx.device,
                              .before = dbefore.device,
                              .frames = t->frames,
                              .n_before = t->n_before,
                              .y = dy.device,
                              .batch = t->batch,
                              .h = t->h,
                              .w = t->w};
    kernel->run(c->gpu, &a);
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    float *got = cc_new(c, (size_t)(rows * t->c_out) * sizeof *got);
    const bool intact = cc_tensor_read(c, &dy, got);
    bool near = true;
    for (int64_t i = 0; i < rows * t->c_out; i++)
        near = cc_near(row, got[i], want[i],
                       ((double)taps / 16 + 16) * 0x1p-23 * sum[i] + cc_store_error(type, want[i])) &&
               near;
    cc_case(c, row, intact && near, "%lldx%lldx%lld, %lld -> %lld, %dx%dx%d stride %d %s%s:%s%s",
            (long long)t->batch, (long long)t->h, (long long)t->w, (long long)t->c_in, (long long)t->c_out,
            t->kt, t->k, t->k, t->stride, type->name, t->strided ? " strided" : "", intact ? "" : " guard",
            near ? "" : " values");
    void *hosts[] = {x, w, bias, ax, aw, ab, want, sum, packed, got, before, abefore};
    cc_tensor_free(c, &dbefore);
    void *devices[] = {packed_device, bias_device, scratch};
    for (size_t i = 0; i < OQ_COUNT(hosts); i++) oq_free(c->env, hosts[i]);
    for (size_t i = 0; i < OQ_COUNT(devices); i++) cc_release(c, devices[i]);
    cc_tensor_free(c, &dx);
    cc_tensor_free(c, &dy);
}

typedef struct conv_bench {
    ccheck *c;
    const oq_conv2d_kernel *kernel;
    oq_conv2d_args args;
} conv_bench;

static void bench_run(void *user, int64_t i)
{
    (void)i;
    conv_bench *b = user;
    b->kernel->run(b->c->gpu, &b->args);
}

static void bench_conv(ccheck *c, int64_t side, int64_t channels)
{
    const conv_case t = {1, side, side, channels, channels, 3, 1, 1, 1, false, true, false, 0, 0, 0, 0};
    const oq_conv2d_spec spec = spec_of(&t);
    conv_bench b = {.c = c, .kernel = oq_backend_cuda.find_conv2d(c->gpu, &spec)};
    if (!cc_wants(c, b.kernel->name)) return;
    float *w = rounded(c, &oq_dtype_bf16, channels * channels * 9, 0.02f);
    float *x = rounded(c, &oq_dtype_bf16, side * side * channels, 1.0f);
    cc_tensor dx = cc_tensor_new(c, &oq_dtype_bf16, side * side, channels, 0, x);
    cc_tensor dy = cc_tensor_new(c, &oq_dtype_bf16, side * side, channels, 0, NULL);
    char *packed = cc_new(c, b.kernel->packed_bytes(&spec));
    b.kernel->pack(packed, w, &spec);
    b.args = (oq_conv2d_args){.spec = &spec,
                              .packed = cc_upload(c, packed, b.kernel->packed_bytes(&spec)),
                              .bias = cc_upload(c, w, (size_t)channels * 4),
                              .scratch = cc_device(c, b.kernel->scratch_bytes(&spec, 1, side, side)),
                              .x = dx.device,
                              .y = dy.device,
                              .batch = 1,
                              .h = side,
                              .w = side};
    char shape[96], op[128];
    snprintf(shape, sizeof shape, "1x%lldx%lldx%lld 3x3", (long long)side, (long long)side,
             (long long)channels);
    snprintf(op, sizeof op, "conv2d bf16 (%s)", b.kernel->name);
    cc_bench(c, op, shape, 18.0 * (double)(side * side) * (double)(channels * channels), 0, bench_run, &b);
    cc_release(c, (void *)(size_t)b.args.packed);
    cc_release(c, (void *)(size_t)b.args.bias);
    cc_release(c, b.args.scratch);
    oq_free(c->env, packed);
    oq_free(c->env, w);
    oq_free(c->env, x);
    cc_tensor_free(c, &dx);
    cc_tensor_free(c, &dy);
}

void ccheck_conv2d(ccheck *c)
{
    if (c->bench_ms > 0) {
        bench_conv(c, 128, 512);
        bench_conv(c, 256, 512);
        bench_conv(c, 512, 256);
        bench_conv(c, 1024, 128);
        return;
    }
    for (size_t k = 0; oq_cuda_conv2d_list[k]; k++) {
        const oq_conv2d_kernel *kernel = oq_cuda_conv2d_list[k];
        cc_row row = {.kernel = kernel->name};
        if (!cc_wants(c, kernel->name) || kernel->need > (uint64_t)c->gpu->capability) continue;
        for (size_t i = 0; i < OQ_COUNT(cases); i++) {
            if (!cc_mine(c)) continue;
            const oq_conv2d_spec spec = spec_of(&cases[i]);
            if (kernel->accepts(&spec)) check_case(c, &cases[i], kernel, &row);
        }
        cc_row_print(&row);
    }
}
