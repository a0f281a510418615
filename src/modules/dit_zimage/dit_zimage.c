/* dit_zimage.c -- Z-Image transformer: configuration, names, shapes. The forward pass is in
 * dit_zimage_forward.c. */
#include "modules/dit_zimage/dit_zimage.h"

#include "modules/model_config.h"

#include <math.h>
#include <stdio.h>

#define WHAT "ZImageTransformer2DModel"

enum { ADALN_DIM = 256, T_FREQUENCIES = 256, T_HIDDEN = 1024 }; /* constants of the published class */

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_dit_zimage, member)
static const oq_model_field fields[] = {
    {"dim", OQ_FIELD_INT, FIELD(dim), 8, 1 << 17, 3840, NULL},
    {"n_layers", OQ_FIELD_INT, FIELD(n_layers), 1, 1024, 30, NULL},
    {"n_refiner_layers", OQ_FIELD_INT, FIELD(n_refiners), 0, 1024, 2, NULL},
    {"n_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, 30, NULL},
    {"n_kv_heads", OQ_FIELD_INT, FIELD(n_kv_heads), 1, 4096, 30, NULL},
    {"in_channels", OQ_FIELD_INT, FIELD(in_channels), 1, 1024, 16, NULL},
    {"cap_feat_dim", OQ_FIELD_INT, FIELD(caption_dim), 1, 1 << 17, 2560, NULL},
    {"norm_eps", OQ_FIELD_REAL, FIELD(eps), 0, 1, 1e-5, NULL},
    {"rope_theta", OQ_FIELD_REAL, FIELD(rope_theta), 1, 1e12, 256, NULL},
    {"t_scale", OQ_FIELD_REAL, FIELD(t_scale), 1e-6, 1e9, 1000, NULL},
    {"axes_dims", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"all_patch_size", OQ_FIELD_FIXED, 0, 0, 0, 0, "[2]"},
    {"all_f_patch_size", OQ_FIELD_FIXED, 0, 0, 0, 0, "[1]"},
    {"qk_norm", OQ_FIELD_BOOL, FIELD(qk_norm), 0, 0, 1, NULL},
    {"siglip_feat_dim", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"},
    {"axes_lens", OQ_FIELD_IGNORED, 0, 0, 0, 0,
     NULL}, /* size of the original's table; angles are computed here */
};

static oq_status read_axes(oq_env *env, const oq_json *config, oq_dit_zimage *s)
{
    static const int64_t published[OQ_DIT_ZIMAGE_AXES] = {32, 48, 48};
    char heads[96];
    snprintf(heads, sizeof heads, "%lld heads over 'dim' %lld", (long long)s->n_heads, (long long)s->dim);
    const int64_t width = s->dim % s->n_heads ? -1 : s->dim / s->n_heads;
    return oq_model_config_axes(env, WHAT, config, "axes_dims", published, OQ_DIT_ZIMAGE_AXES, width, heads,
                                s->axes_dims);
}

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    oq_dit_zimage *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    if (s->n_kv_heads != s->n_heads)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "config.json of " WHAT ": 'n_kv_heads' is %lld, only 'n_heads' (%lld) is supported",
                       (long long)s->n_kv_heads, (long long)s->n_heads);
    OQ_TRY(read_axes(env, config, s));
    s->head_dim = s->dim / s->n_heads;
    s->ffn_dim = (int64_t)((double)s->dim / 3 * 8);
    s->patch_dim = OQ_DIT_ZIMAGE_PATCH * OQ_DIT_ZIMAGE_PATCH * s->in_channels;
    s->t_dim = s->dim < ADALN_DIM ? s->dim : ADALN_DIM;
    return OQ_OK;
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static oq_status declare_attention(oq_builder *b, const oq_dit_zimage *s, oq_dit_zimage_block *block)
{
    const oq_part qkv[] = {
        {"attention.to_q", s->dim}, {"attention.to_k", s->dim}, {"attention.to_v", s->dim}};
    const oq_attention_spec spec = {.head_dim = s->head_dim, .n_heads = s->n_heads, .n_kv_heads = s->n_heads};
    OQ_TRY(
        oq_declare_fused(b, &block->qkv, "attention.to_qkv", s->dim, OQ_WANTS(OQ_FUSE_ROWS), qkv, 3, NULL));
    if (s->qk_norm) {
        OQ_TRY(oq_declare_vector(b, &block->norm_q, "attention.norm_q.weight", s->head_dim));
        OQ_TRY(oq_declare_vector(b, &block->norm_k, "attention.norm_k.weight", s->head_dim));
    }
    OQ_TRY(oq_declare_attention(b, &block->attention, "attention", spec));
    return oq_declare_linear(b, &block->out, "attention.to_out.0", s->dim, s->dim, 0, NULL);
}

static oq_status declare_block(oq_builder *b, const oq_dit_zimage *s, oq_dit_zimage_block *block,
                               bool modulated)
{
    const oq_part w13[] = {{"feed_forward.w1", s->ffn_dim}, {"feed_forward.w3", s->ffn_dim}};
    OQ_TRY(declare_attention(b, s, block));
    if (!modulated) block->attention.plain = block->attention.dense = "attends once, before the steps";
    OQ_TRY(oq_declare_fused(b, &block->w13, "feed_forward.w13", s->dim, OQ_WANTS(OQ_FUSE_ROWS | OQ_FUSE_GLU),
                            w13, 2, NULL));
    OQ_TRY(
        oq_declare_linear(b, &block->w2, "feed_forward.w2", s->dim, s->ffn_dim, OQ_WANTS(OQ_FUSE_PRE), NULL));
    OQ_TRY(oq_declare_vector(b, &block->attention_norm1, "attention_norm1.weight", s->dim));
    OQ_TRY(oq_declare_vector(b, &block->attention_norm2, "attention_norm2.weight", s->dim));
    OQ_TRY(oq_declare_vector(b, &block->ffn_norm1, "ffn_norm1.weight", s->dim));
    OQ_TRY(oq_declare_vector(b, &block->ffn_norm2, "ffn_norm2.weight", s->dim));
    block->has_modulation = modulated;
    if (!modulated) return OQ_OK;
    return oq_declare_linear(b, &block->modulation, "adaLN_modulation.0", 4 * s->dim, s->t_dim, OQ_BIAS,
                             "modulation");
}

static oq_status declare_stack(oq_builder *b, const oq_dit_zimage *s, const char *name, int64_t n,
                               bool modulated, oq_dit_zimage_block **out)
{
    OQ_TRY(oq_arena_new(b->arena, (size_t)n, sizeof **out, name, out));
    for (int64_t i = 0; i < n; i++) {
        oq_scope saved;
        OQ_TRY(oq_scope_enter(b, &saved, "%s.%lld", name, (long long)i));
        OQ_TRY(declare_block(b, s, &(*out)[i], modulated));
        oq_scope_leave(b, saved);
    }
    return OQ_OK;
}

static oq_status declare_embedders(oq_builder *b, oq_dit_zimage *s)
{
    OQ_TRY(oq_declare_vector(b, &s->x_pad, "x_pad_token", s->dim));
    OQ_TRY(oq_declare_vector(b, &s->cap_pad, "cap_pad_token", s->dim));
    OQ_TRY(oq_declare_linear(b, &s->x_embedder, "all_x_embedder.2-1", s->dim, s->patch_dim, OQ_BIAS,
                             "embedder"));
    OQ_TRY(oq_declare_linear(b, &s->t_mlp0, "t_embedder.mlp.0", T_HIDDEN, T_FREQUENCIES,
                             OQ_BIAS | OQ_WANTS(OQ_FUSE_UNARY), "timestep embedder"));
    OQ_TRY(oq_declare_linear(b, &s->t_mlp2, "t_embedder.mlp.2", s->t_dim, T_HIDDEN, OQ_BIAS,
                             "timestep embedder"));
    OQ_TRY(oq_declare_vector(b, &s->cap_norm, "cap_embedder.0.weight", s->caption_dim));
    return oq_declare_linear(b, &s->cap_embedder, "cap_embedder.1", s->dim, s->caption_dim,
                             OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS), "caption embedder");
}

