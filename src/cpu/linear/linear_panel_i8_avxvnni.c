/* linear_panel_i8_avxvnni.c -- int8 products by the 256 bit vpdpbusd, exact: activations as u8 = code + 128,
 * corrected by the column sums of the weights. */
#include "cpu/linear/linear_micro_avx2.h"

#define OQ_PANEL_WIDE 0
#include "cpu/linear/linear_panel_rows.h"

enum { MR = 6, NR = 16, STEP = 4 };

MICRO_TABLE(micro, OP_VNNI)

#define ENGINE_WIDE      0
#define ENGINE_PACK_STEP STEP
#define ENGINE_OFFSET    128
#define ENGINE_STORE     oq_panel_store_avx2
#include "cpu/linear/linear_engine_i8.h"

OQ_PANEL_ENGINE_DEFINE(i8_avxvnni, &engine)
