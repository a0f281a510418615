/* nn.h -- the language in which networks are written: declare names and shapes once, then read the forward pass
 * from top to bottom. Nothing here or above it (modules, pipelines) mentions quantization or a machine.
 *
 * Letters: B batch, S sequence, D model width, H heads, d head width; a product is y[m,n] = x[m,k] . w[n,k]^T.
 *
 * Two duties of a network: no pointer arithmetic (ask for sub-views; in measure mode there is no pointer), and
 * control flow that depends on shapes and configuration alone, never on tensor values. */
#ifndef OQ_NN_NN_H
#define OQ_NN_NN_H

#include "backend/backend.h"
#include "base/arena.h"

/* ---- handles: filled by declare (names, shapes), plan (scheme, kernel) and load (bytes) ---------------- */

typedef struct oq_part { /* rows of a fused product: its own name in the checkpoint */
    const char *name;    /* full: "layers.0.attention.to_q" */
    int64_t     n;
} oq_part;

typedef struct oq_column_part { /* columns of a product whose input is several tensors side by side */
    const char *name;            /* full; no tensor of a usual file has it: name rules lead to those that hold it apart */
    int64_t     k;
} oq_column_part;

typedef struct oq_linear {
    const char             *name;    /* "layers.0.attention.to_qkv", relative to the component */
    const oq_part          *parts;   /* at least one; a plain layer is its own single part */
    int                     n_parts;
    const oq_column_part   *columns; /* set by oq_declare_columns: where a file may cut the input; their k sum up to k */
    int                     n_columns;
    bool                    has_bias;
    const char             *keep;    /* why it is never quantized ("embedder", "modulation"); NULL: quantizable */
    bool                    wide;    /* set after declare: F32 weights are not rounded to the compute type */
    bool                    flat;    /* set after declare: stored as a kernel [n, ...] whose rest, flattened, is k */
    unsigned                wants;   /* OQ_FUSE_*: what its forward asks for around the product (declare) */
    unsigned                fused;   /* OQ_FUSE_*: what of that the kernel does in the same call (plan) */
    oq_linear_spec          spec;    /* n, k by declare; scheme by plan */
    const oq_linear_kernel *kernel;  /* plan */
    const void             *packed;  /* load, backend memory */
    oq_linear_spec          at_steps;  /* plan: in these steps of a request (from 0, ascending) the layer is multiplied so, by */
    const int64_t          *steps;     /* the same kernel from the same bytes; NULL: none */
    size_t                  n_steps;
    const float            *bias;    /* load, backend memory; NULL: none */
    bool                    streamed; /* plan: the weights stay in host memory; `packed` and `bias` are addresses there */
    oq_window              *window;   /* load, of a streamed layer: where its `stream_bytes` from `packed` on pass through */
    size_t                  stream_bytes;
    /* Parts that the file stores in types of their own, or cut by columns: each is a product (and an item) of its own, and
     * this layer has neither kernel nor weights. NULL: one product (plan). */
    struct oq_linear       *apart;   /* [n_apart] */
    int                     n_apart;
    bool                    apart_columns; /* they take columns of x one behind the other, and their results are added */
    struct oq_linear       *whole;   /* of such a part: the layer that it is one of; NULL: it is none */
    struct oq_lora_pair    *lora;    /* adapters beside the product (lora); NULL: none */
} oq_linear;

typedef enum oq_lora_form {
    OQ_LORA_PRODUCT,  /* up(down(x)) */
    OQ_LORA_WHOLE,    /* up(x); no down */
    OQ_LORA_KRONECKER /* (up (x) down) x: block (i, j) of the matrix is up[i, j] down */
} oq_lora_form;

typedef struct oq_lora_pair { /* y[:, at : at + n] += what an adapter gives; both plain, the scale is in `up` */
    oq_linear            down, up;
    oq_lora_form         form;
    int64_t              at, n;
    int64_t              from;    /* of a Kronecker product: the first of its columns that are meant */
    struct oq_lora_pair *next;
} oq_lora_pair;

typedef struct oq_vector { /* norm weight, bias, pad token: f32 in backend memory, rounded to the compute type first */
    const char  *name;     /* the tensor's full name: "layers.0.attention_norm1.weight" */
    int64_t      n;
    int64_t      rows;     /* set after declare: stored as [rows, n / rows]; 0: [n]. Axes of length 1 do not count */
    bool         wide;     /* set after declare: not rounded */
    const float *data;     /* load */
} oq_vector;

