/* dit_wan.c -- Wan transformer: configuration, names, shapes. The forward pass is in dit_wan_forward.c. */
#include "modules/dit_wan/dit_wan.h"

#include "modules/model_config.h"

#include <math.h>

#define WHAT "WanTransformer3DModel"

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_dit_wan, member)
static const oq_model_field fields[] = {
    {"num_attention_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, 40, NULL},
    {"attention_head_dim", OQ_FIELD_INT, FIELD(head_dim), 6, 4096, 128, NULL},
    {"in_channels", OQ_FIELD_INT, FIELD(in_channels), 1, 4096, 16, NULL},
    {"out_channels", OQ_FIELD_INT, FIELD(out_channels), 1, 4096, 16, NULL},
    {"text_dim", OQ_FIELD_INT, FIELD(text_dim), 1, 1 << 17, 4096, NULL},
    {"freq_dim", OQ_FIELD_INT, FIELD(freq_dim), 2, OQ_DIT_WAN_MAX_FREQUENCIES, 256, NULL},
    {"ffn_dim", OQ_FIELD_INT, FIELD(ffn_dim), 1, 1 << 20, 13824, NULL},
    {"num_layers", OQ_FIELD_INT, FIELD(n_layers), 1, 1024, 40, NULL},
    {"eps", OQ_FIELD_REAL, FIELD(eps), 0, 1, 1e-6, NULL},
    {"cross_attn_norm", OQ_FIELD_BOOL, FIELD(cross_norm), 0, 0, 1, NULL},
    {"patch_size", OQ_FIELD_FIXED, 0, 0, 0, 0, "[1,2,2]"},
    {"qk_norm", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"rms_norm_across_heads\""},
    {"image_dim", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"},         /* image embeddings of Wan 2.1 */
    {"added_kv_proj_dim", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"}, /* their keys and values */
    {"pos_embed_seq_len", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"},
    {"rope_max_seq_len", OQ_FIELD_IGNORED, 0, 0, 0, 0,
     NULL}, /* size of the original's table; angles are made here */
};

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    oq_dit_wan *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    s->dim = s->n_heads * s->head_dim;
    if (s->head_dim % 2 == 0 && s->freq_dim % 2 == 0) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "config.json of " WHAT ": 'attention_head_dim' %lld and 'freq_dim' %lld must be even",
                   (long long)s->head_dim, (long long)s->freq_dim);
}

/* ---- declaration --------------------------------------------------------------------------------------- */

/* Modulation and what makes it stay float32 in every run, as the original keeps them. */
static oq_status declare_wide(oq_builder *b, oq_vector *v, const char *name, int64_t rows, int64_t cols)
{
    OQ_TRY(oq_declare_vector(b, v, name, rows * cols));
    v->rows = rows;
    v->wide = true;
    return OQ_OK;
}

static oq_status declare_self_attention(oq_builder *b, const oq_dit_wan *s, oq_dit_wan_block *block)
{
    const int64_t D = s->dim;
    const oq_part qkv[] = {{"attn1.to_q", D}, {"attn1.to_k", D}, {"attn1.to_v", D}};
    const oq_attention_spec spec = {.head_dim = s->head_dim, .n_heads = s->n_heads, .n_kv_heads = s->n_heads};
    OQ_TRY(
        oq_declare_fused(b, &block->qkv, "attn1.to_qkv", D, OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS), qkv, 3, NULL));
    OQ_TRY(oq_declare_vector(b, &block->norm_q, "attn1.norm_q.weight", D));
    OQ_TRY(oq_declare_vector(b, &block->norm_k, "attn1.norm_k.weight", D));
    OQ_TRY(oq_declare_attention(b, &block->attention, "attn1", spec));
    return oq_declare_linear(b, &block->out, "attn1.to_out.0", D, D, OQ_BIAS | OQ_WANTS(OQ_FUSE_ADD), NULL);
}

static oq_status declare_cross_attention(oq_builder *b, const oq_dit_wan *s, oq_dit_wan_block *block)
{
    const int64_t D = s->dim;
    const oq_attention_spec spec = {.head_dim = s->head_dim, .n_heads = s->n_heads, .n_kv_heads = s->n_heads};
    OQ_TRY(oq_declare_linear(b, &block->cross_q, "attn2.to_q", D, D, OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS), NULL));
    OQ_TRY(oq_declare_linear(b, &block->cross_k, "attn2.to_k", D, D, OQ_BIAS, NULL));
    OQ_TRY(oq_declare_linear(b, &block->cross_v, "attn2.to_v", D, D, OQ_BIAS, NULL));
    OQ_TRY(oq_declare_vector(b, &block->cross_norm_q, "attn2.norm_q.weight", D));
    OQ_TRY(oq_declare_vector(b, &block->cross_norm_k, "attn2.norm_k.weight", D));
    OQ_TRY(oq_declare_attention(b, &block->cross, "attn2", spec));
    block->cross.plain = block->cross.dense = "cross-attention";
    OQ_TRY(oq_declare_linear(b, &block->cross_out, "attn2.to_out.0", D, D, OQ_BIAS | OQ_WANTS(OQ_FUSE_ADD),
                             NULL));
    if (!s->cross_norm) return OQ_OK;
    OQ_TRY(declare_wide(b, &block->norm2_weight, "norm2.weight", 1, D));
    return declare_wide(b, &block->norm2_bias, "norm2.bias", 1, D);
}

