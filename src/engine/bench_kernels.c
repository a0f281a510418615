/* bench_kernels.c -- every kernel of the CPU's lists that this machine can run, at a few shapes of real
 * networks. */
#include "engine/bench.h"

#include "cpu/cpu.h"

#include <inttypes.h>
#include <stdio.h>

/* Values that need every mantissa bit; the same on each machine. */
static void fill(float *x, size_t n)
{
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)(state >> 8) / 8388608.0f - 1.0f;
    }
}

static bool runs_here(const oq_bench *b, const oq_device *device, const char *name, uint64_t need)
{
    return (need & ~device->features) == 0 && (!b->filter || oq_glob_match(b->filter, name));
}

/* The reference defines the truth and is slow: only small products are worth timing with it. */
static bool worth_timing(uint64_t need, double flops)
{
    return need != 0 || flops < 1e8;
}

static oq_status make_aligned(oq_arena *arena, size_t bytes, void **out)
{
    OQ_TRY(oq_arena_new(arena, bytes + 64, 1, "bench", out));
    *out = (void *)(((uintptr_t)*out + 63) & ~(uintptr_t)63);
    return OQ_OK;
}

/* A tensor of the element type `dtype`, filled; owned by the arena. */
static oq_status make_tensor(oq_arena *arena, const oq_dtype *dtype, int64_t rows, int64_t cols,
                             oq_tensor *out)
{
    float *values = NULL;
    void *data = NULL;
    const size_t n = (size_t)(rows * cols);
    OQ_TRY(oq_arena_new(arena, n, sizeof *values, "bench", &values));
    OQ_TRY(make_aligned(arena, n * dtype->bytes, &data));
    fill(values, n);
    dtype->from_f32(data, values, n);
    *out = oq_tensor_make(data, dtype, rows, cols);
    return OQ_OK;
}

/* ---- linear -------------------------------------------------------------------------------------------- */

typedef struct linear_case {
    oq_device *device;
    const oq_linear_kernel *kernel;
    oq_linear_args args;
} linear_case;

static oq_status run_linear(void *user)
{
    const linear_case *c = user;
    c->kernel->run(c->device, &c->args);
    return OQ_OK;
}

/* W[n,k] in the scheme's weight format, all planes in the arena. */
static oq_status encode_weight(oq_arena *arena, const oq_linear_spec *spec, oq_planes *out)
{
    const oq_format *f = spec->scheme.weight;
    oq_planes_mut planes = {{NULL}};
    float *values = NULL;
    OQ_TRY(oq_arena_new(arena, (size_t)(spec->n * spec->k), sizeof *values, "bench", &values));
    fill(values, (size_t)(spec->n * spec->k));
    for (int p = 0; p < OQ_N_PLANES; p++) {
        if (!(f->planes & 1u << p)) continue;
        OQ_TRY(oq_arena_new(arena, f->plane_bytes(f, (oq_plane)p, spec->n, spec->k), 1, "bench",
                            &planes.plane[p]));
    }
    f->encode(f, &planes, values, spec->n, spec->k);
    for (int p = 0; p < OQ_N_PLANES; p++) out->plane[p] = planes.plane[p];
    return OQ_OK;
}

