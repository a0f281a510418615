/* attention_blocks.c -- block-sparse choice: means of Q and of K over blocks of 128 rows, the dot product of the means as
 * the score of a block of keys; each block of queries keeps its own block and the best of the others (softmax keeps the
 * order, so none is computed). Ties go to the earlier block. */
#include "cpu/attention/attention_blocks.h"

#include "base/size.h"
#include "cpu/elementwise/elem.h"

#include <math.h>

#define BLOCK OQ_ATTENTION_SPARSE_BLOCK

int64_t oq_attention_blocks_kept(double sparsity, int64_t n)
{
    const int64_t kept = (int64_t)ceil((1.0 - sparsity) * (double)n - 1e-9); /* 0.3 * 10 is 3, not 4 */
    return oq_min_i64(oq_max_i64(kept, 1), n);
}

size_t oq_attention_blocks_map_bytes(const oq_attention_spec *spec, int64_t n)
{
    const int64_t blocks = oq_ceil_div(n, BLOCK);
    return (size_t)(spec->n_heads * blocks * blocks);
}

/* Means of Q and K, then one row of scores per head and block of queries. */
size_t oq_attention_blocks_scratch_bytes(const oq_attention_spec *spec, int64_t n)
{
    const int64_t blocks = oq_ceil_div(n, BLOCK);
    return (size_t)(blocks * ((spec->n_heads + spec->n_kv_heads) * spec->head_dim + spec->n_heads * blocks)) *
           sizeof(float);
}

typedef struct choice {
    const oq_attention_args *a;
    uint8_t *map;
    float *q, *k, *scores; /* [n_heads, blocks, d], [n_kv_heads, blocks, d], [n_heads, blocks, blocks] */
    int64_t blocks, d;
} choice;

/* Mean of the seen rows of a block; false: there are none. */
static bool mean(const oq_tensor *x, const uint8_t *seen, int64_t column, int64_t d, int64_t block,
                 float *out)
{
    const int64_t first = block * BLOCK, end = oq_min_i64(first + BLOCK, x->rows);
    double sum[OQ_ATTENTION_MAX_DIM] = {0};
    int64_t n = 0;
    for (int64_t i = first; i < end; i++) {
        if (seen && !seen[i]) continue;
        n++;
        for (int64_t c = 0; c < d; c++) sum[c] += (double)oq_elem_get(x, i, column + c);
    }
    for (int64_t c = 0; c < d; c++) out[c] = n ? (float)(sum[c] / (double)n) : 0.0f;
    return n > 0;
}

static void mean_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const choice *p = user;
    const int64_t n_q = p->a->spec->n_heads * p->blocks, d = p->d;
    if (i < n_q) {
        mean(&p->a->q, NULL, i / p->blocks * d, d, i % p->blocks, p->q + i * d);
        return;
    }
    i -= n_q;
    if (!mean(&p->a->k, p->a->key_mask, i / p->blocks * d, d, i % p->blocks, p->k + i * d))
        p->k[i * d] = -INFINITY; /* a mark: see score() */
}

static float score(const float *q, const float *k, int64_t d)
{
    if (k[0] == -INFINITY) return -INFINITY;
    double dot = 0;
    for (int64_t c = 0; c < d; c++) dot += (double)q[c] * (double)k[c];
    return (float)dot;
}

/* Keeps `kept` blocks: its own first, then by score. */
static void choose_row(const choice *p, const float *scores, int64_t own, uint8_t *map)
{
    const int64_t kept = oq_attention_blocks_kept(p->a->spec->sparsity, p->blocks);
    memset(map, 0, (size_t)p->blocks);
    map[own] = 1;
    for (int64_t n = 1; n < kept; n++) {
        int64_t best = -1;
        for (int64_t j = 0; j < p->blocks; j++)
            if (!map[j] && (best < 0 || scores[j] > scores[best])) best = j;
        map[best] = 1;
    }
}

static void choose_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const choice *p = user;
    const int64_t head = i / p->blocks, share = p->a->spec->n_heads / p->a->spec->n_kv_heads;
    float *scores = p->scores + i * p->blocks;
    const float *k = p->k + head / share * p->blocks * p->d;
    for (int64_t j = 0; j < p->blocks; j++) scores[j] = score(p->q + i * p->d, k + j * p->d, p->d);
    choose_row(p, scores, i % p->blocks, p->map + i * p->blocks);
}

void oq_attention_blocks_choose(oq_pool *pool, const oq_attention_args *a, uint8_t *map, void *scratch)
{
    const oq_attention_spec *s = a->spec;
    choice p = {.a = a, .map = map, .q = scratch, .blocks = oq_ceil_div(a->q.rows, BLOCK), .d = s->head_dim};
    p.k = p.q + s->n_heads * p.blocks * p.d;
    p.scores = p.k + s->n_kv_heads * p.blocks * p.d;
    oq_pool_run(pool, (s->n_heads + s->n_kv_heads) * p.blocks, mean_task, &p);
    oq_pool_run(pool, s->n_heads * p.blocks, choose_task, &p);
}
