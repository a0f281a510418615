/* conv2d_ref.c -- direct convolution over NHWC rows in double: any kernel size, stride and padding.
 * Packed weights are [c_out][kh][kw][c_in] in f32. */
#include "cpu/conv2d/conv2d.h"

#include "cpu/elementwise/elem.h"

static bool accepts(const oq_conv2d_spec *spec)
{
    (void)spec;
    return true;
}

static size_t packed_bytes(const oq_conv2d_spec *s)
{
    return (size_t)(s->c_out * s->c_in * s->kh * s->kw) * sizeof(float);
}

static void pack(void *dst, const float *weight, const oq_conv2d_spec *s)
{
    float *w = dst;
    const int64_t taps = (int64_t)s->kh * s->kw;
    for (int64_t o = 0; o < s->c_out; o++)
        for (int64_t t = 0; t < taps; t++)
            for (int64_t c = 0; c < s->c_in; c++) *w++ = weight[(o * s->c_in + c) * taps + t];
}

static size_t scratch_bytes(const oq_conv2d_spec *spec, int64_t batch, int64_t h, int64_t w)
{
    (void)spec, (void)batch, (void)h, (void)w;
    return 0;
}

/* Channel o of the output pixel whose window starts at row iy, column ix of the image with first row `image`.
 */
static double one_output(const oq_conv2d_args *a, int64_t image, int64_t iy, int64_t ix, int64_t o)
{
    const oq_conv2d_spec *s = a->spec;
    const float *w = (const float *)a->packed + o * s->kh * s->kw * s->c_in;
    double sum = 0;
    for (int64_t ky = 0; ky < s->kh; ky++)
        for (int64_t kx = 0; kx < s->kw; kx++, w += s->c_in) {
            const int64_t y = iy + ky, x = ix + kx;
            if (y < 0 || y >= a->h || x < 0 || x >= a->w) continue;
            const int64_t row = image + y * a->w + x;
            for (int64_t c = 0; c < s->c_in; c++) sum += (double)oq_elem_get(&a->x, row, c) * (double)w[c];
        }
    return sum + (a->bias ? (double)a->bias[o] : 0.0);
}

static void conv_rows(const void *args, int64_t first, int64_t end)
{
    const oq_conv2d_args *a = args;
    const oq_conv2d_spec *s = a->spec;
    const int64_t oh = oq_conv2d_out_h(s, a->h), ow = oq_conv2d_out_w(s, a->w);
    for (int64_t row = first; row < end; row++) {
        const int64_t ox = row % ow, oy = row / ow % oh, b = row / (ow * oh);
        for (int64_t o = 0; o < s->c_out; o++)
            oq_elem_put(&a->y, row, o,
                        (float)one_output(a, b * a->h * a->w, oy * s->stride - s->pad_top,
                                          ox * s->stride - s->pad_left, o));
    }
}

static void run(oq_device *device, const oq_conv2d_args *a)
{
    const oq_conv2d_spec *s = a->spec;
    const int64_t rows = a->batch * oq_conv2d_out_h(s, a->h) * oq_conv2d_out_w(s, a->w);
    oq_rows_run(device->pool, rows, s->c_out * s->kh * s->kw * s->c_in, conv_rows, a);
}

const oq_conv2d_kernel oq_conv2d_ref = {
    .name = "conv2d_ref",
    .accepts = accepts,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
