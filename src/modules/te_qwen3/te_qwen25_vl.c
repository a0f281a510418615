/* te_qwen25_vl.c -- Qwen2.5-VL: its configuration in both spellings, and the vision tower where a family shows pictures to it.
 * For text alone the three rows of multimodal positions are equal, so its rotary embedding is the plain one; layers and
 * forward pass are te_qwen3.c's, the tower's vision_qwen25.c's. */
#include "modules/te_qwen3/te_qwen3.h"

#include "modules/model_config.h"

#include <math.h>
#include <string.h>

#define WHAT "Qwen2.5-VL"

enum { N_SECTIONS = 3 };

#define FIELD(member) offsetof(oq_te_qwen25_vl, text.member)
#define IGNORED(key)                                                                                         \
    {                                                                                                        \
        key, OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL                                                              \
    }

/* Keys of the text part, and of a flat file (transformers 4), which holds both parts. */
static const oq_model_field fields[] = {
    {"vocab_size", OQ_FIELD_INT, FIELD(vocab_size), 1, 1 << 24, NAN, NULL},
    {"hidden_size", OQ_FIELD_INT, FIELD(hidden_size), 1, 1 << 17, NAN, NULL},
    {"intermediate_size", OQ_FIELD_INT, FIELD(intermediate_size), 1, 1 << 20, NAN, NULL},
    {"num_hidden_layers", OQ_FIELD_INT, FIELD(n_layers), 1, 1024, NAN, NULL},
    {"num_attention_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, NAN, NULL},
    {"num_key_value_heads", OQ_FIELD_INT, FIELD(n_kv_heads), 0, 4096, 0, NULL},
    {"head_dim", OQ_FIELD_INT, FIELD(head_dim), 0, 4096, 0, NULL},
    {"max_position_embeddings", OQ_FIELD_INT, FIELD(max_positions), 1, 1 << 30, 32768, NULL},
    {"rms_norm_eps", OQ_FIELD_REAL, FIELD(eps), 0, 1, 1e-6, NULL},
    {"rope_theta", OQ_FIELD_REAL, FIELD(rope_theta), 1, 1e12, 0, NULL},
    {"rope_parameters", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"rope_scaling", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"layer_types", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"hidden_act", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"silu\""},
    {"use_sliding_window", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},
    {"model_type", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"text_config", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"vision_config", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    IGNORED("image_token_id"),
    IGNORED("video_token_id"),
    IGNORED("vision_start_token_id"),
    IGNORED("vision_end_token_id"),
    IGNORED("vision_token_id"),
    IGNORED("architectures"),
    IGNORED("attention_dropout"),
    IGNORED("bos_token_id"),
    IGNORED("eos_token_id"),
    IGNORED("pad_token_id"),
    IGNORED("initializer_range"),
    IGNORED("max_window_layers"),
    IGNORED("sliding_window"),
    IGNORED("tie_word_embeddings"),
    IGNORED("use_cache"),
    IGNORED("dtype"),
    IGNORED("torch_dtype"),
    IGNORED("transformers_version"),
};

/* Of a nested file: the keys beside 'text_config'. */
static const oq_model_field outer_fields[] = {
    {"text_config", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"model_type", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"vision_config", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    IGNORED("image_token_id"),
    IGNORED("video_token_id"),
    IGNORED("vision_start_token_id"),
    IGNORED("vision_end_token_id"),
    IGNORED("vision_token_id"),
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

static oq_status check_model_type(oq_env *env, const oq_json *config, const char *only)
{
    const char *type = oq_json_string(oq_json_get(config, "model_type"));
    if (!type || strncmp(type, "qwen2_5_vl", 10) == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "config.json of " WHAT ": 'model_type' is '%s', only '%s' is supported", type, only);
}

/* Equal position rows make every split of the frequencies the same, "default" and "mrope" are two words for one thing; any
 * other kind of scaling is refused. */
static oq_status check_rope_type(oq_env *env, const oq_json *rope, const char *key, const char *member)
{
    const char *type = oq_json_string(oq_json_get(rope, member));
    if (!type || strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "config.json of " WHAT ": '%s.%s' is '%s', only 'default' and 'mrope' are supported", key,
                   member, type);
}

static oq_status read_rope(oq_env *env, const oq_json *config, const char *key, oq_te_qwen3 *s)
{
    const oq_json *rope = oq_json_get(config, key);
    if (oq_json_type(rope) == OQ_JSON_NULL) return OQ_OK;
    if (oq_json_type(rope) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_FORMAT, "config.json of " WHAT ": '%s' is %s, an object is needed", key,
                       oq_json_type_name(rope));
    OQ_TRY(check_rope_type(env, rope, key, "rope_type"));
    OQ_TRY(check_rope_type(env, rope, key, "type"));
    s->rope_theta = oq_json_real(oq_json_get(rope, "rope_theta"), s->rope_theta);
    if (!oq_json_get(rope, "mrope_section")) return OQ_OK;
    int64_t n = 0;
    OQ_TRY(oq_model_config_ints(env, WHAT, rope, "mrope_section", 0, 4096, s->rope_section, N_SECTIONS, &n));
    if (n == N_SECTIONS) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "config.json of " WHAT ": 'mrope_section' has %lld entries, 3 are needed", (long long)n);
}

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    oq_te_qwen25_vl *whole = self;
    oq_te_qwen3 *s = &whole->text;
    const oq_json *text = oq_json_get(config, "text_config");
    const int64_t published[N_SECTIONS] = {16, 24, 24};
    memcpy(s->rope_section, published, sizeof published);
    whole->vision_config = oq_json_get(config, "vision_config");
    if (oq_json_type(text) == OQ_JSON_OBJECT) {
        OQ_TRY(oq_model_config_read(env, WHAT, config, outer_fields, OQ_COUNT(outer_fields), s));
        OQ_TRY(check_model_type(env, config, "qwen2_5_vl"));
        config = text;
    }
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    OQ_TRY(check_model_type(env, config, "qwen2_5_vl_text"));
    OQ_TRY(read_rope(env, config, "rope_scaling", s));
    OQ_TRY(read_rope(env, config, "rope_parameters", s));
    OQ_TRY(oq_te_qwen3_check_layer_types(env, WHAT, config));
    OQ_TRY(oq_te_qwen3_check_theta(env, WHAT, s));
    s->qkv_bias = true;
    return oq_te_qwen3_fit_heads(env, WHAT, s);
}

/* ---- the vision tower ---------------------------------------------------------------------------------- */

void oq_te_qwen25_vl_see(const oq_json *model_index, void *self)
{
    (void)model_index;
    ((oq_te_qwen25_vl *)self)->sees = true;
}

static oq_status declare_vision(oq_builder *b, oq_te_qwen25_vl *s)
{
    const int64_t *section = s->text.rope_section, sum = section[0] + section[1] + section[2];
    oq_scope saved;
    if (oq_json_type(s->vision_config) != OQ_JSON_OBJECT)
        return oq_fail(b->env, OQ_E_FORMAT,
                       "config.json of " WHAT ": 'vision_config' is missing, and pictures are to be seen");
    OQ_TRY(oq_vision_qwen25_describe(b->env, WHAT, s->vision_config, &s->vision));
    if (s->vision.out_hidden_size != s->text.hidden_size)
        return oq_fail(b->env, OQ_E_FORMAT,
                       "config.json of " WHAT
                       ": the vision tower gives states of %lld, the text part takes %lld",
                       (long long)s->vision.out_hidden_size, (long long)s->text.hidden_size);
    if (2 * sum != s->text.head_dim)
        return oq_fail(b->env, OQ_E_FORMAT,
                       "config.json of " WHAT
                       ": 'mrope_section' counts %lld frequencies, a head of %lld has %lld",
                       (long long)sum, (long long)s->text.head_dim, (long long)(s->text.head_dim / 2));
    OQ_TRY(oq_scope_enter(b, &saved, "visual"));
    OQ_TRY(oq_vision_qwen25_declare(b, &s->vision));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare(oq_builder *b, void *self)
{
    oq_te_qwen25_vl *s = self;
    OQ_TRY(oq_te_qwen3_declare(b, &s->text));
    if (s->sees) OQ_TRY(declare_vision(b, s));
    s->vision_config = NULL; /* the configuration's, which goes */
    return OQ_OK;
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLModel",
                                          "Qwen2_5_VLTextModel", NULL};

/* Where the tower is declared, what is below these names must be part of it. */
#define VISION "the vision tower; text alone is encoded"
static const oq_name_rule names[] = {
    {.from = "lm_head", .why = "the output head; an encoder has no use for it"},
    {.from = "visual", .why = VISION},
    {.from = "model.visual", .why = VISION},
    {.from = "model.language_model", .to = ""},
    {.from = "language_model", .to = ""},
    {.from = "model", .to = ""}, /* files written by transformers 4 */
    OQ_TE_QWEN_GGUF_NAMES,
    {0},
};

/* Biases of q, k and v are Qwen2's alone. */
static const char *const signatures[] = {
    "model.language_model.embed_tokens,model.language_model.layers.0.self_attn.q_proj.bias",
    "language_model.embed_tokens,language_model.layers.0.self_attn.q_proj.bias",
    "model.embed_tokens,model.layers.0.self_attn.q_proj.bias",
    "embed_tokens,layers.0.self_attn.q_proj.bias",
    "token_embd,blk.0.attn_q.bias",
    NULL,
};

const oq_module_type oq_module_te_qwen25_vl = {
    .name = "te_qwen25_vl",
    .gguf = "qwen2vl",
    .what = "text encoder (Qwen2.5-VL)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_te_qwen25_vl),
    .names = names,
    .describe = describe,
    .declare = declare,
};
