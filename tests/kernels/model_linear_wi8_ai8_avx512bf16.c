/* model_linear_wi8_ai8_avx512bf16.c -- linear_wi8_ai8_amx.c over the modelled engine. */
#include "kernels/model_linear.h"

#include "cpu/linear/linear_wi8_ai8_amx.c"