static oq_status bench_linear(oq_bench *b, oq_device *device, const oq_linear_kernel *kernel,
                              const oq_linear_spec *spec, int64_t m, const oq_dtype *activation)
{
    char shape[64], dtype[80];
    oq_arena arena;
    oq_planes planes = {{NULL}};
    void *packed = NULL, *scratch = NULL;
    linear_case c = {.device = device, .kernel = kernel};
    oq_arena_init(&arena, b->env);
    oq_status st = encode_weight(&arena, spec, &planes);
    if (st == OQ_OK) st = make_aligned(&arena, kernel->packed_bytes(spec), &packed);
    if (st == OQ_OK) st = make_aligned(&arena, kernel->scratch_bytes(spec, m), &scratch);
    if (st == OQ_OK) st = make_tensor(&arena, activation, m, spec->k, &c.args.x);
    if (st == OQ_OK) st = make_tensor(&arena, activation, m, spec->n, &c.args.y);
    if (st == OQ_OK) {
        kernel->pack(packed, &planes, spec);
        c.args.spec = spec;
        c.args.packed = packed;
        c.args.scratch = scratch;
        snprintf(shape, sizeof shape, "m%" PRId64 " n%" PRId64 " k%" PRId64, m, spec->n, spec->k);
        snprintf(dtype, sizeof dtype, "%s", spec->scheme.weight->name);
        const oq_bench_row row = {"linear", shape, dtype, kernel->name,
                                  2.0 * (double)m * (double)spec->n * (double)spec->k};
        st = oq_bench_measure(b, &row, run_linear, &c);
    }
    oq_arena_deinit(&arena);
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
    for (size_t s = 0; s < OQ_COUNT(shapes); s++)
        for (size_t f = 0; f < OQ_COUNT(schemes); f++)
            for (size_t i = 0; oq_cpu_linear_list[i]; i++) {
                const oq_linear_kernel *kernel = oq_cpu_linear_list[i];
                const oq_linear_spec spec = {schemes[f].scheme, shapes[s].n, shapes[s].k};
                const double flops = 2.0 * (double)shapes[s].m * (double)spec.n * (double)spec.k;
                if (!runs_here(b, device, kernel->name, kernel->need) || !kernel->accepts(&spec) ||
                    !worth_timing(kernel->need, flops))
                    continue;
                OQ_TRY(bench_linear(b, device, kernel, &spec, shapes[s].m, schemes[f].activation));
            }
    return OQ_OK;
}

/* ---- attention ----------------------------------------------------------------------------------------- */

typedef struct attention_case {
    oq_device *device;
    const oq_attention_kernel *kernel;
    oq_attention_args args;
} attention_case;

static oq_status run_attention(void *user)
{
    const attention_case *c = user;
    c->kernel->run(c->device, &c->args);
    return OQ_OK;
}

static oq_status bench_attention(oq_bench *b, oq_device *device, const oq_attention_kernel *kernel,
                                 const oq_attention_spec *spec, int64_t tokens)
{
    char shape[64];
    oq_arena arena;
    void *scratch = NULL;
    const int64_t cols = spec->n_heads * spec->head_dim, kv_cols = spec->n_kv_heads * spec->head_dim;
    attention_case c = {.device = device, .kernel = kernel, .args = {.spec = spec, .scale = 0.125f}};
    oq_arena_init(&arena, b->env);
    oq_status st = make_aligned(&arena, kernel->scratch_bytes(spec, tokens, tokens), &scratch);
    if (st == OQ_OK) st = make_tensor(&arena, &oq_dtype_bf16, tokens, cols, &c.args.q);
    if (st == OQ_OK) st = make_tensor(&arena, &oq_dtype_bf16, tokens, kv_cols, &c.args.k);
    if (st == OQ_OK) st = make_tensor(&arena, &oq_dtype_bf16, tokens, kv_cols, &c.args.v);
    if (st == OQ_OK) st = make_tensor(&arena, &oq_dtype_bf16, tokens, cols, &c.args.o);
    if (st == OQ_OK) {
        c.args.scratch = scratch;
        snprintf(shape, sizeof shape, "h%" PRId64 " s%" PRId64 " d%" PRId64, spec->n_heads, tokens,
                 spec->head_dim);
        const oq_bench_row row = {"attention", shape, "bf16", kernel->name,
                                  4.0 * (double)tokens * (double)tokens * (double)cols};
        st = oq_bench_measure(b, &row, run_attention, &c);
    }
    oq_arena_deinit(&arena);
    return st;
}

