/* rope_avx2.c -- rope_simd.h compiled for AVX2 + FMA. */
#if defined(__x86_64__)
#include "cpu/rope/rope_simd.h"

void oq_rope_init_avx2(oq_ops *ops)
{
    ops->rope = rope;
    ops->qk_norm_rope = qk_norm_rope;
}
#endif
