/* kcheck_linear.h -- one product that a linear kernel is asked for: its operands, and what it should give. */
#ifndef OQ_TESTS_KCHECK_LINEAR_H
#define OQ_TESTS_KCHECK_LINEAR_H

#include "kernels/kcheck.h"

typedef struct kc_linear_shape {
    int64_t m, n, k;
} kc_linear_shape;

/* One product: its operands, and what it should give. */
typedef struct kc_linear {
    oq_linear_spec spec;
    kc_linear_shape s;
    kc_matrix x, y;
    kc_buf planes[OQ_N_PLANES], packed, scratch, bias;
    oq_planes view;
    bool has_bias, exact;
    bool rounded;         /* weights are rounded to bf16 first */
    double loss;          /* x is in fixed point: what of a run's largest |x| may be lost; 0: it is not */
    int64_t run;          /* columns of such a run */
    double times;         /* numbers of W's codes are rounded to so many parts of one; 0: they are not */
    double *want, *bound; /* [m, n] */
} kc_linear;

/* Weights: encoded from numbers, or (all codes) random bytes under random scales; and what the scheme has around them. */
void kc_linear_weight(kcheck *kc, kc_rng *rng, kc_linear *p, kc_class class, bool all_codes);
/* x, y and the bias. `variant`, bit by bit: x in bf16, y in bf16, rows farther apart than they are long, a bias. */
void kc_linear_input(kcheck *kc, kc_rng *rng, kc_linear *p, kc_class class, int variant);
/* Then: one number for all of x, whose whole number in fixed point is as large as BF16 lets it be. */
void kc_linear_level(kcheck *kc, kc_linear *p);
void kc_linear_expect(kcheck *kc, kc_linear *p); /* fills want and bound, by a sum in double */
void kc_linear_free(kcheck *kc, kc_linear *p);

#endif
