/* kcheck_conv2d.c -- every convolution against a direct sum in double: channel tails, borders on any side,
 * strides, batches, rows wider than a segment and images higher than a band. */
#include "kernels/kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"

typedef struct problem {
    oq_conv2d_spec spec;
    int64_t batch, h, w, oh, ow;
    kc_matrix x;
    float *weight; /* [c_out, c_in, kh, kw] */
    kc_buf bias;
    bool has_bias;
    kc_class class;
    double *want, *bound; /* [batch*oh*ow, c_out] */
} problem;

typedef struct shape {
    int64_t batch, h, w;
    oq_conv2d_spec spec; /* c_out, c_in, kh, kw, stride, pads: top, left, bottom, right */
} shape;

static const shape shapes[] = {
    {1, 1, 1, {1, 1, 1, 1, 1, 0, 0, 0, 0}},     {1, 1, 1, {3, 2, 3, 3, 1, 1, 1, 1, 1}},
    {1, 7, 5, {3, 3, 3, 3, 1, 1, 1, 1, 1}},     {2, 6, 13, {16, 3, 3, 3, 1, 1, 1, 1, 1}},
    {1, 9, 12, {17, 16, 3, 3, 1, 1, 1, 1, 1}},  {1, 8, 25, {32, 17, 3, 3, 1, 1, 1, 1, 1}},
    {1, 5, 24, {33, 32, 3, 3, 1, 1, 1, 1, 1}},  {1, 4, 23, {48, 33, 3, 3, 1, 1, 1, 1, 1}},
    {1, 6, 11, {49, 8, 3, 3, 1, 1, 1, 1, 1}},   {2, 3, 10, {64, 64, 3, 3, 1, 1, 1, 1, 1}},
    {1, 8, 8, {96, 31, 3, 3, 1, 1, 1, 1, 1}},   {1, 8, 8, {128, 16, 3, 3, 1, 1, 1, 1, 1}},
    {1, 8, 8, {7, 5, 3, 3, 2, 0, 0, 1, 1}},     {2, 9, 14, {32, 16, 3, 3, 2, 0, 0, 1, 1}},
    {1, 15, 33, {24, 9, 3, 3, 2, 1, 1, 1, 1}},  {1, 16, 50, {40, 24, 3, 3, 2, 0, 0, 1, 1}},
    {1, 5, 9, {16, 32, 1, 1, 1, 0, 0, 0, 0}},   {2, 7, 30, {33, 15, 1, 1, 1, 0, 0, 0, 0}},
    {1, 6, 7, {8, 12, 1, 1, 2, 0, 0, 0, 0}},    {1, 6, 9, {19, 4, 3, 3, 1, 0, 0, 0, 0}},
    {2, 8, 9, {4, 6, 2, 3, 1, 1, 0, 0, 2}},     {1, 9, 9, {5, 7, 5, 1, 1, 2, 0, 2, 0}},
    {1, 11, 6, {6, 5, 1, 4, 1, 0, 3, 0, 0}},    {1, 12, 12, {5, 3, 4, 4, 3, 0, 1, 2, 0}},
    {1, 3, 197, {16, 8, 3, 3, 1, 1, 1, 1, 1}},  {1, 2, 300, {3, 16, 3, 3, 1, 1, 1, 1, 1}},
    {1, 40, 250, {4, 64, 3, 3, 1, 1, 1, 1, 1}}, {1, 70, 200, {2, 64, 3, 3, 2, 0, 0, 1, 1}},
};

static const float *x_at(const problem *p, const float *x, int64_t b, int64_t y, int64_t col)
{
    if (y < 0 || y >= p->h || col < 0 || col >= p->w) return NULL;
    return x + ((b * p->h + y) * p->w + col) * p->spec.c_in;
}

static void solve_pixel(problem *p, const float *x, int64_t row)
{
    const oq_conv2d_spec *const s = &p->spec;
    const int64_t ox = row % p->ow, oy = row / p->ow % p->oh, b = row / (p->ow * p->oh);
    const int64_t taps = (int64_t)s->kh * s->kw;
    for (int64_t o = 0; o < s->c_out; o++) {
        double sum = p->has_bias ? (double)((const float *)p->bias.data)[o] : 0.0, size = fabs(sum);
        for (int64_t t = 0; t < taps; t++) {
            const float *const in = x_at(p, x, b, oy * s->stride - s->pad_top + t / s->kw,
                                         ox * s->stride - s->pad_left + t % s->kw);
            for (int64_t c = 0; in && c < s->c_in; c++) {
                const double one = (double)in[c] * (double)p->weight[(o * s->c_in + c) * taps + t];
                sum += one, size += fabs(one);
            }
        }
        p->want[row * s->c_out + o] = sum;
        p->bound[row * s->c_out + o] = kc_sum_error(taps * s->c_in, size);
    }
}

