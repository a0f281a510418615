/* linear_panel_i8_avxvnni.c -- int8 products by the 256 bit vpdpbusd, exact: activations as u8 = code + 128,
 * corrected by the column sums of the weights. */
#include "cpu/linear/linear_micro_avx2.h"

#define OQ_PANEL_WIDE 0
#include "cpu/linear/linear_panel_rows.h"

enum { MR = 6, NR = 16, STEP = 4 };

MICRO_TABLE(micro, OP_VNNI)

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
                                       .store = oq_panel_store_avx2};

OQ_PANEL_ENGINE_DEFINE(i8_avxvnni, &engine)
