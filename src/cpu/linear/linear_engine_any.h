/* linear_engine_any.h -- the engine of f32 products for every format: panels rest as the format has them and are built from
 * its own decode_span. Included behind MR, NR, STEP, `micro` and linear_panel_any.h; ENGINE_STORE is the instruction set's
 * store. */
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
                                       .store = ENGINE_STORE};
