/* device.c -- opening a GPU, its memory, uploads and downloads, and where asynchronous errors come to light.
 */
#include "cuda/cuda.h"
#include "cuda/attention/cuda_attention.h"

#include "backend/plugin.h"
#include "base/size.h"
#include "cuda/lt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIN_CAPABILITY 80

void oq_cuda_enter(const oq_device *d)
{
    cudaSetDevice(d->index);
}

void oq_cuda_note(oq_device *d, cudaError_t error, const char *op)
{
    if (error == cudaSuccess || d->failed != cudaSuccess) return;
    d->failed = error;
    d->failed_op = op;
}

void oq_cuda_done(oq_device *d, const char *op)
{
    d->last_op = op;
    oq_cuda_note(d, cudaGetLastError(), op);
    if (d->check) oq_cuda_note(d, cudaStreamSynchronize(d->stream), op);
}

static int device_count(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

/* Why there is nothing to open, in one sentence. */
static oq_status fail_absent(oq_env *env, int index, cudaError_t error, int n)
{
    int driver = 0, built = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&built);
    if (error == cudaErrorInsufficientDriver && driver == 0)
        return oq_fail(env, OQ_E_UNSUPPORTED, "device cuda:%d: no NVIDIA driver is installed", index);
    if (error == cudaErrorInsufficientDriver)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "device cuda:%d: the NVIDIA driver is too old: it supports CUDA %d.%d, this build needs %d.%d",
            index, driver / 1000, driver % 1000 / 10, built / 1000, built % 1000 / 10);
    if (error == cudaErrorNoDevice || (error == cudaSuccess && n == 0))
        return oq_fail(env, OQ_E_UNSUPPORTED, "device cuda:%d: no NVIDIA GPU is present", index);
    if (error != cudaSuccess)
        return oq_fail(env, OQ_E_UNSUPPORTED, "device cuda:%d: the driver refuses: %s", index,
                       cudaGetErrorString(error));
    return oq_fail(env, OQ_E_ARG, "device cuda:%d does not exist: %d GPU%s present", index, n,
                   n == 1 ? " is" : "s are");
}

static oq_status device_probe(oq_env *env, int index, oq_device *d)
{
    int n = 0;
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error != cudaSuccess || index < 0 || index >= n) return fail_absent(env, index, error, n);
    struct cudaDeviceProp prop;
    const cudaError_t got = cudaGetDeviceProperties(&prop, index);
    if (got != cudaSuccess) return fail_absent(env, index, got, n);
    d->index = index;
    d->capability = prop.major * 10 + prop.minor;
    d->n_sm = prop.multiProcessorCount;
    d->memory_bytes = prop.totalGlobalMem;
    snprintf(d->name, sizeof d->name, "%.*s", (int)sizeof d->name - 1, prop.name);
    if (d->capability < MIN_CAPABILITY)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "device cuda:%d: %s has compute capability %d.%d, %d.%d is needed", index, d->name,
                       prop.major, prop.minor, MIN_CAPABILITY / 10, MIN_CAPABILITY % 10);
    return OQ_OK;
}

static oq_status cuda_try(oq_env *env, const oq_device *d, cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return OQ_OK;
    const oq_status st = error == cudaErrorMemoryAllocation ? OQ_E_NOMEM : OQ_E_DEVICE;
    return oq_fail(env, st, "device cuda:%d: %s: %s", d->index, what, cudaGetErrorString(error));
}

static oq_status device_resources(oq_env *env, oq_device *d)
{
    OQ_TRY(cuda_try(env, d, cudaSetDevice(d->index), "cannot be used"));
    OQ_TRY(cuda_try(env, d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "no stream"));
    const size_t tickets = OQ_CUDA_TICKETS * sizeof *d->tickets;
    const size_t bytes = OQ_CUDA_WORKSPACE_BYTES + OQ_CUDA_WORK_BYTES + OQ_CUDA_ALIGN + tickets;
    OQ_TRY(cuda_try(env, d, cudaMalloc(&d->workspace, bytes), "no memory for its workspace"));
    d->work = (char *)d->workspace + OQ_CUDA_WORKSPACE_BYTES;
    d->flag = (int *)(void *)((char *)d->work + OQ_CUDA_WORK_BYTES);
    d->tickets = d->flag + OQ_CUDA_ALIGN / sizeof *d->flag;
    OQ_TRY(cuda_try(env, d, cudaMemsetAsync(d->tickets, 0, tickets, d->stream), "cannot be used"));
    for (int i = 0; i < OQ_CUDA_STAGES; i++) {
        OQ_TRY(cuda_try(env, d, cudaMallocHost(&d->stage[i], OQ_CUDA_STAGE_BYTES), "no pinned memory"));
        OQ_TRY(cuda_try(env, d, cudaEventCreateWithFlags(&d->staged[i], cudaEventDisableTiming), "no event"));
    }
    OQ_TRY(cuda_try(env, d, cudaEventCreate(&d->begin), "no event"));
    OQ_TRY(cuda_try(env, d, cudaEventCreate(&d->end), "no event"));
    return oq_lt_open(env, d);
}

