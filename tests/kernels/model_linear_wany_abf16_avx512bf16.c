/* model_linear_wany_abf16_avx512bf16.c -- linear_wany_abf16_amx.c over the modelled engine. */
#include "kernels/model_linear.h"

#include "cpu/linear/linear_wany_abf16_amx.c"
