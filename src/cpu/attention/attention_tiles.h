/* attention_tiles.h -- the body of the vector kernels: online softmax over blocks of keys, in f32 (TILE_STEP 1) or with
 * products of bf16 pairs (TILE_STEP 2: q, k and v are BF16, and a weight is rounded to bf16 before it meets v). The file
 * that includes this has included a tile.
 *
 * K and V of a few key heads at a time are packed into scratch as panels (K transposed), read by all query heads of the
 * group. A task takes Q_ROWS queries of one head through all blocks of up to KEYS keys: scores by the tile, running
 * maximum and sum, p v by the tile. Keys that the mask hides, and the padding of the last panel, are packed as zeros and
 * score -infinity: whatever memory holds there never reaches a result. */
#include "base/size.h"
#include "cpu/attention/attention.h"
#include "cpu/elementwise/elem.h"
#include "cpu/vec/vec_math.h"

#include <math.h>

#define MAX_DIM     512
#define Q_ROWS      (TILE_ROWS == 32 ? 32 : 48) /* of a task; a multiple of every TILE_ROWS */
#define KEYS        (TILE_STEP == 1 ? 192 : 320) /* so many of V and their weights stay in the first cache level */
#define LOG2_E      1.44269504f
#ifndef ATTENTION_BOUNDED
#define ATTENTION_BOUNDED 0 /* 1: attention_bounded.h is tried first */
#endif
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

/* Dwords of a row of K or Q, padded for the transposition. */
static int64_t row_dwords(const oq_attention_spec *s)
{
    return oq_ceil_div(s->head_dim, TILE_DEPTH * TILE_STEP) * TILE_DEPTH;
}

static int64_t padded_dim(const oq_attention_spec *s)
{
    return oq_ceil_div(s->head_dim, VF) * VF;
}

/* Dwords of one key head's K and V together, and of a norm for each panel of keys where those are wanted. */
static int64_t head_floats(const oq_attention_spec *s, int64_t n_kv)
{
    const int64_t keys = padded_keys(n_kv), norms = ATTENTION_BOUNDED ? keys / TILE_COLS : 0;
    return oq_ceil_div(keys * (row_dwords(s) + padded_dim(s) / TILE_STEP) + norms, 16) * 16;
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
    int64_t d, dk, dp;     /* head_dim; dwords of a row of K; columns of V, padded */
    int64_t n_kv, keys;    /* plain and padded */
    int64_t kv_head;           /* first one of this group */
    float scale;               /* of scores, in base 2 */
    int64_t at_once, n_blocks; /* queries of a task; tasks of a head */
} attention_job;

static bool hidden(const attention_job *job, int64_t key)
{
    return key >= job->n_kv || (job->a->key_mask && !job->a->key_mask[key]);
}

/* Keys that a query may see under causality. */
static int64_t visible(const attention_job *job, int64_t query)
{
    if (!job->a->spec->causal) return job->n_kv;
    return oq_min_i64(job->n_kv, query + (job->n_kv - job->a->q.rows) + 1);
}

/* Head `head` of one row of q or k as dk dwords. */
OQ_INLINE void load_row(const attention_job *job, float *out, const oq_tensor *x, int64_t row, int64_t head)
{
#if TILE_STEP == 2
    const uint16_t *const in = (const uint16_t *)oq_elem_row(x, row) + head * job->d;
    memset(out + job->dk - TILE_DEPTH, 0, TILE_DEPTH * sizeof *out);
    memcpy(out, in, (size_t)job->d * sizeof *in);
#else
    const void *const in = oq_elem_row(x, row);
    const bool bf16 = oq_elem_is_bf16(x);
    for (int64_t c = 0; c < job->d; c += VF)
        v_put(out, false, c, job->d - c, v_get(in, bf16, head * job->d + c, job->d - c));
#endif
}

