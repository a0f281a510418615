/* linear_panel_bf16_avx512bf16.c -- linear_panel_bf16.h by vdpbf16ps. */
#include "cpu/linear/linear_panel_bf16.h"

MICRO_TABLE(micro_bf16, "vdpbf16ps")

static const oq_panel_engine engine = PAIRS_ENGINE(12, micro_bf16);

PAIRS_ENGINE_DEFINE(bf16_avx512bf16, &engine)
