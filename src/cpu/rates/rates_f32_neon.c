/* rates_f32_neon.c -- f32 products. */
#include "cpu/linear/linear_micro_neon.h"

MICRO_TABLE_LANES(micro, DWORDS, OP_F32)

#include "cpu/rates/rates_micro.h"

void oq_rate_f32_neon(oq_rate_work *w)
{
    rate_work(w);
}
