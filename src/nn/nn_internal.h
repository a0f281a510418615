/* nn_internal.h -- what the files of this room share. */
#ifndef OQ_NN_NN_INTERNAL_H
#define OQ_NN_NN_INTERNAL_H

#include "nn/nn.h"

/* Raw scratch for a kernel, given back by the caller's mark; NULL for 0 bytes. */
oq_status oq_kernel_scratch(oq_exec *ex, size_t bytes, void **out);

#endif
