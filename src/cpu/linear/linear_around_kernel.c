/* linear_around_kernel.c -- a product with what its layer does around it: rows are prepared in f32, another kernel
 * multiplies them, the low-rank branch is two plain products beside it. Activations that no kernel takes beside the weight's
 * format become numbers again, code times scale, before a plain product. Rows go in chunks, so that scratch does not grow with
 * their number, except where a treatment must see all of them first. */
#include "cpu/linear/linear.h"
#include "cpu/linear/linear_around.h"

#include <string.h>

#include "base/size.h"

enum { ALIGN = 64, CHUNK = 512, PIECE = 512 };

static oq_linear_spec down_spec(const oq_linear_spec *spec)
{
    return (oq_linear_spec){.scheme = {.weight = &oq_format_f32}, .n = spec->scheme.rank, .k = spec->k};
}

static oq_linear_spec up_spec(const oq_linear_spec *spec)
{
    return (oq_linear_spec){.scheme = {.weight = &oq_format_f32}, .n = spec->n, .k = spec->scheme.rank};
}

/* Not this file's own kernels, which ask in turn. The reference takes everything, so there is always one. */
static const oq_linear_kernel *find(const oq_linear_spec *spec, uint64_t need)
{
    const oq_linear_kernel *const *k = oq_cpu_linear_list;
    while (((*k)->need & ~need) || ((*k)->around && (*k)->need) || !(*k)->accepts(spec)) k++;
    return *k;
}

bool oq_around_accepts(const oq_linear_spec *spec, uint64_t need)
{
    const oq_scheme *const s = &spec->scheme;
    if (spec->n < 1 || spec->k < 1 || !s->weight) return false;
    return !oq_scheme_is_bare(s) || (s->act && !s->weight->element && !find(spec, need)->need);
}

/* The product alone. Rows come to it quantized already where their treatment saw all of x, where few of them are not quantized, and
 * where the reference alone takes them otherwise. */
static oq_linear_spec bare_spec(const oq_linear_spec *spec, uint64_t need)
{
    const oq_scheme *const s = &spec->scheme;
    const oq_linear_spec plain = {.scheme = {.weight = s->weight}, .n = spec->n, .k = spec->k};
    oq_linear_spec bare = plain;
    if (oq_around_needs_whole(s) || s->act_min_rows) return plain;
    bare.scheme.act = s->act, bare.scheme.act_scale = s->act_scale;
    return find(&bare, need)->need ? bare : plain;
}

/* ---- packed: the product, SMOOTH, ORDER, INPUT_SCALE, the branch ----------------------------------------- */

typedef struct packed {
    oq_linear_spec bare, down, up;
    const oq_linear_kernel *kernel, *down_kernel, *up_kernel; /* of a branch: NULL without one */
    bool quantizes;                                           /* rows here, before the product */
    size_t smooth_at, order_at, input_at, down_at, up_at, bytes;
} packed;

static bool keeps_input(const oq_linear_spec *spec, const packed *p)
{
    return p->quantizes && oq_act_is_static(spec->scheme.act_scale);
}

static packed layout(const oq_linear_spec *spec, uint64_t need)
{
    packed p = {.bare = bare_spec(spec, need), .down = down_spec(spec), .up = up_spec(spec)};
    p.kernel = find(&p.bare, need);
    p.quantizes = spec->scheme.act && !p.bare.scheme.act;
    p.smooth_at = oq_align_up(p.kernel->packed_bytes(&p.bare), ALIGN);
    p.order_at = p.smooth_at +
                 oq_align_up(oq_scheme_plane_bytes(&spec->scheme, OQ_PLANE_SMOOTH, spec->n, spec->k), ALIGN);
    p.input_at = p.order_at +
                 oq_align_up(oq_scheme_plane_bytes(&spec->scheme, OQ_PLANE_ORDER, spec->n, spec->k), ALIGN);
    p.down_at = p.input_at + (keeps_input(spec, &p) ? ALIGN : 0);
    p.up_at = p.bytes = p.down_at;
    if (!spec->scheme.rank) return p;
    p.down_kernel = find(&p.down, need);
    p.up_kernel = find(&p.up, need);
    p.up_at = p.down_at + oq_align_up(p.down_kernel->packed_bytes(&p.down), ALIGN);
    p.bytes = p.up_at + oq_align_up(p.up_kernel->packed_bytes(&p.up), ALIGN);
    return p;
}

