/* elem_rows.c -- shares rows out over the pool in even pieces of about 4 K elements: what a core does in a microsecond. */
#include "cpu/elementwise/elem.h"

#include "base/size.h"

#define ELEMS_PER_TASK 4096

typedef struct rows_job {
    oq_rows_fn fn;
    const void *args;
    int64_t rows, step;
} rows_job;

static void run_piece(void *user, int64_t i, int worker)
{
    (void)worker;
    const rows_job *job = user;
    const int64_t first = i * job->step;
    job->fn(job->args, first, oq_min_i64(first + job->step, job->rows));
}

void oq_rows_run(oq_pool *pool, int64_t rows, int64_t cols, oq_rows_fn fn, const void *args)
{
    if (rows <= 0) return;
    rows_job job = {.fn = fn, .args = args, .rows = rows};
    const int64_t most = oq_max_i64(1, ELEMS_PER_TASK / oq_max_i64(1, cols)); /* rows of a piece */
    job.step = oq_ceil_div(rows, oq_ceil_div(rows, most));
    const int64_t n_tasks = oq_ceil_div(rows, job.step);
    if (n_tasks == 1)
        fn(args, 0, rows);
    else
        oq_pool_run(pool, n_tasks, run_piece, &job);
}
