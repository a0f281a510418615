/* linear_wgroup_abf16_sm80.c -- group formats (MX, NVFP4, NF4, FP4, integers) and GGUF's blocks, their weights compressed in
 * device memory. Few rows: group_row.cu, group_small.cu, gguf.cu; up to hundreds on Hopper: group_wgmma.cu. More: the weights are
 * decoded, a piece at a time, to scratch (to bf16 with one rounding, or to f32 for F32 activations), then cuBLASLt. Activations
 * that the scheme quantizes in blocks are rounded to what their codes and scales stand for, which is exact in bf16 for MX alone. */
#include "base/size.h"
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"
#include "cuda/lt.h"

#include <string.h>

#define FEW_ROWS      16
#define FEW_ROWS_SM80 64
#define SOME_ROWS     2048                /* beyond, decoding once and cuBLASLt's product are faster */
#define PIECE_BYTES   ((int64_t)64 << 20) /* of decoded weights */

static bool accepts(const oq_linear_spec *spec)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    return spec->n > 0 && spec->k > 0 && (p.grouped || p.gguf) && oq_cuda_knows_act(spec);
}

/* The weights where they were packed: of one kind or the other. */
typedef struct compressed {
    bool blocks;
    oq_cu_group group;
    oq_cu_gguf gguf;
} compressed;

static compressed weights_of(const oq_linear_args *a, const oq_cuda_packing *p)
{
    if (p->gguf)
        return (compressed){.blocks = true,
                            .gguf = {.blocks = a->packed, .type = p->gguf, .n = a->spec->n, .k = a->spec->k}};
    return (compressed){.group = oq_cuda_packed_group(p, a->packed)};
}

/* Elements from one decoded row to the next: what cuBLASLt's fast products want. */
static int64_t row_elements(const oq_linear_spec *spec)
{
    return oq_ceil_div(spec->k, 16) * 16;
}

/* Rows of a piece of decoded weights of `element` bytes; pieces are about equal. */
static int64_t piece_rows(const oq_linear_spec *spec, int64_t element)
{
    const int64_t pieces = oq_ceil_div(spec->n * row_elements(spec) * element, PIECE_BYTES);
    return oq_min_i64(spec->n, oq_ceil_div(oq_ceil_div(spec->n, pieces), 256) * 256);
}

static size_t weight_bytes(const oq_linear_spec *spec)
{
    const int64_t ld = row_elements(spec);
    const int64_t narrow = piece_rows(spec, 2) * ld * 2, full = piece_rows(spec, 4) * ld * 4;
    return oq_align_up((size_t)oq_max_i64(narrow, full), OQ_CUDA_ALIGN);
}

/* How the scheme rounds activations in blocks; limit 0: it does not. Rules as in format/float4.c. */
static oq_cu_blocks blocks_of(const oq_scheme *s)
{
    const bool e4m3 = s->act && strcmp(s->act->name, "F8_E4M3") == 0;
    oq_cu_blocks b = {.e4m3 = e4m3};
    switch (s->act_scale) {
    case OQ_ACT_DYNAMIC_MX_DUAL:
        b.limit = 8.0f, b.below = true, b.dual = true;
        break;
    case OQ_ACT_DYNAMIC_INT4:
        b.limit = 7.0f, b.int4 = true;
        break;
    case OQ_ACT_DYNAMIC_UINT4:
        b.limit = 15.0f, b.int4 = true, b.positive = true;
        break;
    case OQ_ACT_DYNAMIC_MX:
        b.limit = e4m3 ? 448.0f : 8.0f, b.below = !e4m3;
        break;
    case OQ_ACT_DYNAMIC_MX_Q725:
        b.limit = 7.25f;
        break;
    case OQ_ACT_DYNAMIC_MX_FLOOR:
        b.limit = e4m3 ? 512.0f : 8.0f, b.below = true;
        break;
    case OQ_ACT_DYNAMIC_MX_CEIL:
        b.limit = e4m3 ? 448.0f : 6.0f;
        break;
    case OQ_ACT_DYNAMIC_MX_EVEN:
        b.limit = e4m3 ? 496.0f : 7.0f, b.below = true;
        break;
    case OQ_ACT_STATIC_NVFP4:
        b.limit = 6.0f, b.nvfp4 = true;
        break;
    default:
        break;
    }
    return b;
}

/* Rounded activations, f32 at most, and the codes that token and group scales are made through. */
static size_t act_bytes(const oq_linear_spec *spec, int64_t m)
{
    if (!spec->scheme.act) return 0;
    return oq_align_up((size_t)(m * row_elements(spec)) * 4, OQ_CUDA_ALIGN) + oq_cuda_codes_bytes(spec, m);
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    return act_bytes(spec, m) + weight_bytes(spec) + oq_align_up((size_t)spec->n * 2, OQ_CUDA_ALIGN) +
           OQ_CUDA_ALIGN;
}

/* x as its codes and scales would give it back, at `at`; x itself where the scheme leaves it alone. Rows that something
 * around the product left in f32 are narrow from here on where y is. */
