/* linear_panel_i8_neon.c -- int8 products by smlal on codes widened to 16 bits: exact on every AArch64. */
#include "cpu/linear/linear_micro_neon.h"
#include "cpu/linear/linear_panel_rows.h"

enum { MR = MICRO_ROWS, NR = MICRO_COLUMNS, STEP = 2 };

MICRO_TABLE_LANES(micro, WORD_PAIRS, OP_I16)

#define ENGINE_WIDE      1
#define ENGINE_PACK_STEP 1
#define ENGINE_OFFSET    0
#define ENGINE_STORE     oq_panel_store_neon
#include "cpu/linear/linear_engine_i8.h"

OQ_PANEL_ENGINE_DEFINE(i8_neon, &engine)
