/* linear_wf32_af32_sm80.c -- F32 weights: cuBLASLt in f32 (never TF32) for F32 activations; other activations
 * meet them in the reference, which is also f32. */
#include "base/size.h"
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"
#include "cuda/lt.h"

static bool accepts(const oq_linear_spec *spec)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    return !spec->scheme.act && p.type == OQ_CU_F32 && !p.grouped && !p.gguf;
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    (void)spec;
    (void)m;
    return 0;
}

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    const oq_linear_spec *spec = a->spec;
    const oq_lt_call call = {.kind = OQ_LT_F32,
                             .y_is_f32 = true,
                             .m = a->x.rows,
                             .n = spec->n,
                             .k = spec->k,
                             .ldx = a->x.ld,
                             .ldw = spec->k,
                             .ldy = a->y.ld,
                             .x = a->x.data,
                             .w = a->packed,
                             .y = a->y.data,
                             .bias = a->bias};
    const bool f32 = !oq_cuda_is_bf16(a->x) && !oq_cuda_is_bf16(a->y);
    if (!f32 || !oq_lt_matmul(d, &call)) oq_cuda_linear_simt(d, a, 0, a->x.rows, NULL);
    oq_cuda_done(d, "linear_wf32_af32_sm80");
}

const oq_linear_kernel oq_cuda_linear_wf32_af32_sm80 = {.name = "linear_wf32_af32_sm80",
                                                        .need = 80,
                                                        .accepts = accepts,
                                                        .packed_bytes = oq_cuda_packed_bytes,
                                                        .pack = oq_cuda_pack,
                                                        .scratch_bytes = scratch_bytes,
                                                        .run = run};