typedef struct oq_table { /* embedding table, kept in the compute type (or the file's if narrower) */
    const char *name;
    int64_t     rows, cols;
    oq_tensor   tensor;    /* load */
} oq_table;

typedef struct oq_conv2d { /* over images, or over videos where spec.kt > 0 */
    const char             *name;     /* "decoder.conv_in"; tensors name.weight, name.bias */
    bool                    has_bias;
    oq_conv2d_spec          spec;
    bool                    upsample_first; /* plan: spec.upsample 2 was declared, the backend folds none in: an
                                               operation of its own, spec is what comes after it */
    const oq_conv2d_kernel *kernel;   /* plan */
    const void             *packed;   /* load */
    const float            *bias;     /* load */
} oq_conv2d;

/* What runtime attention quantization may change in a forward: bits of a mode. */
enum { OQ_MODE_QUANTIZED = 1, OQ_MODE_SPARSE = 2, OQ_N_MODES = 4 };

typedef struct oq_step_range {
    int64_t first, last; /* inclusive, from 0 */
} oq_step_range;

typedef struct oq_attention_steps { /* when it does, for all layers of a component; plan */
    const oq_step_range *plain; /* steps whose operands stay as they are; ascending */
    size_t               n_plain;
    oq_step_range        sparse;
} oq_attention_steps;

typedef struct oq_attention {
    const char                *name;  /* "layers.0.attention" */
    oq_attention_spec          spec;  /* plain and dense */
    const oq_attention_kernel *kernel; /* plan */
    const char                *plain; /* why its operands are never quantized ("cross-attention"); NULL: they may be */
    const char                *dense; /* why its blocks are never chosen; NULL: they may be */
    unsigned                   modes; /* plan: bits that some step may switch on */
    const oq_attention_steps  *steps; /* plan: when; NULL without modes */
    oq_attention_spec          mode_spec[OQ_N_MODES]; /* plan: for the subsets of `modes` but the empty one */
    const oq_attention_kernel *mode_kernel[OQ_N_MODES];
} oq_attention;

/* ---- builder ------------------------------------------------------------------------------------------- */

typedef enum oq_item_kind { OQ_ITEM_LINEAR, OQ_ITEM_VECTOR, OQ_ITEM_TABLE, OQ_ITEM_CONV2D, OQ_ITEM_ATTENTION } oq_item_kind;

typedef struct oq_item {
    oq_item_kind kind;
    bool         unused; /* the file has it, what was built never runs it: claimed, checked, not loaded */
    union {
        oq_linear    *linear;
        oq_vector    *vector;
        oq_table     *table;
        oq_conv2d    *conv2d;
        oq_attention *attention;
    } u;
} oq_item;

const char *oq_item_name(const oq_item *item);

typedef struct oq_builder {
    oq_env     *env;
    oq_arena   *arena;     /* of the model: names and parts live there */
    const char *component; /* "transformer" */
    char       *scope;     /* "layers.0." of the moment; never NULL */
    bool        unused;    /* of what is declared from here on, see oq_item */
    oq_item    *items;     /* in declaration order */
    size_t      n_items, capacity;
} oq_builder;

typedef char *oq_scope; /* the scope to return to */

