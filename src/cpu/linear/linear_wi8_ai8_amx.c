/* linear_wi8_ai8_amx.c -- int8 weights and activations, exact sums in int32. */
#include "cpu/linear/linear_panel.h"
#include "cpu/vec/amx.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_int8(spec);
}

const oq_linear_kernel oq_linear_wi8_ai8_amx = {.name = OQ_AMX_NAME("linear_wi8_ai8_amx"),
                                                .need = OQ_AMX_NEED,
                                                .accepts = accepts,
                                                OQ_PANEL_ENGINE_FUNCTIONS(i8_amx)};
