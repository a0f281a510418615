/* attention_bf16.c -- attention_tiles.h over bf16 pairs by bfdot. Operands that are not all BF16 are not
 * rounded to fit: they go through the f32 kernel. */
#define TILE_STEP 2
#include "cpu/vec/tile.h"

#include "cpu/attention/attention_tiles.h"

static size_t scratch_either(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv)
{
    const size_t pairs = scratch_bytes(spec, n_q, n_kv),
                 plain = oq_attention_neon.scratch_bytes(spec, n_q, n_kv);
    return pairs > plain ? pairs : plain;
}

static void run_either(oq_device *device, const oq_attention_args *a)
{
    (oq_attention_all_bf16(a) ? run : oq_attention_neon.run)(device, a);
}

const oq_attention_kernel oq_attention_bf16 = {
    .name = "attention_bf16",
    .need = OQ_CPU_BF16,
    .block_map = true,
    .accepts = accepts,
    .scratch_bytes = scratch_either,
    .run = run_either,
};
