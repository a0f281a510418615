/* linear_wi8_ai8_sm80.c -- INT8 weights and activations: one quantizing pass, cuBLASLt's exact i32 product in
 * pieces of rows that stay in the L2, and a pass that scales each piece, adds the bias and rounds. */
#include "base/size.h"
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"
#include "cuda/lt.h"

#include <string.h>

#define PIECE_BYTES ((int64_t)48 << 20) /* of accumulators; an H200 has 60 MB of L2 */

static bool accepts(const oq_linear_spec *spec)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    return spec->scheme.act && strcmp(spec->scheme.act->name, "I8") == 0 && p.type == OQ_CU_I8 &&
           p.block_k == 0 && spec->scheme.act_scale < OQ_ACT_DYNAMIC_GROUP && spec->k % 16 == 0;
}

static int64_t piece_rows(const oq_linear_spec *spec, int64_t m)
{
    const int64_t rows = PIECE_BYTES / (4 * spec->n) / 128 * 128;
    return oq_min_i64(m, oq_max_i64(rows, 256));
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    return oq_cuda_codes_bytes(spec, m) + (size_t)(piece_rows(spec, m) * spec->n) * 4 + OQ_CUDA_ALIGN;
}

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    const oq_linear_spec *spec = a->spec;
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    const int64_t m = a->x.rows, step = piece_rows(spec, m);
    char *scratch = (char *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    const oq_cuda_codes codes = oq_cuda_quantize(d, a, 0, m, scratch, NULL);
    void *acc = scratch + oq_cuda_codes_bytes(spec, m);
    for (int64_t first = 0; first < m; first += step) {
        const int64_t rows = oq_min_i64(step, m - first);
        const oq_cuda_codes part = {(char *)codes.data + first * spec->k, codes.scale + first};
        const oq_lt_call call = {.kind = OQ_LT_I8,
                                 .m = rows,
                                 .n = spec->n,
                                 .k = spec->k,
                                 .ldx = spec->k,
                                 .ldw = spec->k,
                                 .ldy = spec->n,
                                 .x = part.data,
                                 .w = a->packed,
                                 .y = acc};
        if (spec->n % 16 == 0 && oq_lt_matmul(d, &call))
            oq_cu_scale_rows(d->stream, oq_cuda_view(oq_tensor_rows(a->y, first, rows)), acc, false,
                             part.scale, oq_cuda_packed_scale(&p, a->packed), a->bias);
        else
            oq_cuda_linear_codes(d, a, first, rows, &part);
    }
    oq_cuda_done(d, "linear_wi8_ai8_sm80");
}

const oq_linear_kernel oq_cuda_linear_wi8_ai8_sm80 = {.name = "linear_wi8_ai8_sm80",
                                                      .need = 80,
                                                      .accepts = accepts,
                                                      .packed_bytes = oq_cuda_packed_bytes,
                                                      .pack = oq_cuda_pack,
                                                      .scratch_bytes = scratch_bytes,
                                                      .run = run,
                                                      .fuses = oq_cuda_fuses_input};
