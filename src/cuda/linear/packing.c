/* packing.c -- canonical planes to the layout of packing.h, and the activations' codes. */
#include "cuda/linear/packing.h"

#include "base/size.h"

#include <string.h>

/* Formats and element types are known by name: the plugin has its own copies of neither. */
static bool element_is(const oq_format *f, const char *name)
{
    return f->element && strcmp(f->element->name, name) == 0;
}

oq_cuda_packing oq_cuda_packing_of(const oq_linear_spec *spec)
{
    const oq_format *f = spec->scheme.weight;
    oq_cuda_packing p = {.type = OQ_CU_F32};
    const unsigned scaled = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE;
    if (element_is(f, "BF16") && f->planes == 1u << OQ_PLANE_DATA)
        p.type = OQ_CU_BF16;
    else if (element_is(f, "F8_E4M3") && f->planes == scaled)
        p.type = OQ_CU_E4M3, p.scaled = true;
    else if (element_is(f, "I8") && f->planes == scaled)
        p.type = OQ_CU_I8, p.scaled = true;
    else
        p.decoded = true;
    size_t n_scales = 0;
    if (p.scaled) {
        const bool blocks = f->block_k != 0;
        p.block_n = blocks ? f->block_n : 1;
        p.block_k = blocks ? f->block_k : 0;
        p.scale_ld = blocks ? (int64_t)oq_align_up((size_t)oq_ceil_div(spec->k, f->block_k), 4) : 1;
        const int64_t rows = blocks && f->block_n > 0 ? oq_ceil_div(spec->n, f->block_n) : spec->n;
        n_scales = (size_t)(rows * p.scale_ld);
    }
    static const size_t element[] = {4, 2, 1, 1};
    p.scale_at = oq_align_up((size_t)(spec->n * spec->k) * element[p.type], OQ_CUDA_ALIGN);
    p.input_at = oq_align_up(p.scale_at + n_scales * sizeof(float), OQ_CUDA_ALIGN);
    p.bytes = p.input_at + (spec->scheme.act_scale == OQ_ACT_STATIC_TENSOR ? OQ_CUDA_ALIGN : 0);
    return p;
}

size_t oq_cuda_packed_bytes(const oq_linear_spec *spec)
{
    return oq_cuda_packing_of(spec).bytes;
}

static void pack_scales(float *dst, const float *src, const oq_cuda_packing *p, const oq_linear_spec *spec)
{
    const oq_format *f = spec->scheme.weight;
    if (p->block_k == 0) { /* tensor or channel: one for each channel */
        for (int64_t i = 0; i < spec->n; i++) dst[i] = src[f->block_n == 0 ? 0 : i / f->block_n];
        return;
    }
    const int64_t rows = oq_ceil_div(spec->n, p->block_n), cols = oq_ceil_div(spec->k, p->block_k);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < p->scale_ld; c++)
            dst[r * p->scale_ld + c] = c < cols ? src[r * cols + c] : 0.0f;
}

void oq_cuda_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    const oq_format *f = spec->scheme.weight;
    if (p.decoded)
        for (int64_t r = 0; r < spec->n; r++)
            f->decode_row(f, (float *)dst + r * spec->k, src, r, spec->n, spec->k);
    else
        memcpy(dst, src->plane[OQ_PLANE_DATA], f->plane_bytes(f, OQ_PLANE_DATA, spec->n, spec->k));
    if (p.scaled)
        pack_scales((float *)(void *)((char *)dst + p.scale_at), src->plane[OQ_PLANE_SCALE], &p, spec);
    if (spec->scheme.act_scale == OQ_ACT_STATIC_TENSOR)
        memcpy((char *)dst + p.input_at, src->plane[OQ_PLANE_INPUT_SCALE], sizeof(float));
}

static size_t scales_bytes(const oq_linear_spec *spec, int64_t m)
{
    const int64_t groups =
        spec->scheme.act_scale == OQ_ACT_DYNAMIC_GROUP ? oq_ceil_div(spec->k, OQ_ACT_GROUP) : 1;
    return oq_align_up((size_t)(m * groups) * sizeof(float), OQ_CUDA_ALIGN);
}

size_t oq_cuda_codes_bytes(const oq_linear_spec *spec, int64_t m)
{
    if (!spec->scheme.act) return 0;
    return oq_align_up((size_t)(m * spec->k), OQ_CUDA_ALIGN) + scales_bytes(spec, m);
}

oq_cuda_codes oq_cuda_quantize(oq_device *d, const oq_linear_args *a, int64_t first, int64_t rows, void *at)
{
    const oq_linear_spec *spec = a->spec;
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    const oq_cu_type code = strcmp(spec->scheme.act->name, "I8") == 0 ? OQ_CU_I8 : OQ_CU_E4M3;
    oq_cu_act_scale kind = OQ_CU_ACT_TOKEN;
    if (spec->scheme.act_scale == OQ_ACT_STATIC_TENSOR) kind = OQ_CU_ACT_STATIC;
    if (spec->scheme.act_scale == OQ_ACT_DYNAMIC_GROUP) kind = OQ_CU_ACT_GROUP;
    const oq_cuda_codes codes = {
        .data = at,
        .scale = (float *)(void *)((char *)at + oq_align_up((size_t)(rows * spec->k), OQ_CUDA_ALIGN))};
    oq_cu_quantize(d->stream, code, kind,
                   kind == OQ_CU_ACT_STATIC ? oq_cuda_packed_input(&p, a->packed) : NULL, codes.data,
                   codes.scale, oq_cuda_view(oq_tensor_rows(a->x, first, rows)));
    return codes;
}

void oq_cuda_linear_simt(oq_device *d, const oq_linear_args *a, int64_t first, int64_t rows,
                         const oq_cuda_codes *codes)
{
    const oq_linear_spec *spec = a->spec;
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    oq_cu_gemm g = {.x = oq_cuda_view(oq_tensor_rows(a->x, first, rows)),
                    .y = oq_cuda_view(oq_tensor_rows(a->y, first, rows)),
                    .w = a->packed,
                    .w_type = p.type,
                    .w_scale = oq_cuda_packed_scale(&p, a->packed),
                    .w_block_n = p.block_n,
                    .w_block_k = p.block_k,
                    .w_scale_ld = p.scale_ld,
                    .bias = a->bias};
    if (codes) {
        const bool i8 = strcmp(spec->scheme.act->name, "I8") == 0;
        g.x = (oq_cu_view){codes->data, rows, spec->k, spec->k, i8 ? OQ_CU_I8 : OQ_CU_E4M3};
        g.x_scale = codes->scale;
        g.x_group = spec->scheme.act_scale == OQ_ACT_DYNAMIC_GROUP ? OQ_ACT_GROUP : 0;
    }
    oq_cu_gemm_simt(d->stream, &g);
}
