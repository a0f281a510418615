/* conv2d.h -- the convolutions of this backend; conv2d_list.c orders them. */
#ifndef OQ_CPU_CONV2D_H
#define OQ_CPU_CONV2D_H

#include "cpu/cpu.h"

extern const oq_conv2d_kernel oq_conv2d_ref, oq_conv2d_avx2, oq_conv2d_avx512;

static inline int64_t oq_conv2d_out_h(const oq_conv2d_spec *s, int64_t h)
{
    return (h + s->pad_top + s->pad_bottom - s->kh) / s->stride + 1;
}

static inline int64_t oq_conv2d_out_w(const oq_conv2d_spec *s, int64_t w)
{
    return (w + s->pad_left + s->pad_right - s->kw) / s->stride + 1;
}

#endif
