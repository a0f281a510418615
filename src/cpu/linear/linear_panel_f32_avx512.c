/* linear_panel_f32_avx512.c -- f32 products in 12 x 32 accumulators: f32, bf16, fp8 and int8 weights, plain
 * or fp8 activations. */
#include "cpu/linear/linear_micro_avx512.h"

#define OQ_PANEL_WIDE 1
#include "cpu/linear/linear_few_panel_simd.h"

enum { MR = 12, NR = 32, STEP = 1 };

MICRO_TABLE(micro, "vfmadd231ps")

/* At once, before a tile: its products take longer than the lines. */
static void ahead(const char *next, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(next + i, 0, 2);
}

#define ENGINE_AHEAD ahead
#define ENGINE_STORE oq_panel_store_avx512
#include "cpu/linear/linear_engine_f32.h"

OQ_PANEL_ENGINE_DEFINE(f32_avx512, &engine)
