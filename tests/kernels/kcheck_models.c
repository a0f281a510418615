/* kcheck_models.c -- kernels whose instructions this machine need not have: the list that the plan walks, and behind it
 * the same sources compiled over models of those instructions. */
#include "kernels/kcheck.h"

extern const oq_linear_kernel oq_linear_wbf16_abf16_amx_model, oq_linear_wfp8_abf16_amx_model,
    oq_linear_wfp8_afp8_amx_model, oq_linear_wi8_abf16_amx_model, oq_linear_wi8_ai8_amx_model,
    oq_linear_wany_abf16_amx_model;
extern const oq_attention_kernel oq_attention_amx_model;
extern const oq_conv2d_kernel oq_conv2d_wbf16_amx_model;

static const oq_linear_kernel *const linear_models[] = {
#if defined(__x86_64__)
    &oq_linear_wbf16_abf16_amx_model,
    &oq_linear_wfp8_abf16_amx_model,
    &oq_linear_wfp8_afp8_amx_model,
    &oq_linear_wi8_abf16_amx_model,
    &oq_linear_wi8_ai8_amx_model,
    &oq_linear_wany_abf16_amx_model,
#endif
    NULL,
};

static const oq_attention_kernel *const attention_models[] = {
#if defined(__x86_64__)
    &oq_attention_amx_model,
#endif
    NULL,
};

static const oq_conv2d_kernel *const conv2d_models[] = {
#if defined(__x86_64__)
    &oq_conv2d_wbf16_amx_model,
#endif
    NULL,
};

/* Entry `i` of two lists, one behind the other. */
#define ENTRY(list, models, i)                                                                               \
    do {                                                                                                     \
        int n = 0;                                                                                           \
        while ((list)[n]) n++;                                                                               \
        return (i) < n ? (list)[i] : (models)[(i)-n];                                                        \
    } while (0)

const oq_linear_kernel *kc_linear_kernel(int i)
{
    ENTRY(oq_cpu_linear_list, linear_models, i);
}

const oq_attention_kernel *kc_attention_kernel(int i)
{
    ENTRY(oq_cpu_attention_list, attention_models, i);
}

const oq_conv2d_kernel *kc_conv2d_kernel(int i)
{
    ENTRY(oq_cpu_conv2d_list, conv2d_models, i);
}
