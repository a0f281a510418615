/* linear_panel_fixed_avxvnni.c -- a few rows of x in fixed point times codes that are whole numbers, by vpdpbusd of 256 bits. */
#include "cpu/linear/linear_few_fixed.h"

enum { NR = 16 };

#define ENGINE_STORE oq_panel_store_avx2
#include "cpu/linear/linear_engine_fixed.h"

FIXED_ENGINE_DEFINE(fixed_avxvnni, any_avx2, any_avx2, 0)