#if ATTENTION_BOUNDED
#include "cpu/attention/attention_bounded.h"
#else
/* `count` rows of K as dk dwords each, zeros for hidden keys. */
OQ_INLINE void load_keys(const attention_job *job, float (*line)[MAX_DIM], int64_t count, int64_t head, int64_t key)
{
    for (int64_t i = 0; i < count; i++)
        if (hidden(job, key + i))
            memset(line[i], 0, (size_t)job->dk * sizeof(float));
        else
            load_row(job, line[i], &job->a->k, key + i, head);
}

/* K of one panel of keys, transposed: [dk][TILE_COLS]; sixteen keys at a time where vectors are as long, or eight. */
static void pack_k(const attention_job *job, float *out, int64_t head, int64_t key)
{
    float line[16][MAX_DIM];
#if VF == 16
    for (int64_t j = 0; j < TILE_COLS && job->dk % 16 == 0; j += 16) {
        load_keys(job, line, 16, head, key + j);
        for (int64_t c = 0; c < job->dk; c += 16) {
            __m512i r[16];
            OQ_UNROLL
            for (int64_t i = 0; i < 16; i++) r[i] = _mm512_loadu_si512(line[i] + c);
            v_transpose16((uint32_t *)(void *)(out + c * TILE_COLS + j), TILE_COLS, r);
        }
    }
    if (job->dk % 16 == 0) return;
#endif
    for (int64_t j = 0; j < TILE_COLS; j += 8) {
        load_keys(job, line, 8, head, key + j);
        for (int64_t c = 0; c < job->dk; c += 8)
            v_transpose8(out + c * TILE_COLS + j, TILE_COLS, line[0] + c, MAX_DIM);
    }
}

/* VF columns of V for key j, as dwords: of that key, or of it and the next one. */
OQ_INLINE vf v_columns(const attention_job *job, int64_t head, int64_t j, int64_t c)
{
    const oq_tensor *const v = &job->a->v;
    const int64_t at = head * job->d + c, n = job->d - c;
#if TILE_STEP == 2
    const vf even = hidden(job, j) ? v_zero() : v_get(oq_elem_row(v, j), true, at, n);
    const vf odd = hidden(job, j + 1) ? v_zero() : v_get(oq_elem_row(v, j + 1), true, at, n);
    return v_pairs_bf16(even, odd);
#else
    return hidden(job, j) ? v_zero() : v_get(oq_elem_row(v, j), oq_elem_is_bf16(v), at, n);
#endif
}

/* V of one panel of keys, into column panels [keys / TILE_STEP][TILE_COLS or VF]. */
static void pack_v(const attention_job *job, float *out, int64_t head, int64_t key)
{
    const int64_t depth = job->keys / TILE_STEP;
    for (int64_t j = key; j < key + TILE_COLS; j += TILE_STEP)
        for (int64_t c = 0; c < job->dp; c += VF) {
            const int64_t panel = c / TILE_COLS * TILE_COLS, width = oq_min_i64(TILE_COLS, job->dp - panel);
            v_store(out + panel * depth + j / TILE_STEP * width + c - panel, v_columns(job, head, j, c));
        }
}
#endif

static float *packed_head(const attention_job *job, int64_t i)
{
    return (float *)job->a->scratch + i * head_floats(job->a->spec, job->n_kv);
}

static void pack_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const attention_job *job = user;
    const int64_t panels = job->keys / TILE_COLS, head = i / panels, key = i % panels * TILE_COLS;
    float *const k = packed_head(job, head), *const v = k + job->keys * job->dk;
#if ATTENTION_BOUNDED
    const uint32_t norm = pack_k(job, k + key * job->dk, job->kv_head + head, key);
    memcpy(v + job->keys * job->dp / TILE_STEP + key / TILE_COLS, &norm, sizeof norm);
#else
    pack_k(job, k + key * job->dk, job->kv_head + head, key);
#endif
    pack_v(job, v, job->kv_head + head, key);
}

