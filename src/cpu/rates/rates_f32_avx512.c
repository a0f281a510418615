/* rates_f32_avx512.c -- f32 products of 16. */
#if defined(__x86_64__)
#define TILE_STEP 1
#include "cpu/vec/tile.h"

#include "cpu/rates/rates_tile.h"

void oq_rate_f32_avx512(oq_rate_work *w)
{
    rate_work(w);
}
#endif
