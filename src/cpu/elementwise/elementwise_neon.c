/* elementwise_neon.c -- elementwise_simd.h compiled for NEON. */
#include "cpu/elementwise/elementwise_simd.h"

void oq_elementwise_init_neon(oq_ops *ops)
{
    fill(ops);
}
