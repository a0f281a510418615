/* linear_panel.c -- the frame of the packed-panel product: layout, packing, splitting into tasks. Plain C;
 * the loops over numbers belong to the engines. One task sums all of k for an element of y in one order whatever
 * the split is, so the number of threads changes no bit. */
#include "cpu/linear/linear_panel.h"

#include <math.h>
#include <string.h>

#include "base/size.h"

enum {
    ALIGN = 64,
    PROLOGUE_ROWS = 8,
    A_CACHED = 1 << 20 /* bytes of A that stay in L2 from panel to panel */
};

static size_t place(size_t *at, size_t bytes)
{
    const size_t here = *at;
    *at = oq_align_up(here + bytes, ALIGN);
    return here;
}

static bool is_canonical(const oq_panel_engine *engine)
{
    return engine->pack_step == 0;
}

void oq_panel_layout_init(const oq_panel_engine *engine, const oq_linear_spec *spec, oq_panel_layout *out)
{
    const oq_format *const f = spec->scheme.weight;
    const bool blocks = f->block_k != 0, scaled = f->planes & 1u << OQ_PLANE_SCALE;
    memset(out, 0, sizeof *out);
    out->n_panels = oq_ceil_div(spec->n, engine->nr);
    const int widest = engine->step > engine->pack_step ? engine->step : engine->pack_step;
    out->depth = (int64_t)oq_align_up((size_t)spec->k, OQ_PANEL_UNROLL * (size_t)widest) / engine->step;
    out->chunk = OQ_PANEL_CHUNK;
    if (engine->grouped) {
        out->group = engine->group_of(spec);
        const int64_t dwords = oq_panel_group_dwords(&out->group);
        out->depth = spec->k / out->group.columns * dwords;
        out->chunk = out->group.chunk / out->group.columns * dwords;
    }
    if (is_canonical(engine)) {
        out->total = oq_linear_wany_aany_ref.packed_bytes(spec);
        return;
    }
    out->element = f->element->bytes;
    out->panel_bytes = (size_t)(out->depth * engine->step * engine->nr) * out->element;
    const size_t columns = (size_t)(out->n_panels * engine->nr);
    out->block_cols = blocks ? oq_ceil_div(spec->k, f->block_k) : 0;
    if (engine->scaled && spec->scheme.act_scale == OQ_ACT_DYNAMIC_GROUP)
        out->row_scales = (size_t)out->block_cols * sizeof(float);
    const size_t n_blocks = blocks ? (size_t)(oq_ceil_div(spec->n, f->block_n) * out->block_cols) : 0;
    size_t at = 0;
    out->input_scale = place(&at, spec->scheme.act_scale == OQ_ACT_STATIC_TENSOR ? sizeof(float) : 0);
    out->col_scale = place(&at, scaled && !blocks ? columns * sizeof(float) : 0);
    out->correction = place(&at, engine->offset ? columns * sizeof(int32_t) : 0);
    out->block_scale = place(&at, n_blocks * sizeof(float));
    out->panels = place(&at, (size_t)out->n_panels * out->panel_bytes);
    out->total = at;
}

size_t oq_panel_packed_bytes(const oq_panel_engine *engine, const oq_linear_spec *spec)
{
    oq_panel_layout layout;
    oq_panel_layout_init(engine, spec, &layout);
    return layout.total;
}

/* ---- packing ------------------------------------------------------------------------------------------- */

/* One panel: element (k, column) goes to ((k / step) * nr + column) * step + k % step; absent ones are zero.
 */
static void pack_panel(const oq_panel_engine *engine, const oq_panel_layout *l, char *dst, const char *w,
                       int64_t columns, int64_t k)
{
    const size_t step = (size_t)engine->pack_step, bytes = l->element,
                 stride = (size_t)engine->nr * step * bytes;
    memset(dst, 0, l->panel_bytes);
    for (int64_t c = 0; c < columns; c++) {
        const char *const src = w + (size_t)(c * k) * bytes;
        char *const at = dst + (size_t)c * step * bytes;
        const size_t whole = (size_t)k / step, run = step * bytes;
        for (size_t i = 0; i < whole; i++) switch (run) {
            case 1:
                at[i * stride] = src[i];
                break;
            case 2:
                memcpy(at + i * stride, src + 2 * i, 2);
                break;
            case 8:
                memcpy(at + i * stride, src + 8 * i, 8);
                break;
            default:
                memcpy(at + i * stride, src + 4 * i, 4);
                break;
            }
        memcpy(at + whole * stride, src + whole * run, (size_t)k % step * bytes);
    }
}