static oq_tensor effective_x(oq_device *d, const oq_linear_args *a, const oq_cuda_packing *p, char *at)
{
    const oq_scheme *s = &a->spec->scheme;
    if (!s->act) return a->x;
    oq_tensor x = oq_tensor_make(at, oq_cuda_is_bf16(a->y) ? a->y.dtype : a->x.dtype, a->x.rows, a->x.cols);
    x.ld = row_elements(a->spec);
    oq_cu_blocks blocks = blocks_of(s);
    if (blocks.limit > 0.0f) {
        if (blocks.nvfp4) blocks.given = oq_cuda_packed_input(p, a->packed);
        oq_cu_requantize(d->stream, oq_cuda_view(x), oq_cuda_view(a->x), &blocks);
        return x;
    }
    const size_t rounded = oq_align_up((size_t)(x.rows * x.ld) * 4, OQ_CUDA_ALIGN);
    const oq_cuda_codes codes = oq_cuda_quantize(d, a, 0, x.rows, at + rounded, NULL);
    const oq_cu_type type = strcmp(s->act->name, "I8") == 0 ? OQ_CU_I8 : OQ_CU_E4M3;
    oq_cu_dequantize(d->stream, oq_cuda_view(x), (oq_cu_view){codes.data, x.rows, x.cols, x.cols, type},
                     codes.scale, s->act_scale == OQ_ACT_DYNAMIC_GROUP ? OQ_ACT_GROUP : 0);
    return x;
}

/* Columns [first, first + n) of y, from decoded weights. */
static void product(oq_device *d, const oq_linear_args *a, oq_tensor x, const oq_cu_view *w, int64_t first,
                    char *bias16)
{
    const bool bf16 = w->type == OQ_CU_BF16;
    oq_tensor y = a->y;
    y.data = (char *)y.data + (size_t)first * y.dtype->bytes;
    y.cols = w->rows;
    const oq_lt_call call = {.kind = bf16 ? OQ_LT_BF16 : OQ_LT_F32,
                             .y_is_f32 = !oq_cuda_is_bf16(y),
                             .m = x.rows,
                             .n = w->rows,
                             .k = a->spec->k,
                             .ldx = x.ld,
                             .ldw = w->ld,
                             .ldy = y.ld,
                             .x = x.data,
                             .w = w->data,
                             .y = y.data,
                             .bias = !a->bias             ? NULL
                                     : oq_cuda_is_bf16(y) ? (const void *)(bias16 + 2 * first)
                                                          : (const void *)(a->bias + first)};
    const bool mixed = !bf16 && oq_cuda_is_bf16(y); /* no f32 product writes bf16 */
    if (!mixed && oq_lt_matmul(d, &call)) return;
    const oq_cu_gemm g = {.x = oq_cuda_view(x),
                          .y = oq_cuda_view(y),
                          .w = w->data,
                          .w_type = w->type,
                          .w_ld = w->ld,
                          .bias = a->bias ? a->bias + first : NULL};
    oq_cu_gemm_simt(d->stream, &g);
}

/* Products that decode as they go; `work` is as large as the decoded weights would be. */
static bool run_compressed(oq_device *d, const oq_linear_args *a, oq_tensor x, const compressed *weights,
                           void *work)
{
    const bool hopper = d->capability / 10 == 9;
    const oq_cu_view xv = oq_cuda_view(x), yv = oq_cuda_view(a->y);
    const oq_cu_group *const w = &weights->group;
    if (weights->blocks) return oq_cu_gguf_small(d->stream, yv, xv, &weights->gguf, a->bias);
    if (oq_cu_group_row(d->stream, yv, xv, w, a->bias, d->capability >= 90)) return true;
    if (x.rows <= FEW_ROWS || (x.rows <= FEW_ROWS_SM80 && !hopper))
        return oq_cu_group_small(d->stream, yv, xv, w, a->bias);
    return hopper && x.rows <= SOME_ROWS && oq_cu_group_wgmma_work(x.rows, w->k) <= weight_bytes(a->spec) &&
           oq_cu_group_wgmma(d->stream, yv, xv, w, a->bias, work);
}

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    const oq_linear_spec *spec = a->spec;
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    const compressed w = weights_of(a, &p);
    char *scratch = (char *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    char *decoded = scratch + act_bytes(spec, a->x.rows), *bias16 = decoded + weight_bytes(spec);
    const oq_tensor x = effective_x(d, a, &p, scratch);
    if (!run_compressed(d, a, x, &w, decoded)) {
        const bool bf16 = oq_cuda_is_bf16(x);
        const int64_t step = piece_rows(spec, bf16 ? 2 : 4);
        if (a->bias && oq_cuda_is_bf16(a->y)) oq_cu_to_bf16(d->stream, bias16, a->bias, spec->n);
        for (int64_t first = 0; first < spec->n; first += step) {
            const oq_cu_view piece = {decoded, oq_min_i64(step, spec->n - first), spec->k, row_elements(spec),
                                      bf16 ? OQ_CU_BF16 : OQ_CU_F32};
            if (w.blocks)
                oq_cu_gguf_decode(d->stream, piece, &w.gguf, first);
            else
                oq_cu_group_decode(d->stream, piece, &w.group, first);
            product(d, a, x, &piece, first, bias16);
        }
    }
    oq_cuda_done(d, "linear_wgroup_abf16_sm80");
}

const oq_linear_kernel oq_cuda_linear_wgroup_abf16_sm80 = {.name = "linear_wgroup_abf16_sm80",
                                                           .need = 80,
                                                           .accepts = accepts,
                                                           .packed_bytes = oq_cuda_packed_bytes,
                                                           .pack = oq_cuda_pack,
                                                           .scratch_bytes = scratch_bytes,
                                                           .run = run};
