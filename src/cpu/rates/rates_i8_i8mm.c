/* rates_i8_i8mm.c -- int8 eights by smmla. */
#include "cpu/linear/linear_micro_neon.h"

MICRO_TABLE_PAIRS(micro, OP_MATRIX_I8)

#include "cpu/rates/rates_micro.h"

void oq_rate_i8_i8mm(oq_rate_work *w)
{
    rate_work(w);
}
