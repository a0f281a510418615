/* rates_tile.h -- the timed work: rates.h's product by the tile that the including file has included. */
#include "cpu/rates/rates.h"

static void rate_work(oq_rate_work *w)
{
    const int64_t width = oq_min_i64(TILE_COLS, OQ_RATE_COLS);
    tile t = {.a = w->a,
              .lda = OQ_RATE_LDA,
              .at = tile_one_run,
              .runs = 1,
              .k = OQ_RATE_DEPTH,
              .b = w->b,
              .c = w->c,
              .ldc = OQ_RATE_COLS};
    tile_begin();
    for (int64_t column = 0; column < OQ_RATE_COLS; column += width) {
        tile_run(t, OQ_RATE_ROWS, 2);
        t.b += OQ_RATE_DEPTH * width;
        t.c += width;
    }
    tile_end();
}
