/* attention_online_sm80.c -- attention whose operands are quantized, or whose blocks are chosen, on the fly. FP8 with heads of
 * 128 and neither mask nor bias goes through e4m3 products on Hopper (attention_fp8.cu); everything else is the plain
 * attention of this device over the values that operands are rounded to, which are exact in bf16. */
#include "base/size.h"
#include "cuda/attention/cuda_attention.h"

#include <math.h>

#define BLOCK OQ_ATTENTION_SPARSE_BLOCK

static oq_attention_spec plain_spec(const oq_attention_spec *spec)
{
    oq_attention_spec plain = *spec;
    plain.precision = OQ_ATTENTION_PLAIN;
    plain.sparsity = 0;
    return plain;
}

static bool power_of_two(int64_t d)
{
    return d >= 16 && d <= OQ_ATTENTION_MAX_DIM && (d & (d - 1)) == 0;
}

static bool accepts(const oq_attention_spec *spec)
{
    const bool quantized = spec->precision != OQ_ATTENTION_PLAIN, sparse = spec->sparsity > 0;
    if (spec->causal || spec->sparsity < 0 || !(spec->sparsity < 1)) return false;
    if (!power_of_two(spec->head_dim)) return false;
    return quantized || sparse;
}

typedef struct layout { /* of the scratch, in bytes; codes take the place of rounded operands */
    size_t q, k, work, map, blocks, base, bytes;
} layout;

static layout layout_of(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv)
{
    const oq_attention_spec plain = plain_spec(spec);
    layout l = {.base = oq_cuda_attention_gemm_bytes(&plain, n_q, n_kv)};
    const int64_t cols = spec->n_heads * spec->head_dim, kv_cols = spec->n_kv_heads * spec->head_dim;
    if (spec->precision != OQ_ATTENTION_PLAIN) {
        l.q = oq_align_up((size_t)(n_q * cols) * 4, /* an F32 run's */ OQ_CUDA_ALIGN);
        l.k = oq_align_up((size_t)(n_kv * kv_cols) * 4, OQ_CUDA_ALIGN);
        l.work = oq_align_up(oq_cu_operand_work(n_q > n_kv ? n_q : n_kv, cols), OQ_CUDA_ALIGN);
    }
    if (spec->sparsity > 0) {
        const int64_t blocks = oq_ceil_div(n_q, BLOCK);
        l.map = oq_align_up((size_t)(spec->n_heads * blocks * blocks), OQ_CUDA_ALIGN);
        l.blocks = oq_cu_attention_blocks_work(n_q, spec->n_heads, spec->n_kv_heads, spec->head_dim);
    }
    if (l.blocks > l.base) l.base = l.blocks; /* choosing is over before the product begins */
    l.bytes = l.q + 2 * l.k + l.work;
    const size_t codes = oq_cu_fp8_operands_bytes(n_q, n_kv, spec->n_heads, spec->n_kv_heads);
    if (spec->precision == OQ_ATTENTION_FP8 && spec->head_dim == 128 && codes > l.bytes)
        l.work += codes - l.bytes, l.bytes = codes;
    l.work = oq_align_up(l.work, OQ_CUDA_ALIGN);
    l.bytes = l.q + 2 * l.k + l.work + l.map + l.base + OQ_CUDA_ALIGN;
    return l;
}

static size_t scratch_bytes(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv)
{
    return layout_of(spec, n_q, n_kv).bytes;
}

static oq_tensor rounded(oq_device *d, const oq_attention_args *a, oq_attention_side side, oq_tensor x,
                         void *memory, void *work)
{
    /* An F32 run multiplies F32 operands: what is exact in bf16 is exact there. */
    const oq_tensor y = oq_tensor_make(memory, a->o.dtype, x.rows, x.cols);
    const oq_cu_operand operand = {.x = oq_cuda_view(x),
                                   .y = oq_cuda_view(y),
                                   .precision = (int)a->spec->precision,
                                   .side = (int)side,
                                   .head_dim = a->spec->head_dim,
                                   .seen = side == OQ_SIDE_Q ? NULL : a->key_mask,
                                   .work = work};
    oq_cu_operand_round(d->stream, &operand);
    return y;
}

static void choose(oq_device *d, const oq_attention_args *a, oq_cu_attention *cu, uint8_t *map, void *work)
{
    const double blocks = (double)oq_ceil_div(a->q.rows, BLOCK);
    const double kept = ceil((1.0 - a->spec->sparsity) * blocks - 1e-9); /* 0.3 * 10 is 3, not 4 */
    oq_cu_attention_blocks(d->stream, map, cu, (int64_t)fmin(fmax(kept, 1.0), blocks), work);
    cu->block_map = map;
}

static void run(oq_device *d, const oq_attention_args *args)
{
    oq_cuda_enter(d);
    const layout l = layout_of(args->spec, args->q.rows, args->k.rows);
    const oq_attention_spec plain = plain_spec(args->spec);
    char *const memory = (char *)oq_align_up((size_t)args->scratch, OQ_CUDA_ALIGN);
    char *const after = memory + l.q + 2 * l.k + l.work;
    oq_cu_attention cu = oq_cuda_attention_of(args);
    if (args->spec->sparsity > 0) choose(d, args, &cu, (uint8_t *)after, after + l.map);
    if (args->spec->precision == OQ_ATTENTION_FP8 && d->capability / 10 == 9 &&
        oq_cu_attention_fp8_fits(&cu)) {
        const oq_cu_fp8_operands codes =
            oq_cu_fp8_operands_at(memory, args->q.rows, args->k.rows, plain.n_heads, plain.n_kv_heads);
        oq_cu_fp8_quantize(d->stream, &codes, &cu);
        const oq_cu_attention_room room = oq_cuda_attention_room(d);
        if (!oq_cu_attention_fp8(d->stream, &cu, &codes, &room))
            oq_cuda_note(d, cudaErrorNotSupported, "attention_online_sm80");
        oq_cuda_done(d, "attention_online_sm80");
        return;
    }
    oq_attention_args a = *args;
    a.spec = &plain;
    a.block_map = cu.block_map;
    a.scratch = after + l.map;
    if (args->spec->precision != OQ_ATTENTION_PLAIN) {
        void *work = memory + l.q + 2 * l.k;
        a.q = rounded(d, args, OQ_SIDE_Q, args->q, memory, work);
        a.k = rounded(d, args, OQ_SIDE_K, args->k, memory + l.q, work);
        a.v = rounded(d, args, OQ_SIDE_V, args->v, memory + l.q + l.k, work);
    }
    oq_cuda_attention_plain(d, &a);
    oq_cuda_done(d, "attention_online_sm80");
}

const oq_attention_kernel oq_cuda_attention_online_sm80 = {.name = "attention_online_sm80",
                                                           .need = 80,
                                                           .accepts = accepts,
                                                           .scratch_bytes = scratch_bytes,
                                                           .run = run};
