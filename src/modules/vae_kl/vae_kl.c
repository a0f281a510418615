/* vae_kl.c -- AutoencoderKL and AutoencoderKLFlux2: configuration, names, shapes. The forward passes are in vae_kl_forward.c. */
#include "modules/vae_kl/vae_kl.h"

#include "base/size.h"
#include "modules/model_config.h"

#include <math.h>
#include <string.h>

#define WHAT "AutoencoderKL"
static const char *const KEEP = "vae"; /* nothing in here is quantized */

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_vae_kl, member)
static const oq_model_field fields[] = {
    {"in_channels", OQ_FIELD_INT, FIELD(in_channels), 1, 1024, 3, NULL},
    {"out_channels", OQ_FIELD_INT, FIELD(out_channels), 1, 1024, 3, NULL},
    {"latent_channels", OQ_FIELD_INT, FIELD(latent_channels), 1, 1024, 4, NULL},
    {"layers_per_block", OQ_FIELD_INT, FIELD(layers_per_block), 1, 64, 1, NULL},
    {"norm_num_groups", OQ_FIELD_INT, FIELD(n_groups), 1, 4096, 32, NULL},
    {"sample_size", OQ_FIELD_INT, FIELD(sample_size), 1, 1 << 20, 32, NULL},
    {"scaling_factor", OQ_FIELD_REAL, FIELD(scaling_factor), 1e-9, 1e9, 0.18215, NULL},
    {"shift_factor", OQ_FIELD_REAL, FIELD(shift_factor), -1e9, 1e9, 0, NULL},
    {"mid_block_add_attention", OQ_FIELD_BOOL, FIELD(mid_attention), 0, 0, 1, NULL},
    {"use_quant_conv", OQ_FIELD_BOOL, FIELD(has_quant_conv), 0, 0, 1, NULL},
    {"use_post_quant_conv", OQ_FIELD_BOOL, FIELD(has_post_quant_conv), 0, 0, 1, NULL},
    {"block_out_channels", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"down_block_types", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"up_block_types", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"act_fn", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"silu\""},
    {"latents_mean", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"},
    {"latents_std", OQ_FIELD_FIXED, 0, 0, 0, 0, "null"},
    {"force_upcast", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL}, /* float16 only */
};

/* AutoencoderKLFlux2 has statistics of its latents in place of a factor and a shift. */
static const oq_model_field flux2_fields[] = {
    {"in_channels", OQ_FIELD_INT, FIELD(in_channels), 1, 1024, 3, NULL},
    {"out_channels", OQ_FIELD_INT, FIELD(out_channels), 1, 1024, 3, NULL},
    {"latent_channels", OQ_FIELD_INT, FIELD(latent_channels), 1, 1024, 32, NULL},
    {"layers_per_block", OQ_FIELD_INT, FIELD(layers_per_block), 1, 64, 2, NULL},
    {"norm_num_groups", OQ_FIELD_INT, FIELD(n_groups), 1, 4096, 32, NULL},
    {"sample_size", OQ_FIELD_INT, FIELD(sample_size), 1, 1 << 20, 1024, NULL},
    {"batch_norm_eps", OQ_FIELD_REAL, FIELD(statistics_eps), 0, 1, 1e-4, NULL},
    {"mid_block_add_attention", OQ_FIELD_BOOL, FIELD(mid_attention), 0, 0, 1, NULL},
    {"use_quant_conv", OQ_FIELD_BOOL, FIELD(has_quant_conv), 0, 0, 1, NULL},
    {"use_post_quant_conv", OQ_FIELD_BOOL, FIELD(has_post_quant_conv), 0, 0, 1, NULL},
    {"block_out_channels", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"decoder_block_out_channels", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"down_block_types", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"up_block_types", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"patch_size", OQ_FIELD_FIXED, 0, 0, 0, 0, "[2,2]"},
    {"act_fn", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"silu\""},
    {"batch_norm_momentum", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL}, /* training only */
    {"force_upcast", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},        /* float16 only */
};

static oq_status check_block_types(oq_env *env, const oq_json *config, const char *key, const char *only,
                                   int64_t n)
{
    const oq_json *types = oq_json_get(config, key);
    if (oq_json_type(types) != OQ_JSON_ARRAY)
        return oq_fail(env, OQ_E_FORMAT,
                       "config.json of " WHAT ": '%s' is %s, a list of block types is needed", key,
                       types ? oq_json_type_name(types) : "missing");
    if (oq_json_size(types) != (size_t)n)
        return oq_fail(env, OQ_E_FORMAT,
                       "config.json of " WHAT ": '%s' has %zu entries, 'block_out_channels' has %lld", key,
                       oq_json_size(types), (long long)n);
    for (size_t i = 0; i < (size_t)n; i++) {
        const char *type = oq_json_string(oq_json_at(types, i));
        if (!type || strcmp(type, only) != 0)
            return oq_fail(env, OQ_E_UNSUPPORTED,
                           "config.json of " WHAT ": '%s[%zu]' is '%s', only '%s' is supported", key, i,
                           type ? type : "?", only);
    }
    return OQ_OK;
}

static oq_status read_channels(oq_env *env, const oq_json *config, oq_vae_kl *s)
{
    int64_t n = 0;
    OQ_TRY(oq_model_config_ints(env, WHAT, config, "block_out_channels", 1, 65536, s->channels,
                                OQ_VAE_KL_MAX_BLOCKS, &s->n_blocks));
    memcpy(s->decoder_channels, s->channels, sizeof s->channels);
    if (oq_json_type(oq_json_get(config, "decoder_block_out_channels")) != OQ_JSON_NULL) {
        OQ_TRY(oq_model_config_ints(env, WHAT, config, "decoder_block_out_channels", 1, 65536,
                                    s->decoder_channels, OQ_VAE_KL_MAX_BLOCKS, &n));
        if (n != s->n_blocks)
            return oq_fail(env, OQ_E_FORMAT,
                           "config.json of " WHAT ": 'decoder_block_out_channels' has %lld entries, "
                           "'block_out_channels' has %lld",
                           (long long)n, (long long)s->n_blocks);
    }
    for (int64_t i = 0; i < 2 * s->n_blocks; i++) {
        const int64_t c = i < s->n_blocks ? s->channels[i] : s->decoder_channels[i - s->n_blocks];
        if (c % s->n_groups)
            return oq_fail(env, OQ_E_FORMAT,
                           "config.json of " WHAT ": 'norm_num_groups' %lld does not divide %lld channels",
                           (long long)s->n_groups, (long long)c);
    }
    return OQ_OK;
}

static oq_status describe_as(oq_env *env, const oq_json *config, const oq_model_field *table, size_t n,
                             oq_vae_kl *s)
{
    OQ_TRY(oq_model_config_read(env, WHAT, config, table, n, s));
    OQ_TRY(read_channels(env, config, s));
    OQ_TRY(check_block_types(env, config, "down_block_types", "DownEncoderBlock2D", s->n_blocks));
    return check_block_types(env, config, "up_block_types", "UpDecoderBlock2D", s->n_blocks);
}

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    return describe_as(env, config, fields, OQ_COUNT(fields), self);
}

