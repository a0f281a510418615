/* te_clip.h -- CLIP's text model (FLUX.1: ViT-L/14): hidden states and the vector of the whole text. See MODEL.md. */
#ifndef OQ_MODULES_TE_CLIP_H
#define OQ_MODULES_TE_CLIP_H

#include "nn/module.h"

typedef struct oq_te_clip_norm {
    oq_vector weight, bias;
} oq_te_clip_norm;

typedef struct oq_te_clip_layer {
    oq_te_clip_norm norm1, norm2;
    oq_linear qkv, out, fc1, fc2;
    oq_attention attention;
} oq_te_clip_layer;

typedef struct oq_te_clip {
    int64_t vocab_size, hidden_size, ffn_dim, n_layers, n_heads, max_positions, eos_id;
    double eps;
    oq_unary act;
    oq_table embed, positions;
    oq_te_clip_layer *layers; /* [n_layers] */
    oq_te_clip_norm norm;
} oq_te_clip;

typedef struct oq_te_clip_args {
    const int32_t *ids; /* [n], host; n <= max_positions */
    int64_t n;
    const char *trace;  /* key prefix ("text.pos.0"); NULL: nothing is traced */
} oq_te_clip_args;

/* y: [n, hidden_size] = last_hidden_state, after the final norm. In measure mode ids may be NULL. */
oq_status oq_te_clip_forward(oq_exec *ex, const oq_te_clip *s, const oq_te_clip_args *args, oq_tensor y);
/* The row of y that stands for the whole text: the end token's (configurations that say 2: the largest id's) first place. */
int64_t oq_te_clip_pooled_row(const oq_te_clip *s, const int32_t *ids, int64_t n);

extern const oq_module_type oq_module_te_clip;

#endif
