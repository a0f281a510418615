/* ccheck_attention.c -- attention and convolution against the CPU's references, which sum in double and get
 * an F32 output; bounds come from a second reference run over magnitudes. */
#include "ccheck.h"

#include "base/size.h"
#include "cuda/attention/cuda_attention.h"

#include <math.h>

typedef struct attention_case {
    int64_t n_q, n_kv, n_heads, n_kv_heads, head_dim;
    bool causal, mask, bias, f32, strided;
    oq_attention_precision precision;
    double sparsity;
    bool opposed; /* keys point away from queries: no score but is negative */
} attention_case;

static const attention_case attention_cases[] = {
    {1, 1, 1, 1, 64, false, false, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {64, 64, 3, 3, 64, false, false, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {33, 70, 3, 1, 64, false, false, false, false, true, OQ_ATTENTION_PLAIN, 0, false},
    {130, 130, 4, 2, 128, true, false, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {5, 200, 2, 2, 128, true, false, false, false, true, OQ_ATTENTION_PLAIN, 0, false},
    {200, 5, 2, 2, 32, true, false, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {77, 77, 2, 2, 128, false, true, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {100, 190, 2, 2, 80, false, true, true, false, true, OQ_ATTENTION_PLAIN, 0, false},
    {96, 96, 4, 2, 96, false, false, true, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {65, 129, 1, 1, 256, true, true, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {64, 64, 2, 2, 8, false, false, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {300, 300, 1, 1, 512, false, false, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {64, 64, 3, 3, 64, true, false, false, true, false, OQ_ATTENTION_PLAIN, 0, false},
    {70, 45, 2, 1, 40, false, true, true, true, true, OQ_ATTENTION_PLAIN, 0, false},
    {256, 1024, 1, 1, 512, false, true, false, true, false, OQ_ATTENTION_PLAIN, 0, false},
    {640, 1000, 4, 4, 128, false, false, false, false, false, OQ_ATTENTION_PLAIN, 0, false},
    {2100, 720, 8, 2, 128, false, false, false, false, true, OQ_ATTENTION_PLAIN, 0,
     false}, /* more blocks than multiprocessors */
    {640, 1000, 4, 4, 128, .opposed = true},
    {300, 2000, 2, 1, 64, .opposed = true},
    {640, 1000, 4, 4, 128, .precision = OQ_ATTENTION_FP8, .opposed = true},
    {640, 1000, 4, 4, 128, .precision = OQ_ATTENTION_FP8},
    {2100, 720, 8, 2, 128, .precision = OQ_ATTENTION_FP8},
    {77, 200, 4, 2, 128, .precision = OQ_ATTENTION_FP8, .strided = true},
    {129, 513, 2, 1, 128, .precision = OQ_ATTENTION_FP8},
    {300, 300, 2, 2, 128, .precision = OQ_ATTENTION_FP8, .mask = true},
    {300, 300, 2, 2, 64, .precision = OQ_ATTENTION_FP8, .strided = true},
    {200, 130, 2, 2, 256, .precision = OQ_ATTENTION_FP8},
    {64, 64, 2, 2, 128, .precision = OQ_ATTENTION_FP8, .f32 = true},
    {70, 90, 3, 3, 32, .precision = OQ_ATTENTION_MXFP8, .mask = true, .bias = true},
    {640, 640, 2, 1, 128, .precision = OQ_ATTENTION_MXFP8},
    {130, 70, 2, 2, 64, .precision = OQ_ATTENTION_MXFP4},
    {130, 70, 2, 2, 16, .precision = OQ_ATTENTION_MXFP4, .f32 = true},
    {1100, 1100, 2, 1, 128, .sparsity = 0.5},
    {1100, 1100, 2, 2, 128, .sparsity = 0.7, .precision = OQ_ATTENTION_FP8},
    {1100, 1100, 2, 2, 64, .sparsity = 0.7, .precision = OQ_ATTENTION_MXFP4},
    {600, 600, 2, 1, 128, .sparsity = 0.5, .mask = true},
    {600, 600, 1, 1, 32, .sparsity = 0.3, .f32 = true},
};

static cc_tensor random_tensor(ccheck *c, const oq_dtype *type, int64_t rows, int64_t cols, int64_t ld,
                               cc_class kind, float sign)
{
    float *x = cc_new(c, (size_t)(rows * cols) * sizeof *x);
    if (c->bench_ms > 0)
        for (int64_t i = 0; i < rows * cols; i++) x[i] = cc_rough_normal(c);
    else
        cc_fill(c, kind, x, rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) x[i] *= sign;
    const cc_tensor t = cc_tensor_new(c, type, rows, cols, ld, x);
    oq_free(c->env, x);
    return t;
}

/* The reference's result as f32 [rows, cols]; `magnitude`: of |v|. */
static float *attention_want(ccheck *c, const attention_case *t, oq_attention_args a, bool magnitude)
{
    const oq_attention_kernel *ref = oq_backend_cpu.find_attention(c->cpu, a.spec);
    const int64_t cols = t->n_heads * t->head_dim, kv_cols = t->n_kv_heads * t->head_dim;
    float *want = cc_new(c, (size_t)(t->n_q * cols) * sizeof *want), *v = NULL;
    a.o = oq_tensor_make(want, &oq_dtype_f32, t->n_q, cols);
    if (magnitude) {
        v = cc_new(c, (size_t)(t->n_kv * kv_cols) * sizeof *v);
        for (int64_t r = 0; r < t->n_kv; r++) {
            a.v.dtype->to_f32(v + r * kv_cols, (char *)a.v.data + (size_t)(r * a.v.ld) * a.v.dtype->bytes,
                              (size_t)kv_cols);
            for (int64_t j = 0; j < kv_cols; j++) v[r * kv_cols + j] = fabsf(v[r * kv_cols + j]);
        }
        a.v = oq_tensor_make(v, &oq_dtype_f32, t->n_kv, kv_cols);
    }
    a.scratch = cc_new(c, ref->scratch_bytes(a.spec, t->n_q, t->n_kv));
    ref->run(c->cpu, &a);
    oq_free(c->env, a.scratch);
    oq_free(c->env, v);
    return want;
}

static void attention_kernel_check(ccheck *c, const attention_case *t, const oq_attention_kernel *kernel,
                                   cc_row *row)
{
    const oq_dtype *type = t->f32 ? &oq_dtype_f32 : &oq_dtype_bf16;
    const oq_attention_spec spec = {.head_dim = t->head_dim,
                                    .n_heads = t->n_heads,
                                    .n_kv_heads = t->n_kv_heads,
                                    .causal = t->causal,
                                    .precision = t->precision,
                                    .sparsity = t->sparsity};
    const int64_t cols = t->n_heads * t->head_dim, kv_cols = t->n_kv_heads * t->head_dim,
                  more = t->strided ? 24 : 0;
    const cc_class kind = t->opposed ? CC_POSITIVE : CC_NORMAL;
    cc_tensor q = random_tensor(c, type, t->n_q, cols, cols + more, kind, 1.0f),
              k = random_tensor(c, type, t->n_kv, kv_cols, 0, kind, t->opposed ? -1.0f : 1.0f);
    cc_tensor v = random_tensor(c, type, t->n_kv, kv_cols, kv_cols + more, CC_NORMAL, 1.0f);
    cc_tensor o = cc_tensor_new(c, type, t->n_q, cols, cols + more, NULL);
    uint8_t *mask = cc_new(c, (size_t)t->n_kv);
    for (int64_t j = 0; j < t->n_kv; j++) mask[j] = j != 1 && cc_u32(c) % 4 != 0;
    if (t->mask) /* a hidden key may hold anything */
        for (int64_t j = 0; j < t->n_kv; j++)
            if (!mask[j])
                memset((char *)v.host.data + (size_t)(j * v.host.ld) * type->bytes, 0x7f,
                       (size_t)kv_cols * type->bytes);
    cc_ok(c, oq_backend_cuda.upload(c->env, c->gpu, v.device_block, v.host_block, v.bytes));
    const int64_t n_bias = t->n_heads * t->n_q * t->n_kv;
    float *bias = cc_new(c, (size_t)n_bias * sizeof *bias);
    for (int64_t i = 0; i < n_bias; i++) bias[i] = cc_normal(c);
    void *mask_device = cc_upload(c, mask, (size_t)t->n_kv),
         *bias_device = cc_upload(c, bias, (size_t)n_bias * 4);
    oq_attention_args a = {.spec = &spec,
                           .scale = 1.0f / sqrtf((float)t->head_dim),
                           .q = q.host,
                           .k = k.host,
                           .v = v.host,
                           .key_mask = t->mask ? mask : NULL,
                           .bias = t->bias ? bias : NULL,
                           .bias_head = t->n_q * t->n_kv,
                           .bias_row = t->n_kv};
    float *want = attention_want(c, t, a, false), *sum = attention_want(c, t, a, true);
    void *scratch = cc_device(c, kernel->scratch_bytes(&spec, t->n_q, t->n_kv) + 1);
    a.q = q.device, a.k = k.device, a.v = v.device, a.o = o.device, a.scratch = scratch;
    a.key_mask = t->mask ? mask_device : NULL;
    a.bias = t->bias ? bias_device : NULL;
    kernel->run(c->gpu, &a);
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    float *got = cc_new(c, (size_t)(t->n_q * cols) * sizeof *got);
    bool intact = cc_tensor_read(c, &o, got), near = true;
    kernel->run(c->gpu, &a); /* a second run gives the same bits */
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    float *again = cc_new(c, (size_t)(t->n_q * cols) * sizeof *again);
    intact = cc_tensor_read(c, &o, again) && intact;
    const bool same = memcmp(got, again, (size_t)(t->n_q * cols) * sizeof *got) == 0;
    /* bf16: probabilities are rounded (2^-9), scores carry f32 errors; f32: sums of n_kv terms. */
    const bool codes =
        t->precision == OQ_ATTENTION_FP8 && t->head_dim == 128 && !t->mask && !t->bias && !t->f32;
    const double e = codes ? 0x1p-4 : t->f32 ? 2e-5 : 0x1p-8; /* codes: probabilities are e4m3 */
    double signal = 0, noise = 0;
    for (int64_t i = 0; i < t->n_q * cols; i++)
        signal += (double)want[i] * (double)want[i], noise += pow((double)got[i] - (double)want[i], 2);
    if (codes && !(signal > 1000 * noise)) near = false; /* 30 dB from the operands' own exact attention */
    for (int64_t i = 0; i < t->n_q * cols; i++)
        near = cc_near(row, got[i], want[i], e * sum[i] + cc_store_error(type, want[i]) + 1e-30) && near;
    cc_case(c, row, intact && near && same,
            "q %lld kv %lld heads %lld/%lld dim %lld %s%s%s%s%s%s %s sparse %.1f, %.1f dB:%s%s%s",
            (long long)t->n_q, (long long)t->n_kv, (long long)t->n_heads, (long long)t->n_kv_heads,
            (long long)t->head_dim, type->name, t->causal ? " causal" : "", t->mask ? " mask" : "",
            t->bias ? " bias" : "", t->strided ? " strided" : "", t->opposed ? " opposed" : "",
            oq_attention_precision_name(t->precision), t->sparsity, 10 * log10(signal / noise),
            intact ? "" : " guard", near ? "" : " values", same ? "" : " other bits when run again");
    void *hosts[] = {mask, bias, want, sum, got, again}, *devices[] = {mask_device, bias_device, scratch};
    for (size_t i = 0; i < OQ_COUNT(hosts); i++) oq_free(c->env, hosts[i]);
    for (size_t i = 0; i < OQ_COUNT(devices); i++) cc_release(c, devices[i]);
    cc_tensor *tensors[] = {&q, &k, &v, &o};
    for (size_t i = 0; i < OQ_COUNT(tensors); i++) cc_tensor_free(c, tensors[i]);
}

typedef struct attention_bench {
    ccheck *c;
    const oq_attention_kernel *kernel;
    oq_attention_args args;
} attention_bench;

static void attention_bench_run(void *user, int64_t i)
{
    (void)i;
    attention_bench *b = user;
    b->kernel->run(b->c->gpu, &b->args);
}

static void bench_attention(ccheck *c, const oq_attention_kernel *kernel, oq_attention_spec spec, int64_t s)
{
    const int64_t heads = spec.n_heads, dim = spec.head_dim;
    if (!kernel || !cc_wants(c, kernel->name)) return;
    char shape[96], op[128];
    snprintf(shape, sizeof shape, "1x%lldx%lldx%lld", (long long)heads, (long long)s, (long long)dim);
    snprintf(op, sizeof op, "attention %s sparse %.1f (%s)", oq_attention_precision_name(spec.precision),
             spec.sparsity, kernel->name);
    if (!cc_measures(c, op, shape)) return;
    cc_tensor t[4];
    for (int i = 0; i < 4; i++) t[i] = random_tensor(c, &oq_dtype_bf16, s, heads * dim, 0, CC_NORMAL, 1.0f);
    attention_bench b = {.c = c, .kernel = kernel};
    b.args = (oq_attention_args){.spec = &spec,
                                 .scale = 1.0f / sqrtf((float)dim),
                                 .q = t[0].device,
                                 .k = t[1].device,
                                 .v = t[2].device,
                                 .o = t[3].device,
                                 .scratch = cc_device(c, kernel->scratch_bytes(&spec, s, s) + 1)};
    cc_bench(c, op, shape, 4.0 * (double)s * (double)s * (double)(heads * dim), 0, attention_bench_run, &b);
    cc_release(c, b.args.scratch);
    for (int i = 0; i < 4; i++) cc_tensor_free(c, &t[i]);
}

static void bench_online(ccheck *c)
{
    static const struct {
        int64_t tokens, heads;
        oq_attention_precision precision;
        double sparsity;
    } rows[] = {{4608, 24, OQ_ATTENTION_FP8, 0},   {4224, 30, OQ_ATTENTION_FP8, 0},
                {4608, 24, OQ_ATTENTION_MXFP8, 0}, {32760, 8, OQ_ATTENTION_FP8, 0},
                {32760, 8, OQ_ATTENTION_FP8, 0.7}, {32760, 8, OQ_ATTENTION_PLAIN, 0.7},
                {32760, 8, OQ_ATTENTION_FP8, 0.5}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const oq_attention_spec spec = {.head_dim = 128,
                                        .n_heads = rows[i].heads,
                                        .n_kv_heads = rows[i].heads,
                                        .precision = rows[i].precision,
                                        .sparsity = rows[i].sparsity};
        bench_attention(c, oq_backend_cuda.find_attention(c->gpu, &spec), spec, rows[i].tokens);
    }
}

static const oq_attention_kernel *kernel_at(size_t i)
{
    return i == 0 ? &oq_cuda_attention_online_sm80 : oq_cuda_attention_list[i - 1];
}

void ccheck_attention(ccheck *c)
{
    if (c->bench_ms > 0) {
        static const int64_t shapes[][3] = {
            {4608, 24, 128}, {4224, 30, 128}, {16384, 1, 512}, {32760, 8, 128}};
        bench_online(c);
        for (size_t i = 0; i < OQ_COUNT(shapes); i++)
            for (size_t k = 0; oq_cuda_attention_list[k]; k++) {
                const oq_attention_spec spec = {
                    .head_dim = shapes[i][2], .n_heads = shapes[i][1], .n_kv_heads = shapes[i][1]};
                if (oq_cuda_attention_list[k]->need <= (uint64_t)c->gpu->capability &&
                    oq_cuda_attention_list[k]->accepts(&spec) &&
                    (shapes[i][2] > 256 || !strstr(oq_cuda_attention_list[k]->name, "gemm")))
                    bench_attention(c, oq_cuda_attention_list[k], spec, shapes[i][0]);
            }
        return;
    }
    for (size_t k = 0; kernel_at(k); k++) {
        const oq_attention_kernel *kernel = kernel_at(k);
        cc_row row = {.kernel = kernel->name};
        if (!cc_wants(c, kernel->name) || kernel->need > (uint64_t)c->gpu->capability) continue;
        for (size_t i = 0; i < OQ_COUNT(attention_cases); i++) {
            if (!cc_mine(c)) continue;
            const attention_case *t = &attention_cases[i];
            const oq_attention_spec spec = {.head_dim = t->head_dim,
                                            .n_heads = t->n_heads,
                                            .n_kv_heads = t->n_kv_heads,
                                            .causal = t->causal,
                                            .precision = t->precision,
                                            .sparsity = t->sparsity};
            const bool online = t->precision != OQ_ATTENTION_PLAIN || t->sparsity > 0;
            if (online == (k == 0) && kernel->accepts(&spec)) attention_kernel_check(c, t, kernel, &row);
        }
        cc_row_print(&row);
    }
}
