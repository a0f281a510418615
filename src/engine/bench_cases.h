/* bench_cases.h -- single operations to measure: operands filled, weights packed, one call to run. */
#ifndef OQ_ENGINE_BENCH_CASES_H
#define OQ_ENGINE_BENCH_CASES_H

#include "base/arena.h"
#include "cpu/cpu.h"

enum { OQ_BENCH_BUFFERS = 12 }; /* of a case at most: rows before a product, and the product */

/* Everything is owned by the arena or is one of the device's buffers; `device` is the caller's. `run` may be called any
 * number of times. */
typedef struct oq_bench_case {
    oq_arena    arena;
    void       *buffers[OQ_BENCH_BUFFERS];
    int         n_buffers;
    oq_device  *device;
    const char *kernel; /* its name, or the operation's */
    double      flops;  /* of one call; 0: not counted */
    void (*run)(struct oq_bench_case *c);
    union {
        struct {
            const oq_linear_kernel *kernel;
            oq_linear_spec          spec;
            oq_linear_args          args;
        } linear;
        struct {
            const oq_attention_kernel *kernel;
            oq_attention_spec          spec;
            oq_attention_args          args;
        } attention;
        struct {
            const oq_conv2d_kernel *kernel;
            oq_conv2d_spec          spec;
            oq_conv2d_args          args;
        } conv;
        oq_norm_args norm;
    } u;
    oq_rows_args rows; /* of modulate and quantize */
} oq_bench_case;

/* `kernel` NULL: the one that a plan would choose. After a failure there is nothing to free. */
oq_status oq_bench_case_linear(oq_bench_case *c, oq_env *env, oq_device *device, const oq_linear_kernel *kernel,
                               oq_linear_spec spec, int64_t m, const oq_dtype *activation);
oq_status oq_bench_case_attention(oq_bench_case *c, oq_env *env, oq_device *device, const oq_attention_kernel *kernel,
                                  oq_attention_spec spec, int64_t tokens, const oq_dtype *type);
/* Of one picture, or of one video where spec.kt > 0. */
oq_status oq_bench_case_conv(oq_bench_case *c, oq_env *env, oq_device *device, const oq_conv2d_kernel *kernel,
                             oq_conv2d_spec spec, int64_t side, int64_t frames, const oq_dtype *type);
/* silu(group norm) of a picture, 32 groups. */
oq_status oq_bench_case_group_norm(oq_bench_case *c, oq_env *env, oq_device *device, int64_t channels, int64_t side,
                                   const oq_dtype *type);
/* layer norm, (1 + scale) x + shift. */
oq_status oq_bench_case_modulate(oq_bench_case *c, oq_env *env, oq_device *device, int64_t rows, int64_t cols,
                                 const oq_dtype *type);
/* The same of BF16 rows, then a scale per row and int8: as an int8 product takes it in, here of 32 columns, which it
 * multiplies too. */
oq_status oq_bench_case_quantize(oq_bench_case *c, oq_env *env, oq_device *device, int64_t rows, int64_t cols);
void oq_bench_case_free(oq_bench_case *c);
/* One call of a case, as an oq_bench_fn. */
oq_status oq_bench_case_call(void *c);

#endif
