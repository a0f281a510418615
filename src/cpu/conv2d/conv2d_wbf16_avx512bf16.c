/* conv2d_wbf16_avx512bf16.c -- conv2d_direct.h over bf16 pairs by vdpbf16ps: exact products, sums in f32. */
#if defined(__x86_64__)
#define TILE_STEP 2
#include "cpu/vec/tile.h"

#include "cpu/conv2d/conv2d_direct.h"

static bool accepts(const oq_conv2d_spec *spec)
{
    return oq_conv2d_all_bf16(spec) && accepts_shape(spec) && !oq_conv2d_winograd_wins(spec);
}

const oq_conv2d_kernel oq_conv2d_wbf16_avx512bf16 = {
    .name = "conv2d_wbf16_avx512bf16",
    .need = OQ_CPU_AVX512BF16,
    .accepts = accepts,
    .packed_bytes = packed_bytes,
    .pack = pack,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
#endif
