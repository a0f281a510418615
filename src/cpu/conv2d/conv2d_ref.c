/* conv2d_ref.c -- direct convolution over NHWC rows in double: any kernel size, stride and padding, images and videos.
 * Packed weights are [kt][kh][kw][c_in][c_out] in f32, so that the inner loop goes over sums that do not wait for each
 * other: a processor without vector code of ours still gets what its compiler makes of it. */
#include "cpu/conv2d/conv2d.h"

#include "cpu/elementwise/elem.h"

#define LANES 64 /* tasks with sums of their own, whatever the number of threads */

static bool accepts(const oq_conv2d_spec *spec)
{
    (void)spec;
    return true;
}

static size_t packed_bytes(const oq_conv2d_spec *s)
{
    return (size_t)(s->c_out * s->c_in * oq_conv2d_taps_t(s) * s->kh * s->kw) * sizeof(float);
}

static void pack(void *dst, const float *weight, const oq_conv2d_spec *s)
{
    float *w = dst;
    const int64_t taps = (int64_t)oq_conv2d_taps_t(s) * s->kh * s->kw;
    for (int64_t t = 0; t < taps; t++)
        for (int64_t c = 0; c < s->c_in; c++)
            for (int64_t o = 0; o < s->c_out; o++) *w++ = weight[(o * s->c_in + c) * taps + t];
}

static size_t scratch_bytes(const oq_conv2d_spec *spec, int64_t batch, int64_t h, int64_t w)
{
    (void)batch, (void)h, (void)w;
    return (size_t)(LANES * spec->c_out) * sizeof(double);
}

/* sum[o] += x[row, :] . w[:, o] */
static void add_pixel(const oq_conv2d_spec *s, double *restrict sum, const oq_tensor *in, int64_t row,
                      const float *restrict w)
{
    for (int64_t c = 0; c < s->c_in; c++, w += s->c_out) {
        const double x = oq_elem_get(in, row, c);
        for (int64_t o = 0; o < s->c_out; o++) sum[o] += x * (double)w[o];
    }
}

/* The frame `at` (negative: before x's first) of entry b: where its rows are; false where it is all zeros. */
static bool find_frame(const oq_conv2d_args *a, int64_t b, int64_t at, const oq_tensor **in, int64_t *first)
{
    const int64_t pixels = a->h * a->w, frames = a->spec->kt ? a->frames : 1;
    *in = at < 0 ? &a->before : &a->x;
    *first = (at < 0 ? b * a->n_before + a->n_before + at : b * frames + at) * pixels;
    return at >= -a->n_before;
}

/* One frame's part of the window that starts at row iy, column ix of the enlarged image. */
static void add_window(const oq_conv2d_args *a, double *sum, const oq_tensor *in, int64_t first, int64_t iy,
                       int64_t ix, const float *w)
{
    const oq_conv2d_spec *s = a->spec;
    const int64_t up = oq_conv2d_enlarge(s);
    for (int64_t ky = 0; ky < s->kh; ky++)
        for (int64_t kx = 0; kx < s->kw; kx++, w += s->c_in * s->c_out) {
            const int64_t y = iy + ky, x = ix + kx;
            if (y >= 0 && y < a->h * up && x >= 0 && x < a->w * up)
                add_pixel(s, sum, in, first + y / up * a->w + x / up, w);
        }
}

static void run_lane(void *user, int64_t lane, int worker)
{
    (void)worker;
    const oq_conv2d_args *a = user;
    const oq_conv2d_spec *s = a->spec;
    const int64_t oh = oq_conv2d_out_h(s, a->h), ow = oq_conv2d_out_w(s, a->w);
    const int64_t ot = s->kt ? oq_conv2d_out_frames(s, a->frames) : 1, taps = (int64_t)s->kh * s->kw;
    double *sum = (double *)a->scratch + lane * s->c_out;
    for (int64_t row = lane; row < a->batch * ot * oh * ow; row += LANES) {
        const int64_t ox = row % ow, oy = row / ow % oh, t = row / (ow * oh) % ot, b = row / (ow * oh * ot);
        const int64_t at = s->kt ? t * s->stride_t - s->pad_front : 0;
        for (int64_t o = 0; o < s->c_out; o++) sum[o] = a->bias ? (double)a->bias[o] : 0.0;
        for (int64_t k = 0; k < oq_conv2d_taps_t(s); k++) {
            const oq_tensor *in;
            int64_t first;
            if (find_frame(a, b, at + k, &in, &first))
                add_window(a, sum, in, first, oy * s->stride - s->pad_top, ox * s->stride - s->pad_left,
                           (const float *)a->packed + k * taps * s->c_in * s->c_out);
        }
        for (int64_t o = 0; o < s->c_out; o++) oq_elem_put(&a->y, row, o, (float)sum[o]);
    }
}

static void run(oq_device *device, const oq_conv2d_args *args)
{
    oq_conv2d_args a = *args;
    oq_pool_run(device->pool, LANES, run_lane, &a);
}

const oq_conv2d_kernel oq_conv2d_ref = {
    .name = "conv2d_ref",
    .accepts = accepts,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
