/* test_linear_panel.c -- how a product is cut into tasks: everything once, and all threads busy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/size.h"
#include "cpu/linear/linear_panel.h"

#include <stdio.h>
#include <stdlib.h>

/* What a product costs when threads take tasks one after the other, against an even division: 1 is ideal. Rounds of rows are
 * one after the other, as oq_panel_run has them. */
static double balance(const oq_panel_engine *engine, oq_linear_args *args, int64_t m, int threads)
{
    double longest = 0, sum = 0;
    oq_panel_job job = {.engine = engine, .args = args};
    oq_panel_layout_init(engine, args->spec, &job.layout);
    job.lda = (size_t)job.layout.depth * 4 + 64;
    for (int64_t first = 0; first < m; first += OQ_PANEL_SUPER) {
        double *const busy = calloc((size_t)threads, sizeof *busy);
        assert_non_null(busy);
        job.rows = oq_min_i64(OQ_PANEL_SUPER, m - first);
        oq_panel_cut(&job, threads);
        const int64_t groups = oq_ceil_div(job.units, job.group);
        assert_int_equal(oq_panel_tasks(&job), oq_ceil_div(job.rows, job.block) * groups);
        assert_true(job.block % engine->mr == 0 && job.block > 0 && job.group > 0);
        double most = 0;
        for (int64_t t = 0; t < oq_panel_tasks(&job); t++) {
            const int64_t rows = oq_min_i64(job.block, job.rows - t / groups * job.block);
            const int64_t units = oq_min_i64(job.group, job.units - t % groups * job.group);
            const double cost = (double)(oq_ceil_div(rows, engine->mr) * units);
            int least = 0;
            for (int i = 1; i < threads; i++)
                if (busy[i] < busy[least]) least = i;
            busy[least] += cost;
            sum += cost;
            if (busy[least] > most) most = busy[least];
        }
        longest += most;
        free(busy);
    }
    return sum / threads / longest;
}

static void check_balance(int64_t m, int64_t n, int64_t k, bool glu, int threads, double least)
{
    const oq_panel_engine bf16 = {.mr = 12, .nr = 32, .step = 2, .pack_step = 2};
    const oq_linear_spec spec = {.scheme = {.weight = &oq_format_bf16}, .n = n, .k = k};
    const oq_post post = {.kind = glu ? OQ_POST_GLU : OQ_POST_NONE};
    oq_linear_args args = {.spec = &spec, .post = &post};
    const double have = balance(&bf16, &args, m, threads);
    if (have < least)
        fail_msg("%lld x %lld x %lld on %d threads: balance %.2f, expected %.2f", (long long)m, (long long)n,
                 (long long)k, threads, have, least);
}

static void test_threads_are_busy(void **state)
{
    (void)state;
    static const int64_t small[][3] = {{256, 192, 192}, {288, 192, 192}, {288, 576, 192}, {288, 1024, 192},
                                       {288, 192, 512}, {320, 576, 576}, {32, 320, 192},  {256, 64, 192}};
    static const int64_t large[][3] = {
        {1024, 3840, 3840}, {4096, 3072, 12288}, {4128, 11520, 3840}, {512, 2048, 4096}};
    for (size_t i = 0; i < OQ_COUNT(small); i++) {
        check_balance(small[i][0], small[i][1], small[i][2], false, 1, 1.0);
        check_balance(small[i][0], small[i][1], small[i][2], false, 2, 0.9);
    }
    for (size_t i = 0; i < OQ_COUNT(large); i++) {
        check_balance(large[i][0], large[i][1], large[i][2], false, 1, 1.0);
        check_balance(large[i][0], large[i][1], large[i][2], false, 2, 0.95);
        check_balance(large[i][0], large[i][1], large[i][2], false, 64, 0.75);
        check_balance(large[i][0], large[i][1], large[i][2], true, 2, 0.95);
    }
    check_balance(288, 1024, 192, true, 2, 0.9);
    check_balance(288, 1024, 192, false, 64, 0.7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_threads_are_busy)};
    return cmocka_run_group_tests_name("linear panel", tests, NULL, NULL);
}
