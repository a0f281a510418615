/* linear_wany_ai16_dotprod.c -- weights in codes that are whole numbers, kept as they are; a few rows of activations in
 * fixed point, 16 bits of BF16 and 24 of F32. */
#include "cpu/linear/linear_panel.h"

const oq_linear_kernel oq_linear_wany_ai16_dotprod = {.name = "linear_wany_ai16_dotprod",
                                                      .need = OQ_CPU_NEON | OQ_CPU_DOTPROD,
                                                      .accepts = oq_panel_fixed_dotprod_takes,
                                                      OQ_PANEL_ENGINE_FUNCTIONS(fixed_dotprod)};
