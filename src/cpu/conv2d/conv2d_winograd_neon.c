/* conv2d_winograd_neon.c -- conv2d_winograd.h compiled for NEON. */
#include "cpu/vec/tile.h"

#include "cpu/conv2d/conv2d_winograd.h"

const oq_conv2d_kernel oq_conv2d_winograd_neon = {
    .name = "conv2d_winograd_neon",
    .need = OQ_CPU_NEON,
    .accepts = accepts,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
