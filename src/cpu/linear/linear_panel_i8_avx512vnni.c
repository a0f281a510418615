/* linear_panel_i8_avx512vnni.c -- int8 products by vpdpbusd, exact: activations as u8 = code + 128, corrected
 * by the column sums of the weights. */
#include "cpu/linear/linear_micro_avx512.h"

#define OQ_PANEL_WIDE 1
#include "cpu/linear/linear_panel_rows.h"

enum { MR = 12, NR = 32, STEP = 4 };

typedef enum few_kind { FEW_I8 } few_kind;
typedef struct few_codes { /* nothing is decoded */
    char none;
} few_codes;

#include "cpu/linear/linear_few_512.h"

OQ_INLINE few_codes few_codes_of(few_kind kind)
{
    (void)kind;
    return (few_codes){0};
}

OQ_INLINE vf few_dot(vf sum, __m512i x, __m512i w)
{
    return _mm512_castsi512_ps(_mm512_dpbusd_epi32(_mm512_castps_si512(sum), x, w));
}

OQ_INLINE const char *few_load(__m512i w[2], const char *at, const few_codes *codes, few_kind kind)
{
    (void)codes, (void)kind;
    return few_load_plain(w, at);
}

FEW_TABLE(few_i8, FEW_I8)

static void few(const oq_panel_job *job, float *c, int64_t panel)
{
    few_run(few_i8, job, c, panel);
}

MICRO_TABLE(micro, "vpdpbusd")

static void prologue(const oq_panel_job *job, int64_t row)
{
    int_prologue(job, row, false);
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return i8_decode(job, buffer, panel, first, count);
}

static const oq_panel_engine engine = {.mr = MR,
                                       .nr = NR,
                                       .step = STEP,
                                       .pack_step = STEP,
                                       .integers = true,
                                       .offset = 128,
                                       .plain = NULL,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .few = few,
                                       .few_rows = few_rows,
                                       .store = oq_panel_store_avx512};

OQ_PANEL_ENGINE_DEFINE(i8_avx512vnni, &engine)
