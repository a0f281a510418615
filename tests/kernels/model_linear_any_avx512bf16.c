/* model_linear_any_avx512bf16.c -- linear_panel_any_amx.c over the model of its tile instructions. */
#include "kernels/model_linear.h"

#include "cpu/linear/linear_panel_any_amx.c"