static void device_close(oq_env *env, oq_device *d)
{
    if (!d) return;
    oq_cuda_enter(d);
    if (d->stream) cudaStreamSynchronize(d->stream);
    oq_cuda_graphs_clear(d);
    oq_lt_close(env, d);
    for (int i = 0; i < OQ_CUDA_STAGES; i++) {
        if (d->staged[i]) cudaEventDestroy(d->staged[i]);
        if (d->stage[i]) cudaFreeHost(d->stage[i]);
    }
    if (d->begin) cudaEventDestroy(d->begin);
    if (d->end) cudaEventDestroy(d->end);
    if (d->workspace) cudaFree(d->workspace);
    if (d->stream) cudaStreamDestroy(d->stream);
    oq_free(env, d);
}

/* Words of `text`, comma separated. */
static oq_status parse_options(oq_env *env, const char *text, oq_device *d)
{
    while (text && *text) {
        const size_t n = strcspn(text, ",");
        if (n == 5 && strncmp(text, "check", n) == 0)
            d->check = true;
        else if (n == 4 && strncmp(text, "tune", n) == 0)
            d->tune = true;
        else if (n == 7 && strncmp(text, "untuned", n) == 0)
            d->untuned = true;
        else if (n == 5 && strncmp(text, "eager", n) == 0)
            d->eager = true;
        else if (n == 3 && strncmp(text, "own", n) == 0)
            d->force = OQ_CUDA_WAY_OWN;
        else if (n == 9 && strncmp(text, "reference", n) == 0)
            d->force = OQ_CUDA_WAY_REFERENCE;
        else if (n != 0 && !(n == 4 && strncmp(text, "auto", n) == 0))
            return oq_fail(
                env, OQ_E_ARG,
                "cuda option '%.*s' is unknown: want check, tune, untuned, eager, own or reference", (int)n,
                text);
        text += n + (text[n] == ',');
    }
    return OQ_OK;
}

/* `options` is the CPU's when `--cpu` was given beside `--device cuda`; ours come from OMNIQ_CUDA. */
static oq_status device_open(oq_env *env, int index, const char *options, oq_device **out)
{
    (void)options;
    *out = NULL;
    oq_device *d = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *d, "cuda device", &d));
    d->env = env;
    oq_status st = device_probe(env, index, d);
    if (st == OQ_OK) st = parse_options(env, getenv("OMNIQ_CUDA"), d);
    if (st != OQ_OK) {
        oq_free(env, d);
        return st;
    }
    oq_cuda_ops_init(&d->ops);
    st = device_resources(env, d);
    if (st != OQ_OK)
        device_close(env, d);
    else
        *out = d;
    return st;
}

static void device_info(const oq_device *d, oq_device_info *out)
{
    int driver = 0;
    cudaDriverGetVersion(&driver);
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "%s", d->name);
    snprintf(
        out->detail, sizeof out->detail,
        "cuda:%d, capability %d.%d, %d multiprocessors, driver for CUDA %d.%d, cuBLASLt %zu, compiled for %s",
        d->index, d->capability / 10, d->capability % 10, d->n_sm, driver / 1000, driver % 1000 / 10,
        cublasLtGetVersion(), OMNIQ_CUDA_TARGETS);
    out->memory_bytes = d->memory_bytes;
}

static oq_status buffer_new(oq_env *env, oq_device *d, size_t bytes, void **out)
{
    oq_cuda_enter(d);
    *out = NULL;
    const cudaError_t error = cudaMalloc(out, bytes ? bytes : 1);
    if (error == cudaSuccess) return OQ_OK;
    cudaGetLastError(); /* an allocation that failed leaves the device usable */
    size_t free_bytes = 0, total = 0;
    cudaMemGetInfo(&free_bytes, &total);
    if (error == cudaErrorMemoryAllocation)
        return oq_fail(env, OQ_E_NOMEM, "device cuda:%d: no memory for %zu bytes, %zu of %zu are free",
                       d->index, bytes, free_bytes, total);
    return cuda_try(env, d, error, "no memory");
}

static void buffer_free(oq_env *env, oq_device *d, void *buffer)
{
    (void)env;
    oq_cuda_enter(d);
    if (buffer) cudaFree(buffer);
}

