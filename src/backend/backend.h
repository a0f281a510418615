/* backend.h -- the contract that every backend meets: buffers, kernels by list, operations by table.
 *
 * Two dispatch patterns and no third: one signature with one winner per machine -> a member of oq_ops; a winner that
 * depends on format and shape -> an ordered list of kernels with `accepts`. Kernels return void: whatever can go
 * wrong was settled in the plan; asynchronous device errors surface at sync.
 *
 * Activations are oq_tensor views of element type F32 or BF16. All arithmetic is at least f32; a result is rounded
 * once, when it is stored to a BF16 tensor, unless an operation says otherwise. In and out views may be the same
 * memory exactly (in place) where an operation says "in place"; otherwise they do not overlap.
 * Vectors (norm weights, biases) are f32 in the backend's memory. */
#ifndef OQ_BACKEND_BACKEND_H
#define OQ_BACKEND_BACKEND_H

#include "base/env.h"
#include "format/attention_operand.h"
#include "format/format.h"
#include "tensor/tensor.h"

#define OQ_BACKEND_ABI 6u

typedef struct oq_device oq_device; /* one opened device; each backend defines its own */
typedef struct oq_window oq_window; /* see oq_backend.window_new; likewise */

typedef enum oq_unary { OQ_SILU, OQ_GELU_TANH, OQ_GELU_ERF, OQ_QUICK_GELU, OQ_TANH, OQ_N_UNARY } oq_unary;

/* ---- rows: what happens to activations between two products, one row at a time ------------------------------ */

typedef enum oq_row_norm_kind { OQ_NO_NORM, OQ_RMS_NORM, OQ_LAYER_NORM } oq_row_norm_kind;

typedef struct oq_row_norm { /* rms_norm or layer_norm of oq_ops over the whole row */
    oq_row_norm_kind kind;
    const float *weight, *bias;  /* [cols] or NULL */
    float        eps;
    bool         round_before_weight;
} oq_row_norm;

/* In this order, each step the operation of oq_ops of its name with its roundings (what it stores, the next one loads);
 * absent steps are left out:
 *     r = r_norm(r)             what r holds afterwards is undefined
 *     x = x + gate * r          add_gated in place; r.rows 0: absent, and r_norm with it
 *     h = norm(x)               without a norm: h = x where there is a modulation, else h is not touched
 *     h = h * (one + scale) + shift   modulate in place
 * h may be x itself where there is no norm or nobody needs x afterwards. */
typedef struct oq_rows_args {
    oq_tensor   x, h;         /* [rows, cols]; h.rows 0: the steps end with x */
    oq_tensor   r, gate;      /* [rows, cols] and [1 or rows, cols] (rows 0: plain addition) */
    oq_row_norm r_norm, norm;
    oq_tensor   scale, shift; /* [1 or rows, cols]; rows 0: absent */
    float       one;
} oq_rows_args;

/* ---- linear: y[m,n] = x[m,k] . W[n,k]^T + bias[n] ------------------------------------------------------ */

typedef struct oq_linear_spec {
    oq_scheme scheme;
    int64_t   n, k;
} oq_linear_spec;

/* What a kernel can do in the same call, with the very bits of the separate operations. */
enum {
    OQ_FUSE_ROWS = 1u << 0,  /* args->rows: x comes from the steps of oq_rows_args; x is their h */
    OQ_FUSE_UNARY = 1u << 1, /* y = act(product), each rounded to y's type */
    OQ_FUSE_GLU = 1u << 2,   /* y[m, n/2] = act(product[:, :n/2]) * product[:, n/2:], roundings of `glu` */
    OQ_FUSE_ADD = 1u << 3,   /* y = residual + gate * product, roundings of `add_gated` */
    OQ_FUSE_PRE = 1u << 4,   /* args->pre: columns of x are an activation, or a gated pair, of another product's */
    OQ_FUSE_AGAIN = 1u << 5  /* args->again: x is the last product's, and what was made of it still lies in the scratch; such a
                                kernel fuses OQ_FUSE_ROWS too */
};

/* Columns [from, k) of x before the product: act(a), or act(a) * b with the roundings of `glu`. `a` may be those columns
 * themselves. What they hold afterwards is undefined. */
typedef struct oq_pre {
    oq_unary  unary;
    oq_tensor a, b; /* [m, k - from]; b.rows 0: act(a) alone */
    int64_t   from;
} oq_pre;

