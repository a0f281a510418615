/* dit_flux2.c -- FLUX.2 transformer: configuration, names, shapes. The forward pass is in dit_flux2_forward.c. */
#include "modules/dit_flux2/dit_flux2.h"

#include "modules/model_config.h"

#define WHAT "Flux2Transformer2DModel"

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_dit_flux2, member)
static const oq_model_field fields[] = {
    {"in_channels", OQ_FIELD_INT, FIELD(in_channels), 1, 4096, 128, NULL},
    {"out_channels", OQ_FIELD_INT, FIELD(out_channels), 0, 4096, 0, NULL},
    {"num_layers", OQ_FIELD_INT, FIELD(n_double), 0, 1024, 8, NULL},
    {"num_single_layers", OQ_FIELD_INT, FIELD(n_single), 0, 1024, 48, NULL},
    {"attention_head_dim", OQ_FIELD_INT, FIELD(head_dim), 2, 4096, 128, NULL},
    {"num_attention_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, 48, NULL},
    {"joint_attention_dim", OQ_FIELD_INT, FIELD(text_dim), 1, 1 << 17, 15360, NULL},
    {"mlp_ratio", OQ_FIELD_REAL, FIELD(mlp_ratio), 0.01, 64, 3, NULL},
    {"rope_theta", OQ_FIELD_REAL, FIELD(rope_theta), 1, 1e12, 2000, NULL},
    {"eps", OQ_FIELD_REAL, FIELD(eps), 0, 1, 1e-6, NULL},
    {"guidance_embeds", OQ_FIELD_BOOL, FIELD(has_guidance), 0, 0, 1, NULL},
    {"axes_dims_rope", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"patch_size", OQ_FIELD_FIXED, 0, 0, 0, 0, "1"},
    {"timestep_guidance_channels", OQ_FIELD_FIXED, 0, 0, 0, 0, "256"},
};

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    static const int64_t published[OQ_DIT_FLUX2_AXES] = {32, 32, 32, 32};
    oq_dit_flux2 *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    if (s->out_channels == 0) s->out_channels = s->in_channels;
    const int64_t dim = s->n_heads * s->head_dim;
    s->shape = (oq_dit_shape){.dim = dim,
                              .n_heads = s->n_heads,
                              .head_dim = s->head_dim,
                              .mlp_dim = (int64_t)((double)dim * s->mlp_ratio),
                              .eps = (float)s->eps,
                              .gated = true};
    if (s->shape.mlp_dim < 1)
        return oq_fail(env, OQ_E_FORMAT, "config.json of " WHAT ": 'mlp_ratio' %g of %lld leaves no MLP",
                       s->mlp_ratio, (long long)dim);
    return oq_dit_axes_read(env, WHAT, config, published, OQ_COUNT(published), s->head_dim, s->axes_dims);
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static const oq_dit_stream_names IMAGE = {
    NULL,           "attn.to_qkv",        "attn.to_q",          "attn.to_k",
    "attn.to_v",    "attn.norm_q.weight", "attn.norm_k.weight", "attn.to_out.0",
    "ff.linear_in", "ff.linear_out"};
static const oq_dit_stream_names TEXT = {NULL,
                                         "attn.add_kv_proj",
                                         "attn.add_q_proj",
                                         "attn.add_k_proj",
                                         "attn.add_v_proj",
                                         "attn.norm_added_q.weight",
                                         "attn.norm_added_k.weight",
                                         "attn.to_add_out",
                                         "ff_context.linear_in",
                                         "ff_context.linear_out"};

static oq_status declare_single(oq_builder *b, const oq_dit_flux2 *s, oq_dit_flux2_single *l)
{
    const int64_t D = s->shape.dim, F = s->shape.mlp_dim;
    const oq_attention_spec spec = {.head_dim = s->head_dim, .n_heads = s->n_heads, .n_kv_heads = s->n_heads};
    OQ_TRY(
        oq_declare_linear(b, &l->in, "attn.to_qkv_mlp_proj", 3 * D + 2 * F, D, OQ_WANTS(OQ_FUSE_ROWS), NULL));
    OQ_TRY(oq_declare_vector(b, &l->norm_q, "attn.norm_q.weight", s->head_dim));
    OQ_TRY(oq_declare_vector(b, &l->norm_k, "attn.norm_k.weight", s->head_dim));
    OQ_TRY(oq_declare_attention(b, &l->attention, "attn", spec));
    return oq_declare_linear(b, &l->out, "attn.to_out", D, D + F, OQ_WANTS(OQ_FUSE_ADD | OQ_FUSE_PRE), NULL);
}

static oq_status declare_blocks(oq_builder *b, oq_dit_flux2 *s)
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
    oq_dit_flux2 *s = self;
    const int64_t D = s->shape.dim;
    OQ_TRY(oq_dit_mlp_declare(b, &s->time, "time_guidance_embed.timestep_embedder", D, OQ_DIT_FREQUENCIES, 0,
                              "timestep embedder"));
    if (s->has_guidance)
        OQ_TRY(oq_dit_mlp_declare(b, &s->guidance, "time_guidance_embed.guidance_embedder", D,
                                  OQ_DIT_FREQUENCIES, 0, "guidance embedder"));
    OQ_TRY(oq_declare_linear(b, &s->image_mod, "double_stream_modulation_img.linear", 6 * D, D, 0,
                             "modulation"));
    OQ_TRY(
        oq_declare_linear(b, &s->text_mod, "double_stream_modulation_txt.linear", 6 * D, D, 0, "modulation"));
    OQ_TRY(
        oq_declare_linear(b, &s->single_mod, "single_stream_modulation.linear", 3 * D, D, 0, "modulation"));
    OQ_TRY(oq_declare_linear(b, &s->x_embedder, "x_embedder", D, s->in_channels, 0, "embedder"));
    OQ_TRY(oq_declare_linear(b, &s->context_embedder, "context_embedder", D, s->text_dim, 0, "embedder"));
    OQ_TRY(declare_blocks(b, s));
    OQ_TRY(oq_declare_linear(b, &s->final_mod, "norm_out.linear", 2 * D, D, 0, "modulation"));
    return oq_declare_linear(b, &s->proj_out, "proj_out", s->out_channels, D, 0, "final layer");
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"Flux2Transformer2DModel", NULL};

