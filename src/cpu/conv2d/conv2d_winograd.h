/* conv2d_winograd.h -- 3 x 3 convolutions by products in f32 and Winograd's F(4x4, 3x3): 36 products of channels for 16 output pixels,
 * where the direct sum takes 144. The file that includes this has included a tile with TILE_STEP 1.
 *
 * Of videos, windows of kt frames: each frame is transformed once and stays for the kt outputs that see it, products run
 * over channels and frames of the window in one sum.
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
#define FEW_TILES 12 /* where V of all frames of a window would not */
#define V_BYTES (3 << 19)
#define LEAST_CHANNELS 32
#define MOST_TAPS 4 /* frames of a window */

static bool accepts(const oq_conv2d_spec *s)
{
    /* the weights rest as f32, four times as many; where pairs of bf16 are multiplied, those stand before this in the list */
    const int64_t most = s->kt ? OQ_CONV2D_WINOGRAD_MOST_VIDEO : INT64_MAX;
    return (s->compute == &oq_dtype_f32 || s->compute == &oq_dtype_bf16) && s->c_in * s->c_out <= most &&
           (s->kt == 0 || (s->kt <= MOST_TAPS && s->stride_t == 1 && s->pad_front < s->kt)) &&
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

/* Tiles of a task. */
static int64_t n_tiles(const oq_conv2d_spec *s)
{
    return oq_conv2d_taps_t(s) * POINTS * TILES * v_row(s) * 4 > V_BYTES && s->kt > 1 ? FEW_TILES : TILES;
}

static int64_t v_pitch(const oq_conv2d_spec *s)
{
    return n_tiles(s) * v_row(s) + 16;
}

/* V of one frame. */
static int64_t v_floats(const oq_conv2d_spec *s)
{
    return POINTS * v_pitch(s);
}

enum { M_PITCH = TILES * TILE_COLS + 16 };

static int64_t lane_floats(const oq_conv2d_spec *s)
{
    return oq_conv2d_taps_t(s) * v_floats(s) + POINTS * M_PITCH;
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
    return (size_t)(POINTS * oq_conv2d_taps_t(s) * s->c_in * (last * TILE_COLS + panel_vectors(s, last) * VF)) *
           sizeof(float);
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

/* One output channel's column of a panel. */
static void pack_column(float *out, const float *weight, const oq_conv2d_spec *s, int64_t width)
{
    const int64_t taps = oq_conv2d_taps_t(s);
    double u[POINTS];
    for (int64_t c = 0; c < s->c_in; c++)
        for (int64_t t = 0; t < taps; t++) {
            transform_filter(u, weight + (c * taps + t) * 9);
            for (int64_t i = 0; i < POINTS; i++) out[((i * taps + t) * s->c_in + c) * width] = (float)u[i];
        }
}

/* [panel][point][kt][c_in][columns] */
static void pack(void *dst, const float *weight, const oq_conv2d_spec *s)
{
    const int64_t of_one = oq_conv2d_taps_t(s) * s->c_in;
    float *out = dst;
    memset(dst, 0, packed_bytes(s));
    for (int64_t p = 0; p < n_panels(s); p++) {
        const int64_t width = panel_vectors(s, p) * VF, first = p * TILE_COLS;
        for (int64_t o = first; o < oq_min_i64(first + width, s->c_out); o++)
            pack_column(out + o - first, weight + o * of_one * 9, s, width);
        out += POINTS * of_one * width;
    }
}

/* ---- transforms ---------------------------------------------------------------------------------------- */

typedef struct conv_job {
    const oq_conv2d_args *a;
    const oq_conv2d_spec *s;
    int64_t oh, ow, across, per_image; /* output; tiles in a row and in an image */
    int64_t taps, frames, out_frames;  /* images: one of each */
    int64_t n_tiles, tiles;            /* of all entries' images; of a task */
    int64_t shares, panels;            /* tasks that share the panels of one block, and panels of each */
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

/* Where tile `i` of all begins in the output; its batch entry. */
OQ_INLINE int64_t tile_place(const conv_job *job, int64_t i, int64_t *y, int64_t *x)
{
    const int64_t in_image = i % job->per_image;
    *y = in_image / job->across * OUT;
    *x = in_image % job->across * OUT;
    return i / job->per_image;
}

/* V of one tile over input frame `frame` (below 0: of those before x): row `at` of each point's matrix. */
static void transform_input(const conv_job *job, float *v, int64_t i, int64_t at, int64_t frame)
{
    const oq_conv2d_args *const a = job->a;
    const oq_conv2d_spec *const s = job->s;
    const oq_tensor *const in = frame < 0 ? &a->before : &a->x;
    const bool bf16 = oq_elem_is_bf16(in);
    const void *pixel[POINTS];
    int64_t oy, ox;
    const int64_t entry = tile_place(job, i, &oy, &ox), pitch = v_pitch(s);
    const int64_t image =
        (frame < 0 ? (entry + 1) * a->n_before + frame : entry * job->frames + frame) * a->h * a->w;
    for (int64_t p = 0; p < POINTS; p++) {
        const int64_t y = oy - s->pad_top + p / WINDOW, x = ox - s->pad_left + p % WINDOW;
        const bool inside = y >= 0 && y < a->h && x >= 0 && x < a->w;
        pixel[p] = inside ? oq_elem_row(in, image + y * a->w + x) : job->zeros;
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

/* At M A of one tile and vector of columns, with the bias, to the pixels that the output frame has. */
static void transform_output(const conv_job *job, const float *m, int64_t i, int64_t col, int64_t n, int64_t frame)
{
    const oq_conv2d_args *const a = job->a;
    int64_t oy, ox;
    const int64_t image = (tile_place(job, i, &oy, &ox) * job->out_frames + frame) * job->oh * job->ow;
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
static void prefetch_input(const conv_job *job, int64_t i, int64_t frame)
{
    const oq_conv2d_args *const a = job->a;
    int64_t oy, ox;
    const int64_t image = (tile_place(job, i, &oy, &ox) * job->frames + frame) * a->h * a->w;
    for (int64_t y = oy + 1; y < oq_min_i64(oy + 1 + OUT, a->h); y++)
        for (int64_t x = ox + 1; x < oq_min_i64(ox + 1 + OUT, a->w); x++) {
            const char *const at = oq_elem_row(&a->x, image + y * a->w + x);
            for (int64_t c = 0; c < job->s->c_in * (int64_t)a->x.dtype->bytes; c += 64)
                __builtin_prefetch(at + c, 0, 2);
        }
}

/* ---- tasks --------------------------------------------------------------------------------------------- */

typedef struct block { /* of one task */
    int64_t first, n;         /* tiles */
    int64_t panel, end_panel;
    int64_t next_tile, next_frame; /* what is transformed after this, to be fetched meanwhile; next_frame < 0: nothing */
    float *v, *m;
} block;

/* Products and outputs of one frame; the window's frames from `first_tap` on are in their places of V. */
static void multiply(const conv_job *job, const block *b, int64_t frame, int64_t first_tap)
{
    const oq_conv2d_spec *const s = job->s;
    const int64_t depth = job->taps * s->c_in;
    int64_t at[MOST_TAPS];
    for (int64_t t = first_tap; t < job->taps; t++)
        at[t - first_tap] = (frame + t) % job->taps * v_floats(s);
    for (int64_t p = b->panel; p < b->end_panel; p++) {
        const int64_t nv = panel_vectors(s, p), col = p * TILE_COLS;
        const float *const u = (const float *)job->a->packed + p * TILE_COLS * POINTS * depth;
        tile t = {.lda = v_row(s), .at = at, .runs = job->taps - first_tap, .k = s->c_in, .ldc = TILE_COLS};
        for (int64_t point = 0; point < POINTS; point++) {
            if (p == b->panel && b->next_frame >= 0)
                for (int64_t i = point * job->tiles / POINTS; i < (point + 1) * job->tiles / POINTS; i++)
                    if (b->next_tile + i < job->n_tiles) prefetch_input(job, b->next_tile + i, b->next_frame);
            t.a = b->v + point * v_pitch(s);
            t.b = u + (point * depth + first_tap * s->c_in) * nv * VF;
            t.c = b->m + point * M_PITCH;
            tile_run(t, b->n, nv);
        }
        for (int64_t i = 0; i < b->n; i++)
            for (int64_t c = 0; c < nv * VF && col + c < s->c_out; c += VF)
                transform_output(job, b->m + i * TILE_COLS + c, b->first + i, col + c, s->c_out - col - c, frame);
    }
}

/* Frame after frame: what is new in the window is transformed, in the place of the frame that left it. */
static void run_task(const conv_job *job, int64_t task, float *v)
{
    const oq_conv2d_spec *const s = job->s;
    const int64_t first = task / job->shares * job->tiles, panel = task % job->shares * job->panels;
    const int64_t front = s->kt ? s->pad_front : 0;
    block b = {.first = first, .n = oq_min_i64(job->tiles, job->n_tiles - first), .panel = panel, .v = v};
    b.end_panel = oq_min_i64(panel + job->panels, n_panels(s));
    b.m = v + job->taps * v_floats(s);
    for (int64_t frame = 0; frame < job->out_frames; frame++) {
        const int64_t oldest = oq_max_i64(frame - front, -job->a->n_before);
        const int64_t end = frame - front + job->taps, last = frame + 1 == job->out_frames;
        for (int64_t f = frame ? end - 1 : oldest; f < end; f++)
            for (int64_t i = 0; i < b.n; i++)
                transform_input(job, v + (f + front) % job->taps * v_floats(s), first + i, i, f);
        b.next_tile = last ? first + job->tiles : first;
        b.next_frame = !last ? end : task + job->shares < job->n_tasks ? 0 : -1;
        multiply(job, &b, frame, oldest - (frame - front));
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
    job.tiles = n_tiles(s);
    job.taps = oq_conv2d_taps_t(s);
    job.frames = s->kt ? a->frames : 1;
    job.out_frames = s->kt ? oq_conv2d_out_frames(s, a->frames) : 1;
    if (job.out_frames <= 0) return;
    const int64_t blocks = oq_ceil_div(job.n_tiles, job.tiles), shares = oq_ceil_div(2 * LANES, blocks);
    job.panels = oq_max_i64(1, n_panels(s) / shares);
    job.shares = oq_ceil_div(n_panels(s), job.panels);
    job.n_tasks = blocks * job.shares;
    job.n_lanes = oq_min_i64(LANES, job.n_tasks);
    oq_pool_run(device->pool, job.n_lanes, run_lane, &job);
}
