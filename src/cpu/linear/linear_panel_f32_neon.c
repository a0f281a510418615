/* linear_panel_f32_neon.c -- f32 products in 6 x 16 accumulators: f32, bf16, fp8 and int8 weights, plain or
 * fp8 activations. */
#include "cpu/linear/linear_micro_neon.h"

#include "cpu/linear/linear_few_panel_simd.h"

enum { MR = MICRO_ROWS, NR = MICRO_COLUMNS, STEP = 1 };

MICRO_TABLE_LANES(micro, DWORDS, OP_F32)

static void prologue(const oq_panel_job *job, int64_t row)
{
    f32_prologue(job, row);
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return f32_decode(job, buffer, panel, first, count);
}

static int64_t few_rows(const oq_linear_spec *spec)
{
    return panel_few_rows(spec);
}

static void few(const oq_panel_job *job, float *c, int64_t panel)
{
    panel_few(job, c, panel);
}

static const oq_panel_engine engine = {.mr = MR,
                                       .nr = NR,
                                       .step = STEP,
                                       .pack_step = STEP,
                                       .integers = false,
                                       .plain = &oq_dtype_f32,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .few_rows = few_rows,
                                       .few = few,
                                       .store = oq_panel_store_neon};

OQ_PANEL_ENGINE_DEFINE(f32_neon, &engine)