/* Through pinned memory in pieces: `src` may be reused on return, the copy overlaps with the next piece. */
static oq_status upload(oq_env *env, oq_device *d, void *dst, const void *src, size_t bytes)
{
    oq_cuda_enter(d);
    for (size_t at = 0; at < bytes; at += OQ_CUDA_STAGE_BYTES) {
        const size_t n = bytes - at < OQ_CUDA_STAGE_BYTES ? bytes - at : OQ_CUDA_STAGE_BYTES;
        const int i = d->next_stage;
        d->next_stage = (i + 1) % OQ_CUDA_STAGES;
        OQ_TRY(cuda_try(env, d, cudaEventSynchronize(d->staged[i]), "upload"));
        memcpy(d->stage[i], (const char *)src + at, n);
        OQ_TRY(cuda_try(env, d,
                        cudaMemcpyAsync((char *)dst + at, d->stage[i], n, cudaMemcpyHostToDevice, d->stream),
                        "upload"));
        OQ_TRY(cuda_try(env, d, cudaEventRecord(d->staged[i], d->stream), "upload"));
    }
    return OQ_OK;
}

static oq_status sync_device(oq_env *env, oq_device *d)
{
    oq_cuda_enter(d);
    const cudaError_t late = cudaStreamSynchronize(d->stream);
    if (d->failed != cudaSuccess)
        return oq_fail(env, OQ_E_DEVICE, "device cuda:%d: %s: %s", d->index, d->failed_op,
                       cudaGetErrorString(d->failed));
    if (late == cudaSuccess) return OQ_OK;
    oq_cuda_note(d, late, d->last_op);
    return oq_fail(env, OQ_E_DEVICE,
                   "device cuda:%d: %s, at or before operation %s (OMNIQ_CUDA=check names it exactly)",
                   d->index, cudaGetErrorString(late), d->last_op ? d->last_op : "none");
}

static oq_status download(oq_env *env, oq_device *d, void *dst, const void *src, size_t bytes)
{
    oq_cuda_enter(d);
    if (bytes > 0)
        oq_cuda_note(d, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, d->stream), "download");
    return sync_device(env, d);
}

static const oq_linear_kernel *find_linear(const oq_device *d, const oq_linear_spec *spec)
{
    const bool bare = oq_cuda_is_bare(&spec->scheme);
    for (const oq_linear_kernel *const *k = oq_cuda_linear_list; *k; k++)
        if ((bare || (*k)->around) && (*k)->need <= (uint64_t)d->capability && (*k)->accepts(spec)) return *k;
    return NULL;
}

static const oq_attention_kernel *find_attention(const oq_device *d, const oq_attention_spec *spec)
{
    if (spec->precision != OQ_ATTENTION_PLAIN || spec->sparsity > 0)
        return oq_cuda_attention_online_sm80.accepts(spec) ? &oq_cuda_attention_online_sm80 : NULL;
    for (const oq_attention_kernel *const *k = oq_cuda_attention_list; *k; k++)
        if ((*k)->need <= (uint64_t)d->capability && (*k)->accepts(spec)) return *k;
    return NULL;
}

static const oq_conv2d_kernel *find_conv2d(const oq_device *d, const oq_conv2d_spec *spec)
{
    for (const oq_conv2d_kernel *const *k = oq_cuda_conv2d_list; *k; k++)
        if ((*k)->need <= (uint64_t)d->capability && (*k)->accepts(spec)) return *k;
    return NULL;
}

static const oq_ops *ops(const oq_device *d)
{
    return &d->ops;
}

const oq_backend oq_backend_cuda = {
    .abi = OQ_BACKEND_ABI,
    .struct_size = sizeof(oq_backend),
    .name = "cuda",
    .count = device_count,
    .open = device_open,
    .close = device_close,
    .info = device_info,
    .host_memory = false,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .upload = upload,
    .download = download,
    .sync = sync_device,
    .find_linear = find_linear,
    .find_attention = find_attention,
    .find_conv2d = find_conv2d,
    .ops = ops,
    .host_new = oq_cuda_host_new,
    .host_free = oq_cuda_host_free,
    .window_new = oq_cuda_window_new,
    .window_free = oq_cuda_window_free,
    .window_get = oq_cuda_window_get,
    .fill_linear = oq_cuda_fill_linear,
    .graph_replay = oq_cuda_graph_replay,
    .graph_begin = oq_cuda_graph_begin,
    .graph_end = oq_cuda_graph_end,
    .graph_clear = oq_cuda_graphs_clear,
};

OQ_API const oq_backend *oq_backend_entry(uint32_t abi);

const oq_backend *oq_backend_entry(uint32_t abi)
{
    return abi == OQ_BACKEND_ABI ? &oq_backend_cuda : NULL;
}
