/* te_t5.c -- encoder of T5 v1.1 and UMT5: configuration, names, shapes, forward pass. S tokens, D hidden size, H heads. */
#include "modules/te_t5/te_t5.h"

#include "modules/model_config.h"

#include <math.h>
#include <string.h>

#define WHAT "T5"

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_te_t5, member)
static const oq_model_field fields[] = {
    {"vocab_size", OQ_FIELD_INT, FIELD(vocab_size), 1, 1 << 24, NAN, NULL},
    {"d_model", OQ_FIELD_INT, FIELD(hidden_size), 1, 1 << 17, NAN, NULL},
    {"d_kv", OQ_FIELD_INT, FIELD(head_dim), 1, 4096, NAN, NULL},
    {"d_ff", OQ_FIELD_INT, FIELD(ffn_dim), 1, 1 << 20, NAN, NULL},
    {"num_layers", OQ_FIELD_INT, FIELD(n_layers), 1, 1024, NAN, NULL},
    {"num_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, NAN, NULL},
    {"relative_attention_num_buckets", OQ_FIELD_INT, FIELD(n_buckets), 4, 4096, 32, NULL},
    {"relative_attention_max_distance", OQ_FIELD_INT, FIELD(max_distance), 2, 1 << 20, 128, NULL},
    {"layer_norm_epsilon", OQ_FIELD_REAL, FIELD(eps), 0, 1, 1e-6, NULL},
    {"model_type", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"feed_forward_proj", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"gated-gelu\""},
    {"dense_act_fn", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"gelu_new\""},
    {"is_gated_act", OQ_FIELD_FIXED, 0, 0, 0, 0, "true"},
    {"is_decoder", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},
    {"architectures", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"classifier_dropout", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"decoder_start_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"dropout_rate", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"bos_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"eos_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"pad_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"initializer_factor", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"is_encoder_decoder", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"num_decoder_layers", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"n_positions", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"output_past", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"scalable_attention", OQ_FIELD_IGNORED, 0, 0, 0, 0,
     NULL}, /* UMT5's training; the encoder does not read it */
    {"scale_decoder_outputs", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"task_specific_params", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"tie_word_embeddings", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"tokenizer_class", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"use_cache", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"dtype", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"torch_dtype", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"transformers_version", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
};

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    oq_te_t5 *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    const oq_json *type = oq_json_get(config, "model_type");
    const char *name = type ? oq_json_string(type) : "t5";
    s->own_bias = name && strcmp(name, "umt5") == 0;
    if (!s->own_bias && !(name && strcmp(name, "t5") == 0))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "config.json of " WHAT ": 'model_type' is '%s', only 't5' and 'umt5' are supported",
                       name ? name : oq_json_type_name(type));
    if (s->n_buckets % 4 || s->max_distance <= s->n_buckets / 4)
        return oq_fail(env, OQ_E_FORMAT,
                       "config.json of " WHAT ": %lld relative_attention_num_buckets do not fit a "
                       "relative_attention_max_distance of %lld",
                       (long long)s->n_buckets, (long long)s->max_distance);
    return OQ_OK;
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static oq_status declare_layer(oq_builder *b, const oq_te_t5 *s, oq_te_t5_layer *l, bool has_bias)
{
    const int64_t D = s->hidden_size, width = s->n_heads * s->head_dim;
    const oq_part qkv[] = {{"layer.0.SelfAttention.q", width},
                           {"layer.0.SelfAttention.k", width},
                           {"layer.0.SelfAttention.v", width}};
    const oq_part wi[] = {{"layer.1.DenseReluDense.wi_0", s->ffn_dim},
                          {"layer.1.DenseReluDense.wi_1", s->ffn_dim}};
    const oq_attention_spec spec = {.head_dim = s->head_dim, .n_heads = s->n_heads, .n_kv_heads = s->n_heads};
    OQ_TRY(oq_declare_vector(b, &l->norm1, "layer.0.layer_norm.weight", D));
    OQ_TRY(
        oq_declare_fused(b, &l->qkv, "layer.0.SelfAttention.qkv", D, OQ_WANTS(OQ_FUSE_ROWS), qkv, 3, NULL));
    if (has_bias)
        OQ_TRY(oq_declare_table(b, &l->bias, "layer.0.SelfAttention.relative_attention_bias.weight",
                                s->n_buckets, s->n_heads));
    OQ_TRY(oq_declare_attention(b, &l->attention, "layer.0.SelfAttention", spec));
    OQ_TRY(oq_declare_linear(b, &l->o, "layer.0.SelfAttention.o", D, width, OQ_WANTS(OQ_FUSE_ADD), NULL));
    OQ_TRY(oq_declare_vector(b, &l->norm2, "layer.1.layer_norm.weight", D));
    OQ_TRY(oq_declare_fused(b, &l->wi, "layer.1.DenseReluDense.wi", D, OQ_WANTS(OQ_FUSE_ROWS | OQ_FUSE_GLU),
                            wi, 2, NULL));
    return oq_declare_linear(b, &l->wo, "layer.1.DenseReluDense.wo", D, s->ffn_dim, OQ_WANTS(OQ_FUSE_ADD),
                             NULL);
}

static oq_status declare(oq_builder *b, void *self)
{
    oq_te_t5 *s = self;
    OQ_TRY(oq_declare_table(b, &s->embed, "shared.weight", s->vocab_size, s->hidden_size));
    OQ_TRY(oq_arena_new(b->arena, (size_t)s->n_layers, sizeof *s->layers, "text encoder layers", &s->layers));
    for (int64_t i = 0; i < s->n_layers; i++) {
        oq_scope saved;
        OQ_TRY(oq_scope_enter(b, &saved, "encoder.block.%lld", (long long)i));
        OQ_TRY(declare_layer(b, s, &s->layers[i], s->own_bias || i == 0));
        oq_scope_leave(b, saved);
    }
    return oq_declare_vector(b, &s->norm, "encoder.final_layer_norm.weight", s->hidden_size);
}

/* ---- position bias ------------------------------------------------------------------------------------- */

/* Half of the buckets for keys behind the query, half for those before it; each half counts single distances first
 * and then logarithmically up to max_distance. The logarithm is float32, as in the original. */
static int32_t bucket(const oq_te_t5 *s, int64_t key_minus_query)
{
    const int64_t half = s->n_buckets / 2, exact = half / 2;
    const int64_t first = key_minus_query > 0 ? half : 0;
    const int64_t distance = key_minus_query < 0 ? -key_minus_query : key_minus_query;
    if (distance < exact) return (int32_t)(first + distance);
    const float ratio =
        logf((float)distance / (float)exact) / (float)log((double)s->max_distance / (double)exact);
    const int64_t far = exact + (int64_t)(ratio * (float)(half - exact));
    return (int32_t)(first + (far < half - 1 ? far : half - 1));
}

/* The bias of (head, query, key) depends on key - query alone: bias[head][key - query + S - 1], F32 [H, 2S - 1]. */
static oq_status make_bias(oq_exec *ex, const oq_te_t5 *s, const oq_table *table, oq_tensor buckets,
                           oq_tensor bias)
{
    const oq_mark mark = oq_mark_get(ex);
    const int64_t n = buckets.rows, H = s->n_heads;
    oq_tensor rows;
    OQ_TRY(oq_tmp(ex, n, H, &rows));
    OQ_TRY(oq_embed_forward(ex, rows, table, buckets));
    const int64_t dim[6] = {1, 1, 1, 1, H, n}, to[6] = {0, 0, 0, 0, n, 1}, from[6] = {0, 0, 0, 0, 1, H};
    OQ_TRY(oq_permute_forward(ex, bias, rows, dim, to, from));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

static oq_status upload_buckets(oq_exec *ex, const oq_te_t5 *s, int64_t n, oq_tensor buckets)
{
    if (ex->measure) return OQ_OK;
    int32_t *host = NULL;
    OQ_TRY(oq_new(ex->env, (size_t)buckets.rows, sizeof *host, "position buckets", &host));
    for (int64_t i = 0; i < buckets.rows; i++) host[i] = bucket(s, i - (n - 1));
    const oq_status st = oq_upload(ex, buckets, host);
    oq_free(ex->env, host);
    return st;
}

/* ---- forward ------------------------------------------------------------------------------------------- */

static oq_norm_step rms(const oq_vector *weight, const oq_te_t5 *s)
{
    return (oq_norm_step){.kind = OQ_RMS_NORM, .weight = weight, .eps = (float)s->eps};
}

/* x += o(softmax(q k^T + bias) v): nothing divides by the root of the head width */
static oq_status attention_forward(oq_exec *ex, const oq_te_t5 *s, const oq_te_t5_layer *l, oq_tensor x,
                                   oq_tensor bias)
{
    const int64_t width = s->n_heads * s->head_dim, S = x.rows;
    const oq_rows rows = {.x = x, .norm = rms(&l->norm1, s)};
    const oq_post add = {.kind = OQ_POST_ADD, .residual = x};
    oq_tensor qkv, o;
    OQ_TRY(oq_tmp(ex, S, 3 * width, &qkv));
    OQ_TRY(oq_tmp(ex, S, width, &o));
    OQ_TRY(oq_linear_rows_forward(ex, &l->qkv, qkv, &rows, NULL));
    const oq_attention_extra extra = {
        .scale = 1.0f, .bias = oq_tensor_cols(bias, S - 1, S).data, .bias_head = 2 * S - 1, .bias_row = -1};
    OQ_TRY(oq_attention_forward(ex, &l->attention, o, oq_tensor_cols(qkv, 0, width),
                                oq_tensor_cols(qkv, width, width), oq_tensor_cols(qkv, 2 * width, width),
                                &extra));
    return oq_linear_post_forward(ex, &l->o, x, o, &add);
}

/* x += wo(gelu(wi_0 h) * wi_1 h) */
static oq_status ffn_forward(oq_exec *ex, const oq_te_t5 *s, const oq_te_t5_layer *l, oq_tensor x)
{
    const oq_rows rows = {.x = x, .norm = rms(&l->norm2, s)};
    const oq_post gated = {.kind = OQ_POST_GLU, .unary = OQ_GELU_TANH},
                  add = {.kind = OQ_POST_ADD, .residual = x};
    oq_tensor h;
    OQ_TRY(oq_tmp(ex, x.rows, s->ffn_dim, &h));
    OQ_TRY(oq_linear_rows_forward(ex, &l->wi, h, &rows, &gated));
    return oq_linear_post_forward(ex, &l->wo, x, h, &add);
}

static oq_status layers_forward(oq_exec *ex, const oq_te_t5 *s, const oq_te_t5_args *args, oq_tensor x,
                                oq_tensor buckets, oq_tensor bias)
{
    for (int64_t i = 0; i < s->n_layers; i++) {
        const oq_te_t5_layer *l = &s->layers[i];
        const oq_mark mark = oq_mark_get(ex);
        OQ_TRY(oq_check_canceled(ex->env));
        if (i == 0 || s->own_bias) OQ_TRY(make_bias(ex, s, &l->bias, buckets, bias));
        OQ_TRY(attention_forward(ex, s, l, x, bias));
        oq_mark_reset(ex, mark);
        OQ_TRY(ffn_forward(ex, s, l, x));
        oq_mark_reset(ex, mark);
        if (args->trace) OQ_TRY(oq_trace_put(ex, x, NULL, 0, "%s.layer%lld", args->trace, (long long)i));
    }
    return OQ_OK;
}

oq_status oq_te_t5_forward(oq_exec *ex, const oq_te_t5 *s, const oq_te_t5_args *args, oq_tensor y)
{
    if (args->n < 1 || y.rows != args->n)
        return oq_fail(ex->env, OQ_E_ARG, "text encoder: %lld tokens into %lld rows", (long long)args->n,
                       (long long)y.rows);
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor ids, buckets, bias;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_i32, args->n, 1, &ids));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_i32, 2 * args->n - 1, 1, &buckets));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, s->n_heads, 2 * args->n - 1, &bias));
    OQ_TRY(oq_upload(ex, ids, args->ids));
    OQ_TRY(upload_buckets(ex, s, args->n, buckets));
    OQ_TRY(oq_embed_forward(ex, y, &s->embed, ids));
    OQ_TRY(layers_forward(ex, s, args, y, buckets, bias));
    OQ_TRY(oq_rms_norm_forward(ex, y, y, &s->norm, (float)s->eps, 0));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"T5EncoderModel", "UMT5EncoderModel", NULL};

