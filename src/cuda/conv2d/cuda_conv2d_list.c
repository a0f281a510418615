/* cuda_conv2d_list.c -- the convolutions of this device, fastest first. */
#include "cuda/conv2d/cuda_conv2d.h"

const oq_conv2d_kernel *const oq_cuda_conv2d_list[] = {
    &oq_cuda_conv2d_wgmma_sm90,
    &oq_cuda_conv2d_gemm_sm80,
    NULL,
};
