/* flow_euler.h -- FlowMatchEulerDiscreteScheduler: sigmas and timesteps of a run (diffusers' arithmetic, f32). */
#ifndef OQ_SCHED_FLOW_EULER_H
#define OQ_SCHED_FLOW_EULER_H

#include "base/json.h"

typedef struct oq_flow_euler { /* fields of scheduler_config.json */
    double num_train_timesteps, shift, base_shift, max_shift, base_seq_len, max_seq_len, shift_terminal;
    bool   dynamic_shifting, linear_shift, has_terminal;
} oq_flow_euler;

/* Options that change the schedule and are not supported here (karras, stochastic sampling, …) are OQ_E_UNSUPPORTED. */
oq_status oq_flow_euler_parse(oq_env *env, const oq_json *config, oq_flow_euler *out);
double    oq_flow_euler_mu(const oq_flow_euler *s, int64_t image_tokens);
/* sigmas[n+1] (the last 0) and timesteps[n]; `custom` (n values, before shifting, as diffusers takes them) or NULL. */
void      oq_flow_euler_sigmas(const oq_flow_euler *s, int n, const float *custom, double mu, float *sigmas,
                               float *timesteps);

#endif
