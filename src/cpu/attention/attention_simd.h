/* attention_simd.h -- the body of attention_avx2.c and attention_avx512.c: online softmax over blocks of
 * keys.
 *
 * K and V of a few key heads at a time are packed into scratch as f32 panels (K transposed), read by all
 * query heads of the group. A task takes Q_ROWS queries of one head through all blocks of up to KEYS keys: scores
 * by tile.h, running maximum and sum, p v by tile.h. Keys that the mask hides, and the padding of the last
 * panel, are packed as zeros and score -infinity: whatever memory holds there never reaches a result. */
#include "base/size.h"
#include "cpu/attention/attention.h"
#include "cpu/elementwise/elem.h"
#include "cpu/vec/tile.h"
#include "cpu/vec/vec_math.h"

#include <math.h>

#define MAX_DIM     512
#define Q_ROWS      24 /* a multiple of every TILE_ROWS */
#define KEYS        320
#define LOG2_E      1.44269504f
#define GROUP_BYTES (1u << 20) /* of packed K and V at a time, but at least one key head */

static bool accepts(const oq_attention_spec *s)
{
    return s->head_dim > 0 && s->head_dim % 8 == 0 && s->head_dim <= MAX_DIM && s->n_kv_heads > 0 &&
           s->n_heads % s->n_kv_heads == 0;
}

static int64_t padded_keys(int64_t n_kv)
{
    return oq_ceil_div(n_kv, TILE_COLS) * TILE_COLS;
}

static int64_t padded_dim(const oq_attention_spec *s)
{
    return oq_ceil_div(s->head_dim, VF) * VF;
}

/* Floats of one key head's K, and of K and V together. */
static int64_t k_floats(const oq_attention_spec *s, int64_t n_kv)
{
    return padded_keys(n_kv) * s->head_dim;
}

static int64_t head_floats(const oq_attention_spec *s, int64_t n_kv)
{
    return oq_ceil_div(k_floats(s, n_kv) + padded_keys(n_kv) * padded_dim(s), 16) * 16;
}

static int64_t heads_at_once(const oq_attention_spec *s, int64_t n_kv)
{
    const int64_t fit = (int64_t)(GROUP_BYTES / sizeof(float)) / oq_max_i64(1, head_floats(s, n_kv));
    return oq_min_i64(oq_max_i64(1, fit), s->n_kv_heads);
}

static size_t scratch_bytes(const oq_attention_spec *s, int64_t n_q, int64_t n_kv)
{
    (void)n_q;
    return (size_t)(heads_at_once(s, n_kv) * head_floats(s, n_kv)) * sizeof(float);
}

typedef struct attention_job {
    const oq_attention_args *a;
    int64_t d, dp, n_kv, keys; /* head_dim and n_kv, plain and padded */
    int64_t kv_head;           /* first one of this group */
    float scale;               /* of scores, in base 2 */
    int64_t n_blocks;          /* of queries */
} attention_job;

static bool hidden(const attention_job *job, int64_t key)
{
    return key >= job->n_kv || (job->a->key_mask && !job->a->key_mask[key]);
}

/* K of one panel of keys, transposed: [d][TILE_COLS]; eight keys at a time. */
static void pack_k(const attention_job *job, float *out, int64_t head, int64_t key)
{
    const bool bf16 = oq_elem_is_bf16(&job->a->k);
    float line[8][MAX_DIM];
    for (int64_t j = 0; j < TILE_COLS; j += 8) {
        for (int64_t i = 0; i < 8; i++) {
            const bool skip = hidden(job, key + j + i);
            const void *k = skip ? NULL : oq_elem_row(&job->a->k, key + j + i);
            for (int64_t c = 0; c < job->d; c += VF)
                v_put(line[i], false, c, job->d - c,
                      skip ? v_zero() : v_get(k, bf16, head * job->d + c, job->d - c));
        }
        for (int64_t c = 0; c < job->d; c += 8)
            v_transpose8(out + c * TILE_COLS + j, TILE_COLS, line[0] + c, MAX_DIM);
    }
}

/* V of one panel of keys, into column panels [keys][TILE_COLS or VF]. */
static void pack_v(const attention_job *job, float *out, int64_t head, int64_t key)
{
    const bool bf16 = oq_elem_is_bf16(&job->a->v);
    for (int64_t j = key; j < key + TILE_COLS; j++) {
        const bool skip = hidden(job, j);
        for (int64_t c = 0; c < job->dp; c += VF) {
            const int64_t panel = c / TILE_COLS * TILE_COLS, width = oq_min_i64(TILE_COLS, job->dp - panel);
            const vf v =
                skip ? v_zero() : v_get(oq_elem_row(&job->a->v, j), bf16, head * job->d + c, job->d - c);
            v_store(out + panel * job->keys + j * width + c - panel, v);
        }
    }
}

