/* conv2d_simd.h -- the body of conv2d_avx2.c and conv2d_avx512.c: convolution as a product of pixels and
 * weights.
 *
 * A band of input rows is copied into scratch as f32 with its zero borders, so that a window's row of kw *
 * c_in values is one contiguous run and windows side by side are a constant stride apart: tile.h reads A in
 * place and no im2col is written. Where the input already looks like that (f32, no borders, 1 x 1 or dense
 * rows) nothing is copied. Weights are packed in panels [kh][kw][c_in][TILE_COLS], zeros beyond c_out. */
#include "base/size.h"
#include "cpu/conv2d/conv2d.h"
#include "cpu/elementwise/elem.h"
#include "cpu/vec/tile.h"

#define BAND_BYTES (1u << 20)
#define BAND_ROWS  8          /* of the output, at least: the overlap of bands is copied twice */
#define SEGMENT    96         /* output pixels of one task's row: a multiple of every tile height */
#define TASK_MACS  (1 << 20)

static bool accepts(const oq_conv2d_spec *s)
{
    return oq_conv2d_flat(s) && s->c_in > 0 && s->c_out > 0 && s->stride >= 1 && s->kh >= 1 && s->kw >= 1;
}

static int64_t n_panels(const oq_conv2d_spec *s)
{
    return oq_ceil_div(s->c_out, TILE_COLS);
}

/* Vectors of panel p: the last one is half as wide where that is enough. */
static int64_t panel_vectors(const oq_conv2d_spec *s, int64_t p)
{
    return s->c_out - p * TILE_COLS <= VF ? 1 : 2;
}

static size_t packed_bytes(const oq_conv2d_spec *s)
{
    const int64_t last = n_panels(s) - 1, k = (int64_t)s->kh * s->kw * s->c_in;
    return (size_t)(k * (last * TILE_COLS + panel_vectors(s, last) * VF)) * sizeof(float);
}

static void pack(void *dst, const float *weight, const oq_conv2d_spec *s)
{
    float *out = dst;
    const int64_t taps = (int64_t)s->kh * s->kw;
    for (int64_t p = 0; p < n_panels(s); p++) {
        const int64_t width = panel_vectors(s, p) * VF, first = p * TILE_COLS;
        for (int64_t t = 0; t < taps; t++)
            for (int64_t c = 0; c < s->c_in; c++)
                for (int64_t o = first; o < first + width; o++)
                    *out++ = o < s->c_out ? weight[(o * s->c_in + c) * taps + t] : 0.0f;
    }
}

/* Output rows of one band. */
static int64_t band_rows(const oq_conv2d_spec *s, int64_t h, int64_t w)
{
    const int64_t row_bytes = (w + s->pad_left + s->pad_right) * s->c_in * (int64_t)sizeof(float);
    const int64_t fit = ((int64_t)BAND_BYTES / row_bytes - s->kh) / s->stride + 1;
    return oq_min_i64(oq_max_i64(fit, BAND_ROWS), oq_conv2d_out_h(s, h));
}

static size_t scratch_bytes(const oq_conv2d_spec *s, int64_t batch, int64_t h, int64_t w)
{
    (void)batch;
    const int64_t rows = (band_rows(s, h, w) - 1) * s->stride + s->kh;
    return (size_t)(rows * (w + s->pad_left + s->pad_right) * s->c_in) * sizeof(float);
}

typedef struct conv_job {
    const oq_conv2d_args *a;
    const oq_conv2d_spec *s;
    int64_t image;                  /* first row of this image in x */
    int64_t out_image;              /* and in y */
    int64_t oy, n_oy, ow;           /* this band's output rows; output width */
    const float *band;              /* the window of output row oy, column 0 */
    int64_t row_pitch, pixel_pitch; /* floats */
    int64_t n_segments, task_rows, n_row_tasks;
} conv_job;

/* Row i of the band, borders included. */
static void fill_row(void *user, int64_t i, int worker)
{
    (void)worker;
    const conv_job *job = user;
    const oq_conv2d_args *a = job->a;
    const oq_conv2d_spec *s = job->s;
    const bool bf16 = oq_elem_is_bf16(&a->x);
    const int64_t iy = job->oy * s->stride - s->pad_top + i;
    float *out = (float *)a->scratch + i * job->row_pitch;
    if (iy < 0 || iy >= a->h) {
        memset(out, 0, (size_t)job->row_pitch * sizeof *out);
        return;
    }
    memset(out, 0, (size_t)(s->pad_left * s->c_in) * sizeof *out);
    out += s->pad_left * s->c_in;
    for (int64_t ix = 0; ix < a->w; ix++, out += s->c_in) {
        const void *x = oq_elem_row(&a->x, job->image + iy * a->w + ix);
        for (int64_t c = 0; c < s->c_in; c += VF)
            v_put(out, false, c, s->c_in - c, v_get(x, bf16, c, s->c_in - c));
    }
    memset(out, 0, (size_t)(s->pad_right * s->c_in) * sizeof *out);
}

