/* conv2d_direct.h -- the body of the direct convolutions: a product of pixels and weights without im2col, over images
 * and videos, in f32 (TILE_STEP 1) or bf16 pairs (TILE_STEP 2). The file that includes this has included a tile.
 *
 * A task takes a block of output pixels of one frame. It copies the block's window of the input, with its zero borders,
 * into a band of its own: there a row of a window, kw * c_in values, is one contiguous run, and windows side by side
 * are a constant stride apart, so the tile reads A in place. All panels of weights then go over the band, which stays
 * in L2. Weights are packed in panels [phase][kt][kh][kw][c_in][TILE_COLS], zeros beyond c_out.
 *
 * An image that is enlarged by two (nearest) before a 3 x 3 window has only 2 x 2 different pixels in each window, and
 * which weights fall on one depends on the parity of the output's row and column: four phases, each a 2 x 2 convolution
 * over the image as it is, with weights that were added up while packing (in f32, then rounded to bf16 where that is
 * their type). 4/9 of the products, and the large image is never written. */
#include "base/size.h"
#include "cpu/conv2d/conv2d.h"
#include "cpu/elementwise/elem.h"

#include <string.h>

#define LANES      64         /* bands, whatever the number of threads; where there are more of those, so many work */
#define BAND_BYTES (384 << 10)
#define BLOCK_COLS 96         /* output pixels of a block's row at most: a multiple of every tile height */
#define BLOCK_ROWS 16         /* rows of a block at most */
/* With fewer blocks for each of many threads, panels are shared out too, and bands are filled again. Two let a thread that
 * comes late leave half of its share to others; one thread shares with nobody. Chosen so, not by a measurement. */
#define TASKS_EACH 2

typedef struct geometry { /* of one convolution over images of h x w */
    int64_t phases, taps_t, kh, kw; /* of each phase */
    int64_t up;                     /* output pixels for each of the block's, in both directions */
    int64_t pixel, run;             /* dwords of a pixel and of a window's row */
    int64_t n_panels;
    int64_t grid_h, grid_w; /* of the output, of one phase */
    int64_t rows, cols;     /* of a block */
    int64_t band_h, band_w; /* pixels of one frame in the band */
} geometry;

static bool is_enlarged(const oq_conv2d_spec *s)
{
    return oq_conv2d_enlarge(s) != 1;
}

static bool accepts_shape(const oq_conv2d_spec *s)
{
    const bool padded = s->pad_top == 1 && s->pad_left == 1 && s->pad_bottom == 1 && s->pad_right == 1;
    if (is_enlarged(s) && !(s->upsample == 2 && s->kh == 3 && s->kw == 3 && s->stride == 1 && padded))
        return false;
    return s->c_in > 0 && s->c_out > 0 && s->stride >= 1 && s->kh >= 1 && s->kw >= 1 &&
           oq_conv2d_taps_t(s) * s->kh <= OQ_CONV2D_MAX_RUNS;
}

/* Pixels of input under n output pixels. */
static int64_t span(const geometry *g, const oq_conv2d_spec *s, int64_t n, int64_t kernel)
{
    return (n - 1) * s->stride + kernel + (g->phases > 1);
}

static geometry geometry_of(const oq_conv2d_spec *s, int64_t h, int64_t w)
{
    geometry g = {.phases = 1, .taps_t = oq_conv2d_taps_t(s), .kh = s->kh, .kw = s->kw, .up = 1};
    if (is_enlarged(s)) g.phases = 4, g.kh = g.kw = g.up = 2;
    g.pixel = oq_ceil_div(s->c_in, TILE_STEP);
    g.run = g.kw * g.pixel;
    g.n_panels = oq_ceil_div(s->c_out, TILE_COLS);
    g.grid_h = oq_conv2d_out_h(s, h) / g.up;
    g.grid_w = oq_conv2d_out_w(s, w) / g.up;
    if (g.grid_h <= 0 || g.grid_w <= 0) return g;
    const int64_t strips = oq_ceil_div(g.grid_w, BLOCK_COLS);
    g.cols = oq_ceil_div(g.grid_w, strips);
    g.rows = oq_min_i64(BLOCK_ROWS, g.grid_h);
    do {
        g.band_h = span(&g, s, g.rows, g.kh);
        g.band_w = span(&g, s, g.cols, g.kw);
    } while (g.taps_t * g.band_h * g.band_w * g.pixel * 4 > BAND_BYTES && g.rows > 1 && g.rows--);
    g.rows = oq_ceil_div(g.grid_h, oq_ceil_div(g.grid_h, g.rows)); /* blocks of one height */
    g.band_h = span(&g, s, g.rows, g.kh);
    return g;
}

