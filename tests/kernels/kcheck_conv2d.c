/* kcheck_conv2d.c -- every convolution against a direct sum in double: channel tails, borders on any side,
 * strides, batches, rows wider than a segment and images higher than a band, enlarged images, videos with frames of
 * an earlier piece before them. */
#include "kernels/kcheck.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "format/float8.h"

typedef struct problem {
    oq_conv2d_spec spec;
    int64_t batch, h, w, oh, ow, frames, out_frames, n_before; /* images: one frame */
    kc_matrix x, before;
    float *weight; /* [c_out, c_in, kt, kh, kw] */
    kc_buf bias;
    bool has_bias, transformed; /* transformed: `tiles` is needed */
    kc_class class;
    double *want, *bound; /* [batch*out_frames*oh*ow, c_out] */
    double *pairs;        /* more room for products of bf16 pairs */
    double *filters;      /* [c_out, c_in, frames of the window]: sums of magnitudes */
    double *tiles;        /* bound of transformed tiles; infinite where one may hold what is no number */
} problem;

typedef struct shape {
    int64_t batch, h, w;
    oq_conv2d_spec spec;
    int64_t frames, n_before; /* of videos */
} shape;

#define CONV(out, in, h, w, step, top, left, bottom, right)                                                  \
    .c_out = out, .c_in = in, .kh = h, .kw = w, .stride = step, .pad_top = top, .pad_left = left,            \
    .pad_bottom = bottom, .pad_right = right
#define IMAGE(...)    {CONV(__VA_ARGS__)}, 0, 0
#define ENLARGED(...) {CONV(__VA_ARGS__), .upsample = 2}, 0, 0
#define VIDEO(t, st, ...)                                                                                    \
    {                                                                                                        \
        CONV(__VA_ARGS__), .kt = t, .stride_t = st, .pad_front = t - 1                                       \
    }

