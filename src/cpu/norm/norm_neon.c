/* norm_neon.c -- norm_simd.h, group_norm_simd.h and rows_simd.h compiled for NEON. */
#ifndef __clang__ /* operands of rows_simd.h are read under the very conditions under which they were loaded */
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "cpu/norm/norm_simd.h"
#include "cpu/norm/group_norm_simd.h"
#include "cpu/norm/rows_simd.h"

void oq_norm_init_neon(oq_ops *ops)
{
    ops->rms_norm = rms_norm;
    ops->layer_norm = layer_norm;
    ops->group_norm = group_norm;
    ops->group_moments = group_moments;
    ops->rows = rows;
}

void oq_rows_walk_neon(const oq_rows_args *a, int64_t first, int64_t end)
{
    rows_walk(a, first, end);
}
