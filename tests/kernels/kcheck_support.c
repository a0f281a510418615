/* kcheck_support.c -- random inputs, guarded buffers, verdicts and measurements that all families share. */
#include "kernels/kcheck.h"

#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/size.h"

/* ---- inputs -------------------------------------------------------------------------------------------- */

kc_rng kc_rng_new(const kcheck *kc, const char *name, int64_t index)
{
    uint64_t h = 1469598103934665603u ^ kc->seed;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return (kc_rng){h ^ (uint64_t)index * 0x9e3779b97f4a7c15u};
}

static uint64_t next_u64(kc_rng *rng) /* splitmix64 */
{
    uint64_t z = rng->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint32_t kc_u32(kc_rng *rng)
{
    return (uint32_t)(next_u64(rng) >> 32);
}

int64_t kc_below(kc_rng *rng, int64_t n)
{
    return (int64_t)(((uint64_t)kc_u32(rng) * (uint64_t)n) >> 32);
}

float kc_uniform(kc_rng *rng, float lo, float hi)
{
    return lo + (hi - lo) * ((float)(kc_u32(rng) >> 8) * 0x1p-24f);
}

/* Sum of eight uniforms, 16 bits each, to a variance of 1: near enough, without libm, and of two draws. */
float kc_normal(kc_rng *rng)
{
    const uint64_t two = 0x0000ffff0000ffffu, a = next_u64(rng), b = next_u64(rng);
    const uint64_t sums = (a & two) + (a >> 16 & two) + (b & two) + (b >> 16 & two);
    const int sum = (int)(sums & 0xffffffffu) + (int)(sums >> 32);
    return (float)(sum - 8 * 65535 / 2) * (1.22474487f / 65536.0f);
}

const char *kc_class_name(kc_class c)
{
    static const char *const names[KC_N_CLASSES] = {"uniform",   "normal",   "outliers", "zero rows",
                                                    "denormals", "positive", "nan row"};
    return names[c];
}

static float value_of(kc_rng *rng, kc_class c, int64_t row, int64_t col)
{
    switch (c) {
    case KC_UNIFORM:
        return kc_uniform(rng, -1.0f, 1.0f);
    case KC_OUTLIERS:
        return kc_normal(rng) * (col % 40 == 7 ? 100.0f : 1.0f);
    case KC_ZERO_ROWS:
        return row % 3 == 1 ? 0.0f : kc_normal(rng);
    case KC_DENORMALS:
        return kc_below(rng, 4) ? kc_normal(rng) * 0x1p-126f : copysignf(0.0f, kc_normal(rng));
    case KC_POSITIVE:
        return 1.0f - kc_uniform(rng, 0.0f, 1.0f);
    default:
        return kc_normal(rng);
    }
}

void kc_fill(kc_rng *rng, kc_class c, float *x, int64_t rows, int64_t cols)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t j = 0; j < cols; j++) x[r * cols + j] = value_of(rng, c, r, j);
    if (c == KC_NAN_ROW)
        x[rows / 2 * cols + kc_below(rng, cols)] = kc_below(rng, 2)   ? NAN
                                                   : kc_below(rng, 2) ? INFINITY
                                                                      : -INFINITY;
}

void kc_fill_bytes(kc_rng *rng, void *dst, size_t bytes)
{
    unsigned char *const at = dst;
    for (size_t i = 0; i < bytes; i++) at[i] = (unsigned char)(kc_u32(rng) >> 11);
}

bool kc_encodes(const oq_format *f)
{
    return f->encode || (f->block && f->block->encode);
}

void kc_encode(const oq_format *f, oq_planes_mut *planes, const float *w, int64_t n, int64_t k)
{
    if (f->encode) {
        f->encode(f, planes, w, n, k);
        return;
    }
    const oq_block *const b = f->block;
    for (int64_t at = 0; at < n * k; at += b->elems) {
        float part[OQ_BLOCK_ELEMS] = {0};
        memcpy(part, w + at, (size_t)oq_min_i64(b->elems, n * k - at) * sizeof *part);
        b->encode((uint8_t *)planes->plane[OQ_PLANE_DATA] + at / b->elems * b->bytes, part);
    }
}

/* ---- buffers ------------------------------------------------------------------------------------------- */

