/* linear_panel_any_amx.c -- matrix tiles for weights that rest in their format's own planes: a piece of a panel becomes bf16
 * (rounded once, as linear_panel_any_avx512bf16.c has it) and is multiplied by tdpbf16ps. For x of type BF16, as it is or in
 * codes under powers of two. Of fewer rows than pay for a panel, and of an x of type F32, the kernel does the product that
 * the list would name next. */
#define OQ_SPAN_BF16 1
#include "cpu/linear/linear_micro_amx.h"
#include "cpu/linear/linear_micro_avx512.h"

#include "cpu/linear/linear_any_pairs.h"

enum { NR = 32, STEP = 2 };

AMX_MICRO_TABLE(micro, oq_amx_dot_bf16)

#include "cpu/linear/linear_pairs_avx512.h"

static const oq_panel_engine engine = {.mr = AMX_MR,
                                       .nr = NR,
                                       .step = STEP,
                                       .pack_step = 0,
                                       .integers = false,
                                       .plain = &oq_dtype_bf16,
                                       .micro = micro,
                                       .prologue = pairs_prologue,
                                       .decode = decode,
                                       .stream = true,
                                       .store = oq_panel_store_avx512,
                                       AMX_ENGINE};

const oq_linear_kernel *oq_panel_any_amx_hands_to(const oq_device *device, const oq_linear_spec *spec,
                                                  const oq_dtype *x, int64_t m)
{
    const oq_linear_kernel *const whole = &oq_linear_wany_ai16_avx512vnni,
                                  *const pairs = &oq_linear_wany_abf16_avx512bf16;
    const bool fixed = (device->features & whole->need) == whole->need && whole->accepts(spec);
    if (x == &oq_dtype_bf16 && m > (fixed ? OQ_PANEL_FEW : OQ_PANEL_ANY_AMX_FEW)) return NULL;
    if (fixed) return whole;
    if ((device->features & pairs->need) == pairs->need) return pairs;
    return &oq_linear_wany_af32_avx512;
}

size_t oq_panel_any_amx_packed_bytes(const oq_linear_spec *spec)
{
    return oq_panel_packed_bytes(&engine, spec);
}

void oq_panel_any_amx_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    oq_panel_pack(&engine, dst, src, spec);
}

size_t oq_panel_any_amx_scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    const size_t a = oq_panel_scratch_bytes(&engine, spec, m), b = oq_panel_any_avx512_scratch_bytes(spec, m);
    return a > b ? a : b;
}

void oq_panel_any_amx_run(oq_device *device, const oq_linear_args *args)
{
    const oq_linear_kernel *const other =
        oq_panel_any_amx_hands_to(device, args->spec, args->x.dtype, args->x.rows);
    if (other)
        other->run(device, args);
    else
        oq_panel_run(&engine, device, args);
}

unsigned oq_panel_any_amx_fuses(const oq_linear_spec *spec)
{
    return oq_panel_fuses(&engine, spec); /* all of them */
}
