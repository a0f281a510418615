/* linear_engine_fixed.h -- the engine of a few rows of x in fixed point, whatever the instruction set. Included behind NR and
 * linear_few_fixed.h; ENGINE_STORE is the instruction set's store. More rows, and processors whose byte products are not
 * fast beside their others, go through the engines of f32 and of bf16 pairs, which read the same planes. */
static void few(const oq_panel_job *job, float *c, int64_t panel)
{
    fixed_panel(job, c, panel, NR);
}

static int64_t few_rows(const oq_linear_spec *spec)
{
    (void)spec;
    return OQ_PANEL_FEW;
}

static const oq_panel_engine engine = {.mr = OQ_PANEL_FEW, /* rows are never cut into blocks */
                                       .nr = NR,
                                       .step = 1,
                                       .pack_step = 0,
                                       .integers = false,
                                       .prologue = fixed_prologue,
                                       .few = few,
                                       .few_rows = few_rows,
                                       .store = ENGINE_STORE};

/* `plain` and, where the device has `feature`, `pairs` are the engines for every format at this level. */
#define FIXED_ENGINE_DEFINE(name, plain, pairs, feature)                                                               \
    bool oq_panel_##name##_takes(const oq_linear_spec *spec)                                                           \
    {                                                                                                                  \
        return oq_panel_any(spec) && fixed_kind_of(spec) != FIXED_NONE;                                                \
    }                                                                                                                  \
    size_t oq_panel_##name##_packed_bytes(const oq_linear_spec *spec)                                                  \
    {                                                                                                                  \
        return oq_panel_packed_bytes(&engine, spec);                                                                   \
    }                                                                                                                  \
    void oq_panel_##name##_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec)                           \
    {                                                                                                                  \
        oq_panel_pack(&engine, dst, src, spec);                                                                        \
    }                                                                                                                  \
    size_t oq_panel_##name##_scratch_bytes(const oq_linear_spec *spec, int64_t m)                                      \
    {                                                                                                                  \
        return oq_panel_##plain##_scratch_bytes(spec, m); /* rows of f32 are the largest */                            \
    }                                                                                                                  \
    void oq_panel_##name##_run(oq_device *device, const oq_linear_args *args)                                          \
    {                                                                                                                  \
        if (args->x.rows <= OQ_PANEL_FEW && oq_panel_fixed_pays(device))                                                        \
            oq_panel_run(&engine, device, args);                                                                       \
        else if (device->features & (feature))                                                                         \
            oq_panel_##pairs##_run(device, args);                                                                      \
        else                                                                                                           \
            oq_panel_##plain##_run(device, args);                                                                      \
    }                                                                                                                  \
    unsigned oq_panel_##name##_fuses(const oq_linear_spec *spec)                                                       \
    {                                                                                                                  \
        return oq_panel_##plain##_fuses(spec);                                                                         \
    }
