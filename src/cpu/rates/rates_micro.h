/* rates_micro.h -- the timed work by the microkernels of linear layers, whose table `micro` the including file has made. */
#include "base/size.h"
#include "cpu/rates/rates.h"

static void rate_work(oq_rate_work *w)
{
    const size_t lda = OQ_RATE_LDA * sizeof(float);
    for (int column = 0; column < OQ_RATE_COLS; column += MICRO_COLUMNS)
        for (int64_t row = 0, n; row < OQ_RATE_ROWS; row += n) {
            n = oq_min_i64(MICRO_ROWS, OQ_RATE_ROWS - row);
            micro[n](w->a + row * OQ_RATE_LDA, lda, w->b + column * OQ_RATE_DEPTH, OQ_RATE_DEPTH / OQ_PANEL_UNROLL,
                     w->c + row * MICRO_COLUMNS + column * OQ_RATE_ROWS, 0);
        }
}
