/* command_bench.c -- how fast this machine runs kernels, a model's layers and whole pictures. */
#include "engine/bench.h"

#include "base/pool.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void oq_bench_say(oq_bench *b, const char *fmt, ...)
{
    enum { LONG_S = 1 };
    char line[256];
    const double now = oq_now_s();
    va_list args;
    va_start(args, fmt);
    vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    oq_log(b->env, now - b->said_s > LONG_S ? OQ_LOG_RESULT : OQ_LOG_INFO, "bench: %s", line);
    b->said_s = now;
}

oq_status oq_bench_add(oq_bench *b, const oq_bench_row *row, double *ms, size_t n, const char *peer)
{
    oq_json *o = oq_json_new_object();
    qsort(ms, n, sizeof *ms, compare_doubles);
    const double median = n % 2 ? ms[n / 2] : (ms[n / 2 - 1] + ms[n / 2]) / 2;
    const double gflops = row->flops > 0 ? row->flops / median / 1e6 : 0;
    oq_json_set(o, "op", oq_json_new_string(row->op));
    oq_json_set(o, "shape", oq_json_new_string(row->shape));
    oq_json_set(o, "dtype", oq_json_new_string(row->dtype));
    oq_json_set(o, "kernel", oq_json_new_string(row->kernel));
    oq_json_set(o, "ms", oq_json_new_real(median));
    oq_json_set(o, "gflops", row->flops > 0 ? oq_json_new_real(gflops) : oq_json_new_null());
    oq_json_set(o, "min", oq_json_new_real(ms[0]));
    oq_json_set(o, "max", oq_json_new_real(ms[n - 1]));
    oq_json_set(o, "n", oq_json_new_int((int64_t)n));
    oq_json_set(o, "peer", oq_json_new_string(peer));
    oq_json_append(b->rows, o);
    oq_strbuf_printf(b->text, "%-10s %-28s %-22s %-34s %10.3f", row->op, row->shape, row->dtype,
                     peer ? peer : row->kernel, median);
    if (gflops > 0) oq_strbuf_printf(b->text, " %9.1f", gflops);
    oq_strbuf_putc(b->text, '\n');
    oq_bench_say(b, "%s %s %s %s: %.3f ms", row->op, row->shape, row->dtype, peer ? peer : row->kernel,
                 median);
    return oq_check_canceled(b->env);
}

oq_status oq_bench_measure(oq_bench *b, const oq_bench_row *row, oq_bench_fn fn, void *user)
{
    enum { MOST = 2000, LEAST = 3 };
    double ms[MOST];
    size_t n = 0;
    oq_pool_hot_begin(b->env->pool);
    oq_status st = fn(user);
    const double start = oq_now_s();
    while (st == OQ_OK && n < MOST && (n < LEAST || oq_now_s() - start < b->seconds)) {
        const double begin = oq_now_s();
        st = fn(user);
        ms[n++] = (oq_now_s() - begin) * 1e3;
    }
    oq_pool_hot_end(b->env->pool);
    return st == OQ_OK ? oq_bench_add(b, row, ms, n, NULL) : st;
}

static bool wanted(const oq_options *o, const char *section)
{
    return strcmp(oq_options_text(o, "only", section), section) == 0;
}

/* Before minutes of kernels: the model that is measured behind them is there. */
static oq_status check_model(const oq_bench *b)
{
    oq_folder *folder = NULL;
    OQ_TRY(oq_folder_open(b->env, oq_options_text(b->options, "model", NULL), &folder));
    oq_folder_close(folder);
    return OQ_OK;
}

static oq_status run_sections(oq_bench *b)
{
    const bool model = oq_options_given(b->options, "model"),
               compare = oq_options_flag(b->options, "compare");
    const bool blocks = oq_options_given(b->options, "only") && wanted(b->options, "blocks");
    const bool formats = oq_options_given(b->options, "only") && wanted(b->options, "formats");
    if (formats && !compare)
        return oq_fail(b->env, OQ_E_ARG,
                       "bench of formats compares them with their peers: it needs --compare");
    if (!model && oq_options_given(b->options, "only") && !wanted(b->options, "kernels") && !blocks &&
        !formats)
        return oq_fail(b->env, OQ_E_ARG, "bench of %s needs a model: --model DIR",
                       oq_options_text(b->options, "only", ""));
    if (compare && oq_options_given(b->options, "only") && wanted(b->options, "layers"))
        return oq_fail(b->env, OQ_E_ARG,
                       "bench --compare compares kernels, blocks, formats and whole, not layers");
    if (model) OQ_TRY(check_model(b));
    if (compare) return oq_bench_compare(b);
    oq_strbuf_printf(b->text, "%-10s %-28s %-22s %-34s %10s %9s\n", "op", "shape", "dtype", "kernel", "ms",
                     "GFLOP/s");
    if (blocks) {
        OQ_TRY(oq_bench_blocks(b, NULL));
        return oq_bench_long_attention(b);
    }
    if (wanted(b->options, "kernels")) OQ_TRY(oq_bench_kernels(b));
    if (model && wanted(b->options, "layers")) OQ_TRY(oq_bench_layers(b));
    return model && wanted(b->options, "whole") ? oq_bench_whole(b) : OQ_OK;
}

static oq_status bench(oq_env *env, oq_options *options, oq_report **out)
{
    oq_strbuf text;
    OQ_TRY(oq_command_no_arguments(env, options, "the model is given with --model"));
    oq_strbuf_init(&text, env);
    oq_bench b = {.env = env,
                  .options = options,
                  .seconds = oq_options_real(options, "seconds", 0.2),
                  .filter = oq_options_text(options, "filter", NULL),
                  .rows = oq_json_new_array(),
                  .text = &text,
                  .said_s = oq_now_s()};
    oq_status st = run_sections(&b);
    if (st == OQ_OK && b.filter && oq_json_size(b.rows) == 0)
        st = oq_fail(env, OQ_E_ARG, "filter '%s' matches no kernel and no run of this part of the benchmark",
                     b.filter);
    if (st == OQ_OK) return oq_report_finish(env, b.rows, &text, true, out);
    oq_json_free(b.rows);
    oq_strbuf_deinit(&text);
    return st;
}

const oq_command oq_command_bench = {
    .info = {"bench", "[-m MODEL] [flags]",
             "measure kernels, a model's layers and whole runs on this machine"},
    .run = bench,
};
