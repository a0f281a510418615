/* cuda_linear_list.c -- the products of this device, fastest first, the reference last; then what goes around them. */
#include "cuda/linear/cuda_linear.h"

const oq_linear_kernel *const oq_cuda_linear_list[] = {
    &oq_cuda_linear_wfp8_afp8_sm90,
    &oq_cuda_linear_wfp8block_afp8_sm90,
    &oq_cuda_linear_wi8_ai8_sm90,
    &oq_cuda_linear_wi8_ai8_sm80,
    &oq_cuda_linear_wgroup_abf16_sm80,
    &oq_cuda_linear_wbf16_abf16_sm80,
    &oq_cuda_linear_wany_abf16_sm80,
    &oq_cuda_linear_wf32_af32_sm80,
    &oq_cuda_linear_wany_aany_sm80,
    &oq_cuda_linear_around_sm80,
    NULL,
};