static problem make(kcheck *kc, kc_rng *rng, const shape *at, const oq_dtype *type, kc_class class)
{
    const oq_conv2d_spec *const s = &at->spec;
    problem p = {.spec = *s, .batch = at->batch, .h = at->h, .w = at->w, .class = class};
    p.oh = (at->h + s->pad_top + s->pad_bottom - s->kh) / s->stride + 1;
    p.ow = (at->w + s->pad_left + s->pad_right - s->kw) / s->stride + 1;
    const int64_t rows = p.batch * p.h * p.w, out = p.batch * p.oh * p.ow * s->c_out;
    const int64_t n_weights = s->c_out * s->c_in * s->kh * s->kw;
    p.x = kc_matrix_new(kc, type, rows, s->c_in, s->c_in + kc_below(rng, 2) * 5);
    float *const x = oq_alloc(kc->env, (size_t)(rows * s->c_in) * sizeof *x);
    kc_fill(rng, class, x, rows, s->c_in);
    kc_matrix_set(&p.x, x);
    kc_matrix_get(&p.x, x);
    p.weight = oq_alloc(kc->env, (size_t)n_weights * sizeof *p.weight);
    for (int64_t i = 0; i < n_weights; i++) p.weight[i] = kc_normal(rng);
    p.bias = kc_buf_new(kc, (size_t)s->c_out * sizeof(float), 4);
    for (int64_t i = 0; i < s->c_out; i++) ((float *)p.bias.data)[i] = kc_normal(rng);
    p.has_bias = kc_below(rng, 3) > 0;
    p.want = oq_alloc(kc->env, (size_t)out * sizeof *p.want);
    p.bound = oq_alloc(kc->env, (size_t)out * sizeof *p.bound);
    for (int64_t i = 0; i < p.batch * p.oh * p.ow; i++) solve_pixel(&p, x, i);
    oq_free(kc->env, x);
    return p;
}

static void free_problem(kcheck *kc, problem *p)
{
    kc_matrix_free(kc, &p->x), kc_buf_free(kc, &p->bias);
    oq_free(kc->env, p->weight), oq_free(kc->env, p->want), oq_free(kc->env, p->bound);
}

static bool run_once(kcheck *kc, oq_device *device, const oq_conv2d_kernel *kernel, const problem *p,
                     const kc_buf *packed, oq_tensor y)
{
    kc_buf scratch = kc_buf_new(kc, kernel->scratch_bytes(&p->spec, p->batch, p->h, p->w), 0);
    const oq_conv2d_args args = {.spec = &p->spec,
                                 .packed = packed->data,
                                 .bias = p->has_bias ? p->bias.data : NULL,
                                 .scratch = scratch.data,
                                 .x = p->x.t,
                                 .y = y,
                                 .batch = p->batch,
                                 .h = p->h,
                                 .w = p->w};
    kernel->run(device, &args);
    const bool intact = kc_buf_intact(&scratch);
    kc_buf_free(kc, &scratch);
    return intact;
}

static bool all_near(kcheck *kc, kc_row *row, const problem *p, const kc_matrix *y)
{
    const int64_t n = y->t.rows * y->t.cols;
    float *const got = oq_alloc(kc->env, (size_t)n * sizeof *got);
    bool ok = true;
    kc_matrix_get(y, got);
    for (int64_t i = 0; i < n; i++)
        ok &= kc_near(row, (double)got[i], p->want[i], p->bound[i] + kc_store_error(y->t.dtype, p->want[i]));
    oq_free(kc->env, got);
    return ok;
}

static void check_kernel(kcheck *kc, kc_row *row, const oq_conv2d_kernel *kernel, const problem *p)
{
    const oq_dtype *const types[2] = {&oq_dtype_f32, &oq_dtype_bf16};
    const int64_t rows = p->batch * p->oh * p->ow, cols = p->spec.c_out;
    kc_buf packed = kc_buf_new(kc, kernel->packed_bytes(&p->spec), 0);
    kernel->pack(packed.data, p->weight, &p->spec);
    for (int t = 0; t < 2; t++) {
        kc_matrix y = kc_matrix_new(kc, types[t], rows, cols, cols + 3 * t);
        kc_matrix alone = kc_matrix_new(kc, types[t], rows, cols, cols + 3 * t);
        bool ok = run_once(kc, kc->device, kernel, p, &packed, y.t);
        ok &= run_once(kc, &kc->single, kernel, p, &packed, alone.t);
        const bool near = all_near(kc, row, p, &y), same = kc_matrix_same(&y, &alone);
        ok &= kc_matrix_intact(&y) && kc_matrix_intact(&p->x) && kc_buf_intact(&packed) &&
              kc_buf_intact(&p->bias);
        kc_case(kc, row, ok && near && same,
                "%lldx%lldx%lld, %lld to %lld channels, %dx%d, stride %d, %s, %s to %s: guards %d, near %d, "
                "same %d",
                (long long)p->batch, (long long)p->h, (long long)p->w, (long long)p->spec.c_in,
                (long long)p->spec.c_out, p->spec.kh, p->spec.kw, p->spec.stride, kc_class_name(p->class),
                p->x.t.dtype->label, types[t]->label, ok, near, same);
        kc_matrix_free(kc, &y), kc_matrix_free(kc, &alone);
    }
    kc_buf_free(kc, &packed);
}

