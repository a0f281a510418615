/* attention_list.c -- fastest first, reference last. */
#include "cpu/attention/attention.h"

const oq_attention_kernel *const oq_cpu_attention_list[] = {
#if defined(__x86_64__)
    &oq_attention_amx,    &oq_attention_avx512bf16,
    &oq_attention_avx512, &oq_attention_avx2,
#elif defined(__aarch64__)
    &oq_attention_bf16,   &oq_attention_neon,
#endif
    &oq_attention_ref,    NULL,
};
