/* linear_wi8_abf16_amx.c -- int8 weights at rest, plain activations, products of bf16 pairs. */
#include "cpu/linear/linear_panel.h"
#include "cpu/vec/amx.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_scaled(spec, &oq_dtype_i8) && !spec->scheme.act;
}

const oq_linear_kernel oq_linear_wi8_abf16_amx = {.name = OQ_AMX_NAME("linear_wi8_abf16_amx"),
                                                  .need = OQ_AMX_NEED,
                                                  .accepts = accepts,
                                                  OQ_PANEL_ENGINE_FUNCTIONS(bf16_amx)};
