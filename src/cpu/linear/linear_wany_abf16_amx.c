/* linear_wany_abf16_amx.c -- weights of any format, kept as they are; activations BF16, or under powers of two, in tiles. */
#include "cpu/linear/linear_panel.h"
#include "cpu/vec/amx.h"

const oq_linear_kernel oq_linear_wany_abf16_amx = {.name = OQ_AMX_NAME("linear_wany_abf16_amx"),
                                                   .need = OQ_AMX_NEED,
                                                   .accepts = oq_panel_any_codes,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(any_amx)};
