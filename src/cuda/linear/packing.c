/* packing.c -- canonical planes to the layout of packing.h, and the activations' codes. */
#include "cuda/linear/packing.h"

#include "base/size.h"
#include "format/format_int.h"

#include <math.h>
#include <string.h>

#define GROUP_BLOCK 128 /* columns of a block of codes, and rows of a tile: kernels.h, oq_cu_group */
#define GROUP_TILE  16

/* Formats and element types are known by name: the plugin has its own copies of neither. */
static bool element_is(const oq_format *f, const char *name)
{
    return f->element && strcmp(f->element->name, name) == 0;
}

bool oq_cuda_has_input(const oq_linear_spec *spec)
{
    return spec->scheme.act_scale == OQ_ACT_STATIC_TENSOR || spec->scheme.act_scale == OQ_ACT_STATIC_NVFP4;
}

static bool name_begins(const oq_format *f, const char *word)
{
    return strncmp(f->name, word, strlen(word)) == 0;
}

static bool is_dual(const oq_format *f)
{
    return strcmp(f->name, "mxfp4_dual") == 0;
}

/* What a group format's codes and scales are; false: `f` is none, or its groups cross from row to row. */
static bool group_of(oq_cu_group *g, const oq_format *f, int64_t n, int64_t k)
{
    *g = (oq_cu_group){.bits = 4, .group = f->block_k, .n = n, .k = k};
    const bool nested = f->planes >> OQ_PLANE_GLOBAL & 1u;
    const bool bnb = name_begins(f, "nf4_b") || name_begins(f, "fp4_b");
    const int bits = f->int_bits;
    if (strcmp(f->name, "mxfp8") == 0)
        g->bits = 8, g->code = OQ_CU_CODE_E4M3, g->scale_kind = OQ_CU_SCALE_E8M0;
    else if (strcmp(f->name, "mxfp4") == 0 || strcmp(f->name, "mxfp4_q725") == 0)
        g->code = OQ_CU_E2M1, g->scale_kind = OQ_CU_SCALE_E8M0;
    else if (is_dual(f))
        g->code = OQ_CU_E2M1, g->scale_kind = OQ_CU_SCALE_F32; /* both scales as one: pack_dual */
    else if (name_begins(f, "nvfp4") && f->block_n == 1 && nested)
        g->code = OQ_CU_E2M1, g->global_step = strstr(f->name, "_rows") != NULL,
        g->scale_kind = strstr(f->name, "inverse") ? OQ_CU_SCALE_E4M3_OVER : OQ_CU_SCALE_E4M3;
    else if (bnb && k % f->block_k == 0 && (nested ? f->block_k == 64 : f->block_k <= GROUP_BLOCK))
        g->code = name_begins(f, "nf4_") ? OQ_CU_NF4 : OQ_CU_FP4,
        g->scale_kind = nested ? OQ_CU_SCALE_NESTED : OQ_CU_SCALE_F32;
    else if (bits)
        g->code = OQ_CU_INT, g->bits = bits > 4 ? 8 : 4, g->zero = 1 << (bits - 1),
        g->scale_kind = OQ_CU_SCALE_F32;
    else
        return false;
    g->groups = oq_ceil_div(k, f->block_k);
    g->blocks = oq_ceil_div(k, GROUP_BLOCK);
    return true;
}

/* Parts of rows in blocks, filled up to whole tiles. */
static size_t group_parts(const oq_cu_group *g)
{
    return (size_t)(oq_ceil_div(g->n, GROUP_TILE) * GROUP_TILE * g->blocks);
}

static size_t scale_bytes(const oq_cu_group *g)
{
    return g->scale_kind == OQ_CU_SCALE_F32 ? 4 : 1;
}

static oq_cuda_packing grouped_packing(oq_cuda_packing p, const oq_linear_spec *spec)
{
    const oq_format *f = spec->scheme.weight;
    const int64_t n = spec->n, k = spec->k;
    p.grouped = true;
    const size_t groups = group_parts(&p.group) * (size_t)(GROUP_BLOCK / p.group.group);
    p.scale_at = oq_align_up(group_parts(&p.group) * (size_t)(GROUP_BLOCK * p.group.bits / 8), OQ_CUDA_ALIGN);
    size_t at = oq_align_up(p.scale_at + groups * scale_bytes(&p.group), OQ_CUDA_ALIGN);
    if (f->planes >> OQ_PLANE_ZERO & 1u) p.zero_at = at, at = oq_align_up(at + groups, OQ_CUDA_ALIGN);
    const bool has_global = f->planes >> OQ_PLANE_GLOBAL & 1u && !is_dual(f);
    const size_t global = has_global ? f->plane_bytes(f, OQ_PLANE_GLOBAL, n, k) : 0;
    if (global) p.global_at = at, at = oq_align_up(at + global, OQ_CUDA_ALIGN);
    p.input_at = at;
    p.bytes = at + (oq_cuda_has_input(spec) ? OQ_CUDA_ALIGN : 0);
    return p;
}

