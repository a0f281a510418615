/* linear_wbf16_abf16_bf16.c -- bf16 weights at rest, products of bf16 pairs, sums in f32. */
#include "cpu/linear/linear_panel.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_plain(spec, &oq_format_bf16);
}

const oq_linear_kernel oq_linear_wbf16_abf16_bf16 = {.name = "linear_wbf16_abf16_bf16",
                                                     .need = OQ_CPU_BF16,
                                                     .accepts = accepts,
                                                     OQ_PANEL_ENGINE_FUNCTIONS(bf16_bf16)};
