/* linear_few_fixed.h -- a few rows of x in fixed point (linear_fixed.h) times whole numbers of W (linear_fixed_codes.h) by
 * products of bytes: what a unit's sixteen codes of a lane give is exact, and meets the lane's scale and step as f32. */
#ifndef OQ_CPU_LINEAR_LINEAR_FEW_FIXED_H
#define OQ_CPU_LINEAR_LINEAR_FEW_FIXED_H

#include "cpu/linear/linear_fixed.h"
#include "cpu/linear/linear_fixed_codes.h"
#include "cpu/linear/linear_panel_rows.h"

enum {
    FIXED_ROWS_MOST = 8, /* rows of x that meet a unit at once */
    FIXED_ROWS_FUSED = VF == 16 ? 4 : 1, /* so many meet codes in registers, more of them codes in a buffer */
    FIXED_COLUMNS = VF == 16 ? 2 : 1,    /* rows of W that meet x at once, so that it is read once for them */
    FIXED_NEAR = 24576,  /* bytes of x that stay in the first cache level */
    FIXED_PLANE = FIXED_VECTORS * 64,
    FIXED_BUFFER = 8 /* units of each in it */
};

/* ---- x ----------------------------------------------------------------------------------------------------- */

/* A unit of a row of x: planes, the highest first, steps of the lanes, then what goes with codes' middle or with what is
 * taken off: -middle times the lane's sum in whole numbers (of three planes: of the upper two, and of the lowest), or the
 * lane's sum as a number. Units of all rows stand side by side. */
OQ_INLINE size_t fixed_unit_bytes(int planes)
{
    return (size_t)planes * FIXED_PLANE + (size_t)planes * FIXED_LANES * 4;
}

OQ_INLINE char *fixed_unit_at(const oq_panel_job *job, int planes, int64_t unit, int64_t row)
{
    return job->a + (size_t)(unit * job->rows + row) * fixed_unit_bytes(planes);
}

/* What goes with the middle of codes, or with what is taken off: behind the steps. */
OQ_INLINE void fixed_put_sums(float *steps, const int32_t *high, const int32_t *low, int planes, fixed_traits traits)
{
    int32_t *const off = (int32_t *)(void *)(steps + FIXED_LANES);
    float *const sum = steps + FIXED_LANES;
    if (traits.less)
        for (int l = 0; l < FIXED_LANES; l++) sum[l] = ((float)high[l] * 256.0f + (float)low[l]) * steps[l];
    else if (planes == FIXED_BF16)
        for (int l = 0; l < FIXED_LANES; l++) off[l] = -traits.middle * (high[l] * 256 + low[l]);
    else
        for (int l = 0; l < FIXED_LANES; l++) {
            off[l] = -traits.middle * high[l];
            off[FIXED_LANES + l] = -traits.middle * low[l];
        }
}

/* x of one unit in its order, [byte of a dword][vector][lane], to `out`. False: a number is infinite, NaN or beyond
 * FIXED_ROOM. Loops over lanes are the innermost: compilers make vectors of them. */
