/* unipc.h -- UniPCMultistepScheduler over flow sigmas, as Wan uses it: predictor and corrector of order two ("bh2"), the
 * prediction turned into a clean sample first. States are float32; see docs/numerics.md for the roundings. */
#ifndef OQ_SCHED_UNIPC_H
#define OQ_SCHED_UNIPC_H

#include "base/json.h"
#include "format/dtype.h"

typedef struct oq_unipc { /* fields of scheduler_config.json */
    double num_train_timesteps, flow_shift, shift_terminal;
    int solver_order; /* 1 or 2 */
    bool lower_order_final;
} oq_unipc;

/* `config` NULL or an object: absent fields take diffusers' defaults, but flow sigmas must be asked for. What changes the
 * schedule and is not supported is OQ_E_UNSUPPORTED, unknown keys and wrong values OQ_E_CONFIG. */
oq_status oq_unipc_parse(oq_env *env, const oq_json *config, oq_unipc *out);

/* sigmas[n+1] (the last 0) and timesteps[n] (whole numbers: cut off, as torch's int64 does); n >= 1. `custom`: n sigmas
 * before the shift, or NULL: linspace(1, 1/1000, n+1) without its last. */
void oq_unipc_sigmas(const oq_unipc *s, int n, const float *custom, float *sigmas, float *timesteps);

typedef struct oq_unipc_state { /* of one run: arrays of `elems` values that the caller owns */
    int64_t elems;
    float *clean[3];  /* predictions as clean samples: the newest, the one before, the one before that */
    float *last;      /* the corrected sample of the step before */
    int step, order;  /* next step; order of the last prediction. Both 0 at first */
} oq_unipc_state;

/* One step: x (the state, in place) with prediction v (values of `dtype` in float32). `corrected`, if not NULL, gets the
 * state between corrector and predictor. */
void oq_unipc_step(const oq_unipc *s, oq_unipc_state *state, int n, const float *sigmas, const oq_dtype *dtype,
                   const float *v, float *x, float *corrected);

#endif
