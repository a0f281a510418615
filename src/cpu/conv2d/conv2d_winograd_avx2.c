/* conv2d_winograd_avx2.c -- conv2d_winograd.h compiled for AVX2 + FMA. */
#if defined(__x86_64__)
#include "cpu/vec/tile.h"

#include "cpu/conv2d/conv2d_winograd.h"

const oq_conv2d_kernel oq_conv2d_winograd_avx2 = {
    .name = "conv2d_winograd_avx2",
    .need = OQ_CPU_AVX2,
    .accepts = accepts,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
#endif
