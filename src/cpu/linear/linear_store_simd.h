/* linear_store_simd.h -- from accumulators to y, for the linear_store_*.c of each instruction set: scales and bias, then
 * what the caller wants done to the product (oq_post). A value is rounded where the separate operations would store it. */
#include "cpu/elementwise/elem.h"
#include "cpu/linear/linear_panel.h"
#include "cpu/vec/vec_math.h"

enum {
    VECTORS = OQ_PANEL_MAX_NR / VF,
    FETCH_ROWS = 12 /* ahead */
};

typedef struct columns { /* of one panel */
    int64_t first, count;
    vf scale[VECTORS], bias[VECTORS];
    const int32_t *correction;
} columns;

static void columns_of(const oq_panel_job *job, int64_t panel, columns *out)
{
    const int64_t nr = job->engine->nr, first = panel * nr, left = job->args->spec->n - first;
    out->first = first;
    out->count = left < nr ? left : nr;
    out->correction = job->correction ? job->correction + first : NULL;
    for (int64_t v = 0; v * VF < nr; v++) {
        const int64_t n = out->count - v * VF;
        out->scale[v] = job->col_scale ? v_load(job->col_scale + first + v * VF) : v_set(1.0f);
        out->bias[v] = job->args->bias && n > 0 ? v_param(job->args->bias, first + v * VF, n, 0.0f) : v_zero();
    }
}

/* Element (row r, vector v) of a panel's product in f32: (c - correction) * row scale * column scale + bias. */
OQ_INLINE vf product_at(const oq_panel_job *job, const columns *at, const void *c, int64_t row, int64_t r,
                        int64_t v)
{
    const int64_t i = r * job->engine->nr + v * VF;
    vf x = job->engine->integers
               ? v_from_ints((const int32_t *)c + i, at->correction ? at->correction + v * VF : NULL)
               : v_load((const float *)c + i);
    if (job->args->spec->scheme.act) x = v_mul(x, v_set(job->row_scale[row + r]));
    if (job->col_scale) x = v_mul(x, at->scale[v]);
    return v_add(x, at->bias[v]);
}

OQ_INLINE vf stored(vf x, bool bf16)
{
    return bf16 ? v_round_bf16(x) : x;
}

/* A line of row i, on its way while the rows before it are stored: rows are too far apart for the hardware to see them
 * coming. */
OQ_INLINE void fetch(const oq_tensor *t, int64_t i, int64_t col)
{
    __builtin_prefetch((const char *)oq_elem_row(t, i) + (size_t)col * t->dtype->bytes, 1);
}

/* A product where the operation alone would store it: by the instruction, which takes subnormal numbers as zero, or by
 * hand; everything that comes after is rounded as its own operation rounds it. */
#ifdef STORE_PAIRS
OQ_INLINE vf stored_product(vf x, bool bf16)
{
    return bf16 ? v_from_bf16((__m256i)_mm512_cvtneps_pbh(x)) : x;
}
OQ_INLINE void put_product(void *row, bool bf16, int64_t at, int64_t n, vf x)
{
    if (bf16)
        _mm256_mask_storeu_epi16((uint16_t *)row + at, n >= VF ? 0xffff : v_mask(n), (__m256i)_mm512_cvtneps_pbh(x));
    else
        v_put(row, false, at, n, x);
}

/* Sums as they are, of whole panels, to BF16. */
static bool is_plain(const oq_panel_job *job)
{
    return !job->engine->integers && !job->args->spec->scheme.act && !job->args->post && VECTORS == 2 &&
           job->args->spec->n % OQ_PANEL_MAX_NR == 0 && oq_elem_is_bf16(&job->args->y);
}

static void store_plain(const oq_panel_job *job, const float *c, int64_t panel, int64_t row, int64_t count)
{
    columns at;
    columns_of(job, panel, &at);
    const vf scale[2] = {at.scale[0], at.scale[1]}, bias[2] = {at.bias[0], at.bias[1]};
    const int64_t step = job->args->y.ld;
    uint16_t *to = (uint16_t *)oq_elem_row(&job->args->y, job->first + row) + at.first;
    for (int64_t r = 0; r < count; r++, c += OQ_PANEL_MAX_NR, to += step) {
        const vf low = v_add(v_mul(v_load(c), scale[0]), bias[0]);
        const vf high = v_add(v_mul(v_load(c + VF), scale[1]), bias[1]);
        _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
    }
}
#else
OQ_INLINE vf stored_product(vf x, bool bf16)
{
    return stored(x, bf16);
}
OQ_INLINE void put_product(void *row, bool bf16, int64_t at, int64_t n, vf x)
{
    v_put(row, bf16, at, n, x);
}
#endif