enum { GUARD = 192, FILL = 0xff };

static unsigned char guard_byte(size_t i)
{
    return (unsigned char)(0xa5u ^ (i * 37u));
}

void *kc_new(kcheck *kc, size_t bytes)
{
    void *const data = oq_alloc_raw(kc->env, bytes);
    if (data) return data;
    fprintf(stderr, "kcheck: no memory for %zu bytes\n", bytes);
    exit(2);
}

/* One mapping: guard bytes, the data, at most 63 guard bytes, and a page that nobody may touch. */
kc_buf kc_buf_new(kcheck *kc, size_t bytes, size_t offset)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), open = oq_align_up(bytes + GUARD + 64, page);
    kc_buf b = {.bytes = bytes, .block_bytes = open + page};
    void *const block = mmap(NULL, b.block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED || mprotect((char *)block + open, page, PROT_NONE) != 0) {
        fprintf(stderr, "kcheck: no memory for %zu bytes\n", b.block_bytes);
        exit(2);
    }
    b.block = block;
    if (kc->bench) madvise(block, open, MADV_HUGEPAGE); /* as the backend's buffers are */
    const size_t slack = offset ? (offset & 1u) && bytes % 2 == 0 : (64 - bytes % 64) % 64;
    char *const data = b.block + open - slack - bytes;
    for (size_t i = 0; i < GUARD; i++) (data - GUARD)[i] = (char)guard_byte(i);
    for (size_t i = 0; i < slack; i++) data[bytes + i] = (char)guard_byte(i);
    memset(data, FILL, bytes);
    b.data = data;
    b.slack = slack;
    return b;
}

bool kc_buf_intact(const kc_buf *b)
{
    const unsigned char *const data = b->data;
    for (size_t i = 0; i < GUARD; i++)
        if ((data - GUARD)[i] != guard_byte(i)) return false;
    for (size_t i = 0; i < b->slack; i++)
        if (data[b->bytes + i] != guard_byte(i)) return false;
    return true;
}

void kc_buf_free(kcheck *kc, kc_buf *b)
{
    (void)kc;
    if (b->block) munmap(b->block, b->block_bytes);
    *b = (kc_buf){0};
}

kc_matrix kc_matrix_new(kcheck *kc, const oq_dtype *dtype, int64_t rows, int64_t cols, int64_t ld)
{
    /* The last row ends with its last column: nothing may touch what would be its gap. */
    const size_t elems = rows > 0 ? (size_t)((rows - 1) * ld + cols) : 0;
    kc_matrix m = {.buf = kc_buf_new(kc, elems * dtype->bytes, dtype->bytes)};
    m.t = (oq_tensor){m.buf.data, dtype, rows, cols, ld};
    return m;
}

static char *element(const kc_matrix *m, int64_t row, int64_t col)
{
    return (char *)m->t.data + (size_t)(row * m->t.ld + col) * m->t.dtype->bytes;
}

void kc_matrix_set(kc_matrix *m, const float *src)
{
    for (int64_t r = 0; r < m->t.rows; r++)
        m->t.dtype->from_f32(element(m, r, 0), src + r * m->t.cols, (size_t)m->t.cols);
}

void kc_matrix_get(const kc_matrix *m, float *dst)
{
    for (int64_t r = 0; r < m->t.rows; r++)
        m->t.dtype->to_f32(dst + r * m->t.cols, element(m, r, 0), (size_t)m->t.cols);
}

bool kc_matrix_intact(const kc_matrix *m)
{
    const size_t gap = (size_t)(m->t.ld - m->t.cols) * m->t.dtype->bytes;
    for (int64_t r = 0; r + 1 < m->t.rows; r++) {
        const unsigned char *const at = (const unsigned char *)element(m, r, m->t.cols);
        for (size_t i = 0; i < gap; i++)
            if (at[i] != FILL) return false;
    }
    return kc_buf_intact(&m->buf);
}

bool kc_matrix_same(const kc_matrix *a, const kc_matrix *b)
{
    for (int64_t r = 0; r < a->t.rows; r++)
        if (memcmp(element(a, r, 0), element(b, r, 0), (size_t)a->t.cols * a->t.dtype->bytes) != 0)
            return false;
    return true;
}

