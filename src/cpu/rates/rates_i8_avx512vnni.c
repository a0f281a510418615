/* rates_i8_avx512vnni.c -- int8 fours by vpdpbusd. */
#if defined(__x86_64__)
#define TILE_STEP 4
#include "cpu/vec/tile.h"

#include "cpu/rates/rates_tile.h"

void oq_rate_i8_avx512vnni(oq_rate_work *w)
{
    rate_work(w);
}
#endif
