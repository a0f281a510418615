/* conv2d_neon.c -- conv2d_direct.h in f32, compiled for NEON. */
#include "cpu/vec/tile.h"

#include "cpu/conv2d/conv2d_direct.h"

const oq_conv2d_kernel oq_conv2d_neon = {
    .name = "conv2d_neon",
    .need = OQ_CPU_NEON,
    .accepts = accepts_shape,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