size_t oq_around_packed_bytes(const oq_linear_spec *spec, uint64_t need)
{
    return layout(spec, need).bytes;
}

void oq_around_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec, uint64_t need)
{
    const packed p = layout(spec, need);
    char *const at = dst;
    const size_t columns = (size_t)spec->k * 4;
    p.kernel->pack(at, src, &p.bare);
    if (spec->scheme.smooth) memcpy(at + p.smooth_at, src->plane[OQ_PLANE_SMOOTH], columns);
    if (spec->scheme.order) memcpy(at + p.order_at, src->plane[OQ_PLANE_ORDER], columns);
    if (keeps_input(spec, &p)) memcpy(at + p.input_at, src->plane[OQ_PLANE_INPUT_SCALE], sizeof(float));
    if (!spec->scheme.rank) return;
    p.down_kernel->pack(at + p.down_at, &(oq_planes){{src->plane[OQ_PLANE_DOWN]}}, &p.down);
    p.up_kernel->pack(at + p.up_at, &(oq_planes){{src->plane[OQ_PLANE_UP]}}, &p.up);
}

/* ---- scratch -------------------------------------------------------------------------------------------- */

typedef struct job {
    const oq_linear_args *args;
    const oq_linear_spec *spec;
    packed p;
    oq_planes planes; /* SMOOTH and ORDER */
    oq_around_whole whole;
    float input_scale;
    int64_t first, rows, most; /* of the chunk; of any */
    float *x;                  /* [most, k]: prepared rows */
    float *raw;                /* [most, k]: rows as they came */
    float *narrow;             /* [most, rank] */
    float *product, *branch;   /* [most, n] */
    uint8_t *outlier;          /* [k] */
    uint8_t *codes;            /* [most, k] where rows are quantized here */
    char *inner;               /* scratch of the kernels inside */
} job;

static float *take(char *scratch, size_t *at, int64_t rows, int64_t cols)
{
    float *const out = scratch ? (float *)(void *)(scratch + *at) : NULL;
    *at += oq_align_up((size_t)rows * (size_t)cols * sizeof(float), ALIGN);
    return out;
}

static size_t inner_bytes(const packed *p, int64_t rows)
{
    size_t most = p->kernel->scratch_bytes(&p->bare, rows);
    if (!p->up_kernel) return most;
    const size_t down = p->down_kernel->scratch_bytes(&p->down, rows),
                 up = p->up_kernel->scratch_bytes(&p->up, rows);
    if (down > most) most = down;
    return up > most ? up : most;
}

static size_t place(job *j, const oq_linear_spec *spec, int64_t m, uint64_t need, char *scratch)
{
    const int64_t rank = spec->scheme.rank;
    size_t at = 0;
    j->spec = spec;
    j->p = layout(spec, need);
    j->most = oq_around_needs_whole(&spec->scheme) ? m : oq_min_i64(m, CHUNK);
    j->x = take(scratch, &at, j->most, spec->k);
    j->raw = take(scratch, &at, j->most, spec->k);
    j->narrow = take(scratch, &at, rank ? j->most : 0, rank);
    j->product = take(scratch, &at, rank ? j->most : 0, spec->n);
    j->branch = take(scratch, &at, rank ? j->most : 0, spec->n);
    j->outlier = (uint8_t *)take(scratch, &at, 1, spec->k);
    j->codes = (uint8_t *)take(scratch, &at, j->p.quantizes ? j->most : 0, oq_ceil_div(spec->k, 4));
    j->inner = scratch ? scratch + at : NULL;
    return at + inner_bytes(&j->p, j->most);
}

size_t oq_around_scratch_bytes(const oq_linear_spec *spec, int64_t m, uint64_t need)
{
    job j;
    return place(&j, spec, m, need, NULL);
}

/* ---- run ------------------------------------------------------------------------------------------------ */

static void prepare_row(void *user, int64_t i, int worker)
{
    (void)worker;
    const job *const j = user;
    const oq_tensor *const x = &j->args->x;
    const int64_t k = j->spec->k;
    float *const raw = j->raw + i * k;
    x->dtype->to_f32(raw, (const char *)x->data + (size_t)((j->first + i) * x->ld) * x->dtype->bytes,
                     (size_t)k);
    oq_around_row(j->x + i * k, raw, x->dtype, j->spec, &j->planes);
}

