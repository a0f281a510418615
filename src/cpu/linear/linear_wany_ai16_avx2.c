/* linear_wany_ai16_avx2.c -- weights in codes that are whole numbers, kept as they are; a few rows of activations in
 * fixed point, 16 bits of BF16 and 24 of F32. */
#include "cpu/linear/linear_panel.h"

const oq_linear_kernel oq_linear_wany_ai16_avx2 = {.name = "linear_wany_ai16_avx2",
                                                   .need = OQ_CPU_AVX2,
                                                   .accepts = oq_panel_fixed_avx2_takes,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(fixed_avx2)};
