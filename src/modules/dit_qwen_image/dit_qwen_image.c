/* dit_qwen_image.c -- Qwen-Image transformer: configuration, names, shapes. The forward pass is in
 * dit_qwen_image_forward.c. */
#include "modules/dit_qwen_image/dit_qwen_image.h"

#include "modules/model_config.h"

#include <math.h>

#define WHAT "QwenImageTransformer2DModel"

enum { T_FREQUENCIES = 256, MLP_RATIO = 4 }; /* constants of the published class */

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_dit_qwen_image, member)
static const oq_model_field fields[] = {
    {"in_channels", OQ_FIELD_INT, FIELD(in_channels), 1, 4096, 64, NULL},
    {"out_channels", OQ_FIELD_INT, FIELD(out_channels), 0, 1024, 16, NULL},
    {"num_layers", OQ_FIELD_INT, FIELD(n_layers), 1, 1024, 60, NULL},
    {"attention_head_dim", OQ_FIELD_INT, FIELD(head_dim), 2, 4096, 128, NULL},
    {"num_attention_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, 24, NULL},
    {"joint_attention_dim", OQ_FIELD_INT, FIELD(text_dim), 1, 1 << 17, 3584, NULL},
    {"axes_dims_rope", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"patch_size", OQ_FIELD_FIXED, 0, 0, 0, 0, "2"},
    {"guidance_embeds", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},
    {"zero_cond_t", OQ_FIELD_BOOL, FIELD(zero_cond_t), 0, 0, 0, NULL}, /* Edit-2511 */
    {"use_additional_t_cond", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},    /* the layered models */
    {"use_layer3d_rope", OQ_FIELD_FIXED, 0, 0, 0, 0, "false"},
    {"pooled_projection_dim", OQ_FIELD_IGNORED, 0, 0, 0, 0,
     NULL}, /* in published files; no weight belongs to it */
};

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    static const int64_t published[OQ_DIT_QWEN_IMAGE_AXES] = {16, 56, 56};
    oq_dit_qwen_image *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    if (s->out_channels == 0) s->out_channels = s->in_channels;
    s->dim = s->n_heads * s->head_dim;
    s->shape = (oq_dit_shape){.dim = s->dim,
                              .n_heads = s->n_heads,
                              .head_dim = s->head_dim,
                              .mlp_dim = MLP_RATIO * s->dim,
                              .eps = 1e-6f,
                              .flags = OQ_BIAS};
    return oq_dit_axes_read(env, WHAT, config, published, OQ_COUNT(published), s->head_dim, s->axes_dims);
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static const oq_dit_stream_names IMAGE = {
    "img_mod.1",          "attn.to_qkv",        "attn.to_q",     "attn.to_k",          "attn.to_v",
    "attn.norm_q.weight", "attn.norm_k.weight", "attn.to_out.0", "img_mlp.net.0.proj", "img_mlp.net.2"};
static const oq_dit_stream_names TEXT = {"txt_mod.1",
                                         "attn.add_kv_proj",
                                         "attn.add_q_proj",
                                         "attn.add_k_proj",
                                         "attn.add_v_proj",
                                         "attn.norm_added_q.weight",
                                         "attn.norm_added_k.weight",
                                         "attn.to_add_out",
                                         "txt_mlp.net.0.proj",
                                         "txt_mlp.net.2"};

static oq_status declare(oq_builder *b, void *self)
{
    oq_dit_qwen_image *s = self;
    const int64_t D = s->dim, P = OQ_DIT_QWEN_IMAGE_PATCH;
    OQ_TRY(oq_declare_linear(b, &s->t1, "time_text_embed.timestep_embedder.linear_1", D, T_FREQUENCIES,
                             OQ_BIAS, "timestep embedder"));
    OQ_TRY(oq_declare_linear(b, &s->t2, "time_text_embed.timestep_embedder.linear_2", D, D, OQ_BIAS,
                             "timestep embedder"));
    OQ_TRY(oq_declare_vector(b, &s->txt_norm, "txt_norm.weight", s->text_dim));
    OQ_TRY(oq_declare_linear(b, &s->img_in, "img_in", D, s->in_channels, OQ_BIAS, "embedder"));
    OQ_TRY(oq_declare_linear(b, &s->txt_in, "txt_in", D, s->text_dim, OQ_BIAS, "embedder"));
    OQ_TRY(oq_dit_doubles_declare(b, &s->shape, &TEXT, &IMAGE, s->n_layers, &s->blocks));
    OQ_TRY(oq_declare_linear(b, &s->final_mod, "norm_out.linear", 2 * D, D, OQ_BIAS, "modulation"));
    return oq_declare_linear(b, &s->proj_out, "proj_out", P * P * s->out_channels, D, OQ_BIAS, "final layer");
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"QwenImageTransformer2DModel", NULL};

/* nunchaku's files: products fused. */
#define B "transformer_blocks.*.attn."
static const oq_name_rule names[] = {
    {.from = B "to_qkv", .to = B "to_q," B "to_k," B "to_v", .read_only = true},
    {.from = B "add_qkv_proj", .to = B "add_q_proj," B "add_k_proj," B "add_v_proj", .read_only = true},
    {0},
};

/* ComfyUI's and GGUF files keep diffusers' names. */
static const char *const signatures[] = {"transformer_blocks.0.img_mod.1,txt_norm,img_in", NULL};

const oq_module_type oq_module_dit_qwen_image = {
    .name = "dit_qwen_image",
    .gguf = "qwen_image",
    .what = "transformer (Qwen-Image)",
    .signatures = signatures,
    .names = names,
    .class_names = class_names,
    .self_bytes = sizeof(oq_dit_qwen_image),
    .describe = describe,
    .declare = declare,
};
