/* run_parts.h -- what families do alike while they run: the memory of a request, its phases and their progress, keys of the
 * trace, the look for the layer that broke. */
#ifndef OQ_PIPELINES_RUN_PARTS_H
#define OQ_PIPELINES_RUN_PARTS_H

#include "base/arena.h"
#include "nn/nn.h"
#include "pipelines/pipeline.h"

enum { OQ_RUN_PREFIX_MAX = 64 };

/* Progress of a phase; silent while measuring. */
void oq_run_tell(const oq_exec *ex, const char *phase, int64_t done, int64_t total, double started_s);
/* The whole of a run: `walk`, with an arena for the request's host memory and scratch that is given back. */
oq_status oq_run_walk(oq_exec *ex, oq_arena *arena, oq_status (*walk)(void *user), void *user);

typedef struct oq_run_phase { /* `step` for each i of [first, end), told as progress */
    const char *name;
    int64_t first, end;
    oq_status (*step)(void *user, int64_t i);
    void *user;
    double *seconds, *each_s; /* what all took, and each i; NULL: not wanted */
} oq_run_phase;
oq_status oq_run_phase_walk(const oq_exec *ex, const oq_run_phase *phase);

/* A look at the pictures between two steps: what the prediction aims at, decoded by the run's own way of decoding, in memory
 * that is given back. */
typedef struct oq_run_look {
    int index;                                        /* of the schedule's step that was done last */
    int step, steps;                                  /* done, of those that this run does */
    int64_t elems;                                    /* latents of all items */
    void (*aim)(const void *run, int index, float *latents);                   /* fills [elems] */
    oq_status (*decode)(const void *run, float *latents, oq_output *out);      /* both NULL while measuring */
    const void *run;
} oq_run_look;
/* Nothing where nobody looks, and after the last step: that is the result. Measuring takes the same way once. */
oq_status oq_run_look_at(oq_exec *ex, const oq_request *request, const oq_run_look *look);

typedef struct oq_run_times { /* host, of a schedule of n steps */
    float *sigmas;    /* [n + 1] */
    float *timesteps; /* [n] */
    float *model_t;   /* [n]: what the transformer sees */
} oq_run_times;
oq_status oq_run_times_new(oq_arena *arena, int n, oq_run_times *out);
oq_status oq_run_times_trace(oq_exec *ex, int n, const oq_run_times *times);

/* Names text `index` in messages ("prompt 1", "the negative prompt") and in the trace ("pos.0", "neg.0"); the negative one
 * stands behind the request's n prompts. */
typedef struct oq_run_words {
    char what[40], side[28];
} oq_run_words;
oq_run_words oq_run_describe(int64_t n_prompts, int64_t index);

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