/* Tile -> y: bias, rounding, and no column beyond c_out. */
static void store_pixels(const conv_job *job, const float *c, int64_t row, int64_t n_rows, int64_t col,
                         int64_t nv)
{
    const oq_tensor *y = &job->a->y;
    const bool bf16 = oq_elem_is_bf16(y);
    for (int64_t i = 0; i < n_rows; i++, c += TILE_COLS) {
        void *out = oq_elem_row(y, row + i);
        for (int64_t v = 0; v < nv * VF; v += VF) {
            const int64_t n = job->s->c_out - col - v;
            if (n <= 0) break;
            const vf bias = v_param(job->a->bias ? job->a->bias + col : NULL, v, n, 0.0f);
            v_put(out, bf16, col + v, n, v_add(v_load(c + v), bias));
        }
    }
}

/* One panel, one segment of a few output rows. Panels change slowest: their weights stay in the cache. */
static void conv_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const conv_job *job = user;
    const oq_conv2d_spec *s = job->s;
    const int64_t segment = i % job->n_segments,
                  rows = i / job->n_segments % job->n_row_tasks * job->task_rows;
    const int64_t panel = i / job->n_segments / job->n_row_tasks, nv = panel_vectors(s, panel);
    const int64_t k = s->kw * s->c_in, first = segment * SEGMENT, end = oq_min_i64(first + SEGMENT, job->ow);
    float c[TILE_ROWS * TILE_COLS];
    tile t = {.lda = s->stride * job->pixel_pitch, .a_step = job->row_pitch, .runs = s->kh, .k = k, .c = c};
    t.ldc = TILE_COLS;
    t.b = (const float *)job->a->packed + panel * TILE_COLS * k * s->kh;
    for (int64_t oy = rows; oy < oq_min_i64(rows + job->task_rows, job->n_oy); oy++)
        for (int64_t ox = first; ox < end; ox += TILE_ROWS) {
            const int64_t n = oq_min_i64(TILE_ROWS, end - ox);
            t.a = job->band + oy * s->stride * job->row_pitch + ox * t.lda;
            tile_run(t, n, nv);
            store_pixels(job, c, job->out_image + (job->oy + oy) * job->ow + ox, n, panel * TILE_COLS, nv);
        }
}

static void run_band(oq_device *device, conv_job *job, bool in_place)
{
    const oq_conv2d_args *a = job->a;
    const oq_conv2d_spec *s = job->s;
    if (in_place) {
        job->band = (const float *)oq_elem_row(&a->x, job->image + job->oy * s->stride * a->w);
    } else {
        oq_pool_run(device->pool, (job->n_oy - 1) * s->stride + s->kh, fill_row, job);
        job->band = a->scratch;
    }
    const int64_t macs = oq_min_i64(job->ow, SEGMENT) * s->kh * s->kw * s->c_in * TILE_COLS;
    job->n_segments = oq_ceil_div(job->ow, SEGMENT);
    job->task_rows = oq_min_i64(oq_max_i64(1, TASK_MACS / macs), job->n_oy);
    job->n_row_tasks = oq_ceil_div(job->n_oy, job->task_rows);
    oq_pool_run(device->pool, n_panels(s) * job->n_row_tasks * job->n_segments, conv_task, job);
}

static void run(oq_device *device, const oq_conv2d_args *a)
{
    const oq_conv2d_spec *s = a->spec;
    const bool bare = s->pad_top == 0 && s->pad_left == 0 && s->pad_bottom == 0 && s->pad_right == 0;
    const bool in_place = !oq_elem_is_bf16(&a->x) && bare && (s->kw == 1 || a->x.ld == s->c_in);
    const int64_t oh = oq_conv2d_out_h(s, a->h), step = in_place ? oh : band_rows(s, a->h, a->w);
    conv_job job = {.a = a, .s = s, .ow = oq_conv2d_out_w(s, a->w)};
    job.pixel_pitch = in_place ? a->x.ld : s->c_in;
    job.row_pitch = in_place ? a->w * a->x.ld : (a->w + s->pad_left + s->pad_right) * s->c_in;
    for (int64_t b = 0; b < a->batch; b++)
        for (job.oy = 0; job.oy < oh; job.oy += step) {
            job.image = b * a->h * a->w;
            job.out_image = b * oh * job.ow;
            job.n_oy = oq_min_i64(step, oh - job.oy);
            run_band(device, &job, in_place);
        }
}
