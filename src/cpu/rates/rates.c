/* rates.c -- measuring products, and the cache of what was measured. */
#include "cpu/rates/rates.h"

#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"

enum {
    ROUNDS = 6,       /* the kinds take turns: a neighbour disturbs all of them */
    TURN_NS = 250000, /* least time of one turn */
    TEXT_BYTES = 1024,
    PATH_BYTES = 4096
};

static const struct rate_kind {
    const char *name;  /* in the cache */
    const char *label; /* for people */
    int step;          /* multiplications a dword */
} kinds[OQ_N_RATES] = {
    [OQ_RATE_F32] = {"f32", "f32", 1},
    [OQ_RATE_BF16] = {"bf16", "bf16", 2},
    [OQ_RATE_INT8] = {"int8", "int8", 4},
    [OQ_RATE_AMX_BF16] = {"amx_bf16", "AMX bf16", 2},
    [OQ_RATE_AMX_INT8] = {"amx_int8", "AMX int8", 4},
};

/* ---- measuring ----------------------------------------------------------------------------------------- */

typedef void (*work_fn)(oq_rate_work *w);

static work_fn work_of(oq_cpu_rate_kind kind, uint64_t features)
{
#if defined(__x86_64__)
    switch (kind) {
    case OQ_RATE_F32:
        return features & OQ_CPU_AVX512 ? oq_rate_f32_avx512
               : features & OQ_CPU_AVX2 ? oq_rate_f32_avx2
                                        : NULL;
    case OQ_RATE_BF16:
        return features & OQ_CPU_AVX512BF16 ? oq_rate_bf16_avx512bf16 : NULL;
    case OQ_RATE_INT8:
        return features & OQ_CPU_AVX512VNNI ? oq_rate_i8_avx512vnni : NULL;
    case OQ_RATE_AMX_BF16:
        return features & OQ_CPU_AMX ? oq_rate_bf16_amx : NULL;
    case OQ_RATE_AMX_INT8:
        return features & OQ_CPU_AMX ? oq_rate_i8_amx : NULL;
    default:
        break;
    }
#elif defined(__aarch64__)
    switch (kind) {
    case OQ_RATE_F32:
        return features & OQ_CPU_NEON ? oq_rate_f32_neon : NULL;
    case OQ_RATE_BF16:
        return features & OQ_CPU_BF16 ? oq_rate_bf16_bf16 : NULL;
    case OQ_RATE_INT8:
        return features & OQ_CPU_I8MM      ? oq_rate_i8_i8mm
               : features & OQ_CPU_DOTPROD ? oq_rate_i8_dotprod
                                           : NULL;
    default:
        break;
    }
#else
    (void)kind, (void)features;
#endif
    return NULL;
}

/* This thread's own time: what others run in between does not count. */
static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static double turn(work_fn work, oq_rate_work *w, int step)
{
    enum { BATCH = 16 };
    const double flop = 2.0 * OQ_RATE_ROWS * OQ_RATE_COLS * OQ_RATE_DEPTH * step * BATCH;
    double best = 0;
    for (int64_t start = thread_ns(), now = start; now - start < TURN_NS;) {
        const int64_t before = now;
        for (int i = 0; i < BATCH; i++) work(w);
        now = thread_ns();
        if (now > before) best = fmax(best, flop / (double)(now - before));
    }
    return best;
}

static void measure(uint64_t features, oq_cpu_rates *out)
{
    oq_rate_work w;
    memset(&w, 0, sizeof w);
    *out = (oq_cpu_rates){{0}};
    for (int round = 0; round < ROUNDS; round++)
        for (int k = 0; k < OQ_N_RATES; k++) {
            const work_fn work = work_of((oq_cpu_rate_kind)k, features);
            if (work) out->gflops[k] = fmax(out->gflops[k], turn(work, &w, kinds[k].step));
        }
}

uint64_t oq_cpu_rates_slower(uint64_t probed, const oq_cpu_rates *r)
{
    const double *const g = r->gflops;
    uint64_t slower = 0;
    if (g[OQ_RATE_BF16] < g[OQ_RATE_F32]) slower |= OQ_CPU_AVX512BF16 | OQ_CPU_BF16;
    if (g[OQ_RATE_INT8] < g[OQ_RATE_F32]) slower |= OQ_CPU_AVX512VNNI | OQ_CPU_DOTPROD | OQ_CPU_I8MM;
    if (g[OQ_RATE_AMX_BF16] < fmax(g[OQ_RATE_BF16], g[OQ_RATE_F32]) || g[OQ_RATE_AMX_INT8] < g[OQ_RATE_INT8])
        slower |= OQ_CPU_AMX;
    return probed & slower;
}

void oq_cpu_rates_describe(const oq_cpu_rates *rates, uint64_t features, char *out, size_t n)
{
    const char *before = "products per core in GFLOP/s: ";
    size_t at = 0;
    out[0] = '\0';
    for (int k = 0; k < OQ_N_RATES && at < n; k++) {
        if (!(rates->gflops[k] > 0)) continue;
        const bool taken = work_of((oq_cpu_rate_kind)k, features) != NULL;
        const int written = snprintf(out + at, n - at, "%s%s %.0f%s", before, kinds[k].label,
                                     rates->gflops[k], taken ? "" : " (left out)");
        at += written > 0 ? (size_t)written : 0;
        before = ", ";
    }
}

