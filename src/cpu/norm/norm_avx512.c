/* norm_avx512.c -- norm_simd.h, group_norm_simd.h and rows_simd.h compiled for AVX-512. */
#if defined(__x86_64__)
#include "cpu/norm/norm_simd.h"
#include "cpu/norm/group_norm_simd.h"
#include "cpu/norm/rows_simd.h"

void oq_norm_init_avx512(oq_ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->layer_norm = layer_norm;
    ops->group_norm = group_norm;
    ops->group_moments = group_moments;
    ops->rows = rows;
}

void oq_rows_walk_avx512(const oq_rows_args *a, int64_t first, int64_t end)
{
    rows_walk(a, first, end);
}
#endif