static oq_status describe_flux2(oq_env *env, const oq_json *config, void *self)
{
    oq_vae_kl *s = self;
    s->has_statistics = true;
    s->scaling_factor = 1;
    return describe_as(env, config, flux2_fields, OQ_COUNT(flux2_fields), s);
}

/* ---- declaration --------------------------------------------------------------------------------------- */

/* name.weight and name.bias of a group norm. */
static oq_status declare_norm(oq_builder *b, oq_vector *weight, oq_vector *bias, const char *name, int64_t n)
{
    const char *weight_name = oq_arena_printf(b->arena, "%s.weight", name);
    const char *bias_name = oq_arena_printf(b->arena, "%s.bias", name);
    if (!weight_name || !bias_name) return oq_fail(b->env, OQ_E_NOMEM, "declaring '%s': no memory", name);
    OQ_TRY(oq_declare_vector(b, weight, weight_name, n));
    return oq_declare_vector(b, bias, bias_name, n);
}

static oq_status declare_resnet(oq_builder *b, oq_vae_kl_resnet *r, int64_t index, int64_t c_in,
                                int64_t c_out)
{
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "resnets.%lld", (long long)index));
    OQ_TRY(declare_norm(b, &r->norm1_weight, &r->norm1_bias, "norm1", c_in));
    OQ_TRY(oq_declare_conv2d(b, &r->conv1, "conv1", c_out, c_in, 3));
    OQ_TRY(declare_norm(b, &r->norm2_weight, &r->norm2_bias, "norm2", c_out));
    OQ_TRY(oq_declare_conv2d(b, &r->conv2, "conv2", c_out, c_out, 3));
    r->has_shortcut = c_in != c_out;
    if (r->has_shortcut) OQ_TRY(oq_declare_conv2d(b, &r->shortcut, "conv_shortcut", c_out, c_in, 1));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare_mid(oq_builder *b, const oq_vae_kl *s, oq_vae_kl_mid *m, int64_t c)
{
    oq_scope saved, inner;
    OQ_TRY(oq_scope_enter(b, &saved, "mid_block"));
    OQ_TRY(declare_resnet(b, &m->resnets[0], 0, c, c));
    if (s->mid_attention) {
        const oq_part qkv[] = {{"to_q", c}, {"to_k", c}, {"to_v", c}};
        const oq_attention_spec spec = {.head_dim = c, .n_heads = 1, .n_kv_heads = 1};
        OQ_TRY(oq_scope_enter(b, &inner, "attentions.0"));
        OQ_TRY(declare_norm(b, &m->norm_weight, &m->norm_bias, "group_norm", c));
        OQ_TRY(oq_declare_fused(b, &m->qkv, "to_qkv", c, OQ_BIAS, qkv, 3, KEEP));
        OQ_TRY(oq_declare_attention(b, &m->attention, "attention", spec));
        OQ_TRY(oq_declare_linear(b, &m->out, "to_out.0", c, c, OQ_BIAS, KEEP));
        oq_scope_leave(b, inner);
    }
    OQ_TRY(declare_resnet(b, &m->resnets[1], 1, c, c));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

/* Stage i of a side: resnets from c_in to c_out, then the convolution that follows (or goes with) resampling.
 */
static oq_status declare_stage(oq_builder *b, oq_vae_kl_stage *stage, const char *scope, const char *resample,
                               int64_t index, int64_t c_in, int64_t c_out, int64_t n_resnets)
{
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "%s.%lld", scope, (long long)index));
    OQ_TRY(oq_arena_new(b->arena, (size_t)n_resnets, sizeof *stage->resnets, "vae resnets", &stage->resnets));
    stage->n_resnets = n_resnets;
    for (int64_t i = 0; i < n_resnets; i++)
        OQ_TRY(declare_resnet(b, &stage->resnets[i], i, i == 0 ? c_in : c_out, c_out));
    stage->has_resample = resample != NULL;
    if (resample) OQ_TRY(oq_declare_conv2d(b, &stage->resample, resample, c_out, c_out, 3));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare_encoder(oq_builder *b, const oq_vae_kl *s, oq_vae_kl_side *e)
{
    const int64_t n = s->n_blocks, top = s->channels[n - 1];
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "encoder"));
    OQ_TRY(oq_declare_conv2d(b, &e->conv_in, "conv_in", s->channels[0], s->in_channels, 3));
    for (int64_t i = 0; i < n; i++) {
        const bool last = i == n - 1;
        OQ_TRY(declare_stage(b, &e->stages[i], "down_blocks", last ? NULL : "downsamplers.0.conv", i,
                             s->channels[i ? i - 1 : 0], s->channels[i], s->layers_per_block));
        if (last) continue;
        oq_conv2d_spec *spec = &e->stages[i].resample.spec; /* halves the size: zeros right and below only */
        spec->stride = 2;
        spec->pad_top = spec->pad_left = 0;
    }
    OQ_TRY(declare_mid(b, s, &e->mid, top));
    OQ_TRY(declare_norm(b, &e->norm_weight, &e->norm_bias, "conv_norm_out", top));
    OQ_TRY(oq_declare_conv2d(b, &e->conv_out, "conv_out", 2 * s->latent_channels, top, 3));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare_decoder(oq_builder *b, const oq_vae_kl *s, oq_vae_kl_side *d)
{
    const int64_t n = s->n_blocks, top = s->decoder_channels[n - 1];
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "decoder"));
    OQ_TRY(oq_declare_conv2d(b, &d->conv_in, "conv_in", top, s->latent_channels, 3));
    OQ_TRY(declare_mid(b, s, &d->mid, top));
    for (int64_t i = 0; i < n; i++) {
        OQ_TRY(declare_stage(b, &d->stages[i], "up_blocks", i == n - 1 ? NULL : "upsamplers.0.conv", i,
                             s->decoder_channels[n - 1 - (i ? i - 1 : 0)], s->decoder_channels[n - 1 - i],
                             s->layers_per_block + 1));
        if (i < n - 1) d->stages[i].resample.spec.upsample = 2; /* the picture is enlarged first */
    }
    OQ_TRY(declare_norm(b, &d->norm_weight, &d->norm_bias, "conv_norm_out", s->decoder_channels[0]));
    OQ_TRY(oq_declare_conv2d(b, &d->conv_out, "conv_out", s->out_channels, s->decoder_channels[0], 3));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare(oq_builder *b, void *self)
{
    oq_vae_kl *s = self;
    const int64_t L = s->latent_channels;
    OQ_TRY(declare_encoder(b, s, &s->encoder));
    OQ_TRY(declare_decoder(b, s, &s->decoder));
    if (s->has_quant_conv) OQ_TRY(oq_declare_conv2d(b, &s->quant_conv, "quant_conv", 2 * L, 2 * L, 1));
    if (s->has_post_quant_conv) OQ_TRY(oq_declare_conv2d(b, &s->post_quant_conv, "post_quant_conv", L, L, 1));
    if (!s->has_statistics) return OQ_OK;
    OQ_TRY(oq_declare_vector(b, &s->mean, "bn.running_mean", 4 * L));
    return oq_declare_vector(b, &s->variance, "bn.running_var", 4 * L);
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"AutoencoderKL", NULL};

