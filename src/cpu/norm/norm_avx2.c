/* norm_avx2.c -- norm_simd.h and group_norm_simd.h compiled for AVX2 + FMA. */
#if defined(__x86_64__)
#include "cpu/norm/norm_simd.h"
#include "cpu/norm/group_norm_simd.h"

void oq_norm_init_avx2(oq_ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->layer_norm = layer_norm;
    ops->group_norm = group_norm;
}
#endif