typedef struct block { /* one task's state */
    float q[Q_ROWS * MAX_DIM], o[Q_ROWS * MAX_DIM], s[Q_ROWS * KEYS];
#if TILE_STEP == 2
    float p[Q_ROWS * KEYS / 2]; /* weights as the tile takes them; in f32 they take the place of their scores */
#endif
    float hide[KEYS]; /* 1 where this block's key is hidden */
    float max[Q_ROWS], sum[Q_ROWS];
    int64_t head, first, rows; /* queries [first, first + rows) of `head` */
} block;

OQ_INLINE vf lane_index(int64_t first)
{
    float lane[VF];
    for (int i = 0; i < VF; i++) lane[i] = (float)i;
    return v_add(v_load(lane), v_set((float)first));
}

/* May row i's scores of these keys stay as the product left them? */
static bool all_plain(const attention_job *job, const block *b, int64_t i, int64_t key, int64_t n)
{
    return !job->a->bias && !job->a->key_mask && job->scale > 0 && key + n <= visible(job, b->first + i);
}

/* Scores of row i for keys [key, key + n), in base 2: scale, bias, -infinity where unseen. */
static void finish_scores(const attention_job *job, block *b, int64_t i, int64_t key, int64_t n)
{
    const oq_attention_args *a = job->a;
    const float *bias =
        a->bias ? a->bias + b->head * a->bias_head + (b->first + i) * a->bias_row + key : NULL;
    const int64_t seen = visible(job, b->first + i) - key;
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
    vf max[4] = {v_load(s), v_load(s), v_load(s), v_load(s)};
    int64_t j = 0;
    for (; j + 4 * VF <= n; j += 4 * VF) {
        OQ_UNROLL
        for (int v = 0; v < 4; v++) max[v] = v_max(max[v], v_load(s + j + v * VF));
    }
    for (; j < n; j += VF) max[0] = v_max(max[0], v_load(s + j));
    return v_largest(v_max(v_max(max[0], max[1]), v_max(max[2], max[3])));
}

OQ_INLINE vf weight_of(vf x)
{
    return TILE_STEP == 2 ? v_exp2_short(x) : v_exp2(x);
}

OQ_INLINE float *weights(block *b)
{
#if TILE_STEP == 2
    return b->p;
#else
    return b->s;
#endif
}

#if ATTENTION_BOUNDED
/* Two vectors of weights of a panel of keys, dealt out as pack_v does it. */
OQ_INLINE void put_dealt(block *b, int64_t i, int64_t j, vf low, vf high)
{
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    const __m512i x = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(both));
    const __m512i y = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(both, 1)), 16);
    _mm512_storeu_si512(weights(b) + i * (KEYS / 2) + j / 2, _mm512_or_si512(x, y));
}
#endif

OQ_INLINE void put_weights(block *b, int64_t i, int64_t j, vf p)
{
#if TILE_STEP == 2
    v_store_bf16_short((uint16_t *)(void *)(weights(b) + i * (KEYS / 2) + j / 2), VF, p);
#else
    v_store(weights(b) + i * KEYS + j, p);
#endif
}

/* The largest score of row i, in base 2; scores that are not plain are finished first. */
OQ_INLINE float top_of(const attention_job *job, block *b, int64_t i, int64_t key, int64_t n, bool plain)
{
    if (!plain) finish_scores(job, b, i, key, n);
    return largest(b->s + i * KEYS, n) * (plain ? job->scale : 1.0f);
}

/* Scores of row i become weights against the new maximum; what was summed before shrinks to it. */
OQ_INLINE void weigh_row(const attention_job *job, block *b, int64_t i, int64_t n, bool plain, float shrink)
{
    const float *const s = b->s + i * KEYS;
    float *const o = b->o + i * job->dp;
    const float max = b->max[i];
    const vf scale = v_set(plain ? job->scale : 1.0f);
    const vf base = v_set(max == -INFINITY ? 0.0f : -max); /* nothing seen yet: every weight is 2^-inf = 0 */
    vf sum = v_zero();
#if ATTENTION_BOUNDED
    for (int64_t j = 0; j < n; j += 2 * VF) {
        const vf low = weight_of(v_fma(v_load(s + j), scale, base)), high = weight_of(v_fma(v_load(s + j + VF), scale, base));
        put_dealt(b, i, j, low, high);
        sum = v_add(sum, v_add(low, high));
    }
#else
    for (int64_t j = 0; j < n; j += VF) {
        const vf p = weight_of(v_fma(v_load(s + j), scale, base));
        put_weights(b, i, j, p);
        sum = v_add(sum, p);
    }
#endif
    if (shrink != 1.0f)
        for (int64_t c = 0; c < job->dp; c += VF) v_store(o + c, v_mul(v_load(o + c), v_set(shrink)));
    b->sum[i] = b->sum[i] * shrink + v_sum(sum);
}

