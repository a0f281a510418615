/* linear_wany_ai16_avx512vnni.c -- weights in codes that are whole numbers, kept as they are; a few rows of activations in
 * fixed point, 16 bits of BF16 and 24 of F32. */
#include "cpu/linear/linear_panel.h"

const oq_linear_kernel oq_linear_wany_ai16_avx512vnni = {.name = "linear_wany_ai16_avx512vnni",
                                                         .need = OQ_CPU_AVX512 | OQ_CPU_AVX512VNNI,
                                                         .accepts = oq_panel_fixed_avx512vnni_takes,
                                                         OQ_PANEL_ENGINE_FUNCTIONS(whole_avx512vnni)};
