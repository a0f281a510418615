/* linear_panel_fixed_dotprod.c -- a few rows of x in fixed point times codes that are whole numbers, by sdot. */
#include "cpu/linear/linear_few_fixed.h"

enum { NR = 16 };

#define ENGINE_STORE oq_panel_store_neon
#include "cpu/linear/linear_engine_fixed.h"

FIXED_ENGINE_DEFINE(fixed_dotprod, any_neon, any_bf16, OQ_CPU_BF16)
