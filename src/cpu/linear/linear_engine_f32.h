/* linear_engine_f32.h -- the engine of f32 products for the formats that have panels of their own (f32, bf16, fp8, int8).
 * Included behind MR, NR, STEP, `micro` and linear_few_panel_simd.h; ENGINE_STORE is the instruction set's store,
 * ENGINE_AHEAD, if there is one, what fetches W ahead. */
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

#ifndef ENGINE_AHEAD
#define ENGINE_AHEAD NULL
#endif
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
                                       .ahead = ENGINE_AHEAD,
                                       .store = ENGINE_STORE};
