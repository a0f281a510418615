/* cholesky.h -- the triangular factor of a positive definite matrix. */
#ifndef OQ_WRITE_CHOLESKY_H
#define OQ_WRITE_CHOLESKY_H

#include "base/env.h"

/* a[k,k], of which the lower triangle is read: A = L L^T, and L stands in that triangle afterwards; what is above it stays.
 * OQ_E_FORMAT (without a sentence): A is not positive definite in double, or not finite. Else OQ_E_NOMEM. Threads of env;
 * the same bits for any number of them. About k^3 / 6 products. */
oq_status oq_cholesky(oq_env *env, double *a, int64_t k);

#endif