/* Names below are relative to the scopes entered; a duplicate name is a bug of the module (assert). */
oq_status oq_scope_enter(oq_builder *b, oq_scope *saved, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void      oq_scope_leave(oq_builder *b, oq_scope saved);

enum { OQ_BIAS = 1 };
#define OQ_WANTS(fusions) ((unsigned)(fusions) << 8) /* a flag: oq_linear_fused_forward will ask for these OQ_FUSE_* */
/* W[n,k] at name.weight, bias at name.bias if flags & OQ_BIAS. keep: see oq_linear.keep. */
oq_status oq_declare_linear(oq_builder *b, oq_linear *l, const char *name, int64_t n, int64_t k, unsigned flags,
                            const char *keep);
/* One product of several layers that share their input: parts' names relative to the scope of `name`'s parent. */
oq_status oq_declare_fused(oq_builder *b, oq_linear *l, const char *name, int64_t k, unsigned flags,
                           const oq_part *parts, int n_parts, const char *keep);
/* Of a declared layer: its input is tensors of these widths side by side; a file may hold their columns as layers of their
 * own. Names as for parts. */
oq_status oq_declare_columns(oq_builder *b, oq_linear *l, const oq_column_part *columns, int n_columns);
oq_status oq_declare_vector(oq_builder *b, oq_vector *v, const char *name, int64_t n); /* the whole tensor name */
oq_status oq_declare_table(oq_builder *b, oq_table *t, const char *name, int64_t rows, int64_t cols);
/* Same-size convolution: padding (k - 1) / 2 on all sides, stride 1, with bias; adjust l->spec before plan if not. */
oq_status oq_declare_conv2d(oq_builder *b, oq_conv2d *c, const char *name, int64_t c_out, int64_t c_in, int kernel);
/* Causal over frames: a window of kt frames that ends with the present one, and kernel x kernel pixels as above; weight
 * [c_out, c_in, kt, kernel, kernel]. Strides and other paddings: adjust c->spec before plan. */
oq_status oq_declare_conv3d(oq_builder *b, oq_conv2d *c, const char *name, int64_t c_out, int64_t c_in, int kt, int kernel);
oq_status oq_declare_attention(oq_builder *b, oq_attention *a, const char *name, oq_attention_spec spec);

/* ---- execution ----------------------------------------------------------------------------------------- */

/* Receives one traced tensor (--trace): host memory, F32 or an integer type; valid during the call alone. */
typedef oq_status (*oq_trace_sink)(void *user, const char *key, const oq_dtype *dtype, const void *data,
                                   const int64_t *shape, int n_dims);

/* Receives what a request's pictures are like after `step` of `steps`: bytes as the request's own result has them, valid
 * during the call alone. */
typedef oq_status (*oq_preview_sink)(void *user, const uint8_t *pixels, int step, int steps);

/* Sees every linear product of a forward: x and y as the layer got and gave them. Not called in measure mode. */
typedef oq_status (*oq_layer_observer)(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y);

/* Sees every attention that ran in another mode than plain and dense, with what it got and gave. */
typedef oq_status (*oq_attention_observer)(void *user, const oq_attention *layer, const oq_attention_args *args);

typedef enum oq_phase { OQ_PHASE_OTHER, OQ_PHASE_TEXT, OQ_PHASE_DENOISE, OQ_PHASE_DECODE, OQ_N_PHASES } oq_phase;

typedef struct oq_exec {
    oq_env           *env;
    const oq_backend *backend;
    oq_device        *device;
    const oq_ops     *ops;
    const oq_dtype   *compute;  /* &oq_dtype_bf16 or &oq_dtype_f32: type of activations */
    bool              measure;  /* shapes and sizes only, no arithmetic, no pointers */
    int64_t           step;     /* of the request, counted from 1: the pipeline says it before each; 0: none runs */
    uint8_t          *base;     /* scratch of `size` bytes in backend memory */
    size_t            size, used, peak;
    oq_phase          phase;    /* of the request, said by the pipeline: oq_phase_begin */
    size_t            peaks[OQ_N_PHASES]; /* most that was taken while each of them lasted */
    const uint64_t   *step_kinds; /* of each step from 0: equal where the plan's choices are; NULL: nothing is recorded */
    oq_layer_observer observer; /* NULL: none */
    oq_attention_observer attention_observer; /* NULL: none */
    void             *observer_user; /* of both */
    oq_trace_sink     trace;    /* NULL: none */
    void             *trace_user;
    oq_preview_sink   preview;  /* NULL: nobody looks */
    void             *preview_user;
} oq_exec;

typedef size_t oq_mark;
static inline oq_mark oq_mark_get(const oq_exec *ex) { return ex->used; }
static inline void    oq_mark_reset(oq_exec *ex, oq_mark mark) { ex->used = mark; }

static inline void oq_phase_begin(oq_exec *ex, oq_phase phase) { ex->phase = phase; }

/* Scratch as a stack. Contents are undefined. Exceeding what was measured is a bug (OQ_E_ARG, both numbers named). */
oq_status oq_tmp(oq_exec *ex, int64_t rows, int64_t cols, oq_tensor *out); /* compute type */
oq_status oq_tmp_typed(oq_exec *ex, const oq_dtype *dtype, int64_t rows, int64_t cols, oq_tensor *out);
/* Another length for what was taken last and is still held, [1, n]: what both lengths have keeps its contents. */
oq_status oq_tmp_resize(oq_exec *ex, int64_t cols, oq_tensor *last);
/* Host bytes -> a tensor of scratch (same element type and count). No-op in measure mode. */
oq_status oq_upload(oq_exec *ex, oq_tensor dst, const void *src);
oq_status oq_download(oq_exec *ex, void *dst, oq_tensor src); /* contiguous src; synchronises */

/* fn, which enqueues the same work at the same addresses whenever it is called with this key in a step of the same kind: the
 * backend records it where it can, and runs it again without us. No uploads, downloads or syncs in fn. */
typedef oq_status (*oq_repeat_fn)(oq_exec *ex, void *user);
oq_status oq_repeat(oq_exec *ex, uint64_t key, oq_repeat_fn fn, void *user);
static inline uint64_t oq_repeat_key(uint64_t key, const void *address)
{
    return (key ^ (uint64_t)(uintptr_t)address) * 0x9e3779b97f4a7c15u;
}

/* Every forward checks shapes (OQ_E_ARG naming the layer) and, in measure mode, that the backend has the operation. */
oq_status oq_linear_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x);
/* What surrounds products: see oq_rows_args and oq_post of backend.h. Fused where plan said so and nobody observes the
 * layer, else operation by operation with the same result. The scratch of what is not fused is taken here. */