/* GGUF's blocks that gguf.cu reads, whole blocks in each row. */
static oq_cu_gguf_type gguf_of(const oq_format *f, int64_t k)
{
    static const struct {
        const char *name;
        oq_cu_gguf_type type;
    } types[] = {{"q4_0", OQ_CU_Q4_0}, {"q4_1", OQ_CU_Q4_1}, {"q5_0", OQ_CU_Q5_0},
                 {"q5_1", OQ_CU_Q5_1}, {"q8_0", OQ_CU_Q8_0}, {"iq4_nl", OQ_CU_IQ4_NL},
                 {"q2_k", OQ_CU_Q2_K}, {"q3_k", OQ_CU_Q3_K}, {"q4_k", OQ_CU_Q4_K},
                 {"q5_k", OQ_CU_Q5_K}, {"q6_k", OQ_CU_Q6_K}, {"iq4_xs", OQ_CU_IQ4_XS}};
    for (size_t i = 0; f->block && k % f->block->elems == 0 && i < OQ_COUNT(types); i++)
        if (strcmp(f->name, types[i].name) == 0) return types[i].type;
    return OQ_CU_NO_GGUF;
}

oq_cuda_packing oq_cuda_packing_of(const oq_linear_spec *spec)
{
    const oq_format *f = spec->scheme.weight;
    oq_cuda_packing p = {.type = OQ_CU_F32};
    const unsigned scaled = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE;
    if (group_of(&p.group, f, spec->n, spec->k)) return grouped_packing(p, spec);
    p.gguf = gguf_of(f, spec->k);
    if (p.gguf) {
        p.input_at = oq_align_up(f->plane_bytes(f, OQ_PLANE_DATA, spec->n, spec->k), OQ_CUDA_ALIGN);
        p.bytes = p.input_at + (oq_cuda_has_input(spec) ? OQ_CUDA_ALIGN : 0);
        return p;
    }
    if (element_is(f, "BF16") && f->planes == 1u << OQ_PLANE_DATA)
        p.type = OQ_CU_BF16;
    else if (element_is(f, "F8_E4M3") && f->planes == scaled)
        p.type = OQ_CU_E4M3, p.scaled = true;
    else if (element_is(f, "I8") && f->planes == scaled)
        p.type = OQ_CU_I8, p.scaled = true;
    else
        p.decoded = true, p.blocks = f->block != NULL;
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
    p.bytes = p.input_at + (oq_cuda_has_input(spec) ? OQ_CUDA_ALIGN : 0);
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

/* Code `at` of a stream of codes of `bits` bits, low bits first. */
static uint8_t code_at(const uint8_t *row, int64_t at, int bits)
{
    const int64_t bit = at * bits;
    const int shift = (int)(bit & 7);
    unsigned word = row[bit >> 3];
    if (shift + bits > 8) word |= (unsigned)row[(bit >> 3) + 1] << 8;
    return (uint8_t)(word >> shift & ((1u << bits) - 1));
}

/* Columns [first, first + 128) of a row as the block's plain order, zeros beyond k; `bits` of the source. */
static void block_codes(uint8_t *block, const uint8_t *row, int64_t first, const oq_cu_group *g, int bits)
{
    const int64_t count = oq_min_i64(GROUP_BLOCK, g->k - first);
    memset(block, 0, (size_t)(GROUP_BLOCK * g->bits / 8));
    if (bits == g->bits) {
        memcpy(block, row + first * bits / 8, (size_t)((count * bits + 7) / 8));
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const uint8_t code = code_at(row, first + i, bits);
        block[i / 2] = (uint8_t)(block[i / 2] | code << (i % 2 * 4)); /* fewer than four bits become four */
    }
}

static int64_t part_at(const oq_cu_group *g, int64_t row, int64_t block)
{
    return (row / GROUP_TILE * g->blocks + block) * GROUP_TILE + row % GROUP_TILE;
}

static void pack_codes(uint8_t *dst, const uint8_t *src, const oq_cu_group *g, int bits)
{
    const size_t unit = (size_t)g->bits / 2;
    uint8_t block[GROUP_BLOCK];
    memset(dst, 0, group_parts(g) * 32 * unit);
    for (int64_t r = 0; r < g->n; r++)
        for (int64_t b = 0; b < g->blocks; b++) {
            uint8_t *const to = dst + (size_t)part_at(g, r, b) * 32 * unit;
            block_codes(block, src + r * ((g->k * bits + 7) / 8), b * GROUP_BLOCK, g, bits);
            for (size_t j = 0; j < 8; j++)
                for (size_t q = 0; q < 4; q++)
                    memcpy(to + (8 * q + j) * unit, block + (4 * j + q) * unit, unit);
        }
}

/* Scales [n, groups] of `each` bytes in the codes' order; of 16 bits where `narrow` says so, which are widened. */
static void pack_of_groups(char *dst, const char *src, const oq_cu_group *g, size_t each,
                           const oq_dtype *narrow)
{
    const int64_t per_block = GROUP_BLOCK / g->group;
    memset(dst, 0, group_parts(g) * (size_t)per_block * each);
    for (int64_t r = 0; r < g->n; r++)
        for (int64_t b = 0; b < g->blocks; b++) {
            const int64_t first = b * per_block, count = oq_min_i64(per_block, g->groups - first);
            char *const to = dst + (size_t)(part_at(g, r, b) * per_block) * each;
            if (narrow)
                narrow->to_f32((float *)(void *)to, src + (size_t)(r * g->groups + first) * narrow->bytes,
                               (size_t)count);
            else
                memcpy(to, src + (size_t)(r * g->groups + first) * each, (size_t)count * each);
        }
}

/* Zero points likewise, a byte each. */
static void pack_zeros(uint8_t *dst, const void *src, const oq_cu_group *g, int bits)
{
    const int64_t per_block = GROUP_BLOCK / g->group;
    memset(dst, 0, group_parts(g) * (size_t)per_block);
    for (int64_t r = 0; r < g->n; r++)
        for (int64_t i = 0; i < g->groups; i++)
            dst[part_at(g, r, i / per_block) * per_block + i % per_block] =
                (uint8_t)oq_int_zero(src, bits, r, i, g->groups);
}

/* Powers of two of groups of 32 times the f32 of their 512 columns, in the codes' order. */
static void pack_dual(char *dst, const oq_planes *src, const oq_cu_group *g)
{
    const int64_t per_block = GROUP_BLOCK / g->group, per_dual = OQ_ACT_DUAL_GROUP / g->group;
    const int64_t duals = oq_ceil_div(g->groups, per_dual);
    const uint8_t *const bytes = src->plane[OQ_PLANE_SCALE];
    const float *const dual = src->plane[OQ_PLANE_GLOBAL];
    float *const to = (float *)(void *)dst;
    memset(dst, 0, group_parts(g) * (size_t)per_block * sizeof *to);
    for (int64_t r = 0; r < g->n; r++)
        for (int64_t i = 0; i < g->groups; i++) {
            const uint8_t byte = bytes[r * g->groups + i];
            const float power = byte == 255 ? NAN : ldexpf(1.0f, (int)byte - 127);
            to[part_at(g, r, i / per_block) * per_block + i % per_block] =
                power * dual[r * duals + i / per_dual];
        }
}

static void pack_group(char *dst, const oq_planes *src, const oq_cuda_packing *p, const oq_linear_spec *spec)
{
    const oq_format *f = spec->scheme.weight;
    const int bits = f->int_bits;
    pack_codes((uint8_t *)dst, src->plane[OQ_PLANE_DATA], &p->group, bits ? bits : p->group.bits);
    if (is_dual(f))
        pack_dual(dst + p->scale_at, src, &p->group);
    else
        pack_of_groups(dst + p->scale_at, src->plane[OQ_PLANE_SCALE], &p->group, scale_bytes(&p->group),
                       f->scale_type);
    if (p->zero_at) pack_zeros((uint8_t *)dst + p->zero_at, src->plane[OQ_PLANE_ZERO], &p->group, bits);
    if (p->global_at)
        memcpy(dst + p->global_at, src->plane[OQ_PLANE_GLOBAL],
               f->plane_bytes(f, OQ_PLANE_GLOBAL, spec->n, spec->k));
}

oq_cu_group oq_cuda_packed_group(const oq_cuda_packing *p, const void *packed)
{
    const char *at = packed;
    oq_cu_group g = p->group;
    g.codes = packed;
    g.scales = at + p->scale_at;
    g.zeros = p->zero_at ? (const uint8_t *)at + p->zero_at : NULL;
    g.global = p->global_at ? (const float *)(const void *)(at + p->global_at) : NULL;
    return g;
}

void oq_cuda_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    const oq_cuda_packing p = oq_cuda_packing_of(spec);
    const oq_format *f = spec->scheme.weight;
    if (p.grouped)
        pack_group(dst, src, &p, spec);
    else if (p.decoded)
        for (int64_t r = 0; r < spec->n; r++)
            f->decode_row(f, (float *)dst + r * spec->k, src, r, spec->n, spec->k);
    else
        memcpy(dst, src->plane[OQ_PLANE_DATA], f->plane_bytes(f, OQ_PLANE_DATA, spec->n, spec->k));
    if (p.scaled)
        pack_scales((float *)(void *)((char *)dst + p.scale_at), src->plane[OQ_PLANE_SCALE], &p, spec);
    if (oq_cuda_has_input(spec))
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

/* The steps of args->rows: to codes (true), or to x. */
static bool rows_to_codes(oq_device *d, const oq_linear_args *a, oq_cu_type code, oq_cu_act_scale kind,
                          const float *given, const oq_cuda_codes *codes, oq_cu_narrow beside)
{
    oq_cu_rows r = oq_cuda_rows_of(a->rows);
    r.codes = codes->data, r.scales = codes->scale, r.given = given;
    r.code = code, r.kind = kind, r.beside = beside;
    if (kind == OQ_CU_ACT_GROUP || !oq_cu_rows_fits(&r)) {
        oq_cuda_rows(d, a->rows);
        return false;
    }
    oq_cu_rows_run(d->stream, &r);
    return true;
}

/* Columns that args->pre makes: on the way to codes (true), or in x. */
static bool pre_to_codes(oq_device *d, const oq_linear_args *a, oq_cu_type code, oq_cu_act_scale kind,
                         const float *given, const oq_cuda_codes *codes, oq_cu_narrow beside)
{
    const oq_cu_pre pre = {.unary = (int)a->pre->unary,
                           .a = oq_cuda_view(a->pre->a),
                           .b = oq_cuda_view(a->pre->b),
                           .from = a->pre->from};
    const oq_cu_view x = oq_cuda_view(a->x);
    if (oq_cu_quantize_pre(d->stream, code, kind, given, codes->data, codes->scale, x, &pre, beside))
        return true;
    const oq_cu_view to = oq_cuda_view(oq_tensor_cols(a->x, pre.from, a->x.cols - pre.from));
    if (pre.b.rows)
        oq_cu_glu(d->stream, pre.unary, to, pre.a, pre.b);
    else
        oq_cu_unary(d->stream, pre.unary, to, pre.a);
    return false;
}

oq_cuda_codes oq_cuda_quantize(oq_device *d, const oq_linear_args *a, int64_t first, int64_t rows, void *at,
                               void *bias)
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
    const float *given = kind == OQ_CU_ACT_STATIC ? oq_cuda_packed_input(&p, a->packed) : NULL;
    const oq_cu_narrow beside = {a->bias, bias, bias ? spec->n : 0};
    if (a->again) {
        oq_cu_to_bf16(d->stream, beside.to, beside.from, beside.n);
        return codes;
    }
    if (a->rows && rows_to_codes(d, a, code, kind, given, &codes, beside)) return codes;
    if (a->pre && pre_to_codes(d, a, code, kind, given, &codes, beside)) return codes;
    oq_cu_quantize(d->stream, code, kind, given, codes.data, codes.scale,
                   oq_cuda_view(oq_tensor_rows(a->x, first, rows)), beside);
    return codes;
}

