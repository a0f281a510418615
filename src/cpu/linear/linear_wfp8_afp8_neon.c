/* linear_wfp8_afp8_neon.c -- e4m3 weights and activations: products of codes in f32, scales afterwards (of
 * tensor, channel and token) or folded into the numbers (blocks and groups of 128). */
#include "cpu/linear/linear_panel.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_scaled(spec, &oq_dtype_f8_e4m3) && spec->scheme.act == &oq_dtype_f8_e4m3;
}

const oq_linear_kernel oq_linear_wfp8_afp8_neon = {.name = "linear_wfp8_afp8_neon",
                                                   .need = OQ_CPU_NEON,
                                                   .accepts = accepts,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(f32_neon)};
