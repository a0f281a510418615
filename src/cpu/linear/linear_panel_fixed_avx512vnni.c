/* linear_panel_fixed_avx512vnni.c -- a few rows of x in fixed point times codes that are whole numbers, by vpdpbusd. */
#include "cpu/linear/linear_few_fixed.h"

enum { NR = 32 };

#define ENGINE_STORE oq_panel_store_avx512
#include "cpu/linear/linear_engine_fixed.h"

FIXED_ENGINE_DEFINE(fixed_avx512vnni, any_avx512, any_avx512bf16, OQ_CPU_AVX512BF16)