static int64_t band_dwords(const geometry *g)
{
    return oq_ceil_div(g->taps_t * g->band_h * g->band_w * g->pixel, 16) * 16;
}

static size_t scratch_bytes(const oq_conv2d_spec *s, int64_t batch, int64_t h, int64_t w)
{
    (void)batch;
    const geometry g = geometry_of(s, h, w);
    return (size_t)(LANES * band_dwords(&g)) * 4;
}

/* ---- weights ------------------------------------------------------------------------------------------- */

/* Vectors of panel p: the last one is half as wide where that is enough. */
static int64_t panel_vectors(const oq_conv2d_spec *s, int64_t p)
{
    return s->c_out - p * TILE_COLS <= VF ? 1 : 2;
}

static int64_t phase_dwords(const oq_conv2d_spec *s, const geometry *g)
{
    const int64_t last = g->n_panels - 1;
    return g->taps_t * g->kh * g->run * (last * TILE_COLS + panel_vectors(s, last) * VF);
}

static size_t packed_bytes(const oq_conv2d_spec *s)
{
    const geometry g = geometry_of(s, 0, 0);
    return (size_t)(g.phases * phase_dwords(s, &g)) * 4;
}

/* Weight of output o, input c at row ky, column kx of a phase's window: the sum of those that fall on one pixel. */
static float phase_weight(const float *tap, const oq_conv2d_spec *s, const geometry *g, int64_t phase,
                          int64_t ky, int64_t kx)
{
    if (g->phases == 1) return tap[ky * s->kw + kx];
    /* An even output row sees w0 | w1 + w2, an odd one w0 + w1 | w2; columns likewise. */
    const int64_t y0 = ky ? 1 + phase / 2 : 0, y1 = ky ? 3 : 1 + phase / 2;
    const int64_t x0 = kx ? 1 + phase % 2 : 0, x1 = kx ? 3 : 1 + phase % 2;
    double sum = 0;
    for (int64_t y = y0; y < y1; y++)
        for (int64_t x = x0; x < x1; x++) sum += (double)tap[y * 3 + x];
    return (float)sum;
}

static void put_weight(char *dwords, int64_t step, float w)
{
#if TILE_STEP == 2
    const uint16_t half = oq_bf16_from_f32(w);
    memcpy(dwords + 2 * step, &half, 2);
#else
    (void)step;
    memcpy(dwords, &w, 4);
#endif
}

/* One output channel's column of a panel. */
static void pack_column(char *out, const float *weight, const oq_conv2d_spec *s, const geometry *g,
                        int64_t phase, int64_t width, int64_t o)
{
    const int64_t taps = (int64_t)s->kh * s->kw;
    for (int64_t t = 0; t < g->taps_t; t++)
        for (int64_t ky = 0; ky < g->kh; ky++)
            for (int64_t kx = 0; kx < g->kw; kx++)
                for (int64_t c = 0; c < s->c_in; c++) {
                    const float *const tap = weight + ((o * s->c_in + c) * g->taps_t + t) * taps;
                    const int64_t k = (t * g->kh + ky) * g->run + kx * g->pixel + c / TILE_STEP;
                    put_weight(out + k * width * 4, c % TILE_STEP, phase_weight(tap, s, g, phase, ky, kx));
                }
}

static void pack(void *dst, const float *weight, const oq_conv2d_spec *s)
{
    const geometry g = geometry_of(s, 0, 0);
    char *out = dst;
    memset(out, 0, packed_bytes(s));
    for (int64_t phase = 0; phase < g.phases; phase++)
        for (int64_t p = 0; p < g.n_panels; p++) {
            const int64_t width = panel_vectors(s, p) * VF, first = p * TILE_COLS;
            for (int64_t o = first; o < oq_min_i64(first + width, s->c_out); o++)
                pack_column(out + (o - first) * 4, weight, s, &g, phase, width, o);
            out += g.taps_t * g.kh * g.run * width * 4;
        }
}

