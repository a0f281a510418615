/* conv2d_winograd.h -- 3 x 3 convolutions by products in f32 and Winograd's F(4x4, 3x3): 36 products of channels for 16 output pixels,
 * where the direct sum takes 144. The file that includes this has included a tile with TILE_STEP 1.
 *
 * A task takes TILES tiles of 4 x 4 output pixels. Each one's 6 x 6 window of the input is transformed (V = Bt d B, for
 * every channel), then for each panel of output channels 36 small products M[i] = V[i] U[i] go through the tile, and
 * At M A is the output. The weights rest transformed, U = G g Gt, four times as large as they are.
 *
 * The transforms add and subtract numbers of the window that the direct sum keeps apart: errors are larger (numerics.md),
 * and a NaN reaches all of its tile. */
#include "base/size.h"
#include "cpu/conv2d/conv2d.h"
#include "cpu/elementwise/elem.h"

#include <string.h>

#define POINTS 36 /* of the transformed tile */
#define OUT    4  /* pixels of a tile's side */
#define WINDOW 6
#define LANES  32
#define TILES  24 /* of a task: V and M of one panel stay in L2 */
#define LEAST_CHANNELS 32

static bool accepts(const oq_conv2d_spec *s)
{
    const bool small = s->c_in * s->c_out <= OQ_CONV2D_WINOGRAD_MOST; /* the weights rest as f32, four times as many */
    return (s->compute == &oq_dtype_f32 || (s->compute == &oq_dtype_bf16 && small)) && s->kt == 0 &&
           oq_conv2d_enlarge(s) == 1 && s->kh == 3 && s->kw == 3 && s->stride == 1 && s->c_in % VF == 0 &&
           s->c_in >= LEAST_CHANNELS && s->c_out >= LEAST_CHANNELS;
}

static int64_t n_panels(const oq_conv2d_spec *s)
{
    return oq_ceil_div(s->c_out, TILE_COLS);
}

static int64_t panel_vectors(const oq_conv2d_spec *s, int64_t p)
{
    return s->c_out - p * TILE_COLS <= VF ? 1 : 2;
}

/* Floats between two points' matrices: never a multiple of 4 KB, or all 36 would share a few sets of the cache. */
static int64_t v_row(const oq_conv2d_spec *s)
{
    return s->c_in + 16;
}

static int64_t v_pitch(const oq_conv2d_spec *s)
{
    return TILES * v_row(s) + 16;
}

enum { M_PITCH = TILES * TILE_COLS + 16 };

static int64_t lane_floats(const oq_conv2d_spec *s)
{
    return POINTS * (v_pitch(s) + M_PITCH);
}

static size_t scratch_bytes(const oq_conv2d_spec *s, int64_t batch, int64_t h, int64_t w)
{
    (void)batch, (void)h, (void)w;
    return (size_t)(LANES * lane_floats(s) + s->c_in) * sizeof(float); /* and a pixel of zeros */
}

/* ---- weights ------------------------------------------------------------------------------------------- */

static size_t packed_bytes(const oq_conv2d_spec *s)
{
    const int64_t last = n_panels(s) - 1;
    return (size_t)(POINTS * s->c_in * (last * TILE_COLS + panel_vectors(s, last) * VF)) * sizeof(float);
}

/* G g Gt of one 3 x 3 filter, in double. */
static void transform_filter(double out[POINTS], const float *g)
{
    static const double G[WINDOW][3] = {{1.0 / 4, 0, 0},
                                        {-1.0 / 6, -1.0 / 6, -1.0 / 6},
                                        {-1.0 / 6, 1.0 / 6, -1.0 / 6},
                                        {1.0 / 24, 1.0 / 12, 1.0 / 6},
                                        {1.0 / 24, -1.0 / 12, 1.0 / 6},
                                        {0, 0, 1}};
    double half[WINDOW][3];
    for (int i = 0; i < WINDOW; i++)
        for (int x = 0; x < 3; x++)
            half[i][x] = G[i][0] * (double)g[x] + G[i][1] * (double)g[3 + x] + G[i][2] * (double)g[6 + x];
    for (int i = 0; i < WINDOW; i++)
        for (int j = 0; j < WINDOW; j++)
            out[i * WINDOW + j] = half[i][0] * G[j][0] + half[i][1] * G[j][1] + half[i][2] * G[j][2];
}

/* [panel][point][c_in][columns] */
static void pack(void *dst, const float *weight, const oq_conv2d_spec *s)
{
    float *out = dst;
    double u[POINTS];
    memset(dst, 0, packed_bytes(s));
    for (int64_t p = 0; p < n_panels(s); p++) {
        const int64_t width = panel_vectors(s, p) * VF, first = p * TILE_COLS;
        for (int64_t o = first; o < oq_min_i64(first + width, s->c_out); o++)
            for (int64_t c = 0; c < s->c_in; c++) {
                transform_filter(u, weight + (o * s->c_in + c) * 9);
                for (int i = 0; i < POINTS; i++) out[(i * s->c_in + c) * width + o - first] = (float)u[i];
            }
        out += POINTS * s->c_in * width;
    }
}

