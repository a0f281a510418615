/* bench_cases.c -- operands of measured operations: values that need every mantissa bit, the same on each machine. */
#include "engine/bench_cases.h"

#include "base/size.h"

#include <math.h>
#include <string.h>

static void fill(float *x, size_t n)
{
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(int32_t)(state >> 8) / 8388608.0f - 1.0f;
    }
}

/* Memory as a run has it: weights and scratch lie in large buffers of the device, each in pages of 2 MB where the system has
 * those. Pieces begin at different places of their pages, as neighbours in one buffer do. */
static oq_status make_buffer(oq_bench_case *c, size_t bytes, void **out)
{
    const size_t huge = (size_t)2 << 20, shift = (size_t)c->n_buffers * 4416;
    void *buffer = NULL;
    if (c->n_buffers == OQ_BENCH_BUFFERS)
        return oq_fail(c->arena.env, OQ_E_ARG, "bench: a case has more than %d buffers", OQ_BENCH_BUFFERS);
    OQ_TRY(
        oq_backend_cpu.buffer_new(c->arena.env, c->device, oq_align_up(bytes + shift, huge) + huge, &buffer));
    c->buffers[c->n_buffers++] = buffer;
    *out = (char *)oq_align_up((size_t)(uintptr_t)buffer, huge) + shift;
    memset(*out, 0, bytes);
    return OQ_OK;
}

static oq_status make_tensor(oq_bench_case *c, const oq_dtype *dtype, int64_t rows, int64_t cols,
                             oq_tensor *out)
{
    float *values = NULL;
    void *data = NULL;
    const size_t n = (size_t)(rows * cols);
    OQ_TRY(oq_arena_new(&c->arena, n, sizeof *values, "bench", &values));
    OQ_TRY(make_buffer(c, n * dtype->bytes, &data));
    fill(values, n);
    dtype->from_f32(data, values, n);
    *out = oq_tensor_make(data, dtype, rows, cols);
    return OQ_OK;
}

static void begin(oq_bench_case *c, oq_env *env, oq_device *device)
{
    memset(c, 0, sizeof *c);
    oq_arena_init(&c->arena, env);
    c->device = device;
}

void oq_bench_case_free(oq_bench_case *c)
{
    for (int i = 0; i < c->n_buffers; i++) oq_backend_cpu.buffer_free(c->arena.env, c->device, c->buffers[i]);
    oq_arena_deinit(&c->arena);
}

oq_status oq_bench_case_call(void *user)
{
    oq_bench_case *c = user;
    c->run(c);
    return OQ_OK;
}

static oq_status finish(oq_bench_case *c, oq_status st)
{
    if (st != OQ_OK) oq_bench_case_free(c);
    return st;
}

/* ---- linear -------------------------------------------------------------------------------------------- */

