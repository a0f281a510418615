/* tile_amx.h -- tile.h's product over the matrix tiles of AMX: 32 rows x 32 columns of sums; pairs of bf16 (TILE_STEP 2)
 * or four u8 times four i8 with sums in i32 (TILE_STEP 4), panels as tile.h's. What is left of a run beyond whole tiles of k takes a second pass over all runs, with
 * tiles of that depth. */
#ifndef OQ_CPU_TILE_H
#define OQ_CPU_TILE_H

#include "base/size.h"
#include "cpu/vec/amx.h"
#include "cpu/vec/vec.h"

#ifndef TILE_STEP
#define TILE_STEP 2
#endif
#if TILE_STEP == 4
#define TILE_DOT oq_amx_dot_u8i8
#else
#define TILE_DOT oq_amx_dot_bf16
#endif
#define TILE_COLS 32
#define TILE_ROWS 32
#define TILE_DEPTH OQ_AMX_DWORDS

typedef struct tile { /* as in tile.h */
    const float *a;
    int64_t lda;
    const int64_t *at;
    int64_t runs, k;
    const float *b;
    float *c;
    int64_t ldc;
    bool add;
} tile;

static const int64_t tile_one_run[1] = {0};

OQ_INLINE void tile_begin(void)
{
    oq_amx_begin();
}

OQ_INLINE void tile_end(void)
{
    oq_amx_end();
}

/* Dwords [first, end) of each run, `depth` at a time. */
OQ_INLINE void tile_pass(const tile *t, int64_t first, int64_t end, int64_t depth, bool add, const bool tall,
                         const bool wide)
{
    const int64_t width = wide ? TILE_COLS : TILE_COLS / 2, lda = t->lda * 4, ldc = t->ldc * 4;
    oq_amx_load_sums((const char *)t->c, ldc, add, tall, wide);
    for (int64_t run = 0; run < t->runs; run++) {
        const float *const a = t->a + t->at[run], *const b = t->b + run * t->k * width;
        for (int64_t p = first; p < end; p += depth)
            OQ_AMX_STEP(TILE_DOT, oq_amx_load, (const char *)(a + p), lda, oq_amx_pass,
                        (const char *)(b + p * width), width * 4, tall, wide);
    }
    oq_amx_store_sums((char *)t->c, ldc, tall, wide);
}

OQ_INLINE void tile_shape(const tile *t, int64_t rows, const bool tall, const bool wide)
{
    const int64_t whole = t->k / OQ_AMX_DWORDS * OQ_AMX_DWORDS, left = t->k - whole;
    if (whole) {
        oq_amx_configure((int)rows, OQ_AMX_DWORDS);
        tile_pass(t, 0, whole, OQ_AMX_DWORDS, t->add, tall, wide);
    }
    if (left) {
        oq_amx_configure((int)rows, (int)left);
        tile_pass(t, whole, t->k, left, t->add || whole, tall, wide);
    }
}

/* Any number of rows. */
static void tile_run(tile t, int64_t rows, int64_t nv)
{
    for (int64_t n; rows > 0; rows -= n) {
        n = oq_min_i64(rows, TILE_ROWS);
        if (n > OQ_AMX_ROWS)
            nv == 2 ? tile_shape(&t, n, true, true) : tile_shape(&t, n, true, false);
        else
            nv == 2 ? tile_shape(&t, n, false, true) : tile_shape(&t, n, false, false);
        t.a += n * t.lda;
        t.c += n * t.ldc;
    }
}

#endif
