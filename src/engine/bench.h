/* bench.h -- the parts of `omniq bench`: one measurement, one row, three sections. */
#ifndef OQ_ENGINE_BENCH_H
#define OQ_ENGINE_BENCH_H

#include "engine/command.h"

typedef struct oq_bench_peer oq_bench_peer; /* see below */

typedef struct oq_bench {
    oq_env *env;
    oq_options *options;
    double seconds;     /* least time of one measurement */
    const char *filter; /* glob over kernel names; NULL: all */
    oq_json *rows;      /* one object per measurement */
    oq_strbuf *text;
    double said_s; /* when the last row was there */
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

/* Says a row as it ends: to everybody where rows take seconds, else to who asked for details. */
void oq_bench_say(oq_bench *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

oq_status oq_bench_kernels(oq_bench *b);
oq_status oq_bench_layers(oq_bench *b);
oq_status oq_bench_whole(oq_bench *b);
/* One block of each family's published transformer, made-up weights; beside the peer's where there is one (else NULL). */
oq_status oq_bench_blocks(oq_bench *b, oq_bench_peer *peer);
/* Attention over a video's tokens: plain, quantized, block-sparse. */
oq_status oq_bench_long_attention(oq_bench *b);

/* ---- beside a peer: tools/dev/peer, one Python process with torch and diffusers that takes one order a line ---- */

/* Starts it; NOTFOUND outside omniq's repository. */
oq_status oq_bench_peer_start(oq_bench *b, oq_bench_peer **out);
/* Sends a line and takes the answer, an object of JSON that the caller frees. A peer that answers {"error": ...} or goes
 * away is an error with its words; one that only lacks what a case needs answers {"absent": ...}. */
oq_status oq_bench_peer_ask(oq_bench_peer *peer, oq_json **answer, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void oq_bench_peer_stop(oq_bench_peer *peer);
/* The peer gets ready for `order`; *absent: it cannot, and has said why. name[n]: what it calls itself. */
oq_status oq_bench_peer_order(oq_bench *b, oq_bench_peer *peer, const char *order, char *name, size_t n, bool *absent);

enum { OQ_BENCH_PAIRS = 15, OQ_BENCH_MOST_PAIRS = 64 };

typedef struct oq_bench_pairing { /* two sides that take turns */
    oq_bench *b;
    oq_bench_peer *peer; /* NULL: the peer is `other` of ours */
    oq_bench_fn run, other;
    void *user, *other_user;
    bool cold;     /* no call to warm up */
    int pairs;     /* at most OQ_BENCH_MOST_PAIRS */
    oq_pool *pool; /* NULL: on this thread */
} oq_bench_pairing;

typedef struct oq_bench_pair_row {
    const char *op, *shape, *dtype, *kernel, *peer;
    int threads;
    double flops;
} oq_bench_pair_row;

/* A row of n pairs that were measured: medians of both sides' milliseconds, median of the ratios and its spread. */
void oq_bench_add_pair(oq_bench *b, const oq_bench_pair_row *row, double *ours, double *theirs, double *ratios, size_t n);
/* Measures pairs and adds their row. */
oq_status oq_bench_turns(const oq_bench_pairing *p, const oq_bench_pair_row *row);

/* Ours and the peer's in turns, at least 15 each: the median of their ratios with its spread, on all threads and on one. */
oq_status oq_bench_compare(oq_bench *b);

/* Products of every quantized format beside our own bf16, ggml, and torch's dequantized weights. */
oq_status oq_bench_formats(oq_bench *b, oq_bench_peer *peer, oq_device *device);

/* The model of --model as generate would open it, loaded; and the request that is measured. In bench_model.c. */
oq_status oq_bench_open_model(oq_bench *b, const char *method, oq_arena *arena, oq_options **options, oq_model **model,
                              oq_request *request);

#endif
