/* tile.h -- the product that attention and convolution share: a few rows of A, broadcast element by element,
 * times a packed panel of B, accumulated in registers (12 x 2 vectors of 16, or 6 x 2 of 8). f32 throughout.
 */
#ifndef OQ_CPU_TILE_H
#define OQ_CPU_TILE_H

#include "cpu/vec/vec.h"

#define TILE_COLS (2 * VF) /* of a panel; the last one of a matrix may have VF */
#if VF == 16
#define TILE_ROWS 12
#else
#define TILE_ROWS 6
#endif

/* c[rows, nv*VF] (+)= sum over `runs` of a_run[rows, k] . b[run*k .. , nv*VF]; a_run starts a_step further
 * each. */
typedef struct tile {
    const float *a;
    int64_t lda, a_step, runs, k;
    const float *b; /* [runs*k][nv*VF] */
    float *c;
    int64_t ldc;
    bool add; /* to what c holds */
} tile;

OQ_INLINE void tile_body(const tile *t, const int rows, const int nv)
{
    vf acc[TILE_ROWS][2];
    const float *b = t->b;
    float *c = t->c;
    const int64_t lda = t->lda, ldc = t->ldc, k = t->k;
    OQ_UNROLL
    for (int i = 0; i < rows; i++) {
        OQ_UNROLL
        for (int v = 0; v < nv; v++) acc[i][v] = t->add ? v_load(c + i * ldc + v * VF) : v_zero();
    }
    for (int64_t run = 0; run < t->runs; run++) {
        /* Four pointers, three rows each: base, base + lda, base + 2 lda are one addressing mode. */
        const float *a0 = t->a + run * t->a_step, *a3 = a0 + (rows > 3 ? 3 * lda : 0);
        const float *a6 = a0 + (rows > 6 ? 6 * lda : 0), *a9 = a0 + (rows > 9 ? 9 * lda : 0);
        for (int64_t p = 0; p < k; p++) {
            const vf b0 = v_load(b), b1 = nv > 1 ? v_load(b + VF) : v_zero();
            b += nv * VF;
            OQ_UNROLL
            for (int i = 0; i < rows; i++) {
                const float *a = i < 3 ? a0 : i < 6 ? a3 : i < 9 ? a6 : a9;
                const vf x = v_set(a[i % 3 * lda + p]);
                acc[i][0] = v_fma(x, b0, acc[i][0]);
                if (nv > 1) acc[i][1] = v_fma(x, b1, acc[i][1]);
            }
        }
    }
    OQ_UNROLL
    for (int i = 0; i < rows; i++) {
        OQ_UNROLL
        for (int v = 0; v < nv; v++) v_store(c + i * ldc + v * VF, acc[i][v]);
    }
}

#if VF == 16
static void tile_12x2(const tile *t)
{
    tile_body(t, 12, 2);
}
static void tile_12x1(const tile *t)
{
    tile_body(t, 12, 1);
}
static void tile_8x2(const tile *t)
{
    tile_body(t, 8, 2);
}
static void tile_8x1(const tile *t)
{
    tile_body(t, 8, 1);
}
#else
static void tile_6x2(const tile *t)
{
    tile_body(t, 6, 2);
}
static void tile_6x1(const tile *t)
{
    tile_body(t, 6, 1);
}
#endif
static void tile_4x2(const tile *t)
{
    tile_body(t, 4, 2);
}
static void tile_4x1(const tile *t)
{
    tile_body(t, 4, 1);
}
static void tile_2x2(const tile *t)
{
    tile_body(t, 2, 2);
}
static void tile_2x1(const tile *t)
{
    tile_body(t, 2, 1);
}
static void tile_1x2(const tile *t)
{
    tile_body(t, 1, 2);
}
static void tile_1x1(const tile *t)
{
    tile_body(t, 1, 1);
}

static const struct tile_size {
    int rows;
    void (*run[2])(const tile *t); /* one vector, two vectors */
} tile_sizes[] = {
#if VF == 16
    {12, {tile_12x1, tile_12x2}}, {8, {tile_8x1, tile_8x2}},
#else
    {6, {tile_6x1, tile_6x2}},
#endif
    {4, {tile_4x1, tile_4x2}},    {2, {tile_2x1, tile_2x2}}, {1, {tile_1x1, tile_1x2}},
};

/* Any number of rows, tallest tiles first. */
static void tile_run(tile t, int64_t rows, int64_t nv)
{
    const struct tile_size *size = tile_sizes;
    while (rows > 0) {
        while (size->rows > rows) size++;
        size->run[nv - 1](&t);
        t.a += size->rows * t.lda;
        t.c += size->rows * t.ldc;
        rows -= size->rows;
    }
}

#endif
