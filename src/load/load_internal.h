/* load_internal.h -- what the files of this room share. */
#ifndef OQ_LOAD_LOAD_INTERNAL_H
#define OQ_LOAD_LOAD_INTERNAL_H

#include "load/load.h"

typedef struct oq_loading { /* one component while it is filled */
    oq_env            *env;
    oq_plan           *plan;
    oq_plan_component *c;
} oq_loading;

/* The functions below may run on any worker: they write no error text; OQ_E_NOMEM is named by the caller. */

/* Host bytes of one item; `dst` has the planned size, `bias` n floats (linear, conv2d with bias). */
oq_status oq_load_linear(const oq_loading *ld, const oq_plan_layer *layer, void *dst, float *bias);
oq_status oq_load_linear_bias(const oq_loading *ld, const oq_plan_layer *layer, float *bias); /* alone; nothing without one */
oq_status oq_load_conv2d(const oq_loading *ld, const oq_conv2d *conv, void *dst, float *bias);
oq_status oq_load_vector(const oq_loading *ld, const oq_vector *v, float *dst);
oq_status oq_load_table(const oq_loading *ld, const oq_table *t, void *dst);

/* Dummy weights made by the device at `packed` (NULL: only says whether it would). One thread alone. */
bool oq_load_fill(const oq_loading *ld, const oq_linear *l, void *packed);

/* f32 values of module name + suffix: from the file, or the dummy rule. */
oq_status oq_load_values(const oq_loading *ld, const char *name, const char *suffix, const int64_t *dim, int n_dims,
                         float *dst);

#endif
