/* linear_few_512.h -- a few rows of x times panels of dwords (pairs of bf16, or four codes), all of k in registers: codes
 * are decoded there if they must be, so that nothing is written between memory and the product. The file that includes
 * this has the types few_kind (of weights) and few_codes (what decoding needs), and three functions: what few_codes is for
 * a kind; the product of dwords; 32 columns of one dword of k from `at` on, and where the next ones are. */
#ifndef OQ_CPU_LINEAR_LINEAR_FEW_512_H
#define OQ_CPU_LINEAR_LINEAR_FEW_512_H

#include "base/size.h"
#include "cpu/vec/vec.h"

enum {
    FEW_ROWS = 8,    /* rows of x at once: twice as many accumulators */
    FEW_AHEAD = 4096 /* bytes that are fetched before they are needed */
};

/* 32 columns of one dword of k where they need no decoding. */
OQ_INLINE const char *few_load_plain(__m512i w[2], const char *at)
{
    _mm_prefetch(at + FEW_AHEAD, _MM_HINT_T0);
    _mm_prefetch(at + FEW_AHEAD + 64, _MM_HINT_T0);
    w[0] = _mm512_loadu_si512(at);
    w[1] = _mm512_loadu_si512(at + 64);
    return at + 128;
}

OQ_INLINE vf few_dot(vf sum, __m512i x, __m512i w);
OQ_INLINE few_codes few_codes_of(few_kind kind);
OQ_INLINE const char *few_load(__m512i w[2], const char *at, const few_codes *codes, few_kind kind);

/* Rows [from, from + rows) of x to c. */
OQ_INLINE void few_batch(const oq_panel_job *job, float *c, int64_t panel, int64_t from, few_kind kind, const int rows)
{
    const char *at = job->panels + (size_t)panel * job->layout.panel_bytes;
    const char *const x = job->a + (size_t)from * job->lda;
    const size_t lda = job->lda;
    const few_codes codes = few_codes_of(kind);
    vf acc[FEW_ROWS][2];
    OQ_UNROLL
    for (int m = 0; m < rows; m++) acc[m][0] = acc[m][1] = v_zero();
    for (int64_t d = 0; d < job->layout.depth; d++) {
        __m512i w[2];
        at = few_load(w, at, &codes, kind);
        OQ_UNROLL
        for (int m = 0; m < rows; m++) {
            const __m512i xm = _mm512_set1_epi32(((const int32_t *)(const void *)(x + (size_t)m * lda))[d]);
            acc[m][0] = few_dot(acc[m][0], xm, w[0]);
            acc[m][1] = few_dot(acc[m][1], xm, w[1]);
        }
    }
    OQ_UNROLL
    for (int m = 0; m < rows; m++) {
        v_store(c + (from + m) * job->engine->nr, acc[m][0]);
        v_store(c + (from + m) * job->engine->nr + VF, acc[m][1]);
    }
}

/* The functions name_1 ... name_8 for one kind, and their table `name`. */
#define FEW_BATCH(name, kind, rows)                                                                          \
    static void name##_##rows(const oq_panel_job *job, float *c, int64_t panel, int64_t from)                \
    {                                                                                                        \
        few_batch(job, c, panel, from, kind, rows);                                                          \
    }
#define FEW_TABLE(name, kind)                                                                                \
    FEW_BATCH(name, kind, 1)                                                                                 \
    FEW_BATCH(name, kind, 2)                                                                                 \
    FEW_BATCH(name, kind, 3)                                                                                 \
    FEW_BATCH(name, kind, 4)                                                                                 \
    FEW_BATCH(name, kind, 5)                                                                                 \
    FEW_BATCH(name, kind, 6)                                                                                 \
    FEW_BATCH(name, kind, 7)                                                                                 \
    FEW_BATCH(name, kind, 8)                                                                                 \
    static const few_fn name[] = {NULL,     name##_1, name##_2, name##_3, name##_4,                          \
                                  name##_5, name##_6, name##_7, name##_8};

typedef void (*few_fn)(const oq_panel_job *job, float *c, int64_t panel, int64_t from);

static void few_run(const few_fn *batches, const oq_panel_job *job, float *c, int64_t panel)
{
    const int64_t parts = oq_ceil_div(job->rows, FEW_ROWS), part = oq_ceil_div(job->rows, parts);
    for (int64_t from = 0; from < job->rows; from += part)
        batches[oq_min_i64(part, job->rows - from)](job, c, panel, from);
}

static int64_t few_rows(const oq_linear_spec *spec)
{
    (void)spec;
    return OQ_PANEL_FEW;
}

#endif
