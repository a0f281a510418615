/* linear_wany_aany_sm80.c -- every scheme, size and alignment, in f32: slow and right. */
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"
#include "base/size.h"

static bool accepts(const oq_linear_spec *spec)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    /* what oq_cuda_quantize knows; a scheme that no kernel accepts is refused by the plan */
    return spec->n > 0 && spec->k > 0 && spec->scheme.act_scale <= OQ_ACT_DYNAMIC_GROUP && !p.grouped &&
           !p.gguf;
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    return spec->scheme.act ? oq_cuda_codes_bytes(spec, m) + OQ_CUDA_ALIGN : 0;
}

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    if (a->spec->scheme.act) {
        void *scratch = (void *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
        const oq_cuda_codes codes = oq_cuda_quantize(d, a, 0, a->x.rows, scratch, NULL);
        oq_cuda_linear_simt(d, a, 0, a->x.rows, &codes);
    } else {
        oq_cuda_linear_simt(d, a, 0, a->x.rows, NULL);
    }
    oq_cuda_done(d, "linear_wany_aany_sm80");
}

const oq_linear_kernel oq_cuda_linear_wany_aany_sm80 = {.name = "linear_wany_aany_sm80",
                                                        .need = 80,
                                                        .accepts = accepts,
                                                        .packed_bytes = oq_cuda_packed_bytes,
                                                        .pack = oq_cuda_pack,
                                                        .scratch_bytes = scratch_bytes,
                                                        .run = run};