/* Rows under one scale, or beside their outliers, as a whole; no other group reaches further than a piece. */
static void quantize_row(void *user, int64_t i, int worker)
{
    (void)worker;
    const job *const j = user;
    const oq_scheme *const s = &j->spec->scheme;
    const int64_t k = j->spec->k;
    const bool whole = j->whole.outlier || oq_act_run(s->act_scale, k) == k;
    float *const row = j->x + i * k, scales[PIECE];
    uint8_t *const codes = j->codes + (size_t)i * (size_t)(oq_ceil_div(k, 4) * 4);
    if (whole) {
        oq_around_quantize(row, s, &j->whole, j->input_scale, k, codes, scales);
        return;
    }
    for (int64_t at = 0; at < k; at += PIECE)
        oq_around_quantize(row + at, s, &j->whole, j->input_scale, oq_min_i64(PIECE, k - at), codes, scales);
}

/* y = product + branch, one rounding. */
static void sum_row(void *user, int64_t i, int worker)
{
    (void)worker;
    const job *const j = user;
    const oq_tensor *const y = &j->args->y;
    const int64_t n = j->spec->n;
    float *const a = j->product + i * n;
    const float *const b = j->branch + i * n;
    for (int64_t c = 0; c < n; c++) a[c] += b[c];
    y->dtype->from_f32((char *)y->data + (size_t)((j->first + i) * y->ld) * y->dtype->bytes, a, (size_t)n);
}

static void multiply(oq_device *device, const job *j, const oq_linear_kernel *kernel,
                     const oq_linear_spec *spec, size_t at, const float *bias, oq_tensor x, oq_tensor y)
{
    const oq_linear_args args = {.spec = spec,
                                 .packed = (const char *)j->args->packed + at,
                                 .bias = bias,
                                 .scratch = j->inner,
                                 .x = x,
                                 .y = y};
    kernel->run(device, &args);
}

static oq_tensor rows_of(float *data, int64_t rows, int64_t cols)
{
    return oq_tensor_make(data, &oq_dtype_f32, rows, cols);
}

static void run_chunk(oq_device *device, job *j)
{
    const packed *const p = &j->p;
    const int64_t n = j->spec->n, k = j->spec->k, rank = j->spec->scheme.rank;
    const oq_tensor x = rows_of(j->x, j->rows, k), raw = rows_of(j->raw, j->rows, k);
    oq_pool_run(device->pool, j->rows, prepare_row, j);
    if (oq_around_needs_whole(&j->spec->scheme))
        oq_around_look(&j->whole, j->outlier, &j->spec->scheme, j->x, j->rows, k);
    if (p->quantizes && !oq_around_is_plain(&j->spec->scheme, j->args->x.rows))
        oq_pool_run(device->pool, j->rows, quantize_row, j);
    if (!rank) {
        multiply(device, j, p->kernel, &p->bare, 0, j->args->bias, x,
                 oq_tensor_rows(j->args->y, j->first, j->rows));
        return;
    }
    multiply(device, j, p->kernel, &p->bare, 0, j->args->bias, x, rows_of(j->product, j->rows, n));
    multiply(device, j, p->down_kernel, &p->down, p->down_at, NULL, raw, rows_of(j->narrow, j->rows, rank));
    multiply(device, j, p->up_kernel, &p->up, p->up_at, NULL, rows_of(j->narrow, j->rows, rank),
             rows_of(j->branch, j->rows, n));
    oq_pool_run(device->pool, j->rows, sum_row, j);
}

void oq_around_run(oq_device *device, const oq_linear_args *args, uint64_t need)
{
    job j = {.args = args};
    place(&j, args->spec, args->x.rows, need, args->scratch);
    const char *const packed_at = args->packed;
    if (args->spec->scheme.smooth) j.planes.plane[OQ_PLANE_SMOOTH] = packed_at + j.p.smooth_at;
    if (args->spec->scheme.order) j.planes.plane[OQ_PLANE_ORDER] = packed_at + j.p.order_at;
    if (keeps_input(args->spec, &j.p)) memcpy(&j.input_scale, packed_at + j.p.input_at, sizeof j.input_scale);
    for (j.first = 0; j.first < args->x.rows; j.first += j.most) {
        j.rows = oq_min_i64(j.most, args->x.rows - j.first);
        run_chunk(device, &j);
    }
}
