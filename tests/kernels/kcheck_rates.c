/* kcheck_rates.c -- kcheck --rates: every weight format beside what the machine can do at that moment. Few rows of x: bytes
 * of packed weights a second, beside reading them and nothing else; each call has another copy of them, of so many that
 * they come from memory. Many rows: beside our own product of plain BF16 weights. The two sides take turns; a line has
 * the least times of both. */
#include "kernels/kcheck.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/pool.h"
#include "base/size.h"

enum { TURNS = 9, PIECES = 64, FEW_BYTES = 192 << 20 };

/* Of one thread its own time: what others run in between does not count. */
static double now_s(const kcheck *kc)
{
    struct timespec t;
    clock_gettime(oq_pool_threads(kc->device->pool) > 1 ? CLOCK_MONOTONIC : CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct side { /* one of two that take turns */
    kcheck *kc;
    const oq_linear_kernel *kernel;
    oq_linear_spec spec;
    oq_linear_args args;
    void *packed, *scratch, *x, *y, *blocks[4];
    size_t bytes; /* packed, a multiple of 64 of one copy */
    int copies, at;
    uint64_t sink[PIECES];
} side;

static void *aligned(side *s, int i, size_t bytes)
{
    s->blocks[i] = NULL;
    oq_device *const d = s->kc->device;
    if (oq_backend_cpu.buffer_new(s->kc->env, d, bytes + 64, &s->blocks[i]) != OQ_OK) {
        fprintf(stderr, "kcheck: %s\n", oq_env_error(s->kc->env));
        exit(2);
    }
    return s->blocks[i];
}

static void pack_weight(side *s, size_t least)
{
    const oq_format *const f = s->spec.scheme.weight;
    const int64_t n = s->spec.n, k = s->spec.k;
    oq_planes planes = {{NULL}};
    oq_planes_mut out = {{NULL}};
    kc_rng rng = kc_rng_new(s->kc, "rates", 0);
    float *const w = kc_new(s->kc, (size_t)(n * k) * sizeof *w);
    for (int64_t i = 0; i < n * k; i++) w[i] = i < 65536 ? kc_normal(&rng) : w[i - 65521];
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const size_t bytes = f->plane_bytes(f, (oq_plane)p, n, k);
        if (bytes) planes.plane[p] = out.plane[p] = kc_new(s->kc, bytes);
    }
    kc_encode(f, &out, w, n, k);
    s->bytes = oq_align_up(s->kernel->packed_bytes(&s->spec), 64);
    s->copies = least ? (int)(least / s->bytes) + 1 : 1;
    s->packed = aligned(s, 0, s->bytes * (size_t)s->copies);
    s->kernel->pack(s->packed, &planes, &s->spec);
    for (int i = 1; i < s->copies; i++) memcpy((char *)s->packed + (size_t)i * s->bytes, s->packed, s->bytes);
    for (int p = 0; p < OQ_N_PLANES; p++) oq_free(s->kc->env, out.plane[p]);
    oq_free(s->kc->env, w);
}

static void side_init(side *s, kcheck *kc, const oq_scheme *scheme, int64_t m, int64_t n, int64_t k,
                      size_t least)
{
    memset(s, 0, sizeof *s);
    s->kc = kc;
    s->spec = (oq_linear_spec){*scheme, n, k};
    s->kernel = oq_backend_cpu.find_linear(kc->device, &s->spec);
    pack_weight(s, least);
    s->scratch = aligned(s, 1, s->kernel->scratch_bytes(&s->spec, m));
    uint16_t *const x = aligned(s, 2, (size_t)(m * k) * 2);
    s->y = aligned(s, 3, (size_t)(m * n) * 2);
    kc_rng rng = kc_rng_new(kc, "rates", 1);
    for (int64_t i = 0; i < m * k; i++) {
        const float v = kc_normal(&rng);
        oq_dtype_bf16.from_f32(x + i, &v, 1);
    }
    s->x = x;
}

static void side_rows(side *s, int64_t m)
{
    s->args = (oq_linear_args){.spec = &s->spec,
                               .packed = s->packed,
                               .scratch = s->scratch,
                               .x = oq_tensor_make(s->x, &oq_dtype_bf16, m, s->spec.k),
                               .y = oq_tensor_make(s->y, &oq_dtype_bf16, m, s->spec.n)};
}

static void side_free(side *s)
{
    for (int i = 0; i < 4; i++) oq_backend_cpu.buffer_free(s->kc->env, s->kc->device, s->blocks[i]);
}

static const char *next_copy(side *s)
{
    s->at = (s->at + 1) % s->copies;
    return (const char *)s->packed + (size_t)s->at * s->bytes;
}

static void multiply(side *s)
{
    s->args.packed = next_copy(s);
    s->kernel->run(s->kc->device, &s->args);
}

/* A part of the packed weights, by additions alone. */
static void read_piece(void *user, int64_t piece, int worker)
{
    side *const s = user;
    const size_t words = s->bytes / 8 / PIECES;
    const uint64_t *const at = (const uint64_t *)s->args.packed + (size_t)piece * words;
    uint64_t sum[32] = {0};
    (void)worker;
    for (size_t i = 0; i + 32 <= words; i += 32)
        for (size_t j = 0; j < 32; j++) sum[j] += at[i + j];
    for (int j = 0; j < 32; j++) s->sink[piece] += sum[j];
}

static void read_all(side *s)
{
    s->args.packed = next_copy(s);
    oq_pool_run(s->kc->device->pool, PIECES, read_piece, s);
}

static double turn(side *s, void (*fn)(side *s))
{
    const double most = s->kc->bench_s / TURNS;
    double best = INFINITY;
    oq_pool_hot_begin(s->kc->device->pool);
    fn(s);
    for (double begin = now_s(s->kc), start = begin; start - begin < most;) {
        fn(s);
        const double end = now_s(s->kc);
        best = fmin(best, end - start);
        start = end;
    }
    oq_pool_hot_end(s->kc->device->pool);
    return best;
}

/* Least times of both; other / ours. */
static double take_turns(side *a, void (*ours)(side *s), side *b, void (*other)(side *s), double *mine,
                         double *theirs)
{
    *mine = *theirs = INFINITY;
    for (int i = 0; i < TURNS; i++) {
        *mine = fmin(*mine, turn(a, ours));
        *theirs = fmin(*theirs, turn(b, other));
    }
    return *theirs / *mine;
}

static void few_rows(kcheck *kc, const oq_scheme *scheme)
{
    static const int64_t rows[] = {1, 2, 4, 8, 16};
    side s;
    double mine, theirs;
    side_init(&s, kc, scheme, 16, 4096, 4096, FEW_BYTES);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        side_rows(&s, rows[i]);
        const double share = take_turns(&s, multiply, &s, read_all, &mine, &theirs);
        printf("{\"rates\":\"%s\",\"kernel\":\"%s\",\"threads\":%d,\"m\":%d,\"gb_s\":%.1f,\"read_gb_s\":%.1f,"
               "\"share\":%.2f,\"gflops\":%.0f}\n",
               scheme->weight->name, s.kernel->name, oq_pool_threads(kc->device->pool), (int)rows[i],
               (double)s.bytes / mine * 1e-9, (double)s.bytes / theirs * 1e-9, share,
               2e-9 * (double)(rows[i] * s.spec.n * s.spec.k) / mine);
        fflush(stdout);
    }
    side_free(&s);
}

