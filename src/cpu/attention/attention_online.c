/* attention_online.c -- attention whose operands are quantized, or whose blocks are chosen, on the fly: both are a step
 * before the plain product. Quantized values are exact in bf16, so the plain kernel of this device multiplies them as
 * they are, whatever its instructions. */
#include "cpu/attention/attention.h"

#include "base/size.h"
#include "cpu/attention/attention_blocks.h"
#include "cpu/attention/operand.h"

static oq_attention_spec plain_spec(const oq_attention_spec *spec)
{
    oq_attention_spec plain = *spec;
    plain.precision = OQ_ATTENTION_PLAIN;
    plain.sparsity = 0;
    return plain;
}

static bool accepts(const oq_attention_spec *spec)
{
    return !spec->causal && oq_attention_dim_ok(spec->head_dim) && spec->n_kv_heads > 0 &&
           spec->n_heads % spec->n_kv_heads == 0 && spec->sparsity >= 0 && spec->sparsity < 1;
}

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

typedef struct layout {             /* of the scratch, in bytes */
    size_t q, k, map, blocks, base; /* sizes; V takes as much as K; base: of the plain kernel */
} layout;

static layout layout_of(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv)
{
    const oq_attention_spec plain = plain_spec(spec);
    layout l = {0};
    if (spec->precision != OQ_ATTENTION_PLAIN) {
        l.q = padded((size_t)(n_q * spec->n_heads * spec->head_dim) * 2);
        l.k = padded((size_t)(n_kv * spec->n_kv_heads * spec->head_dim) * 2);
    }
    if (spec->sparsity > 0) {
        l.map = padded(oq_attention_blocks_map_bytes(spec, n_q));
        l.blocks = oq_attention_blocks_scratch_bytes(spec, n_q);
    }
    for (size_t i = 0; oq_cpu_attention_list[i]; i++) {
        const oq_attention_kernel *k = oq_cpu_attention_list[i];
        if (!k->accepts(&plain)) continue;
        const size_t bytes = k->scratch_bytes(&plain, n_q, n_kv);
        if (bytes > l.base) l.base = bytes;
    }
    if (l.blocks > l.base) l.base = l.blocks; /* choosing is over before the product begins */
    return l;
}

static size_t scratch_bytes(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv)
{
    const layout l = layout_of(spec, n_q, n_kv);
    return l.q + 2 * l.k + l.map + l.base;
}

typedef struct quantizing {
    oq_operand_job job;
    oq_operand_fn fn;
    int64_t pieces; /* of rows */
} quantizing;

static void quantize_task(void *user, int64_t i, int worker)
{
    (void)worker;
    const quantizing *p = user;
    p->fn(&p->job, i / p->pieces, i % p->pieces * OQ_OPERAND_ROWS);
}

static oq_tensor quantized(oq_device *device, const oq_attention_args *a, oq_attention_side side, oq_tensor x,
                           void *memory)
{
    const int64_t d = a->spec->head_dim;
    quantizing p = {.fn = oq_operand_find(device->features),
                    .pieces = oq_ceil_div(x.rows, OQ_OPERAND_ROWS),
                    .job = {.precision = a->spec->precision,
                            .side = side,
                            .x = x,
                            .y = oq_tensor_make(memory, &oq_dtype_bf16, x.rows, x.cols),
                            .head_dim = d,
                            .seen = side == OQ_SIDE_Q ? NULL : a->key_mask}};
    oq_pool_run(device->pool, x.cols / d * p.pieces, quantize_task, &p);
    return p.job.y;
}

static void run(oq_device *device, const oq_attention_args *args)
{
    const oq_attention_spec plain = plain_spec(args->spec);
    const layout l = layout_of(args->spec, args->q.rows, args->k.rows);
    char *memory = args->scratch;
    oq_attention_args a = *args;
    a.scratch = memory + l.q + 2 * l.k + l.map;
    if (args->spec->sparsity > 0) {
        uint8_t *map = (uint8_t *)memory + l.q + 2 * l.k;
        oq_attention_blocks_choose(device->pool, args, map, a.scratch);
        a.block_map = map;
    }
    if (args->spec->precision != OQ_ATTENTION_PLAIN) {
        a.q = quantized(device, args, OQ_SIDE_Q, args->q, memory);
        a.k = quantized(device, args, OQ_SIDE_K, args->k, memory + l.q);
        a.v = quantized(device, args, OQ_SIDE_V, args->v, memory + l.q + l.k);
    }
    a.spec = &plain;
    oq_cpu_attention_plain(device, &plain, a.block_map != NULL)->run(device, &a);
}

const oq_attention_kernel oq_attention_online = {
    .name = "attention_online",
    .accepts = accepts,
    .scratch_bytes = scratch_bytes,
    .run = run,
};