/* batch, h, w, CONV, frames of a video, frames before them */
static const shape shapes[] = {
    {1, 1, 1, IMAGE(1, 1, 1, 1, 1, 0, 0, 0, 0)},
    {1, 1, 1, IMAGE(3, 2, 3, 3, 1, 1, 1, 1, 1)},
    {1, 7, 5, IMAGE(3, 3, 3, 3, 1, 1, 1, 1, 1)},
    {2, 6, 13, IMAGE(16, 3, 3, 3, 1, 1, 1, 1, 1)},
    {1, 9, 12, IMAGE(17, 16, 3, 3, 1, 1, 1, 1, 1)},
    {1, 8, 25, IMAGE(32, 17, 3, 3, 1, 1, 1, 1, 1)},
    {1, 5, 24, IMAGE(33, 32, 3, 3, 1, 1, 1, 1, 1)},
    {1, 4, 23, IMAGE(48, 33, 3, 3, 1, 1, 1, 1, 1)},
    {1, 6, 11, IMAGE(49, 8, 3, 3, 1, 1, 1, 1, 1)},
    {2, 3, 10, IMAGE(64, 64, 3, 3, 1, 1, 1, 1, 1)},
    {1, 8, 8, IMAGE(96, 31, 3, 3, 1, 1, 1, 1, 1)},
    {1, 8, 8, IMAGE(128, 16, 3, 3, 1, 1, 1, 1, 1)},
    {1, 8, 8, IMAGE(7, 5, 3, 3, 2, 0, 0, 1, 1)},
    {2, 9, 14, IMAGE(32, 16, 3, 3, 2, 0, 0, 1, 1)},
    {1, 15, 33, IMAGE(24, 9, 3, 3, 2, 1, 1, 1, 1)},
    {1, 16, 50, IMAGE(40, 24, 3, 3, 2, 0, 0, 1, 1)},
    {1, 5, 9, IMAGE(16, 32, 1, 1, 1, 0, 0, 0, 0)},
    {2, 7, 30, IMAGE(33, 15, 1, 1, 1, 0, 0, 0, 0)},
    {1, 6, 7, IMAGE(8, 12, 1, 1, 2, 0, 0, 0, 0)},
    {1, 6, 9, IMAGE(19, 4, 3, 3, 1, 0, 0, 0, 0)},
    {2, 8, 9, IMAGE(4, 6, 2, 3, 1, 1, 0, 0, 2)},
    {1, 9, 9, IMAGE(5, 7, 5, 1, 1, 2, 0, 2, 0)},
    {1, 11, 6, IMAGE(6, 5, 1, 4, 1, 0, 3, 0, 0)},
    {1, 12, 12, IMAGE(5, 3, 4, 4, 3, 0, 1, 2, 0)},
    {1, 3, 197, IMAGE(16, 8, 3, 3, 1, 1, 1, 1, 1)},
    {1, 2, 300, IMAGE(3, 16, 3, 3, 1, 1, 1, 1, 1)},
    {1, 40, 250, IMAGE(4, 64, 3, 3, 1, 1, 1, 1, 1)},
    {1, 70, 200, IMAGE(2, 64, 3, 3, 2, 0, 0, 1, 1)},
    /* tiles of 4 x 4 with tails on both sides */
    {1, 13, 18, IMAGE(40, 32, 3, 3, 1, 1, 1, 1, 1)},
    {2, 4, 9, IMAGE(64, 96, 3, 3, 1, 1, 1, 1, 1)},
    {1, 9, 14, IMAGE(80, 48, 3, 3, 1, 1, 1, 1, 1)},
    {1, 34, 29, IMAGE(33, 48, 3, 3, 1, 0, 1, 0, 2)},
    /* enlarged by two */
    {1, 1, 1, ENLARGED(2, 3, 3, 3, 1, 1, 1, 1, 1)},
    {2, 5, 7, ENLARGED(17, 20, 3, 3, 1, 1, 1, 1, 1)},
    {1, 9, 33, ENLARGED(32, 64, 3, 3, 1, 1, 1, 1, 1)},
    {1, 4, 6, ENLARGED(8, 5, 1, 1, 1, 0, 0, 0, 0)},
    /* videos */
    {1, 3, 4, VIDEO(3, 1, 5, 6, 3, 3, 1, 1, 1, 1, 1), 1, 0},
    {1, 4, 5, VIDEO(3, 1, 33, 32, 3, 3, 1, 1, 1, 1, 1), 4, 0},
    {2, 5, 9, VIDEO(3, 1, 16, 17, 3, 3, 1, 1, 1, 1, 1), 2, 1},
    {1, 6, 13, VIDEO(3, 1, 64, 48, 3, 3, 1, 1, 1, 1, 1), 3, 2},
    {2, 6, 9, VIDEO(3, 1, 40, 48, 3, 3, 1, 1, 1, 1, 1), 5, 1},
    {1, 9, 18, VIDEO(3, 1, 32, 176, 3, 3, 1, 1, 1, 1, 1), 2, 0},
    {1, 5, 6, VIDEO(1, 1, 33, 32, 3, 3, 1, 1, 1, 1, 1), 2, 0},
    {1, 5, 6, {CONV(32, 32, 3, 3, 1, 1, 1, 1, 1), .kt = 3, .stride_t = 1, .pad_front = 1}, 4, 0},
    {2, 4, 6, VIDEO(3, 1, 24, 16, 1, 1, 1, 0, 0, 0, 0), 3, 2},
    {1, 4, 6, {CONV(24, 32, 1, 1, 1, 0, 0, 0, 0), .kt = 3, .stride_t = 2, .pad_front = 1}, 4, 1},
    {1, 7, 5, VIDEO(1, 1, 12, 8, 1, 1, 1, 0, 0, 0, 0), 3, 0},
    {1, 6, 7, VIDEO(1, 1, 9, 8, 3, 3, 2, 0, 0, 1, 1), 2, 0},
    {1,
     4,
     5,
     {CONV(16, 24, 3, 3, 1, 1, 1, 1, 1), .upsample = 2, .kt = 3, .stride_t = 1, .pad_front = 2},
     2,
     1},
};