static void pack_corrections(const oq_panel_engine *engine, int32_t *dst, const int8_t *w, int64_t n,
                             int64_t k)
{
    memset(dst, 0, oq_align_up((size_t)n, (size_t)engine->nr) * sizeof *dst);
    for (int64_t c = 0; c < n; c++) {
        int32_t sum = 0;
        for (int64_t i = 0; i < k; i++) sum += w[c * k + i];
        dst[c] = engine->offset * sum;
    }
}

/* A NaN code makes its column NaN whatever x is; as the column's (or block's) scale it does so too, and decode need not
 * look for it. */
static void move_nan_to_scales(float *scale, const uint8_t *w, const oq_linear_spec *spec, int64_t block_cols)
{
    for (int64_t c = 0; c < spec->n; c++)
        for (int64_t i = 0; i < spec->k; i++)
            if ((w[c * spec->k + i] & 0x7fu) == 0x7fu)
                scale[block_cols ? c / spec->scheme.weight->block_n * block_cols + i / 128 : c] = NAN;
}

void oq_panel_pack(const oq_panel_engine *engine, void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    oq_panel_layout l;
    if (is_canonical(engine)) {
        oq_linear_wany_aany_ref.pack(dst, src, spec);
        return;
    }
    oq_panel_layout_init(engine, spec, &l);
    char *const at = dst;
    const char *const data = src->plane[OQ_PLANE_DATA];
    const float *const scale = src->plane[OQ_PLANE_SCALE];
    const size_t row_bytes = (size_t)spec->k * l.element;
    memset(at, 0, l.panels);
    if (spec->scheme.act_scale == OQ_ACT_STATIC_TENSOR)
        memcpy(at + l.input_scale, src->plane[OQ_PLANE_INPUT_SCALE], sizeof(float));
    if (l.block_cols)
        memcpy(at + l.block_scale, scale,
               (size_t)(oq_ceil_div(spec->n, spec->scheme.weight->block_n) * l.block_cols) * sizeof *scale);
    else if (scale)
        for (int64_t c = 0; c < spec->n; c++)
            ((float *)(at + l.col_scale))[c] = scale[spec->scheme.weight->block_n ? c : 0];
    if (spec->scheme.weight->element == &oq_dtype_f8_e4m3)
        move_nan_to_scales((float *)(at + (l.block_cols ? l.block_scale : l.col_scale)),
                           (const uint8_t *)data, spec, l.block_cols);
    if (engine->offset)
        pack_corrections(engine, (int32_t *)(at + l.correction), (const int8_t *)data, spec->n, spec->k);
    for (int64_t p = 0; p < l.n_panels; p++) {
        const int64_t first = p * engine->nr, columns = oq_min_i64(engine->nr, spec->n - first);
        pack_panel(engine, &l, at + l.panels + (size_t)p * l.panel_bytes, data + (size_t)first * row_bytes,
                   columns, spec->k);
    }
}

/* ---- running ------------------------------------------------------------------------------------------- */

/* Rows of A an odd number of cache lines apart: rows of one tile then fall into different sets. */
static size_t row_stride(const oq_panel_layout *l)
{
    const size_t lines = (size_t)oq_max_i64(oq_ceil_div(l->depth * 4 + (int64_t)l->row_scales, ALIGN), 1);
    return (lines | 1u) * ALIGN;
}

/* m rows shared out evenly in parts of at most `most` rows, each a multiple of mr. */
static int64_t even_part(int64_t m, int64_t most, int64_t mr)
{
    const int64_t parts = oq_ceil_div(m, most);
    return oq_ceil_div(oq_ceil_div(m, parts), mr) * mr;
}

size_t oq_panel_scratch_bytes(const oq_panel_engine *engine, const oq_linear_spec *spec, int64_t m)
{
    oq_panel_layout l;
    if (m <= 0) return 0;
    oq_panel_layout_init(engine, spec, &l);
    const size_t rows = (size_t)oq_min_i64(m, even_part(m, OQ_PANEL_SUPER, engine->mr));
    return oq_align_up(rows * sizeof(float), ALIGN) + rows * row_stride(&l);
}

static void prepare_rows(void *user, int64_t task, int worker)
{
    (void)worker;
    const oq_panel_job *const job = user;
    const int64_t first = task * PROLOGUE_ROWS, end = oq_min_i64(first + PROLOGUE_ROWS, job->rows);
    if (job->before) job->device->rows_walk(job->before, first, end);
    for (int64_t i = first; i < end && !job->prepared; i++) job->engine->prologue(job, i);
}

