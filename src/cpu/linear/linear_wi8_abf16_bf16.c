/* linear_wi8_abf16_bf16.c -- int8 weights at rest, plain activations, products of bf16 pairs. */
#include "cpu/linear/linear_panel.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_scaled(spec, &oq_dtype_i8) && !spec->scheme.act;
}

const oq_linear_kernel oq_linear_wi8_abf16_bf16 = {.name = "linear_wi8_abf16_bf16",
                                                   .need = OQ_CPU_BF16,
                                                   .accepts = accepts,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(bf16_bf16)};
