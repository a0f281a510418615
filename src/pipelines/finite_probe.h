/* finite_probe.h -- where did the first non-finite value come from? A forward pass is repeated under an
 * observer that looks at every linear product; used only after something went wrong. */
#ifndef OQ_PIPELINES_FINITE_PROBE_H
#define OQ_PIPELINES_FINITE_PROBE_H

#include "nn/nn.h"

typedef struct oq_finite_probe {
    oq_exec *ex;
    const char *layer;          /* the first layer that saw or gave a non-finite value; NULL: none did */
    bool in_input;              /* it came with the layer's input */
    oq_layer_observer observer; /* put back at the end */
    void *user;
} oq_finite_probe;

void oq_finite_probe_begin(oq_finite_probe *probe, oq_exec *ex);
void oq_finite_probe_end(oq_finite_probe *probe);
/* OQ_E_NUMERIC: "<what>: non-finite values, first in the output of <component> layer '…'". */
oq_status oq_finite_probe_fail(const oq_finite_probe *probe, const char *component, const char *what);

#endif