static inline bool fixed_put(char *out, const float *x, int planes, fixed_traits traits)
{
    int32_t whole[4 * FIXED_VECTORS * FIXED_LANES], high[FIXED_LANES] = {0}, low[FIXED_LANES] = {0};
    int32_t top[FIXED_LANES] = {0}, most = 0;
    float inverse[FIXED_LANES], *const step = (float *)(void *)(out + planes * FIXED_PLANE);
    for (int j = 0; j < 4 * FIXED_VECTORS; j++)
        for (int l = 0; l < FIXED_LANES; l++) {
            const int32_t magnitude = (int32_t)(oq_f32_bits(x[j * FIXED_LANES + l]) & 0x7fffffffu);
            top[l] = magnitude > top[l] ? magnitude : top[l];
        }
    for (int l = 0; l < FIXED_LANES; l++) {
        step[l] = fixed_step(oq_f32_from_bits((uint32_t)top[l]), planes);
        inverse[l] = 1.0f / step[l];
        most = top[l] > most ? top[l] : most;
    }
    if (most > (int32_t)oq_f32_bits(FIXED_ROOM)) return false;
    for (int j = 0; j < 4 * FIXED_VECTORS; j++)
        for (int l = 0; l < FIXED_LANES; l++)
            whole[j * FIXED_LANES + l] = fixed_whole(x[j * FIXED_LANES + l], inverse[l]);
    for (int p = planes - 1; p >= 0; p--) {
        int32_t *const sum = p == planes - 1 ? low : high;
        const int32_t by = planes - 2 > p ? 256 : 1;
        for (int v = 0; v < FIXED_VECTORS; v++) {
            uint32_t dword[FIXED_LANES] = {0};
            for (int i = 0; i < 4; i++) {
                int32_t *const at = whole + (i * FIXED_VECTORS + v) * FIXED_LANES;
                for (int l = 0; l < FIXED_LANES; l++) {
                    const int32_t byte = p ? fixed_low(at[l]) : at[l];
                    dword[l] |= ((uint32_t)byte & 255u) << 8 * i;
                    sum[l] += byte * by;
                    at[l] = fixed_rest(at[l]);
                }
            }
            memcpy(out + p * FIXED_PLANE + v * 64, dword, sizeof dword);
        }
    }
    fixed_put_sums(step, high, low, planes, traits);
    return true;
}

/* A row of x; job->row_scale is NaN where it holds an infinity, a NaN or a number beyond FIXED_ROOM. */
static inline void fixed_prologue(const oq_panel_job *job, int64_t row)
{
    const oq_linear_spec *const spec = job->args->spec;
    const oq_tensor *const x = &job->args->x;
    const fixed_traits traits = fixed_traits_of(fixed_kind_of(spec));
    const int planes = fixed_n_planes(x->dtype);
    int from[FIXED_UNIT];
    bool finite = true;
    for (int j = 0; j < FIXED_UNIT; j++)
        from[j] = fixed_column(traits.order, j / FIXED_LANES % FIXED_VECTORS, j % FIXED_LANES,
                               j / (FIXED_LANES * FIXED_VECTORS));
    for (int64_t u = 0; u < spec->k / FIXED_UNIT; u++) {
        const oq_tensor piece = oq_tensor_cols(*x, u * FIXED_UNIT, FIXED_UNIT);
        float natural[FIXED_UNIT], ordered[FIXED_UNIT];
        row_load(natural, &piece, job->first + row, FIXED_UNIT);
        for (int j = 0; j < FIXED_UNIT; j++) ordered[j] = natural[from[j]];
        finite &= fixed_put(fixed_unit_at(job, planes, u, row), ordered, planes, traits);
    }
    job->row_scale[row] = finite ? 1.0f : oq_f32_from_bits(0x7fc00000u);
}

/* ---- units times rows of x --------------------------------------------------------------------------------- */

typedef f16x fixed_sums[FIXED_ROWS_MOST]; /* of a row of W */

/* Codes of FIXED_COLUMNS rows of W times a plane of x, from what stands at `from` on; NULL: from zero. */
OQ_INLINE void fixed_dots(fx *sum, const char *from, const fixed_unit *u, const char *x, const int most)
{
    OQ_UNROLL
    for (int c = 0; c < FIXED_COLUMNS; c++) sum[c] = fx_dot(from ? fx_load(from) : fx_zero(), u[c].w, x, most);
}

