/* linear_wany_abf16_sm80.c -- quantized weights, plain activations: the weights are decoded to bf16 in
 * scratch (one rounding), then cuBLASLt's bf16 product. For the thousands of rows of an image the decoding is
 * a few percent. */
#include "base/size.h"
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"
#include "cuda/lt.h"

static bool accepts(const oq_linear_spec *spec)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    return !spec->scheme.act && (p.scaled || p.blocks);
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    (void)m;
    return oq_align_up((size_t)(spec->n * spec->k) * 2, OQ_CUDA_ALIGN) +
           oq_align_up((size_t)spec->n * 2, OQ_CUDA_ALIGN) + OQ_CUDA_ALIGN;
}

static bool run_fast(oq_device *d, const oq_linear_args *a)
{
    if (!oq_cuda_is_bf16(a->x) || !oq_cuda_is_bf16(a->y)) return false;
    const oq_linear_spec *spec = a->spec;
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    char *w = (char *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    const oq_cu_codes codes = {.codes = a->packed,
                               .type = p.type,
                               .scales = oq_cuda_packed_scale(&p, a->packed),
                               .block_n = p.block_n,
                               .block_k = p.block_k,
                               .scale_ld = p.scale_ld,
                               .n = spec->n,
                               .k = spec->k};
    oq_cu_decode(d->stream, w, &codes);
    void *bias = a->bias ? w + oq_align_up((size_t)(spec->n * spec->k) * 2, OQ_CUDA_ALIGN) : NULL;
    if (bias) oq_cu_to_bf16(d->stream, bias, a->bias, spec->n);
    const oq_lt_call call = {.kind = OQ_LT_BF16,
                             .m = a->x.rows,
                             .n = spec->n,
                             .k = spec->k,
                             .ldx = a->x.ld,
                             .ldw = spec->k,
                             .ldy = a->y.ld,
                             .x = a->x.data,
                             .w = w,
                             .y = a->y.data,
                             .bias = bias};
    return oq_lt_matmul(d, &call);
}

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    if (run_fast(d, a)) {
        oq_cuda_done(d, "linear_wany_abf16_sm80");
        return;
    }
    if (oq_cuda_packing_of(a->spec).blocks) {
        oq_cuda_linear_wf32_af32_sm80.run(d, a);
        return;
    }
    oq_cuda_linear_simt(d, a, 0, a->x.rows, NULL);
    oq_cuda_done(d, "linear_wany_abf16_sm80");
}

const oq_linear_kernel oq_cuda_linear_wany_abf16_sm80 = {.name = "linear_wany_abf16_sm80",
                                                         .need = 80,
                                                         .accepts = accepts,
                                                         .packed_bytes = oq_cuda_packed_bytes,
                                                         .pack = oq_cuda_pack,
                                                         .scratch_bytes = scratch_bytes,
                                                         .run = run};