static bool usable(const kcheck *kc, const oq_conv2d_kernel *kernel)
{
    return kc_wants(kc, kernel->name, kernel->need);
}

enum { MAX_KERNELS = 16 };

static void check_all(kcheck *kc, kc_row *rows)
{
    const oq_dtype *const types[2] = {&oq_dtype_f32, &oq_dtype_bf16};
    for (size_t i = 0; i < 2 * OQ_COUNT(shapes); i++) {
        kc_rng rng = kc_rng_new(kc, "conv2d", (int64_t)i);
        problem p = make(kc, &rng, &shapes[i / 2], types[i % 2], (kc_class)(i % KC_N_CLASSES));
        for (int k = 0; oq_cpu_conv2d_list[k]; k++) {
            const oq_conv2d_kernel *const kernel = oq_cpu_conv2d_list[k];
            if (usable(kc, kernel) && kernel->accepts(&p.spec)) check_kernel(kc, &rows[k], kernel, &p);
        }
        free_problem(kc, &p);
    }
}

typedef struct bench {
    kcheck *kc;
    const oq_conv2d_kernel *kernel;
    oq_conv2d_args args;
} bench;

static void bench_run(void *user)
{
    const bench *const b = user;
    b->kernel->run(b->kc->device, &b->args);
}

static void bench_shape(kcheck *kc, const oq_conv2d_kernel *kernel, int64_t c_in, int64_t c_out, int64_t size)
{
    const oq_conv2d_spec spec = {c_out, c_in, 3, 3, 1, 1, 1, 1, 1};
    kc_buf packed = kc_buf_new(kc, kernel->packed_bytes(&spec), 0);
    kc_buf scratch = kc_buf_new(kc, kernel->scratch_bytes(&spec, 1, size, size), 0);
    kc_matrix x = kc_matrix_new(kc, &oq_dtype_f32, size * size, c_in, c_in);
    kc_matrix y = kc_matrix_new(kc, &oq_dtype_f32, size * size, c_out, c_out);
    memset(x.buf.data, 0, x.buf.bytes);
    memset(packed.data, 0, packed.bytes);
    bench b = {kc,
               kernel,
               {.spec = &spec,
                .packed = packed.data,
                .scratch = scratch.data,
                .x = x.t,
                .y = y.t,
                .batch = 1,
                .h = size,
                .w = size}};
    char what[64];
    snprintf(what, sizeof what, "%lld->%lld %lld^2", (long long)c_in, (long long)c_out, (long long)size);
    kc_bench(kc, kernel->name, what, 18.0 * (double)(c_in * c_out * size * size), bench_run, &b);
    kc_matrix_free(kc, &x), kc_matrix_free(kc, &y);
    kc_buf_free(kc, &packed), kc_buf_free(kc, &scratch);
}

static const int64_t bench_shapes[][3] = {
    {16, 128, 32}, {128, 128, 32}, {128, 128, 64}, {96, 96, 128},   {96, 64, 128},   {64, 64, 256},
    {64, 32, 256}, {32, 32, 256},  {32, 3, 256},   {128, 128, 256}, {256, 256, 128}, {512, 512, 64},
};

void kcheck_conv2d(kcheck *kc)
{
    kc_row rows[MAX_KERNELS] = {{0}};
    for (int i = 0; oq_cpu_conv2d_list[i]; i++) rows[i].kernel = oq_cpu_conv2d_list[i]->name;
    if (!kc->bench) check_all(kc, rows);
    for (int i = 0; oq_cpu_conv2d_list[i]; i++) {
        const oq_conv2d_kernel *const kernel = oq_cpu_conv2d_list[i];
        if (!kc->bench) kc_row_print(&rows[i]);
        if (!kc->bench || !usable(kc, kernel) || !kernel->need) continue;
        for (size_t s = 0; s < OQ_COUNT(bench_shapes); s++)
            bench_shape(kc, kernel, bench_shapes[s][0], bench_shapes[s][1], bench_shapes[s][2]);
    }
}
