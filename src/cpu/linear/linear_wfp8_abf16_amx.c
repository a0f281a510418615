/* linear_wfp8_abf16_amx.c -- e4m3 weights at rest, plain activations, products of bf16 pairs. */
#include "cpu/linear/linear_panel.h"
#include "cpu/vec/amx.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_fp8_unfolded(spec) && !spec->scheme.act;
}

const oq_linear_kernel oq_linear_wfp8_abf16_amx = {.name = OQ_AMX_NAME("linear_wfp8_abf16_amx"),
                                                   .need = OQ_AMX_NEED,
                                                   .accepts = accepts,
                                                   OQ_PANEL_ENGINE_FUNCTIONS(bf16_amx)};