static float *packed_head(const attention_job *job, int64_t i)
{
    return (float *)job->a->scratch + i * head_floats(job->a->spec, job->n_kv);
}

static void pack_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const attention_job *job = user;
    const int64_t panels = job->keys / TILE_COLS, head = i / panels, key = i % panels * TILE_COLS;
    float *k = packed_head(job, head);
    pack_k(job, k + key * job->d, job->kv_head + head, key);
    pack_v(job, k + job->keys * job->d, job->kv_head + head, key);
}

typedef struct block { /* one task's state */
    float q[Q_ROWS * MAX_DIM], o[Q_ROWS * MAX_DIM], s[Q_ROWS * KEYS];
    float hide[KEYS]; /* 1 where this block's key is hidden */
    float max[Q_ROWS], sum[Q_ROWS];
    int64_t head, first, rows; /* queries [first, first + rows) of `head` */
} block;

/* Keys that query row i may see under causality. */
static int64_t visible(const attention_job *job, const block *b, int64_t i)
{
    if (!job->a->spec->causal) return job->n_kv;
    return oq_min_i64(job->n_kv, b->first + i + (job->n_kv - job->a->q.rows) + 1);
}

OQ_INLINE vf lane_index(int64_t first)
{
    float lane[VF];
    for (int i = 0; i < VF; i++) lane[i] = (float)i;
    return v_add(v_load(lane), v_set((float)first));
}

/* May row i's scores of these keys stay as the product left them? */
static bool all_plain(const attention_job *job, const block *b, int64_t i, int64_t key, int64_t n)
{
    return !job->a->bias && !job->a->key_mask && job->scale > 0 && key + n <= visible(job, b, i);
}

/* Scores of row i for keys [key, key + n), in base 2: scale, bias, -infinity where unseen. */
static void finish_scores(const attention_job *job, block *b, int64_t i, int64_t key, int64_t n)
{
    const oq_attention_args *a = job->a;
    const float *bias =
        a->bias ? a->bias + b->head * a->bias_head + (b->first + i) * a->bias_row + key : NULL;
    const int64_t seen = visible(job, b, i) - key;
    float *s = b->s + i * KEYS;
    for (int64_t j = 0; j < n; j += VF) {
        vf v = v_mul(v_load(s + j), v_set(job->scale));
        if (bias && key + j < job->n_kv)
            v = v_fma(v_param(bias, j, job->n_kv - key - j, 0.0f), v_set(LOG2_E), v);
        if (j + VF > seen) v = v_if_less(lane_index(j), v_set((float)seen), v, v_set(-INFINITY));
        if (a->key_mask) v = v_if_less(v_zero(), v_load(b->hide + j), v_set(-INFINITY), v);
        v_store(s + j, v);
    }
}

/* A NaN among them may get lost here; it comes back as the weight of its own key. */
OQ_INLINE float largest(const float *s, int64_t n)
{
    vf max = v_set(-INFINITY);
    for (int64_t j = 0; j < n; j += VF) max = v_max(max, v_load(s + j));
    return v_largest(max);
}

static float exp2_one(float x)
{
    float lane[VF];
    v_store(lane, v_exp2(v_set(x)));
    return lane[0];
}

/* Scores become weights against the new maximum; what was summed before shrinks to it. */
static void soften(const attention_job *job, block *b, int64_t i, int64_t key, int64_t n)
{
    const bool plain = all_plain(job, b, i, key, n);
    if (!plain) finish_scores(job, b, i, key, n);
    float *s = b->s + i * KEYS, *o = b->o + i * job->dp;
    const float scale = plain ? job->scale : 1.0f, top = largest(s, n) * scale, was = b->max[i];
    const float max = was > top ? was : top;
    const vf base = v_set(max == -INFINITY ? 0.0f : -max); /* nothing seen yet: every weight is 2^-inf = 0 */
    vf sum = v_zero();
    for (int64_t j = 0; j < n; j += VF) {
        const vf p = v_exp2(v_fma(v_load(s + j), v_set(scale), base));
        v_store(s + j, p);
        sum = v_add(sum, p);
    }
    if (max != was && was != -INFINITY) {
        const float shrink = exp2_one(was - max);
        b->sum[i] *= shrink;
        for (int64_t c = 0; c < job->dp; c += VF) v_store(o + c, v_mul(v_load(o + c), v_set(shrink)));
    }
    b->sum[i] += v_sum(sum);
    b->max[i] = max;
}

