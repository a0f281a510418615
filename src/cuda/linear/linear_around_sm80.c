/* linear_around_sm80.c -- a product with what its layer does around it: rows are smoothed, put in order, rotated and, where
 * a treatment must see all of them, quantized; then the first kernel of the list that takes the bare product; the low-rank
 * branch is two f32 products beside it, added to y.
 *
 * Rows that the product quantizes itself come to it in f32. Others come in x's type, so that bf16 products stay bf16: one
 * rounding more than on the CPU, as is the branch's addition. */
#include "base/size.h"
#include "cuda/linear/cuda_linear.h"
#include "cuda/linear/packing.h"
#include "cuda/lt.h"

#include <string.h>

#define BRANCH_ROWS 1024 /* of the branch at a time: its scratch does not grow further */

static const oq_dtype f32 = {.name = "F32", .bytes = 4}; /* the core's is out of reach */

/* oq_scheme_is_bare is the core's. */
bool oq_cuda_is_bare(const oq_scheme *s)
{
    return !(s->shift > 0.0f || s->shift < 0.0f) && !s->smooth && !s->order && s->rotate == 0 &&
           s->rank == 0 && !(s->outlier > 0.0f) && s->act_scale != OQ_ACT_DYNAMIC_NVFP4 &&
           s->act_scale != OQ_ACT_DYNAMIC_ZERO && s->act_scale != OQ_ACT_DYNAMIC_LEAST &&
           s->act_min_rows == 0;
}

static bool needs_whole(const oq_scheme *s)
{
    return s->outlier > 0.0f || s->act_scale == OQ_ACT_DYNAMIC_NVFP4;
}

/* Rows whose treatment saw all of x come to the product quantized already. */
static oq_linear_spec bare_spec(const oq_linear_spec *spec)
{
    const oq_scheme *const s = &spec->scheme;
    oq_linear_spec bare = {.scheme = {.weight = s->weight}, .n = spec->n, .k = spec->k};
    if (!needs_whole(s)) bare.scheme.act = s->act, bare.scheme.act_scale = s->act_scale;
    return bare;
}

static const oq_linear_kernel *find_bare(const oq_linear_spec *bare, uint64_t capability)
{
    for (const oq_linear_kernel *const *k = oq_cuda_linear_list; *k; k++)
        if (!(*k)->around && (*k)->need <= capability && (*k)->accepts(bare)) return *k;
    return NULL;
}

static bool accepts(const oq_linear_spec *spec)
{
    const oq_linear_spec bare = bare_spec(spec);
    return spec->n > 0 && spec->k > 0 && !oq_cuda_is_bare(&spec->scheme) &&
           spec->scheme.act_min_rows == 0 && /* no kernel here leaves few rows as they are */
           (size_t)spec->k * sizeof(float) <= OQ_CU_AROUND_SHARED && find_bare(&bare, 80);
}

/* ---- packed: the product, SMOOTH, ORDER, DOWN, UP ------------------------------------------------------- */

typedef struct places {
    size_t smooth, order, down, up, bytes;
} places;

static places places_of(const oq_linear_spec *spec, const oq_linear_spec *bare)
{
    const oq_scheme *const s = &spec->scheme;
    const size_t columns = oq_align_up((size_t)spec->k * 4, OQ_CUDA_ALIGN);
    const size_t rank = (size_t)s->rank;
    places p = {.smooth = oq_align_up(oq_cuda_packed_bytes(bare), OQ_CUDA_ALIGN)};
    p.order = p.smooth + (s->smooth ? columns : 0);
    p.down = p.order + (s->order ? columns : 0);
    p.up = p.down + oq_align_up(rank * (size_t)spec->k * 4, OQ_CUDA_ALIGN);
    p.bytes = p.up + oq_align_up(rank * (size_t)spec->n * 4, OQ_CUDA_ALIGN);
    return p;
}

static size_t packed_bytes(const oq_linear_spec *spec)
{
    const oq_linear_spec bare = bare_spec(spec);
    return places_of(spec, &bare).bytes;
}

