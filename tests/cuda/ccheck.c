/* ccheck.c -- checks and measures every kernel of the CUDA backend on the card that is here:
 *   ccheck [--filter TEXT] [--seed N] [--brief] [--bench-ms N [--bench-only TEXT]] [--part I/N]
 * JSON lines; at the end "N passed, N failed". Exit code 77: no usable GPU (ctest: skipped). */
#include "ccheck.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>

#define GUARD 256

uint32_t cc_u32(ccheck *c)
{
    c->rng += 0x9e3779b97f4a7c15u; /* splitmix64 */
    uint64_t z = c->rng;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

float cc_normal(ccheck *c)
{
    const double u = ((double)cc_u32(c) + 1.0) / 4294967297.0, v = (double)cc_u32(c) / 4294967296.0;
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

float cc_rough_normal(ccheck *c)
{
    const uint32_t u = cc_u32(c);
    return ((float)((u & 255) + (u >> 8 & 255) + (u >> 16 & 255) + (u >> 24)) - 510.0f) / 147.8f;
}

void cc_fill(ccheck *c, cc_class kind, float *x, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) {
            float v = cc_normal(c);
            if (kind == CC_OUTLIERS && j % 40 == 7) v *= 100.0f;
            if (kind == CC_ZERO_ROWS && r % 3 == 1) v = 0.0f;
            if (kind == CC_POSITIVE) v = fabsf(v) + 1e-3f;
            x[r * cols + j] = v;
        }
}

void *cc_new(ccheck *c, size_t bytes)
{
    void *p = oq_alloc(c->env, bytes);
    if (!p) {
        fprintf(stderr, "ccheck: no memory for %zu bytes\n", bytes);
        exit(2);
    }
    return p;
}

void cc_ok(ccheck *c, oq_status st)
{
    if (st == OQ_OK) return;
    fprintf(stderr, "ccheck: %s\n", oq_env_error(c->env));
    exit(2);
}

void *cc_device(ccheck *c, size_t bytes)
{
    void *p = NULL;
    cc_ok(c, oq_backend_cuda.buffer_new(c->env, c->gpu, bytes, &p));
    return p;
}

void *cc_upload(ccheck *c, const void *src, size_t bytes)
{
    void *p = cc_device(c, bytes);
    cc_ok(c, oq_backend_cuda.upload(c->env, c->gpu, p, src, bytes));
    return p;
}

void cc_release(ccheck *c, void *device)
{
    oq_backend_cuda.buffer_free(c->env, c->gpu, device);
}

static void *element_of(const cc_tensor *t, int64_t row, int64_t col)
{
    return (char *)t->host.data + (size_t)(row * t->host.ld + col) * t->host.dtype->bytes;
}

float cc_get(const cc_tensor *t, int64_t row, int64_t col)
{
    float v;
    t->host.dtype->to_f32(&v, element_of(t, row, col), 1);
    return v;
}

cc_tensor cc_tensor_new(ccheck *c, const oq_dtype *dtype, int64_t rows, int64_t cols, int64_t ld,
                        const float *values)
{
    cc_tensor t = {.host = {NULL, dtype, rows, cols, ld ? ld : cols}};
    t.bytes = 2 * GUARD + (size_t)(rows * t.host.ld) * dtype->bytes;
    t.host_block = cc_new(c, t.bytes);
    memset(t.host_block, 0xff, t.bytes);
    t.host.data = t.host_block + GUARD;
    for (int64_t r = 0; values && r < rows; r++)
        dtype->from_f32(element_of(&t, r, 0), values + r * cols, (size_t)cols);
    t.device_block = cc_upload(c, t.host_block, t.bytes);
    t.device = t.host;
    t.device.data = t.device_block + GUARD;
    return t;
}

void cc_tensor_free(ccheck *c, cc_tensor *t)
{
    oq_free(c->env, t->host_block);
    cc_release(c, t->device_block);
}

static bool all_ff(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] != 0xff) return false;
    return true;
}

bool cc_tensor_read(ccheck *c, const cc_tensor *t, float *out)
{
    char *got = cc_new(c, t->bytes);
    cc_ok(c, oq_backend_cuda.download(c->env, c->gpu, got, t->device_block, t->bytes));
    const size_t row_bytes = (size_t)t->host.ld * t->host.dtype->bytes;
    const size_t used = (size_t)t->host.cols * t->host.dtype->bytes;
    bool intact = all_ff(got, GUARD) && all_ff(got + t->bytes - GUARD, GUARD);
    for (int64_t r = 0; r < t->host.rows; r++) {
        const char *row = got + GUARD + (size_t)r * row_bytes;
        t->host.dtype->to_f32(out + r * t->host.cols, row, (size_t)t->host.cols);
        intact = intact && all_ff(row + used, row_bytes - used);
    }
    oq_free(c->env, got);
    return intact;
}

bool cc_mine(ccheck *c)
{
    return c->unit++ % c->n_parts == c->part;
}

bool cc_wants(const ccheck *c, const char *kernel)
{
    return !c->filter || strstr(kernel, c->filter);
}

bool cc_measures(const ccheck *c, const char *op, const char *shape)
{
    char both[256];
    snprintf(both, sizeof both, "%s %s", op, shape);
    return !c->measured || strstr(both, c->measured);
}

bool cc_near(cc_row *row, double got, double want, double bound)
{
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
    const double error = fabs(got - want);
    if (bound > 0 && error / bound > row->worst) row->worst = error / bound;
    return error <= bound;
}

