/* elementwise_avx2.c -- elementwise_simd.h compiled for AVX2 + FMA. */
#if defined(__x86_64__)
#include "cpu/elementwise/elementwise_simd.h"

void oq_elementwise_init_avx2(oq_ops *ops)
{
    fill(ops);
}
#endif