/* ---- transforms ---------------------------------------------------------------------------------------- */

typedef struct conv_job {
    const oq_conv2d_args *a;
    const oq_conv2d_spec *s;
    int64_t oh, ow, across, per_image; /* output; tiles in a row and in an image */
    int64_t n_tiles, shares, panels;   /* in all; tasks that share the panels of one block, and panels of each */
    int64_t n_tasks, n_lanes;
    const float *zeros; /* c_in of them: the pixels outside */
} conv_job;

/* y = Bt x of six vectors, `step` apart. */
OQ_INLINE void input_1d(vf *x, const int step)
{
    const vf d0 = x[0], d1 = x[step], d2 = x[2 * step], d3 = x[3 * step], d4 = x[4 * step], d5 = x[5 * step];
    const vf four = v_set(4.0f), two = v_set(2.0f), five = v_set(5.0f);
    const vf p = v_fnma(four, d2, d4), q = v_fnma(four, d1, d3); /* d4 - 4 d2, d3 - 4 d1 */
    const vf r = v_sub(d4, d2), t = v_mul(two, v_sub(d3, d1));
    x[0] = v_fma(four, d0, v_fnma(five, d2, d4));
    x[step] = v_add(p, q);
    x[2 * step] = v_sub(p, q);
    x[3 * step] = v_add(r, t);
    x[4 * step] = v_sub(r, t);
    x[5 * step] = v_fma(four, d1, v_fnma(five, d3, d5));
}

/* The first four of six vectors become At x. */
OQ_INLINE void output_1d(vf *x, const int step)
{
    const vf m0 = x[0], m1 = x[step], m2 = x[2 * step], m3 = x[3 * step], m4 = x[4 * step], m5 = x[5 * step];
    const vf even = v_add(m1, m2), odd = v_sub(m1, m2), even2 = v_add(m3, m4), odd2 = v_sub(m3, m4);
    x[0] = v_add(m0, v_add(even, even2));
    x[step] = v_fma(v_set(2.0f), odd2, odd);
    x[2 * step] = v_fma(v_set(4.0f), even2, even);
    x[3 * step] = v_add(v_fma(v_set(8.0f), odd2, odd), m5);
}

/* Where tile `i` of all begins in the output. */
OQ_INLINE int64_t tile_place(const conv_job *job, int64_t i, int64_t *y, int64_t *x)
{
    const int64_t in_image = i % job->per_image;
    *y = in_image / job->across * OUT;
    *x = in_image % job->across * OUT;
    return i / job->per_image;
}

/* V of one tile: row `at` of each point's matrix. */
static void transform_input(const conv_job *job, float *v, int64_t i, int64_t at)
{
    const oq_conv2d_args *const a = job->a;
    const oq_conv2d_spec *const s = job->s;
    const bool bf16 = oq_elem_is_bf16(&a->x);
    const void *pixel[POINTS];
    int64_t oy, ox;
    const int64_t image = tile_place(job, i, &oy, &ox) * a->h * a->w, pitch = v_pitch(s);
    for (int64_t p = 0; p < POINTS; p++) {
        const int64_t y = oy - s->pad_top + p / WINDOW, x = ox - s->pad_left + p % WINDOW;
        const bool inside = y >= 0 && y < a->h && x >= 0 && x < a->w;
        pixel[p] = inside ? oq_elem_row(&a->x, image + y * a->w + x) : job->zeros;
    }
    for (int64_t c = 0; c < s->c_in; c += VF) {
        vf d[POINTS];
        float *const out = v + at * v_row(s) + c;
        OQ_UNROLL
        for (int x = 0; x < WINDOW; x++) {
            OQ_UNROLL
            for (int y = 0; y < WINDOW; y++) d[y * WINDOW + x] = v_get(pixel[y * WINDOW + x], bf16, c, VF);
            input_1d(d + x, WINDOW);
        }
        OQ_UNROLL
        for (int y = 0; y < WINDOW; y++) {
            input_1d(d + y * WINDOW, 1);
            OQ_UNROLL
            for (int x = 0; x < WINDOW; x++) v_store(out + (y * WINDOW + x) * pitch, d[y * WINDOW + x]);
        }
    }
}

