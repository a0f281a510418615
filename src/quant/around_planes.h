/* around_planes.h -- what dialects share about tensors that say what a layer does around its product: factors of the columns
 * of its input, and a low-rank branch beside it. Private to this room. */
#ifndef OQ_QUANT_AROUND_PLANES_H
#define OQ_QUANT_AROUND_PLANES_H

#include "quant/dialect.h"

typedef struct oq_around_names { /* suffixes of tensors; NULL: the dialect has none */
    const char *smooth;          /* [k] */
    bool divides;                /* x is divided by them */
    const char *down, *up;       /* [rank, k] and [n, rank] */
    bool down_across, up_across; /* stored as [k, rank] and [rank, n] */
    bool smoothed_branch;        /* the branch takes x after the factors */
} oq_around_names;

/* Adds to `part` what the file has of these: all are optional, but a branch needs both of its matrices. Types are floating,
 * values finite, factors not zero. */
oq_status oq_around_locate(oq_env *env, const oq_around_names *names, const oq_ckpt *ckpt, const char *name, int64_t n,
                           int64_t k, oq_part_source *part);

/* Factors that x of layer `name` is divided by (floats, of any shape): their inverses are finite, else OQ_E_FORMAT names both. */
oq_status oq_around_check_divisors(oq_env *env, const char *name, const oq_ckpt_tensor *factors);

#endif
