/* compensate.c -- rounding one column after the other, each towards what makes up for the errors before it.
 *
 * With the matrix H of a layer's inputs, the error of a row's outputs is e H e^T, where e is what rounding changed. Factored
 * as H = U D U^T, U unit upper triangular, that is the sum over columns p of D[p] (e U)[p]^2, and (e U)[p] depends on the
 * errors of columns up to p alone: e[p] + sum of e[j] U[j][p] over j < p. So column p is rounded where w[p] plus that sum
 * lies, which leaves a rounding error of that target alone, weighted by D[p]. Nothing is inverted. Sums over earlier blocks
 * of columns are made a block at a time for several rows, as a matrix product. */
#include "write/compensate.h"

#include "base/pool.h"
#include "base/size.h"
#include "format/format_int.h"
#include "write/cholesky.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 32, BLOCK = 128, DEEP = 128 };
enum {
    SHRINKS = 10
}; /* scales that are tried: 1, 0.95, 0.9 ... of the one that holds all numbers of the group */

/* x H x^T of a row's weights and of what both ways of rounding change; with the damping until the tile is put. */
typedef struct row_sums {
    double signal, nearest, noise;
    double near_squares; /* of what rounding to nearest changes */
    bool to_nearest;
} row_sums;

/* Columns are visited by position; a position has a column of w and a slot, the column of the planes. */
typedef struct rounding {
    oq_env *env;
    const oq_compensation *c;
    const oq_format *f;
    const float *w, *hessian;
    int64_t n, k, block, groups;
    int32_t *column, *slot; /* of each position */
    int32_t *stored;        /* column of w of each slot */
    double damping;         /* that is added to the diagonal */
    float *feedback;        /* U by blocks of columns: [end of the block][its columns], one after the other */
    float *weight, *slot_weight; /* D, of each position and of each slot */
    oq_planes_mut *to;
    row_sums *rows;
    atomic_bool failed; /* a worker had no memory */
} rounding;

/* ---- the matrix ---------------------------------------------------------------------------------------- */

/* Positions in reverse: the Cholesky factor of that is U from the last row to the first. */
static void fill_reversed(const rounding *r, double *a)
{
    for (int64_t i = 0; i < r->k; i++) {
        const float *row = r->hessian + (int64_t)r->column[r->k - 1 - i] * r->k;
        for (int64_t j = 0; j <= i; j++) a[i * r->k + j] = (double)row[r->column[r->k - 1 - j]];
        a[i * r->k + i] += r->damping;
    }
}

typedef struct unpacking {
    const rounding *r;
    const double *l;
} unpacking;

static float *feedback_of(const rounding *r, int64_t block)
{
    return r->feedback + r->block * r->block * (block * (block + 1) / 2);
}

static void take_block(void *user, int64_t b, int worker)
{
    const unpacking *u = user;
    const rounding *r = u->r;
    const int64_t first = b * r->block, end = oq_min_i64(first + r->block, r->k), last = r->k - 1;
    float *to = feedback_of(r, b);
    (void)worker;
    for (int64_t j = 0; j < end; j++)
        for (int64_t p = first; p < end; p++) {
            const double *row = u->l + (last - j) * r->k;
            *to++ = j >= p ? 0.0f : (float)(row[last - p] / u->l[(last - p) * r->k + last - p]);
        }
    for (int64_t p = first; p < end; p++) {
        const double root = u->l[(last - p) * r->k + last - p];
        r->weight[p] = (float)(root * root);
        r->slot_weight[r->slot[p]] = r->weight[p];
    }
}

/* The next share of damping to try: ten times as much, and after none the least that can help. */
static double more_damping(double share)
{
    return share > 0 ? share * 10 : 1e-8;
}

/* U and D with the damping that was asked for, or ten times, a hundred times as much. */
static oq_status factor(rounding *r, double mean, oq_compensation_result *result)
{
    const int64_t blocks = oq_ceil_div(r->k, r->block);
    double *a = oq_alloc_raw(r->env, (size_t)r->k * (size_t)r->k * sizeof *a);
    if (!a) return OQ_E_NOMEM;
    oq_status st = OQ_E_FORMAT;
    for (double share = r->c->damping; st == OQ_E_FORMAT && share <= 1.0; share = more_damping(share)) {
        r->damping = share * mean;
        result->damping = share;
        fill_reversed(r, a);
        st = oq_cholesky(r->env, a, r->k);
    }
    if (st == OQ_OK) {
        unpacking u = {r, a};
        r->feedback =
            oq_alloc_raw(r->env, (size_t)(r->block * r->block * (blocks * (blocks + 1) / 2)) * sizeof(float));
        if (r->feedback)
            oq_pool_run(r->env->pool, blocks, take_block, &u);
        else
            st = OQ_E_NOMEM;
    }
    oq_free(r->env, a);
    return st;
}

