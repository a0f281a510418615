/* cuda.h -- the CUDA backend: its device, its kernel lists, what its host files share. Private to this room.
 */
#ifndef OQ_CUDA_CUDA_H
#define OQ_CUDA_CUDA_H

#include "backend/backend.h"
#include "cuda/kernels.h"

#include <cublasLt.h>

#define OQ_CUDA_ALIGN           ((size_t)256)
#define OQ_CUDA_WORKSPACE_BYTES ((size_t)32 << 20) /* cuBLASLt's advice for Hopper */
#define OQ_CUDA_WORK_BYTES      ((size_t)16 << 20) /* small reductions */
#define OQ_CUDA_STAGE_BYTES     ((size_t)8 << 20)
#define OQ_CUDA_STAGES          2
#define OQ_CUDA_PLANS           512 /* slots of the table of products; a full row of slots evicts */

typedef struct oq_cuda_plan oq_cuda_plan; /* one shape of product: descriptors and the chosen algorithm */

struct oq_device { /* CUDA's */
    oq_env *env;   /* of the caller that opened it */
    int index;
    int capability; /* 90 for 9.0 */
    int n_sm;
    char name[128];
    size_t memory_bytes;
    cudaStream_t stream;
    cublasLtHandle_t lt;
    void *workspace; /* OQ_CUDA_WORKSPACE_BYTES, then OQ_CUDA_WORK_BYTES */
    void *work;
    int *flag;                   /* device memory: the answer of all_finite */
    void *stage[OQ_CUDA_STAGES]; /* pinned host memory that uploads pass through */
    cudaEvent_t staged[OQ_CUDA_STAGES];
    cudaEvent_t begin, end; /* of the tuner */
    int next_stage;
    oq_cuda_plan *plans;
    bool check;         /* wait after every operation, so that an error has the right name */
    bool tune;          /* measure cuBLASLt's algorithms when a shape is first met */
    cudaError_t failed; /* the first failure, kept for sync */
    const char *failed_op, *last_op;
    oq_ops ops;
};

/* Ends every operation: notes a failed launch under the operation's name. */
void oq_cuda_done(oq_device *d, const char *op);
/* Makes the device current for the calling thread; starts every operation. */
void oq_cuda_enter(const oq_device *d);
/* Product that found no algorithm: noted like a failed launch. */
void oq_cuda_note(oq_device *d, cudaError_t error, const char *op);

oq_cu_view oq_cuda_view(oq_tensor t);
bool oq_cuda_is_bf16(oq_tensor t);

/* The steps before a product: in one pass where they fit, else one by one. */
void oq_cuda_rows(oq_device *d, const oq_rows_args *a);
oq_cu_rows oq_cuda_rows_of(const oq_rows_args *a);

/* Ordered: fastest first, reference last. NULL-terminated. */
extern const oq_linear_kernel *const oq_cuda_linear_list[];
extern const oq_attention_kernel *const oq_cuda_attention_list[];
extern const oq_conv2d_kernel *const oq_cuda_conv2d_list[];
void oq_cuda_ops_init(oq_ops *out);

extern const oq_backend oq_backend_cuda;

#endif
