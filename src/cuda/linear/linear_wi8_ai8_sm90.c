/* linear_wi8_ai8_sm90.c -- INT8 weights and activations on Hopper: one quantizing pass, then an own product that scales,
 * adds the bias and rounds on its way out (gemm_wgmma.cu). */
#include "base/size.h"
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"

#define FEW_ROWS                                                                                             \
    1024 /* too few tiles of 128 x 256 for the chip: cuBLASLt divides better (0.044 against 0.064 ms, H200) */

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    if (d->capability / 10 != 9 || a->x.rows < FEW_ROWS) {
        oq_cuda_linear_wi8_ai8_sm80.run(d, a);
        return;
    }
    void *scratch = (void *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    const oq_cuda_codes codes = oq_cuda_quantize(d, a, 0, a->x.rows, scratch, NULL);
    oq_cuda_linear_codes(d, a, 0, a->x.rows, &codes);
    oq_cuda_done(d, "linear_wi8_ai8_sm90");
}

static bool accepts(const oq_linear_spec *spec)
{
    return oq_cuda_linear_wi8_ai8_sm80.accepts(spec);
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    return oq_cuda_linear_wi8_ai8_sm80.scratch_bytes(spec, m);
}

const oq_linear_kernel oq_cuda_linear_wi8_ai8_sm90 = {.name = "linear_wi8_ai8_sm90",
                                                      .need = 90,
                                                      .accepts = accepts,
                                                      .packed_bytes = oq_cuda_packed_bytes,
                                                      .pack = oq_cuda_pack,
                                                      .scratch_bytes = scratch_bytes,
                                                      .run = run,
                                                      .fuses = oq_cuda_fuses_input};
