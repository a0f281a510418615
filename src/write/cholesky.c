/* cholesky.c -- A = L L^T by panels: a panel of columns is factored, then everything to its right is updated, which is
 * where the time goes. */
#include "write/cholesky.h"

#include "base/pool.h"
#include "base/size.h"

#include <math.h>

enum { PANEL = 64, ROWS = 16, STRIP = 128 };

typedef struct factoring {
    double *a;
    int64_t k, at, end;       /* columns of the panel */
    double *restrict columns; /* [PANEL][k - end]: the panel below its square, transposed */
} factoring;

/* Row i of the panel, given the square's rows above; the diagonal belongs to the caller. */
static void solve_row(const factoring *f, int64_t i, int64_t n)
{
    double *row = f->a + i * f->k + f->at;
    for (int64_t j = 0; j < n; j++) {
        const double *other = f->a + (f->at + j) * f->k + f->at;
        double sum = row[j];
        for (int64_t q = 0; q < j; q++) sum -= row[q] * other[q];
        row[j] = sum / other[j];
    }
}

static bool factor_square(const factoring *f)
{
    for (int64_t i = f->at; i < f->end; i++) {
        double *row = f->a + i * f->k + f->at;
        const int64_t n = i - f->at;
        solve_row(f, i, n);
        double left = row[n];
        for (int64_t q = 0; q < n; q++) left -= row[q] * row[q];
        if (!(left > 0) || !isfinite(left)) return false;
        row[n] = sqrt(left);
    }
    return true;
}

static void solve_rows(void *user, int64_t task, int worker)
{
    const factoring *f = user;
    const int64_t first = f->end + task * ROWS, last = oq_min_i64(first + ROWS, f->k), below = f->k - f->end;
    (void)worker;
    for (int64_t i = first; i < last; i++) {
        const double *row = f->a + i * f->k + f->at;
        solve_row(f, i, f->end - f->at);
        for (int64_t q = 0; q < f->end - f->at; q++) f->columns[q * below + i - f->end] = row[q];
    }
}

/* dst[n] -= sum of l[q] * p[q][n] over the panel, four columns of it at a time. */
static void subtract(double *restrict dst, const double *l, const double *restrict p, int64_t stride,
                     int64_t n_q, int64_t n)
{
    int64_t q = 0;
    for (; q + 4 <= n_q; q += 4) {
        const double *restrict p0 = p + q * stride, *restrict p1 = p0 + stride, *restrict p2 = p1 + stride,
                               *restrict p3 = p2 + stride;
        for (int64_t j = 0; j < n; j++)
            dst[j] -= (l[q] * p0[j] + l[q + 1] * p1[j]) + (l[q + 2] * p2[j] + l[q + 3] * p3[j]);
    }
    for (; q < n_q; q++)
        for (int64_t j = 0; j < n; j++) dst[j] -= l[q] * p[q * stride + j];
}

static void update_rows(void *user, int64_t task, int worker)
{
    const factoring *f = user;
    const int64_t first = f->end + task * ROWS, last = oq_min_i64(first + ROWS, f->k), below = f->k - f->end;
    (void)worker;
    for (int64_t c = f->end; c < last; c += STRIP)
        for (int64_t i = oq_max_i64(first, c); i < last; i++)
            subtract(f->a + i * f->k + c, f->a + i * f->k + f->at, f->columns + c - f->end, below,
                     f->end - f->at, oq_min_i64(STRIP, i + 1 - c));
}

oq_status oq_cholesky(oq_env *env, double *a, int64_t k)
{
    factoring f = {.a = a, .k = k};
    f.columns = oq_alloc_raw(env, (size_t)k * PANEL * sizeof *f.columns);
    if (!f.columns) return OQ_E_NOMEM;
    oq_status st = OQ_OK;
    for (; st == OQ_OK && f.at < k; f.at = f.end) {
        f.end = oq_min_i64(f.at + PANEL, k);
        const int64_t tasks = oq_ceil_div(k - f.end, ROWS);
        if (!factor_square(&f)) {
            st = OQ_E_FORMAT;
            break;
        }
        oq_pool_run(env->pool, tasks, solve_rows, &f);
        oq_pool_run(env->pool, tasks, update_rows, &f);
    }
    oq_free(env, f.columns);
    return st;
}