/* The n-th panel of a task that begins at `first`: its own run, then (of a GLU) their partners. */
static int64_t panel_of(const oq_panel_job *job, int64_t first, int64_t run, int64_t n)
{
    return n < run ? first + n : job->layout.n_panels / 2 + first + n - run;
}

const float *oq_panel_block_scales(const oq_panel_job *job, int64_t panel)
{
    const int64_t of = panel * job->engine->nr / job->args->spec->scheme.weight->block_n;
    return job->block_scale + of * job->layout.block_cols;
}

/* A tile's sums, block by block of k; `row` is its first one. */
static void multiply_scaled(const oq_panel_job *job, const char *b, char *c, int64_t panel, int64_t row,
                            int64_t n, int64_t first, int64_t count)
{
    enum { DEPTH = OQ_PANEL_BLOCK_K / 2 }; /* in pairs */
    const oq_panel_engine *const e = job->engine;
    const float *const by = oq_panel_block_scales(job, panel);
    const char *const a = job->a + (size_t)row * job->lda + (size_t)first * 4;
    for (int64_t at = 0; at < count; at += DEPTH) {
        const int64_t block = (first + at) / DEPTH;
        float factor[OQ_PANEL_MAX_MR];
        for (int64_t i = 0; i < n; i++) factor[i] = by[block] * oq_panel_group_scale(job, row + i, block);
        e->scaled[n](a + at * 4, job->lda, b + at * 4 * e->nr,
                     oq_min_i64(DEPTH, count - at) / OQ_PANEL_UNROLL, c, factor);
    }
}

/* Rows [row, row + rows) by dwords [first, first + count) of a panel. */
typedef struct piece {
    int64_t panel, row, rows, first, count;
    const char *next; /* what of W comes next, and how much of it each tile fetches; NULL: not known */
    size_t tile_bytes;
} piece;

/* W behind a piece, where it is multiplied as it lies there: `same` is the panel whose turn is next with these k, -1: none,
 * `start` the first of the task. */
static void find_next(const oq_panel_job *job, piece *now, int64_t same, int64_t start)
{
    const oq_panel_engine *const e = job->engine;
    const oq_panel_layout *const l = &job->layout;
    const int64_t after = now->first + now->count;
    const bool more = after < l->depth;
    const int64_t panel = same >= 0 ? same : more ? start : oq_min_i64(now->panel + 1, l->n_panels - 1);
    const int64_t first = same >= 0 ? now->first : more ? after : 0;
    const size_t dword = (size_t)e->nr * 4;
    now->next = job->panels + (size_t)panel * l->panel_bytes + (size_t)first * dword;
    now->tile_bytes =
        (size_t)(oq_min_i64(l->chunk, l->depth - first) / oq_ceil_div(now->rows, e->mr)) * dword;
}

/* A piece, decoded in b, onto c. */
static void multiply_piece(const oq_panel_job *job, const char *b, char *c, const piece *now)
{
    const oq_panel_engine *const e = job->engine;
    const int64_t row = now->row, rows = now->rows, first = now->first, count = now->count;
    const char *const a = job->a + (size_t)row * job->lda + (size_t)first * 4;
    for (int64_t i = 0, n, tile = 0; i < rows; i += n, tile++) {
        char *const at = c + (size_t)(i * e->nr) * 4;
        n = oq_ceil_div(rows - i, oq_ceil_div(rows - i, e->mr)); /* tiles of nearly one height */
        if (now->next) e->ahead(now->next + (size_t)tile * now->tile_bytes, now->tile_bytes);
        if (job->scaled)
            multiply_scaled(job, b, at, now->panel, row + i, n, first, count);
        else if (e->grouped)
            e->grouped[n](a + (size_t)i * job->lda, job->lda, b,
                          count / oq_panel_group_dwords(&job->layout.group), at, &job->layout.group);
        else
            e->micro[n](a + (size_t)i * job->lda, job->lda, b, count / OQ_PANEL_UNROLL, at, first > 0);
    }
}

