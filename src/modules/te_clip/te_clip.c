/* te_clip.c -- CLIP's text model: configuration, names, shapes, forward pass. S tokens, D hidden size. */
#include "modules/te_clip/te_clip.h"

#include "modules/model_config.h"

#include <math.h>
#include <string.h>

#define WHAT "CLIP"

enum {
    OLD_EOS_ID = 2
}; /* published configurations name an end token that their vocabulary does not have there */

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_te_clip, member)
static const oq_model_field fields[] = {
    {"vocab_size", OQ_FIELD_INT, FIELD(vocab_size), 1, 1 << 24, 49408, NULL},
    {"hidden_size", OQ_FIELD_INT, FIELD(hidden_size), 1, 1 << 17, 512, NULL},
    {"intermediate_size", OQ_FIELD_INT, FIELD(ffn_dim), 1, 1 << 20, 2048, NULL},
    {"num_hidden_layers", OQ_FIELD_INT, FIELD(n_layers), 1, 1024, 12, NULL},
    {"num_attention_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, 8, NULL},
    {"max_position_embeddings", OQ_FIELD_INT, FIELD(max_positions), 3, 1 << 20, 77, NULL},
    {"eos_token_id", OQ_FIELD_INT, FIELD(eos_id), 0, 1 << 24, 49407, NULL},
    {"layer_norm_eps", OQ_FIELD_REAL, FIELD(eps), 0, 1, 1e-5, NULL},
    {"hidden_act", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"model_type", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"clip_text_model\""},
    {"architectures", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"attention_dropout", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"dropout", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"bos_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"pad_token_id", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"initializer_factor", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"initializer_range", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"projection_dim", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL}, /* of the projection that is not used */
    {"dtype", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"torch_dtype", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
    {"transformers_version", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
};

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    oq_te_clip *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    const oq_json *act = oq_json_get(config, "hidden_act");
    const char *name = oq_json_type(act) == OQ_JSON_NULL ? "quick_gelu" : oq_json_string(act);
    if (name && strcmp(name, "quick_gelu") == 0)
        s->act = OQ_QUICK_GELU;
    else if (name && strcmp(name, "gelu") == 0)
        s->act = OQ_GELU_ERF;
    else
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "config.json of " WHAT
                       ": 'hidden_act' is '%s', only 'quick_gelu' and 'gelu' are supported",
                       name ? name : oq_json_type_name(act));
    if (s->hidden_size % s->n_heads)
        return oq_fail(env, OQ_E_FORMAT,
                       "config.json of " WHAT ": %lld heads do not divide 'hidden_size' %lld",
                       (long long)s->n_heads, (long long)s->hidden_size);
    return OQ_OK;
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static oq_status declare_norm(oq_builder *b, oq_te_clip_norm *norm, const char *name, int64_t n)
{
    const char *weight = oq_arena_printf(b->arena, "%s.weight", name),
               *bias = oq_arena_printf(b->arena, "%s.bias", name);
    if (!weight || !bias) return oq_fail(b->env, OQ_E_NOMEM, "declaring '%s': no memory", name);
    OQ_TRY(oq_declare_vector(b, &norm->weight, weight, n));
    return oq_declare_vector(b, &norm->bias, bias, n);
}

static oq_status declare_layer(oq_builder *b, const oq_te_clip *s, oq_te_clip_layer *l)
{
    const int64_t D = s->hidden_size;
    const oq_part qkv[] = {{"self_attn.q_proj", D}, {"self_attn.k_proj", D}, {"self_attn.v_proj", D}};
    const oq_attention_spec spec = {
        .head_dim = D / s->n_heads, .n_heads = s->n_heads, .n_kv_heads = s->n_heads, .causal = true};
    OQ_TRY(declare_norm(b, &l->norm1, "layer_norm1", D));
    OQ_TRY(oq_declare_fused(b, &l->qkv, "self_attn.qkv_proj", D, OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS), qkv, 3,
                            NULL));
    OQ_TRY(oq_declare_attention(b, &l->attention, "self_attn", spec));
    OQ_TRY(oq_declare_linear(b, &l->out, "self_attn.out_proj", D, D, OQ_BIAS | OQ_WANTS(OQ_FUSE_ADD), NULL));
    OQ_TRY(declare_norm(b, &l->norm2, "layer_norm2", D));
    OQ_TRY(oq_declare_linear(b, &l->fc1, "mlp.fc1", s->ffn_dim, D,
                             OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS | OQ_FUSE_UNARY), NULL));
    return oq_declare_linear(b, &l->fc2, "mlp.fc2", D, s->ffn_dim, OQ_BIAS | OQ_WANTS(OQ_FUSE_ADD), NULL);
}

static oq_status declare(oq_builder *b, void *self)
{
    oq_te_clip *s = self;
    OQ_TRY(
        oq_declare_table(b, &s->embed, "embeddings.token_embedding.weight", s->vocab_size, s->hidden_size));
    OQ_TRY(oq_declare_table(b, &s->positions, "embeddings.position_embedding.weight", s->max_positions,
                            s->hidden_size));
    OQ_TRY(oq_arena_new(b->arena, (size_t)s->n_layers, sizeof *s->layers, "text encoder layers", &s->layers));
    for (int64_t i = 0; i < s->n_layers; i++) {
        oq_scope saved;
        OQ_TRY(oq_scope_enter(b, &saved, "encoder.layers.%lld", (long long)i));
        OQ_TRY(declare_layer(b, s, &s->layers[i]));
        oq_scope_leave(b, saved);
    }
    return declare_norm(b, &s->norm, "final_layer_norm", s->hidden_size);
}

/* ---- forward ------------------------------------------------------------------------------------------- */

static oq_norm_step norm_step(const oq_te_clip_norm *norm, const oq_te_clip *s)
{
    return (oq_norm_step){
        .kind = OQ_LAYER_NORM, .weight = &norm->weight, .bias = &norm->bias, .eps = (float)s->eps};
}

/* x += out(Attn(LN(x))); x += fc2(act(fc1(LN(x)))) */
static oq_status layer_forward(oq_exec *ex, const oq_te_clip *s, const oq_te_clip_layer *l, oq_tensor x)
{
    const int64_t D = s->hidden_size;
    const oq_mark mark = oq_mark_get(ex);
    const oq_rows before = {.x = x, .norm = norm_step(&l->norm1, s)},
                  between = {.x = x, .norm = norm_step(&l->norm2, s)};
    const oq_post add = {.kind = OQ_POST_ADD, .residual = x}, act = {.kind = OQ_POST_UNARY, .unary = s->act};
    oq_tensor qkv, o, h;
    OQ_TRY(oq_check_canceled(ex->env));
    OQ_TRY(oq_tmp(ex, x.rows, 3 * D, &qkv));
    OQ_TRY(oq_tmp(ex, x.rows, D, &o));
    OQ_TRY(oq_linear_rows_forward(ex, &l->qkv, qkv, &before, NULL));
    OQ_TRY(oq_attention_forward(ex, &l->attention, o, oq_tensor_cols(qkv, 0, D), oq_tensor_cols(qkv, D, D),
                                oq_tensor_cols(qkv, 2 * D, D), NULL));
    OQ_TRY(oq_linear_post_forward(ex, &l->out, x, o, &add));
    oq_mark_reset(ex, mark);
    OQ_TRY(oq_tmp(ex, x.rows, s->ffn_dim, &h));
    OQ_TRY(oq_linear_rows_forward(ex, &l->fc1, h, &between, &act));
    OQ_TRY(oq_linear_post_forward(ex, &l->fc2, x, h, &add));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

/* y = token_embedding[ids] + position_embedding[0, 1, …] */
static oq_status embed_forward(oq_exec *ex, const oq_te_clip *s, const oq_te_clip_args *args, oq_tensor y)
{
    const oq_mark mark = oq_mark_get(ex);
    oq_tensor ids, place;
    OQ_TRY(oq_tmp_typed(ex, &oq_dtype_i32, args->n, 1, &ids));
    OQ_TRY(oq_tmp(ex, args->n, s->hidden_size, &place));
    OQ_TRY(oq_upload(ex, ids, args->ids));
    OQ_TRY(oq_embed_forward(ex, y, &s->embed, ids));
    if (!ex->measure) {
        int32_t *count = NULL;
        OQ_TRY(oq_new(ex->env, (size_t)args->n, sizeof *count, "positions", &count));
        for (int64_t i = 0; i < args->n; i++) count[i] = (int32_t)i;
        const oq_status st = oq_upload(ex, ids, count);
        oq_free(ex->env, count);
        if (st != OQ_OK) return st;
    }
    OQ_TRY(oq_embed_forward(ex, place, &s->positions, ids));
    OQ_TRY(oq_add_forward(ex, y, y, place));
    oq_mark_reset(ex, mark);
    return OQ_OK;
}

oq_status oq_te_clip_forward(oq_exec *ex, const oq_te_clip *s, const oq_te_clip_args *args, oq_tensor y)
{
    if (args->n < 1 || args->n > s->max_positions)
        return oq_fail(ex->env, OQ_E_ARG, "text encoder: %lld tokens, it takes 1 to %lld", (long long)args->n,
                       (long long)s->max_positions);
    OQ_TRY(embed_forward(ex, s, args, y));
    for (int64_t i = 0; i < s->n_layers; i++) {
        OQ_TRY(layer_forward(ex, s, &s->layers[i], y));
        if (args->trace) OQ_TRY(oq_trace_put(ex, y, NULL, 0, "%s.layer%lld", args->trace, (long long)i));
    }
    return oq_layer_norm_forward(ex, y, y, &s->norm.weight, &s->norm.bias, (float)s->eps);
}

int64_t oq_te_clip_pooled_row(const oq_te_clip *s, const int32_t *ids, int64_t n)
{
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        if (s->eos_id != OLD_EOS_ID && ids[i] == s->eos_id) return i;
        if (s->eos_id == OLD_EOS_ID && ids[i] > ids[found]) found = i;
    }
    return found;
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"CLIPTextModel", NULL};

static const oq_name_rule names[] = {
    {.from = "text_model.embeddings.position_ids", .why = "a count from 0; made here"},
    {.from = "embeddings.position_ids", .why = "a count from 0; made here"},
    {.from = "text_projection",
     .why = "the projection of CLIPTextModelWithProjection, which nothing reads here"},
    {.from = "text_model", .to = ""},
    {0},
};

static const char *const signatures[] = {
    "embeddings.token_embedding,encoder.layers.0.self_attn.q_proj,encoder.layers.0.layer_norm1",
    "text_model.embeddings.token_embedding,text_model.encoder.layers.0.self_attn.q_proj",
    NULL,
};

const oq_module_type oq_module_te_clip = {
    .name = "te_clip",
    .gguf = "clip",
    .what = "text encoder (CLIP)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_te_clip),
    .names = names,
    .describe = describe,
    .declare = declare,
};