typedef struct oq_norm_step {
    oq_row_norm_kind kind;
    const oq_vector *weight, *bias; /* NULL: none */
    float            eps;
} oq_norm_step;

typedef struct oq_rows { /* absent steps stay zero */
    oq_tensor    x;           /* the residual stream, [S, D] */
    oq_tensor    r, gate;     /* x += gate * r_norm(r); r is spent where it is normalised */
    oq_norm_step r_norm, norm;
    oq_tensor    scale, shift;
    float        one;
} oq_rows;

oq_rows_args oq_rows_args_of(const oq_rows *rows, oq_tensor h); /* as the backend takes them */
/* h: [S, D], or rows 0 where the steps end with x. */
oq_status oq_rows_forward(oq_exec *ex, const oq_rows *rows, oq_tensor h);
/* y = post(product of `rows` carried out), post NULL: the product itself. Needs a norm or a modulation in `rows`. */
oq_status oq_linear_rows_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, const oq_rows *rows, const oq_post *post);
/* y = product of `rows` by a, z = post(product of them by b): what a kernel makes of them first is made once where both layers
 * have the same. */
oq_status oq_linear_two_rows_forward(oq_exec *ex, const oq_linear *a, oq_tensor y, const oq_linear *b, oq_tensor z,
                                     const oq_post *post, const oq_rows *rows);
/* y = post(product of x). */
oq_status oq_linear_post_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, const oq_post *post);
/* The same; a run that is traced puts the product itself to `key` (NULL: as above). */
oq_status oq_linear_post_traced(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, const oq_post *post,
                                const char *key);
/* y = post(product of x), the columns of x that `pre` names made first. */
oq_status oq_linear_pre_forward(oq_exec *ex, const oq_linear *l, oq_tensor y, oq_tensor x, const oq_pre *pre,
                                const oq_post *post);
/* y = post(second(act(first(x)))), act OQ_POST_UNARY or OQ_POST_GLU: between the products it belongs to whichever of the
 * two kernels fuses it. x comes from `rows`, or is given (rows NULL). y must not be the rows' x unless post adds to it. */
typedef struct oq_pair {
    const oq_linear *first, *second;
    oq_tensor        x;
    const oq_rows   *rows;
    const oq_post   *act, *post;
} oq_pair;
oq_status oq_pair_forward(oq_exec *ex, const oq_pair *pair, oq_tensor y);
/* h, w: of x, before spec.upsample enlarges it. */
oq_status oq_conv2d_forward(oq_exec *ex, const oq_conv2d *c, oq_tensor y, oq_tensor x, int64_t batch, int64_t h,
                            int64_t w);
/* Of one declared by oq_declare_conv3d: x [batch*frames*h*w, c_in] (NDHWC), y [batch*out_frames*out_h*out_w, c_out] with
 * oq_conv2d_out_frames and so on (backend.h). `before`: the frames before x's first, [batch*n*h*w, c_in], at most
 * spec.pad_front of them (a video in pieces keeps its last ones for this); oq_absent(): none. Frames further back are
 * zeros. */
oq_status oq_conv3d_forward(oq_exec *ex, const oq_conv2d *c, oq_tensor y, oq_tensor x, oq_tensor before, int64_t batch,
                            int64_t frames, int64_t h, int64_t w);
