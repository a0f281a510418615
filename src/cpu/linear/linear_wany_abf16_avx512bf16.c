/* linear_wany_abf16_avx512bf16.c -- weights of any format, kept as they are; activations BF16, or under powers of two. */
#include "cpu/linear/linear_panel.h"

const oq_linear_kernel oq_linear_wany_abf16_avx512bf16 = {.name = "linear_wany_abf16_avx512bf16",
                                                          .need = OQ_CPU_AVX512 | OQ_CPU_AVX512BF16,
                                                          .accepts = oq_panel_any_codes,
                                                          OQ_PANEL_ENGINE_FUNCTIONS(any_avx512bf16)};
