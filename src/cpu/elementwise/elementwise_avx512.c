/* elementwise_avx512.c -- elementwise_simd.h compiled for AVX-512. */
#if defined(__x86_64__)
#include "cpu/elementwise/elementwise_simd.h"

void oq_elementwise_init_avx512(oq_ops *ops)
{
    fill(ops);
}
#endif
