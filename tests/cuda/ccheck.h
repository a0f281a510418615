/* ccheck.h -- the workshop of ccheck: every kernel of the CUDA lists against plain C in double, on the card.
 * Buffers in device memory are poisoned and guarded on both sides, also between the columns and the row
 * distance. */
#ifndef CCHECK_H
#define CCHECK_H

#include "cuda/cuda.h"

#include <stdio.h>
#include <string.h>

extern const oq_backend oq_backend_cpu; /* cpu/cpu.h has the other oq_device */

typedef struct ccheck {
    oq_env *env;
    oq_device *gpu, *cpu; /* the CPU's references: opened as "ref" */
    uint64_t rng;
    const char *filter, *measured; /* parts of a kernel's name; of "op shape" of what is measured */
    bool brief;      /* fewer and smaller cases, for compute-sanitizer */
    double bench_ms; /* 0: check */
    int64_t part, n_parts, unit; /* this process takes the units of work whose number is `part` modulo `n_parts` */
    int64_t passed, failed;
} ccheck;

/* ---- inputs -------------------------------------------------------------------------------------------- */
uint32_t cc_u32(ccheck *c);
float cc_normal(ccheck *c);
float cc_rough_normal(ccheck *c); /* four bytes summed: near enough for a measurement, and quick */
typedef enum cc_class { CC_NORMAL, CC_OUTLIERS, CC_ZERO_ROWS, CC_POSITIVE, CC_N_CLASSES } cc_class;
void cc_fill(ccheck *c, cc_class kind, float *x, int64_t rows, int64_t cols);
void *cc_new(ccheck *c, size_t bytes);    /* host memory; ends the program when there is none */
void cc_ok(ccheck *c, oq_status st);      /* ends the program with the sentence of a failure */
void *cc_device(ccheck *c, size_t bytes); /* device memory, not guarded */
void *cc_upload(ccheck *c, const void *src, size_t bytes);
void cc_release(ccheck *c, void *device);

/* ---- a tensor that lives on both sides ----------------------------------------------------------------- */
typedef struct cc_tensor {
    oq_tensor host, device;
    char *host_block, *device_block;
    size_t bytes; /* of a block, guards included */
} cc_tensor;

/* Filled with `values` [rows, cols] rounded to the type; NULL: poison (NaN), for outputs. ld 0: cols. */
cc_tensor cc_tensor_new(ccheck *c, const oq_dtype *dtype, int64_t rows, int64_t cols, int64_t ld,
                        const float *values);
void cc_tensor_free(ccheck *c, cc_tensor *t);
/* The device's elements as f32 [rows, cols]; false: a guard was overwritten. */
bool cc_tensor_read(ccheck *c, const cc_tensor *t, float *out);
float cc_get(const cc_tensor *t, int64_t row, int64_t col); /* the host's element */

/* ---- verdicts ------------------------------------------------------------------------------------------ */
typedef struct cc_row {
    const char *kernel;
    int64_t cases, failed;
    double worst; /* largest error / bound */
} cc_row;

bool cc_mine(ccheck *c); /* true: the next unit of work is this process's */
bool cc_wants(const ccheck *c, const char *kernel);
bool cc_measures(const ccheck *c, const char *op, const char *shape);
bool cc_near(cc_row *row, double got, double want, double bound); /* both NaN is near */
void cc_case(ccheck *c, cc_row *row, bool ok, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void cc_row_print(const cc_row *row);
double cc_store_error(const oq_dtype *dtype, double value); /* rounding to the type */

/* Median milliseconds of fn(user, i), i counting launches, as a CUDA graph of many; one JSON line. */
typedef void (*cc_bench_fn)(void *user, int64_t i);
double cc_bench(ccheck *c, const char *op, const char *shape, double flop, double bytes, cc_bench_fn fn,
                void *user);

void ccheck_linear(ccheck *c);
void ccheck_attention(ccheck *c);
void ccheck_conv2d(ccheck *c);
void ccheck_ops(ccheck *c);
void ccheck_fused(ccheck *c);
void ccheck_around(ccheck *c);
void ccheck_places(ccheck *c);
void ccheck_backend(ccheck *c);

#endif
