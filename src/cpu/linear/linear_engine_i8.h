/* linear_engine_i8.h -- the engine of int8 products. Included behind MR, NR, STEP, `micro` and linear_panel_rows.h, with
 * ENGINE_WIDE (1: codes are widened to 16 bits), ENGINE_PACK_STEP and ENGINE_OFFSET (pack_step and offset
 * of oq_panel_engine) and ENGINE_STORE, the instruction set's store. */
static void prologue(const oq_panel_job *job, int64_t row)
{
    int_prologue(job, row, ENGINE_WIDE);
}

static const void *decode(const oq_panel_job *job, void *buffer, int64_t panel, int64_t first, int64_t count)
{
    return ENGINE_WIDE ? i16_decode(job, buffer, panel, first, count) : i8_decode(job, buffer, panel, first, count);
}

static const oq_panel_engine engine = {.mr = MR,
                                       .nr = NR,
                                       .step = STEP,
                                       .pack_step = ENGINE_PACK_STEP,
                                       .integers = true,
                                       .offset = ENGINE_OFFSET,
                                       .plain = NULL,
                                       .micro = micro,
                                       .prologue = prologue,
                                       .decode = decode,
                                       .store = ENGINE_STORE};