/* ---- the input under a block --------------------------------------------------------------------------- */

typedef struct conv_job {
    const oq_conv2d_args *a;
    const oq_conv2d_spec *s;
    geometry g;
    int64_t frames, out_frames;
    int64_t down, across, shares, panels; /* blocks of a frame; tasks that share one block, and panels of each */
    int64_t n_tasks, n_lanes, n_workers;
} conv_job;

typedef struct block { /* of one task */
    int64_t entry, frame;        /* batch entry, output frame */
    int64_t y, x, rows, cols;    /* of the grid */
    int64_t first_tap;           /* those before it see frames of zeros */
    int64_t panel, end_panel;
    float *band;
} block;

/* n pixels of x from row `row`, converted, without a gap. */
static void copy_pixels(float *out, const oq_tensor *x, int64_t row, int64_t n, const conv_job *job)
{
    const int64_t c_in = job->s->c_in, pixel = job->g.pixel;
    const bool bf16 = oq_elem_is_bf16(x);
    if (x->ld == c_in && (bf16 ? TILE_STEP == 2 && c_in % 2 == 0 : TILE_STEP == 1)) {
        memcpy(out, oq_elem_row(x, row), (size_t)(n * pixel) * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++, out += pixel) {
        const void *const in = oq_elem_row(x, row + i);
#if TILE_STEP == 2
        memset(out + pixel - 1, 0, 4);
        memcpy(out, in, (size_t)c_in * 2);
#else
        for (int64_t c = 0; c < c_in; c += VF)
            v_put(out, false, c, c_in - c, v_get(in, bf16, c, c_in - c));
#endif
    }
}

/* Row iy of the image whose first row in `in` is `image`, from column ix on: band_w pixels, zeros outside. */
static void fill_row(float *out, const conv_job *job, const oq_tensor *in, int64_t image, int64_t iy,
                     int64_t ix, int64_t n)
{
    const oq_conv2d_args *const a = job->a;
    const int64_t pixel = job->g.pixel;
    if (iy < 0 || iy >= a->h) {
        memset(out, 0, (size_t)(n * pixel) * 4);
        return;
    }
    const int64_t before = oq_min_i64(n, oq_max_i64(0, -ix)), end = oq_max_i64(before, oq_min_i64(n, a->w - ix));
    memset(out, 0, (size_t)(before * pixel) * 4);
    copy_pixels(out + before * pixel, in, image + iy * a->w + ix + before, end - before, job);
    memset(out + end * pixel, 0, (size_t)((n - end) * pixel) * 4);
}

static void fill_band(const conv_job *job, block *b)
{
    const oq_conv2d_args *const a = job->a;
    const oq_conv2d_spec *const s = job->s;
    const geometry *const g = &job->g;
    const int64_t height = span(g, s, b->rows, g->kh), width = span(g, s, b->cols, g->kw);
    const int64_t at = s->kt ? b->frame * s->stride_t - s->pad_front : 0;
    b->first_tap = oq_max_i64(0, -a->n_before - at);
    for (int64_t t = b->first_tap; t < g->taps_t; t++) {
        const bool old = at + t < 0;
        const oq_tensor *const in = old ? &a->before : &a->x;
        const int64_t frame = old ? (b->entry + 1) * a->n_before + at + t : b->entry * job->frames + at + t;
        for (int64_t i = 0; i < height; i++)
            fill_row(b->band + (t * g->band_h + i) * g->band_w * g->pixel, job, in, frame * a->h * a->w,
                     b->y * s->stride - s->pad_top + i, b->x * s->stride - s->pad_left, width);
    }
}

/* ---- products ------------------------------------------------------------------------------------------ */

/* As v_put; where there is an instruction that rounds to bf16 (and takes subnormal sums as zero), by that one. */
OQ_INLINE void put_sums(void *row, bool bf16, int64_t at, int64_t n, vf x)
{
#if TILE_STEP == 2
    if (bf16) {
        v_store_bf16_short((uint16_t *)row + at, n, x);
        return;
    }
#endif
    v_put(row, bf16, at, n, x);
}

/* Tile -> y: bias, rounding, and no column beyond c_out. Output rows are `step` apart. */
static void store_pixels(const conv_job *job, const float *c, int64_t row, int64_t step, int64_t n_rows,
                         int64_t col, int64_t nv)
{
    const oq_tensor *const y = &job->a->y;
    const bool bf16 = oq_elem_is_bf16(y);
#if TILE_STEP == 2 && !defined(__aarch64__)
    if (bf16 && nv == 2 && job->s->c_out - col >= TILE_COLS) { /* lines of y at once */
        const vf low = v_param(job->a->bias ? job->a->bias + col : NULL, 0, VF, 0.0f);
        const vf high = v_param(job->a->bias ? job->a->bias + col : NULL, VF, VF, 0.0f);
        for (int64_t i = 0; i < n_rows; i++, c += TILE_COLS)
            _mm512_storeu_si512((uint16_t *)oq_elem_row(y, row + i * step) + col,
                                (__m512i)_mm512_cvtne2ps_pbh(v_add(v_load(c + VF), high), v_add(v_load(c), low)));
        return;
    }
#endif
    for (int64_t v = 0; v < nv * VF; v += VF) {
        const int64_t n = job->s->c_out - col - v;
        if (n <= 0) break;
        const vf bias = v_param(job->a->bias ? job->a->bias + col : NULL, v, n, 0.0f);
        for (int64_t i = 0; i < n_rows; i++)
            put_sums(oq_elem_row(y, row + i * step), bf16, col + v, n, v_add(v_load(c + i * TILE_COLS + v), bias));
    }
}

/* Row i of the input under block `b` (its present frame), into L2: copying it then does not wait for memory. */
static void prefetch_row(const conv_job *job, const block *b, int64_t i)
{
    const oq_conv2d_args *const a = job->a;
    const oq_conv2d_spec *const s = job->s;
    const int64_t frame = b->entry * job->frames + (s->kt ? b->frame * s->stride_t + s->kt - 1 - s->pad_front : 0);
    const int64_t y = b->y * s->stride - s->pad_top + i, x = oq_max_i64(0, b->x * s->stride - s->pad_left);
    if (y < 0 || y >= a->h || frame < 0 || frame >= a->batch * job->frames) return;
    const int64_t n = oq_min_i64(span(&job->g, s, b->cols, job->g.kw), a->w - x);
    const char *const row = oq_elem_row(&a->x, (frame * a->h + y) * a->w + x);
    for (int64_t at = 0; at < n * a->x.ld * (int64_t)a->x.dtype->bytes; at += 64) __builtin_prefetch(row + at, 0, 2);
}

/* One panel of one phase over all pixels of the block; `next`: the block to fetch meanwhile, or NULL. */
static void multiply(const conv_job *job, const block *b, const block *next, int64_t phase, int64_t panel,
                     const float *weight)
{
    const oq_conv2d_spec *const s = job->s;
    const geometry *const g = &job->g;
    const int64_t nv = panel_vectors(s, panel), runs = (g->taps_t - b->first_tap) * g->kh;
    const int64_t row_pitch = g->band_w * g->pixel, py = phase / 2, px = phase % 2;
    const int64_t ow = g->grid_w * g->up, oh = g->grid_h * g->up;
    const int64_t image = (b->entry * job->out_frames + b->frame) * oh * ow;
    int64_t at[OQ_CONV2D_MAX_RUNS];
    _Alignas(64) float c[TILE_ROWS * TILE_COLS];
    for (int64_t i = 0; i < runs; i++)
        at[i] = ((b->first_tap + i / g->kh) * g->band_h + i % g->kh) * row_pitch;
    tile t = {.lda = s->stride * g->pixel, .at = at, .runs = runs, .k = g->run, .c = c, .ldc = TILE_COLS};
    t.b = weight + b->first_tap * g->kh * g->run * nv * VF;
    const int64_t tiles = oq_ceil_div(b->cols, TILE_ROWS);
    const int64_t coming = next ? span(g, s, next->rows, g->kh) : 0;
    for (int64_t y = 0; y < b->rows; y++) {
        for (int64_t i = y * coming / b->rows; i < (y + 1) * coming / b->rows; i++) prefetch_row(job, next, i);
        for (int64_t x = 0, n; x < b->cols; x += n) {
            n = oq_min_i64(oq_ceil_div(b->cols, tiles), b->cols - x);
            t.a = b->band + (y * s->stride + py) * row_pitch + (x * s->stride + px) * g->pixel;
            tile_run(t, n, nv);
            const int64_t row = image + ((b->y + y) * g->up + py) * ow + (b->x + x) * g->up + px;
            store_pixels(job, c, row, g->up, n, panel * TILE_COLS, nv);
        }
    }
}

static block block_of(const conv_job *job, int64_t i)
{
    const geometry *const g = &job->g;
    const int64_t share = i % job->shares, across = i / job->shares % job->across;
    const int64_t down = i / job->shares / job->across % job->down;
    const int64_t image = i / job->shares / job->across / job->down;
    block b = {.entry = image / job->out_frames, .frame = image % job->out_frames};
    b.y = down * g->rows, b.x = across * g->cols;
    b.rows = oq_min_i64(g->rows, g->grid_h - b.y);
    b.cols = oq_min_i64(g->cols, g->grid_w - b.x);
    b.panel = share * job->panels;
    b.end_panel = oq_min_i64(b.panel + job->panels, g->n_panels);
    return b;
}

static void run_task(const conv_job *job, int64_t i, float *band)
{
    const geometry *const g = &job->g;
    block b = block_of(job, i), next;
    const bool more = i + 1 < job->n_tasks;
    b.band = band;
    if (more) next = block_of(job, i + 1);
    fill_band(job, &b);
    const int64_t depth = g->taps_t * g->kh * g->run, phase_size = phase_dwords(job->s, g);
    for (int64_t panel = b.panel; panel < b.end_panel; panel++)
        for (int64_t phase = 0; phase < g->phases; phase++)
            multiply(job, &b, more && panel == b.panel && phase == 0 ? &next : NULL, phase, panel,
                     (const float *)job->a->packed + phase * phase_size + panel * depth * TILE_COLS);
}

/* Tasks [lane * n / lanes, ...): neighbours, so that their weights and borders are still in the cache. */
static void run_lane(void *user, int64_t lane, int worker)
{
    const conv_job *const job = user;
    const int64_t own = job->n_workers <= LANES ? worker : lane; /* a worker's own band is still in its cache */
    float *const band = (float *)job->a->scratch + own * band_dwords(&job->g);
    tile_begin();
    const int64_t end = (lane + 1) * job->n_tasks / job->n_lanes;
    for (int64_t i = lane * job->n_tasks / job->n_lanes; i < end; i++) run_task(job, i, band);
    tile_end();
}

static int64_t panels_of_task(const conv_job *job, int64_t blocks)
{
    if (job->n_workers == 1) return job->g.n_panels;
    return oq_max_i64(1, job->g.n_panels / oq_max_i64(1, TASKS_EACH * job->n_workers / oq_max_i64(1, blocks)));
}

static void run(oq_device *device, const oq_conv2d_args *a)
{
    const oq_conv2d_spec *const s = a->spec;
    conv_job job = {.a = a, .s = s, .g = geometry_of(s, a->h, a->w)};
    if (job.g.grid_h <= 0 || job.g.grid_w <= 0) return;
    job.frames = s->kt ? a->frames : 1;
    job.out_frames = s->kt ? oq_conv2d_out_frames(s, a->frames) : 1;
    job.down = oq_ceil_div(job.g.grid_h, job.g.rows);
    job.across = oq_ceil_div(job.g.grid_w, job.g.cols);
    const int64_t blocks = a->batch * job.out_frames * job.down * job.across;
    job.n_workers = oq_pool_threads(device->pool);
    job.panels = panels_of_task(&job, blocks);
    job.shares = oq_ceil_div(job.g.n_panels, job.panels);
    job.n_tasks = blocks * job.shares;
    job.n_lanes = oq_min_i64(LANES, job.n_tasks);
    oq_pool_run(device->pool, job.n_lanes, run_lane, &job);
}
