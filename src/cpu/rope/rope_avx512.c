/* rope_avx512.c -- rope_simd.h compiled for AVX-512. */
#if defined(__x86_64__)
#include "cpu/rope/rope_simd.h"

void oq_rope_init_avx512(oq_ops *ops)
{
    ops->rope = rope;
    ops->qk_norm_rope = qk_norm_rope;
}
#endif