#define DOUBLE(from_, to_)                                                                                   \
    {                                                                                                        \
        .from = "double_blocks.*." from_, .to = to_                                                          \
    }
#define SINGLE(from_, to_)                                                                                   \
    {                                                                                                        \
        .from = "single_blocks.*." from_, .to = to_                                                          \
    }
#define T "transformer_blocks.*."
#define S "single_transformer_blocks.*."
/* The original release's names, as ComfyUI and GGUF files have them. */
static const oq_name_rule names[] = {
    {.from = "time_in.in_layer", .to = "time_guidance_embed.timestep_embedder.linear_1"},
    {.from = "time_in.out_layer", .to = "time_guidance_embed.timestep_embedder.linear_2"},
    {.from = "guidance_in.in_layer", .to = "time_guidance_embed.guidance_embedder.linear_1"},
    {.from = "guidance_in.out_layer", .to = "time_guidance_embed.guidance_embedder.linear_2"},
    {.from = "double_stream_modulation_img.lin", .to = "double_stream_modulation_img.linear"},
    {.from = "double_stream_modulation_txt.lin", .to = "double_stream_modulation_txt.linear"},
    {.from = "single_stream_modulation.lin", .to = "single_stream_modulation.linear"},
    {.from = "txt_in", .to = "context_embedder"},
    {.from = "img_in", .to = "x_embedder"},
    DOUBLE("img_attn.qkv", T "attn.to_q," T "attn.to_k," T "attn.to_v"),
    DOUBLE("txt_attn.qkv", T "attn.add_q_proj," T "attn.add_k_proj," T "attn.add_v_proj"),
    DOUBLE("img_attn.norm.query_norm.scale", T "attn.norm_q.weight"),
    DOUBLE("img_attn.norm.key_norm.scale", T "attn.norm_k.weight"),
    DOUBLE("txt_attn.norm.query_norm.scale", T "attn.norm_added_q.weight"),
    DOUBLE("txt_attn.norm.key_norm.scale", T "attn.norm_added_k.weight"),
    DOUBLE("img_attn.proj", T "attn.to_out.0"),
    DOUBLE("txt_attn.proj", T "attn.to_add_out"),
    DOUBLE("img_mlp.0", T "ff.linear_in"),
    DOUBLE("img_mlp.2", T "ff.linear_out"),
    DOUBLE("txt_mlp.0", T "ff_context.linear_in"),
    DOUBLE("txt_mlp.2", T "ff_context.linear_out"),
    SINGLE("linear1", S "attn.to_qkv_mlp_proj"),
    SINGLE("linear2", S "attn.to_out"),
    SINGLE("norm.query_norm.scale", S "attn.norm_q.weight"),
    SINGLE("norm.key_norm.scale", S "attn.norm_k.weight"),
    {.from = "final_layer.adaLN_modulation.1", .to = "norm_out.linear", .halves_swapped = true},
    {.from = "final_layer.linear", .to = "proj_out"},
    {0},
};

static const char *const signatures[] = {
    "double_stream_modulation_img.linear,single_transformer_blocks.0.attn.to_qkv_mlp_proj",
    "single_stream_modulation.lin,double_blocks.0.img_attn.qkv",
    NULL,
};

const oq_module_type oq_module_dit_flux2 = {
    .name = "dit_flux2",
    .gguf = "flux",
    .what = "transformer (FLUX.2)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_dit_flux2),
    .names = names,
    .describe = describe,
    .declare = declare,
};
