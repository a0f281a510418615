/* kcheck.h -- the workshop of kcheck: every kernel of every list against plain C in double, on inputs shaped to reach
 * its branches, with guard bytes around every buffer; and its speed. A kernel family has one file kcheck_<op>.c with
 * one function that walks the list the planner walks, and one line in kcheck.c. */
#ifndef KCHECK_H
#define KCHECK_H

#include "cpu/cpu.h"

typedef struct kcheck {
    oq_env *env;
    oq_device *device; /* all threads, features masked by --cpu */
    oq_device single;  /* the same without a pool: results must not differ by one bit */
    uint64_t seed;
    bool above; /* only what the level `below` cannot run */
    uint64_t below;
    const char *filter; /* substring of a kernel's name; NULL: all */
    bool bench, rates;
    double bench_s;       /* least time spent per measurement */
    int64_t every, cases; /* of all cases so far, each `every`-th is tried */
    int64_t passed, failed;
} kcheck;

/* ---- inputs: the same for one seed and name on every machine ------------------------------------------- */

typedef struct kc_rng {
    uint64_t state;
} kc_rng;

kc_rng kc_rng_new(const kcheck *kc, const char *name, int64_t index);
uint32_t kc_u32(kc_rng *rng);
int64_t kc_below(kc_rng *rng, int64_t n); /* [0, n) */
float kc_uniform(kc_rng *rng, float lo, float hi);
float kc_normal(kc_rng *rng);

typedef enum kc_class {
    KC_UNIFORM, /* [-1, 1) */
    KC_NORMAL,
    KC_OUTLIERS,  /* normal with one column in 40 a hundred times larger */
    KC_ZERO_ROWS, /* normal, every third row zero */
    KC_DENORMALS, /* around the smallest normal f32, and zeros of both signs */
    KC_POSITIVE,  /* (0, 1]: no cancellation */
    KC_NAN_ROW,   /* normal, a NaN or an infinity in row rows / 2 */
    KC_N_CLASSES
} kc_class;
const char *kc_class_name(kc_class c);
void kc_fill(kc_rng *rng, kc_class c, float *x, int64_t rows, int64_t cols);
void kc_fill_bytes(kc_rng *rng, void *dst, size_t bytes);

/* W[n, k] in a format that can be written, also in one that cannot say NaN and so encodes blocks alone. */
bool kc_encodes(const oq_format *f);
void kc_encode(const oq_format *f, oq_planes_mut *planes, const float *w, int64_t n, int64_t k);

/* ---- buffers with guards ------------------------------------------------------------------------------- */

void *kc_new(kcheck *kc,
             size_t bytes); /* plain memory, ends the program when there is none; give back with oq_free */

/* `data` has exactly `bytes` bytes, filled with 0xff (NaN in every float type). In front of it are guard bytes; behind
 * it a page that ends the program when it is read or written. offset 0: data is aligned to 64, with up to 63 guard bytes
 * before that page. An offset > 0: data ends at the page, aligned to no more than its elements (odd: to nothing). */
typedef struct kc_buf {
    void *data;
    size_t bytes, slack, block_bytes;
    char *block;
} kc_buf;

kc_buf kc_buf_new(kcheck *kc, size_t bytes, size_t offset);
bool kc_buf_intact(const kc_buf *b); /* both guards as they were */
void kc_buf_free(kcheck *kc, kc_buf *b);

/* A view with its own guarded buffer; elements between cols and ld are guards too. */
typedef struct kc_matrix {
    oq_tensor t;
    kc_buf buf;
} kc_matrix;

kc_matrix kc_matrix_new(kcheck *kc, const oq_dtype *dtype, int64_t rows, int64_t cols, int64_t ld);
void kc_matrix_set(kc_matrix *m, const float *src); /* [rows, cols], contiguous; rounds to the view's type */
void kc_matrix_get(const kc_matrix *m, float *dst);
bool kc_matrix_intact(const kc_matrix *m);
bool kc_matrix_same(const kc_matrix *a, const kc_matrix *b); /* every element bit for bit */
void kc_matrix_free(kcheck *kc, kc_matrix *m);

/* ---- verdicts ------------------------------------------------------------------------------------------ */

/* What kcheck was doing, for the message of a crash. */
void kc_now(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void kc_catch_crashes(void);

#define KC_EPS 0x1p-24 /* half the distance from 1 to the next f32 */

/* Room for rounding `value` to the type when it is stored: half a step of bf16, f32. */
double kc_store_error(const oq_dtype *dtype, double value);
/* A bound of a sum of k products in f32 whose absolute values sum up to `abs_sum`. */
double kc_sum_error(int64_t k, double abs_sum);

typedef struct kc_row { /* one kernel's line of output */
    const char *kernel;
    int64_t cases, failed;
    double worst; /* largest error / bound seen */
} kc_row;

/* The next case: is it one of those that are tried (--every)? Asked once for each, before it is made. */
bool kc_turn(kcheck *kc);
/* Is it asked for, does it run at this level, and not already at the one below (--above)? */
bool kc_wants(const kcheck *kc, const char *kernel, uint64_t need);
/* |got - want| <= bound, or both NaN; keeps the worst ratio. The first failures are printed with `where`. */
bool kc_near(kc_row *row, double got, double want, double bound);
void kc_case(kcheck *kc, kc_row *row, bool ok, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void kc_row_print(const kc_row *row);

/* Calls fn(user) until bench_s have passed, prints one JSON line: median ms, and GFLOP/s for `flop` operations. */
void kc_bench(kcheck *kc, const char *kernel, const char *what, double flop, void (*fn)(void *user),
              void *user);

/* ---- kernels ------------------------------------------------------------------------------------------- */

/* Kernel `i` of a list of the CPU's, then those over modelled instructions (tests/kernels/model_*.c); NULL: no more. */
const oq_linear_kernel *kc_linear_kernel(int i);
const oq_attention_kernel *kc_attention_kernel(int i);
const oq_conv2d_kernel *kc_conv2d_kernel(int i);

/* 2^s of scores [32][32] in base 2 as bf16 numbers [32][32], by the table of attention over matrix tiles; x86-64 with AVX512_BF16
 * alone. */
void kc_attention_weights(const float *s, uint16_t *p);

/* ---- the families -------------------------------------------------------------------------------------- */

void kcheck_linear(kcheck *kc);
void kcheck_attention(kcheck *kc);
void kcheck_conv2d(kcheck *kc);
void kcheck_ops(kcheck *kc);
void kcheck_fused(kcheck *kc);

/* Not a family: speed of weight formats, with --rates; the filter is part of a format's name. */
void kcheck_rates(kcheck *kc);

#endif
