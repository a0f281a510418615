/* te_qwen3.c -- Qwen3 dense: configuration, names, and the forward pass that Qwen2.5 shares. B is 1; S tokens, D
 * hidden size, d head width. */
#include "modules/te_qwen3/te_qwen3.h"

#include "modules/model_config.h"

#include <math.h>
#include <string.h>

#define WHAT "Qwen3"

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_te_qwen3, member)
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
    {"rope_scaling", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"},
    {"layer_types", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"hidden_act", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"silu\""},
    {"attention_bias", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},
    {"use_sliding_window", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},
    {"model_type", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"qwen3\""},
    {"architectures", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"attention_dropout", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"bos_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"eos_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"pad_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"initializer_range", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"max_window_layers", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"sliding_window", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL}, /* read only under use_sliding_window */
    {"tie_word_embeddings", OQ_FIELD_IGNORED, 0, 0, 0, 0,
     NULL}, /* concerns the output head, which is not used */
    {"use_cache", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"dtype", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"torch_dtype", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"transformers_version", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
};

oq_status oq_te_qwen3_check_theta(oq_env *env, const char *what, const oq_te_qwen3 *s)
{
    if (s->rope_theta >= 1 && s->rope_theta <= 1e12) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "config.json of %s: 'rope_theta' is missing or out of range (%g)", what,
                   s->rope_theta);
}

oq_status oq_te_qwen3_check_layer_types(oq_env *env, const char *what, const oq_json *config)
{
    const oq_json *types = oq_json_get(config, "layer_types");
    for (size_t i = 0; i < oq_json_size(types); i++) {
        const char *type = oq_json_string(oq_json_at(types, i));
        if (!type || strcmp(type, "full_attention") != 0)
            return oq_fail(
                env, OQ_E_UNSUPPORTED,
                "config.json of %s: 'layer_types[%zu]' is '%s', only 'full_attention' is supported", what, i,
                type ? type : "?");
    }
    return OQ_OK;
}

oq_status oq_te_qwen3_fit_heads(oq_env *env, const char *what, oq_te_qwen3 *s)
{
    if (s->n_kv_heads == 0) s->n_kv_heads = s->n_heads;
    if (s->head_dim == 0) s->head_dim = s->hidden_size / s->n_heads;
    if (s->n_heads % s->n_kv_heads == 0 && s->head_dim >= 2 && s->head_dim % 2 == 0) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "config.json of %s: %lld heads over %lld key heads of width %lld do not fit together",
                   what, (long long)s->n_heads, (long long)s->n_kv_heads, (long long)s->head_dim);
}

/* transformers 4 writes "rope_theta", transformers 5 "rope_parameters": {"rope_theta", "rope_type"}. */
static oq_status read_rope(oq_env *env, const oq_json *config, oq_te_qwen3 *s)
{
    const oq_json *rope = oq_json_get(config, "rope_parameters");
    if (oq_json_type(rope) != OQ_JSON_NULL && oq_json_type(rope) != OQ_JSON_OBJECT)
        return oq_fail(env, OQ_E_FORMAT,
                       "config.json of " WHAT ": 'rope_parameters' is %s, an object is needed",
                       oq_json_type_name(rope));
    if (rope) {
        const char *type = oq_json_string(oq_json_get(rope, "rope_type"));
        if (type && strcmp(type, "default") != 0)
            return oq_fail(env, OQ_E_UNSUPPORTED,
                           "config.json of " WHAT
                           ": 'rope_parameters.rope_type' is '%s', only 'default' is supported",
                           type);
        s->rope_theta = oq_json_real(oq_json_get(rope, "rope_theta"), s->rope_theta);
    }
    return oq_te_qwen3_check_theta(env, WHAT, s);
}

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    oq_te_qwen3 *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    OQ_TRY(read_rope(env, config, s));
    OQ_TRY(oq_te_qwen3_check_layer_types(env, WHAT, config));
    s->qk_norm = true;
    return oq_te_qwen3_fit_heads(env, WHAT, s);
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static oq_status declare_layer(oq_builder *b, const oq_te_qwen3 *s, oq_te_qwen3_layer *l)
{
    const int64_t D = s->hidden_size, q = s->n_heads * s->head_dim, kv = s->n_kv_heads * s->head_dim;
    const oq_part qkv[] = {{"self_attn.q_proj", q}, {"self_attn.k_proj", kv}, {"self_attn.v_proj", kv}};
    const oq_part gate_up[] = {{"mlp.gate_proj", s->intermediate_size},
                               {"mlp.up_proj", s->intermediate_size}};
    const oq_attention_spec spec = {
        .head_dim = s->head_dim, .n_heads = s->n_heads, .n_kv_heads = s->n_kv_heads, .causal = true};
    OQ_TRY(oq_declare_vector(b, &l->norm1, "input_layernorm.weight", D));
    OQ_TRY(oq_declare_fused(b, &l->qkv, "self_attn.qkv_proj", D,
                            OQ_WANTS(OQ_FUSE_ROWS) | (s->qkv_bias ? OQ_BIAS : 0), qkv, 3, NULL));
    if (s->qk_norm) {
        OQ_TRY(oq_declare_vector(b, &l->q_norm, "self_attn.q_norm.weight", s->head_dim));
        OQ_TRY(oq_declare_vector(b, &l->k_norm, "self_attn.k_norm.weight", s->head_dim));
    }
    OQ_TRY(oq_declare_attention(b, &l->attention, "self_attn", spec));
    OQ_TRY(oq_declare_linear(b, &l->o, "self_attn.o_proj", D, q, OQ_WANTS(OQ_FUSE_ADD), NULL));
    OQ_TRY(oq_declare_vector(b, &l->norm2, "post_attention_layernorm.weight", D));
    OQ_TRY(oq_declare_fused(b, &l->gate_up, "mlp.gate_up_proj", D, OQ_WANTS(OQ_FUSE_ROWS | OQ_FUSE_GLU),
                            gate_up, 2, NULL));
    return oq_declare_linear(b, &l->down, "mlp.down_proj", D, s->intermediate_size, OQ_WANTS(OQ_FUSE_ADD),
                             NULL);
}