typedef enum oq_post_kind { OQ_POST_NONE, OQ_POST_UNARY, OQ_POST_GLU, OQ_POST_ADD } oq_post_kind;

typedef struct oq_post { /* what happens to a product before it is stored */
    oq_post_kind kind;
    oq_unary     unary;          /* of OQ_POST_UNARY and OQ_POST_GLU */
    oq_tensor    residual, gate; /* of OQ_POST_ADD: [m,n], may be y itself; [1 or m, n], rows 0: plain addition */
} oq_post;

typedef struct oq_linear_args {
    const oq_linear_spec *spec;
    const void           *packed;  /* what `pack` wrote */
    const float          *bias;    /* [n] or NULL; added in f32 before the store */
    void                 *scratch; /* scratch_bytes(spec, m) bytes, aligned to 64 */
    oq_tensor             x, y;    /* [m,k], [m,n] ([m,n/2] of a GLU); F32 or BF16 each; not overlapping */
    const oq_rows_args   *rows;    /* NULL: none. Only for a kernel that fuses OQ_FUSE_ROWS; x is rows->h, whose contents
                                      are undefined afterwards where h is not x */
    const oq_post        *post;    /* NULL: none. Only what the kernel fuses */
    const oq_pre         *pre;     /* NULL: none. Only for a kernel that fuses OQ_FUSE_PRE; never with `rows` */
    bool                  again;   /* the device's last call was this kernel's, with the same x, scratch, k, act and act_scale
                                      (not static): x itself may be undefined. Only for a kernel that fuses OQ_FUSE_AGAIN */
} oq_linear_args;

typedef struct oq_linear_kernel {
    const char *name; /* "linear_wfp8_afp8_avx512": file and symbol without oq_ */
    uint64_t    need; /* feature bits of the device (OQ_CPU_* for the CPU) */
    bool   (*accepts)(const oq_linear_spec *spec);
    size_t (*packed_bytes)(const oq_linear_spec *spec);
    /* Canonical planes -> the kernel's own layout in host memory; called once per layer while loading. */
    void   (*pack)(void *dst, const oq_planes *src, const oq_linear_spec *spec);
    size_t (*scratch_bytes)(const oq_linear_spec *spec, int64_t m);
    void   (*run)(oq_device *device, const oq_linear_args *args);
    /* Set of OQ_FUSE_* that `run` does for this layer; NULL: none. What is missing is done by the operations. */
    unsigned (*fuses)(const oq_linear_spec *spec);
    bool around; /* takes schemes that are not bare; a backend asks the others for bare ones alone */
} oq_linear_kernel;

/* ---- attention: per head o = softmax(scale * q k^T + bias, masked) v ------------------------------------------- */

typedef struct oq_attention_spec {
    int64_t head_dim;    /* a multiple of 8, <= 256 (reference: any) */
    int64_t n_heads, n_kv_heads; /* query head h reads key head h / (n_heads / n_kv_heads) */
    bool    causal;      /* query i sees keys j <= i + (n_kv - n_q) */
    /* Operands quantized just before the product (format/attention_operand.h); never with causal. */
    oq_attention_precision precision;
    /* Block-sparse: this share of the key blocks is left out for each block of queries, 0: none. The rule is in
     * docs/numerics.md; n_q = n_kv, no bias. */
    double  sparsity;
} oq_attention_spec;

enum { OQ_ATTENTION_SPARSE_BLOCK = 128, OQ_ATTENTION_SPARSE_LEAST = 32 }; /* rows of a block; blocks at least */

typedef struct oq_attention_args {
    const oq_attention_spec *spec;
    float          scale;
    oq_tensor      q, k, v; /* [n_q, n_heads*head_dim], [n_kv, n_kv_heads*head_dim] x2; any ld */
    oq_tensor      o;       /* [n_q, n_heads*head_dim]; not overlapping q, k, v */
    const uint8_t *key_mask; /* [n_kv], 0: nobody sees the key; NULL: all seen. A row that sees no key gives zeros */
    const float   *bias;     /* added to scores, element (h,i,j) at h*bias_head + i*bias_row + j; NULL: none */
    int64_t        bias_head, bias_row;
    /* [n_heads, ceil(n_q/128), ceil(n_kv/128)], 0: no query of the block sees a key of the block; NULL: all seen. Made
     * inside the backend for a sparse spec. */
    const uint8_t *block_map;
    void          *scratch;
} oq_attention_args;

