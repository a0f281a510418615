/* tiny_net.h -- a network of six tensors that exercises plan, load and forward: embedding, norm, a fused
 * pair, a kept layer with bias. */
#ifndef OQ_TESTS_TINY_NET_H
#define OQ_TESTS_TINY_NET_H

#include "nn/module.h"

enum { TINY_DIM = 96, TINY_HIDDEN = 160, TINY_VOCAB = 11 };

typedef struct tiny_net {
    oq_table embed; /* embed.weight [11, 96] */
    oq_vector norm; /* block.0.norm.weight [96] */
    oq_linear w13;  /* block.0.w1, block.0.w3 [160, 96] */
    oq_linear w2;   /* block.0.w2 [96, 160] */
    oq_linear head; /* head [96, 96] + bias, kept */
    bool twice;     /* declares w2 twice: a bug that the plan must name */
} tiny_net;

extern const oq_module_type tiny_module; /* class "TinyNet"; names: prefix "model" optional, "lm" harmless */
/* y [rows, 96] = head(w2(silu(w1 h) * w3 h)), h = rms(embed[ids]). */
oq_status tiny_forward(oq_exec *ex, const tiny_net *s, oq_tensor y, const int32_t *ids);

#endif