oq_status oq_te_qwen3_declare(oq_builder *b, void *self)
{
    oq_te_qwen3 *s = self;
    if (s->n_run == 0) s->n_run = s->n_layers;
    OQ_TRY(oq_declare_table(b, &s->embed, "embed_tokens.weight", s->vocab_size, s->hidden_size));
    OQ_TRY(oq_arena_new(b->arena, (size_t)s->n_layers, sizeof *s->layers, "text encoder layers", &s->layers));
    for (int64_t i = 0; i < s->n_layers; i++) {
        oq_scope saved;
        b->unused = i >= s->n_run;
        OQ_TRY(oq_scope_enter(b, &saved, "layers.%lld", (long long)i));
        OQ_TRY(declare_layer(b, s, &s->layers[i]));
        oq_scope_leave(b, saved);
    }
    b->unused = s->norm_unused;
    OQ_TRY(oq_declare_vector(b, &s->norm, "norm.weight", s->hidden_size));
    b->unused = false;
    return OQ_OK;
}

/* ---- forward ------------------------------------------------------------------------------------------- */

/* Which row of the positions frequency i turns by. */
static int64_t axis_of(const oq_te_qwen3 *s, int64_t i)
{
    return i < s->rope_section[0] ? 0 : i < s->rope_section[0] + s->rope_section[1] ? 1 : 2;
}

/* cos, sin: [S, d/2] of pos * theta^(-2i/d) in float32, rounded to the compute type as transformers does. */
static void fill_rope(const oq_te_qwen3 *s, const oq_dtype *compute, const oq_te_qwen3_args *args,
                      float *cos_out, float *sin_out)
{
    const int64_t half = s->head_dim / 2, n = args->n;
    for (int64_t i = 0; i < half; i++) {
        const int32_t *at = args->positions ? args->positions + axis_of(s, i) * n : NULL;
        const float exponent = (float)(2 * i) / (float)s->head_dim;
        const float frequency = 1.0f / powf((float)s->rope_theta, exponent);
        for (int64_t t = 0; t < n; t++) {
            const double angle = (double)((float)(at ? at[t] : t) * frequency);
            cos_out[t * half + i] = (float)cos(angle);
            sin_out[t * half + i] = (float)sin(angle);
        }
    }
    if (compute == &oq_dtype_f32) return;
    for (int64_t i = 0; i < n * half; i++) {
        uint16_t rounded[2];
        compute->from_f32(&rounded[0], &cos_out[i], 1);
        compute->from_f32(&rounded[1], &sin_out[i], 1);
        compute->to_f32(&cos_out[i], &rounded[0], 1);
        compute->to_f32(&sin_out[i], &rounded[1], 1);
    }
}