static void put(void *dst, size_t at, const oq_planes *src, oq_plane plane, int64_t n)
{
    memcpy((char *)dst + at, src->plane[plane], (size_t)n * 4);
}

static void pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)
{
    const oq_linear_spec bare = bare_spec(spec);
    const places p = places_of(spec, &bare);
    const oq_scheme *const s = &spec->scheme;
    oq_cuda_pack(dst, src, &bare);
    if (s->smooth) put(dst, p.smooth, src, OQ_PLANE_SMOOTH, spec->k);
    if (s->order) put(dst, p.order, src, OQ_PLANE_ORDER, spec->k);
    if (s->rank) put(dst, p.down, src, OQ_PLANE_DOWN, s->rank * spec->k);
    if (s->rank) put(dst, p.up, src, OQ_PLANE_UP, s->rank * spec->n);
}

/* ---- scratch -------------------------------------------------------------------------------------------- */

typedef struct room {
    size_t x, global, outlier, inner, raw, narrow, branch, bytes;
} room;

/* The largest that any kernel of the list may ask for: the device is not known yet. */
static size_t inner_bytes(const oq_linear_spec *bare, int64_t m)
{
    size_t most = 0;
    for (const oq_linear_kernel *const *k = oq_cuda_linear_list; *k; k++)
        if (!(*k)->around && (*k)->accepts(bare)) {
            const size_t bytes = (*k)->scratch_bytes(bare, m);
            if (bytes > most) most = bytes;
        }
    return most;
}

static room room_of(const oq_linear_spec *spec, const oq_linear_spec *bare, int64_t m)
{
    const int64_t rank = spec->scheme.rank, some = rank ? oq_min_i64(m, BRANCH_ROWS) : 0;
    room r = {.x = 0};
    r.global = oq_align_up((size_t)(m * spec->k) * 4, OQ_CUDA_ALIGN);
    r.outlier = r.global + OQ_CUDA_ALIGN;
    r.raw = r.outlier + oq_align_up((size_t)spec->k, OQ_CUDA_ALIGN);
    r.narrow = r.raw + oq_align_up((size_t)(some * spec->k) * 4, OQ_CUDA_ALIGN);
    r.branch = r.narrow + oq_align_up((size_t)(some * rank) * 4, OQ_CUDA_ALIGN);
    r.inner = r.branch + oq_align_up((size_t)(some * spec->n) * 4, OQ_CUDA_ALIGN);
    r.bytes = r.inner + inner_bytes(bare, m) + OQ_CUDA_ALIGN;
    return r;
}

static size_t scratch_bytes(const oq_linear_spec *spec, int64_t m)
{
    const oq_linear_spec bare = bare_spec(spec);
    return room_of(spec, &bare, m).bytes;
}

/* ---- run ------------------------------------------------------------------------------------------------ */

static const void *packed_at(const oq_linear_args *a, bool has, size_t at)
{
    return has ? (const char *)a->packed + at : NULL;
}

/* x as the product takes it, at `to`. */
static oq_tensor prepared(oq_device *d, const oq_linear_args *a, const places *p, const room *r,
                          char *scratch)
{
    const oq_scheme *const s = &a->spec->scheme;
    const bool whole = needs_whole(s), quantized = s->act && !whole;
    const bool shifted = s->shift > 0.0f || s->shift < 0.0f;
    if (!whole && !shifted && !s->smooth && !s->order && !s->rotate) return a->x;
    oq_tensor x = oq_tensor_make(scratch + r->x, a->x.dtype, a->x.rows, a->x.cols);
    oq_cu_view to = oq_cuda_view(x);
    if (quantized && oq_cuda_is_bf16(a->x)) { /* what the product's own quantization begins with */
        x.dtype = &f32;
        to.type = OQ_CU_F32;
    }
    const oq_cu_around around = {.shift = s->shift,
                                 .smooth = packed_at(a, s->smooth, p->smooth),
                                 .order = packed_at(a, s->order, p->order),
                                 .rotate = s->rotate};
    if (!oq_cu_around_prepare(d->stream, to, oq_cuda_view(a->x), &around))
        oq_cuda_note(d, cudaErrorInvalidConfiguration, "linear_around_sm80");
    if (s->outlier > 0.0f) oq_cu_around_outliers(d->stream, to, s->outlier, (uint8_t *)scratch + r->outlier);
    if (s->act_scale == OQ_ACT_DYNAMIC_NVFP4) {
        float *const global = (float *)(void *)(scratch + r->global);
        const oq_cu_blocks blocks = {.nvfp4 = true, .limit = 6.0f, .given = global};
        oq_cu_around_global(d->stream, global, to);
        oq_cu_requantize(d->stream, to, to, &blocks);
    }
    return x;
}

