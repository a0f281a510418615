/* model_linear_wfp8_afp8_avx512bf16.c -- linear_wfp8_afp8_amx.c over the modelled engine. */
#include "kernels/model_linear.h"

#include "cpu/linear/linear_wfp8_afp8_amx.c"