bool oq_cuda_knows_act(const oq_linear_spec *spec)
{
    const oq_act_scale s = spec->scheme.act_scale;
    return !spec->scheme.act || s <= OQ_ACT_STATIC_NVFP4 || s == OQ_ACT_DYNAMIC_INT4 ||
           s == OQ_ACT_DYNAMIC_UINT4;
}

unsigned oq_cuda_fuses_input(const oq_linear_spec *spec)
{
    (void)spec;
    return OQ_FUSE_ROWS | OQ_FUSE_PRE;
}

/* Rows [first, first + rows) of the product; codes NULL: of x itself. */
static oq_cu_gemm gemm_of(const oq_linear_args *a, int64_t first, int64_t rows, const oq_cuda_codes *codes)
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
    return g;
}

void oq_cuda_linear_simt(oq_device *d, const oq_linear_args *a, int64_t first, int64_t rows,
                         const oq_cuda_codes *codes)
{
    const oq_cu_gemm g = gemm_of(a, first, rows, codes);
    d->way = OQ_CUDA_WAY_REFERENCE;
    oq_cu_gemm_simt(d->stream, &g);
}

void oq_cuda_linear_codes(oq_device *d, const oq_linear_args *a, int64_t first, int64_t rows,
                          const oq_cuda_codes *codes)
{
    const oq_cu_gemm g = gemm_of(a, first, rows, codes);
    if (d->force == OQ_CUDA_WAY_REFERENCE || d->capability / 10 != 9 || !oq_cu_gemm_wgmma(d->stream, &g))
        oq_cuda_linear_simt(d, a, first, rows, codes);
    else if (d->way < OQ_CUDA_WAY_OWN)
        d->way = OQ_CUDA_WAY_OWN;
}
