/* norm_avx512.c -- norm_simd.h and group_norm_simd.h compiled for AVX-512. */
#if defined(__x86_64__)
#include "cpu/norm/norm_simd.h"
#include "cpu/norm/group_norm_simd.h"

void oq_norm_init_avx512(oq_ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->layer_norm = layer_norm;
    ops->group_norm = group_norm;
}
#endif