static float *values(kcheck *kc, const kc_matrix *m)
{
    float *const x = oq_alloc(kc->env, (size_t)(m->t.rows * m->t.cols + 1) * sizeof *x);
    kc_matrix_get(m, x);
    return x;
}

/* Channels of one pixel of the enlarged frame `t` of entry b; NULL: zeros. */
static const float *x_at(const problem *p, const float *x, const float *before, int64_t b, int64_t t,
                         int64_t y, int64_t col)
{
    const int64_t up = oq_conv2d_enlarge(&p->spec);
    if (t < -p->n_before || y < 0 || y >= p->h * up || col < 0 || col >= p->w * up) return NULL;
    const int64_t frame = t < 0 ? b * p->n_before + p->n_before + t : b * p->frames + t;
    return (t < 0 ? before : x) + ((frame * p->h + y / up) * p->w + col / up) * p->spec.c_in;
}

/* Winograd's transforms mix all pixels of a tile: the largest value of each channel and frame of the window within reach of
 * the output counts, with all of the filter. t: the window's first frame; tops: [c_in, taps]. */
static void tile_tops(const problem *p, const float *x, const float *before, int64_t b, int64_t t, int64_t y,
                      int64_t col, double *tops)
{
    enum { REACH = 4, WIDTH = 2 * REACH + 1 };
    const int64_t taps = oq_conv2d_taps_t(&p->spec);
    for (int64_t i = 0; i < p->spec.c_in * taps; i++) tops[i] = 0;
    for (int64_t i = 0; i < taps * WIDTH * WIDTH; i++) {
        const int64_t tap = i / (WIDTH * WIDTH), dy = i / WIDTH % WIDTH - REACH, dx = i % WIDTH - REACH;
        const float *const in = x_at(p, x, before, b, t + tap, y + dy, col + dx);
        for (int64_t c = 0; in && c < p->spec.c_in; c++) {
            const double size = isfinite(in[c]) ? fabs((double)in[c]) : INFINITY;
            if (size > tops[c * taps + tap]) tops[c * taps + tap] = size;
        }
    }
}

static double tile_bound(const problem *p, const double *tops, int64_t o)
{
    const int64_t terms = p->spec.c_in * oq_conv2d_taps_t(&p->spec);
    double size = 0;
    for (int64_t i = 0; i < terms; i++) {
        if (isinf(tops[i])) return INFINITY;
        size += tops[i] * p->filters[o * terms + i];
    }
    return 8 * kc_sum_error(terms, size);
}

static void solve_pixel(problem *p, const float *x, const float *before, int64_t row, double *tops)
{
    const oq_conv2d_spec *const s = &p->spec;
    const int64_t ox = row % p->ow, oy = row / p->ow % p->oh, t = row / (p->ow * p->oh) % p->out_frames;
    const int64_t b = row / (p->ow * p->oh * p->out_frames), pixels = (int64_t)s->kh * s->kw;
    const int64_t taps = pixels * oq_conv2d_taps_t(s), first = s->kt ? t * s->stride_t - s->pad_front : 0;
    if (p->transformed) tile_tops(p, x, before, b, first, oy, ox, tops);
    for (int64_t o = 0; o < s->c_out; o++) {
        double sum = p->has_bias ? (double)((const float *)p->bias.data)[o] : 0.0, size = fabs(sum),
               flushed = 0x1p-126;
        for (int64_t k = 0; k < taps; k++) {
            const float *const in =
                x_at(p, x, before, b, first + k / pixels, oy * s->stride - s->pad_top + k % pixels / s->kw,
                     ox * s->stride - s->pad_left + k % s->kw);
            for (int64_t c = 0; in && c < s->c_in; c++) {
                const double w = (double)p->weight[(o * s->c_in + c) * taps + k], one = (double)in[c] * w;
                sum += one, size += fabs(one), flushed += 0x1p-126 * (fabs((double)in[c]) + fabs(w));
            }
        }
        /* Subnormal operands count as zero; weights added up for an enlarged image are rounded to bf16. */
        p->pairs[row * s->c_out + o] = flushed + (oq_conv2d_enlarge(s) > 1 ? 0x1p-8 * size : 0);
        p->want[row * s->c_out + o] = sum;
        p->bound[row * s->c_out + o] = kc_sum_error(taps * s->c_in, size);
        if (p->transformed) p->tiles[row * s->c_out + o] = tile_bound(p, tops, o);
    }
}

