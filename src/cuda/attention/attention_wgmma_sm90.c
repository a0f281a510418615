/* attention_wgmma_sm90.c -- bf16 attention with Hopper's own instructions (attention_wgmma.cu); masks, other types and
 * alignments go to the one-pass kernel of SM80, and from there further. */
#include "cuda/attention/cuda_attention.h"

static bool accepts(const oq_attention_spec *spec)
{
    return oq_cu_attention_wgmma_fits(spec->head_dim) && !spec->causal;
}

static bool aligned(oq_tensor t)
{
    return oq_cuda_is_bf16(t) && t.ld % 8 == 0 && ((size_t)t.data & 15) == 0;
}

oq_cu_attention_room oq_cuda_attention_room(const oq_device *d)
{
    return (oq_cu_attention_room){.n_sm = d->n_sm,
                                  .parts = d->workspace,
                                  .parts_bytes = OQ_CUDA_WORKSPACE_BYTES,
                                  .tickets = d->tickets,
                                  .n_tickets = OQ_CUDA_TICKETS};
}

static bool run_fast(oq_device *d, const oq_attention_args *a)
{
    const bool fits = d->capability / 10 == 9 && aligned(a->q) && aligned(a->k) && aligned(a->v) &&
                      aligned(a->o) && oq_cu_attention_wgmma_fits(a->spec->head_dim);
    const oq_cu_attention cu = oq_cuda_attention_of(a);
    const oq_cu_attention_room room = oq_cuda_attention_room(d);
    return fits && oq_cu_attention_wgmma(d->stream, &cu, &room);
}

static void run(oq_device *d, const oq_attention_args *a)
{
    oq_cuda_enter(d);
    if (run_fast(d, a))
        oq_cuda_done(d, "attention_wgmma_sm90");
    else
        oq_cuda_attention_flash_sm80.run(d, a);
}

void oq_cuda_attention_plain(oq_device *d, const oq_attention_args *a)
{
    if (run_fast(d, a)) return;
    if (a->block_map || !oq_cu_attention_flash_fits(a->spec->head_dim))
        oq_cuda_attention_gemm(d, a);
    else
        oq_cuda_attention_flash_sm80.run(d, a);
}

const oq_attention_kernel oq_cuda_attention_wgmma_sm90 = {.name = "attention_wgmma_sm90",
                                                          .need = 90,
                                                          .accepts = accepts,
                                                          .scratch_bytes = oq_cuda_attention_gemm_bytes,
                                                          .run = run};
