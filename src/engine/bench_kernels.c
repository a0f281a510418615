/* bench_kernels.c -- every kernel of the CPU's lists that this machine can run, at a few shapes of real
 * networks. */
#include "engine/bench.h"

#include "base/pool.h"
#include "engine/bench_cases.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static bool runs_here(const oq_bench *b, const oq_device *device, const char *name, uint64_t need)
{
    return (need & ~device->features) == 0 && (!b->filter || oq_glob_match(b->filter, name));
}

/* The reference defines the truth and is slow: only small products are worth timing with it. */
static bool worth_timing(uint64_t need, double flops)
{
    return need != 0 || flops < 1e8;
}

/* Measures the case and frees it. */
static oq_status measure_case(oq_bench *b, oq_bench_case *c, const char *op, const char *shape,
                              const char *dtype)
{
    const oq_bench_row row = {op, shape, dtype, c->kernel, c->flops};
    oq_status st = OQ_OK;
    if (worth_timing(strcmp(c->kernel + strlen(c->kernel) - 4, "_ref") != 0, c->flops)) {
        oq_pool_hot_begin(b->env->pool);
        st = oq_bench_measure(b, &row, oq_bench_case_call, c);
        oq_pool_hot_end(b->env->pool);
    }
    oq_bench_case_free(c);
    return st;
}