static oq_status make_rope(oq_exec *ex, const oq_te_qwen3 *s, const oq_te_qwen3_args *args,
                           oq_tensor *cos_out, oq_tensor *sin_out)
{
    const int64_t half = s->head_dim / 2, n = args->n;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n, half, cos_out));
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_f32, n, half, sin_out));
    if (ex->measure) return OQ_OK;
    float *host = NULL;
    OQ_TRY(oq_new(ex->env, (size_t)(2 * n * half), sizeof *host, "rotary table", &host));
    fill_rope(s, ex->compute, args, host, host + n * half);
    oq_status st = oq_upload(ex, *cos_out, host);
    if (st == OQ_OK) st = oq_upload(ex, *sin_out, host + n * half);
    oq_free(ex->env, host);
    return st;
}

typedef struct shared { /* what the layers of one forward share */
    oq_tensor cos, sin;
    oq_tensor mask; /* U8 [S, 1]: 0 for pads; rows 0: none */
} shared;

static oq_status make_mask(oq_exec *ex, const oq_te_qwen3_args *args, oq_tensor *mask)
{
    *mask = oq_absent();
    if (args->n_valid <= 0 || args->n_before < 0 || args->n_valid > args->n - args->n_before) return OQ_OK;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_u8, args->n, 1, mask));
    if (ex->measure) return OQ_OK;
    uint8_t *host = NULL;
    OQ_TRY(oq_new(ex->env, (size_t)args->n, 1, "text mask", &host));
    memset(host + args->n_before, 1, (size_t)args->n_valid);
    const oq_status st = oq_upload(ex, *mask, host);
    oq_free(ex->env, host);
    return st;
}

static oq_norm_step rms(const oq_vector *weight, const oq_te_qwen3 *s)
{
    return (oq_norm_step){.kind = OQ_RMS_NORM, .weight = weight, .eps = (float)s->eps};
}

/* x += o(Attn(RMS(x))) */
static oq_status attention_forward(oq_exec *ex, const oq_te_qwen3 *s, const oq_te_qwen3_layer *l, oq_tensor x,
                                   const shared *c)
{
    const int64_t q_width = s->n_heads * s->head_dim, kv_width = s->n_kv_heads * s->head_dim;
    const oq_rows rows = {.x = x, .norm = rms(&l->norm1, s)};
    const oq_post add = {.kind = OQ_POST_ADD, .residual = x};
    oq_tensor qkv, o;
    OQ_TRY(oq_tmp(ex, x.rows, q_width + 2 * kv_width, &qkv));
    OQ_TRY(oq_tmp(ex, x.rows, q_width, &o));
    const oq_tensor q = oq_tensor_cols(qkv, 0, q_width), k = oq_tensor_cols(qkv, q_width, kv_width),
                    v = oq_tensor_cols(qkv, q_width + kv_width, kv_width);
    OQ_TRY(oq_linear_rows_forward(ex, &l->qkv, qkv, &rows, NULL));
    const oq_qk_step qk = {.norm_q = s->qk_norm ? &l->q_norm : NULL,
                           .norm_k = s->qk_norm ? &l->k_norm : NULL,
                           .eps = (float)s->eps,
                           .cos = c->cos,
                           .sin = c->sin,
                           .n_heads = s->n_heads,
                           .n_kv_heads = s->n_kv_heads,
                           .head_dim = s->head_dim,
                           .kind = OQ_ROPE_HALF};
    OQ_TRY(oq_qk_norm_rope_forward(ex, q, k, &qk));
    const oq_attention_extra extra = {.key_mask = c->mask.data};
    OQ_TRY(oq_attention_forward(ex, &l->attention, o, q, k, v, c->mask.rows ? &extra : NULL));
    return oq_linear_post_forward(ex, &l->o, x, o, &add);
}

/* x += down(silu(gate h) * up h), h = RMS(x) */
static oq_status mlp_forward(oq_exec *ex, const oq_te_qwen3 *s, const oq_te_qwen3_layer *l, oq_tensor x)
{
    const int64_t I = s->intermediate_size;
    const oq_rows rows = {.x = x, .norm = rms(&l->norm2, s)};
    const oq_post gated = {.kind = OQ_POST_GLU, .unary = OQ_SILU}, add = {.kind = OQ_POST_ADD, .residual = x};
    oq_tensor h;
    OQ_TRY(oq_tmp(ex, x.rows, I, &h));
    OQ_TRY(oq_linear_rows_forward(ex, &l->gate_up, h, &rows, &gated));
    return oq_linear_post_forward(ex, &l->down, x, h, &add);
}

