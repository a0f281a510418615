/* linear_wfp8_afp8_amx.c -- e4m3 weights and activations: bf16 holds every code, scales afterwards (of blocks of 128:
 * of the sum over each). */
#include "cpu/linear/linear_panel.h"
#include "cpu/vec/amx.h"

static bool accepts(const oq_linear_spec *spec)
{
    return (oq_panel_fp8_unfolded(spec) || oq_panel_fp8_blocks(spec)) &&
           spec->scheme.act == &oq_dtype_f8_e4m3;
}

const oq_linear_kernel oq_linear_wfp8_afp8_amx = {.name = OQ_AMX_NAME("linear_wfp8_afp8_amx"),
                                                  .need = OQ_AMX_NEED,
                                                  .accepts = accepts,
                                                  OQ_PANEL_ENGINE_FUNCTIONS(bf16_amx)};
