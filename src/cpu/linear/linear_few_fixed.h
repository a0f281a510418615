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
    FIXED_PLANE = FIXED_VECTORS * 64,
    FIXED_BUFFER = 8 /* units in it */
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

/* x of one unit in its order, [byte of a dword][vector][lane], to `out`. False: a number is infinite or NaN. */
static inline bool fixed_put(char *out, const float *x, int planes, fixed_traits traits)
{
    int32_t whole[4 * FIXED_VECTORS * FIXED_LANES], high[FIXED_LANES] = {0}, low[FIXED_LANES] = {0};
    float amax[FIXED_LANES],
        inverse[FIXED_LANES], *const step = (float *)(void *)(out + planes * FIXED_PLANE);
    bool finite = true;
    for (int l = 0; l < FIXED_LANES; l++) {
        uint32_t top = 0;
        for (int j = 0; j < 16; j++) {
            const uint32_t magnitude = oq_f32_bits(x[j * FIXED_LANES + l]) & 0x7fffffffu;
            top = magnitude > top ? magnitude : top;
        }
        amax[l] = oq_f32_from_bits(top);
        finite &= top < 0x7f800000u;
    }
    for (int l = 0; l < FIXED_LANES; l++) {
        step[l] = fixed_step(amax[l], planes);
        inverse[l] = 1.0f / step[l];
    }
    if (!finite) return false;
    for (int j = 0; j < 16; j++)
        for (int l = 0; l < FIXED_LANES; l++)
            whole[j * FIXED_LANES + l] = fixed_whole(x[j * FIXED_LANES + l], inverse[l]);
    for (int p = planes - 1; p >= 0; p--)
        for (int v = 0; v < FIXED_VECTORS; v++)
            for (int l = 0; l < FIXED_LANES; l++) {
                uint32_t dword = 0;
                for (int i = 0; i < 4; i++) {
                    int32_t *const at = whole + (i * FIXED_VECTORS + v) * FIXED_LANES + l;
                    const int32_t byte = p ? fixed_low(*at) : *at;
                    dword |= ((uint32_t)byte & 255u) << 8 * i;
                    if (p == planes - 1)
                        low[l] += byte;
                    else
                        high[l] += byte * (planes - 2 == p ? 1 : 256);
                    *at = fixed_rest(*at);
                }
                memcpy(out + p * FIXED_PLANE + (v * FIXED_LANES + l) * 4, &dword, sizeof dword);
            }
    int32_t *const off = (int32_t *)(void *)(step + FIXED_LANES);
    for (int l = 0; l < FIXED_LANES; l++) {
        if (traits.less)
            ((float *)(void *)off)[l] = ((float)high[l] * 256.0f + (float)low[l]) * step[l];
        else if (planes == FIXED_BF16)
            off[l] = -traits.middle * (high[l] * 256 + low[l]);
        else
            off[l] = -traits.middle * high[l], off[FIXED_LANES + l] = -traits.middle * low[l];
    }
    return true;
}

/* A row of x; job->row_scale is NaN where it holds an infinity or a NaN. */
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

/* ---- a unit times rows of x -------------------------------------------------------------------------------- */

