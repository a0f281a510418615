/* linear_wfp8block_afp8_sm90.c -- FP8 weights with a scale per 128 x 128, activations per row and 128
 * columns, through cuBLASLt's block scaling. It wants rows in eights and columns in sixteens: what is left over, and f32
 * results, goes to an own product. */
#include "base/size.h"
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"
#include "cuda/lt.h"

#include <string.h>

static bool accepts(const oq_linear_spec *spec)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    return spec->scheme.act && strcmp(spec->scheme.act->name, "F8_E4M3") == 0 && p.type == OQ_CU_E4M3 &&
           p.block_k == 128 && p.block_n == 128 && spec->scheme.act_scale == OQ_ACT_DYNAMIC_GROUP &&
           spec->k % 16 == 0;
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    return oq_cuda_codes_bytes(spec, m) + oq_cuda_codes_bytes(spec, 8) +
           oq_align_up((size_t)spec->n * 2, OQ_CUDA_ALIGN) + OQ_CUDA_ALIGN;
}

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    const oq_linear_spec *spec = a->spec;
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    const int64_t m = a->x.rows / 8 * 8, rest = a->x.rows - m;
    char *scratch = (char *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    char *bias = a->bias ? scratch + oq_cuda_codes_bytes(spec, m) + oq_cuda_codes_bytes(spec, rest) : NULL;
    if (m > 0) {
        const oq_cuda_codes codes = oq_cuda_quantize(d, a, 0, m, scratch, bias);
        const oq_lt_call call = {.kind = OQ_LT_FP8_BLOCK,
                                 .m = m,
                                 .n = spec->n,
                                 .k = spec->k,
                                 .ldx = spec->k,
                                 .ldw = spec->k,
                                 .ldy = a->y.ld,
                                 .x = codes.data,
                                 .w = a->packed,
                                 .y = a->y.data,
                                 .bias = bias,
                                 .x_scale = codes.scale,
                                 .w_scale = oq_cuda_packed_scale(&p, a->packed)};
        if (spec->n % 16 != 0 || !oq_cuda_is_bf16(a->y) || !oq_lt_matmul(d, &call))
            oq_cuda_linear_codes(d, a, 0, m, &codes);
    }
    if (rest > 0) {
        const oq_cuda_codes codes =
            oq_cuda_quantize(d, a, m, rest, scratch + oq_cuda_codes_bytes(spec, m), NULL);
        oq_cuda_linear_codes(d, a, m, rest, &codes);
    }
    oq_cuda_done(d, "linear_wfp8block_afp8_sm90");
}

const oq_linear_kernel oq_cuda_linear_wfp8block_afp8_sm90 = {.name = "linear_wfp8block_afp8_sm90",
                                                             .need = 90,
                                                             .accepts = accepts,
                                                             .packed_bytes = oq_cuda_packed_bytes,
                                                             .pack = oq_cuda_pack,
                                                             .scratch_bytes = scratch_bytes,
                                                             .run = run};
