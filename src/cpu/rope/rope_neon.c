/* rope_neon.c -- rope_simd.h compiled for NEON. */
#include "cpu/rope/rope_simd.h"

void oq_rope_init_neon(oq_ops *ops)
{
    ops->rope = rope;
    ops->qk_norm_rope = qk_norm_rope;
}
