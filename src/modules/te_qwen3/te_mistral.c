/* te_mistral.c -- the text part of Mistral 3 (Mistral Small 3, FLUX.2-dev): its configuration; layers and forward pass are
 * te_qwen3.c's, without norms of each head and without biases. */
#include "modules/te_qwen3/te_qwen3.h"

#include "modules/model_config.h"

#include <math.h>
#include <string.h>

#define WHAT "Mistral 3"

#define FIELD(member) offsetof(oq_te_qwen3, member)
#define IGNORED(key)                                                                                         \
    {                                                                                                        \
        key, OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL                                                              \
    }

static const oq_model_field fields[] = {
    /* of the text part */
    {"vocab_size", OQ_FIELD_INT, FIELD(vocab_size), 1, 1 << 24, NAN, NULL},
    {"hidden_size", OQ_FIELD_INT, FIELD(hidden_size), 1, 1 << 17, NAN, NULL},
    {"intermediate_size", OQ_FIELD_INT, FIELD(intermediate_size), 1, 1 << 20, NAN, NULL},
    {"num_hidden_layers", OQ_FIELD_INT, FIELD(n_layers), 1, 1024, NAN, NULL},
    {"num_attention_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, NAN, NULL},
    {"num_key_value_heads", OQ_FIELD_INT, FIELD(n_kv_heads), 0, 4096, 0, NULL},
    {"head_dim", OQ_FIELD_INT, FIELD(head_dim), 0, 4096, 0, NULL},
    {"max_position_embeddings", OQ_FIELD_INT, FIELD(max_positions), 1, 1 << 30, 131072, NULL},
    {"rms_norm_eps", OQ_FIELD_REAL, FIELD(eps), 0, 1, 1e-6, NULL},
    {"rope_theta", OQ_FIELD_REAL, FIELD(rope_theta), 1, 1e12, 0, NULL},
    {"rope_parameters", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"rope_scaling", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"},
    {"sliding_window", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"},
    {"hidden_act", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"silu\""},
    {"attention_bias", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},
    {"mlp_bias", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},
    {"model_type", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"mistral\""},
    IGNORED("architectures"),
    IGNORED("attention_dropout"),
    IGNORED("bos_token_id"),
    IGNORED("eos_token_id"),
    IGNORED("pad_token_id"),
    IGNORED("initializer_range"),
    IGNORED("is_composition"),
    IGNORED("layer_types"), /* checked by 'sliding_window' */
    IGNORED("tie_word_embeddings"),
    IGNORED("use_cache"),
    IGNORED("dtype"),
    IGNORED("torch_dtype"),
    IGNORED("transformers_version"),
};

static const oq_model_field outer_fields[] = {
    /* beside 'text_config' */
    {"text_config", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"model_type", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"mistral3\""},
    IGNORED("vision_config"), /* pictures in a prompt are not read */
    IGNORED("image_token_index"),
    IGNORED("image_token_id"),
    IGNORED("multimodal_projector_bias"),
    IGNORED("projector_hidden_act"),
    IGNORED("spatial_merge_size"),
    IGNORED("vision_feature_layer"),
    IGNORED("architectures"),
    IGNORED("bos_token_id"),
    IGNORED("eos_token_id"),
    IGNORED("pad_token_id"),
    IGNORED("initializer_range"),
    IGNORED("tie_word_embeddings"),
    IGNORED("use_cache"),
    IGNORED("dtype"),
    IGNORED("torch_dtype"),
    IGNORED("transformers_version"),
};

/* transformers 4 writes "rope_theta", transformers 5 "rope_parameters": {"rope_theta", "rope_type"}. */
static oq_status read_rope(oq_env *env, const oq_json *config, oq_te_qwen3 *s)
{
    const oq_json *rope = oq_json_get(config, "rope_parameters");
    const char *type = oq_json_string(oq_json_get(rope, "rope_type"));
    if (type && strcmp(type, "default") != 0)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "config.json of " WHAT
                       ": 'rope_parameters.rope_type' is '%s', only 'default' is supported",
                       type);
    s->rope_theta = oq_json_real(oq_json_get(rope, "rope_theta"), s->rope_theta);
    return oq_te_qwen3_check_theta(env, WHAT, s);
}

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    oq_te_qwen3 *s = self;
    const oq_json *text = oq_json_get(config, "text_config");
    if (oq_json_type(text) == OQ_JSON_OBJECT) {
        OQ_TRY(oq_model_config_read(env, WHAT, config, outer_fields, OQ_COUNT(outer_fields), s));
        config = text;
    }
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    OQ_TRY(read_rope(env, config, s));
    return oq_te_qwen3_fit_heads(env, WHAT, s);
}

static const char *const class_names[] = {"Mistral3ForConditionalGeneration", "Mistral3Model", NULL};

#define HEAD   "the output head; an encoder has no use for it"
#define VISION "the vision tower; text alone is encoded"
/* llama.cpp's files are not among them: they hold the rows of q and k in another order. */
static const oq_name_rule names[] = {
    {.from = "lm_head", .why = HEAD},
    {.from = "language_model.lm_head", .why = HEAD},
    {.from = "vision_tower", .why = VISION},
    {.from = "model.vision_tower", .why = VISION},
    {.from = "multi_modal_projector", .why = VISION},
    {.from = "model.multi_modal_projector", .why = VISION},
    {.from = "tekken_model", .why = "the tokenizer, which the folder gives"}, /* in ComfyUI's files */
    {.from = "model.language_model", .to = ""},
    {.from = "language_model.model", .to = ""}, /* files written by transformers 4 */
    {.from = "language_model", .to = ""},
    {.from = "model", .to = ""},
    {0},
};

/* Neither Qwen3's norms nor Qwen2's biases. */
#define LAYER0(prefix)                                                                                       \
    prefix "embed_tokens," prefix "layers.0.self_attn.q_proj.weight,!" prefix                                \
           "layers.0.self_attn.q_norm,!" prefix "layers.0.self_attn.q_proj.bias"
static const char *const signatures[] = {
    LAYER0("model.language_model."),
    LAYER0("language_model.model."),
    LAYER0("language_model."),
    LAYER0("model."),
    LAYER0(""),
    NULL,
};

const oq_module_type oq_module_te_mistral = {
    .name = "te_mistral",
    .what = "text encoder (Mistral or Llama)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_te_qwen3),
    .names = names,
    .describe = describe,
    .declare = oq_te_qwen3_declare,
};
