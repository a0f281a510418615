/* rates_i8_dotprod.c -- int8 fours by sdot. */
#include "cpu/linear/linear_micro_neon.h"

MICRO_TABLE_LANES(micro, DWORDS, OP_I8)

#include "cpu/rates/rates_micro.h"

void oq_rate_i8_dotprod(oq_rate_work *w)
{
    rate_work(w);
}