static void run_linear(oq_bench_case *c)
{
    c->u.linear.kernel->run(c->device, &c->u.linear.args);
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

static oq_status fill_linear(oq_bench_case *c, int64_t m, const oq_dtype *activation)
{
    oq_linear_args *const a = &c->u.linear.args;
    const oq_linear_spec *const spec = a->spec = &c->u.linear.spec;
    oq_planes planes = {{NULL}};
    void *packed = NULL;
    OQ_TRY(encode_weight(&c->arena, spec, &planes));
    OQ_TRY(make_buffer(c, c->u.linear.kernel->packed_bytes(spec), &packed));
    OQ_TRY(make_buffer(c, c->u.linear.kernel->scratch_bytes(spec, m), &a->scratch));
    OQ_TRY(make_tensor(c, activation, m, spec->k, &a->x));
    OQ_TRY(make_tensor(c, activation, m, spec->n, &a->y));
    c->u.linear.kernel->pack(packed, &planes, spec);
    a->packed = packed;
    return OQ_OK;
}

oq_status oq_bench_case_linear(oq_bench_case *c, oq_env *env, oq_device *device,
                               const oq_linear_kernel *kernel, oq_linear_spec spec, int64_t m,
                               const oq_dtype *activation)
{
    begin(c, env, device);
    c->u.linear.kernel = kernel ? kernel : oq_backend_cpu.find_linear(device, &spec);
    c->u.linear.spec = spec;
    c->kernel = c->u.linear.kernel->name;
    c->flops = 2.0 * (double)m * (double)spec.n * (double)spec.k;
    c->run = run_linear;
    return finish(c, fill_linear(c, m, activation));
}

/* ---- attention ----------------------------------------------------------------------------------------- */

static void run_attention(oq_bench_case *c)
{
    c->u.attention.kernel->run(c->device, &c->u.attention.args);
}

static oq_status fill_attention(oq_bench_case *c, int64_t tokens, const oq_dtype *type)
{
    oq_attention_args *const a = &c->u.attention.args;
    const oq_attention_spec *const spec = a->spec = &c->u.attention.spec;
    const int64_t cols = spec->n_heads * spec->head_dim, kv_cols = spec->n_kv_heads * spec->head_dim;
    a->scale = 1.0f / sqrtf((float)spec->head_dim);
    OQ_TRY(make_buffer(c, c->u.attention.kernel->scratch_bytes(spec, tokens, tokens), &a->scratch));
    OQ_TRY(make_tensor(c, type, tokens, cols, &a->q));
    OQ_TRY(make_tensor(c, type, tokens, kv_cols, &a->k));
    OQ_TRY(make_tensor(c, type, tokens, kv_cols, &a->v));
    return make_tensor(c, type, tokens, cols, &a->o);
}

oq_status oq_bench_case_attention(oq_bench_case *c, oq_env *env, oq_device *device,
                                  const oq_attention_kernel *kernel, oq_attention_spec spec, int64_t tokens,
                                  const oq_dtype *type)
{
    begin(c, env, device);
    c->u.attention.kernel = kernel ? kernel : oq_backend_cpu.find_attention(device, &spec);
    c->u.attention.spec = spec;
    c->kernel = c->u.attention.kernel->name;
    c->flops = 4.0 * (double)tokens * (double)tokens * (double)(spec.n_heads * spec.head_dim);
    c->run = run_attention;
    return finish(c, fill_attention(c, tokens, type));
}

/* ---- convolution --------------------------------------------------------------------------------------- */

static void run_conv(oq_bench_case *c)
{
    c->u.conv.kernel->run(c->device, &c->u.conv.args);
}

static oq_status fill_conv(oq_bench_case *c, int64_t side, int64_t frames, const oq_dtype *type)
{
    oq_conv2d_args *const a = &c->u.conv.args;
    const oq_conv2d_spec *const s = a->spec = &c->u.conv.spec;
    const size_t n = (size_t)(s->c_out * s->c_in) * (size_t)(oq_conv2d_taps_t(s) * s->kh * s->kw);
    const int64_t out = oq_conv2d_out_frames(s, frames) * oq_conv2d_out_h(s, side) * oq_conv2d_out_w(s, side);
    void *packed = NULL;
    float *weight = NULL;
    a->batch = 1, a->h = a->w = side, a->frames = frames;
    OQ_TRY(oq_arena_new(&c->arena, n, sizeof *weight, "bench", &weight));
    OQ_TRY(make_buffer(c, c->u.conv.kernel->packed_bytes(s), &packed));
    OQ_TRY(make_buffer(c, c->u.conv.kernel->scratch_bytes(s, 1, side, side), &a->scratch));
    OQ_TRY(make_tensor(c, type, frames * side * side, s->c_in, &a->x));
    OQ_TRY(make_tensor(c, type, out, s->c_out, &a->y));
    fill(weight, n);
    c->u.conv.kernel->pack(packed, weight, s);
    a->packed = packed;
    return OQ_OK;
}

oq_status oq_bench_case_conv(oq_bench_case *c, oq_env *env, oq_device *device, const oq_conv2d_kernel *kernel,
                             oq_conv2d_spec spec, int64_t side, int64_t frames, const oq_dtype *type)
{
    begin(c, env, device);
    spec.compute = type;
    spec.weight = type == &oq_dtype_bf16 ? type : NULL;
    c->u.conv.kernel = kernel ? kernel : oq_backend_cpu.find_conv2d(device, &spec);
    c->u.conv.spec = spec;
    c->kernel = c->u.conv.kernel->name;
    c->flops = 2.0 * (double)(oq_conv2d_out_h(&spec, side) * oq_conv2d_out_w(&spec, side)) *
               (double)(oq_conv2d_out_frames(&spec, frames) * spec.c_in * spec.c_out) * spec.kh * spec.kw *
               oq_conv2d_taps_t(&spec);
    c->run = run_conv;
    return finish(c, fill_conv(c, side, frames, type));
}

/* ---- norms --------------------------------------------------------------------------------------------- */

static void run_group_norm(oq_bench_case *c)
{
    c->device->ops.group_norm(c->device, &c->u.norm);
}

static oq_status fill_group_norm(oq_bench_case *c, int64_t channels, int64_t side, const oq_dtype *type)
{
    oq_norm_args *const a = &c->u.norm;
    oq_tensor weight;
    *a = (oq_norm_args){.eps = 1e-6f, .group = 32, .batch = 1, .silu = true};
    OQ_TRY(make_tensor(c, &oq_dtype_f32, 1, channels, &weight));
    OQ_TRY(make_tensor(c, type, side * side, channels, &a->x));
    a->weight = a->bias = weight.data;
    return make_tensor(c, type, side * side, channels, &a->y);
}

oq_status oq_bench_case_group_norm(oq_bench_case *c, oq_env *env, oq_device *device, int64_t channels,
                                   int64_t side, const oq_dtype *type)
{
    begin(c, env, device);
    c->kernel = "group_norm";
    c->run = run_group_norm;
    return finish(c, fill_group_norm(c, channels, side, type));
}

/* In one pass where the device has one. */
static void run_modulate(oq_bench_case *c)
{
    const oq_rows_args *const r = &c->rows;
    const oq_ops *const ops = &c->device->ops;
    if (ops->rows) {
        ops->rows(c->device, r);
        return;
    }
    ops->layer_norm(c->device, &(oq_norm_args){.x = r->x, .y = r->h, .eps = r->norm.eps});
    ops->modulate(c->device, r->h, r->h, r->scale, r->shift, r->one);
}

static oq_status fill_modulate(oq_bench_case *c, int64_t rows, int64_t cols, const oq_dtype *type)
{
    oq_rows_args *const r = &c->rows;
    *r = (oq_rows_args){.norm = {.kind = OQ_LAYER_NORM, .eps = 1e-5f}, .one = 1};
    OQ_TRY(make_tensor(c, type, rows, cols, &r->x));
    OQ_TRY(make_tensor(c, type, rows, cols, &r->h));
    OQ_TRY(make_tensor(c, type, 1, cols, &r->scale));
    return make_tensor(c, type, 1, cols, &r->shift);
}

oq_status oq_bench_case_modulate(oq_bench_case *c, oq_env *env, oq_device *device, int64_t rows, int64_t cols,
                                 const oq_dtype *type)
{
    begin(c, env, device);
    c->kernel = "norm, modulate";
    c->run = run_modulate;
    return finish(c, fill_modulate(c, rows, cols, type));
}

static void run_modulate_then_linear(oq_bench_case *c)
{
    run_modulate(c);
    run_linear(c);
}

static oq_status fill_quantize(oq_bench_case *c, int64_t rows, int64_t cols)
{
    OQ_TRY(fill_modulate(c, rows, cols, &oq_dtype_bf16));
    OQ_TRY(fill_linear(c, rows, &oq_dtype_bf16));
    if (!c->u.linear.kernel->fuses || !(c->u.linear.kernel->fuses(&c->u.linear.spec) & OQ_FUSE_ROWS)) {
        c->run = run_modulate_then_linear;
        return OQ_OK;
    }
    c->u.linear.args.x = c->rows.h;
    c->u.linear.args.rows = &c->rows;
    return OQ_OK;
}

oq_status oq_bench_case_quantize(oq_bench_case *c, oq_env *env, oq_device *device, int64_t rows, int64_t cols)
{
    begin(c, env, device);
    c->u.linear.spec = (oq_linear_spec){
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        32,
        cols};
    c->u.linear.kernel = oq_backend_cpu.find_linear(device, &c->u.linear.spec);
    c->kernel = "norm, modulate, quantize";
    c->run = run_linear;
    return finish(c, fill_quantize(c, rows, cols));
}
