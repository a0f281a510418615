/* dit_wan.h -- the Wan transformer: tokens of a video that attend to each other and to a text in every block. See
 * MODEL.md. */
#ifndef OQ_MODULES_DIT_WAN_H
#define OQ_MODULES_DIT_WAN_H

#include "nn/module.h"

enum { OQ_DIT_WAN_PATCH = 2, OQ_DIT_WAN_MAX_TIMES = 2, OQ_DIT_WAN_MAX_FREQUENCIES = 1024, OQ_DIT_WAN_MAX_TEXT = 1024 };

typedef struct oq_dit_wan_block {
    oq_vector table; /* [6, D]: shift, scale, gate of the attention, then of the MLP */
    oq_linear qkv, out, cross_q, cross_k, cross_v, cross_out, up, down;
    oq_vector norm_q, norm_k, cross_norm_q, cross_norm_k, norm2_weight, norm2_bias;
    oq_attention attention, cross;
} oq_dit_wan_block;

typedef struct oq_dit_wan {
    int64_t n_heads, head_dim, in_channels, out_channels, text_dim, freq_dim, ffn_dim, n_layers, dim;
    double eps;
    bool cross_norm;
    oq_linear patch, t1, t2, t_proj, text1, text2, proj_out;
    oq_vector table; /* [2, D]: shift, scale of the head */
    oq_dit_wan_block *blocks; /* [n_layers] */
} oq_dit_wan;

typedef struct oq_dit_wan_grid { /* tokens of a video and their rotary tables; one for all prompts and experts */
    int64_t frames, rows, columns, n;
    oq_tensor cos, sin; /* F32 [n, head_dim / 2] */
} oq_dit_wan_grid;

/* A text as one transformer sees it in all steps: its keys and values of every block. Rows past the prompt are equal, so
 * one stands for all of them, with the logarithm of their number added to its scores. */
typedef struct oq_dit_wan_condition {
    int64_t n;          /* rows: the prompt's, and one for the padding where there is any */
    oq_tensor kv;       /* [n_layers * n, 2 D]: keys | values */
    oq_tensor bias;     /* F32 [1, n] */
} oq_dit_wan_condition;

/* What a step's tokens are modulated with: tokens [first, first + n) have time t. Ranges follow each other. */
typedef struct oq_dit_wan_time {
    float t;
    int64_t n;
} oq_dit_wan_time;

/* Tensors are taken from scratch; they live as long as the caller's mark. frames, h, w: of the latents. */
oq_status oq_dit_wan_grid_new(oq_exec *ex, const oq_dit_wan *s, int64_t frames, int64_t h, int64_t w, oq_dit_wan_grid *out);
/* n_text: rows of the prompt; n_padded: as many as the original pads it to. */
oq_status oq_dit_wan_condition_new(oq_exec *ex, const oq_dit_wan *s, int64_t n_text, int64_t n_padded,
                                   oq_dit_wan_condition *out);
/* Fills it. text: [n_text, text_dim]. */
oq_status oq_dit_wan_condition_run(oq_exec *ex, const oq_dit_wan *s, oq_tensor text, int64_t n_padded,
                                   const oq_dit_wan_condition *c);

/* x: [in_channels, frames * h * w] of the compute type; y: [out_channels, same]; times: n_times ranges (1 or 2) that add
 * up to the grid's tokens. trace: key prefix or NULL. */
oq_status oq_dit_wan_forward(oq_exec *ex, const oq_dit_wan *s, const oq_dit_wan_grid *g, const oq_dit_wan_condition *c,
                             oq_tensor x, const oq_dit_wan_time *times, int n_times, oq_tensor y, const char *trace);

extern const oq_module_type oq_module_dit_wan;

#endif