/* At M A of one tile and vector of columns, with the bias, to the pixels that the image has. */
static void transform_output(const conv_job *job, const float *m, int64_t i, int64_t col, int64_t n)
{
    const oq_conv2d_args *const a = job->a;
    int64_t oy, ox;
    const int64_t image = tile_place(job, i, &oy, &ox) * job->oh * job->ow;
    const vf bias = v_param(a->bias, col, n, 0.0f);
    const bool bf16 = oq_elem_is_bf16(&a->y);
    vf x[POINTS];
    OQ_UNROLL
    for (int c = 0; c < WINDOW; c++) {
        OQ_UNROLL
        for (int r = 0; r < WINDOW; r++) x[r * WINDOW + c] = v_load(m + (r * WINDOW + c) * M_PITCH);
        output_1d(x + c, WINDOW);
    }
    OQ_UNROLL
    for (int r = 0; r < OUT; r++) output_1d(x + r * WINDOW, 1);
    const int64_t rows = oq_min_i64(OUT, job->oh - oy), cols = oq_min_i64(OUT, job->ow - ox);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            v_put(oq_elem_row(&a->y, image + (oy + r) * job->ow + ox + c), bf16, col, n,
                  v_add(x[r * WINDOW + c], bias));
}

/* The inner pixels of tile `i`, which its neighbours do not bring, into L2: pixels are too short a run for the hardware
 * to see them coming. */
static void prefetch_input(const conv_job *job, int64_t i)
{
    const oq_conv2d_args *const a = job->a;
    int64_t oy, ox;
    const int64_t image = tile_place(job, i, &oy, &ox) * a->h * a->w;
    for (int64_t y = oy + 1; y < oq_min_i64(oy + 1 + OUT, a->h); y++)
        for (int64_t x = ox + 1; x < oq_min_i64(ox + 1 + OUT, a->w); x++) {
            const char *const at = oq_elem_row(&a->x, image + y * a->w + x);
            for (int64_t c = 0; c < job->s->c_in * (int64_t)a->x.dtype->bytes; c += 64)
                __builtin_prefetch(at + c, 0, 2);
        }
}

/* ---- tasks --------------------------------------------------------------------------------------------- */

static void run_task(const conv_job *job, int64_t task, float *v)
{
    const oq_conv2d_spec *const s = job->s;
    float *const m = v + POINTS * v_pitch(s);
    const int64_t first = task / job->shares * TILES, n = oq_min_i64(TILES, job->n_tiles - first);
    const int64_t panel = task % job->shares * job->panels;
    for (int64_t i = 0; i < n; i++) transform_input(job, v, first + i, i);
    for (int64_t p = panel; p < oq_min_i64(panel + job->panels, n_panels(s)); p++) {
        const int64_t nv = panel_vectors(s, p), col = p * TILE_COLS;
        const float *const u = (const float *)job->a->packed + p * TILE_COLS * POINTS * s->c_in;
        tile t = {.lda = v_row(s), .at = tile_one_run, .runs = 1, .k = s->c_in, .ldc = TILE_COLS};
        for (int64_t point = 0; point < POINTS; point++) {
            if (p == panel && task + job->shares < job->n_tasks)
                for (int64_t i = point * TILES / POINTS; i < (point + 1) * TILES / POINTS; i++)
                    if (first + TILES + i < job->n_tiles) prefetch_input(job, first + TILES + i);
            t.a = v + point * v_pitch(s);
            t.b = u + point * s->c_in * nv * VF;
            t.c = m + point * M_PITCH;
            tile_run(t, n, nv);
        }
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < nv * VF && col + c < s->c_out; c += VF)
                transform_output(job, m + i * TILE_COLS + c, first + i, col + c, s->c_out - col - c);
    }
}

static void run_lane(void *user, int64_t lane, int worker)
{
    (void)worker;
    const conv_job *const job = user;
    const int64_t end = (lane + 1) * job->n_tasks / job->n_lanes;
    float *const v = (float *)job->a->scratch + lane * lane_floats(job->s);
    for (int64_t i = lane * job->n_tasks / job->n_lanes; i < end; i++) run_task(job, i, v);
}

static void run(oq_device *device, const oq_conv2d_args *a)
{
    const oq_conv2d_spec *const s = a->spec;
    conv_job job = {.a = a, .s = s, .oh = oq_conv2d_out_h(s, a->h), .ow = oq_conv2d_out_w(s, a->w)};
    if (job.oh <= 0 || job.ow <= 0) return;
    float *const zeros = (float *)a->scratch + LANES * lane_floats(s);
    memset(zeros, 0, (size_t)s->c_in * sizeof *zeros);
    job.zeros = zeros;
    job.across = oq_ceil_div(job.ow, OUT);
    job.per_image = oq_ceil_div(job.oh, OUT) * job.across;
    job.n_tiles = a->batch * job.per_image;
    const int64_t blocks = oq_ceil_div(job.n_tiles, TILES), shares = oq_ceil_div(2 * LANES, blocks);
    job.panels = oq_max_i64(1, n_panels(s) / shares);
    job.shares = oq_ceil_div(n_panels(s), job.panels);
    job.n_tasks = blocks * job.shares;
    job.n_lanes = oq_min_i64(LANES, job.n_tasks);
    oq_pool_run(device->pool, job.n_lanes, run_lane, &job);
}
