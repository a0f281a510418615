/* rates_bf16_avx512bf16.c -- bf16 pairs by vdpbf16ps. */
#if defined(__x86_64__)
#define TILE_STEP 2
#include "cpu/vec/tile.h"

#include "cpu/rates/rates_tile.h"

void oq_rate_bf16_avx512bf16(oq_rate_work *w)
{
    rate_work(w);
}
#endif
