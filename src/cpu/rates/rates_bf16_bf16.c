/* rates_bf16_bf16.c -- bf16 fours by bfmmla. */
#include "cpu/linear/linear_micro_neon.h"

MICRO_TABLE_PAIRS(micro, OP_BF16)

#include "cpu/rates/rates_micro.h"

void oq_rate_bf16_bf16(oq_rate_work *w)
{
    rate_work(w);
}
