/* linear_panel_any_avx2.c -- f32 products in 6 x 16 accumulators for every format: panels are built from the
 * format's own decode_span. */
#include "cpu/linear/linear_micro_avx2.h"
#include "cpu/linear/linear_panel_any.h"

enum { MR = 6, NR = 16, STEP = 1 };

MICRO_TABLE(micro, OP_F32)

#define ENGINE_STORE oq_panel_store_avx2
#include "cpu/linear/linear_engine_any.h"

OQ_PANEL_ENGINE_DEFINE(any_avx2, &engine)
