/* model_conv2d_avx512bf16.c -- conv2d_wbf16_amx.c over the model of its tile instructions. */
#define OQ_AMX_MODEL        1
#define oq_conv2d_wbf16_amx oq_conv2d_wbf16_amx_model
#include "cpu/conv2d/conv2d_wbf16_amx.c"
