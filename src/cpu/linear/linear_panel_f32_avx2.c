/* linear_panel_f32_avx2.c -- f32 products in 6 x 16 accumulators: f32, bf16, fp8 and int8 weights, plain or
 * fp8 activations. */
#include "cpu/linear/linear_micro_avx2.h"

#define OQ_PANEL_WIDE 0
#include "cpu/linear/linear_few_panel_simd.h"

enum { MR = 6, NR = 16, STEP = 1 };

MICRO_TABLE(micro, OP_F32)

#define ENGINE_STORE oq_panel_store_avx2
#include "cpu/linear/linear_engine_f32.h"

OQ_PANEL_ENGINE_DEFINE(f32_avx2, &engine)