void cc_case(ccheck *c, cc_row *row, bool ok, const char *fmt, ...)
{
    row->cases++;
    ok ? c->passed++ : c->failed++;
    if (ok) return;
    row->failed++;
    va_list args;
    va_start(args, fmt);
    printf("FAILED %s: ", row->kernel);
    vprintf(fmt, args);
    printf("\n");
    va_end(args);
}

void cc_row_print(const cc_row *row)
{
    printf("{\"kernel\":\"%s\",\"cases\":%lld,\"failed\":%lld,\"worst_of_bound\":%.3f}\n", row->kernel,
           (long long)row->cases, (long long)row->failed, row->worst);
    fflush(stdout);
}

double cc_store_error(const oq_dtype *dtype, double value)
{
    return dtype->bytes == 2 ? fabs(value) * 0x1p-8 + 0x1p-133 : fabs(value) * 0x1p-23 + 0x1p-149;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double graph_ms(ccheck *c, int64_t reps, cc_bench_fn fn, void *user)
{
    enum { ROUNDS = 9 };
    cudaStream_t s = c->gpu->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double ms[ROUNDS];
    if (cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) != cudaSuccess) return -1;
    for (int64_t i = 0; i < reps; i++) fn(user, i);
    if (cudaStreamEndCapture(s, &graph) != cudaSuccess ||
        cudaGraphInstantiate(&exec, graph, 0) != cudaSuccess)
        return -1;
    for (int r = -2; r < ROUNDS; r++) {
        float t = 0;
        cudaEventRecord(c->gpu->begin, s);
        cudaGraphLaunch(exec, s);
        cudaEventRecord(c->gpu->end, s);
        cudaEventSynchronize(c->gpu->end);
        cudaEventElapsedTime(&t, c->gpu->begin, c->gpu->end);
        if (r >= 0) ms[r] = (double)t / (double)reps;
    }
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    qsort(ms, ROUNDS, sizeof *ms, by_value);
    return ms[ROUNDS / 2];
}

double cc_bench(ccheck *c, const char *op, const char *shape, double flop, double bytes, cc_bench_fn fn,
                void *user)
{
    for (int64_t i = 0; i < 3; i++) fn(user, i); /* plans are made, and tuned, outside the clock */
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    const double one = graph_ms(c, 4, fn, user);
    int64_t reps = one > 0 ? (int64_t)(c->bench_ms / one) : 1;
    if (reps < 4) reps = 4;
    if (reps > 2000) reps = 2000;
    const double ms = graph_ms(c, reps, fn, user);
    cc_ok(c, oq_backend_cuda.sync(c->env, c->gpu));
    printf("{\"op\":\"%s\",\"shape\":\"%s\",\"peer\":\"omniq\",\"ms\":%.5f,\"tflops\":%.1f,\"gbs\":%.1f}\n",
           op, shape, ms, flop / ms * 1e-9, bytes / ms * 1e-6);
    fflush(stdout);
    return ms;
}

static void check_all(ccheck *c)
{
    oq_device_info info;
    oq_backend_cuda.info(c->gpu, &info);
    printf("{\"device\":\"%s\",\"detail\":\"%s\",\"memory_bytes\":%zu}\n", info.name, info.detail,
           info.memory_bytes);
    ccheck_backend(c);
    ccheck_ops(c);
    ccheck_fused(c);
    ccheck_linear(c);
    ccheck_around(c);
    ccheck_places(c);
    ccheck_attention(c);
    ccheck_conv2d(c);
}

int main(int argc, char **argv)
{
    ccheck c = {.rng = 1, .n_parts = 1};
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--brief"))
            c.brief = true;
        else if (!strcmp(argv[i], "--filter") && i + 1 < argc)
            c.filter = argv[++i];
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            c.rng = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--bench-ms") && i + 1 < argc)
            c.bench_ms = atof(argv[++i]);
        else if (!strcmp(argv[i], "--bench-only") && i + 1 < argc)
            c.measured = argv[++i];
        else if (!strcmp(argv[i], "--part") && i + 1 < argc && strchr(argv[i + 1], '/'))
            c.part = atoll(argv[i + 1]), c.n_parts = atoll(strchr(argv[i + 1], '/') + 1), i++;
        else
            return fprintf(stderr, "ccheck: unknown or incomplete argument '%s'\n", argv[i]), 2;
    }
    if (c.part < 0 || c.part >= c.n_parts) return fprintf(stderr, "ccheck: no such part\n"), 2;
    if (oq_env_new(NULL, &c.env) != OQ_OK) return 2;
    const oq_status st = oq_backend_cuda.open(c.env, 0, NULL, &c.gpu);
    if (st != OQ_OK)
        return fprintf(stderr, "ccheck: %s\n", oq_env_error(c.env)), st == OQ_E_UNSUPPORTED ? 77 : 2;
    cc_ok(&c, oq_backend_cpu.open(c.env, 0, "ref", &c.cpu));
    check_all(&c);
    oq_backend_cpu.close(c.env, c.cpu);
    oq_backend_cuda.close(c.env, c.gpu);
    oq_env_free(c.env);
    if (c.bench_ms > 0) return 0;
    printf("%lld passed, %lld failed\n", (long long)c.passed, (long long)c.failed);
    return c.failed || (!c.passed && c.n_parts == 1) ? 1 : 0;
}
