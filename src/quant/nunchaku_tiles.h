/* nunchaku_tiles.h -- where nunchaku's GPU kernels expect what: tiles of 128 rows x 64 columns of codes, scales in the order
 * of the lanes that take them, low-rank matrices in tiles of 16 x 16. All functions give an index into the stored tensor.
 * Private to this room. */
#ifndef OQ_QUANT_NUNCHAKU_TILES_H
#define OQ_QUANT_NUNCHAKU_TILES_H

#include <stdint.h>

enum { OQ_NUNCHAKU_ROWS = 128, OQ_NUNCHAKU_COLS = 64 };

/* The word of 32 bits that holds columns c .. c+7 (c is a multiple of 8) of row r, the first in the lowest bits; k: stored
 * columns. */
static inline int64_t oq_nunchaku_word(int64_t r, int64_t c, int64_t k)
{
    const int64_t tile = r / 128 * (k / 64) + c / 64, in = r % 128;
    return ((((tile * 8 + in / 16) * 8 + in % 8) * 4 + c % 32 / 8) * 2 + in % 16 / 8) * 2 + c % 64 / 32;
}

/* Number of row r under group g of `groups` 16-bit scales; a vector is one group. */
static inline int64_t oq_nunchaku_scale(int64_t r, int64_t g, int64_t groups)
{
    const int64_t in = r % 128;
    return (r / 128 * groups + g) * 128 + in / 16 * 16 + in % 8 / 2 * 4 + in % 16 / 8 * 2 + in % 2;
}

/* The same for scales of 8 bits; `groups` is a multiple of 4. */
static inline int64_t oq_nunchaku_scale8(int64_t r, int64_t g, int64_t groups)
{
    const int64_t in = r % 128;
    return ((r / 128 * (groups / 4) + g / 4) * 128 + in % 8 * 16 + in % 32 / 8 * 4 + in / 32) * 4 + g % 4;
}

/* Low-rank matrices: tiles along the long side, then along the rank; inside a tile, i is the row and j the column. */
static inline int64_t oq_nunchaku_lowrank(int64_t tile, int64_t i, int64_t j)
{
    return tile * 256 + ((((i % 8 * 4 + j % 8 / 2) * 2 + i / 8) * 2 + j / 8) * 2) + j % 2;
}

/* Codes of the modulation layers: the word of 16 bits that holds column c of row r, and its first bit there. */
static inline int64_t oq_nunchaku_awq(int64_t r, int64_t c, int64_t k, int *shift)
{
    *shift = (int)(c % 32 / 8 * 4);
    return ((r / 4 * (k / 64) + c / 64) * 4 + r % 4) * 16 + c % 64 / 32 * 8 + c % 8;
}

#endif