/* VF rows from `first` on, all maxima before all weights, so that no row waits for its own. */
static void soften(const attention_job *job, block *b, int64_t first, int64_t key, int64_t n)
{
    const int64_t rows = oq_min_i64(VF, b->rows - first);
    float top[VF], shrink[VF];
    bool plain[VF];
    for (int64_t i = 0; i < VF; i++) top[i] = -INFINITY;
    for (int64_t i = 0; i < rows; i++) {
        plain[i] = all_plain(job, b, first + i, key, n);
        top[i] = top_of(job, b, first + i, key, n, plain[i]);
    }
    const vf was = v_load(b->max + first), max = v_max(was, v_load(top));
    v_store(b->max + first, max);
    v_store(shrink, v_if_less(v_set(-INFINITY), was, v_exp2(v_sub(was, max)), v_set(1.0f)));
    for (int64_t i = 0; i < rows; i++) weigh_row(job, b, first + i, n, plain[i], shrink[i]);
}

static void attend_keys(const attention_job *job, block *b, const float *k, const float *v, int64_t key,
                        int64_t n)
{
    tile t = {.a = b->q, .lda = job->dk, .at = tile_one_run, .runs = 1, .k = job->dk, .ldc = KEYS};
    for (int64_t j = 0; j < n; j += TILE_COLS) {
        t.b = k + (key + j) * job->dk;
        t.c = b->s + j;
        tile_run(t, b->rows, 2);
    }
    for (int64_t j = 0; j < n; j++) b->hide[j] = hidden(job, key + j) ? 1.0f : 0.0f;
    for (int64_t i = 0; i < b->rows; i += VF) soften(job, b, i, key, n);
    t = (tile){.a = weights(b),
               .lda = KEYS / TILE_STEP,
               .at = tile_one_run,
               .runs = 1,
               .k = n / TILE_STEP,
               .ldc = job->dp,
               .add = true};
    for (int64_t c = 0; c < job->dp; c += TILE_COLS) {
        const int64_t width = oq_min_i64(TILE_COLS, job->dp - c);
        t.b = v + (c * job->keys + key * width) / TILE_STEP;
        t.c = b->o + c;
        tile_run(t, b->rows, width / VF);
    }
}

