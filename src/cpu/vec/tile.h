/* tile.h -- the product that attention and convolution share: a few rows of A, broadcast dword by dword, times a
 * packed panel of B, summed in f32 registers (12 x 2 vectors of 16, or 6 x 2 of 8).
 *
 * A dword of A is one f32 (TILE_STEP 1), a pair of bf16 (TILE_STEP 2) or four bytes with sums in i32 (TILE_STEP 4: u8 times
 * i8); the panel has the same dwords of each column side by side. The file that includes this sets TILE_STEP; tile_amx.h gives the same
 * functions over matrix tiles. */
#ifndef OQ_CPU_TILE_H
#define OQ_CPU_TILE_H

#include "base/size.h"
#include "cpu/vec/vec.h"

#ifndef TILE_STEP
#define TILE_STEP 1
#endif
#define TILE_COLS (2 * VF) /* of a panel; the last one of a matrix may have VF */
#define TILE_DEPTH 8       /* dwords of k that it likes to have a multiple of */
#if VF == 16
#define TILE_ROWS 12
#else
#define TILE_ROWS 6
#endif

/* c[rows, nv*VF] (+)= sum over runs of a[rows, at[run] .. + k] . b[run*k .. + k, nv*VF]; all sizes in dwords. */
typedef struct tile {
    const float *a;
    int64_t lda;
    const int64_t *at; /* [runs]: where each starts in a row of A */
    int64_t runs, k;
    const float *b; /* [runs*k][nv*VF] */
    float *c;
    int64_t ldc;
    bool add; /* to what c holds */
} tile;

static const int64_t tile_one_run[1] = {0};

/* Around the products of one task: an instruction set may have something to set up. */
OQ_INLINE void tile_begin(void)
{
}
OQ_INLINE void tile_end(void)
{
}

OQ_INLINE vf tile_dot(vf x, vf b, vf sum)
{
#if TILE_STEP == 2
    return v_dot_bf16(x, b, sum);
#elif TILE_STEP == 4
    return v_dot_bytes(x, b, sum);
#else
    return v_fma(x, b, sum);
#endif
}

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
        const float *a0 = t->a + t->at[run], *a3 = a0 + (rows > 3 ? 3 * lda : 0);
        const float *a6 = a0 + (rows > 6 ? 6 * lda : 0), *a9 = a0 + (rows > 9 ? 9 * lda : 0);
        for (int64_t p = 0; p < k; p++) {
            const vf b0 = v_load(b), b1 = nv > 1 ? v_load(b + VF) : v_zero();
            b += nv * VF;
            OQ_UNROLL
            for (int i = 0; i < rows; i++) {
                const float *a = i < 3 ? a0 : i < 6 ? a3 : i < 9 ? a6 : a9;
                const vf x = v_set(a[i % 3 * lda + p]);
                acc[i][0] = tile_dot(x, b0, acc[i][0]);
                if (nv > 1) acc[i][1] = tile_dot(x, b1, acc[i][1]);
            }
        }
    }
    OQ_UNROLL
    for (int i = 0; i < rows; i++) {
        OQ_UNROLL
        for (int v = 0; v < nv; v++) v_store(c + i * ldc + v * VF, acc[i][v]);
    }
}

#define TILE(rows)                                                                                           \
    static void tile_##rows##x1(const tile *t)                                                               \
    {                                                                                                        \
        tile_body(t, rows, 1);                                                                               \
    }                                                                                                        \
    static void tile_##rows##x2(const tile *t)                                                               \
    {                                                                                                        \
        tile_body(t, rows, 2);                                                                               \
    }
TILE(1)
TILE(2)
TILE(3)
TILE(4)
TILE(5)
TILE(6)
#if VF == 16
TILE(7)
TILE(8)
TILE(9)
TILE(10)
TILE(11)
TILE(12)
#endif

static void (*const tile_sizes[TILE_ROWS][2])(const tile *t) = {
    {tile_1x1, tile_1x2},   {tile_2x1, tile_2x2},   {tile_3x1, tile_3x2},
    {tile_4x1, tile_4x2},   {tile_5x1, tile_5x2},   {tile_6x1, tile_6x2},
#if VF == 16
    {tile_7x1, tile_7x2},   {tile_8x1, tile_8x2},   {tile_9x1, tile_9x2},
    {tile_10x1, tile_10x2}, {tile_11x1, tile_11x2}, {tile_12x1, tile_12x2},
#endif
};

/* Any number of rows, in tiles of nearly one height: a short last one would wait for its own sums. */
static void tile_run(tile t, int64_t rows, int64_t nv)
{
    for (int64_t n; rows > 0; rows -= n) {
        n = oq_ceil_div(rows, oq_ceil_div(rows, TILE_ROWS));
        tile_sizes[n - 1][nv - 1](&t);
        t.a += n * t.lda;
        t.c += n * t.ldc;
    }
}

#endif
