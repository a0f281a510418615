/* linear_wany_abf16_bf16.c -- weights of any format, kept as they are; activations BF16, or under powers of two. */
#include "cpu/linear/linear_panel.h"

/* What has no scales is no code: it would lose what it holds. */
static bool accepts(const oq_linear_spec *spec)
{
    const oq_scheme *const s = &spec->scheme;
    const bool coded = s->weight->block || s->weight->planes & 1u << OQ_PLANE_SCALE;
    return coded && oq_panel_any(spec) && (!s->act || oq_act_is_mx(s->act_scale));
}

const oq_linear_kernel oq_linear_wany_abf16_bf16 = {.name = "linear_wany_abf16_bf16",
                                                    .need = OQ_CPU_BF16,
                                                    .accepts = accepts,
                                                    OQ_PANEL_ENGINE_FUNCTIONS(any_bf16)};