/* A few neighbouring panels of columns for one block of rows: a piece of A is taken from L2 for each of them. */
static void multiply(void *user, int64_t task, int worker)
{
    const oq_panel_job *const job = user;
    const oq_panel_engine *const e = job->engine;
    const int64_t groups = oq_ceil_div(job->units, job->group);
    const int64_t panel = task % groups * job->group, row = task / groups * job->block;
    const int64_t run = oq_min_i64(job->group, job->units - panel);
    const int64_t panels = job->units == job->layout.n_panels ? run : 2 * run;
    const int64_t rows = oq_min_i64(job->block, job->rows - row), depth = job->layout.depth,
                  chunk = job->layout.chunk;
    _Alignas(64) char buffer[OQ_PANEL_CHUNK * OQ_PANEL_MAX_NR * 4];
    _Alignas(64) char own[OQ_PANEL_SUMS * OQ_PANEL_MAX_NR * 4];
    char *const c = job->sums ? job->sums + (size_t)worker * job->sums_bytes : own;
    const size_t c_bytes = (size_t)(rows * e->nr) * 4; /* of one panel */
    if (job->few || job->scaled || e->grouped) memset(c, 0, (size_t)panels * c_bytes);
    for (int64_t p = 0; job->few && p < panels; p++)
        e->few(job, (float *)(void *)(c + (size_t)p * c_bytes), panel_of(job, panel, run, p));
    if (e->begin) e->begin();
    for (int64_t first = job->few ? depth : 0; first < depth; first += chunk) {
        const int64_t count = oq_min_i64(chunk, depth - first);
        for (int64_t p = 0; p < panels; p++) {
            const int64_t at = panel_of(job, panel, run, p);
            piece now = {.panel = at, .row = row, .rows = rows, .first = first, .count = count};
            if (e->ahead && job->layout.element * (size_t)e->step == 4)
                find_next(job, &now, p + 1 < panels ? panel_of(job, panel, run, p + 1) : -1, panel);
            multiply_piece(job, e->decode(job, buffer, at, first, count), c + (size_t)p * c_bytes, &now);
        }
    }
    if (e->end) e->end();
    for (int64_t p = 0; e->finish && p < panels; p++) e->finish(job, c + (size_t)p * c_bytes, row, rows);
    for (int64_t p = 0; p < run; p++)
        e->store(job, c + (size_t)p * c_bytes, panels > run ? c + (size_t)(p + run) * c_bytes : NULL,
                 panel + p, row, rows);
}

static void job_init(oq_panel_job *job, const oq_panel_engine *engine, const oq_linear_args *args)
{
    const oq_linear_spec *const spec = args->spec;
    const char *const packed = args->packed;
    oq_panel_layout *const l = &job->layout;
    memset(job, 0, sizeof *job);
    job->engine = engine;
    job->args = args;
    oq_panel_layout_init(engine, spec, l);
    if (is_canonical(engine)) {
        job->planes = oq_linear_planes(spec, packed);
        return;
    }
    if (spec->scheme.act_scale == OQ_ACT_STATIC_TENSOR)
        job->input_scale = (const float *)(packed + l->input_scale);
    if (l->block_cols)
        job->block_scale = (const float *)(packed + l->block_scale);
    else if (spec->scheme.weight->planes & 1u << OQ_PLANE_SCALE)
        job->col_scale = (const float *)(packed + l->col_scale);
    job->scaled = engine->scaled && l->block_cols;
    if (engine->offset) job->correction = (const int32_t *)(packed + l->correction);
    job->panels = packed + l->panels;
}

/* Is x, as it lies there, the A of the microkernel? Rows a multiple of 2 KB apart would share a few sets of the first
 * cache level. */
static bool is_a(const oq_panel_job *job, oq_tensor x)
{
    const oq_linear_spec *const spec = job->args->spec;
    const size_t stride = (size_t)x.ld * x.dtype->bytes;
    return !spec->scheme.act && x.dtype == job->engine->plain && stride % 2048 != 0 &&
           job->layout.depth * job->engine->step == spec->k;
}

/* Rows from `first` on; one row for all stays. */
static oq_tensor from_row(oq_tensor t, int64_t first)
{
    return t.rows > 1 ? oq_tensor_rows(t, first, t.rows - first) : t;
}

static oq_rows_args rows_from(const oq_rows_args *rows, int64_t first)
{
    oq_rows_args out = *rows;
    out.x = from_row(rows->x, first);
    out.h = from_row(rows->h, first);
    out.r = from_row(rows->r, first);
    out.gate = from_row(rows->gate, first);
    out.scale = from_row(rows->scale, first);
    out.shift = from_row(rows->shift, first);
    return out;
}

int64_t oq_panel_tasks(const oq_panel_job *job)
{
    return oq_ceil_div(job->rows, job->block) * oq_ceil_div(job->units, job->group);
}

