/* lt.h -- products through cuBLASLt: y[m,n] = alpha * x[m,k] . w^T (+ bias), descriptors and algorithms
 * cached. */
#ifndef OQ_CUDA_LT_H
#define OQ_CUDA_LT_H

#include "cuda/cuda.h"

typedef enum oq_lt_kind {
    OQ_LT_F32, /* f32 operands and arithmetic, never TF32 */
    OQ_LT_BF16,
    OQ_LT_FP8,       /* e4m3 x e4m3, one f32 scale per row of x and of w (SM90) */
    OQ_LT_FP8_BLOCK, /* x_scale [k/128][m], w_scale [n/128][k/128 padded to 4] */
    OQ_LT_I8         /* -> i32 */
} oq_lt_kind;

typedef struct oq_lt_call {
    oq_lt_kind kind;
    bool w_is_kn;  /* w is [k,n], else [n,k] */
    bool y_is_f32; /* else bf16; I8 always gives i32 */
    int64_t m, n, k;
    int64_t ldx, ldw, ldy;
    const void *x, *w;
    void *y;
    const void *bias; /* [n] of y's type, or NULL; F32 and BF16 and FP8 alone */
    bool bias_first;  /* y becomes the bias, and the product is added to it; else an epilogue adds it */
    const float *x_scale, *w_scale;
} oq_lt_call;

/* False: cuBLASLt has no algorithm for this shape and alignment (nothing was launched); the caller goes
 * another way. FP8 products that have none with a bias (few rows, long k) are tried with bias_first. */
bool oq_lt_matmul(oq_device *d, const oq_lt_call *call);

oq_status oq_lt_open(oq_env *env, oq_device *d);
void oq_lt_close(oq_env *env, oq_device *d);

#endif
