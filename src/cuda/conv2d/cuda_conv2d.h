/* cuda_conv2d.h -- the convolution kernels of this room. */
#ifndef OQ_CUDA_CONV2D_H
#define OQ_CUDA_CONV2D_H

#include "cuda/cuda.h"

extern const oq_conv2d_kernel oq_cuda_conv2d_wgmma_sm90, oq_cuda_conv2d_gemm_sm80;

#endif
