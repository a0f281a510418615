/* linear_wfp8_afp8_bf16.c -- e4m3 weights and activations: bf16 holds every code, scales afterwards. */
#include "cpu/linear/linear_panel.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_fp8_unfolded(spec) && spec->scheme.act == &oq_dtype_f8_e4m3;
}

const oq_linear_kernel oq_linear_wfp8_afp8_bf16 = {.name = "linear_wfp8_afp8_bf16",
                                                   .need = OQ_CPU_BF16,
                                                   .accepts = accepts,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(bf16_bf16)};
