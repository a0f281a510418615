/* linear_wcode_ai16_avx512vnni.c -- weights in codes that are whole numbers (or are rounded to such: NF4) where rows are no
 * whole units of 256 columns, and where pairs of bf16 are no choice; more than a few rows of activations of type BF16 in
 * fixed point. */
#include "cpu/linear/linear_panel.h"

const oq_linear_kernel oq_linear_wcode_ai16_avx512vnni = {.name = "linear_wcode_ai16_avx512vnni",
                                                          .need = OQ_CPU_AVX512 | OQ_CPU_AVX512VNNI,
                                                          .accepts = oq_panel_whole_avx512vnni_takes,
                                                          OQ_PANEL_ENGINE_FUNCTIONS(whole_avx512vnni)};
