/* conv2d_wbf16_amx.c -- conv2d_direct.h over bf16 pairs in matrix tiles (tdpbf16ps). */
#if defined(__x86_64__)
#include "cpu/vec/tile_amx.h"

#include "cpu/conv2d/conv2d_direct.h"

static bool accepts(const oq_conv2d_spec *spec)
{
    return oq_conv2d_all_bf16(spec) && accepts_shape(spec);
}

const oq_conv2d_kernel oq_conv2d_wbf16_amx = {
    .name = OQ_AMX_NAME("conv2d_wbf16_amx"),
    .need = OQ_AMX_NEED,
    .accepts = accepts,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
#endif
