/* cpu.h -- the CPU backend: its device, its features, its kernel lists. */
#ifndef OQ_CPU_CPU_H
#define OQ_CPU_CPU_H

#include "backend/backend.h"
#include "base/pool.h"

/* Feature bits, each checked for the processor and the operating system (XCR0; HWCAP). */
enum {
    OQ_CPU_AVX2 = 1u << 0,       /* AVX2 + FMA + F16C */
    OQ_CPU_AVXVNNI = 1u << 1,
    OQ_CPU_AVX512 = 1u << 2,     /* F + BW + DQ + VL */
    OQ_CPU_AVX512VNNI = 1u << 3,
    OQ_CPU_AVX512BF16 = 1u << 4,
    OQ_CPU_AVX512VBMI = 1u << 5,
    OQ_CPU_AMX = 1u << 6,        /* tile + int8 + bf16, and permission granted */
    OQ_CPU_NEON = 1u << 7,       /* every AArch64 */
    OQ_CPU_DOTPROD = 1u << 8,    /* sdot */
    OQ_CPU_I8MM = 1u << 9,       /* smmla; only together with DOTPROD */
    OQ_CPU_BF16 = 1u << 10       /* bfdot, bfmmla; only together with DOTPROD */
};

typedef enum oq_cpu_rate_kind {
    OQ_RATE_F32,
    OQ_RATE_BF16,
    OQ_RATE_INT8,
    OQ_RATE_AMX_BF16,
    OQ_RATE_AMX_INT8,
    OQ_N_RATES
} oq_cpu_rate_kind;

/* Products of one thread in GFLOP/s, operands in L1, through the kernels' own tiles; 0: not there or not measured. */
typedef struct oq_cpu_rates {
    double gflops[OQ_N_RATES];
} oq_cpu_rates;

struct oq_device { /* the CPU's */
    oq_env  *env;      /* of the caller that opened it */
    oq_pool *pool;     /* borrowed from env */
    uint64_t features; /* probed and masked */
    oq_cpu_rates rates; /* what "auto" chose by */
    oq_ops   ops;
    /* Rows [first, end) through the steps of ops.rows, on the calling thread; NULL where ops.rows is. */
    void   (*rows_walk)(const oq_rows_args *args, int64_t first, int64_t end);
};

extern const oq_backend oq_backend_cpu;

uint64_t oq_cpu_probe(void); /* what this machine has */
void     oq_cpu_make(char *out, size_t n); /* make, family, model and stepping, for machines to compare */
/* "auto", "ref"; "avx2", "avxvnni", "avx512", "avx512vnni", "avx512bf16", "amx"; "neon", "dotprod", "i8mm", "bf16": each
 * level includes those below it that belong to it. "auto" is all that makes this machine faster, by measured rates (rates/rates.h); `rates` may be
 * NULL. OQ_E_ARG for an unknown word, OQ_E_UNSUPPORTED for a level this machine lacks. */
oq_status oq_cpu_mask(oq_env *env, const char *level, uint64_t *out, oq_cpu_rates *rates);
/* "avx2 avx512 avx512vnni": names of the bits, for people. */
void oq_cpu_describe(uint64_t features, char *out, size_t n);

/* Ordered: fastest first, reference last. NULL-terminated. kcheck walks the same lists that the plan walks. */
extern const oq_linear_kernel *const    oq_cpu_linear_list[];
extern const oq_attention_kernel *const oq_cpu_attention_list[];
extern const oq_conv2d_kernel *const    oq_cpu_conv2d_list[];
void oq_cpu_ops_init(uint64_t features, oq_ops *out); /* reference first, then overridden level by level */
void oq_cpu_ops_init_ref(oq_ops *out);
void oq_cpu_device_init(uint64_t features, oq_device *device); /* features and everything that follows from them */

#endif