static oq_status declare(oq_builder *b, void *self)
{
    oq_dit_zimage *s = self;
    OQ_TRY(declare_embedders(b, s));
    OQ_TRY(declare_stack(b, s, "noise_refiner", s->n_refiners, true, &s->noise_refiner));
    OQ_TRY(declare_stack(b, s, "context_refiner", s->n_refiners, false, &s->context_refiner));
    OQ_TRY(declare_stack(b, s, "layers", s->n_layers, true, &s->layers));
    OQ_TRY(oq_declare_linear(b, &s->final_modulation, "all_final_layer.2-1.adaLN_modulation.1", s->dim,
                             s->t_dim, OQ_BIAS, "modulation"));
    return oq_declare_linear(b, &s->final_linear, "all_final_layer.2-1.linear", s->patch_dim, s->dim,
                             OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS), "final layer");
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"ZImageTransformer2DModel", NULL};

/* The original release, which ComfyUI and GGUF files follow. */
static const oq_name_rule names[] = {
    {.from = "*.*.attention.qkv", .to = "*.*.attention.to_q,*.*.attention.to_k,*.*.attention.to_v"},
    {.from = "*.*.attention.out", .to = "*.*.attention.to_out.0"},
    /* nunchaku's: products fused, the MLP in diffusers' general form (values first, then the gate) */
    {.from = "*.*.attention.to_qkv",
     .to = "*.*.attention.to_q,*.*.attention.to_k,*.*.attention.to_v",
     .read_only = true},
    {.from = "*.*.feed_forward.net.0.proj",
     .to = "*.*.feed_forward.w3,*.*.feed_forward.w1",
     .read_only = true},
    {.from = "*.*.feed_forward.net.2", .to = "*.*.feed_forward.w2", .read_only = true},
    {.from = "*.*.attention.q_norm", .to = "*.*.attention.norm_q"},
    {.from = "*.*.attention.k_norm", .to = "*.*.attention.norm_k"},
    {.from = "x_embedder", .to = "all_x_embedder.2-1"},
    {.from = "final_layer", .to = "all_final_layer.2-1"},
    {.from = "norm_final", .why = "a norm of the original release that nothing runs through"},
    {0},
};

/* Lumina 2, from which it descends, has its modulation at adaLN_modulation.1. */
static const char *const signatures[] = {"cap_embedder.1,noise_refiner.0,layers.0.adaLN_modulation.0", NULL};

const oq_module_type oq_module_dit_zimage = {
    .name = "dit_zimage",
    .gguf = "lumina2",
    .what = "transformer (Z-Image)",
    .signatures = signatures,
    .names = names,
    .class_names = class_names,
    .self_bytes = sizeof(oq_dit_zimage),
    .describe = describe,
    .declare = declare,
};
