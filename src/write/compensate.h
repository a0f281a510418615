/* compensate.h -- integers in groups whose rounding errors make up for each other on a layer's own inputs (the idea of
 * GPTQ), rather than each weight going to its nearest number. */
#ifndef OQ_WRITE_COMPENSATE_H
#define OQ_WRITE_COMPENSATE_H

#include "base/env.h"
#include "format/format.h"

typedef enum oq_column_order {
    OQ_COLUMNS_AS_THEY_ARE, /* from the first to the last; a group's scale is chosen when its turn comes */
    OQ_COLUMNS_BY_ACTIVITY, /* those that are fed most first; groups stay neighbours, their scales are chosen before */
    OQ_COLUMNS_REGROUPED,   /* likewise, and groups are made in that order: the layer needs plane ORDER */
} oq_column_order;

typedef struct oq_compensation {
    const oq_format *format; /* int_bits is set */
    oq_column_order order;
    double damping; /* share of the mean diagonal that is added to the diagonal: 0.01 */
} oq_compensation;

typedef enum oq_compensated { /* how a layer was rounded */
    OQ_COMPENSATED,
    OQ_NEAREST_NO_INPUTS,  /* to nearest: the matrix is all zeros, no input was seen */
    OQ_NEAREST_NOT_FINITE, /* to nearest: the matrix holds a number that is not finite */
    OQ_NEAREST_INDEFINITE, /* to nearest: no damping up to the mean of its diagonal makes the matrix positive definite */
} oq_compensated;

typedef struct oq_compensation_result {
    oq_compensated how;
    double damping;       /* as used: ten times as much as was asked for, or a hundred, where less did not do */
    int64_t nearest_rows; /* rows that went to nearest, which was better for them */
    /* Sums over all inputs and rows of squares of outputs: of the weights' own, of what rounding to nearest adds to them, and
     * of what was written adds. 0 where nothing was compensated. */
    double signal, nearest_noise, noise;
} oq_compensation_result;

/* w[n,k] into the format's planes. hessian[k,k]: the sum of x x^T over all inputs x; symmetric. order[k] (REGROUPED alone,
 * else NULL) gets plane ORDER: the column of w that each column of the planes is; ascending within a group, as it is when
 * nothing is compensated. Weights that are not finite poison their groups as encode does; their rows go to nearest and
 * are not in the sums. OQ_OK or OQ_E_NOMEM, without a sentence. Threads of env; the same bits for any number of them. Takes about 8 k^2 + 4 k^2
 * bytes for a while; k^3 / 6 + 1.5 n k^2 products. */
oq_status oq_compensate(oq_env *env, const oq_compensation *c, const float *w, const float *hessian, int64_t n, int64_t k,
                        oq_planes_mut *planes, int32_t *order, oq_compensation_result *result);

#endif
