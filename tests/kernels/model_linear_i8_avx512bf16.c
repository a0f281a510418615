/* model_linear_i8_avx512bf16.c -- linear_panel_i8_amx.c over the model of its tile instructions. */
#include "kernels/model_linear.h"

#include "cpu/linear/linear_panel_i8_amx.c"