static kc_matrix random_matrix(kcheck *kc, kc_rng *rng, const oq_dtype *type, kc_class class, int64_t rows,
                               int64_t cols)
{
    kc_matrix m = kc_matrix_new(kc, type, rows, cols, cols + kc_below(rng, 2) * 5);
    float *const x = oq_alloc(kc->env, (size_t)(rows * cols + 1) * sizeof *x);
    kc_fill(rng, class, x, rows, cols);
    kc_matrix_set(&m, x);
    oq_free(kc->env, x);
    return m;
}

static void solve(kcheck *kc, problem *p)
{
    const int64_t rows = p->batch * p->out_frames * p->oh * p->ow;
    float *const x = values(kc, &p->x), *const before = values(kc, &p->before);
    p->want = oq_alloc(kc->env, (size_t)(rows * p->spec.c_out) * sizeof *p->want);
    p->bound = oq_alloc(kc->env, (size_t)(rows * p->spec.c_out) * sizeof *p->bound);
    p->pairs = oq_alloc(kc->env, (size_t)(rows * p->spec.c_out) * sizeof *p->pairs);
    p->tiles = oq_alloc(kc->env, (size_t)(rows * p->spec.c_out) * sizeof *p->tiles);
    const int64_t terms = p->spec.c_in * oq_conv2d_taps_t(&p->spec), filters = p->spec.c_out * terms;
    const int64_t pixels = (int64_t)p->spec.kh * p->spec.kw;
    double *const tops = oq_alloc(kc->env, (size_t)terms * sizeof *tops);
    p->filters = oq_alloc(kc->env, (size_t)filters * sizeof *p->filters);
    for (int64_t i = 0; i < filters; i++) {
        p->filters[i] = 0;
        for (int64_t k = 0; k < pixels; k++) p->filters[i] += fabs((double)p->weight[i * pixels + k]);
    }
    for (int64_t i = 0; i < rows; i++) solve_pixel(p, x, before, i, tops);
    oq_free(kc->env, x), oq_free(kc->env, before), oq_free(kc->env, tops);
}

/* `typed`: the spec says the type as a plan does; of BF16 the weights are such numbers. */
static problem make(kcheck *kc, kc_rng *rng, const shape *at, const oq_dtype *type, bool typed,
                    kc_class class)
{
    const oq_conv2d_spec *const s = &at->spec;
    const bool video = s->kt > 0;
    problem p = {.spec = *s, .batch = at->batch, .h = at->h, .w = at->w, .class = class};
    p.oh = oq_conv2d_out_h(s, at->h);
    p.ow = oq_conv2d_out_w(s, at->w);
    p.frames = video ? at->frames : 1;
    p.out_frames = video ? oq_conv2d_out_frames(s, at->frames) : 1;
    p.n_before = at->n_before;
    const int64_t pixels = p.h * p.w, n_weights = s->c_out * s->c_in * oq_conv2d_taps_t(s) * s->kh * s->kw;
    p.x = random_matrix(kc, rng, type, class, p.batch * p.frames * pixels, s->c_in);
    p.before = random_matrix(kc, rng, type, class == KC_NAN_ROW ? KC_NORMAL : class,
                             p.batch * p.n_before * pixels, s->c_in);
    p.weight = oq_alloc(kc->env, (size_t)n_weights * sizeof *p.weight);
    for (int64_t i = 0; i < n_weights; i++)
        p.weight[i] = typed && type == &oq_dtype_bf16 ? oq_bf16_round(kc_normal(rng)) : kc_normal(rng);
    if (typed) p.spec.compute = type;
    if (typed && type == &oq_dtype_bf16) p.spec.weight = type;
    p.transformed = typed && s->kh == 3 && s->kw == 3 && s->stride == 1 && (!video || s->stride_t == 1) &&
                    oq_conv2d_enlarge(s) == 1;
    p.bias = kc_buf_new(kc, (size_t)s->c_out * sizeof(float), 4);
    for (int64_t i = 0; i < s->c_out; i++) ((float *)p.bias.data)[i] = kc_normal(rng);
    p.has_bias = kc_below(rng, 3) > 0;
    solve(kc, &p);
    return p;
}

