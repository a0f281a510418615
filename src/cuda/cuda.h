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
#define OQ_CUDA_TICKETS         1024
#define OQ_CUDA_STAGE_BYTES     ((size_t)8 << 20)
#define OQ_CUDA_STAGES          2
#define OQ_CUDA_PLANS           512 /* slots of the table of products; a full row of slots evicts */

#define OQ_CUDA_GRAPHS          32  /* recorded steps; the oldest makes room */

typedef struct oq_cuda_graph { /* of graph.c */
    uint64_t key;
    int state; /* 0: free */
    cudaGraphExec_t exec;
} oq_cuda_graph;

/* How a product of FP8 or INT8 codes is made. */
typedef enum oq_cuda_way { OQ_CUDA_WAY_LT, OQ_CUDA_WAY_OWN, OQ_CUDA_WAY_REFERENCE } oq_cuda_way;

typedef struct oq_tune_cache oq_tune_cache;
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
    int *tickets;                /* device memory, OQ_CUDA_TICKETS zeros: kernels that count who comes last leave them so */
    void *stage[OQ_CUDA_STAGES]; /* pinned host memory that uploads pass through */
    cudaEvent_t staged[OQ_CUDA_STAGES];
    cudaEvent_t begin, end; /* of the tuner */
    int next_stage;
    oq_cuda_plan *plans;
    oq_cuda_graph graphs[OQ_CUDA_GRAPHS];
    unsigned next_graph;
    bool check;         /* wait after every operation, so that an error has the right name */
    bool tune;          /* measure cuBLASLt's algorithms when a shape is first met */
    bool eager;         /* record no steps */
    bool untuned;       /* take the first, whatever was measured before */
    oq_tune_cache *tuned; /* NULL: untuned */
    oq_cuda_way force;  /* this way, or one after it */
    oq_cuda_way way;    /* the slowest since the last time somebody set it to LT */
    int lt_found, lt_taken; /* of the last shape that was new: algorithms found, and which of them runs (-1: none) */
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

/* Bare, and each row of x is treated by itself. */
bool oq_cuda_is_bare(const oq_scheme *s);

/* Ordered: fastest first, reference last. NULL-terminated. */
extern const oq_linear_kernel *const oq_cuda_linear_list[];
extern const oq_attention_kernel *const oq_cuda_attention_list[];
extern const oq_conv2d_kernel *const oq_cuda_conv2d_list[];
void oq_cuda_ops_init(oq_ops *out);

/* window.c: oq_backend's members of these names */
oq_status oq_cuda_host_new(oq_env *env, oq_device *d, size_t bytes, void **out);
void oq_cuda_host_free(oq_env *env, oq_device *d, void *host);
oq_status oq_cuda_window_new(oq_env *env, oq_device *d, size_t bytes, oq_window **out);
void oq_cuda_window_free(oq_env *env, oq_window *w);
const void *oq_cuda_window_get(oq_window *w, const void *host, size_t bytes);
/* graph.c: likewise */
bool oq_cuda_graph_replay(oq_device *d, uint64_t key);
bool oq_cuda_graph_begin(oq_device *d, uint64_t key);
void oq_cuda_graph_end(oq_device *d, uint64_t key);
void oq_cuda_graphs_clear(oq_device *d);
/* linear/dummy_linear.c */
bool oq_cuda_fill_linear(oq_device *d, const oq_linear_spec *spec, void *packed, const oq_dummy_part *parts, int n_parts);

extern const oq_backend oq_backend_cuda;

#endif
