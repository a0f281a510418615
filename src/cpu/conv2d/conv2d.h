/* conv2d.h -- the convolutions of this backend; conv2d_list.c orders them. */
#ifndef OQ_CPU_CONV2D_H
#define OQ_CPU_CONV2D_H

#include "cpu/cpu.h"

extern const oq_conv2d_kernel oq_conv2d_ref, oq_conv2d_avx2, oq_conv2d_avx512;

/* Does the kernel have to know about frames or enlarged images? */
static inline bool oq_conv2d_flat(const oq_conv2d_spec *s)
{
    return s->kt == 0 && oq_conv2d_enlarge(s) == 1;
}

#endif
