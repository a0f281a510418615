/* cuda_linear.h -- the linear kernels of this room, one file each. */
#ifndef OQ_CUDA_LINEAR_H
#define OQ_CUDA_LINEAR_H

#include "cuda/cuda.h"

extern const oq_linear_kernel oq_cuda_linear_wfp8_afp8_sm90, oq_cuda_linear_wfp8block_afp8_sm90,
    oq_cuda_linear_wi8_ai8_sm90, oq_cuda_linear_wi8_ai8_sm80, oq_cuda_linear_wbf16_abf16_sm80,
    oq_cuda_linear_wf32_af32_sm80, oq_cuda_linear_wany_abf16_sm80, oq_cuda_linear_wany_aany_sm80,
    oq_cuda_linear_wgroup_abf16_sm80, oq_cuda_linear_around_sm80;

#endif