/* One panel, or with a GLU the pair of panels whose accumulators are c and second. `post` and `unary` are constants. */
OQ_INLINE void store(const oq_panel_job *job, const void *c, const void *second, int64_t panel, int64_t row,
                     int64_t count, oq_post_kind post, oq_unary unary)
{
    const oq_post *const p = job->args->post;
    const oq_tensor *const y = &job->args->y;
    const bool yb = oq_elem_is_bf16(y), glu = post == OQ_POST_GLU, add = post == OQ_POST_ADD;
    const bool rb = add && oq_elem_is_bf16(&p->residual);
    const bool gated = add && p->gate.rows, gb = gated && oq_elem_is_bf16(&p->gate);
    columns at, at2;
    columns_of(job, panel, &at);
    if (glu) columns_of(job, panel + job->layout.n_panels / 2, &at2);
    for (int64_t r = 0; r < count; r++) {
        const int64_t i = job->first + row + r;
        if (r + FETCH_ROWS < count) fetch(y, i + FETCH_ROWS, at.first);
        if (add && r + FETCH_ROWS < count) fetch(&p->residual, i + FETCH_ROWS, at.first);
        void *const to = oq_elem_row(y, i);
        const void *const residual = add ? oq_elem_row(&p->residual, i) : NULL;
        const void *const gate = gated ? oq_elem_row(&p->gate, p->gate.rows == 1 ? 0 : i) : NULL;
        for (int64_t v = 0; v * VF < at.count; v++) {
            const int64_t j = at.first + v * VF, n = at.count - v * VF;
            vf x = product_at(job, &at, c, row, r, v);
            if (post == OQ_POST_NONE) {
                put_product(to, yb, j, n, x);
                continue;
            }
            x = stored_product(x, yb);
            if (post == OQ_POST_UNARY) x = v_unary_for(unary, x, yb);
            if (glu) {
                const vf other = stored_product(product_at(job, &at2, second, row, r, v), yb);
                x = v_mul(stored(v_unary_for(unary, x, yb), yb), other);
            }
            if (add) {
                if (gated) x = stored(v_mul(v_get(gate, gb, j, n), x), yb);
                x = v_add(v_get(residual, rb, j, n), x);
            }
            v_put(to, yb, j, n, x);
        }
    }
}

#define EACH_UNARY(kind)                                                                                     \
    switch (job->args->post->unary) {                                                                        \
    case OQ_SILU:                                                                                            \
        store(job, c, second, panel, row, count, kind, OQ_SILU);                                             \
        break;                                                                                               \
    case OQ_GELU_TANH:                                                                                       \
        store(job, c, second, panel, row, count, kind, OQ_GELU_TANH);                                        \
        break;                                                                                               \
    case OQ_GELU_ERF:                                                                                        \
        store(job, c, second, panel, row, count, kind, OQ_GELU_ERF);                                         \
        break;                                                                                               \
    case OQ_QUICK_GELU:                                                                                      \
        store(job, c, second, panel, row, count, kind, OQ_QUICK_GELU);                                       \
        break;                                                                                               \
    case OQ_TANH:                                                                                            \
        store(job, c, second, panel, row, count, kind, OQ_TANH);                                             \
        break;                                                                                               \
    case OQ_N_UNARY:                                                                                         \
        break;                                                                                               \
    }

static void store_panel(const oq_panel_job *job, const void *c, const void *second, int64_t panel, int64_t row,
                        int64_t count)
{
    switch (job->args->post ? job->args->post->kind : OQ_POST_NONE) {
    case OQ_POST_NONE:
        store(job, c, second, panel, row, count, OQ_POST_NONE, OQ_N_UNARY);
        break;
    case OQ_POST_UNARY:
        EACH_UNARY(OQ_POST_UNARY)
        break;
    case OQ_POST_GLU:
        EACH_UNARY(OQ_POST_GLU)
        break;
    case OQ_POST_ADD:
        store(job, c, second, panel, row, count, OQ_POST_ADD, OQ_N_UNARY);
        break;
    }
}
