/* attention_list.c -- fastest first, reference last. */
#include "cpu/attention/attention.h"

const oq_attention_kernel *const oq_cpu_attention_list[] = {
    &oq_attention_ref,
    NULL,
};
