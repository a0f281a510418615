/* cpu_backend.c -- the CPU as a backend: opening the device, plain memory as buffers, the walk over kernel
 * lists. */
#include "cpu/rates/rates.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/size.h"
#include "cpu/attention/attention.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

enum { ALIGNMENT = 256 };

static int cpu_count(void)
{
    return 1;
}

static oq_status cpu_open(oq_env *env, int index, const char *options, oq_device **out)
{
    uint64_t features = 0;
    oq_cpu_rates rates;
    if (index != 0)
        return oq_fail(env, OQ_E_NOTFOUND, "cpu device %d does not exist, there is only 0", index);
    OQ_TRY(oq_cpu_mask(env, options ? options : "auto", &features, &rates));
    oq_device *device = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *device, "cpu device", &device));
    device->env = env;
    device->pool = env->pool;
    oq_cpu_device_init(features, device);
    device->rates = rates;
    *out = device;
    return OQ_OK;
}

static void cpu_close(oq_env *env, oq_device *device)
{
    oq_free(env, device);
}

/* The processor's own name, without the blanks it is padded with. */
static void brand(char *out, size_t n)
{
    oq_cpu_make(out, n);
#if defined(__x86_64__)
    unsigned words[12];
    char text[sizeof words + 1];
    for (unsigned i = 0; i < 3; i++)
        if (!__get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                         &words[4 * i + 3]))
            return;
    memcpy(text, words, sizeof words);
    text[sizeof words] = '\0';
    const size_t skip = strspn(text, " ");
    size_t length = strlen(text);
    while (length > skip && text[length - 1] == ' ') text[--length] = '\0';
    if (length > skip) snprintf(out, n, "%s", text + skip);
#endif
}

static void cpu_info(const oq_device *device, oq_device_info *out)
{
    memset(out, 0, sizeof *out);
    brand(out->name, sizeof out->name);
    char features[128];
    oq_cpu_describe(device->features, features, sizeof features);
    snprintf(out->detail, sizeof out->detail, "%s; %d threads", features, oq_pool_threads(device->pool));
    oq_cpu_rates_describe(&device->rates, device->features, out->rates, sizeof out->rates);
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) out->memory_bytes = (size_t)pages * (size_t)page;
}

/* Large buffers in pages of 2 MB where the system gives them on request: weights are read through from end to end in
 * every step, and each page of 4 KB would cost a fault once and a translation each time. */
static void prefer_huge_pages(char *buffer, size_t bytes)
{
#if defined(__linux__)
    const uintptr_t huge = 2u << 20, first = ((uintptr_t)buffer + huge - 1) / huge * huge;
    const uintptr_t last = ((uintptr_t)buffer + bytes) / huge * huge;
    if (last > first)
        madvise(buffer + (first - (uintptr_t)buffer), last - first, MADV_HUGEPAGE); /* only advice */
#else
    (void)buffer;
    (void)bytes;
#endif
}

/* env promises 64; the buffer starts at the next multiple of 256 and the block's address is kept just below
 * it. */
static oq_status cpu_buffer_new(oq_env *env, oq_device *device, size_t bytes, void **out)
{
    (void)device;
    size_t total;
    if (!oq_size_add(bytes, ALIGNMENT, &total))
        return oq_fail(env, OQ_E_NOMEM, "a buffer of %zu bytes is beyond memory", bytes);
    char *const block = oq_alloc_raw(env, total);
    if (!block) return oq_fail(env, OQ_E_NOMEM, "no memory for a buffer of %zu bytes", bytes);
    char *const buffer = block + (ALIGNMENT - (uintptr_t)block % ALIGNMENT);
    memcpy(buffer - sizeof block, &block, sizeof block);
    prefer_huge_pages(buffer, bytes);
    *out = buffer;
    return OQ_OK;
}

static void cpu_buffer_free(oq_env *env, oq_device *device, void *buffer)
{
    (void)device;
    if (!buffer) return;
    char *block;
    memcpy(&block, (char *)buffer - sizeof block, sizeof block);
    oq_free(env, block);
}

static oq_status cpu_copy(oq_env *env, oq_device *device, void *dst, const void *src, size_t bytes)
{
    (void)env;
    (void)device;
    if (bytes) memmove(dst, src, bytes);
    return OQ_OK;
}

static oq_status cpu_sync(oq_env *env, oq_device *device)
{
    (void)env;
    (void)device;
    return OQ_OK;
}

static bool has(const oq_device *device, uint64_t need)
{
    return (device->features & need) == need;
}

static const oq_linear_kernel *cpu_find_linear(const oq_device *device, const oq_linear_spec *spec)
{
    const bool bare = oq_scheme_is_bare(&spec->scheme);
    for (size_t i = 0; oq_cpu_linear_list[i]; i++) {
        const oq_linear_kernel *const k = oq_cpu_linear_list[i];
        if (has(device, k->need) && (bare || k->around) && k->accepts(spec)) return k;
    }
    return NULL;
}

const oq_attention_kernel *oq_cpu_attention_plain(const oq_device *device, const oq_attention_spec *spec,
                                                  bool block_map)
{
    for (size_t i = 0; oq_cpu_attention_list[i]; i++) {
        const oq_attention_kernel *k = oq_cpu_attention_list[i];
        if (has(device, k->need) && k->accepts(spec) && (k->block_map || !block_map)) return k;
    }
    return NULL;
}

static const oq_attention_kernel *cpu_find_attention(const oq_device *device, const oq_attention_spec *spec)
{
    if (spec->precision == OQ_ATTENTION_PLAIN && spec->sparsity == 0)
        return oq_cpu_attention_plain(device, spec, false);
    return oq_attention_online.accepts(spec) ? &oq_attention_online : NULL;
}

static const oq_conv2d_kernel *cpu_find_conv2d(const oq_device *device, const oq_conv2d_spec *spec)
{
    for (size_t i = 0; oq_cpu_conv2d_list[i]; i++)
        if (has(device, oq_cpu_conv2d_list[i]->need) && oq_cpu_conv2d_list[i]->accepts(spec))
            return oq_cpu_conv2d_list[i];
    return NULL;
}

static const oq_ops *cpu_ops(const oq_device *device)
{
    return &device->ops;
}

const oq_backend oq_backend_cpu = {
    .abi = OQ_BACKEND_ABI,
    .struct_size = sizeof(oq_backend),
    .name = "cpu",
    .count = cpu_count,
    .open = cpu_open,
    .close = cpu_close,
    .info = cpu_info,
    .host_memory = true,
    .buffer_new = cpu_buffer_new,
    .buffer_free = cpu_buffer_free,
    .upload = cpu_copy,
    .download = cpu_copy,
    .sync = cpu_sync,
    .find_linear = cpu_find_linear,
    .find_attention = cpu_find_attention,
    .find_conv2d = cpu_find_conv2d,
    .ops = cpu_ops,
};
