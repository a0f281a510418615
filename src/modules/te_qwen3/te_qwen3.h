/* te_qwen3.h -- dense language models as text encoders: hidden states of a chosen layer. Qwen3, the text part of Qwen2.5-VL
 * and that of Mistral 3 differ in two points: norms of each head, and biases of q, k, v. Qwen2.5-VL may see pictures
 * among the text. See MODEL.md. */
#ifndef OQ_MODULES_TE_QWEN3_H
#define OQ_MODULES_TE_QWEN3_H

#include "modules/vision_qwen25.h"
#include "nn/module.h"

typedef struct oq_te_qwen3_layer {
    oq_vector norm1, norm2, q_norm, k_norm;
    oq_linear qkv, o, gate_up, down;
    oq_attention attention;
} oq_te_qwen3_layer;

typedef struct oq_te_qwen3 {
    int64_t vocab_size, hidden_size, intermediate_size, n_layers, n_heads, n_kv_heads, head_dim,
        max_positions;
    double eps, rope_theta;
    bool qk_norm, qkv_bias; /* Qwen3 has the first, Qwen2.5 the second, Mistral none */
    int64_t rope_section[3]; /* frequencies that turn by the position's frame, row and column (Qwen2.5-VL) */
    /* What is run: the first n_run layers (0 before declare: all), and then the last norm or not. The rest is declared as
     * unused. Set between describe and declare. */
    int64_t n_run;
    bool norm_unused;
    oq_table embed;
    oq_te_qwen3_layer *layers; /* [n_layers] */
    oq_vector norm;
} oq_te_qwen3;

typedef struct oq_te_qwen3_insert { /* rows of the input that are given, not embedded: a picture among the text */
    int64_t first;
    oq_tensor rows; /* [n, hidden_size] */
} oq_te_qwen3_insert;

typedef struct oq_te_qwen3_args {
    const int32_t *ids; /* [n], host */
    int64_t n;          /* tokens */
    const int32_t *positions; /* host [3, n]: frame, row and column; NULL: each is 0 to n-1 */
    const oq_te_qwen3_insert *inserts; /* [n_inserts] */
    int n_inserts;
    int64_t n_layers;   /* how many layers to run, at most n_run: hidden_states[n_layers] of transformers */
    bool final_norm;    /* apply the last norm as well */
    int64_t n_valid;    /* tokens behind these are pads that nobody sees (they see those); 0: none are */
    int64_t n_before;   /* so many pads stand before the valid ones instead: they see nothing at all */
    const int64_t *taps; /* [n_taps], ascending: hidden_states to keep, */
    int n_taps;
    oq_tensor tapped;    /* [n, n_taps * hidden_size], side by side */
    const char *trace;  /* key prefix ("text.pos.0"); NULL: nothing is traced */
} oq_te_qwen3_args;

/* y: [n, hidden_size]. In measure mode ids may be NULL. */
oq_status oq_te_qwen3_forward(oq_exec *ex, const oq_te_qwen3 *s, const oq_te_qwen3_args *args, oq_tensor y);

/* What both types declare: layers, tables and norms of the filled-in configuration. */
oq_status oq_te_qwen3_declare(oq_builder *b, void *self);

/* What their configurations share; `what` names the network in refusals. Theta within 1 and 1e12; every layer attends to all
 * (OQ_E_UNSUPPORTED else); absent numbers of key heads and width are filled in, and all fit. */
oq_status oq_te_qwen3_check_theta(oq_env *env, const char *what, const oq_te_qwen3 *s);
oq_status oq_te_qwen3_check_layer_types(oq_env *env, const char *what, const oq_json *config);
oq_status oq_te_qwen3_fit_heads(oq_env *env, const char *what, oq_te_qwen3 *s);

/* Rows of oq_name_rule for the names that GGUF files of language models have. */
#define OQ_TE_QWEN_GGUF_NAMES                                                                                \
    {.from = "token_embd", .to = "embed_tokens"}, {.from = "output_norm", .to = "norm"},                     \
        {.from = "output", .why = "the output head; an encoder has no use for it"},                          \
        {.from = "blk.*.attn_norm", .to = "layers.*.input_layernorm"},                                       \
        {.from = "blk.*.attn_q", .to = "layers.*.self_attn.q_proj"},                                         \
        {.from = "blk.*.attn_k", .to = "layers.*.self_attn.k_proj"},                                         \
        {.from = "blk.*.attn_v", .to = "layers.*.self_attn.v_proj"},                                         \
        {.from = "blk.*.attn_output", .to = "layers.*.self_attn.o_proj"},                                    \
        {.from = "blk.*.attn_q_norm", .to = "layers.*.self_attn.q_norm"},                                    \
        {.from = "blk.*.attn_k_norm", .to = "layers.*.self_attn.k_norm"},                                    \
        {.from = "blk.*.ffn_norm", .to = "layers.*.post_attention_layernorm"},                               \
        {.from = "blk.*.ffn_gate", .to = "layers.*.mlp.gate_proj"},                                          \
        {.from = "blk.*.ffn_up", .to = "layers.*.mlp.up_proj"},                                              \
    {                                                                                                        \
        .from = "blk.*.ffn_down", .to = "layers.*.mlp.down_proj"                                             \
    }

/* Qwen2.5-VL with its vision tower, for families that show pictures to it (their `trim` is oq_te_qwen25_vl_see); the others
 * leave the tower in the file. */
typedef struct oq_te_qwen25_vl {
    oq_te_qwen3 text; /* first */
    bool sees;
    const oq_json *vision_config; /* between describe and declare */
    oq_vision_qwen25 vision;
} oq_te_qwen25_vl;
void oq_te_qwen25_vl_see(const oq_json *model_index, void *self);

extern const oq_module_type oq_module_te_qwen3;
extern const oq_module_type oq_module_te_qwen25_vl; /* te_qwen25_vl.c */
extern const oq_module_type oq_module_te_mistral;   /* te_mistral.c */

#endif