/* sum += units of rows of W . x, whose first row is at x. Planes are summed apart, so that no sum waits for another. */
OQ_INLINE void fixed_multiply(fixed_sums *acc, const fixed_unit *u, const char *x, const bool less, const int most,
                              const int planes, const int rows)
{
    const size_t lines = (size_t)planes * FIXED_PLANE;
    OQ_UNROLL
    for (int m = 0; m < rows; m++, x += fixed_unit_bytes(planes)) {
        const char *const steps = x + lines, *const off = steps + 64;
        const f16x step = f16x_load((const float *)(const void *)steps);
        fx high[FIXED_COLUMNS], low[FIXED_COLUMNS];
        f16x number[FIXED_COLUMNS];
        fixed_dots(high, NULL, u, x, most);
        fixed_dots(low, less ? NULL : off, u, x + FIXED_PLANE, most);
        OQ_UNROLL
        for (int c = 0; c < FIXED_COLUMNS; c++) number[c] = fx_numbers(fx_add(fx_times_256(high[c]), low[c]));
        if (planes == FIXED_F32) {
            fixed_dots(low, less ? NULL : off + 64, u, x + 2 * FIXED_PLANE, most);
            OQ_UNROLL
            for (int c = 0; c < FIXED_COLUMNS; c++)
                number[c] = f16x_fma(number[c], f16x_set(256.0f), fx_numbers(low[c]));
        }
        OQ_UNROLL
        for (int c = 0; c < FIXED_COLUMNS; c++) {
            acc[c][m] = f16x_fma(number[c], f16x_mul(u[c].scale, step), acc[c][m]);
            if (less) acc[c][m] = fx_fnma(u[c].less, f16x_load((const float *)(const void *)off), acc[c][m]);
        }
    }
}

typedef struct fixed_piece {
    few_piece of;  /* spec, planes, row, first, count, ahead */
    const char *x; /* unit of the piece's first column, of the batch's first row */
    size_t stride; /* from unit to unit there */
    int32_t index[FIXED_LANES];
    int group; /* columns under one scale */
    uint8_t table[16];   /* of codes of four bits */
} fixed_piece;

/* Codes of a piece of a row of W, and what else its units need. */
typedef struct fixed_stream {
    const uint8_t *codes;
    fixed_at at;
    few_scales scales;
} fixed_stream;

/* Once for all kinds. */
static __attribute__((noinline)) void fixed_scales(const few_piece *p, few_scales *out)
{
    few_scales_of(p, out);
}

/* Row p->of.row + by; the last row again, where there are no more. */
OQ_INLINE void fixed_begin(fixed_stream *s, const fixed_piece *p, int by, fixed_kind kind)
{
    few_piece of = p->of;
    of.row = oq_min_i64(of.row + by, of.spec->n - 1);
    const int64_t unit = (of.row * of.spec->k + of.first) / FIXED_UNIT;
    s->codes = (const uint8_t *)of.planes->plane[OQ_PLANE_DATA] + unit * fixed_traits_of(kind).bytes;
    s->at = (fixed_at){.scales = &s->scales, .index = fx_load(p->index), .table = fx_quarters(p->table)};
    if (fixed_traits_of(kind).plane) fixed_scales(&of, &s->scales);
}

/* Unit i. */
OQ_INLINE void fixed_next(fixed_unit *u, fixed_stream *s, const fixed_piece *p, int64_t i, fixed_kind kind)
{
    const int bytes = fixed_traits_of(kind).bytes;
    const uint8_t *const codes = s->codes + i * bytes;
    for (int b = 0; b < bytes; b += 64) oq_fetch((const char *)codes + b + p->of.ahead);
    if (fixed_traits_of(kind).plane) s->at.group = i * FIXED_UNIT / p->group;
    fixed_unit_of(u, codes, &s->at, kind);
}

OQ_INLINE void fixed_load(fixed_sums *sum, const fixed_sums *acc, const int rows)
{
    OQ_UNROLL
    for (int c = 0; c < FIXED_COLUMNS; c++) {
        OQ_UNROLL
        for (int m = 0; m < rows; m++) sum[c][m] = acc[c][m];
    }
}

