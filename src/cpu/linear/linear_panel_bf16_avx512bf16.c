/* linear_panel_bf16_avx512bf16.c -- linear_panel_bf16.h by vdpbf16ps, and a way of its own for few rows of x. */
#include "cpu/linear/linear_panel_bf16.h"

typedef enum few_kind { FEW_BF16, FEW_E4M3, FEW_I8 } few_kind;
typedef code_bytes few_codes;

#include "cpu/linear/linear_few_512.h"

OQ_INLINE few_codes few_codes_of(few_kind kind)
{
    return code_bytes_of(kind == FEW_I8);
}

OQ_INLINE vf few_dot(vf sum, __m512i x, __m512i w)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)x, (__m512bh)w);
}

OQ_INLINE const char *few_load(__m512i w[2], const char *at, const few_codes *codes, few_kind kind)
{
    if (kind == FEW_BF16) return few_load_plain(w, at);
    _mm_prefetch(at + FEW_AHEAD, _MM_HINT_T0);
    bf16_of_codes(w, _mm512_loadu_si512(at), codes, kind == FEW_I8);
    return at + 64;
}

FEW_TABLE(few_bf16, FEW_BF16)
FEW_TABLE(few_e4m3, FEW_E4M3)
FEW_TABLE(few_i8, FEW_I8)

/* Rows [from, from + rows) of x to c, where sums are scaled block by block. */
OQ_INLINE void blocks_batch(const oq_panel_job *job, float *c, int64_t panel, int64_t from, const int rows)
{
    enum { DEPTH = OQ_PANEL_BLOCK_K / STEP };
    const char *at = piece_of(job, panel, 0);
    const char *const x = job->a + (size_t)from * job->lda;
    const size_t lda = job->lda;
    const few_codes codes = few_codes_of(FEW_E4M3);
    const float *const scale = oq_panel_block_scales(job, panel);
    for (int64_t first = 0; first < job->layout.depth; first += DEPTH) {
        const int64_t end = oq_min_i64(first + DEPTH, job->layout.depth);
        vf acc[FEW_ROWS][2];
        OQ_UNROLL
        for (int m = 0; m < rows; m++) acc[m][0] = acc[m][1] = v_zero();
        for (int64_t d = first; d < end; d++) {
            __m512i w[2];
            at = few_load(w, at, &codes, FEW_E4M3);
            OQ_UNROLL
            for (int m = 0; m < rows; m++) {
                const __m512i xm =
                    _mm512_set1_epi32(((const int32_t *)(const void *)(x + (size_t)m * lda))[d]);
                acc[m][0] = few_dot(acc[m][0], xm, w[0]);
                acc[m][1] = few_dot(acc[m][1], xm, w[1]);
            }
        }
        OQ_UNROLL
        for (int m = 0; m < rows; m++) {
            const int64_t block = first / DEPTH;
            const vf by = v_set(scale[block] * oq_panel_group_scale(job, from + m, block));
            float *const to = c + (from + m) * NR;
            v_store(to, v_fma(acc[m][0], by, v_load(to)));
            v_store(to + VF, v_fma(acc[m][1], by, v_load(to + VF)));
        }
    }
}

#define BLOCKS_BATCH(rows)                                                                                   \
    static void few_blocks_##rows(const oq_panel_job *job, float *c, int64_t panel, int64_t from)            \
    {                                                                                                        \
        blocks_batch(job, c, panel, from, rows);                                                             \
    }
BLOCKS_BATCH(1)
BLOCKS_BATCH(2)
BLOCKS_BATCH(3)
BLOCKS_BATCH(4)
BLOCKS_BATCH(5)
BLOCKS_BATCH(6)
BLOCKS_BATCH(7)
BLOCKS_BATCH(8)
static const few_fn few_blocks[] = {NULL,         few_blocks_1, few_blocks_2, few_blocks_3, few_blocks_4,
                                    few_blocks_5, few_blocks_6, few_blocks_7, few_blocks_8};

static void few(const oq_panel_job *job, float *c, int64_t panel)
{
    few_run(job->scaled                ? few_blocks
            : job->layout.element == 2 ? few_bf16
            : is_i8(job)               ? few_i8
                                       : few_e4m3,
            job, c, panel);
}

MICRO_TABLE(micro_bf16, "vdpbf16ps")
MICRO_SCALED_TABLE(scaled_bf16, "vdpbf16ps")

static const oq_panel_engine engine =
    PAIRS_ENGINE(12, micro_bf16, .scaled = scaled_bf16, .few = few, .few_rows = few_rows);

PAIRS_ENGINE_DEFINE(bf16_avx512bf16, &engine, &engine_f32)
