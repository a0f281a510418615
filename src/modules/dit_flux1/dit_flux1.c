/* dit_flux1.c -- FLUX.1 transformer: configuration, names, shapes. The forward pass is in dit_flux1_forward.c. */
#include "modules/dit_flux1/dit_flux1.h"

#include "modules/model_config.h"

#define WHAT "FluxTransformer2DModel"

enum { MLP_RATIO = 4 }; /* a constant of the published class */

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_dit_flux1, member)
static const oq_model_field fields[] = {
    {"in_channels", OQ_FIELD_INT, FIELD(in_channels), 1, 4096, 64, NULL},
    {"out_channels", OQ_FIELD_INT, FIELD(out_channels), 0, 4096, 0, NULL},
    {"num_layers", OQ_FIELD_INT, FIELD(n_double), 0, 1024, 19, NULL},
    {"num_single_layers", OQ_FIELD_INT, FIELD(n_single), 0, 1024, 38, NULL},
    {"attention_head_dim", OQ_FIELD_INT, FIELD(head_dim), 2, 4096, 128, NULL},
    {"num_attention_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, 24, NULL},
    {"joint_attention_dim", OQ_FIELD_INT, FIELD(text_dim), 1, 1 << 17, 4096, NULL},
    {"pooled_projection_dim", OQ_FIELD_INT, FIELD(pooled_dim), 1, 1 << 17, 768, NULL},
    {"guidance_embeds", OQ_FIELD_BOOL, FIELD(has_guidance), 0, 0, 0, NULL},
    {"axes_dims_rope", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"patch_size", OQ_FIELD_FIXED, 0, 0, 0, 0, "1"},
};

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    static const int64_t published[OQ_DIT_FLUX1_AXES] = {16, 56, 56};
    oq_dit_flux1 *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    if (s->out_channels == 0) s->out_channels = s->in_channels;
    const int64_t dim = s->n_heads * s->head_dim;
    s->shape = (oq_dit_shape){.dim = dim,
                              .n_heads = s->n_heads,
                              .head_dim = s->head_dim,
                              .mlp_dim = MLP_RATIO * dim,
                              .eps = 1e-6f,
                              .flags = OQ_BIAS};
    return oq_dit_axes_read(env, WHAT, config, published, OQ_COUNT(published), s->head_dim, s->axes_dims);
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static const oq_dit_stream_names IMAGE = {
    "norm1.linear",       "attn.to_qkv",        "attn.to_q",     "attn.to_k",     "attn.to_v",
    "attn.norm_q.weight", "attn.norm_k.weight", "attn.to_out.0", "ff.net.0.proj", "ff.net.2"};
static const oq_dit_stream_names TEXT = {
    "norm1_context.linear",  "attn.add_kv_proj",         "attn.add_q_proj",          "attn.add_k_proj",
    "attn.add_v_proj",       "attn.norm_added_q.weight", "attn.norm_added_k.weight", "attn.to_add_out",
    "ff_context.net.0.proj", "ff_context.net.2"};

static oq_status declare_single(oq_builder *b, const oq_dit_flux1 *s, oq_dit_flux1_single *l)
{
    const int64_t D = s->shape.dim, F = s->shape.mlp_dim;
    const oq_part qkv[] = {{"attn.to_q", D}, {"attn.to_k", D}, {"attn.to_v", D}};
    const oq_attention_spec spec = {.head_dim = s->head_dim, .n_heads = s->n_heads, .n_kv_heads = s->n_heads};
    OQ_TRY(oq_declare_linear(b, &l->mod, "norm.linear", 3 * D, D, OQ_BIAS, "modulation"));
    OQ_TRY(oq_declare_fused(b, &l->qkv, "attn.to_qkv", D, OQ_BIAS | OQ_WANTS(OQ_FUSE_AGAIN), qkv, 3, NULL));
    OQ_TRY(oq_declare_vector(b, &l->norm_q, "attn.norm_q.weight", s->head_dim));
    OQ_TRY(oq_declare_vector(b, &l->norm_k, "attn.norm_k.weight", s->head_dim));
    OQ_TRY(oq_declare_attention(b, &l->attention, "attn", spec));
    OQ_TRY(oq_declare_linear(b, &l->mlp, "proj_mlp", F, D, OQ_BIAS | OQ_WANTS(OQ_FUSE_UNARY | OQ_FUSE_AGAIN),
                             NULL));
    OQ_TRY(oq_declare_linear(b, &l->out, "proj_out", D, D + F, OQ_BIAS | OQ_WANTS(OQ_FUSE_ADD | OQ_FUSE_PRE),
                             NULL));
    const oq_column_part columns[] = {{"proj_out.attn", D}, {"proj_out.mlp", F}};
    return oq_declare_columns(b, &l->out, columns, 2);
}

static oq_status declare_blocks(oq_builder *b, oq_dit_flux1 *s)
{
    oq_scope saved;
    OQ_TRY(oq_dit_doubles_declare(b, &s->shape, &TEXT, &IMAGE, s->n_double, &s->doubles));
    OQ_TRY(
        oq_arena_new(b->arena, (size_t)s->n_single, sizeof *s->singles, "transformer blocks", &s->singles));
    for (int64_t i = 0; i < s->n_single; i++) {
        OQ_TRY(oq_scope_enter(b, &saved, "single_transformer_blocks.%lld", (long long)i));
        OQ_TRY(declare_single(b, s, &s->singles[i]));
        oq_scope_leave(b, saved);
    }
    return OQ_OK;
}

static oq_status declare(oq_builder *b, void *self)
{
    oq_dit_flux1 *s = self;
    const int64_t D = s->shape.dim;
    OQ_TRY(oq_dit_mlp_declare(b, &s->time, "time_text_embed.timestep_embedder", D, OQ_DIT_FREQUENCIES,
                              OQ_BIAS, "timestep embedder"));
    if (s->has_guidance)
        OQ_TRY(oq_dit_mlp_declare(b, &s->guidance, "time_text_embed.guidance_embedder", D, OQ_DIT_FREQUENCIES,
                                  OQ_BIAS, "guidance embedder"));
    OQ_TRY(oq_dit_mlp_declare(b, &s->pooled, "time_text_embed.text_embedder", D, s->pooled_dim, OQ_BIAS,
                              "embedder"));
    OQ_TRY(
        oq_declare_linear(b, &s->context_embedder, "context_embedder", D, s->text_dim, OQ_BIAS, "embedder"));
    OQ_TRY(oq_declare_linear(b, &s->x_embedder, "x_embedder", D, s->in_channels, OQ_BIAS, "embedder"));
    OQ_TRY(declare_blocks(b, s));
    OQ_TRY(oq_declare_linear(b, &s->final_mod, "norm_out.linear", 2 * D, D, OQ_BIAS, "modulation"));
    return oq_declare_linear(b, &s->proj_out, "proj_out", s->out_channels, D, OQ_BIAS, "final layer");
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"FluxTransformer2DModel", NULL};

#define DOUBLE(from_, to_)                                                                                   \
    {                                                                                                        \
        .from = "double_blocks.*." from_, .to = to_                                                          \
    }
#define SINGLE(from_, to_)                                                                                   \
    {                                                                                                        \
        .from = "single_blocks.*." from_, .to = to_                                                          \
    }
#define LATER(from_, to_)                                                                                    \
    {                                                                                                        \
        .from = from_, .to = to_, .read_only = true                                                          \
    }
#define T "transformer_blocks.*."
#define S "single_transformer_blocks.*."
/* The original release's names, as ComfyUI and GGUF files have them. */
static const oq_name_rule names[] = {
    {.from = "time_in.in_layer", .to = "time_text_embed.timestep_embedder.linear_1"},
    {.from = "time_in.out_layer", .to = "time_text_embed.timestep_embedder.linear_2"},
    {.from = "guidance_in.in_layer", .to = "time_text_embed.guidance_embedder.linear_1"},
    {.from = "guidance_in.out_layer", .to = "time_text_embed.guidance_embedder.linear_2"},
    {.from = "vector_in.in_layer", .to = "time_text_embed.text_embedder.linear_1"},
    {.from = "vector_in.out_layer", .to = "time_text_embed.text_embedder.linear_2"},
    {.from = "txt_in", .to = "context_embedder"},
    {.from = "img_in", .to = "x_embedder"},
    DOUBLE("img_mod.lin", T "norm1.linear"),
    DOUBLE("txt_mod.lin", T "norm1_context.linear"),
    DOUBLE("img_attn.qkv", T "attn.to_q," T "attn.to_k," T "attn.to_v"),
    DOUBLE("txt_attn.qkv", T "attn.add_q_proj," T "attn.add_k_proj," T "attn.add_v_proj"),
    DOUBLE("img_attn.norm.query_norm.scale", T "attn.norm_q.weight"),
    DOUBLE("img_attn.norm.key_norm.scale", T "attn.norm_k.weight"),
    DOUBLE("txt_attn.norm.query_norm.scale", T "attn.norm_added_q.weight"),
    DOUBLE("txt_attn.norm.key_norm.scale", T "attn.norm_added_k.weight"),
    DOUBLE("img_attn.proj", T "attn.to_out.0"),
    DOUBLE("txt_attn.proj", T "attn.to_add_out"),
    DOUBLE("img_mlp.0", T "ff.net.0.proj"),
    DOUBLE("img_mlp.2", T "ff.net.2"),
    DOUBLE("txt_mlp.0", T "ff_context.net.0.proj"),
    DOUBLE("txt_mlp.2", T "ff_context.net.2"),
    SINGLE("modulation.lin", S "norm.linear"),
    SINGLE("linear1", S "attn.to_q," S "attn.to_k," S "attn.to_v," S "proj_mlp"),
    SINGLE("linear2", S "proj_out"),
    SINGLE("norm.query_norm.scale", S "attn.norm_q.weight"),
    SINGLE("norm.key_norm.scale", S "attn.norm_k.weight"),
    {.from = "final_layer.adaLN_modulation.1", .to = "norm_out.linear", .halves_swapped = true},
    {.from = "final_layer.linear", .to = "proj_out"},
    /* nunchaku's files: products fused, the single blocks' last one cut by columns; the second spelling is that of its
     * parts in diffusers' modules */
    LATER(T "qkv_proj", T "attn.to_q," T "attn.to_k," T "attn.to_v"),
    LATER(T "attn.to_qkv", T "attn.to_q," T "attn.to_k," T "attn.to_v"),
    LATER(T "qkv_proj_context", T "attn.add_q_proj," T "attn.add_k_proj," T "attn.add_v_proj"),
    LATER(T "attn.add_qkv_proj", T "attn.add_q_proj," T "attn.add_k_proj," T "attn.add_v_proj"),
    LATER(T "norm_q", T "attn.norm_q"),
    LATER(T "norm_k", T "attn.norm_k"),
    LATER(T "norm_added_q", T "attn.norm_added_q"),
    LATER(T "norm_added_k", T "attn.norm_added_k"),
    LATER(T "out_proj", T "attn.to_out.0"),
    LATER(T "out_proj_context", T "attn.to_add_out"),
    LATER(T "mlp_fc1", T "ff.net.0.proj"),
    LATER(T "mlp_fc2", T "ff.net.2"),
    LATER(T "mlp_context_fc1", T "ff_context.net.0.proj"),
    LATER(T "mlp_context_fc2", T "ff_context.net.2"),
    LATER(S "qkv_proj", S "attn.to_q," S "attn.to_k," S "attn.to_v"),
    LATER(S "attn.to_qkv", S "attn.to_q," S "attn.to_k," S "attn.to_v"),
    LATER(S "norm_q", S "attn.norm_q"),
    LATER(S "norm_k", S "attn.norm_k"),
    LATER(S "mlp_fc1", S "proj_mlp"),
    LATER(S "out_proj", S "proj_out.attn"),
    LATER(S "attn.to_out", S "proj_out.attn"),
    LATER(S "mlp_fc2", S "proj_out.mlp"),
    {0},
};

static const char *const signatures[] = {
    "time_text_embed.text_embedder.linear_1,single_transformer_blocks.0.proj_mlp",
    "vector_in.in_layer,double_blocks.0.img_attn.qkv",
    "time_text_embed.text_embedder.linear_1,single_transformer_blocks.0.mlp_fc1",
    NULL,
};

const oq_module_type oq_module_dit_flux1 = {
    .name = "dit_flux1",
    .gguf = "flux",
    .what = "transformer (FLUX.1)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_dit_flux1),
    .names = names,
    .describe = describe,
    .declare = declare,
};