static oq_status bench_attentions(oq_bench *b, oq_device *device)
{
    static const struct {
        oq_attention_spec spec;
        int64_t tokens;
    } cases[] = {{{.head_dim = 64, .n_heads = 3, .n_kv_heads = 3}, 288},
                 {{.head_dim = 128, .n_heads = 24, .n_kv_heads = 24}, 1024}};
    for (size_t s = 0; s < OQ_COUNT(cases); s++)
        for (size_t i = 0; oq_cpu_attention_list[i]; i++) {
            const oq_attention_kernel *kernel = oq_cpu_attention_list[i];
            const double n = (double)cases[s].tokens;
            if (!runs_here(b, device, kernel->name, kernel->need) || !kernel->accepts(&cases[s].spec) ||
                !worth_timing(kernel->need,
                              4 * n * n * (double)(cases[s].spec.n_heads * cases[s].spec.head_dim)))
                continue;
            OQ_TRY(bench_attention(b, device, kernel, &cases[s].spec, cases[s].tokens));
        }
    return OQ_OK;
}

/* ---- convolution --------------------------------------------------------------------------------------- */

typedef struct conv_case {
    oq_device *device;
    const oq_conv2d_kernel *kernel;
    oq_conv2d_args args;
} conv_case;

static oq_status run_conv(void *user)
{
    const conv_case *c = user;
    c->kernel->run(c->device, &c->args);
    return OQ_OK;
}

static oq_status bench_conv(oq_bench *b, oq_device *device, const oq_conv2d_kernel *kernel,
                            const oq_conv2d_spec *spec, int64_t side, double flops)
{
    char shape[64];
    oq_arena arena;
    void *scratch = NULL, *packed = NULL;
    float *weight = NULL;
    const size_t n = (size_t)(spec->c_out * spec->c_in) * (size_t)(spec->kh * spec->kw);
    conv_case c = {
        .device = device, .kernel = kernel, .args = {.spec = spec, .batch = 1, .h = side, .w = side}};
    oq_arena_init(&arena, b->env);
    oq_status st = oq_arena_new(&arena, n, sizeof *weight, "bench", &weight);
    if (st == OQ_OK) st = make_aligned(&arena, kernel->packed_bytes(spec), &packed);
    if (st == OQ_OK) st = make_aligned(&arena, kernel->scratch_bytes(spec, 1, side, side), &scratch);
    if (st == OQ_OK) st = make_tensor(&arena, &oq_dtype_bf16, side * side, spec->c_in, &c.args.x);
    if (st == OQ_OK) st = make_tensor(&arena, &oq_dtype_bf16, side * side, spec->c_out, &c.args.y);
    if (st == OQ_OK) {
        fill(weight, n);
        kernel->pack(packed, weight, spec);
        c.args.packed = packed;
        c.args.scratch = scratch;
        snprintf(shape, sizeof shape, "%" PRId64 "->%" PRId64 " %dx%d %" PRId64 "px", spec->c_in, spec->c_out,
                 spec->kh, spec->kw, side);
        const oq_bench_row row = {"conv2d", shape, "bf16", kernel->name, flops};
        st = oq_bench_measure(b, &row, run_conv, &c);
    }
    oq_arena_deinit(&arena);
    return st;
}

static oq_status bench_convs(oq_bench *b, oq_device *device)
{
    static const struct {
        int64_t channels, side;
    } cases[] = {{32, 64}, {128, 128}};
    for (size_t s = 0; s < OQ_COUNT(cases); s++)
        for (size_t i = 0; oq_cpu_conv2d_list[i]; i++) {
            const oq_conv2d_kernel *kernel = oq_cpu_conv2d_list[i];
            const oq_conv2d_spec spec = oq_conv2d_same(cases[s].channels, cases[s].channels, 3), *c = &spec;
            const double pixels = (double)cases[s].side * (double)cases[s].side;
            const double flops = 2 * pixels * (double)(c->c_in * c->c_out) * c->kh * c->kw;
            if (!runs_here(b, device, kernel->name, kernel->need) || !kernel->accepts(c) ||
                !worth_timing(kernel->need, flops))
                continue;
            OQ_TRY(bench_conv(b, device, kernel, c, cases[s].side, flops));
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