typedef struct oq_attention_kernel {
    const char *name;
    uint64_t    need;
    bool        block_map; /* leaves out what args->block_map says; others never get one */
    bool   (*accepts)(const oq_attention_spec *spec);
    size_t (*scratch_bytes)(const oq_attention_spec *spec, int64_t n_q, int64_t n_kv);
    void   (*run)(oq_device *device, const oq_attention_args *args);
} oq_attention_kernel;

/* ---- convolution over NHWC rows, and over NDHWC rows of videos ------------------------------------------ */

typedef struct oq_conv2d_spec {
    int64_t c_out, c_in;
    int     kh, kw;       /* 3x3 or 1x1 in today's networks; any for the reference */
    int     stride;       /* 1 or 2 */
    int     pad_top, pad_left, pad_bottom, pad_right; /* zeros */
    int     upsample;     /* 2: the window goes over the image enlarged by two (nearest), which is never written; 0, 1: as is */
    /* kt frames in a window, which starts pad_front frames before its output's first (causal: pad_front = kt - 1).
     * kt 0: images; the weight then has no such dimension, and stride_t and pad_front mean nothing. */
    int     kt, stride_t, pad_front;
    const oq_dtype *compute; /* of x and y: BF16 or F32; NULL: either may come */
    const oq_dtype *weight;  /* BF16: every weight is a bf16 number; NULL: f32 */
} oq_conv2d_spec;

/* Stride 1 and zeros around, so that an odd `kernel` keeps the size. */
static inline oq_conv2d_spec oq_conv2d_same(int64_t c_out, int64_t c_in, int kernel)
{
    const int pad = (kernel - 1) / 2;
    return (oq_conv2d_spec){.c_out = c_out, .c_in = c_in, .kh = kernel, .kw = kernel, .stride = 1, .pad_top = pad,
                            .pad_left = pad, .pad_bottom = pad, .pad_right = pad};
}
static inline int oq_conv2d_taps_t(const oq_conv2d_spec *s) { return s->kt ? s->kt : 1; }
static inline int oq_conv2d_enlarge(const oq_conv2d_spec *s) { return s->upsample ? s->upsample : 1; }
static inline int64_t oq_conv2d_out_h(const oq_conv2d_spec *s, int64_t h)
{
    return (h * oq_conv2d_enlarge(s) + s->pad_top + s->pad_bottom - s->kh) / s->stride + 1;
}
static inline int64_t oq_conv2d_out_w(const oq_conv2d_spec *s, int64_t w)
{
    return (w * oq_conv2d_enlarge(s) + s->pad_left + s->pad_right - s->kw) / s->stride + 1;
}
static inline int64_t oq_conv2d_out_frames(const oq_conv2d_spec *s, int64_t frames)
{
    return s->kt ? (frames + s->pad_front - s->kt) / s->stride_t + 1 : frames;
}

typedef struct oq_conv2d_args {
    const oq_conv2d_spec *spec;
    const void  *packed;
    const float *bias;       /* [c_out] or NULL */
    void        *scratch;
    oq_tensor    x, y;       /* [batch*frames*h*w, c_in], [batch*out_frames*out_h*out_w, c_out] */
    int64_t      batch, h, w; /* of x */
    /* Videos (kt > 0) alone: frames of x in each batch entry. */
    int64_t      frames;
    /* [batch*n_before*h*w, c_in], x's type: the frames before x's first, n_before <= pad_front; frames further back
     * are zeros. rows 0: none. */
    oq_tensor    before;
    int64_t      n_before;
} oq_conv2d_args;

typedef struct oq_conv2d_kernel {
    const char *name;
    uint64_t    need;
    bool   (*accepts)(const oq_conv2d_spec *spec);
    size_t (*packed_bytes)(const oq_conv2d_spec *spec);
    void   (*pack)(void *dst, const float *weight /* [c_out, c_in, kt, kh, kw] */, const oq_conv2d_spec *spec);
    size_t (*scratch_bytes)(const oq_conv2d_spec *spec, int64_t batch, int64_t h, int64_t w);
    void   (*run)(oq_device *device, const oq_conv2d_args *args);
} oq_conv2d_kernel;

/* ---- operations ---------------------------------------------------------------------------------------- */

