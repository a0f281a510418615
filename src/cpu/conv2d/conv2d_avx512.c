/* conv2d_avx512.c -- conv2d_direct.h in f32, compiled for AVX-512. */
#if defined(__x86_64__)
#include "cpu/vec/tile.h"

#include "cpu/conv2d/conv2d_direct.h"

const oq_conv2d_kernel oq_conv2d_avx512 = {
    .name = "conv2d_avx512",
    .need = OQ_CPU_AVX512,
    .accepts = accepts_shape,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
#endif