/* Files written before diffusers 0.17 spell the attention of the mid block so. */
#define OLD_ATTENTION(side, old, new)                                                                        \
    {                                                                                                        \
        .from = side ".mid_block.attentions.0." old, .to = side ".mid_block.attentions.0." new               \
    }
/* The original release (also in ComfyUI's files): one list of blocks, attention by 1 x 1 convolutions, the decoder's
 * stages counted from the picture. */
#define ORIGINAL_SIDE(side)                                                                                  \
    {.from = side ".mid.block_1.nin_shortcut", .to = side ".mid_block.resnets.0.conv_shortcut"},             \
        {.from = side ".mid.block_1", .to = side ".mid_block.resnets.0"},                                    \
        {.from = side ".mid.block_2", .to = side ".mid_block.resnets.1"},                                    \
        {.from = side ".mid.attn_1.norm", .to = side ".mid_block.attentions.0.group_norm"},                  \
        {.from = side ".mid.attn_1.q", .to = side ".mid_block.attentions.0.to_q"},                           \
        {.from = side ".mid.attn_1.k", .to = side ".mid_block.attentions.0.to_k"},                           \
        {.from = side ".mid.attn_1.v", .to = side ".mid_block.attentions.0.to_v"},                           \
        {.from = side ".mid.attn_1.proj_out", .to = side ".mid_block.attentions.0.to_out.0"},                \
    {                                                                                                        \
        .from = side ".norm_out", .to = side ".conv_norm_out"                                                \
    }