/* x: [S, D], in place. */
static oq_status layer_forward(oq_exec *ex, const oq_te_qwen3 *s, const oq_te_qwen3_layer *l, oq_tensor x,
                               const shared *c)
{
    OQ_TRY(oq_check_canceled(ex->env));
    const oq_mark mark = oq_mark_get(ex);
    OQ_TRY(attention_forward(ex, s, l, x, c));
    oq_mark_reset(ex, mark);
    OQ_TRY(mlp_forward(ex, s, l, x));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* Keeps hidden_states[index] where a tap asks for it. */
static oq_status keep_tap(oq_exec *ex, const oq_te_qwen3_args *args, oq_tensor x, int64_t index)
{
    for (int i = 0; i < args->n_taps; i++)
        if (args->taps[i] == index)
            OQ_TRY(oq_copy_forward(ex, oq_tensor_cols(args->tapped, i * x.cols, x.cols), x));
    return OQ_OK;
}

static oq_status trace_hidden(oq_exec *ex, const oq_te_qwen3_args *args, oq_tensor x, int64_t index)
{
    if (!args->trace) return OQ_OK;
    return oq_trace_put(ex, x, NULL, 0, "%s.hidden.%lld", args->trace, (long long)index);
}

oq_status oq_te_qwen3_forward(oq_exec *ex, const oq_te_qwen3 *s, const oq_te_qwen3_args *args, oq_tensor y)
{
    if (args->n < 1 || args->n > s->max_positions || args->n_layers < 0 || args->n_layers > s->n_run ||
        (args->final_norm && s->norm_unused))
        return oq_fail(ex->env, OQ_E_ARG,
                       "text encoder: %lld tokens through %lld layers%s, it takes %lld and has %lld%s",
                       (long long)args->n, (long long)args->n_layers, args->final_norm ? " and a norm" : "",
                       (long long)s->max_positions, (long long)s->n_run, s->norm_unused ? " without" : "");
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor ids;
    shared c;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_i32, args->n, 1, &ids));
    OQ_TRY(oq_upload(ex, ids, args->ids));
    OQ_TRY(make_rope(ex, s, args, &c.cos, &c.sin));
    OQ_TRY(make_mask(ex, args, &c.mask));
    OQ_TRY(oq_embed_forward(ex, y, &s->embed, ids));
    for (int i = 0; i < args->n_inserts; i++) {
        const oq_te_qwen3_insert *in = &args->inserts[i];
        OQ_TRY(oq_copy_forward(ex, oq_tensor_rows(y, in->first, in->rows.rows), in->rows));
    }
    OQ_TRY(trace_hidden(ex, args, y, 0));
    OQ_TRY(keep_tap(ex, args, y, 0));
    for (int64_t i = 0; i < args->n_layers; i++) {
        OQ_TRY(layer_forward(ex, s, &s->layers[i], y, &c));
        OQ_TRY(keep_tap(ex, args, y, i + 1));
        if (i + 1 < s->n_layers) OQ_TRY(trace_hidden(ex, args, y, i + 1));
    }
    if (args->final_norm) {
        OQ_TRY(oq_rms_norm_forward(ex, y, y, &s->norm, (float)s->eps, 0));
        OQ_TRY(trace_hidden(ex, args, y, s->n_layers));
    }
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"Qwen3Model", "Qwen3ForCausalLM", NULL};

static const oq_name_rule names[] = {
    {.from = "lm_head", .why = "the output head; an encoder has no use for it"},
    {.from = "model", .to = ""}, /* Qwen3ForCausalLM wraps Qwen3Model */
    OQ_TE_QWEN_GGUF_NAMES,
    {0},
};

/* Qwen2 has no norms of queries and keys. */
static const char *const signatures[] = {
    "embed_tokens,layers.0.self_attn.q_norm",
    "model.embed_tokens,model.layers.0.self_attn.q_norm",
    "token_embd,blk.0.attn_q_norm",
    NULL,
};

const oq_module_type oq_module_te_qwen3 = {
    .name = "te_qwen3",
    .gguf = "qwen3",
    .what = "text encoder (Qwen3)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_te_qwen3),
    .names = names,
    .describe = describe,
    .declare = oq_te_qwen3_declare,
};