static void free_problem(kcheck *kc, problem *p)
{
    kc_matrix_free(kc, &p->x), kc_matrix_free(kc, &p->before), kc_buf_free(kc, &p->bias);
    oq_free(kc->env, p->weight), oq_free(kc->env, p->want), oq_free(kc->env, p->bound);
    oq_free(kc->env, p->pairs), oq_free(kc->env, p->tiles), oq_free(kc->env, p->filters);
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
                                 .w = p->w,
                                 .frames = p->spec.kt ? p->frames : 0,
                                 .before = p->before.t,
                                 .n_before = p->n_before};
    kernel->run(device, &args);
    const bool intact = kc_buf_intact(&scratch);
    kc_buf_free(kc, &scratch);
    return intact;
}

enum {
    PAIRS = OQ_CPU_AVX512BF16 | OQ_CPU_AMX | OQ_CPU_BF16
}; /* needed by kernels that multiply bf16 pairs */

static bool all_near(kcheck *kc, kc_row *row, const oq_conv2d_kernel *kernel, const problem *p,
                     const kc_matrix *y)
{
    const int64_t n = y->t.rows * y->t.cols;
    const bool enlarged = oq_conv2d_enlarge(&p->spec) > 1 && kernel->need;
    const bool pairs = kernel->need & PAIRS, tiles = strstr(kernel->name, "winograd") != NULL;
    float *const got = oq_alloc(kc->env, (size_t)n * sizeof *got);
    bool ok = true;
    kc_matrix_get(y, got);
    for (int64_t i = 0; i < n; i++) {
        if (tiles && isinf(p->tiles[i])) continue;
        /* weights added up before they meet an infinity: it stays one, where apart they give NaN */
        if (enlarged && isnan(p->want[i]) && isinf(got[i])) continue;
        const double sum = tiles ? p->tiles[i] : p->bound[i] + (pairs ? p->pairs[i] : 0);
        ok &= kc_near(row, (double)got[i], p->want[i], sum + kc_store_error(y->t.dtype, p->want[i]));
    }
    oq_free(kc->env, got);
    return ok;
}