static void many_rows(kcheck *kc, const oq_scheme *scheme)
{
    static const oq_scheme plain = {.weight = &oq_format_bf16};
    enum { M = 512, N = 1536, K = 2048 };
    side s, bf16;
    double mine, theirs;
    side_init(&s, kc, scheme, M, N, K, 0);
    side_init(&bf16, kc, &plain, M, N, K, 0);
    side_rows(&s, M);
    side_rows(&bf16, M);
    const double ratio = take_turns(&s, multiply, &bf16, multiply, &mine, &theirs);
    printf("{\"rates\":\"%s\",\"kernel\":\"%s\",\"threads\":%d,\"m\":%d,\"gflops\":%.0f,\"own_bf16\":%.0f,"
           "\"ratio\":%.3f}\n",
           scheme->weight->name, s.kernel->name, oq_pool_threads(kc->device->pool), M,
           2e-9 * M * N * K / mine, 2e-9 * M * N * K / theirs, ratio);
    fflush(stdout);
    side_free(&s);
    side_free(&bf16);
}

void kcheck_rates(kcheck *kc)
{
    static const oq_scheme schemes[] = {
        {.weight = &oq_format_bf16},
        {.weight = &oq_format_fp8_e4m3_channel},
        {.weight = &oq_format_fp8_e4m3_channel, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_fp8_e4m3_block128, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_GROUP},
        {.weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN},
        {.weight = &oq_format_int8_channel},
        {.weight = &oq_format_mxfp8},
        {.weight = &oq_format_q8_0},
        {.weight = &oq_format_q6_k},
        {.weight = &oq_format_q5_k},
        {.weight = &oq_format_q4_k},
        {.weight = &oq_format_q3_k},
        {.weight = &oq_format_q2_k},
        {.weight = &oq_format_q5_1},
        {.weight = &oq_format_q5_0},
        {.weight = &oq_format_q4_1},
        {.weight = &oq_format_q4_0},
        {.weight = &oq_format_iq4_nl},
        {.weight = &oq_format_iq4_xs},
        {.weight = &oq_format_int8_g128},
        {.weight = &oq_format_int4_g128},
        {.weight = &oq_format_int4z_g32},
        {.weight = &oq_format_nf4_b64},
        {.weight = &oq_format_nf4_b64_nested},
        {.weight = &oq_format_mxfp4},
        {.weight = &oq_format_nvfp4},
    };
    for (size_t i = 0; i < OQ_COUNT(schemes); i++) {
        if (kc->filter && !strstr(schemes[i].weight->name, kc->filter)) continue;
        few_rows(kc, &schemes[i]);
        many_rows(kc, &schemes[i]);
    }
}
