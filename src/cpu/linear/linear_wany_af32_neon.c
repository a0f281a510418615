/* linear_wany_af32_neon.c -- weights of any format, kept as they are; activations plain or in groups. */
#include "cpu/linear/linear_panel.h"

const oq_linear_kernel oq_linear_wany_af32_neon = {.name = "linear_wany_af32_neon",
                                                   .need = OQ_CPU_NEON,
                                                   .accepts = oq_panel_any,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(any_neon)};
