/* packing.h -- one layout of packed weights for all CUDA kernels, so that each may hand a case it does not
 * take to the reference: codes [n,k], then scales (per channel expanded to [n]; per block with rows padded to
 * four), then the static activation scale. Group formats keep their planes, scales and all, with the codes in the order
 * of kernels.h's oq_cu_group. */
#ifndef OQ_CUDA_PACKING_H
#define OQ_CUDA_PACKING_H

#include "cuda/cuda.h"

typedef struct oq_cuda_packing {
    oq_cu_type type;                  /* of the codes; formats without codes of their own are stored as f32 */
    bool decoded;                     /* stored by decode_row */
    bool blocks;                      /* decoded from GGUF's blocks */
    oq_cu_gguf_type gguf;             /* GGUF's blocks as they are; nothing else but input_at and bytes has a meaning */
    bool scaled;                      /* has scales */
    bool grouped;                     /* `group` says all: nothing else but input_at and bytes has a meaning */
    oq_cu_group group;                /* without addresses */
    size_t zero_at, global_at;        /* byte offsets of a group format; 0: none */
    int64_t block_n, block_k;         /* of the packed scales: (1, 0) or the format's */
    int64_t scale_ld;                 /* floats from one row of scales to the next */
    size_t scale_at, input_at, bytes; /* byte offsets */
} oq_cuda_packing;

oq_cuda_packing oq_cuda_packing_of(const oq_linear_spec *spec);
bool oq_cuda_has_input(const oq_linear_spec *spec); /* a static activation scale is packed */
size_t oq_cuda_packed_bytes(const oq_linear_spec *spec);
void oq_cuda_pack(void *dst, const oq_planes *src, const oq_linear_spec *spec);

static inline const float *oq_cuda_packed_scale(const oq_cuda_packing *p, const void *packed)
{
    return p->scaled ? (const float *)(const void *)((const char *)packed + p->scale_at) : NULL;
}

static inline const float *oq_cuda_packed_input(const oq_cuda_packing *p, const void *packed)
{
    return (const float *)(const void *)((const char *)packed + p->input_at);
}

/* The weights of a group format where they were packed. */
oq_cu_group oq_cuda_packed_group(const oq_cuda_packing *p, const void *packed);

/* Codes and scales of quantized activations in scratch. */
typedef struct oq_cuda_codes {
    void *data;   /* [m,k] */
    float *scale; /* [m], or [k/128][m] */
} oq_cuda_codes;
size_t oq_cuda_codes_bytes(const oq_linear_spec *spec, int64_t m);
/* Quantizes rows [first, first + rows) of x into scratch at `at`. Where args->rows lead to x, all rows are made at once, and
 * straight to codes if they can be; where args->again says so, they lie there. bias: room for [n] of bf16, which the layer's
 * bias becomes beside that; NULL: not wanted, or there is none. */
oq_cuda_codes oq_cuda_quantize(oq_device *d, const oq_linear_args *a, int64_t first, int64_t rows, void *at, void *bias);

/* OQ_FUSE_ROWS and OQ_FUSE_PRE: `fuses` of kernels that call oq_cuda_quantize once. */
/* Activations as they are, or under scales that this room knows: per row, per 128 columns, given, MX and static NVFP4. */
bool oq_cuda_knows_act(const oq_linear_spec *spec);
unsigned oq_cuda_fuses_input(const oq_linear_spec *spec);

/* Rows [first, first + rows) of the product by the reference; codes NULL: x itself. */
void oq_cuda_linear_simt(oq_device *d, const oq_linear_args *a, int64_t first, int64_t rows,
                         const oq_cuda_codes *codes);
/* Likewise, FP8 and INT8 codes of both operands: the own product (gemm_wgmma.cu) on Hopper, the reference elsewhere. What a
 * kernel does where cuBLASLt has no algorithm. k a multiple of 16. */
void oq_cuda_linear_codes(oq_device *d, const oq_linear_args *a, int64_t first, int64_t rows,
                          const oq_cuda_codes *codes);

#endif
