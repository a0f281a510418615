/* attention_neon.c -- attention_tiles.h in f32, compiled for NEON. */
#include "cpu/vec/tile.h"

#include "cpu/attention/attention_tiles.h"

const oq_attention_kernel oq_attention_neon = {
    .name = "attention_neon",
    .need = OQ_CPU_NEON,
    .block_map = true,
    .accepts = accepts,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
