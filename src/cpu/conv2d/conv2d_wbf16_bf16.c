/* conv2d_wbf16_bf16.c -- conv2d_direct.h over bf16 pairs by bfdot: exact products, sums in f32. */
#define TILE_STEP 2
#include "cpu/vec/tile.h"

#include "cpu/conv2d/conv2d_direct.h"

static bool accepts(const oq_conv2d_spec *spec)
{
    return oq_conv2d_all_bf16(spec) && accepts_shape(spec) && !oq_conv2d_winograd_wins(spec);
}

const oq_conv2d_kernel oq_conv2d_wbf16_bf16 = {
    .name = "conv2d_wbf16_bf16",
    .need = OQ_CPU_BF16,
    .accepts = accepts,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
