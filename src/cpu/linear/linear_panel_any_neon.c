/* linear_panel_any_neon.c -- f32 products in 6 x 16 accumulators for every format: panels are built from the
 * format's own decode_span. */
#include "cpu/linear/linear_micro_neon.h"
#include "cpu/linear/linear_panel_any.h"

enum { MR = MICRO_ROWS, NR = MICRO_COLUMNS, STEP = 1 };

MICRO_TABLE_LANES(micro, DWORDS, OP_F32)

#define ENGINE_STORE oq_panel_store_neon
#include "cpu/linear/linear_engine_any.h"

OQ_PANEL_ENGINE_DEFINE(any_neon, &engine)
