/* bench_turns.c -- one row of a comparison: ours and the other side in turns. A figure of another minute is worth nothing
 * on a machine that is shared; each turn is one call to warm up and then calls for some milliseconds, of which the median
 * counts; a row is the median of the turns' ratios, with what lies between a tenth and nine tenths of them. Between turns
 * both sides' threads get time to fall asleep. */
#include "engine/bench.h"

#include "base/pool.h"

#include <stdlib.h>
#include <time.h>

enum { MOST_CALLS = 512 };
#define SETTLE_S 0.008 /* an OpenMP runtime spins for milliseconds after its last call */

/* All turns of one side together take as long as one measurement of the plain benchmark. */
static double turn_s(const oq_bench *b)
{
    return b->seconds / OQ_BENCH_PAIRS;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void settle(void)
{
    const struct timespec t = {0, (long)(SETTLE_S * 1e9)};
    nanosleep(&t, NULL);
}

static oq_status our_turn(const oq_bench_pairing *p, oq_bench_fn run, void *user, double *ms)
{
    double times[MOST_CALLS];
    size_t n = 0;
    oq_status st = OQ_OK;
    oq_pool_hot_begin(p->pool);
    if (!p->cold) st = run(user);
    const double start = oq_now_s();
    while (st == OQ_OK && n < MOST_CALLS && (n == 0 || oq_now_s() - start < turn_s(p->b))) {
        const double begin = oq_now_s();
        st = run(user);
        times[n++] = (oq_now_s() - begin) * 1e3;
    }
    oq_pool_hot_end(p->pool);
    OQ_TRY(st);
    qsort(times, n, sizeof *times, by_value);
    *ms = times[n / 2];
    return OQ_OK;
}

static oq_status their_turn(const oq_bench_pairing *p, double *ms)
{
    oq_json *answer = NULL;
    if (!p->peer) return our_turn(p, p->other, p->other_user, ms);
    OQ_TRY(oq_bench_peer_ask(p->peer, &answer, "turn %g", turn_s(p->b)));
    *ms = oq_json_real(oq_json_get(answer, "ms"), 0);
    oq_json_free(answer);
    return *ms > 0 ? OQ_OK : oq_fail(p->b->env, OQ_E_IO, "the peer has no time for its turn");
}

void oq_bench_add_pair(oq_bench *b, const oq_bench_pair_row *row, double *ours, double *theirs,
                       double *ratios, size_t n)
{
    oq_json *o = oq_json_new_object();
    qsort(ours, n, sizeof *ours, by_value);
    qsort(theirs, n, sizeof *theirs, by_value);
    qsort(ratios, n, sizeof *ratios, by_value);
    const double ms = ours[n / 2], low = ratios[n / 10], high = ratios[n - 1 - n / 10];
    oq_json_set(o, "op", oq_json_new_string(row->op));
    oq_json_set(o, "shape", oq_json_new_string(row->shape));
    oq_json_set(o, "dtype", oq_json_new_string(row->dtype));
    oq_json_set(o, "kernel", oq_json_new_string(row->kernel));
    oq_json_set(o, "threads", oq_json_new_int(row->threads));
    oq_json_set(o, "ms", oq_json_new_real(ms));
    oq_json_set(o, "gflops", row->flops > 0 ? oq_json_new_real(row->flops / ms / 1e6) : oq_json_new_null());
    oq_json_set(o, "peer", oq_json_new_string(row->peer));
    oq_json_set(o, "peer_ms", oq_json_new_real(theirs[n / 2]));
    oq_json_set(o, "ratio", oq_json_new_real(ratios[n / 2]));
    oq_json_set(o, "ratio_low", oq_json_new_real(low));
    oq_json_set(o, "ratio_high", oq_json_new_real(high));
    oq_json_set(o, "n", oq_json_new_int((int64_t)n));
    oq_json_append(b->rows, o);
    oq_strbuf_printf(b->text, "%-11s %-24s %-12s %-31s %d %10.3f %10.3f %6.2f  %.2f-%.2f  %s\n", row->op,
                     row->shape, row->dtype, row->kernel, row->threads, ms, theirs[n / 2], ratios[n / 2], low,
                     high, row->peer);
    oq_bench_say(b, "%s %s %s on %d: %.3f ms, %s %.3f: %.2f times", row->op, row->shape, row->dtype,
                 row->threads, ms, row->peer, theirs[n / 2], ratios[n / 2]);
}

oq_status oq_bench_turns(const oq_bench_pairing *p, const oq_bench_pair_row *row)
{
    double ours[OQ_BENCH_MOST_PAIRS], theirs[OQ_BENCH_MOST_PAIRS], ratios[OQ_BENCH_MOST_PAIRS];
    for (int i = 0; i < p->pairs; i++) {
        OQ_TRY(our_turn(p, p->run, p->user, &ours[i]));
        settle();
        OQ_TRY(their_turn(p, &theirs[i]));
        settle();
        ratios[i] = theirs[i] / ours[i];
        OQ_TRY(oq_check_canceled(p->b->env));
    }
    oq_bench_add_pair(p->b, row, ours, theirs, ratios, (size_t)p->pairs);
    return OQ_OK;
}
