/* attention_ref.c -- o = softmax(scale * q k^T + bias, masked) v in double, the whole row of scores at once.
 * A key that a row does not see (mask, causality, a bias of -infinity) takes no part at all: its values may
 * be NaN. */
#include "cpu/attention/attention.h"

#include "base/size.h"
#include "cpu/elementwise/elem.h"

#include <math.h>

#define LANES 64 /* tasks with a buffer of their own, whatever the number of threads */

static bool accepts(const oq_attention_spec *spec)
{
    (void)spec;
    return true;
}

/* Per lane: the scores of one row and its sum of values. */
static int64_t lane_doubles(const oq_attention_spec *spec, int64_t n_kv)
{
    return (n_kv + spec->head_dim + 7) / 8 * 8;
}

static size_t scratch_bytes(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv)
{
    (void)n_q;
    return (size_t)(LANES * lane_doubles(spec, n_kv)) * sizeof(double);
}

static bool block_seen(const oq_attention_args *a, int64_t head, int64_t i, int64_t j)
{
    if (!a->block_map) return true;
    const int64_t block = OQ_ATTENTION_SPARSE_BLOCK, n_kv = oq_ceil_div(a->k.rows, block);
    return a->block_map[(head * oq_ceil_div(a->q.rows, block) + i / block) * n_kv + j / block];
}

/* Scores of query (head, i) into s, -infinity where unseen; returns the largest, NaN if any is. */
static double score_row(const oq_attention_args *a, int64_t head, int64_t i, double *s)
{
    const oq_attention_spec *spec = a->spec;
    const int64_t d = spec->head_dim, n_kv = a->k.rows;
    const int64_t q0 = head * d, k0 = head / (spec->n_heads / spec->n_kv_heads) * d;
    const int64_t last = spec->causal ? i + (n_kv - a->q.rows) : n_kv;
    double max = -INFINITY;
    for (int64_t j = 0; j < n_kv; j++) {
        s[j] = -INFINITY;
        if (j > last || (a->key_mask && !a->key_mask[j]) || !block_seen(a, head, i, j)) continue;
        double dot = 0;
        for (int64_t c = 0; c < d; c++)
            dot += (double)oq_elem_get(&a->q, i, q0 + c) * (double)oq_elem_get(&a->k, j, k0 + c);
        s[j] = dot * (double)a->scale;
        if (a->bias) s[j] += (double)a->bias[head * a->bias_head + i * a->bias_row + j];
        if (s[j] > max || isnan(s[j])) max = s[j];
    }
    return max;
}

static void attend_row(const oq_attention_args *a, int64_t head, int64_t i, double *s, double *sum)
{
    const int64_t d = a->spec->head_dim, n_kv = a->k.rows;
    const int64_t v0 = head / (a->spec->n_heads / a->spec->n_kv_heads) * d;
    const double max = score_row(a, head, i, s);
    double total = 0;
    for (int64_t c = 0; c < d; c++) sum[c] = 0;
    for (int64_t j = 0; j < n_kv; j++) {
        if (s[j] == -INFINITY) continue;
        const double p = exp(s[j] - max);
        total += p;
        for (int64_t c = 0; c < d; c++) sum[c] += p * (double)oq_elem_get(&a->v, j, v0 + c);
    }
    for (int64_t c = 0; c < d; c++)
        oq_elem_put(&a->o, i, head * d + c, total == 0 ? 0.0f : (float)(sum[c] / total));
}

static void run_lane(void *user, int64_t lane, int worker)
{
    (void)worker;
    const oq_attention_args *a = user;
    double *s = (double *)a->scratch + lane * lane_doubles(a->spec, a->k.rows);
    const int64_t n_rows = a->spec->n_heads * a->q.rows;
    for (int64_t row = lane; row < n_rows; row += LANES)
        attend_row(a, row / a->q.rows, row % a->q.rows, s, s + a->k.rows);
}

static void run(oq_device *device, const oq_attention_args *args)
{
    oq_attention_args a = *args;
    oq_pool_run(device->pool, LANES, run_lane, &a);
}

const oq_attention_kernel oq_attention_ref = {
    .name = "attention_ref",
    .block_map = true,
    .accepts = accepts,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