typedef struct oq_norm_args {
    oq_tensor    x, y;       /* [rows, cols]; in place allowed */
    const float *weight;     /* [cols] or NULL (1) */
    const float *bias;       /* [cols] or NULL (0); layer and group norm */
    float        eps;
    int64_t      group;      /* rms_norm: normalise each run of `group` columns (head_dim); 0: the whole row; the
                                weight has `group` elements then. group_norm: number of groups */
    int64_t      batch;      /* group_norm: rows / batch rows form one image */
    bool         silu;       /* group_norm: apply x * sigmoid(x) afterwards (in f32, one rounding) */
    bool         round_before_weight; /* rms_norm with a BF16 y: round x * rsqrt first, then the product (diffusers) */
    const double *moments;   /* group_norm: x is a piece of an image (batch 1) whose statistics were taken piece by piece,
                                [n_moments, group, 3] as group_moments gives them; NULL: x is the whole */
    int64_t      n_moments;
} oq_norm_args;

typedef enum oq_rope_kind {
    OQ_ROPE_INTERLEAVED, /* pairs (2i, 2i+1) */
    OQ_ROPE_HALF         /* pairs (i, i + head_dim/2) */
} oq_rope_kind;

typedef struct oq_rope_args { /* in place: y0 = x0 c - x1 s, y1 = x1 c + x0 s in f32 */
    oq_tensor    x;          /* [rows, n_heads*head_dim] */
    const float *cos, *sin;  /* [rows, head_dim/2] */
    int64_t      n_heads, head_dim;
    oq_rope_kind kind;
} oq_rope_args;

/* q and k of an attention on their way to it, in place: rms_norm over each head, then rope, with the bits of the two
 * operations one after the other. */
typedef struct oq_qk_args {
    oq_tensor    q, k;               /* [rows, n_heads*head_dim], [rows, n_kv_heads*head_dim]; any ld */
    const float *q_weight, *k_weight; /* [head_dim] each; both NULL: no norm */
    float        eps;
    bool         round_before_weight;
    const float *cos, *sin;          /* [rows, head_dim/2] */
    int64_t      n_heads, n_kv_heads, head_dim;
    oq_rope_kind kind;
} oq_qk_args;

/* One table per device; a NULL member is "unsupported", an error at plan time. The members at the end are fusions: NULL
 * means that the operations they consist of are called one by one. */
typedef struct oq_ops {
    void (*rms_norm)(oq_device *d, const oq_norm_args *a);   /* x * rsqrt(mean(x^2) + eps) * weight */
    void (*layer_norm)(oq_device *d, const oq_norm_args *a); /* (x - mean) * rsqrt(var + eps) * weight + bias */
    void (*group_norm)(oq_device *d, const oq_norm_args *a); /* NHWC, per image and group; weight, bias per column */
    /* Of each of `group` groups of x's columns: how many values, their mean, the sum of squares about it; [group, 3] */
    void (*group_moments)(oq_device *d, oq_tensor x, int64_t group, double *moments);
    void (*rope)(oq_device *d, const oq_rope_args *a);
    void (*unary)(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor x); /* in place allowed */
    /* y = act(a) * b, act(a) rounded to y's type first (as two torch operations would); in place with a allowed */
    void (*glu)(oq_device *d, oq_unary kind, oq_tensor y, oq_tensor a, oq_tensor b);
    /* y = x * (one + scale) + shift; scale, shift: [1, cols] broadcast over rows, or [rows, cols]; either may have
     * rows 0 (absent). `one` is 0 or 1. One rounding. In place allowed. */
    void (*modulate)(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor scale, oq_tensor shift, float one);
    /* y = x + gate * r; gate [1, cols] or [rows, cols], rows 0: plain addition; the product is rounded to y's type
     * first. In place with x allowed. */
    void (*add_gated)(oq_device *d, oq_tensor y, oq_tensor x, oq_tensor gate, oq_tensor r);
    void (*axpby)(oq_device *d, oq_tensor y, float a, oq_tensor x, float b); /* y = a x + b y, in f32, one rounding */
    void (*copy)(oq_device *d, oq_tensor y, oq_tensor x); /* same shape, converts the element type */
    /* y[i,:] = table[ids[i],:]; ids in host or device memory as the backend's upload made it */
    void (*embed)(oq_device *d, oq_tensor y, oq_tensor table, const int32_t *ids);
    /* General permuted copy of up to 6 dimensions: element (i0..i5) of y at sum i*ys, of x at sum i*xs (elements from
     * data). Serves patchify, unpatchify, NCHW <-> NHWC, repeat (xs 0). */
    void (*permute)(oq_device *d, oq_tensor y, oq_tensor x, const int64_t dim[6], const int64_t ys[6],
                    const int64_t xs[6]);
    void (*upsample2x)(oq_device *d, oq_tensor y, oq_tensor x, int64_t batch, int64_t h, int64_t w); /* nearest */
    /* 1 if every element is finite, else 0, into host memory (synchronises). */
    int (*all_finite)(oq_device *d, oq_tensor x);
    /* Fusions, optional. */
    void (*rows)(oq_device *d, const oq_rows_args *a);
    void (*qk_norm_rope)(oq_device *d, const oq_qk_args *a);
} oq_ops;

