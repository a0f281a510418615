/* attention_avx2.c -- attention_tiles.h in f32, compiled for AVX2 + FMA. */
#if defined(__x86_64__)
#include "cpu/vec/tile.h"

#include "cpu/attention/attention_tiles.h"

const oq_attention_kernel oq_attention_avx2 = {
    .name = "attention_avx2",
    .need = OQ_CPU_AVX2,
    .block_map = true,
    .accepts = accepts,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
#endif
