/* linear_wf32_af32_neon.c -- f32 weights, plain activations. */
#include "cpu/linear/linear_panel.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_plain(spec, &oq_format_f32);
}

const oq_linear_kernel oq_linear_wf32_af32_neon = {.name = "linear_wf32_af32_neon",
                                                   .need = OQ_CPU_NEON,
                                                   .accepts = accepts,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(f32_neon)};
