/* norm_ref.c -- the norms in double, two passes: what the fast ones are checked against. */
#include "cpu/norm/norm.h"

#include "cpu/elementwise/elem.h"

#include <math.h>

/* One run of columns: y = x * rsqrt(mean(x^2) + eps) * weight. */
static void rms_run(const oq_norm_args *a, int64_t row, int64_t first, int64_t n)
{
    double sum = 0;
    for (int64_t j = 0; j < n; j++) {
        const double x = oq_elem_get(&a->x, row, first + j);
        sum += x * x;
    }
    const double scale = 1.0 / sqrt(sum / (double)n + (double)a->eps);
    for (int64_t j = 0; j < n; j++) {
        const double x = oq_elem_get(&a->x, row, first + j) * scale;
        const double w = a->weight ? (double)a->weight[j] : 1.0;
        if (a->round_before_weight)
            oq_elem_put(&a->y, row, first + j, (float)((double)oq_elem_round(&a->y, (float)x) * w));
        else
            oq_elem_put(&a->y, row, first + j, (float)(x * w));
    }
}

static void rms_rows(const void *args, int64_t first, int64_t end)
{
    const oq_norm_args *a = args;
    const int64_t n = a->group > 0 ? a->group : a->x.cols;
    for (int64_t row = first; row < end; row++)
        for (int64_t j = 0; j + n <= a->x.cols; j += n) rms_run(a, row, j, n);
}

void oq_rms_norm_ref(oq_device *d, const oq_norm_args *a)
{
    oq_rows_run(d->pool, a->x.rows, a->x.cols, rms_rows, a);
}

static void layer_rows(const void *args, int64_t first, int64_t end)
{
    const oq_norm_args *a = args;
    const int64_t n = a->x.cols;
    for (int64_t row = first; row < end; row++) {
        double sum = 0, squares = 0;
        for (int64_t j = 0; j < n; j++) sum += (double)oq_elem_get(&a->x, row, j);
        const double mean = sum / (double)n;
        for (int64_t j = 0; j < n; j++) {
            const double x = oq_elem_get(&a->x, row, j) - mean;
            squares += x * x;
        }
        const double scale = 1.0 / sqrt(squares / (double)n + (double)a->eps);
        for (int64_t j = 0; j < n; j++) {
            double y = (oq_elem_get(&a->x, row, j) - mean) * scale;
            if (a->weight) y *= (double)a->weight[j];
            if (a->bias) y += (double)a->bias[j];
            oq_elem_put(&a->y, row, j, (float)y);
        }
    }
}

void oq_layer_norm_ref(oq_device *d, const oq_norm_args *a)
{
    oq_rows_run(d->pool, a->x.rows, a->x.cols, layer_rows, a);
}

oq_moments oq_moments_join(const oq_norm_args *a, int64_t g)
{
    oq_moments all = {0};
    for (int64_t i = 0; i < a->n_moments; i++) {
        const double *const piece = a->moments + (i * a->group + g) * 3;
        all.n += piece[0];
        all.mean += piece[0] * piece[1];
    }
    all.mean /= all.n;
    for (int64_t i = 0; i < a->n_moments; i++) {
        const double *const piece = a->moments + (i * a->group + g) * 3, apart = piece[1] - all.mean;
        all.squares += piece[2] + piece[0] * apart * apart;
    }
    return all;
}

/* n_rows rows from `row`, `width` columns from `col`. */
static oq_moments moments_of(const oq_tensor *x, int64_t row, int64_t n_rows, int64_t col, int64_t width)
{
    oq_moments m = {.n = (double)(n_rows * width)};
    for (int64_t i = row; i < row + n_rows; i++)
        for (int64_t j = col; j < col + width; j++) m.mean += (double)oq_elem_get(x, i, j);
    m.mean /= m.n;
    for (int64_t i = row; i < row + n_rows; i++)
        for (int64_t j = col; j < col + width; j++) {
            const double apart = (double)oq_elem_get(x, i, j) - m.mean;
            m.squares += apart * apart;
        }
    return m;
}

/* One image and group. */
static void group_block(const oq_norm_args *a, int64_t row, int64_t n_rows, int64_t col, int64_t width)
{
    const oq_moments m =
        a->moments ? oq_moments_join(a, col / width) : moments_of(&a->x, row, n_rows, col, width);
    const double scale = 1.0 / sqrt(m.squares / m.n + (double)a->eps);
    for (int64_t i = row; i < row + n_rows; i++)
        for (int64_t j = col; j < col + width; j++) {
            double y = ((double)oq_elem_get(&a->x, i, j) - m.mean) * scale;
            if (a->weight) y *= (double)a->weight[j];
            if (a->bias) y += (double)a->bias[j];
            if (a->silu) y /= 1.0 + exp(-y);
            oq_elem_put(&a->y, i, j, (float)y);
        }
}

static void group_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const oq_norm_args *a = user;
    const int64_t n_rows = a->x.rows / a->batch, width = a->x.cols / a->group;
    group_block(a, i / a->group * n_rows, n_rows, i % a->group * width, width);
}

void oq_group_norm_ref(oq_device *d, const oq_norm_args *a)
{
    oq_norm_args args = *a;
    oq_pool_run(d->pool, a->batch * a->group, group_task, &args);
}

typedef struct moments_job {
    oq_tensor x;
    int64_t width;
    double *out;
} moments_job;

static void moments_task(void *user, int64_t g, int worker)
{
    (void)worker;
    const moments_job *job = user;
    const oq_moments m = moments_of(&job->x, 0, job->x.rows, g * job->width, job->width);
    double *const out = job->out + g * 3;
    out[0] = m.n, out[1] = m.mean, out[2] = m.squares;
}

void oq_group_moments_ref(oq_device *d, oq_tensor x, int64_t group, double *moments)
{
    moments_job job = {x, x.cols / group, moments};
    oq_pool_run(d->pool, group, moments_task, &job);
}
