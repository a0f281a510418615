/* bench.h -- the parts of `omniq bench`: one measurement, one row, three sections. */
#ifndef OQ_ENGINE_BENCH_H
#define OQ_ENGINE_BENCH_H

#include "engine/command.h"

typedef struct oq_bench {
    oq_env *env;
    oq_options *options;
    double seconds;     /* least time of one measurement */
    const char *filter; /* glob over kernel names; NULL: all */
    oq_json *rows;      /* one object per measurement */
    oq_strbuf *text;
} oq_bench;

typedef struct oq_bench_row {
    const char *op, *shape, *dtype, *kernel;
    double flops; /* of one call; 0: not counted */
} oq_bench_row;

/* Calls fn(user) once to warm up, then for `seconds` and at least three times; adds a row with the median,
 * least and most milliseconds. */
typedef oq_status (*oq_bench_fn)(void *user);
oq_status oq_bench_measure(oq_bench *b, const oq_bench_row *row, oq_bench_fn fn, void *user);
/* A row from milliseconds that were measured elsewhere; `peer` NULL: ours. */
oq_status oq_bench_add(oq_bench *b, const oq_bench_row *row, double *ms, size_t n, const char *peer);

oq_status oq_bench_kernels(oq_bench *b);
oq_status oq_bench_layers(oq_bench *b);
oq_status oq_bench_whole(oq_bench *b);
oq_status oq_bench_peer(oq_bench *b); /* runs tools/dev/peer and adds its rows */

#endif