/* ---- the cache ----------------------------------------------------------------------------------------- */

/* One line of a form and a line for each rate: "f32 255.1". */
void oq_cpu_rates_print(const oq_cpu_rates *rates, const char *key, char *out, size_t n)
{
    size_t at = 0;
    int written = snprintf(out, n, "omniq cpu rates, GFLOP/s of one thread: %s\n", key);
    at += written > 0 ? (size_t)written : 0;
    for (int k = 0; k < OQ_N_RATES && at < n; k++) {
        written = snprintf(out + at, n - at, "%s %.1f\n", kinds[k].name, rates->gflops[k]);
        at += written > 0 ? (size_t)written : 0;
    }
}

/* Strict: what was not written by oq_cpu_rates_print for this very key is not believed. */
bool oq_cpu_rates_parse(const char *text, const char *key, oq_cpu_rates *out)
{
    char again[TEXT_BYTES];
    oq_cpu_rates rates = {{0}};
    const char *line = strchr(text, '\n');
    for (int k = 0; k < OQ_N_RATES; k++) {
        if (!line) return false;
        const size_t length = strlen(kinds[k].name);
        if (strncmp(line + 1, kinds[k].name, length) != 0 || line[1 + length] != ' ') return false;
        rates.gflops[k] = strtod(line + 2 + length, NULL);
        if (!(rates.gflops[k] >= 0 && rates.gflops[k] < 1e7)) return false;
        line = strchr(line + 1, '\n');
    }
    oq_cpu_rates_print(&rates, key, again, sizeof again);
    if (strcmp(text, again) != 0) return false;
    *out = rates;
    return true;
}

/* Make, family, model and stepping, what may be used of it, and the version of the tiles that were timed. What sanitizers or
 * missing optimization slow down says nothing about other builds, which share the cache. */
static void make_key(uint64_t features, char *out, size_t n)
{
#if defined(OMNIQ_SANITIZED) || !defined(__OPTIMIZE__)
    const char *const build = " slowed";
#else
    const char *const build = "";
#endif
    char make[32];
    oq_cpu_make(make, sizeof make);
    snprintf(out, n, "%s features %" PRIx64 " omniq %s 1%s", make, features, OQ_VERSION_STRING, build);
}

/* FNV-1a of the key names the file: one for each kind of machine that shares a home. */
static bool cache_path(const char *key, char *folder, char *out, size_t n)
{
    const char *const cache = getenv("XDG_CACHE_HOME"), *const home = getenv("HOME");
    uint64_t hash = 0xcbf29ce484222325u;
    int length;
    for (const char *p = key; *p; p++) hash = (hash ^ (unsigned char)*p) * 0x100000001b3u;
    if (cache && *cache == '/')
        length = snprintf(folder, n, "%s/omniq", cache);
    else if (home && *home == '/')
        length = snprintf(folder, n, "%s/.cache/omniq", home);
    else
        return false;
    if (length < 0 || (size_t)length >= n) return false;
    length = snprintf(out, n, "%s/cpu-rates-%016" PRIx64 ".txt", folder, hash);
    return length > 0 && (size_t)length < n;
}

static bool read_cache(const char *path, const char *key, oq_cpu_rates *out)
{
    char text[TEXT_BYTES];
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return false;
    const ssize_t got = read(fd, text, sizeof text - 1);
    close(fd);
    if (got <= 0 || (size_t)got == sizeof text - 1) return false;
    text[got] = '\0';
    return oq_cpu_rates_parse(text, key, out);
}

/* Under a name of this process, then renamed: others read a whole file or none. Whatever fails is left as it is. */
static void write_cache(const char *folder, const char *path, const char *text)
{
    char beside[PATH_BYTES + 32], parent[PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", folder);
    *strrchr(parent, '/') = '\0';
    mkdir(parent, 0700);
    mkdir(folder, 0700);
    snprintf(beside, sizeof beside, "%s.%ld", path, (long)getpid());
    const int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return;
    const size_t length = strlen(text);
    const bool whole = write(fd, text, length) == (ssize_t)length;
    if (close(fd) != 0 || !whole || rename(beside, path) != 0) unlink(beside);
}

void oq_cpu_rates_get(uint64_t probed, oq_cpu_rates *out)
{
    char key[160], folder[PATH_BYTES], path[PATH_BYTES];
    make_key(probed, key, sizeof key);
    const bool cached = cache_path(key, folder, path, sizeof path);
    if (cached && read_cache(path, key, out)) return;
    char text[TEXT_BYTES];
    oq_cpu_rates rates;
    measure(probed, &rates);
    oq_cpu_rates_print(&rates, key, text, sizeof text);
    if (!oq_cpu_rates_parse(text, key, out)) *out = rates; /* the very numbers that the cache will give */
    if (cached) write_cache(folder, path, text);
}
