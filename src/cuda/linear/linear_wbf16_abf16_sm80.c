/* linear_wbf16_abf16_sm80.c -- plain BF16 weights: cuBLASLt as it is, bias in its epilogue. F32 activations
 * meet the same weights in the reference. */
#include "base/size.h"
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"
#include "cuda/lt.h"

static bool accepts(const oq_linear_spec *spec)
{
    return !spec->scheme.act && oq_cuda_packing_of(spec).type == OQ_CU_BF16;
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    (void)m;
    return oq_align_up((size_t)spec->n * 2, OQ_CUDA_ALIGN) + OQ_CUDA_ALIGN; /* the bias */
}

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    const oq_linear_spec *spec = a->spec;
    const bool out_f32 = !oq_cuda_is_bf16(a->y);
    void *bias = NULL;
    if (a->bias && out_f32) {
        bias = (void *)(size_t)a->bias;
    } else if (a->bias) {
        bias = (void *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
        oq_cu_to_bf16(d->stream, bias, a->bias, spec->n);
    }
    const oq_lt_call call = {.kind = OQ_LT_BF16,
                             .y_is_f32 = out_f32,
                             .m = a->x.rows,
                             .n = spec->n,
                             .k = spec->k,
                             .ldx = a->x.ld,
                             .ldw = spec->k,
                             .ldy = a->y.ld,
                             .x = a->x.data,
                             .w = a->packed,
                             .y = a->y.data,
                             .bias = bias};
    if (!oq_cuda_is_bf16(a->x) || !oq_lt_matmul(d, &call)) oq_cuda_linear_simt(d, a, 0, a->x.rows, NULL);
    oq_cuda_done(d, "linear_wbf16_abf16_sm80");
}

const oq_linear_kernel oq_cuda_linear_wbf16_abf16_sm80 = {.name = "linear_wbf16_abf16_sm80",
                                                          .need = 80,
                                                          .accepts = accepts,
                                                          .packed_bytes = oq_cuda_packed_bytes,
                                                          .pack = oq_cuda_pack,
                                                          .scratch_bytes = scratch_bytes,
                                                          .run = run};
