/* linear_wany_af32_avx2.c -- weights of any format, kept as they are; activations plain or in groups. */
#include "cpu/linear/linear_panel.h"

const oq_linear_kernel oq_linear_wany_af32_avx2 = {.name = "linear_wany_af32_avx2",
                                                   .need = OQ_CPU_AVX2,
                                                   .accepts = oq_panel_any,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(any_avx2)};
