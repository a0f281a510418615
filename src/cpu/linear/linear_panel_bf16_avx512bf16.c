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

static void few(const oq_panel_job *job, float *c, int64_t panel)
{
    few_run(job->layout.element == 2 ? few_bf16 : is_i8(job) ? few_i8 : few_e4m3, job, c, panel);
}

MICRO_TABLE(micro_bf16, "vdpbf16ps")

static const oq_panel_engine engine = PAIRS_ENGINE(12, micro_bf16, .few = few, .few_rows = few_rows);

PAIRS_ENGINE_DEFINE(bf16_avx512bf16, &engine)
