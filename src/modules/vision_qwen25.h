/* vision_qwen25.h -- the vision tower of Qwen2.5-VL, a part of the network that reads its states (te_qwen3/MODEL.md): pictures
 * as patches to states in the width of a language model. */
#ifndef OQ_MODULES_VISION_QWEN25_H
#define OQ_MODULES_VISION_QWEN25_H

#include "base/json.h"
#include "nn/nn.h"

enum { OQ_VISION_QWEN25_MAX_FULL = 256 };

typedef struct oq_vision_qwen25_block {
    oq_vector norm1, norm2;
    oq_linear qkv, proj, gate_up, down;
    oq_attention attention;
    bool full; /* each patch sees all; else those of its window */
} oq_vision_qwen25_block;

typedef struct oq_vision_qwen25 {
    int64_t depth, hidden_size, intermediate_size, n_heads, head_dim, out_hidden_size;
    int64_t in_channels, patch_size, temporal_patch_size; /* a patch: [channels, frames, patch_size, patch_size] */
    int64_t merge_size, window_size;                      /* patches of a state's side; pixels of a window's */
    int64_t full[OQ_VISION_QWEN25_MAX_FULL], n_full;      /* blocks without windows */
    double rope_theta;
    oq_linear patch_embed, merger_in, merger_out;
    oq_vector merger_norm;
    oq_vision_qwen25_block *blocks; /* [depth] */
} oq_vision_qwen25;

/* `what` names the network in refusals, `config` is its vision_config. */
oq_status oq_vision_qwen25_describe(oq_env *env, const char *what, const oq_json *config, oq_vision_qwen25 *s);
/* In the builder's scope ("visual."). */
oq_status oq_vision_qwen25_declare(oq_builder *b, oq_vision_qwen25 *s);

/* Values of a patch. */
int64_t oq_vision_qwen25_patch(const oq_vision_qwen25 *s);

typedef struct oq_vision_qwen25_picture {
    int64_t rows, columns; /* of patches, multiples of merge_size */
    const float *patches;  /* host, [rows * columns, values of a patch]: state by state in rows, those of a state in rows; NULL
                              while measuring */
} oq_vision_qwen25_picture;

/* y: [rows * columns / merge_size^2, out_hidden_size], in rows. trace: key prefix or NULL. */
oq_status oq_vision_qwen25_forward(oq_exec *ex, const oq_vision_qwen25 *s, const oq_vision_qwen25_picture *picture,
                                   oq_tensor y, const char *trace);

#endif
