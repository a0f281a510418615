/* attention_amx.c -- attention_tiles.h over bf16 pairs in matrix tiles (tdpbf16ps). Operands that are not all BF16 are
 * not rounded to fit: they go through the f32 kernel. */
#if defined(__x86_64__)
#include "cpu/vec/tile_amx.h"

#define ATTENTION_BOUNDED 1
#include "cpu/attention/attention_tiles.h"

static size_t scratch_either(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv)
{
    const size_t pairs = scratch_bytes(spec, n_q, n_kv),
                 plain = oq_attention_avx512.scratch_bytes(spec, n_q, n_kv);
    return pairs > plain ? pairs : plain;
}

static void run_either(oq_device *device, const oq_attention_args *a)
{
    (oq_attention_all_bf16(a) ? run : oq_attention_avx512.run)(device, a);
}

const oq_attention_kernel oq_attention_amx = {
    .name = OQ_AMX_NAME("attention_amx"),
    .need = OQ_AMX_NEED,
    .accepts = accepts,
    .scratch_bytes = scratch_either,
    .run = run_either,
};
#endif
