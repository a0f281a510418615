/* cpu_probe.c -- which instructions this machine may run: the processor's answer (cpuid), the operating
 * system's (XCR0, for AMX also a permission per process; on AArch64 HWCAP alone), and the user's (--cpu LEVEL). */
#include "cpu/rates/rates.h"

#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool all_set(uint64_t bits, uint64_t wanted)
{
    return (bits & wanted) == wanted;
}

/* Linux hands out tile state on request, once per process; refused means: behave as if there were no AMX. */
static bool amx_permitted(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
#if defined(__linux__) && defined(SYS_arch_prctl)
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}

static uint64_t probe_avx512(unsigned leaf7_b, unsigned leaf7_c, unsigned leaf7_1_a)
{
    const unsigned base = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; /* F, DQ, BW, VL */
    if (!all_set(leaf7_b, base)) return 0;
    uint64_t features = OQ_CPU_AVX512;
    if (leaf7_c & 1u << 11) features |= OQ_CPU_AVX512VNNI;
    if (leaf7_c & 1u << 1) features |= OQ_CPU_AVX512VBMI;
    /* kernels of bf16 pairs decode codes by permutations of bytes */
    if (leaf7_1_a & 1u << 5 && features & OQ_CPU_AVX512VBMI) features |= OQ_CPU_AVX512BF16;
    return features;
}

uint64_t oq_cpu_probe(void)
{
    enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };
    unsigned a, b, c, d, a1 = 0, b1, c1, d1;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return 0;
    if (!all_set(c, 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29)) return 0; /* FMA, OSXSAVE, AVX, F16C */
    const uint64_t xcr0 = read_xcr0();
    if (!all_set(xcr0, XCR0_AVX)) return 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & 1u << 5)) return 0;
    if (a >= 1) __get_cpuid_count(7, 1, &a1, &b1, &c1, &d1);
    uint64_t features = OQ_CPU_AVX2;
    if (a1 & 1u << 4) features |= OQ_CPU_AVXVNNI;
    if (all_set(xcr0, XCR0_AVX512)) features |= probe_avx512(b, c, a1);
    const unsigned amx = 1u << 22 | 1u << 24 | 1u << 25; /* bf16, tile, int8 */
    const uint64_t below = OQ_CPU_AVX512 | OQ_CPU_AVX512VNNI | OQ_CPU_AVX512BF16 | OQ_CPU_AVX512VBMI;
    if (all_set(d, amx) && all_set(xcr0, XCR0_AMX) && all_set(features, below) && amx_permitted())
        features |= OQ_CPU_AMX;
    return features;
}

void oq_cpu_make(char *out, size_t n)
{
    unsigned a = 0, b = 0, c = 0, d = 0;
    char make[13] = "";
    if (__get_cpuid(0, &a, &b, &c, &d)) {
        memcpy(make, &b, 4), memcpy(make + 4, &d, 4), memcpy(make + 8, &c, 4);
        __get_cpuid(1, &a, &b, &c, &d);
    }
    snprintf(out, n, "%s %08x", make, a);
}

#elif defined(__aarch64__) && defined(__linux__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

uint64_t oq_cpu_probe(void)
{
    const unsigned long one = getauxval(AT_HWCAP), two = getauxval(AT_HWCAP2);
    if (!(one & HWCAP_ASIMD)) return 0;
    if (!(one & HWCAP_ASIMDDP) || !(one & HWCAP_ATOMICS))
        return OQ_CPU_NEON; /* what comes next is compiled for v8.2 */
    uint64_t features = OQ_CPU_NEON | OQ_CPU_DOTPROD;
    if (two & HWCAP2_I8MM) features |= OQ_CPU_I8MM;
    if (two & HWCAP2_BF16) features |= OQ_CPU_BF16;
    return features;
}

/* Implementer, part and revision; Linux lets programs read them where it says so. */
void oq_cpu_make(char *out, size_t n)
{
    uint64_t midr = 0;
    if (getauxval(AT_HWCAP) & HWCAP_CPUID) __asm__("mrs %0, MIDR_EL1" : "=r"(midr));
    snprintf(out, n, "AArch64 %08x", (unsigned)midr);
}

#else

uint64_t oq_cpu_probe(void)
{
    return 0;
}

