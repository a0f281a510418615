/* conv2d.h -- the convolutions of this backend; conv2d_list.c orders them. */
#ifndef OQ_CPU_CONV2D_H
#define OQ_CPU_CONV2D_H

#include "cpu/cpu.h"

enum { OQ_CONV2D_MAX_RUNS = 64 }; /* rows of a window over all its frames, in the vector kernels */

extern const oq_conv2d_kernel oq_conv2d_ref, oq_conv2d_avx2, oq_conv2d_avx512, oq_conv2d_wbf16_avx512bf16,
    oq_conv2d_wbf16_amx, oq_conv2d_winograd_avx2, oq_conv2d_winograd_avx512, oq_conv2d_neon, oq_conv2d_winograd_neon,
    oq_conv2d_wbf16_bf16;

/* BF16 in and out, weights that are bf16 numbers: pairs may be multiplied as they are. */
static inline bool oq_conv2d_all_bf16(const oq_conv2d_spec *s)
{
    return s->compute == &oq_dtype_bf16 && s->weight == &oq_dtype_bf16;
}

/* c_in * c_out that Winograd takes from pairs of bf16, and of videos: kt times as many weights as of an image */
enum { OQ_CONV2D_WINOGRAD_MOST = 256 * 256, OQ_CONV2D_WINOGRAD_MOST_VIDEO = 192 * 192 };

/* Is Winograd in f32 faster than direct products of bf16 pairs? Measured on Zen 5, where pairs are twice as fast as f32:
 * from 64 channels on; beyond 256 its weights no longer stay in the cache. */
static inline bool oq_conv2d_winograd_wins(const oq_conv2d_spec *s)
{
    return s->kt == 0 && oq_conv2d_enlarge(s) == 1 && s->kh == 3 && s->kw == 3 && s->stride == 1 && s->c_in % 16 == 0 &&
           s->c_in >= 64 && s->c_out >= 64 && s->c_in * s->c_out <= OQ_CONV2D_WINOGRAD_MOST;
}

#endif
