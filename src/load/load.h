/* load.h -- the plan's bytes: claim planes, normalise, encode, pack, upload; account for every tensor.
 * Reads the plan and the checkpoints alone. Streams layer by layer: the peak above the packed size is one layer. */
#ifndef OQ_LOAD_LOAD_H
#define OQ_LOAD_LOAD_H

#include "plan/plan.h"

typedef struct oq_weights { /* what load owns: one block of backend memory per component, and what is streamed */
    const oq_backend *backend;
    oq_device        *device;
    void            **blocks;
    void            **hosts;  /* per component: host memory of its streamed layers; NULL: none */
    oq_window        *window; /* NULL: nothing is streamed */
    size_t            n_blocks;
} oq_weights;

/* Fills packed, bias, data and tensor of every handle in the plan. Errors name the tensor: missing, wrong shape (both
 * shapes), wrong type, claimed by nobody. Progress phase "load". */
oq_status oq_load(oq_env *env, oq_plan *plan, oq_weights **out);
void      oq_weights_free(oq_env *env, oq_weights *weights);

/* Weights that need no file: f32 values of a tensor as a function of its name (see docs/numerics.md). */
void oq_dummy_fill(float *dst, const char *name, const int64_t *dim, int n_dims);
/* Its parts: the seed of a name, and the magnitude that its name and shape ask for. */
uint64_t oq_dummy_seed(const char *name);
void     oq_dummy_rule(const char *name, const int64_t *dim, int n_dims, float *scale, float *offset);
/* offset + scale * u(name, i): n values whose magnitude is given (u in [-1, 1)). */
void oq_dummy_fill_as(float *dst, const char *name, int64_t n, float scale, float offset);

#endif
