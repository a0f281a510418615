/* linear_panel_bf16_amx.c -- linear_panel_bf16.h over matrix tiles (tdpbf16ps). A row or two of x over weights of a byte go to
 * vdpbf16ps, which meets codes as they are read: a panel for tiles costs more than such products, however slow they are. */
#include "cpu/linear/linear_panel_bf16.h"

#include "cpu/linear/linear_micro_amx.h"

AMX_MICRO_TABLE(micro_bf16, oq_amx_dot_bf16)
AMX_SCALED_TABLE(micro_bf16)

static const oq_panel_engine engine =
    PAIRS_ENGINE(AMX_MR, micro_bf16, .scaled = micro_bf16_scaled, AMX_ENGINE);

/* The same panels lie at rest for both. */
size_t oq_panel_bf16_amx_packed_bytes(const oq_linear_spec *spec)
{
    return oq_panel_packed_bytes(&engine, spec);
}

void oq_panel_bf16_amx_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    oq_panel_pack(&engine, dst, src, spec);
}

size_t oq_panel_bf16_amx_scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    const size_t a = pairs_scratch_bytes(&engine, &engine_f32, spec, m),
                 b = oq_panel_bf16_avx512bf16_scratch_bytes(spec, m);
    return a > b ? a : b;
}

void oq_panel_bf16_amx_run(oq_device *device, const oq_linear_args *args)
{
    const oq_dtype *const element = args->spec->scheme.weight->element;
    const int64_t few = element == &oq_dtype_bf16 ? 0 : element == &oq_dtype_i8 ? 4 : 2;
    if (args->x.rows <= few)
        oq_panel_bf16_avx512bf16_run(device, args);
    else
        pairs_run(&engine, &engine_f32, device, args);
}

unsigned oq_panel_bf16_amx_fuses(const oq_linear_spec *spec)
{
    return oq_panel_fuses(&engine, spec);
}
