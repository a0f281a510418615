/* cuda_attention.h -- the attention kernels of this room. */
#ifndef OQ_CUDA_ATTENTION_H
#define OQ_CUDA_ATTENTION_H

#include "cuda/cuda.h"

extern const oq_attention_kernel oq_cuda_attention_wgmma_sm90, oq_cuda_attention_flash_sm80,
    oq_cuda_attention_gemm_sm80;
/* In front of the list: quantized operands and chosen blocks. */
extern const oq_attention_kernel oq_cuda_attention_online_sm80;

oq_cu_attention oq_cuda_attention_of(const oq_attention_args *args);
/* The products' workspace and the device's tickets: operations follow each other, so nobody else has them. */
oq_cu_attention_room oq_cuda_attention_room(const oq_device *d);
size_t oq_cuda_attention_gemm_bytes(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv);
void oq_cuda_attention_gemm(oq_device *d, const oq_attention_args *args);
/* The fastest plain attention that takes these arguments, args->block_map included. */
void oq_cuda_attention_plain(oq_device *d, const oq_attention_args *args);

#endif