static const oq_name_rule names[] = {
    {.from = "encoder.embed_tokens", .to = "shared"},
    {.from = "encoder.embed_tokens", .why = "the embeddings once more, under the encoder's own name"},
    {.from = "decoder", .why = "the decoder of the whole model; an encoder has no use for it"},
    {.from = "lm_head", .why = "the output head; an encoder has no use for it"},
    {.from = "spiece_model", .why = "the tokenizer, which the folder gives"}, /* in ComfyUI's files */
    /* UMT5 as Wan's original release spells it */
    {.from = "token_embedding", .to = "shared"},
    {.from = "blocks.*.attn.q", .to = "encoder.block.*.layer.0.SelfAttention.q"},
    {.from = "blocks.*.attn.k", .to = "encoder.block.*.layer.0.SelfAttention.k"},
    {.from = "blocks.*.attn.v", .to = "encoder.block.*.layer.0.SelfAttention.v"},
    {.from = "blocks.*.attn.o", .to = "encoder.block.*.layer.0.SelfAttention.o"},
    {.from = "blocks.*.pos_embedding.embedding",
     .to = "encoder.block.*.layer.0.SelfAttention.relative_attention_bias"},
    {.from = "blocks.*.norm1", .to = "encoder.block.*.layer.0.layer_norm"},
    {.from = "blocks.*.ffn.gate.0", .to = "encoder.block.*.layer.1.DenseReluDense.wi_0"},
    {.from = "blocks.*.ffn.fc1", .to = "encoder.block.*.layer.1.DenseReluDense.wi_1"},
    {.from = "blocks.*.ffn.fc2", .to = "encoder.block.*.layer.1.DenseReluDense.wo"},
    {.from = "blocks.*.norm2", .to = "encoder.block.*.layer.1.layer_norm"},
    {.from = "norm", .to = "encoder.final_layer_norm"},
    /* GGUF */
    {.from = "token_embd", .to = "shared"},
    {.from = "enc.blk.*.attn_q", .to = "encoder.block.*.layer.0.SelfAttention.q"},
    {.from = "enc.blk.*.attn_k", .to = "encoder.block.*.layer.0.SelfAttention.k"},
    {.from = "enc.blk.*.attn_v", .to = "encoder.block.*.layer.0.SelfAttention.v"},
    {.from = "enc.blk.*.attn_o", .to = "encoder.block.*.layer.0.SelfAttention.o"},
    {.from = "enc.blk.*.attn_rel_b", .to = "encoder.block.*.layer.0.SelfAttention.relative_attention_bias"},
    {.from = "enc.blk.*.attn_norm", .to = "encoder.block.*.layer.0.layer_norm"},
    {.from = "enc.blk.*.ffn_gate", .to = "encoder.block.*.layer.1.DenseReluDense.wi_0"},
    {.from = "enc.blk.*.ffn_up", .to = "encoder.block.*.layer.1.DenseReluDense.wi_1"},
    {.from = "enc.blk.*.ffn_down", .to = "encoder.block.*.layer.1.DenseReluDense.wo"},
    {.from = "enc.blk.*.ffn_norm", .to = "encoder.block.*.layer.1.layer_norm"},
    {.from = "enc.output_norm", .to = "encoder.final_layer_norm"},
    {0},
};

static const char *const signatures[] = {
    "encoder.block.0.layer.0.SelfAttention.q,encoder.block.0.layer.1.DenseReluDense.wi_0",
    "enc.blk.0.attn_q,enc.blk.0.ffn_gate",
    "token_embedding,blocks.0.attn.q,blocks.0.ffn.gate.0",
    NULL,
};

const oq_module_type oq_module_te_t5 = {
    .name = "te_t5",
    .gguf = "t5encoder",
    .what = "text encoder (T5 or UMT5)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_te_t5),
    .names = names,
    .describe = describe,
    .declare = declare,
};
