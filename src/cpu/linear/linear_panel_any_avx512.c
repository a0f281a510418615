/* linear_panel_any_avx512.c -- f32 products in 12 x 32 accumulators for every format: panels are built from the
 * format's own decode_span. */
#include "cpu/linear/linear_micro_avx512.h"
#include "cpu/linear/linear_panel_any.h"

enum { MR = 12, NR = 32, STEP = 1 };

MICRO_TABLE(micro, "vfmadd231ps")

#define ENGINE_STORE oq_panel_store_avx512
#include "cpu/linear/linear_engine_any.h"

OQ_PANEL_ENGINE_DEFINE(any_avx512, &engine)