/* y[m,n] = x[m,k] . w[n,k]^T, all f32 without gaps. */
static void product_f32(oq_device *d, oq_tensor y, oq_tensor x, const void *w)
{
    const oq_lt_call call = {.kind = OQ_LT_F32,
                             .y_is_f32 = true,
                             .m = x.rows,
                             .n = y.cols,
                             .k = x.cols,
                             .ldx = x.ld,
                             .ldw = x.cols,
                             .ldy = y.ld,
                             .x = x.data,
                             .w = w,
                             .y = y.data};
    const oq_cu_gemm g = {.x = oq_cuda_view(x), .y = oq_cuda_view(y), .w = w, .w_type = OQ_CU_F32};
    if (!oq_lt_matmul(d, &call)) oq_cu_gemm_simt(d->stream, &g);
}

/* y += up(down(x)), x as it came. */
static void add_branch(oq_device *d, const oq_linear_args *a, const places *p, const room *r, char *scratch)
{
    const int64_t n = a->spec->n, k = a->spec->k, rank = a->spec->scheme.rank;
    for (int64_t first = 0; first < a->x.rows; first += BRANCH_ROWS) {
        const int64_t rows = oq_min_i64(BRANCH_ROWS, a->x.rows - first);
        const oq_tensor raw = oq_tensor_make(scratch + r->raw, &f32, rows, k),
                        narrow = oq_tensor_make(scratch + r->narrow, &f32, rows, rank),
                        branch = oq_tensor_make(scratch + r->branch, &f32, rows, n);
        oq_cu_copy(d->stream, oq_cuda_view(raw), oq_cuda_view(oq_tensor_rows(a->x, first, rows)));
        product_f32(d, narrow, raw, packed_at(a, true, p->down));
        product_f32(d, branch, narrow, packed_at(a, true, p->up));
        oq_cu_axpby(d->stream, oq_cuda_view(oq_tensor_rows(a->y, first, rows)), 1.0f, oq_cuda_view(branch),
                    1.0f);
    }
}

static void run(oq_device *d, const oq_linear_args *a)
{
    oq_cuda_enter(d);
    const oq_linear_spec bare = bare_spec(a->spec);
    const places p = places_of(a->spec, &bare);
    const room r = room_of(a->spec, &bare, a->x.rows);
    char *const scratch = (char *)oq_align_up((size_t)a->scratch, OQ_CUDA_ALIGN);
    oq_linear_args inner = *a;
    inner.spec = &bare;
    inner.scratch = scratch + r.inner;
    inner.x = prepared(d, a, &p, &r, scratch);
    find_bare(&bare, (uint64_t)d->capability)->run(d, &inner);
    if (a->spec->scheme.rank) add_branch(d, a, &p, &r, scratch);
    oq_cuda_done(d, "linear_around_sm80");
}

const oq_linear_kernel oq_cuda_linear_around_sm80 = {.name = "linear_around_sm80",
                                                     .need = 80,
                                                     .accepts = accepts,
                                                     .packed_bytes = packed_bytes,
                                                     .pack = pack,
                                                     .scratch_bytes = scratch_bytes,
                                                     .run = run,
                                                     .around = true};
