/* conv2d_winograd_avx512.c -- conv2d_winograd.h compiled for AVX-512. */
#if defined(__x86_64__)
#include "cpu/vec/tile.h"

#include "cpu/conv2d/conv2d_winograd.h"

const oq_conv2d_kernel oq_conv2d_winograd_avx512 = {
    .name = "conv2d_winograd_avx512",
    .need = OQ_CPU_AVX512,
    .accepts = accepts,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
#endif