/* Tasks are as large as the caches like them, and smaller where threads would be idle otherwise. */
void oq_panel_cut(oq_panel_job *job, int threads)
{
    enum { TASKS_PER_THREAD = 4, LEAST_TILES = 4 };
    const int64_t mr = job->engine->mr;
    const bool glu = job->args->post && job->args->post->kind == OQ_POST_GLU;
    const int64_t most = glu ? OQ_PANEL_GROUP / 2 : OQ_PANEL_GROUP;
    /* what costs more to decode is decoded for as many rows as a panel's sums have room for */
    const int64_t taller = is_canonical(job->engine) ? most : 1;
    const size_t cached = job->engine->cached ? job->engine->cached : A_CACHED;
    const int64_t fit = (int64_t)(cached / job->lda) / mr * mr;
    const int64_t rows =
        job->engine->cached ? oq_max_i64(OQ_PANEL_ROWS, oq_min_i64(fit, OQ_PANEL_SUPER)) : OQ_PANEL_ROWS;
    job->units = glu ? job->layout.n_panels / 2 : job->layout.n_panels;
    job->block = even_part(job->rows, taller > 1 ? taller * OQ_PANEL_ROWS : rows, mr);
    const size_t bytes = (size_t)job->block * job->lda;
    const bool many = bytes > cached || bytes < job->engine->little;
    const int64_t room = OQ_PANEL_SUMS / (glu ? 2 : 1) / job->block;
    job->group = many ? oq_max_i64(oq_min_i64(most / taller, room), 1) : 1;
    if (job->engine->stream && bytes > cached)
        job->group = oq_max_i64(OQ_PANEL_MAX_SUMS / (glu ? 2 : 1) / job->block, 1);
    const int64_t wanted = threads > 1 ? TASKS_PER_THREAD * threads : 1;
    while (job->group > 1 && oq_panel_tasks(job) < wanted) job->group /= 2;
    while (job->block >= 2 * LEAST_TILES * mr && oq_panel_tasks(job) < wanted)
        job->block = even_part(job->rows, job->block / 2, mr);
}

/* Sums of a task beyond what is on a thread's stack; without memory for them tasks take fewer panels. */
static void make_room(oq_panel_job *job)
{
    const int64_t pair = job->units == job->layout.n_panels ? 1 : 2, rows = job->block * pair;
    job->sums = NULL;
    if (rows * job->group <= OQ_PANEL_SUMS) return;
    job->sums_bytes = (size_t)(rows * job->group * job->engine->nr) * 4;
    job->sums = oq_alloc_raw(job->device->env, job->sums_bytes * (size_t)oq_pool_threads(job->device->pool));
    if (!job->sums) job->group = oq_max_i64(OQ_PANEL_SUMS / rows, 1);
}

/* One round of rows: prepared first, then multiplied. */
static void run_round(oq_panel_job *job, void *a_scratch)
{
    const oq_linear_args *const args = job->args;
    oq_rows_args rows;
    const oq_tensor x = oq_tensor_rows(args->x, job->first, job->rows);
    job->a = a_scratch;
    job->lda = row_stride(&job->layout);
    job->before = NULL;
    job->few = job->engine->few && job->rows <= job->engine->few_rows(args->spec);
    job->prepared = !job->few && is_a(job, x);
    if (job->prepared) {
        job->a = x.data;
        job->lda = (size_t)x.ld * x.dtype->bytes;
    }
    if (args->rows) {
        rows = rows_from(args->rows, job->first);
        job->before = &rows;
    }
    oq_panel_cut(job, oq_pool_threads(job->device->pool));
    if (job->before || !job->prepared)
        oq_pool_run(job->device->pool, oq_ceil_div(job->rows, PROLOGUE_ROWS), prepare_rows, job);
    make_room(job);
    oq_pool_run(job->device->pool, oq_panel_tasks(job), multiply, job);
    oq_free(job->device->env, job->sums);
}

void oq_panel_run(const oq_panel_engine *engine, oq_device *device, const oq_linear_args *args)
{
    oq_panel_job job;
    const int64_t m = args->x.rows;
    if (m <= 0) return;
    job_init(&job, engine, args);
    const int64_t part = even_part(m, OQ_PANEL_SUPER, engine->mr);
    job.device = device;
    job.row_scale = args->scratch;
    char *const a = (char *)args->scratch + oq_align_up((size_t)oq_min_i64(m, part) * sizeof(float), ALIGN);
    for (job.first = 0; job.first < m; job.first += part) {
        job.rows = oq_min_i64(part, m - job.first);
        run_round(&job, a);
    }
}

unsigned oq_panel_fuses(const oq_panel_engine *engine, const oq_linear_spec *spec)
{
    const bool halves = spec->n % (2 * engine->nr) == 0; /* panels of the two halves then pair up */
    return OQ_FUSE_ROWS | OQ_FUSE_UNARY | OQ_FUSE_ADD | (halves ? OQ_FUSE_GLU : 0);
}
