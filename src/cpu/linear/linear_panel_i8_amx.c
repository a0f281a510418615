/* linear_panel_i8_amx.c -- int8 products over matrix tiles (tdpbusd), exact: the rows and panels of the VNNI engine,
 * activations as u8 = code + 128, corrected by the column sums of the weights. */
#include "cpu/linear/linear_micro_amx.h"

#define OQ_PANEL_WIDE 1
#include "cpu/linear/linear_panel_rows.h"

AMX_MICRO_TABLE(micro, oq_amx_dot_u8i8)

static void prologue(const oq_panel_job *job, int64_t row)
{
    int_prologue(job, row, false);
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return i8_decode(job, buffer, panel, first, count);
}

static const oq_panel_engine engine = {.mr = AMX_MR,
                                       .nr = 32,
                                       .step = 4,
                                       .pack_step = 4,
                                       .integers = true,
                                       .offset = 128,
                                       .plain = NULL,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .store = oq_panel_store_avx512,
                                       AMX_ENGINE};

OQ_PANEL_ENGINE_DEFINE(i8_amx, &engine)