/* acc[rows] += unit . x, whose first row is at x. */
OQ_INLINE void fixed_multiply(f16x *acc, const fixed_unit *u, const char *x, const bool less, const int most,
                              const int planes, const int rows)
{
    const size_t lines = (size_t)planes * FIXED_PLANE;
    OQ_UNROLL
    for (int m = 0; m < rows; m++, x += fixed_unit_bytes(planes)) {
        const f16x by = f16x_mul(u->scale, f16x_load((const float *)(const void *)(x + lines)));
        fx sum = fx_times_256(fx_dot(fx_zero(), u->w, x, most));
        sum = fx_dot(sum, u->w, x + FIXED_PLANE, most);
        if (!less) sum = fx_add(sum, fx_load(x + lines + 64));
        f16x number = fx_numbers(sum);
        if (planes == FIXED_F32) {
            fx lowest = fx_dot(fx_zero(), u->w, x + 2 * FIXED_PLANE, most);
            if (!less) lowest = fx_add(lowest, fx_load(x + lines + 128));
            number = f16x_fma(number, f16x_set(256.0f), fx_numbers(lowest));
        }
        acc[m] = f16x_fma(number, by, acc[m]);
        if (less) acc[m] = fx_fnma(u->less, f16x_load((const float *)(const void *)(x + lines + 64)), acc[m]);
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

OQ_INLINE const uint8_t *fixed_codes(const fixed_piece *p, int bytes)
{
    const int64_t unit = (p->of.row * p->of.spec->k + p->of.first) / FIXED_UNIT;
    return (const uint8_t *)p->of.planes->plane[OQ_PLANE_DATA] + unit * bytes;
}

/* Once for all kinds. */
static __attribute__((noinline)) void fixed_scales(const few_piece *p, few_scales *out)
{
    few_scales_of(p, out);
}

OQ_INLINE fixed_at fixed_at_of(const fixed_piece *p, few_scales *scales, fixed_kind kind)
{
    if (fixed_traits_of(kind).plane) fixed_scales(&p->of, scales);
    return (fixed_at){.scales = scales, .index = fx_load(p->index), .table = fx_quarters(p->table)};
}

OQ_INLINE void fixed_next(fixed_unit *u, const fixed_piece *p, fixed_at *at, const uint8_t *codes, int64_t i,
                          fixed_kind kind)
{
    const int bytes = fixed_traits_of(kind).bytes;
    for (int b = 0; b < bytes; b += 64) oq_fetch((const char *)codes + b + p->of.ahead);
    if (fixed_traits_of(kind).plane) at->group = i * FIXED_UNIT / p->group;
    fixed_unit_of(u, codes, at, kind);
}

/* A piece of a row of W times so many rows of x. */
OQ_INLINE void fixed_fused(const fixed_piece *p, f16x *acc, fixed_kind kind, const int planes, const int rows)
{
    const fixed_traits traits = fixed_traits_of(kind);
    const uint8_t *codes = fixed_codes(p, traits.bytes);
    const char *x = p->x;
    few_scales scales;
    fixed_at at = fixed_at_of(p, &scales, kind);
    f16x sum[FIXED_ROWS_FUSED];
    OQ_UNROLL
    for (int m = 0; m < rows; m++) sum[m] = acc[m];
    for (int64_t i = 0; i < p->of.count / FIXED_UNIT; i++, codes += traits.bytes, x += p->stride) {
        fixed_unit u;
        fixed_next(&u, p, &at, codes, i, kind);
        fixed_multiply(sum, &u, x, traits.less, traits.most, planes, rows);
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m] = sum[m];
}

/* Its codes to a buffer. */
OQ_INLINE void fixed_codes_of(const fixed_piece *p, fixed_unit *u, int64_t n, fixed_kind kind)
{
    const int bytes = fixed_traits_of(kind).bytes;
    const uint8_t *codes = fixed_codes(p, bytes);
    few_scales scales;
    fixed_at at = fixed_at_of(p, &scales, kind);
    for (int64_t i = 0; i < n; i++, codes += bytes) fixed_next(u + i, p, &at, codes, i, kind);
}

/* Units of a buffer times rows of x. */
OQ_INLINE void fixed_buffered(const fixed_unit *u, int64_t n, const char *x, size_t stride, f16x *acc,
                              bool less, const int planes, const int rows)
{
    f16x sum[FIXED_ROWS_MOST];
    OQ_UNROLL
    for (int m = 0; m < rows; m++) sum[m] = acc[m];
    for (int64_t i = 0; i < n; i++, x += stride) {
        const fixed_unit one = u[i];
        fixed_multiply(sum, &one, x, less, FX_MOST, planes, rows);
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m] = sum[m];
}

/* ---- a function for each kind, and for each number of rows ------------------------------------------------- */

typedef void (*fixed_fused_fn)(const fixed_piece *p, f16x *acc);
typedef void (*fixed_codes_fn)(const fixed_piece *p, fixed_unit *u, int64_t n);
typedef void (*fixed_buffered_fn)(const fixed_unit *u, int64_t n, const char *x, size_t stride, f16x *acc);

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
    static void fixed_fused_##kind##_##planes##_##rows(const fixed_piece *p, f16x *acc)                                \
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
    static void fixed_middle_##planes##_##rows(const fixed_unit *u, int64_t n, const char *x, size_t stride, f16x *acc) \
    {                                                                                                                  \
        fixed_buffered(u, n, x, stride, acc, false, planes, rows);                                                     \
    }                                                                                                                  \
    static void fixed_less_##planes##_##rows(const fixed_unit *u, int64_t n, const char *x, size_t stride, f16x *acc)  \
    {                                                                                                                  \
        fixed_buffered(u, n, x, stride, acc, true, planes, rows);                                                      \
    }
FIXED_BUFFERED_EACH(FIXED_BUFFERED)

#define FIXED_BUFFERED_AT(planes, rows)                               \
    [false][(planes) - 2][(rows) - 1] = fixed_middle_##planes##_##rows, \
    [true][(planes) - 2][(rows) - 1] = fixed_less_##planes##_##rows,
static const fixed_buffered_fn fixed_buffered_fns[2][2][FIXED_ROWS_MOST] = {FIXED_BUFFERED_EACH(FIXED_BUFFERED_AT)};

/* ---- a panel ----------------------------------------------------------------------------------------------- */

static inline void fixed_run_piece(const fixed_piece *p, f16x *acc, fixed_kind kind, int planes, int64_t rows)
{
    const int64_t units = p->of.count / FIXED_UNIT;
    if (rows <= FIXED_ROWS_FUSED) {
        fixed_fused_fns[kind][planes - 2][rows - 1](p, acc);
        return;
    }
    fixed_unit u[FIXED_BUFFER];
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
    const int64_t near = oq_max_i64(FEW_BYTES / (rows * (int64_t)fixed_unit_bytes(planes)), 1);
    const int64_t room = rows > FIXED_ROWS_FUSED ? oq_min_i64(near, FIXED_BUFFER) : near;
    const int64_t most = oq_ceil_div(units, oq_ceil_div(units, room)), row_bytes = units * bytes;
    f16x acc[OQ_PANEL_MAX_NR][FIXED_ROWS_MOST];
    p->of.ahead =
        most >= units ? FEW_AHEAD : oq_ceil_div(FEW_AHEAD, most * bytes) * row_bytes; /* whole rows */
    for (int64_t col = 0; col < columns; col++)
        for (int64_t m = 0; m < rows; m++) acc[col][m] = f16x_set(0.0f);
    for (int64_t unit = 0; unit < units; unit += most) {
        p->of.first = unit * FIXED_UNIT;
        p->of.count = oq_min_i64(most, units - unit) * FIXED_UNIT;
        p->x = fixed_unit_at(job, planes, unit, from);
        for (int64_t col = 0; col < columns; col++) {
            p->of.row = panel * nr + col;
            fixed_run_piece(p, acc[col], kind, planes, rows);
        }
    }
    for (int64_t m = 0; m < rows; m++)
        for (int64_t col = 0; col < columns; col++) c[(from + m) * nr + col] = fx_sum(acc[col][m]);
}

/* Row m of x holds an infinity or a NaN: every number of W meets its own. */
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
