/* attention_flash_sm80.c -- one-pass bf16 attention (attention_flash.cu); F32 or oddly aligned operands go
 * the way of two products. */
#include "cuda/attention/cuda_attention.h"

static bool accepts(const oq_attention_spec *spec)
{
    return oq_cu_attention_flash_fits(spec->head_dim);
}

static bool aligned(oq_tensor t)
{
    return oq_cuda_is_bf16(t) && t.ld % 8 == 0 && ((size_t)t.data & 15) == 0;
}

static void run(oq_device *d, const oq_attention_args *a)
{
    oq_cuda_enter(d);
    if (aligned(a->q) && aligned(a->k) && aligned(a->v) && aligned(a->o)) {
        const oq_cu_attention cu = oq_cuda_attention_of(a);
        oq_cu_attention_flash(d->stream, &cu);
    } else {
        oq_cuda_attention_gemm(d, a);
    }
    oq_cuda_done(d, "attention_flash_sm80");
}

const oq_attention_kernel oq_cuda_attention_flash_sm80 = {.name = "attention_flash_sm80",
                                                          .need = 80,
                                                          .accepts = accepts,
                                                          .scratch_bytes = oq_cuda_attention_gemm_bytes,
                                                          .run = run};
