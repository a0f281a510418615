/* linear_panel_bf16_amx.c -- linear_panel_bf16.h over matrix tiles (tdpbf16ps). */
#include "cpu/linear/linear_panel_bf16.h"

#include "cpu/linear/linear_micro_amx.h"

AMX_MICRO_TABLE(micro_bf16, oq_amx_dot_bf16)

static const oq_panel_engine engine = PAIRS_ENGINE(AMX_MR, micro_bf16, AMX_ENGINE);

PAIRS_ENGINE_DEFINE(bf16_amx, &engine, &engine_f32)
