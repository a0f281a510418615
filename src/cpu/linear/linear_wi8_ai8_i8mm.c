/* linear_wi8_ai8_i8mm.c -- int8 weights and activations, exact sums in int32. */
#include "cpu/linear/linear_panel.h"

static bool accepts(const oq_linear_spec *spec)
{
    return oq_panel_int8(spec);
}

const oq_linear_kernel oq_linear_wi8_ai8_i8mm = {.name = "linear_wi8_ai8_i8mm",
                                                 .need = OQ_CPU_I8MM,
                                                 .accepts = accepts,
                                                 OQ_PANEL_ENGINE_FUNCTIONS(i8_i8mm)};
