/* linear_panel_i8_avx2.c -- int8 products by vpmaddwd on codes widened to 16 bits: exact, where vpmaddubsw
 * would saturate. */
#include "cpu/linear/linear_micro_avx2.h"

#define OQ_PANEL_WIDE 0
#include "cpu/linear/linear_panel_rows.h"

enum { MR = 6, NR = 16, STEP = 2 };

MICRO_TABLE(micro, OP_I16)

static void prologue(const oq_panel_job *job, int64_t row)
{
    int_prologue(job, row, true);
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return i16_decode(job, buffer, panel, first, count);
}

static const oq_panel_engine engine = {.mr = MR,
                                       .nr = NR,
                                       .step = STEP,
                                       .pack_step = STEP,
                                       .integers = true,
                                       .plain = NULL,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .store = oq_panel_store_avx2};

OQ_PANEL_ENGINE_DEFINE(i8_avx2, &engine)