void kc_matrix_free(kcheck *kc, kc_matrix *m)
{
    kc_buf_free(kc, &m->buf);
}

/* ---- verdicts ------------------------------------------------------------------------------------------ */

static char now_text[256];

void kc_now(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(now_text, sizeof now_text, fmt, args);
    va_end(args);
}

static void crashed(int number)
{
    static const char head[] = "kcheck: crash (memory beyond a buffer?) in ";
    ssize_t n = write(STDERR_FILENO, head, sizeof head - 1);
    n = write(STDERR_FILENO, now_text, strlen(now_text));
    n = write(STDERR_FILENO, "\n", 1);
    (void)n;
    signal(number, SIG_DFL);
    raise(number);
}

void kc_catch_crashes(void)
{
    signal(SIGSEGV, crashed);
    signal(SIGBUS, crashed);
    signal(SIGILL, crashed);
}

double kc_store_error(const oq_dtype *dtype, double value)
{
    return dtype == &oq_dtype_bf16 ? fabs(value) * 0x1p-8 + 0x1p-134 : fabs(value) * KC_EPS + 0x1p-149;
}

double kc_sum_error(int64_t k, double abs_sum)
{
    return (8.0 + 2.0 * sqrt((double)k)) * KC_EPS * abs_sum + (double)k * 0x1p-149;
}

bool kc_wants(const kcheck *kc, const char *kernel, uint64_t need)
{
    kc_now("%s", kernel);
    if (need & ~kc->device->features) return false;
    if (kc->above && !(need & ~kc->below)) return false;
    return !kc->filter || strstr(kernel, kc->filter);
}

bool kc_near(kc_row *row, double got, double want, double bound)
{
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
    if (isinf(want)) return got == want;
    const double error = fabs(got - want);
    const double ratio = bound > 0 ? error / bound : error > 0 ? INFINITY : 0.0;
    if (ratio > row->worst) row->worst = ratio;
    return error <= bound;
}

bool kc_turn(kcheck *kc)
{
    return kc->cases++ % kc->every == 0;
}

void kc_case(kcheck *kc, kc_row *row, bool ok, const char *fmt, ...)
{
    enum { SHOWN = 10 };
    row->cases++;
    kc->passed += ok;
    kc->failed += !ok;
    if (ok || ++row->failed > SHOWN) return;
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "FAILED %s: ", row->kernel);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
}

void kc_row_print(const kc_row *row)
{
    if (!row->cases) return;
    printf("{\"kernel\":\"%s\",\"cases\":%lld,\"failed\":%lld,\"worst\":%.3f}\n", row->kernel,
           (long long)row->cases, (long long)row->failed, isinf(row->worst) ? 999.0 : row->worst);
    fflush(stdout);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Alone, a thread measures its own time and so not its neighbours; several measure the clock on the wall. */
static double bench_clock(bool single)
{
    struct timespec t;
    clock_gettime(single ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void kc_bench(kcheck *kc, const char *kernel, const char *what, double flop, void (*fn)(void *user),
              void *user)
{
    enum { MAX_RUNS = 2000, MIN_RUNS = 5 };
    double *const times = oq_alloc_raw(kc->env, MAX_RUNS * sizeof *times);
    if (!times) return;
    const bool single = oq_pool_threads(kc->device->pool) == 1;
    int n = 0;
    oq_pool_hot_begin(kc->device->pool);
    fn(user);
    for (double spent = 0.0; n < MAX_RUNS && (spent < kc->bench_s || n < MIN_RUNS); n++) {
        const double start = bench_clock(single);
        fn(user);
        times[n] = bench_clock(single) - start;
        spent += times[n];
    }
    oq_pool_hot_end(kc->device->pool);
    qsort(times, (size_t)n, sizeof *times, by_value);
    const double median = times[n / 2];
    printf("{\"bench\":\"%s\",\"case\":\"%s\",\"threads\":%d,\"runs\":%d,\"ms\":%.4f,\"best_ms\":%.4f,"
           "\"gflops\":%.1f}\n",
           kernel, what, oq_pool_threads(kc->device->pool), n, median * 1e3, times[0] * 1e3,
           flop / median * 1e-9);
    fflush(stdout);
    oq_free(kc->env, times);
}
