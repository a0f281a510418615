/* linear_panel_any_avx512.c -- f32 products in 12 x 32 accumulators for every format: panels are built from the
 * format's own decode_span. */
#include "cpu/linear/linear_micro_avx512.h"
#include "cpu/linear/linear_panel_any.h"

enum { MR = 12, NR = 32, STEP = 1 };

MICRO_TABLE(micro, "vfmadd231ps")

static void prologue(const oq_panel_job *job, int64_t row)
{
    any_prologue(job, row);
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return any_decode(job, buffer, panel, first, count, NR);
}

static void epilogue(const oq_panel_job *job, const void *c, int64_t panel, int64_t row, int64_t count)
{
    epilogue_rows(job, c, panel, row, count, NR, false);
}

static const oq_panel_engine engine = {MR, NR, STEP, 0, micro, prologue, decode, epilogue};

OQ_PANEL_ENGINE_DEFINE(any_avx512, &engine)