static oq_status bench_linears(oq_bench *b, oq_device *device)
{
    static const struct {
        int64_t m, n, k;
    } shapes[] = {{1, 1536, 256}, {288, 192, 192}, {288, 1024, 192}, {1024, 3840, 3840}};
    static const struct {
        oq_scheme scheme;
        const oq_dtype *activation;
    } schemes[] = {
        {{.weight = &oq_format_f32, .act = NULL, .act_scale = OQ_ACT_NONE}, &oq_dtype_f32},
        {{.weight = &oq_format_bf16, .act = NULL, .act_scale = OQ_ACT_NONE}, &oq_dtype_bf16},
        {{.weight = &oq_format_fp8_e4m3_tensor, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
         &oq_dtype_bf16},
        {{.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
         &oq_dtype_bf16},
        {{.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
         &oq_dtype_bf16},
    };
    char shape[64];
    oq_bench_case c;
    for (size_t s = 0; s < OQ_COUNT(shapes); s++)
        for (size_t f = 0; f < OQ_COUNT(schemes); f++)
            for (size_t i = 0; oq_cpu_linear_list[i]; i++) {
                const oq_linear_kernel *kernel = oq_cpu_linear_list[i];
                const oq_linear_spec spec = {schemes[f].scheme, shapes[s].n, shapes[s].k};
                if (!runs_here(b, device, kernel->name, kernel->need) || !kernel->accepts(&spec)) continue;
                OQ_TRY(oq_bench_case_linear(&c, b->env, device, kernel, spec, shapes[s].m,
                                            schemes[f].activation));
                snprintf(shape, sizeof shape, "m%" PRId64 " n%" PRId64 " k%" PRId64, shapes[s].m, spec.n,
                         spec.k);
                OQ_TRY(measure_case(b, &c, "linear", shape, spec.scheme.weight->name));
            }
    return OQ_OK;
}

static oq_status bench_attentions(oq_bench *b, oq_device *device)
{
    static const struct {
        int64_t heads, tokens, width;
    } cases[] = {{3, 288, 64}, {24, 1024, 128}};
    char shape[64];
    oq_bench_case c;
    for (size_t s = 0; s < OQ_COUNT(cases); s++)
        for (size_t i = 0; oq_cpu_attention_list[i]; i++) {
            const oq_attention_kernel *kernel = oq_cpu_attention_list[i];
            const oq_attention_spec spec = {
                .head_dim = cases[s].width, .n_heads = cases[s].heads, .n_kv_heads = cases[s].heads};
            if (!runs_here(b, device, kernel->name, kernel->need) || !kernel->accepts(&spec)) continue;
            OQ_TRY(
                oq_bench_case_attention(&c, b->env, device, kernel, spec, cases[s].tokens, &oq_dtype_bf16));
            snprintf(shape, sizeof shape, "h%" PRId64 " s%" PRId64 " d%" PRId64, spec.n_heads,
                     cases[s].tokens, spec.head_dim);
            OQ_TRY(measure_case(b, &c, "attention", shape, "bf16"));
        }
    return OQ_OK;
}

static oq_status bench_convs(oq_bench *b, oq_device *device)
{
    static const struct {
        int64_t channels, side;
        int upsample;
    } cases[] = {{32, 64, 1}, {128, 128, 1}, {128, 64, 2}};
    char shape[64];
    oq_bench_case c;
    for (size_t s = 0; s < OQ_COUNT(cases); s++)
        for (size_t i = 0; oq_cpu_conv2d_list[i]; i++) {
            const oq_conv2d_kernel *kernel = oq_cpu_conv2d_list[i];
            oq_conv2d_spec spec = oq_conv2d_same(cases[s].channels, cases[s].channels, 3);
            spec.upsample = cases[s].upsample;
            spec.compute = spec.weight = &oq_dtype_bf16;
            if (!runs_here(b, device, kernel->name, kernel->need) || !kernel->accepts(&spec)) continue;
            OQ_TRY(oq_bench_case_conv(&c, b->env, device, kernel, spec, cases[s].side, 1, &oq_dtype_bf16));
            snprintf(shape, sizeof shape, "%" PRId64 "->%" PRId64 " %dx%d %" PRId64 "px%s", spec.c_in,
                     spec.c_out, spec.kh, spec.kw, cases[s].side, spec.upsample == 2 ? " x2" : "");
            OQ_TRY(measure_case(b, &c, "conv2d", shape, "bf16"));
        }
    return OQ_OK;
}

oq_status oq_bench_kernels(oq_bench *b)
{
    oq_device *device = NULL;
    OQ_TRY(oq_backend_cpu.open(b->env, 0, oq_options_text(b->options, "cpu", NULL), &device));
    oq_status st = bench_linears(b, device);
    if (st == OQ_OK) st = bench_attentions(b, device);
    if (st == OQ_OK) st = bench_convs(b, device);
    oq_backend_cpu.close(b->env, device);
    return st;
}

/* One head of a video of 81 frames at 832x480, bf16: what the operands' quantization or the choice of blocks takes is in
 * its time. GFLOP/s count the dense product. */
static oq_status bench_long_attentions(oq_bench *b, oq_device *device)
{
    enum { TOKENS = 32760 };
    static const struct {
        oq_attention_precision precision;
        double sparsity;
        const char *name;
    } modes[] = {{OQ_ATTENTION_PLAIN, 0, "bf16"},
                 {OQ_ATTENTION_FP8, 0, "fp8"},
                 {OQ_ATTENTION_MXFP8, 0, "mxfp8"},
                 {OQ_ATTENTION_MXFP4, 0, "mxfp4"},
                 {OQ_ATTENTION_PLAIN, 0.7, "bf16, 0.7 sparse"},
                 {OQ_ATTENTION_FP8, 0.7, "fp8, 0.7 sparse"}};
    oq_bench_case c;
    for (size_t i = 0; i < OQ_COUNT(modes); i++) {
        const oq_attention_spec spec = {.head_dim = 128,
                                        .n_heads = 1,
                                        .n_kv_heads = 1,
                                        .precision = modes[i].precision,
                                        .sparsity = modes[i].sparsity};
        const oq_attention_kernel *const kernel = oq_backend_cpu.find_attention(device, &spec);
        if (!runs_here(b, device, kernel->name, kernel->need)) continue;
        OQ_TRY(oq_bench_case_attention(&c, b->env, device, kernel, spec, TOKENS, &oq_dtype_bf16));
        OQ_TRY(measure_case(b, &c, "attention", "h1 s32760 d128", modes[i].name));
    }
    return OQ_OK;
}

oq_status oq_bench_long_attention(oq_bench *b)
{
    oq_device *device = NULL;
    OQ_TRY(oq_backend_cpu.open(b->env, 0, oq_options_text(b->options, "cpu", NULL), &device));
    const oq_status st = bench_long_attentions(b, device);
    oq_backend_cpu.close(b->env, device);
    return st;
}
