/* run_parts.h -- what families do alike while they run: progress, keys of the trace, text states, the look for the
 * layer that broke. */
#ifndef OQ_PIPELINES_RUN_PARTS_H
#define OQ_PIPELINES_RUN_PARTS_H

#include "nn/nn.h"

enum { OQ_RUN_PREFIX_MAX = 64 };

/* Progress of a phase; silent while measuring. */
void oq_run_tell(const oq_exec *ex, const char *phase, int64_t done, int64_t total, double started_s);
/* Keys of a network's inner tensors: item 0 has the plain prefix, item J "dit0.J". NULL without a trace. */
const char *oq_run_prefix(const oq_exec *ex, const char *name, int64_t item, char out[OQ_RUN_PREFIX_MAX]);

/* A part of the run that can be done again: everything that it reads is still in place. */
typedef oq_status (*oq_run_again)(oq_exec *ex, void *user);
/* The error for values that are not finite: `again` is run under a probe, without trace, to name the layer. */
oq_status oq_run_not_finite(oq_exec *ex, oq_run_again again, void *user, const char *component, const char *what);
/* Calls `again` once and checks that `y` is finite where the backend can tell. */
oq_status oq_run_checked(oq_exec *ex, oq_run_again again, void *user, oq_tensor y, const char *component,
                         const char *what);

/* [rows, cols] -> [cols, rows] */
void oq_values_transpose(float *dst, const float *src, int64_t rows, int64_t cols);

#endif