static void check_kernel(kcheck *kc, kc_row *row, const oq_conv2d_kernel *kernel, const problem *p)
{
    const oq_dtype *const types[2] = {&oq_dtype_f32, &oq_dtype_bf16};
    const int64_t rows = p->batch * p->out_frames * p->oh * p->ow, cols = p->spec.c_out;
    kc_buf packed = kc_buf_new(kc, kernel->packed_bytes(&p->spec), 0);
    kernel->pack(packed.data, p->weight, &p->spec);
    for (int t = 0; t < 2; t++) {
        kc_matrix y = kc_matrix_new(kc, types[t], rows, cols, cols + 3 * t);
        kc_matrix alone = kc_matrix_new(kc, types[t], rows, cols, cols + 3 * t);
        bool ok = run_once(kc, kc->device, kernel, p, &packed, y.t);
        ok &= run_once(kc, &kc->single, kernel, p, &packed, alone.t);
        const bool near = all_near(kc, row, kernel, p, &y), same = kc_matrix_same(&y, &alone);
        ok &= kc_matrix_intact(&y) && kc_matrix_intact(&p->x) && kc_matrix_intact(&p->before) &&
              kc_buf_intact(&packed) && kc_buf_intact(&p->bias);
        kc_case(kc, row, ok && near && same,
                "%lldx%lldx%lldx%lld, %lld to %lld channels, %dx%dx%d, stride %d, %s, %s to %s: guards %d, "
                "near %d, same %d",
                (long long)p->batch, (long long)p->frames, (long long)p->h, (long long)p->w,
                (long long)p->spec.c_in, (long long)p->spec.c_out, p->spec.kt, p->spec.kh, p->spec.kw,
                p->spec.stride, kc_class_name(p->class), p->x.t.dtype->label, types[t]->label, ok, near,
                same);
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
    for (size_t i = 0; i < 4 * OQ_COUNT(shapes); i++) { /* F32 and BF16, said by the spec or not */
        if (!kc_turn(kc)) continue;
        kc_rng rng = kc_rng_new(kc, "conv2d", (int64_t)i);
        problem p =
            make(kc, &rng, &shapes[i / 4], types[i % 2], i % 4 > 1, (kc_class)((i / 4 + i) % KC_N_CLASSES));
        for (int k = 0; kc_conv2d_kernel(k); k++) {
            const oq_conv2d_kernel *const kernel = kc_conv2d_kernel(k);
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

static void bench_shape(kcheck *kc, const oq_conv2d_kernel *kernel, int64_t c_in, int64_t c_out, int64_t size,
                        int enlarge)
{
    oq_conv2d_spec spec = oq_conv2d_same(c_out, c_in, 3);
    spec.upsample = enlarge;
    const bool bf16 = !kernel->accepts(&spec) && kernel->need & PAIRS;
    if (bf16) spec.compute = spec.weight = &oq_dtype_bf16;
    if (!kernel->accepts(&spec)) spec.compute = &oq_dtype_f32;
    if (!kernel->accepts(&spec)) return;
    const oq_dtype *const type = bf16 ? &oq_dtype_bf16 : &oq_dtype_f32;
    const int64_t out = size * enlarge;
    kc_buf packed = kc_buf_new(kc, kernel->packed_bytes(&spec), 0);
    kc_buf scratch = kc_buf_new(kc, kernel->scratch_bytes(&spec, 1, size, size), 0);
    kc_matrix x = kc_matrix_new(kc, type, size * size, c_in, c_in);
    kc_matrix y = kc_matrix_new(kc, type, out * out, c_out, c_out);
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
    snprintf(what, sizeof what, "%lld->%lld %lld^2%s", (long long)c_in, (long long)c_out, (long long)out,
             enlarge > 1 ? " enlarged" : "");
    kc_bench(kc, kernel->name, what, 18.0 * (double)(c_in * c_out * out * out), bench_run, &b);
    kc_matrix_free(kc, &x), kc_matrix_free(kc, &y);
    kc_buf_free(kc, &packed), kc_buf_free(kc, &scratch);
}

static const int64_t bench_shapes[][4] = {
    {16, 128, 32, 1}, {128, 128, 32, 1},  {128, 128, 64, 1},  {96, 96, 128, 1},  {96, 64, 128, 1},
    {64, 64, 256, 1}, {64, 32, 256, 1},   {32, 32, 256, 1},   {32, 3, 256, 1},   {128, 128, 32, 2},
    {64, 64, 128, 2}, {128, 128, 256, 1}, {256, 256, 128, 1}, {512, 512, 64, 1},
};

void kcheck_conv2d(kcheck *kc)
{
    kc_row rows[MAX_KERNELS] = {{0}};
    bool any = false; /* problems are not solved for nobody */
    for (int i = 0; kc_conv2d_kernel(i); i++) {
        rows[i].kernel = kc_conv2d_kernel(i)->name;
        any |= usable(kc, kc_conv2d_kernel(i));
    }
    if (any && !kc->bench) check_all(kc, rows);
    for (int i = 0; kc_conv2d_kernel(i); i++) {
        const oq_conv2d_kernel *const kernel = kc_conv2d_kernel(i);
        if (!kc->bench) kc_row_print(&rows[i]);
        if (!kc->bench || !usable(kc, kernel) || !kernel->need) continue;
        for (size_t s = 0; s < OQ_COUNT(bench_shapes); s++)
            bench_shape(kc, kernel, bench_shapes[s][0], bench_shapes[s][1], bench_shapes[s][2],
                        (int)bench_shapes[s][3]);
    }
}