/* Rows of a product's dummy weights: element i of the part is offset + scale * u(seed, i). */
typedef struct oq_dummy_part {
    uint64_t seed;
    int64_t  rows;
    float    scale, offset;
} oq_dummy_part;

/* ---- the backend itself -------------------------------------------------------------------------------- */

typedef struct oq_device_info {
    char   name[128];
    char   detail[256];   /* features, capability, driver */
    char   rates[192];    /* measured rates that kernels are chosen by; empty: none */
    size_t memory_bytes;
} oq_device_info;

typedef struct oq_backend {
    uint32_t    abi;         /* OQ_BACKEND_ABI; first, forever */
    uint32_t    struct_size;
    const char *name;        /* "cpu", "cuda" */
    int       (*count)(void); /* devices present; 0: none */
    /* `options` is the backend's own text (CPU: the feature mask of --cpu, NULL or "auto"). */
    oq_status (*open)(oq_env *env, int index, const char *options, oq_device **out);
    void      (*close)(oq_env *env, oq_device *device);
    void      (*info)(const oq_device *device, oq_device_info *out);
    bool      host_memory;   /* buffers are ordinary memory: upload is a copy, packed bytes can be written in place */
    oq_status (*buffer_new)(oq_env *env, oq_device *device, size_t bytes, void **out); /* aligned to 256 */
    void      (*buffer_free)(oq_env *env, oq_device *device, void *buffer);
    /* src may be used again as soon as upload returns. */
    oq_status (*upload)(oq_env *env, oq_device *device, void *dst, const void *src, size_t bytes);
    oq_status (*download)(oq_env *env, oq_device *device, void *dst, const void *src, size_t bytes);
    oq_status (*sync)(oq_env *env, oq_device *device); /* where asynchronous errors surface, with the operation's name */
    /* Weights that stay in host memory: all NULL where buffers are ordinary memory, or the backend cannot. */
    oq_status (*host_new)(oq_env *env, oq_device *device, size_t bytes, void **out); /* that the device copies from directly */
    void      (*host_free)(oq_env *env, oq_device *device, void *host);
    /* Device memory that pieces of host memory pass through as they are used; what follows a piece is remembered, and
     * comes over while it is computed with. */
    oq_status (*window_new)(oq_env *env, oq_device *device, size_t bytes, oq_window **out);
    void      (*window_free)(oq_env *env, oq_window *window);
    /* Where the device finds the piece, until the next call: what was enqueued up to then may read it. bytes <= the
     * window's. A failure surfaces at sync. */
    const void *(*window_get)(oq_window *window, const void *host, size_t bytes);
    /* Dummy weights (docs/numerics.md) of a product made in the device's memory, at `packed`, as `pack` of its kernel would
     * have packed them encoded. False: not of this scheme, the caller makes them. packed NULL: only says which. */
    bool (*fill_linear)(oq_device *device, const oq_linear_spec *spec, void *packed, const oq_dummy_part *parts, int n_parts);
    /* The same calls again without the host's part in them. begin: true, and what is enqueued up to `end` is recorded under
     * `key` (and runs), or false: it just runs. replay: true, and what was recorded under `key` runs again. `key` stands for
     * everything that the recorded calls depend on: addresses above all. clear: before memory that they use is given back.
     * NULL: no recording. */
    bool (*graph_replay)(oq_device *device, uint64_t key);
    bool (*graph_begin)(oq_device *device, uint64_t key);
    void (*graph_end)(oq_device *device, uint64_t key);
    void (*graph_clear)(oq_device *device);
    /* First kernel of the device's list that accepts; NULL: none. */
    const oq_linear_kernel    *(*find_linear)(const oq_device *device, const oq_linear_spec *spec);
    const oq_attention_kernel *(*find_attention)(const oq_device *device, const oq_attention_spec *spec);
    const oq_conv2d_kernel    *(*find_conv2d)(const oq_device *device, const oq_conv2d_spec *spec);
    const oq_ops              *(*ops)(const oq_device *device);
} oq_backend;

#endif
