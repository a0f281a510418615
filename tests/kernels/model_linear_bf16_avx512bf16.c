/* model_linear_bf16_avx512bf16.c -- linear_panel_bf16_amx.c over the model of its tile instructions. */
#include "kernels/model_linear.h"

#include "cpu/linear/linear_panel_bf16_amx.c"