/* A piece of FIXED_COLUMNS rows of W times so many rows of x. */
OQ_INLINE void fixed_fused(const fixed_piece *p, fixed_sums *acc, fixed_kind kind, const int planes, const int rows)
{
    const fixed_traits traits = fixed_traits_of(kind);
    const char *x = p->x;
    fixed_stream streams[FIXED_COLUMNS];
    fixed_sums sum[FIXED_COLUMNS];
    for (int c = 0; c < FIXED_COLUMNS; c++) fixed_begin(streams + c, p, c, kind);
    fixed_load(sum, acc, rows);
    for (int64_t i = 0; i < p->of.count / FIXED_UNIT; i++, x += p->stride) {
        fixed_unit u[FIXED_COLUMNS];
        OQ_UNROLL
        for (int c = 0; c < FIXED_COLUMNS; c++) fixed_next(u + c, streams + c, p, i, kind);
        fixed_multiply(sum, u, x, traits.less, traits.most, planes, rows);
    }
    fixed_load(acc, sum, rows);
}

/* Its codes to a buffer, units of neighbouring rows of W side by side. */
OQ_INLINE void fixed_codes_of(const fixed_piece *p, fixed_unit *u, int64_t n, fixed_kind kind)
{
    for (int c = 0; c < FIXED_COLUMNS; c++) {
        fixed_stream stream;
        fixed_begin(&stream, p, c, kind);
        for (int64_t i = 0; i < n; i++) fixed_next(u + i * FIXED_COLUMNS + c, &stream, p, i, kind);
    }
}

/* Units of a buffer times rows of x. */
OQ_INLINE void fixed_buffered(const fixed_unit *u, int64_t n, const char *x, size_t stride, fixed_sums *acc,
                              const bool less, const int planes, const int rows)
{
    fixed_sums sum[FIXED_COLUMNS];
    fixed_load(sum, acc, rows);
    for (int64_t i = 0; i < n; i++, u += FIXED_COLUMNS, x += stride) {
        fixed_unit now[FIXED_COLUMNS];
        OQ_UNROLL
        for (int c = 0; c < FIXED_COLUMNS; c++) now[c] = u[c];
        fixed_multiply(sum, now, x, less, FX_MOST, planes, rows);
    }
    fixed_load(acc, sum, rows);
}

/* ---- a function for each kind, and for each number of rows ------------------------------------------------- */

typedef void (*fixed_fused_fn)(const fixed_piece *p, fixed_sums *acc);
typedef void (*fixed_codes_fn)(const fixed_piece *p, fixed_unit *u, int64_t n);
typedef void (*fixed_buffered_fn)(const fixed_unit *u, int64_t n, const char *x, size_t stride, fixed_sums *acc);

#if defined(__AVX512F__)
#define FIXED_FUSED_EACH(X, kind) \
    X(kind, 2, 1) X(kind, 2, 2) X(kind, 2, 3) X(kind, 2, 4) X(kind, 3, 1) X(kind, 3, 2) X(kind, 3, 3) X(kind, 3, 4)
#define FIXED_BUFFERED_EACH(X) FIXED_BUFFERED_LAST(X)
#else
#define FIXED_FUSED_EACH(X, kind) X(kind, 2, 1) X(kind, 3, 1)
#define FIXED_BUFFERED_EACH(X) \
    X(2, 2) X(2, 3) X(2, 4) X(3, 2) X(3, 3) X(3, 4) FIXED_BUFFERED_LAST(X)
#endif
#define FIXED_BUFFERED_LAST(X) X(2, 5) X(2, 6) X(2, 7) X(2, 8) X(3, 5) X(3, 6) X(3, 7) X(3, 8)

