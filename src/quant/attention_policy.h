/* attention_policy.h -- runtime attention quantization as one value per component: which precision, which steps and
 * layers stay as they are, which blocks are left out. */
#ifndef OQ_QUANT_ATTENTION_POLICY_H
#define OQ_QUANT_ATTENTION_POLICY_H

#include "config/quant_config.h"
#include "config/selector.h"
#include "format/attention_operand.h"

typedef struct oq_attention_policy {
    oq_attention_precision precision;
    oq_selector skip_steps, skip_layers; /* attended plainly; steps of the whole request, from 0 */
    double      sparsity;                /* 0: dense */
    int64_t     start_step, end_step;    /* sparse from the one to the other, both included; end INT64_MAX: to the last */
    oq_selector sparse_skip_layers;      /* dense, at the precision above */
} oq_attention_policy;

/* The policy of one component, in `arena`. Errors are OQ_E_CONFIG naming the option. config NULL: none. */
oq_status oq_attention_policy_read(oq_env *env, oq_arena *arena, const oq_quant_config *config, const char *component,
                                   oq_attention_policy *out);
bool oq_attention_policy_active(const oq_attention_policy *policy);
/* A component that takes no policy (a text encoder, a VAE) is named by none: OQ_E_CONFIG. */
oq_status oq_attention_policy_check_names(oq_env *env, const oq_quant_config *config, const char *const *eligible,
                                          size_t n);

/* Selected steps and the sparse range lie within [0, steps): OQ_E_CONFIG naming the valid range. */
oq_status oq_attention_policy_check_steps(oq_env *env, const oq_attention_policy *policy, const char *component,
                                          int64_t steps);
/* The first whole component of a dotted name that is a number: the layer's index; -1: none. */
int64_t oq_attention_layer_index(const char *name);

#endif