static void load_queries(const attention_job *job, block *b)
{
    for (int64_t i = 0; i < b->rows; i++) {
        load_row(job, b->q + i * job->dk, &job->a->q, b->first + i, b->head);
        for (int64_t c = 0; c < job->dp; c += VF) v_store(b->o + i * job->dp + c, v_zero());
        b->sum[i] = 0;
    }
    for (int64_t i = 0; i < Q_ROWS; i++) b->max[i] = -INFINITY;
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

/* Blocks of queries whose keys are chosen are cut into tasks that do not reach over their edge. */
enum { SPARSE = OQ_ATTENTION_SPARSE_BLOCK, SPARSE_TASKS = (SPARSE + Q_ROWS - 1) / Q_ROWS };

static int64_t tasks_of_head(const oq_attention_args *a, int64_t at_once)
{
    if (a->block_map) return oq_ceil_div(a->q.rows, SPARSE) * SPARSE_TASKS;
    return oq_ceil_div(a->q.rows, at_once);
}

/* Queries [*first, + the result) of task i of a head. */
static int64_t place(const attention_job *job, int64_t i, int64_t *first)
{
    int64_t end = job->a->q.rows;
    *first = i * job->at_once;
    if (job->a->block_map) {
        *first = i / SPARSE_TASKS * SPARSE + i % SPARSE_TASKS * Q_ROWS;
        end = oq_min_i64(end, (i / SPARSE_TASKS + 1) * SPARSE);
    }
    return oq_min_i64(job->at_once, end - *first);
}

/* Keys [first, end), in pieces of one size: no short last one. */
static void attend_range(const attention_job *job, block *b, const float *k, const float *v, int64_t first,
                         int64_t end)
{
    const int64_t n_cuts = oq_ceil_div(end - first, KEYS);
    const int64_t step = n_cuts ? padded_keys(oq_ceil_div(end - first, n_cuts)) : 0;
    for (int64_t key = first; key < end; key += step)
        attend_keys(job, b, k, v, key, oq_min_i64(step, end - key));
}

/* Runs of adjacent blocks that the map lets this task see. */
static void attend_chosen(const attention_job *job, block *b, const float *k, const float *v, int64_t end)
{
    const int64_t n = oq_ceil_div(job->n_kv, SPARSE), rows = oq_ceil_div(job->a->q.rows, SPARSE);
    const uint8_t *const seen = job->a->block_map + (b->head * rows + b->first / SPARSE) * n;
    for (int64_t i = 0; i < n;) {
        int64_t last = i;
        while (last < n && seen[last]) last++;
        attend_range(job, b, k, v, i * SPARSE, oq_min_i64(last * SPARSE, end));
        i = last + 1;
    }
}

/* Up to Q_ROWS queries with a running maximum. */
static void attend_rows(const attention_job *job, int64_t head, int64_t first, int64_t rows, const float *k,
                        const float *v)
{
    block b;
    b.head = head, b.first = first, b.rows = rows;
    load_queries(job, &b);
    tile_begin();
    const int64_t end = padded_keys(oq_max_i64(0, visible(job, first + rows - 1)));
    if (job->a->block_map)
        attend_chosen(job, &b, k, v, end);
    else
        attend_range(job, &b, k, v, 0, end);
    tile_end();
    store_outputs(job, &b);
}

static void attend_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const attention_job *job = user;
    const int64_t share = job->a->spec->n_heads / job->a->spec->n_kv_heads, head = job->kv_head * share + i / job->n_blocks;
    int64_t first;
    const int64_t rows = place(job, i % job->n_blocks, &first);
    const float *k = packed_head(job, head / share - job->kv_head), *v = k + job->keys * job->dk;
    uint32_t left = UINT32_MAX; /* strips of Q_ROWS */
#if ATTENTION_BOUNDED
    if (rows > 0) left = attend_bounded(job, head, first, rows, k, v);
#endif
    for (int64_t at = 0; at < rows; at += Q_ROWS, left >>= 1)
        if (left & 1) attend_rows(job, head, first + at, oq_min_i64(Q_ROWS, rows - at), k, v);
}

static void run(oq_device *device, const oq_attention_args *a)
{
    const oq_attention_spec *s = a->spec;
    const int64_t step = heads_at_once(s, a->k.rows), share = s->n_heads / s->n_kv_heads;
    attention_job job = {.a = a, .d = s->head_dim, .dk = row_dwords(s), .dp = padded_dim(s), .n_kv = a->k.rows};
    job.scale = a->scale * LOG2_E;
    job.keys = padded_keys(job.n_kv);
    job.at_once = Q_ROWS;
#if ATTENTION_BOUNDED
    if (!a->block_map) job.at_once = rows_at_once(&job, step * share, oq_pool_threads(device->pool));
#endif
    job.n_blocks = tasks_of_head(a, job.at_once);
    for (; job.kv_head < s->n_kv_heads; job.kv_head += step) {
        const int64_t n = oq_min_i64(step, s->n_kv_heads - job.kv_head);
        oq_pool_run(device->pool, n * (job.keys / TILE_COLS), pack_task, &job);
        oq_pool_run(device->pool, n * share * job.n_blocks, attend_task, &job);
    }
}
