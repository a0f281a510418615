/* linear_panel_f32_neon.c -- f32 products in 6 x 16 accumulators: f32, bf16, fp8 and int8 weights, plain or
 * fp8 activations. */
#include "cpu/linear/linear_micro_neon.h"

#include "cpu/linear/linear_few_panel_simd.h"

enum { MR = MICRO_ROWS, NR = MICRO_COLUMNS, STEP = 1 };

MICRO_TABLE_LANES(micro, DWORDS, OP_F32)

#define ENGINE_STORE oq_panel_store_neon
#include "cpu/linear/linear_engine_f32.h"

OQ_PANEL_ENGINE_DEFINE(f32_neon, &engine)
