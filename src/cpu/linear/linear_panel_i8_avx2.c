/* linear_panel_i8_avx2.c -- int8 products by vpmaddwd on codes widened to 16 bits: exact, where vpmaddubsw
 * would saturate. */
#include "cpu/linear/linear_micro_avx2.h"

#define OQ_PANEL_WIDE 0
#include "cpu/linear/linear_panel_rows.h"

enum { MR = 6, NR = 16, STEP = 2 };

MICRO_TABLE(micro, OP_I16)

#define ENGINE_WIDE      1
#define ENGINE_PACK_STEP STEP
#define ENGINE_OFFSET    0
#define ENGINE_STORE     oq_panel_store_avx2
#include "cpu/linear/linear_engine_i8.h"

OQ_PANEL_ENGINE_DEFINE(i8_avx2, &engine)
