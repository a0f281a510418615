/* attention_gemm_sm80.c -- attention as two products with the scores of a piece of rows in scratch: any head
 * size and F32 too. Used where the one-pass kernel does not apply (an autoencoder's single head of 512, the
 * f32 path). */
#include "base/size.h"
#include "cuda/attention/cuda_attention.h"
#include "cuda/lt.h"

#define PIECE_BYTES ((int64_t)24 << 20) /* of scores */

oq_cu_attention oq_cuda_attention_of(const oq_attention_args *a)
{
    return (oq_cu_attention){.q = oq_cuda_view(a->q),
                             .k = oq_cuda_view(a->k),
                             .v = oq_cuda_view(a->v),
                             .o = oq_cuda_view(a->o),
                             .n_heads = a->spec->n_heads,
                             .n_kv_heads = a->spec->n_kv_heads,
                             .head_dim = a->spec->head_dim,
                             .causal = a->spec->causal,
                             .scale = a->scale,
                             .key_mask = a->key_mask,
                             .bias = a->bias,
                             .bias_head = a->bias_head,
                             .bias_row = a->bias_row,
                             .block_map = a->block_map};
}

static int64_t piece_rows(int64_t n_q, int64_t n_kv)
{
    return oq_min_i64(n_q, oq_max_i64(PIECE_BYTES / (4 * oq_max_i64(n_kv, 1)) / 16 * 16, 16));
}

/* Rows of probabilities start at multiples of eight elements. */
static int64_t p_ld(int64_t n_kv)
{
    return oq_ceil_div(n_kv, 8) * 8;
}

size_t oq_cuda_attention_gemm_bytes(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv)
{
    (void)spec;
    const size_t rows = (size_t)piece_rows(n_q, n_kv);
    return oq_align_up(rows * (size_t)n_kv * 4, OQ_CUDA_ALIGN) + rows * (size_t)p_ld(n_kv) * 4 +
           OQ_CUDA_ALIGN;
}

static void *element_at(oq_tensor t, int64_t row, int64_t col)
{
    return (char *)t.data + (size_t)(row * t.ld + col) * t.dtype->bytes;
}

/* Rows [first, first + rows) of one head. */
static bool head_piece(oq_device *d, const oq_attention_args *a, const oq_cu_attention *cu, int64_t head,
                       int64_t first, int64_t rows, char *scratch)
{
    const int64_t n_kv = a->k.rows, hd = a->spec->head_dim;
    const int64_t col = head * hd, kv_col = head / (a->spec->n_heads / a->spec->n_kv_heads) * hd;
    const bool bf16 = oq_cuda_is_bf16(a->q);
    float *scores = (float *)(void *)scratch;
    void *p = scratch + oq_align_up((size_t)(rows * n_kv) * 4, OQ_CUDA_ALIGN);
    const oq_cu_view p_view = {p, rows, n_kv, p_ld(n_kv), bf16 ? OQ_CU_BF16 : OQ_CU_F32};
    const oq_lt_call qk = {.kind = bf16 ? OQ_LT_BF16 : OQ_LT_F32,
                           .y_is_f32 = true,
                           .m = rows,
                           .n = n_kv,
                           .k = hd,
                           .ldx = a->q.ld,
                           .ldw = a->k.ld,
                           .ldy = n_kv,
                           .x = element_at(a->q, first, col),
                           .w = element_at(a->k, 0, kv_col),
                           .y = scores};
    const oq_lt_call pv = {.kind = qk.kind,
                           .w_is_kn = true,
                           .y_is_f32 = !bf16,
                           .m = rows,
                           .n = hd,
                           .k = n_kv,
                           .ldx = p_view.ld,
                           .ldw = a->v.ld,
                           .ldy = a->o.ld,
                           .x = p,
                           .w = element_at(a->v, 0, kv_col),
                           .y = element_at(a->o, first, col)};
    if (!oq_lt_matmul(d, &qk)) return false;
    oq_cu_attention_softmax(d->stream, cu, head, first, rows, scores, p_view);
    return oq_lt_matmul(d, &pv);
}

void oq_cuda_attention_gemm(oq_device *d, const oq_attention_args *a)
{
    const oq_cu_attention cu = oq_cuda_attention_of(a);
    const int64_t step = piece_rows(a->q.rows, a->k.rows);
    char *scratch = (char *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    for (int64_t head = 0; head < a->spec->n_heads; head++)
        for (int64_t first = 0; first < a->q.rows; first += step)
            if (!head_piece(d, a, &cu, head, first, oq_min_i64(step, a->q.rows - first), scratch))
                oq_cuda_note(d, cudaErrorNotSupported, "attention_gemm_sm80");
}

static bool accepts(const oq_attention_spec *spec)
{
    return spec->head_dim > 0;
}

static void run(oq_device *d, const oq_attention_args *a)
{
    oq_cuda_enter(d);
    oq_cuda_attention_gemm(d, a);
    oq_cuda_done(d, "attention_gemm_sm80");
}

const oq_attention_kernel oq_cuda_attention_gemm_sm80 = {.name = "attention_gemm_sm80",
                                                         .need = 80,
                                                         .accepts = accepts,
                                                         .scratch_bytes = oq_cuda_attention_gemm_bytes,
                                                         .run = run};
