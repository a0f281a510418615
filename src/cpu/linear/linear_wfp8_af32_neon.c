/* linear_wfp8_af32_neon.c -- e4m3 weights at rest, plain activations. */
#include "cpu/linear/linear_panel.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_scaled(spec, &oq_dtype_f8_e4m3) && !spec->scheme.act;
}

const oq_linear_kernel oq_linear_wfp8_af32_neon = {.name = "linear_wfp8_af32_neon",
                                                   .need = OQ_CPU_NEON,
                                                   .accepts = accepts,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(f32_neon)};