#define FIXED_FUSED(kind, planes, rows)                                                                                \
    static void fixed_fused_##kind##_##planes##_##rows(const fixed_piece *p, fixed_sums *acc)                                \
    {                                                                                                                  \
        fixed_fused(p, acc, FIXED_##kind, planes, rows);                                                               \
    }
#define FIXED_CODES(kind, unit, order, bytes, most, middle, less)                                                      \
    static void fixed_codes_##kind(const fixed_piece *p, fixed_unit *u, int64_t n)                                     \
    {                                                                                                                  \
        fixed_codes_of(p, u, n, FIXED_##kind);                                                                         \
    }                                                                                                                  \
    FIXED_FUSED_EACH(FIXED_FUSED, kind)
FIXED_KINDS(FIXED_CODES)

#define FIXED_FUSED_AT(kind, planes, rows) \
    [FIXED_##kind][(planes) - 2][(rows) - 1] = fixed_fused_##kind##_##planes##_##rows,
#define FIXED_FUSED_ROWS(kind, unit, order, bytes, most, middle, less) FIXED_FUSED_EACH(FIXED_FUSED_AT, kind)
static const fixed_fused_fn fixed_fused_fns[FIXED_N_KINDS][2][FIXED_ROWS_FUSED] = {FIXED_KINDS(FIXED_FUSED_ROWS)};

#define FIXED_CODES_AT(kind, unit, order, bytes, most, middle, less) [FIXED_##kind] = fixed_codes_##kind,
static const fixed_codes_fn fixed_codes_fns[FIXED_N_KINDS] = {FIXED_KINDS(FIXED_CODES_AT)};

#define FIXED_BUFFERED(planes, rows)                                                                                   \
    static void fixed_middle_##planes##_##rows(const fixed_unit *u, int64_t n, const char *x, size_t stride, fixed_sums *acc) \
    {                                                                                                                  \
        fixed_buffered(u, n, x, stride, acc, false, planes, rows);                                                     \
    }                                                                                                                  \
    static void fixed_less_##planes##_##rows(const fixed_unit *u, int64_t n, const char *x, size_t stride, fixed_sums *acc)  \
    {                                                                                                                  \
        fixed_buffered(u, n, x, stride, acc, true, planes, rows);                                                      \
    }
FIXED_BUFFERED_EACH(FIXED_BUFFERED)

#define FIXED_BUFFERED_AT(planes, rows)                               \
    [false][(planes) - 2][(rows) - 1] = fixed_middle_##planes##_##rows, \
    [true][(planes) - 2][(rows) - 1] = fixed_less_##planes##_##rows,
static const fixed_buffered_fn fixed_buffered_fns[2][2][FIXED_ROWS_MOST] = {FIXED_BUFFERED_EACH(FIXED_BUFFERED_AT)};

/* ---- a panel ----------------------------------------------------------------------------------------------- */

static inline void fixed_run_piece(const fixed_piece *p, fixed_sums *acc, fixed_kind kind, int planes, int64_t rows)
{
    const int64_t units = p->of.count / FIXED_UNIT;
    if (rows <= FIXED_ROWS_FUSED) {
        fixed_fused_fns[kind][planes - 2][rows - 1](p, acc);
        return;
    }
    fixed_unit u[FIXED_BUFFER * FIXED_COLUMNS];
    fixed_codes_fns[kind](p, u, units);
    fixed_buffered_fns[fixed_traits_of(kind).less][planes - 2][rows - 1](u, units, p->x,
                                                                                            p->stride, acc);
}

/* Rows [from, from + rows) of x times the columns of a panel, a piece of x that stays in the first cache level at a time. */
static inline void fixed_batch(const oq_panel_job *job, fixed_piece *p, float *c, int64_t panel, int64_t nr,
                               int64_t from, int64_t rows)
{
    const oq_linear_spec *const spec = p->of.spec;
    const fixed_kind kind = fixed_kind_of(spec);
    const int planes = fixed_n_planes(job->args->x.dtype), bytes = fixed_traits_of(kind).bytes;
    const int64_t units = spec->k / FIXED_UNIT, columns = oq_min_i64(nr, spec->n - panel * nr);
    const int64_t near = oq_max_i64(FIXED_NEAR / (rows * (int64_t)fixed_unit_bytes(planes)), 1);
    const int64_t room = rows > FIXED_ROWS_FUSED ? oq_min_i64(near, FIXED_BUFFER) : near;
    const int64_t most = oq_ceil_div(units, oq_ceil_div(units, room)), row_bytes = units * bytes;
    fixed_sums acc[OQ_PANEL_MAX_NR + FIXED_COLUMNS - 1];
    p->of.ahead =
        most >= units ? FEW_AHEAD : oq_ceil_div(FEW_AHEAD, most * bytes) * row_bytes; /* whole rows */
    for (int64_t col = 0; col < columns + FIXED_COLUMNS - 1; col++)
        for (int64_t m = 0; m < rows; m++) acc[col][m] = f16x_set(0.0f);
    for (int64_t unit = 0; unit < units; unit += most) {
        p->of.first = unit * FIXED_UNIT;
        p->of.count = oq_min_i64(most, units - unit) * FIXED_UNIT;
        p->x = fixed_unit_at(job, planes, unit, from);
        for (int64_t col = 0; col < columns; col += FIXED_COLUMNS) {
            p->of.row = panel * nr + col;
            fixed_run_piece(p, acc + col, kind, planes, rows);
        }
    }
    for (int64_t m = 0; m < rows; m++)
        for (int64_t col = 0; col < columns; col++) c[(from + m) * nr + col] = fx_sum(acc[col][m]);
}

/* Row m of x is none for sums: every number of W meets its own. */
static inline void fixed_odd_row(const oq_panel_job *job, float *c, int64_t m, int64_t panel, int64_t nr)
{
    const oq_linear_spec *const spec = job->args->spec;
    const oq_format *const f = spec->scheme.weight;
    const int64_t columns = oq_min_i64(nr, spec->n - panel * nr);
    for (int64_t col = 0; col < columns; col++) {
        double sum = 0;
        for (int64_t i = 0; i < spec->k; i += FIXED_UNIT) {
            const oq_tensor piece = oq_tensor_cols(job->args->x, i, FIXED_UNIT);
            float w[FIXED_UNIT], x[FIXED_UNIT];
            f->decode_span(f, w, &job->planes, panel * nr + col, i, FIXED_UNIT, spec->n, spec->k);
            row_load(x, &piece, job->first + m, FIXED_UNIT);
            for (int j = 0; j < FIXED_UNIT; j++) sum += (double)w[j] * (double)x[j];
        }
        c[m * nr + col] = (float)sum;
    }
}

static inline void fixed_panel(const oq_panel_job *job, float *c, int64_t panel, int64_t nr)
{
    const oq_linear_spec *const spec = job->args->spec;
    const fixed_kind kind = fixed_kind_of(spec);
    const fixed_traits traits = fixed_traits_of(kind);
    const int group = fixed_group(kind, spec->scheme.weight), planes = fixed_n_planes(job->args->x.dtype);
    fixed_piece p = {.of = {.spec = spec, .planes = &job->planes},
                     .stride = (size_t)job->rows * fixed_unit_bytes(planes),
                     .group = group};
    for (int l = 0; l < FIXED_LANES; l++) p.index[l] = fixed_column(traits.order, 0, l, 0) / group;
    for (int i = 0; i < 16; i++)
        p.table[i] = (uint8_t)(traits.middle +
                               (kind == FIXED_E2M1 ? (int)(2.0f * oq_e2m1_table[i]) : oq_iq4_levels[i]));
    const int64_t batches = oq_ceil_div(job->rows, FIXED_ROWS_MOST), part = oq_ceil_div(job->rows, batches);
    for (int64_t from = 0; from < job->rows; from += part)
        fixed_batch(job, &p, c, panel, nr, from, oq_min_i64(part, job->rows - from));
    for (int64_t m = 0; m < job->rows; m++)
        if (job->row_scale[m] != 1.0f) fixed_odd_row(job, c, m, panel, nr);
}

#endif