/* ---- order --------------------------------------------------------------------------------------------- */

typedef struct fed {
    float much;
    int32_t column;
} fed;

static int more_first(const void *a, const void *b)
{
    const fed *x = a, *y = b;
    return x->much != y->much ? (x->much > y->much ? -1 : 1) : x->column < y->column ? -1 : 1;
}

static int ascending(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* Slots of positions whose groups are runs of positions: ascending columns within a group, as readers sort them. */
static void regroup(rounding *r)
{
    memcpy(r->stored, r->column, (size_t)r->k * sizeof *r->stored);
    for (int64_t g = 0; g < r->k; g += r->f->block_k) {
        const int64_t end = oq_min_i64(g + r->f->block_k, r->k);
        qsort(r->stored + g, (size_t)(end - g), sizeof *r->stored, ascending);
        for (int64_t p = g; p < end; p++)
            for (int64_t s = g; s < end; s++)
                if (r->stored[s] == r->column[p]) r->slot[p] = (int32_t)s;
    }
}

static oq_status order_columns(rounding *r)
{
    for (int32_t i = 0; i < r->k; i++) r->column[i] = r->slot[i] = r->stored[i] = i;
    if (r->c->order == OQ_COLUMNS_AS_THEY_ARE) return OQ_OK;
    fed *all = oq_alloc_raw(r->env, (size_t)r->k * sizeof *all);
    if (!all) return OQ_E_NOMEM;
    for (int32_t i = 0; i < r->k; i++) all[i] = (fed){r->hessian[i * r->k + i], i};
    qsort(all, (size_t)r->k, sizeof *all, more_first);
    for (int64_t p = 0; p < r->k; p++) r->column[p] = r->slot[p] = all[p].column;
    if (r->c->order == OQ_COLUMNS_REGROUPED) regroup(r);
    oq_free(r->env, all);
    return OQ_OK;
}

/* ---- rows ---------------------------------------------------------------------------------------------- */

/* Some rows at work. x: numbers by position; e: what became of them, taken off; codes and grids by slot, of rounding to
 * nearest and of compensated rounding. */
typedef struct tile {
    const rounding *r;
    int64_t first, n;
    float *x, *e, *target;
    uint8_t *near_codes, *codes;
    oq_int_grid *near_grids, *grids;
} tile;

/* t[width] += e[depth] . u[depth][width], four rows of u at a time. */
static void add_product(float *restrict t, const float *e, const float *u, int64_t depth, int64_t width)
{
    int64_t j = 0;
    for (; j + 4 <= depth; j += 4) {
        const float a = e[j], b = e[j + 1], c = e[j + 2], d = e[j + 3];
        const float *restrict u0 = u + j * width, *restrict u1 = u0 + width, *restrict u2 = u1 + width,
                              *restrict u3 = u2 + width;
        for (int64_t i = 0; i < width; i++) t[i] += (a * u0[i] + b * u1[i]) + (c * u2[i] + d * u3[i]);
    }
    for (; j < depth; j++)
        for (int64_t i = 0; i < width; i++) t[i] += e[j] * u[j * width + i];
}

/* target = x of block b, and what e of the blocks before it makes of it. */
static void begin_block(const tile *t, const float *x, const float *e, int64_t b)
{
    const rounding *r = t->r;
    const int64_t first = b * r->block, width = oq_min_i64(r->block, r->k - first);
    const float *u = feedback_of(r, b);
    for (int64_t i = 0; i < t->n; i++)
        memcpy(t->target + i * width, x + i * r->k + first, (size_t)width * sizeof *x);
    for (int64_t j = 0; j < first; j += DEEP)
        for (int64_t i = 0; i < t->n; i++)
            add_product(t->target + i * width, e + i * r->k + j, u + j * width, oq_min_i64(DEEP, first - j),
                        width);
}

/* What e of position p does to later targets of its block. */
static void spread(float *target, const float *u, float e, int64_t p, int64_t width)
{
    for (int64_t i = p + 1; i < width; i++) target[i] += e * u[p * width + i];
}

/* x H x^T of each row, the damping included. */
static void norms(const tile *t, const float *x, double *sums)
{
    const rounding *r = t->r;
    for (int64_t i = 0; i < t->n; i++) sums[i] = 0;
    for (int64_t b = 0; b * r->block < r->k; b++) {
        const int64_t first = b * r->block, width = oq_min_i64(r->block, r->k - first);
        const float *u = feedback_of(r, b) + first * width;
        begin_block(t, x, x, b);
        for (int64_t i = 0; i < t->n; i++) {
            float *target = t->target + i * width;
            double sum = 0;
            for (int64_t p = 0; p < width; p++) {
                sum += (double)r->weight[first + p] * (double)target[p] * (double)target[p];
                spread(target, u, x[i * r->k + first + p], p, width);
            }
            sums[i] += sum;
        }
    }
}

/* ---- one row to nearest -------------------------------------------------------------------------------- */

static void round_nearest(const tile *t, int64_t i, float *stored)
{
    const rounding *r = t->r;
    uint8_t *codes = t->near_codes + i * r->k;
    oq_int_grid *grids = t->near_grids + i * r->groups;
    const int64_t size = r->f->block_k;
    for (int64_t s = 0; s < r->k; s++) stored[s] = r->w[(t->first + i) * r->k + r->stored[s]];
    for (int64_t g = 0; g < r->groups; g++) {
        const int64_t count = oq_min_i64(size, r->k - g * size);
        grids[g] = oq_int_fit(r->f, stored + g * size, count);
        oq_int_codes(r->f, &grids[g], codes + g * size, stored + g * size, count);
    }
    for (int64_t p = 0; p < r->k; p++) {
        const int64_t s = r->slot[p];
        t->x[i * r->k + p] = stored[s];
        t->e[i * r->k + p] = stored[s] - oq_int_value(&grids[s / size], codes[s]);
    }
}

/* ---- one row with compensation ------------------------------------------------------------------------- */

/* The scale, of the largest and some smaller ones, that rounds x[count] best in the sum of squares times weight. */
static oq_int_grid fit(const oq_format *f, const float *x, const float *weight, int64_t count)
{
    uint8_t codes[BLOCK];
    const oq_int_grid widest = oq_int_fit(f, x, count);
    oq_int_grid best = widest;
    double least = INFINITY;
    for (int s = 0; s < SHRINKS && widest.inverse != 0.0f; s++) {
        const float shrink = 1.0f - 0.05f * (float)s;
        oq_int_grid g = {widest.scale * shrink, widest.zero, widest.inverse / shrink};
        float sum = 0;
        oq_int_hold(f, &g);
        oq_int_codes(f, &g, codes, x, count);
        for (int64_t i = 0; i < count; i++) {
            const float d = x[i] - oq_int_value(&g, codes[i]);
            sum += weight[i] * (d * d);
        }
        if ((double)sum < least) best = g, least = (double)sum;
    }
    return best;
}

/* A target may lie far outside of its grid. */
static uint8_t code_of(const oq_format *f, const oq_int_grid *g, float x)
{
    const float top = (float)((1 << f->int_bits) - 1);
    return (uint8_t)fminf(fmaxf(rintf(x * g->inverse) + g->zero, 0.0f), top);
}

/* Groups that are no runs of positions have their scales beforehand. */
static void fit_early(const tile *t, int64_t i, const float *stored)
{
    const rounding *r = t->r;
    const int64_t size = r->f->block_k;
    for (int64_t g = 0; g < r->groups; g++)
        t->grids[i * r->groups + g] =
            fit(r->f, stored + g * size, r->slot_weight + g * size, oq_min_i64(size, r->k - g * size));
}

/* What the columns of a group will be rounded towards, as far as errors before it decide: x + y, where y makes the least of
 * those errors if it is not rounded. Sums of e U for the group, s, are y U, so y[c] = s[c] less the sum of y[j] U[j][c] over
 * j < c. u, width: the block's; p: where the group begins in it. */
static void foresee(float *to, const float *target, const float *x, const float *u, int64_t width, int64_t p,
                    int64_t count)
{
    float y[BLOCK];
    for (int64_t c = 0; c < count; c++) y[c] = target[p + c] - x[c];
    for (int64_t j = 0; j < count; j++)
        for (int64_t c = j + 1; c < count; c++) y[c] -= y[j] * u[(p + j) * width + p + c];
    for (int64_t c = 0; c < count; c++) to[c] = x[c] + y[c];
}

/* Positions of block b of row i. */
static double round_block(const tile *t, int64_t i, int64_t b)
{
    const rounding *r = t->r;
    const int64_t first = b * r->block, width = oq_min_i64(r->block, r->k - first), size = r->f->block_k;
    const float *u = feedback_of(r, b) + first * width;
    float *target = t->target + i * width;
    const bool late = r->c->order != OQ_COLUMNS_BY_ACTIVITY;
    double noise = 0;
    for (int64_t p = 0; p < width; p++) {
        const int64_t at = first + p, s = r->slot[at];
        oq_int_grid *g = &t->grids[i * r->groups + s / size];
        if (late && p % size == 0) {
            const int64_t count = oq_min_i64(size, width - p);
            float group[BLOCK];
            foresee(group, target, t->x + i * r->k + at, u, width, p, count);
            *g = fit(r->f, group, r->weight + at, count);
        }
        const uint8_t code = code_of(r->f, g, target[p]);
        const float value = oq_int_value(g, code), e = t->x[i * r->k + at] - value;
        const double left = (double)(target[p] - value);
        noise += (double)r->weight[at] * left * left;
        t->codes[i * r->k + s] = code;
        t->e[i * r->k + at] = e;
        spread(target, u, e, p, width);
    }
    return noise;
}

static void round_tile(const tile *t)
{
    const rounding *r = t->r;
    for (int64_t b = 0; b * r->block < r->k; b++) {
        begin_block(t, t->x, t->e, b);
        for (int64_t i = 0; i < t->n; i++) r->rows[t->first + i].noise += round_block(t, i, b);
    }
}

/* ---- a tile -------------------------------------------------------------------------------------------- */

static double squares(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sum;
}

static void put_row(const rounding *r, int64_t row, const uint8_t *codes, const oq_int_grid *grids)
{
    const int64_t bytes = (r->k * r->f->int_bits + 7) / 8;
    uint8_t *to = (uint8_t *)r->to->plane[OQ_PLANE_DATA] + row * bytes;
    void *zero = r->f->planes & 1u << OQ_PLANE_ZERO ? r->to->plane[OQ_PLANE_ZERO] : NULL;
    memset(to, 0, (size_t)bytes);
    for (int64_t s = 0; s < r->k; s++) oq_code_put(to, s, r->f->int_bits, codes[s]);
    for (int64_t g = 0; g < r->groups; g++) {
        oq_int_put_scale(r->f, r->to->plane[OQ_PLANE_SCALE], row * r->groups + g, grids[g].scale);
        if (zero) oq_int_put_zero(zero, r->f->int_bits, row, g, r->groups, (unsigned)grids[g].zero);
    }
}

/* The better of both for each row; sums without the damping's part from now on. */
static void put_tile(const tile *t)
{
    const rounding *r = t->r;
    for (int64_t i = 0; i < t->n; i++) {
        row_sums *sums = &r->rows[t->first + i];
        sums->to_nearest = !(sums->noise < sums->nearest); /* so where a weight is not finite, too */
        sums->signal -= r->damping * squares(t->x + i * r->k, r->k);
        sums->nearest -= r->damping * sums->near_squares;
        sums->noise =
            sums->to_nearest ? sums->nearest : sums->noise - r->damping * squares(t->e + i * r->k, r->k);
        put_row(r, t->first + i, (sums->to_nearest ? t->near_codes : t->codes) + i * r->k,
                (sums->to_nearest ? t->near_grids : t->grids) + i * r->groups);
    }
}

static void run_rows(const tile *t, float *stored)
{
    const rounding *r = t->r;
    double signal[ROWS], nearest[ROWS];
    for (int64_t i = 0; i < t->n; i++) {
        round_nearest(t, i, stored);
        if (r->c->order == OQ_COLUMNS_BY_ACTIVITY) fit_early(t, i, stored);
        r->rows[t->first + i] = (row_sums){.near_squares = squares(t->e + i * r->k, r->k)};
    }
    norms(t, t->x, signal);
    norms(t, t->e, nearest);
    for (int64_t i = 0; i < t->n; i++)
        r->rows[t->first + i].signal = signal[i], r->rows[t->first + i].nearest = nearest[i];
    round_tile(t);
    put_tile(t);
}

static void run_tile(void *user, int64_t task, int worker)
{
    rounding *r = user;
    tile t = {.r = r, .first = task * ROWS, .n = oq_min_i64(ROWS, r->n - task * ROWS)};
    const size_t numbers = (size_t)(ROWS * r->k), grids = (size_t)(ROWS * r->groups);
    float *values = oq_alloc_raw(r->env, (2 * numbers + (size_t)(ROWS * r->block + r->k)) * sizeof *values);
    (void)worker;
    t.codes = oq_alloc_raw(r->env, 2 * numbers);
    t.grids = oq_alloc_raw(r->env, 2 * grids * sizeof *t.grids);
    if (values && t.codes && t.grids) {
        t.x = values, t.e = t.x + numbers, t.target = t.e + numbers;
        t.near_codes = t.codes + numbers;
        t.near_grids = t.grids + grids;
        run_rows(&t, t.target + ROWS * r->block);
    } else
        atomic_store(&r->failed, true);
    oq_free(r->env, t.grids);
    oq_free(r->env, t.codes);
    oq_free(r->env, values);
}

/* ---- the whole ----------------------------------------------------------------------------------------- */

/* The mean of the diagonal where the matrix is worth a try. */
static oq_compensated judge(const rounding *r, double *mean)
{
    double sum = 0, all = 0;
    for (int64_t i = 0; i < r->k; i++) {
        const float *row = r->hessian + i * r->k;
        for (int64_t j = 0; j < r->k; j++) all += fabs((double)row[j]);
        sum += (double)row[i];
    }
    *mean = sum / (double)r->k;
    if (!isfinite(all)) return OQ_NEAREST_NOT_FINITE;
    if (!(all > 0)) return OQ_NEAREST_NO_INPUTS;
    return sum > 0 ? OQ_COMPENSATED : OQ_NEAREST_INDEFINITE;
}

static void tell(const rounding *r, oq_compensation_result *result)
{
    for (int64_t i = 0; i < r->n; i++) {
        result->nearest_rows += r->rows[i].to_nearest;
        if (!isfinite(r->rows[i].nearest)) continue;
        result->signal += r->rows[i].signal;
        result->nearest_noise += r->rows[i].nearest;
        result->noise += r->rows[i].noise;
    }
}

static oq_status compensate(rounding *r, double mean, oq_compensation_result *result)
{
    OQ_TRY(order_columns(r));
    OQ_TRY(factor(r, mean, result));
    oq_pool_run(r->env->pool, oq_ceil_div(r->n, ROWS), run_tile, r);
    if (atomic_load(&r->failed)) return OQ_E_NOMEM;
    tell(r, result);
    return OQ_OK;
}

/* Rounds, compensated where that is possible. */
static oq_status run(rounding *r, oq_compensation_result *result)
{
    double mean = 0;
    result->how = judge(r, &mean);
    const oq_status st = result->how == OQ_COMPENSATED ? compensate(r, mean, result) : OQ_OK;
    if (st == OQ_E_FORMAT) result->how = OQ_NEAREST_INDEFINITE;
    if (st != OQ_OK && st != OQ_E_FORMAT) return st;
    if (result->how == OQ_COMPENSATED) return OQ_OK;
    result->damping = 0;
    r->f->encode(r->f, r->to, r->w, r->n, r->k);
    for (int32_t s = 0; s < r->k; s++) r->stored[s] = s;
    return OQ_OK;
}

oq_status oq_compensate(oq_env *env, const oq_compensation *c, const float *w, const float *hessian,
                        int64_t n, int64_t k, oq_planes_mut *planes, int32_t *order,
                        oq_compensation_result *result)
{
    const oq_format *f = c->format;
    rounding r = {.env = env,
                  .c = c,
                  .f = f,
                  .w = w,
                  .hessian = hessian,
                  .n = n,
                  .k = k,
                  .block = BLOCK / f->block_k * f->block_k,
                  .groups = oq_ceil_div(k, f->block_k),
                  .to = planes};
    int32_t *columns = oq_alloc_raw(env, 3 * (size_t)k * sizeof *columns);
    oq_status st = OQ_E_NOMEM;
    *result = (oq_compensation_result){.how = OQ_COMPENSATED};
    r.weight = oq_alloc_raw(env, 2 * (size_t)k * sizeof *r.weight);
    r.rows = oq_alloc(env, (size_t)n * sizeof *r.rows);
    if (columns && r.weight && r.rows) {
        r.column = columns, r.slot = columns + k, r.stored = columns + 2 * k;
        r.slot_weight = r.weight + k;
        st = run(&r, result);
        if (st == OQ_OK && order) memcpy(order, r.stored, (size_t)k * sizeof *order);
    }
    oq_free(env, r.feedback);
    oq_free(env, r.rows);
    oq_free(env, r.weight);
    oq_free(env, columns);
    return st;
}
