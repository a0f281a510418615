/* dit_parts.h -- what transformers of the FLUX line do alike: timestep embeddings, rotary tables, blocks of two streams
 * that attend to each other. */
#ifndef OQ_MODULES_DIT_PARTS_H
#define OQ_MODULES_DIT_PARTS_H

#include "base/json.h"
#include "nn/nn.h"

enum { OQ_DIT_FREQUENCIES = 256 };

/* ---- conditioning -------------------------------------------------------------------------------------- */

typedef struct oq_dit_mlp { /* linear_2(silu(linear_1 x)) */
    oq_linear in, out;
} oq_dit_mlp;
oq_status oq_dit_mlp_declare(oq_builder *b, oq_dit_mlp *m, const char *name, int64_t n, int64_t k, unsigned flags,
                             const char *keep);
oq_status oq_dit_mlp_forward(oq_exec *ex, const oq_dit_mlp *m, oq_tensor x, oq_tensor y);
/* y [1, D] = mlp(cos | sin of t * 10000^(-i/128)); t is rounded to the compute type, as is its product with 1000. */
oq_status oq_dit_time_forward(oq_exec *ex, const oq_dit_mlp *m, float t, oq_tensor y);

/* ---- rotary tables ------------------------------------------------------------------------------------- */

/* "axes_dims_rope" of a configuration, which fills a head. */
oq_status oq_dit_axes_read(oq_env *env, const char *what, const oq_json *config, const int64_t *published, size_t n_axes,
                           int64_t head_dim, int64_t *axes);

/* cos and sin [sum of axes / 2] of one position: axis a owns axes[a] channels, angles in double. */
void oq_dit_rope_row(double theta, const int64_t *axes, int n_axes, const int64_t *position, float *cos_row,
                     float *sin_row);
/* Uploads 2 * cos.rows * cos.cols host values, cos first. No-op in measure mode (host NULL). */
oq_status oq_dit_rope_upload(oq_exec *ex, oq_tensor cos, oq_tensor sin, const float *host);

/* ---- blocks of two streams ----------------------------------------------------------------------------- */

typedef struct oq_dit_shape {
    int64_t dim, n_heads, head_dim, mlp_dim;
    float eps;      /* of all norms */
    unsigned flags; /* OQ_BIAS: of all products */
    bool gated;     /* the MLP is silu(up[:n]) * up[n:]; else gelu_tanh(up) */
} oq_dit_shape;

typedef struct oq_dit_stream_names { /* words inside a block; mod NULL: the modulation is shared between blocks */
    const char *mod, *fused, *q, *k, *v, *norm_q, *norm_k, *out, *up, *down;
} oq_dit_stream_names;

typedef struct oq_dit_stream { /* one half of a block */
    oq_linear mod, qkv, out, up, down;
    oq_vector norm_q, norm_k;
    bool has_mod;
} oq_dit_stream;

typedef struct oq_dit_double { /* text, then image */
    oq_dit_stream text, image;
    oq_attention attention;
} oq_dit_double;

/* Blocks "transformer_blocks.0" to n - 1; *out [n] lives in the builder's arena. */
oq_status oq_dit_doubles_declare(oq_builder *b, const oq_dit_shape *shape, const oq_dit_stream_names *text,
                                 const oq_dit_stream_names *image, int64_t n, oq_dit_double **out);

typedef struct oq_dit_call { /* one forward of a stack */
    const oq_dit_shape *shape;
    oq_tensor u;               /* [T + S, D], text first, in place */
    int64_t n_text;
    oq_tensor cos, sin;        /* F32 [T + S, head_dim / 2] */
    oq_tensor act;             /* [1, D]: silu of the conditioning, for modulations of a block's own; [2, D]: the second row
                                  is for the last n_rest of u, tokens of a picture that is given */
    int64_t n_rest;
    oq_tensor text_mod, image_mod; /* [1, 6D] where they are shared or made already: shift, scale, gate of attention, then
                                      of the MLP */
    oq_tensor final_mod;           /* [1, 2D] likewise: scale, shift of the last norm */
    const char *trace; /* key prefix of what a block of two streams does inside; NULL: nothing is traced there */
} oq_dit_call;

oq_status oq_dit_double_forward(oq_exec *ex, const oq_dit_double *block, const oq_dit_call *call);

/* What a block's last product leaves to the next pass over u: u += gate * o. */
typedef struct oq_dit_residual {
    oq_tensor o, gate; /* [T + S, D]; [1, D] */
    bool left;         /* o has something */
} oq_dit_residual;
/* Room for what `out` leaves, unless there is some already: nothing where it adds by itself. */
oq_status oq_dit_residual_room(oq_exec *ex, const oq_dit_call *call, const oq_linear *out, oq_dit_residual *r);
oq_status oq_dit_residual_add(oq_exec *ex, const oq_dit_call *call, oq_dit_residual *r);
/* LayerNorm(u) * (1 + scale) + shift, u with what is left; mod [1, >= 2D]: shift, scale. Nothing is left after it. */
oq_rows oq_dit_residual_rows(const oq_dit_call *call, oq_tensor mod, oq_dit_residual *r);
/* u += gate * out(x, its columns by `pre` made first, NULL: none): at once where the product adds it, else left in r. */
oq_status oq_dit_residual_product(oq_exec *ex, const oq_dit_call *call, const oq_linear *out, oq_tensor x,
                                  const oq_pre *pre, oq_tensor gate, oq_dit_residual *r);

/* q, k of rows [S, …]: RMS per head, rotation; o [S, D] (any ld) = attention. */
typedef struct oq_dit_heads {
    const oq_vector *norm_q, *norm_k;
    const oq_attention *attention;
} oq_dit_heads;
oq_status oq_dit_heads_forward(oq_exec *ex, const oq_dit_heads *heads, const oq_dit_call *call, oq_tensor qkv,
                               oq_tensor o);

/* y = last(LayerNorm(x) * (1 + scale) + shift), [scale | shift] = mod(act), or final_mod */
oq_status oq_dit_final_forward(oq_exec *ex, const oq_linear *mod, const oq_linear *last, const oq_dit_call *call,
                               oq_tensor x, oq_tensor y, const char *trace);

#endif