static void attend_keys(const attention_job *job, block *b, const float *k, const float *v, int64_t key,
                        int64_t n)
{
    tile t = {.a = b->q, .lda = job->d, .at = tile_one_run, .runs = 1, .k = job->d, .ldc = KEYS};
    for (int64_t j = 0; j < n; j += TILE_COLS) {
        t.b = k + (key + j) * job->d;
        t.c = b->s + j;
        tile_run(t, b->rows, 2);
    }
    for (int64_t j = 0; j < n; j++) b->hide[j] = hidden(job, key + j) ? 1.0f : 0.0f;
    for (int64_t i = 0; i < b->rows; i++) soften(job, b, i, key, n);
    t = (tile){.a = b->s, .lda = KEYS, .at = tile_one_run, .runs = 1, .k = n, .ldc = job->dp, .add = true};
    for (int64_t c = 0; c < job->dp; c += TILE_COLS) {
        const int64_t width = oq_min_i64(TILE_COLS, job->dp - c);
        t.b = v + c * job->keys + key * width;
        t.c = b->o + c;
        tile_run(t, b->rows, width / VF);
    }
}

static void load_queries(const attention_job *job, block *b)
{
    const bool bf16 = oq_elem_is_bf16(&job->a->q);
    for (int64_t i = 0; i < b->rows; i++) {
        const void *q = oq_elem_row(&job->a->q, b->first + i);
        for (int64_t c = 0; c < job->d; c += VF)
            v_put(b->q + i * job->d, false, c, job->d - c, v_get(q, bf16, b->head * job->d + c, job->d - c));
        for (int64_t c = 0; c < job->dp; c += VF) v_store(b->o + i * job->dp + c, v_zero());
        b->max[i] = -INFINITY;
        b->sum[i] = 0;
    }
}

static void store_outputs(const attention_job *job, const block *b)
{
    const bool bf16 = oq_elem_is_bf16(&job->a->o);
    for (int64_t i = 0; i < b->rows; i++) {
        const vf scale = v_set(b->sum[i] == 0 ? 0.0f : 1.0f / b->sum[i]);
        void *o = oq_elem_row(&job->a->o, b->first + i);
        for (int64_t c = 0; c < job->d; c += VF)
            v_put(o, bf16, b->head * job->d + c, job->d - c, v_mul(v_load(b->o + i * job->dp + c), scale));
    }
}

static void attend_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const attention_job *job = user;
    const int64_t share = job->a->spec->n_heads / job->a->spec->n_kv_heads;
    block b;
    b.head = job->kv_head * share + i / job->n_blocks;
    b.first = i % job->n_blocks * Q_ROWS;
    b.rows = oq_min_i64(Q_ROWS, job->a->q.rows - b.first);
    const float *k = packed_head(job, b.head / share - job->kv_head), *v = k + job->keys * job->d;
    load_queries(job, &b);
    const int64_t end = padded_keys(oq_max_i64(0, visible(job, &b, b.rows - 1)));
    const int64_t n_cuts = oq_ceil_div(end, KEYS); /* pieces of one size: no short last one */
    const int64_t step = n_cuts ? padded_keys(oq_ceil_div(end, n_cuts)) : 0;
    for (int64_t key = 0; key < end; key += step)
        attend_keys(job, &b, k, v, key, oq_min_i64(step, end - key));
    store_outputs(job, &b);
}

static void run(oq_device *device, const oq_attention_args *a)
{
    const oq_attention_spec *s = a->spec;
    const int64_t step = heads_at_once(s, a->k.rows), share = s->n_heads / s->n_kv_heads;
    attention_job job = {.a = a, .d = s->head_dim, .dp = padded_dim(s), .n_kv = a->k.rows};
    job.scale = a->scale * LOG2_E;
    job.keys = padded_keys(job.n_kv);
    job.n_blocks = oq_ceil_div(a->q.rows, Q_ROWS);
    for (; job.kv_head < s->n_kv_heads; job.kv_head += step) {
        const int64_t n = oq_min_i64(step, s->n_kv_heads - job.kv_head);
        oq_pool_run(device->pool, n * (job.keys / TILE_COLS), pack_task, &job);
        oq_pool_run(device->pool, n * share * job.n_blocks, attend_task, &job);
    }
}
