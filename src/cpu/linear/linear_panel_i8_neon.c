/* linear_panel_i8_neon.c -- int8 products by smlal on codes widened to 16 bits: exact on every AArch64. */
#include "cpu/linear/linear_micro_neon.h"
#include "cpu/linear/linear_panel_rows.h"

enum { MR = MICRO_ROWS, NR = MICRO_COLUMNS, STEP = 2 };

MICRO_TABLE_LANES(micro, WORD_PAIRS, OP_I16)

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
                                       .pack_step = 1,
                                       .integers = true,
                                       .plain = NULL,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .store = oq_panel_store_neon};

OQ_PANEL_ENGINE_DEFINE(i8_neon, &engine)
