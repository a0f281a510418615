/* rates_i8_amx.c -- int8 fours in matrix tiles. */
#if defined(__x86_64__)
#define TILE_STEP 4
#include "cpu/vec/tile_amx.h"

#include "cpu/rates/rates_tile.h"

void oq_rate_i8_amx(oq_rate_work *w)
{
    rate_work(w);
}
#endif
