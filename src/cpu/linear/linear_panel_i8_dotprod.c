/* linear_panel_i8_dotprod.c -- int8 products by sdot, four of k at once. */
#include "cpu/linear/linear_micro_neon.h"
#include "cpu/linear/linear_panel_rows.h"

enum { MR = MICRO_ROWS, NR = MICRO_COLUMNS, STEP = 4 };

MICRO_TABLE_LANES(micro, DWORDS, OP_I8)

#define ENGINE_WIDE      0
#define ENGINE_PACK_STEP STEP
#define ENGINE_OFFSET    0
#define ENGINE_STORE     oq_panel_store_neon
#include "cpu/linear/linear_engine_i8.h"

OQ_PANEL_ENGINE_DEFINE(i8_dotprod, &engine)
