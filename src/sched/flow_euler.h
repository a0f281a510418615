/* flow_euler.h -- FlowMatchEulerDiscreteScheduler: sigmas and timesteps of a run (diffusers' arithmetic,
 * f32). The step itself is one line of a pipeline: x += (sigmas[i+1] - sigmas[i]) * v. */
#ifndef OQ_SCHED_FLOW_EULER_H
#define OQ_SCHED_FLOW_EULER_H

#include "base/json.h"

typedef struct oq_flow_euler { /* fields of scheduler_config.json */
    double num_train_timesteps, shift, base_shift, max_shift, base_seq_len, max_seq_len, shift_terminal;
    bool dynamic_shifting, linear_shift, has_terminal;
} oq_flow_euler;

/* `config` NULL or an object: absent fields take diffusers' defaults. Options that change the schedule and
 * are not supported here (karras, stochastic sampling, …) are OQ_E_UNSUPPORTED, unknown ones and wrong values
 * OQ_E_CONFIG; `source` of the messages is "scheduler_config.json". */
oq_status oq_flow_euler_parse(oq_env *env, const oq_json *config, oq_flow_euler *out);
/* The dynamic shift of a picture of so many tokens: linear between the two sequence lengths, and beyond. */
double oq_flow_euler_mu(const oq_flow_euler *s, int64_t image_tokens);
/* FLUX.2's published fit of the shift to picture tokens and steps. */
double oq_flow_euler_empirical_mu(int64_t image_tokens, int steps);
/* n values from 1 to 1/n as torch.linspace gives them in float32 (Z-Image's own; numpy's differ in the last
 * bit). */
void oq_flow_euler_ramp(int n, float *out);
/* sigmas[n+1] (the last 0) and timesteps[n]; n >= 1. `custom` (n values, before shifting, as diffusers takes
 * them) or NULL: numpy.linspace(1, 1/n, n). `mu` is read with dynamic shifting only. */
void oq_flow_euler_sigmas(const oq_flow_euler *s, int n, const float *custom, double mu, float *sigmas,
                          float *timesteps);

#endif
