/* linear_wany_af32_avx512.c -- weights of any format, kept as they are; activations plain or in groups. */
#include "cpu/linear/linear_panel.h"

const oq_linear_kernel oq_linear_wany_af32_avx512 = {.name = "linear_wany_af32_avx512",
                                                     .need = OQ_CPU_AVX512,
                                                     .accepts = oq_panel_any,
                                                     OQ_PANEL_ENGINE_FUNCTIONS(any_avx512)};
