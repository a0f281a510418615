/* linear_any_pairs.h -- what engines of bf16 pairs share for weights that rest in their format's own planes: rows of x, and
 * panels whose columns are decoded along k and then turned. Included by them with OQ_SPAN_BF16. */
#ifndef OQ_CPU_LINEAR_LINEAR_ANY_PAIRS_H
#define OQ_CPU_LINEAR_LINEAR_ANY_PAIRS_H

#include "cpu/linear/linear_any_fetch.h"
#include "cpu/linear/linear_panel_any.h"

enum { PAIR_COLUMNS = 16, PAIR_ROW = OQ_PANEL_CHUNK * 2 };

/* Codes times a power of two: exact. */
static void prologue_mx(const oq_scheme *scheme, const oq_tensor *x, int64_t row, int64_t k, uint16_t *a)
{
    for (int64_t first = 0; first < k; first += ROW_CHUNK) {
        const int64_t n = k - first < ROW_CHUNK ? k - first : ROW_CHUNK;
        const oq_tensor piece = oq_tensor_cols(*x, first, n);
        float part[ROW_CHUNK];
        row_load(part, &piece, row, n);
        row_mx(scheme, part, n);
        for (int64_t i = 0; i < n; i++) a[first + i] = (uint16_t)(oq_f32_bits(part[i]) >> 16);
    }
}

static void pairs_prologue(const oq_panel_job *job, int64_t row)
{
    const oq_tensor *const x = &job->args->x;
    const int64_t k = job->args->spec->k, from = job->first + row;
    uint16_t *const a = (uint16_t *)(job->a + (size_t)row * job->lda);
    memset(a + k, 0, (size_t)(job->layout.depth * 2 - k) * sizeof *a);
    job->row_scale[row] = 1.0f;
    if (job->args->spec->scheme.act)
        prologue_mx(&job->args->spec->scheme, x, from, k, a);
    else
        memcpy(a, (const uint16_t *)x->data + from * x->ld, (size_t)k * sizeof *a);
}

/* `turn` puts sixteen columns of W, rows of src PAIR_ROW numbers apart, where the microkernel has them: sixteen dwords of k
 * from dst on. */
typedef void (*pairs_turn)(uint32_t *dst, const uint16_t *src);

/* Sixteen columns of W at a time: decoded along k, then turned. Columns and k that are not there are zero. */
static inline __attribute__((always_inline)) const void *pairs_decode(const oq_panel_job *job, void *buffer, int64_t panel,
                                                                     int64_t first, int64_t count, pairs_turn turn)
{
    const oq_linear_spec *const spec = job->args->spec;
    const int64_t nr = job->engine->nr;
    const int64_t left = spec->k - first * 2, there = left < count * 2 ? left : count * 2;
    const int64_t filled = (count + 15) / 16 * 16 * 2;
    const int64_t next = first * 2 + there, ahead = spec->k - next < there ? spec->k - next : there;
    const codes_of_row codes = codes_init(job);
    _Alignas(64) uint16_t rows[PAIR_COLUMNS * PAIR_ROW + 16];
    for (int64_t c = 0; c < nr; c += PAIR_COLUMNS) {
        for (int64_t j = 0; j < PAIR_COLUMNS; j++) {
            const int64_t row = panel * nr + c + j, have = row < spec->n && there > 0 ? there : 0;
            uint16_t *const at = rows + j * PAIR_ROW;
            if (have) decode_columns(spec, &job->planes, at, row, first * 2, have);
            if (have && ahead > 0) fetch_ahead(&codes, row, next, ahead);
            if (have < filled) memset(at + have, 0, (size_t)(filled - have) * sizeof *at);
        }
        for (int64_t i = 0; i < count; i += 16) turn((uint32_t *)buffer + i * nr + c, rows + i * 2);
    }
    return buffer;
}

#endif
