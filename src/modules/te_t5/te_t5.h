/* te_t5.h -- the encoder of T5 v1.1 (FLUX.1) and UMT5 (Wan): text to hidden states, positions by a learned bias of the
 * distance. See MODEL.md. */
#ifndef OQ_MODULES_TE_T5_H
#define OQ_MODULES_TE_T5_H

#include "nn/module.h"

typedef struct oq_te_t5_layer {
    oq_vector norm1, norm2;
    oq_linear qkv, o, wi, wo; /* wi: wi_0 (activated), wi_1 */
    oq_table bias;            /* [buckets, heads]; of layer 0 alone unless every layer has its own */
    oq_attention attention;
} oq_te_t5_layer;

typedef struct oq_te_t5 {
    int64_t vocab_size, hidden_size, head_dim, ffn_dim, n_layers, n_heads, n_buckets, max_distance;
    double eps;
    bool own_bias; /* UMT5: a table in every layer */
    oq_table embed;
    oq_te_t5_layer *layers; /* [n_layers] */
    oq_vector norm;
} oq_te_t5;

typedef struct oq_te_t5_args {
    const int32_t *ids; /* [n], host; pads are tokens like others: there is no mask */
    int64_t n;
    const char *trace;  /* key prefix ("text2.pos.0"); NULL: nothing is traced */
} oq_te_t5_args;

/* y: [n, hidden_size] = last_hidden_state. In measure mode ids may be NULL. */
oq_status oq_te_t5_forward(oq_exec *ex, const oq_te_t5 *s, const oq_te_t5_args *args, oq_tensor y);

extern const oq_module_type oq_module_te_t5;

#endif
