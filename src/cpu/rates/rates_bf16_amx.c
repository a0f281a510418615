/* rates_bf16_amx.c -- bf16 pairs in matrix tiles. */
#if defined(__x86_64__)
#define TILE_STEP 2
#include "cpu/vec/tile_amx.h"

#include "cpu/rates/rates_tile.h"

void oq_rate_bf16_amx(oq_rate_work *w)
{
    rate_work(w);
}
#endif