void oq_cpu_make(char *out, size_t n)
{
    snprintf(out, n, "CPU");
}

#endif

enum {
    UP_TO_AVXVNNI = OQ_CPU_AVX2 | OQ_CPU_AVXVNNI,
    UP_TO_AVX512 = OQ_CPU_AVX2 | OQ_CPU_AVX512,
    UP_TO_AVX512VNNI = UP_TO_AVX512 | OQ_CPU_AVXVNNI | OQ_CPU_AVX512VNNI | OQ_CPU_AVX512VBMI,
    UP_TO_AVX512BF16 = UP_TO_AVX512VNNI | OQ_CPU_AVX512BF16,
    UP_TO_AMX = UP_TO_AVX512BF16 | OQ_CPU_AMX,
    UP_TO_DOTPROD = OQ_CPU_NEON | OQ_CPU_DOTPROD,
    UP_TO_I8MM = UP_TO_DOTPROD | OQ_CPU_I8MM,
    UP_TO_BF16 = UP_TO_I8MM | OQ_CPU_BF16
};

static const struct cpu_level {
    const char *name;
    uint64_t needed; /* the machine must have it */
    uint64_t mask;   /* the level allows it */
} levels[] = {
    {"auto", 0, UINT64_MAX},
    {"ref", 0, 0},
    {"avx2", OQ_CPU_AVX2, OQ_CPU_AVX2},
    {"avxvnni", OQ_CPU_AVXVNNI, UP_TO_AVXVNNI},
    {"avx512", OQ_CPU_AVX512, UP_TO_AVX512},
    {"avx512vnni", OQ_CPU_AVX512VNNI, UP_TO_AVX512VNNI},
    {"avx512bf16", OQ_CPU_AVX512BF16, UP_TO_AVX512BF16},
    {"amx", OQ_CPU_AMX, UP_TO_AMX},
    {"neon", OQ_CPU_NEON, OQ_CPU_NEON},
    {"dotprod", OQ_CPU_DOTPROD, UP_TO_DOTPROD},
    {"i8mm", OQ_CPU_I8MM, UP_TO_I8MM},
    {"bf16", OQ_CPU_BF16, UP_TO_BF16},
};

oq_status oq_cpu_mask(oq_env *env, const char *level, uint64_t *out, oq_cpu_rates *rates)
{
    const uint64_t probed = oq_cpu_probe(), choices = OQ_CPU_AVX512BF16 | OQ_CPU_AVX512VNNI | OQ_CPU_AMX |
                                                      OQ_CPU_DOTPROD | OQ_CPU_I8MM | OQ_CPU_BF16;
    oq_cpu_rates measured = {{0}};
    for (size_t i = 0; i < OQ_COUNT(levels); i++) {
        if (strcmp(levels[i].name, level) != 0) continue;
        if ((probed & levels[i].needed) != levels[i].needed)
            return oq_fail(env, OQ_E_UNSUPPORTED, "this machine has no %s", level);
        *out = probed & levels[i].mask;
        if (i == 0 && (probed & choices)) {
            oq_cpu_rates_get(probed, &measured);
            *out &= ~oq_cpu_rates_slower(probed, &measured);
        }
        if (rates) *rates = measured;
        return OQ_OK;
    }
    return oq_fail(env, OQ_E_ARG,
                   "unknown cpu level '%s'; known are auto, ref, avx2, avxvnni, avx512, avx512vnni, "
                   "avx512bf16, amx, neon, "
                   "dotprod, i8mm, bf16",
                   level);
}

void oq_cpu_describe(uint64_t features, char *out, size_t n)
{
    static const char *const names[] = {"avx2",       "avxvnni",    "avx512", "avx512vnni",
                                        "avx512bf16", "avx512vbmi", "amx",    "neon",
                                        "dotprod",    "i8mm",       "bf16"};
    size_t at = 0;
    if (!n) return;
    out[0] = '\0';
    for (size_t i = 0; i < OQ_COUNT(names) && at < n; i++) {
        if (!(features >> i & 1u)) continue;
        const int written = snprintf(out + at, n - at, "%s%s", at ? " " : "", names[i]);
        at += written > 0 ? (size_t)written : 0;
    }
    if (!features) snprintf(out, n, "plain C");
}
