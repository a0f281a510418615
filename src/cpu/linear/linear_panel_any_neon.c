/* linear_panel_any_neon.c -- f32 products in 6 x 16 accumulators for every format: panels are built from the
 * format's own decode_span. */
#include "cpu/linear/linear_micro_neon.h"
#include "cpu/linear/linear_panel_any.h"

enum { MR = MICRO_ROWS, NR = MICRO_COLUMNS, STEP = 1 };

MICRO_TABLE_LANES(micro, DWORDS, OP_F32)

static void prologue(const oq_panel_job *job, int64_t row)
{
    any_prologue(job, row);
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return any_decode(job, buffer, panel, first, count, NR);
}

static int64_t few_rows(const oq_linear_spec *spec)
{
    return few_rows_of(spec);
}

static void few(const oq_panel_job *job, float *c, int64_t panel)
{
    any_few(job, c, panel, NR);
}

static const oq_panel_engine engine = {.mr = MR,
                                       .nr = NR,
                                       .step = STEP,
                                       .pack_step = 0,
                                       .integers = false,
                                       .plain = &oq_dtype_f32,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .few_rows = few_rows,
                                       .few = few,
                                       .store = oq_panel_store_neon};

OQ_PANEL_ENGINE_DEFINE(any_neon, &engine)
