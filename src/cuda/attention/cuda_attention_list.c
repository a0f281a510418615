/* cuda_attention_list.c -- the attentions of this device, fastest first. */
#include "cuda/attention/cuda_attention.h"

const oq_attention_kernel *const oq_cuda_attention_list[] = {
    &oq_cuda_attention_wgmma_sm90,
    &oq_cuda_attention_flash_sm80,
    &oq_cuda_attention_gemm_sm80,
    NULL,
};