/* scale 0 means head_dim^-0.5; key_mask and bias may be NULL (host pointers are the caller's duty to upload). */
typedef struct oq_attention_extra {
    float          scale;
    const uint8_t *key_mask;
    const float   *bias;
    int64_t        bias_head, bias_row;
} oq_attention_extra;
oq_status oq_attention_forward(oq_exec *ex, const oq_attention *a, oq_tensor o, oq_tensor q, oq_tensor k, oq_tensor v,
                               const oq_attention_extra *extra /* NULL: defaults */);
/* rms over each `group` columns (0: whole row), diffusers' rounding order for BF16. */
oq_status oq_rms_norm_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *weight, float eps, int64_t group);
oq_status oq_layer_norm_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *weight, const oq_vector *bias,
                                float eps);
oq_status oq_group_norm_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *weight, const oq_vector *bias,
                                float eps, int64_t n_groups, int64_t batch, bool silu);
/* Group norm of one image that comes by in pieces of rows: the statistics of each piece are taken, and once all of them
 * are, any rows are normalised by those of the whole. */
typedef struct oq_group_moments {
    oq_tensor slots;     /* F64 [pieces at most, 3 n_groups] of scratch */
    int64_t   n_groups, n; /* n: pieces taken; 0 starts over */
} oq_group_moments;
oq_status oq_group_moments_new(oq_exec *ex, int64_t n_groups, int64_t n_pieces, oq_group_moments *out);
oq_status oq_group_moments_add(oq_exec *ex, oq_group_moments *moments, oq_tensor x);
oq_status oq_group_norm_rows_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const oq_vector *weight, const oq_vector *bias,
                                     float eps, const oq_group_moments *moments, bool silu);
/* cos, sin: F32 [rows, head_dim/2] tensors in backend memory. */
oq_status oq_rope_forward(oq_exec *ex, oq_tensor x, oq_tensor cos, oq_tensor sin, int64_t n_heads, int64_t head_dim,
                          oq_rope_kind kind);
/* rms_norm over each head of q and k (norm_q NULL: none), then rope on both, in place. */
typedef struct oq_qk_step {
    const oq_vector *norm_q, *norm_k;
    float            eps;
    oq_tensor        cos, sin; /* as for rope */
    int64_t          n_heads, n_kv_heads, head_dim;
    oq_rope_kind     kind;
} oq_qk_step;
oq_status oq_qk_norm_rope_forward(oq_exec *ex, oq_tensor q, oq_tensor k, const oq_qk_step *step);
oq_status oq_unary_forward(oq_exec *ex, oq_unary kind, oq_tensor y, oq_tensor x);
oq_status oq_glu_forward(oq_exec *ex, oq_unary kind, oq_tensor y, oq_tensor a, oq_tensor b);
oq_status oq_modulate_forward(oq_exec *ex, oq_tensor y, oq_tensor x, oq_tensor scale, oq_tensor shift, float one);
oq_status oq_add_gated_forward(oq_exec *ex, oq_tensor y, oq_tensor x, oq_tensor gate, oq_tensor r);
oq_status oq_add_forward(oq_exec *ex, oq_tensor y, oq_tensor x, oq_tensor r);
oq_status oq_axpby_forward(oq_exec *ex, oq_tensor y, float a, oq_tensor x, float b);
oq_status oq_copy_forward(oq_exec *ex, oq_tensor y, oq_tensor x);
oq_status oq_embed_forward(oq_exec *ex, oq_tensor y, const oq_table *table, oq_tensor ids /* I32 [rows,1] */);
oq_status oq_permute_forward(oq_exec *ex, oq_tensor y, oq_tensor x, const int64_t dim[6], const int64_t ys[6],
                             const int64_t xs[6]);
oq_status oq_upsample2x_forward(oq_exec *ex, oq_tensor y, oq_tensor x, int64_t batch, int64_t h, int64_t w);
/* A vector handle as a [1, n] F32 tensor (to broadcast or copy). */
oq_tensor oq_vector_tensor(const oq_vector *v);
static inline oq_tensor oq_absent(void) { return (oq_tensor){0}; } /* for optional operands */

/* Records a tensor for --trace under `key` (printf-style), F32 unless it is an integer type; free without trace.
 * `shape` (n_dims entries) is what is written; NULL: [rows, cols]. */
oq_status oq_trace_put(oq_exec *ex, oq_tensor t, const int64_t *shape, int n_dims, const char *key, ...)
    __attribute__((format(printf, 5, 6)));

#endif