#define ORIGINAL_UP(theirs, ours)                                                                            \
    {.from = "decoder.up." theirs ".block.*.nin_shortcut",                                                   \
     .to = "decoder.up_blocks." ours ".resnets.*.conv_shortcut"},                                            \
        {.from = "decoder.up." theirs ".block.*", .to = "decoder.up_blocks." ours ".resnets.*"},             \
    {                                                                                                        \
        .from = "decoder.up." theirs ".upsample.conv", .to = "decoder.up_blocks." ours ".upsamplers.0.conv"  \
    }
static const oq_name_rule names[] = {
    OLD_ATTENTION("encoder", "query", "to_q"),
    OLD_ATTENTION("encoder", "key", "to_k"),
    OLD_ATTENTION("encoder", "value", "to_v"),
    OLD_ATTENTION("encoder", "proj_attn", "to_out.0"),
    OLD_ATTENTION("decoder", "query", "to_q"),
    OLD_ATTENTION("decoder", "key", "to_k"),
    OLD_ATTENTION("decoder", "value", "to_v"),
    OLD_ATTENTION("decoder", "proj_attn", "to_out.0"),
    ORIGINAL_SIDE("encoder"),
    ORIGINAL_SIDE("decoder"),
    {.from = "encoder.down.*.block.*.nin_shortcut", .to = "encoder.down_blocks.*.resnets.*.conv_shortcut"},
    {.from = "encoder.down.*.block.*", .to = "encoder.down_blocks.*.resnets.*"},
    {.from = "encoder.down.*.downsample.conv", .to = "encoder.down_blocks.*.downsamplers.0.conv"},
    ORIGINAL_UP("3", "0"),
    ORIGINAL_UP("2", "1"),
    ORIGINAL_UP("1", "2"),
    ORIGINAL_UP("0", "3"),
    {.from = "encoder.quant_conv", .to = "quant_conv"}, /* FLUX.2 keeps them inside */
    {.from = "decoder.post_quant_conv", .to = "post_quant_conv"},
    {.from = "bn.num_batches_tracked", .why = "a counter of the training"},
    {0},
};