static oq_status declare_block(oq_builder *b, const oq_dit_wan *s, oq_dit_wan_block *block)
{
    const int64_t D = s->dim, F = s->ffn_dim;
    OQ_TRY(declare_wide(b, &block->table, "scale_shift_table", 6, D));
    OQ_TRY(declare_self_attention(b, s, block));
    OQ_TRY(declare_cross_attention(b, s, block));
    OQ_TRY(oq_declare_linear(b, &block->up, "ffn.net.0.proj", F, D,
                             OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS | OQ_FUSE_UNARY), NULL));
    return oq_declare_linear(b, &block->down, "ffn.net.2", D, F,
                             OQ_BIAS | OQ_WANTS(OQ_FUSE_ADD | OQ_FUSE_PRE), NULL);
}

static oq_status declare_embedders(oq_builder *b, oq_dit_wan *s)
{
    const int64_t D = s->dim;
    oq_scope saved;
    OQ_TRY(oq_declare_linear(b, &s->patch, "patch_embedding", D,
                             s->in_channels * OQ_DIT_WAN_PATCH * OQ_DIT_WAN_PATCH, OQ_BIAS, "embedder"));
    s->patch.flat = true;
    OQ_TRY(oq_scope_enter(b, &saved, "condition_embedder"));
    OQ_TRY(
        oq_declare_linear(b, &s->t1, "time_embedder.linear_1", D, s->freq_dim, OQ_BIAS, "timestep embedder"));
    OQ_TRY(oq_declare_linear(b, &s->t2, "time_embedder.linear_2", D, D, OQ_BIAS, "timestep embedder"));
    s->t1.wide = s->t2.wide = true;
    OQ_TRY(oq_declare_linear(b, &s->t_proj, "time_proj", 6 * D, D, OQ_BIAS, "modulation"));
    OQ_TRY(oq_declare_linear(b, &s->text1, "text_embedder.linear_1", D, s->text_dim, OQ_BIAS, "embedder"));
    OQ_TRY(oq_declare_linear(b, &s->text2, "text_embedder.linear_2", D, D, OQ_BIAS, "embedder"));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare(oq_builder *b, void *self)
{
    oq_dit_wan *s = self;
    OQ_TRY(declare_embedders(b, s));
    OQ_TRY(oq_arena_new(b->arena, (size_t)s->n_layers, sizeof *s->blocks, "transformer blocks", &s->blocks));
    for (int64_t i = 0; i < s->n_layers; i++) {
        oq_scope saved;
        OQ_TRY(oq_scope_enter(b, &saved, "blocks.%lld", (long long)i));
        OQ_TRY(declare_block(b, s, &s->blocks[i]));
        oq_scope_leave(b, saved);
    }
    OQ_TRY(declare_wide(b, &s->table, "scale_shift_table", 2, s->dim));
    return oq_declare_linear(b, &s->proj_out, "proj_out",
                             s->out_channels * OQ_DIT_WAN_PATCH * OQ_DIT_WAN_PATCH, s->dim, OQ_BIAS,
                             "final layer");
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"WanTransformer3DModel", NULL};

/* The original release's names, as ComfyUI and GGUF files have them. */
#define ATTENTION(theirs, ours)                                                                              \
    {.from = "blocks.*." theirs ".q", .to = "blocks.*." ours ".to_q"},                                       \
        {.from = "blocks.*." theirs ".k", .to = "blocks.*." ours ".to_k"},                                   \
        {.from = "blocks.*." theirs ".v", .to = "blocks.*." ours ".to_v"},                                   \
        {.from = "blocks.*." theirs ".o", .to = "blocks.*." ours ".to_out.0"},                               \
        {.from = "blocks.*." theirs ".norm_q", .to = "blocks.*." ours ".norm_q"},                            \
    {                                                                                                        \
        .from = "blocks.*." theirs ".norm_k", .to = "blocks.*." ours ".norm_k"                               \
    }
static const oq_name_rule names[] = {
    {.from = "time_embedding.0", .to = "condition_embedder.time_embedder.linear_1"},
    {.from = "time_embedding.2", .to = "condition_embedder.time_embedder.linear_2"},
    {.from = "time_projection.1", .to = "condition_embedder.time_proj"},
    {.from = "text_embedding.0", .to = "condition_embedder.text_embedder.linear_1"},
    {.from = "text_embedding.2", .to = "condition_embedder.text_embedder.linear_2"},
    ATTENTION("self_attn", "attn1"),
    ATTENTION("cross_attn", "attn2"),
    {.from = "blocks.*.norm3", .to = "blocks.*.norm2"},
    {.from = "blocks.*.ffn.0", .to = "blocks.*.ffn.net.0.proj"},
    {.from = "blocks.*.ffn.2", .to = "blocks.*.ffn.net.2"},
    {.from = "blocks.*.modulation", .to = "blocks.*.scale_shift_table"},
    {.from = "head.modulation", .to = "scale_shift_table"},
    {.from = "head.head", .to = "proj_out"},
    {0},
};

static const char *const signatures[] = {
    "blocks.0.attn1.to_q,blocks.0.attn2.to_q,condition_embedder.time_proj,scale_shift_table",
    "blocks.0.self_attn.q,blocks.0.cross_attn.q,head.modulation,time_projection.1",
    NULL,
};

const oq_module_type oq_module_dit_wan = {
    .name = "dit_wan",
    .gguf = "wan",
    .what = "transformer (Wan)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_dit_wan),
    .names = names,
    .describe = describe,
    .declare = declare,
};
