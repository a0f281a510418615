/* linear_wbf16_af32_neon.c -- bf16 weights at rest, plain activations, sums in f32. */
#include "cpu/linear/linear_panel.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_plain(spec, &oq_format_bf16);
}

const oq_linear_kernel oq_linear_wbf16_af32_neon = {.name = "linear_wbf16_af32_neon",
                                                    .need = OQ_CPU_NEON,
                                                    .accepts = accepts,
                                                    OQ_PANEL_ENGINE_FUNCTIONS(f32_neon)};
