/* linear_wbf16_abf16_amx.c -- bf16 weights at rest, products of bf16 pairs, sums in f32. */
#include "cpu/linear/linear_panel.h"
#include "cpu/vec/amx.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_plain(spec, &oq_format_bf16);
}

const oq_linear_kernel oq_linear_wbf16_abf16_amx = {.name = OQ_AMX_NAME("linear_wbf16_abf16_amx"),
                                                    .need = OQ_AMX_NEED,
                                                    .accepts = accepts,
                                                    OQ_PANEL_ENGINE_FUNCTIONS(bf16_amx)};