static const char *const signatures[] = {
    "decoder.up_blocks.0.resnets.0.conv1,decoder.mid_block.resnets.0.conv1,decoder.conv_norm_out",
    "decoder.up.0.block.0.conv1,decoder.mid.block_1.conv1,decoder.norm_out",
    NULL,
};

const oq_module_type oq_module_vae_kl = {
    .name = "vae_kl",
    .what = "autoencoder (AutoencoderKL)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_vae_kl),
    .names = names,
    .describe = describe,
    .declare = declare,
};

static const char *const flux2_class_names[] = {"AutoencoderKLFlux2", NULL};

static const char *const flux2_signatures[] = {
    "decoder.up_blocks.0.resnets.0.conv1,decoder.mid_block.resnets.0.conv1,bn.running_mean",
    "decoder.up.0.block.0.conv1,decoder.mid.block_1.conv1,bn.running_mean",
    NULL,
};

const oq_module_type oq_module_vae_kl_flux2 = {
    .name = "vae_kl_flux2",
    .what = "autoencoder (AutoencoderKLFlux2)",
    .signatures = flux2_signatures,
    .class_names = flux2_class_names,
    .self_bytes = sizeof(oq_vae_kl),
    .names = names,
    .describe = describe_flux2,
    .declare = declare,
};
