/* vae_wan.c -- the causal video autoencoder: configuration, names, shapes. The forward passes are in
 * vae_wan_forward.c. */
#include "modules/vae_wan/vae_wan.h"

#include "modules/model_config.h"

#include <math.h>
#include <stdio.h>

#define WHAT "AutoencoderKLWan"
static const char *const KEEP = "vae"; /* nothing in here is quantized */

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_vae_wan, member)
static const oq_model_field fields[] = {
    {"base_dim", OQ_FIELD_INT, FIELD(base_dim), 1, 65536, 96, NULL},
    {"decoder_base_dim", OQ_FIELD_INT, FIELD(decoder_dim), 0, 65536, 0, NULL},
    {"z_dim", OQ_FIELD_INT, FIELD(z_dim), 1, OQ_VAE_WAN_MAX_Z, 16, NULL},
    {"num_res_blocks", OQ_FIELD_INT, FIELD(n_res_blocks), 1, OQ_VAE_WAN_MAX_RESNETS - 1, 2, NULL},
    {"in_channels", OQ_FIELD_INT, FIELD(in_channels), 1, 1024, 3, NULL},
    {"input_channels", OQ_FIELD_FIXED, 0, 0, 0, 0, "3"}, /* AutoencoderKLQwenImage says it so */
    {"out_channels", OQ_FIELD_INT, FIELD(out_channels), 1, 1024, 3, NULL},
    {"patch_size", OQ_FIELD_INT, FIELD(patch), 1, 16, 1, NULL},
    {"is_residual", OQ_FIELD_BOOL, FIELD(residual), 0, 0, 0, NULL},
    {"dim_mult", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"temperal_downsample", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL}, /* the class's own spelling */
    {"latents_mean", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"latents_std", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"attn_scales", OQ_FIELD_FIXED, 0, 0, 0, 0, "[]"},
    {"scale_factor_spatial", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"scale_factor_temporal", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"clip_output", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL}, /* pixels are clipped in any case */
    {"dropout", OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL},
};

/* What the classes take where the file says nothing: the 16 channels of Wan 2.1. */
static const float MEAN[16] = {-0.7571f, -0.7089f, -0.9113f, 0.1075f,  -0.1745f, 0.9653f,
                               -0.1517f, 1.5508f,  0.4134f,  -0.0715f, 0.5517f,  -0.3632f,
                               -0.1922f, -0.9497f, 0.2503f,  -0.2921f};
static const float STD[16] = {2.8184f, 1.4541f, 2.3275f, 2.6558f, 1.2196f, 1.7708f, 2.6052f, 2.0743f,
                              3.2687f, 2.1526f, 2.8652f, 1.5579f, 1.6382f, 1.1253f, 2.8251f, 1.9160f};

static oq_status read_latents(oq_env *env, const oq_json *config, const char *key, const float *fallback,
                              int64_t n, float *out)
{
    const oq_json *list = oq_json_get(config, key);
    if (oq_json_type(list) == OQ_JSON_NULL) {
        if (n != 16)
            return oq_fail(env, OQ_E_FORMAT, "config.json of " WHAT ": '%s' is missing, 'z_dim' is %lld", key,
                           (long long)n);
        for (int64_t i = 0; i < n; i++) out[i] = fallback[i];
        return OQ_OK;
    }
    if (oq_json_type(list) != OQ_JSON_ARRAY || oq_json_size(list) != (size_t)n)
        return oq_fail(env, OQ_E_FORMAT, "config.json of " WHAT ": '%s' has %zu numbers, 'z_dim' is %lld",
                       key, oq_json_type(list) == OQ_JSON_ARRAY ? oq_json_size(list) : 0, (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const double x = oq_json_real(oq_json_at(list, (size_t)i), NAN);
        if (!(fabs(x) <= 1e6))
            return oq_fail(env, OQ_E_FORMAT, "config.json of " WHAT ": '%s[%lld]' is no number up to 1e6",
                           key, (long long)i);
        out[i] = (float)x;
    }
    return OQ_OK;
}

static oq_status read_blocks(oq_env *env, const oq_json *config, oq_vae_wan *s)
{
    static const int64_t multipliers[] = {1, 2, 4, 4};
    static const bool halves[] = {false, true, true};
    s->n_blocks = (int64_t)OQ_COUNT(multipliers);
    if (oq_json_get(config, "dim_mult"))
        OQ_TRY(oq_model_config_ints(env, WHAT, config, "dim_mult", 1, 1024, s->multiplier,
                                    OQ_VAE_WAN_MAX_BLOCKS, &s->n_blocks));
    else
        for (int64_t i = 0; i < s->n_blocks; i++) s->multiplier[i] = multipliers[i];
    const oq_json *list = oq_json_get(config, "temperal_downsample");
    const int64_t n = list ? (int64_t)oq_json_size(list) : (int64_t)OQ_COUNT(halves);
    if (n != s->n_blocks - 1)
        return oq_fail(env, OQ_E_FORMAT,
                       "config.json of " WHAT ": 'temperal_downsample' has %lld entries, 'dim_mult' has %lld",
                       (long long)n, (long long)s->n_blocks);
    for (int64_t i = 0; i < n; i++) {
        const oq_json *item = oq_json_at(list, (size_t)i);
        if (list && oq_json_type(item) != OQ_JSON_BOOL)
            return oq_fail(env, OQ_E_FORMAT,
                           "config.json of " WHAT
                           ": 'temperal_downsample[%lld]' is %s, true or false is needed",
                           (long long)i, oq_json_type_name(item));
        s->halves_time[i] = list ? oq_json_bool(item, false) : halves[i];
    }
    return OQ_OK;
}

/* The file repeats what follows from the blocks; a file that says otherwise is not this network. */
static oq_status check_scale(oq_env *env, const oq_json *config, const char *key, int64_t scale)
{
    const int64_t said = oq_json_int(oq_json_get(config, key), scale);
    if (said == scale) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "config.json of " WHAT ": '%s' is %lld, the blocks give %lld", key,
                   (long long)said, (long long)scale);
}

static bool is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* The shortcuts repeat or average whole channels: each shares a whole number of them, by powers of two. */
static oq_status check_shortcut(oq_env *env, int64_t c_in, int64_t c_out, int64_t factor)
{
    const int64_t group = c_in * factor / c_out;
    if (c_in * factor % c_out == 0 && (group % factor == 0 || is_power_of_two(group))) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "config.json of " WHAT ": a shortcut from %lld to %lld channels by %lld is not supported",
                   (long long)c_in, (long long)c_out, (long long)factor);
}

static oq_status check_shortcuts(oq_env *env, const oq_vae_wan *s)
{
    for (int64_t i = 0; s->residual && i < s->n_blocks; i++) {
        const int64_t now = s->multiplier[i], before = i ? s->multiplier[i - 1] : 1;
        const bool last = i == s->n_blocks - 1;
        OQ_TRY(check_shortcut(env, before, now, last ? 1 : s->halves_time[i] ? 8 : 4));
        const int64_t next =
            last ? now : s->multiplier[i + 1]; /* the decoder's stage towards this resolution */
        if (!last) OQ_TRY(check_shortcut(env, now, next, s->halves_time[i] ? 8 : 4));
    }
    return OQ_OK;
}

static oq_status describe(oq_env *env, const oq_json *config, void *self)
{
    oq_vae_wan *s = self;
    OQ_TRY(oq_model_config_read(env, WHAT, config, fields, OQ_COUNT(fields), s));
    if (s->decoder_dim == 0) s->decoder_dim = s->base_dim;
    OQ_TRY(read_blocks(env, config, s));
    OQ_TRY(read_latents(env, config, "latents_mean", MEAN, s->z_dim, s->mean));
    OQ_TRY(read_latents(env, config, "latents_std", STD, s->z_dim, s->std));
    for (int64_t i = 0; i < s->z_dim; i++)
        if (!(s->std[i] > 0))
            return oq_fail(env, OQ_E_FORMAT,
                           "config.json of " WHAT ": 'latents_std[%lld]' is %g, it must be above 0",
                           (long long)i, (double)s->std[i]);
    if (s->in_channels != 3 * s->patch * s->patch || s->out_channels != s->in_channels)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "config.json of " WHAT
                       ": %lld channels in and %lld out of patches of %lld: pictures have 3",
                       (long long)s->in_channels, (long long)s->out_channels, (long long)s->patch);
    OQ_TRY(check_scale(env, config, "scale_factor_spatial", oq_vae_wan_scale(s)));
    OQ_TRY(check_scale(env, config, "scale_factor_temporal", oq_vae_wan_time_scale(s)));
    return check_shortcuts(env, s);
}

int64_t oq_vae_wan_scale(const oq_vae_wan *s)
{
    return ((int64_t)1 << (s->n_blocks - 1)) * s->patch;
}

int64_t oq_vae_wan_time_scale(const oq_vae_wan *s)
{
    int64_t scale = 1;
    for (int64_t i = 0; i + 1 < s->n_blocks; i++)
        if (s->halves_time[i]) scale *= 2;
    return scale;
}

int64_t oq_vae_wan_frames(const oq_vae_wan *s, int64_t latent_frames)
{
    return 1 + (latent_frames - 1) * oq_vae_wan_time_scale(s);
}

int64_t oq_vae_wan_latent_frames(const oq_vae_wan *s, int64_t frames)
{
    return 1 + (frames - 1) / oq_vae_wan_time_scale(s);
}

/* ---- declaration --------------------------------------------------------------------------------------- */

/* A 1 x 1 (x 1) convolution is a product. */
static oq_status declare_point(oq_builder *b, oq_linear *l, const char *name, int64_t n, int64_t k)
{
    OQ_TRY(oq_declare_linear(b, l, name, n, k, OQ_BIAS, KEEP));
    l->flat = true;
    return OQ_OK;
}

static oq_status declare_resnet(oq_builder *b, oq_vae_wan_resnet *r, const char *name, int64_t c_in,
                                int64_t c_out)
{
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "%s", name));
    OQ_TRY(oq_declare_vector(b, &r->norm1, "norm1.gamma", c_in));
    OQ_TRY(oq_declare_conv3d(b, &r->conv1, "conv1", c_out, c_in, 3, 3));
    OQ_TRY(oq_declare_vector(b, &r->norm2, "norm2.gamma", c_out));
    OQ_TRY(oq_declare_conv3d(b, &r->conv2, "conv2", c_out, c_out, 3, 3));
    r->has_shortcut = c_in != c_out;
    if (r->has_shortcut) OQ_TRY(declare_point(b, &r->shortcut, "conv_shortcut", c_out, c_in));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare_mid(oq_builder *b, oq_vae_wan_mid *m, int64_t c)
{
    const oq_attention_spec spec = {.head_dim = c, .n_heads = 1, .n_kv_heads = 1};
    oq_scope saved, inner;
    OQ_TRY(oq_scope_enter(b, &saved, "mid_block"));
    OQ_TRY(declare_resnet(b, &m->resnets[0], "resnets.0", c, c));
    OQ_TRY(oq_scope_enter(b, &inner, "attentions.0"));
    OQ_TRY(oq_declare_vector(b, &m->norm, "norm.gamma", c));
    OQ_TRY(declare_point(b, &m->qkv, "to_qkv", 3 * c, c));
    OQ_TRY(oq_declare_attention(b, &m->attention, "attention", spec));
    OQ_TRY(declare_point(b, &m->proj, "proj", c, c));
    oq_scope_leave(b, inner);
    OQ_TRY(declare_resnet(b, &m->resnets[1], "resnets.1", c, c));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status stage_resnets(oq_builder *b, oq_vae_wan_stage *stage, int64_t n, int64_t c_in, int64_t c_out)
{
    *stage = (oq_vae_wan_stage){.n_resnets = n, .c_in = c_in, .c_out = c_out};
    return oq_arena_new(b->arena, (size_t)n, sizeof *stage->resnets, "vae resnets", &stage->resnets);
}

/* Halves the size: zeros right and below only; then, where time is halved, a window of three frames in steps of two. */
static oq_status declare_down(oq_builder *b, oq_vae_wan_stage *stage, bool time)
{
    const int64_t c = stage->c_out;
    OQ_TRY(oq_declare_conv2d(b, &stage->resample, "resample.1", c, c, 3));
    stage->has_resample = true;
    stage->resample.spec.stride = 2;
    stage->resample.spec.pad_top = stage->resample.spec.pad_left = 0;
    stage->has_time = time;
    if (!time) return OQ_OK;
    OQ_TRY(oq_declare_conv3d(b, &stage->time_conv, "time_conv", c, c, 3, 1));
    stage->time_conv.spec.stride_t = 2;
    stage->time_conv.spec.pad_front = 1;
    return OQ_OK;
}

/* Wan 2.1 numbers resnets and changes of resolution in one list, Wan 2.2 has a list of stages. */
static oq_status declare_down_stage(oq_builder *b, const oq_vae_wan *s, oq_vae_wan_stage *stage, int64_t i,
                                    int64_t *index)
{
    const int64_t c_in = s->base_dim * (i ? s->multiplier[i - 1] : 1), c_out = s->base_dim * s->multiplier[i];
    oq_scope saved;
    char name[64];
    OQ_TRY(stage_resnets(b, stage, s->n_res_blocks, c_in, c_out));
    for (int64_t r = 0; r < stage->n_resnets; r++) {
        if (s->residual)
            snprintf(name, sizeof name, "down_blocks.%lld.resnets.%lld", (long long)i, (long long)r);
        else
            snprintf(name, sizeof name, "down_blocks.%lld", (long long)(*index)++);
        OQ_TRY(declare_resnet(b, &stage->resnets[r], name, r ? c_out : c_in, c_out));
    }
    if (i == s->n_blocks - 1) return OQ_OK;
    if (s->residual)
        OQ_TRY(oq_scope_enter(b, &saved, "down_blocks.%lld.downsampler", (long long)i));
    else
        OQ_TRY(oq_scope_enter(b, &saved, "down_blocks.%lld", (long long)(*index)++));
    OQ_TRY(declare_down(b, stage, s->halves_time[i]));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare_encoder(oq_builder *b, const oq_vae_wan *s, oq_vae_wan_side *e)
{
    const int64_t top = s->base_dim * s->multiplier[s->n_blocks - 1];
    int64_t index = 0;
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "encoder"));
    OQ_TRY(oq_declare_conv3d(b, &e->conv_in, "conv_in", s->base_dim, s->in_channels, 3, 3));
    for (int64_t i = 0; i < s->n_blocks; i++) OQ_TRY(declare_down_stage(b, s, &e->stages[i], i, &index));
    OQ_TRY(declare_mid(b, &e->mid, top));
    OQ_TRY(oq_declare_vector(b, &e->norm_out, "norm_out.gamma", top));
    OQ_TRY(oq_declare_conv3d(b, &e->conv_out, "conv_out", 2 * s->z_dim, top, 3, 3));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

/* Doubles the size, after the frames where time is doubled; Wan 2.1 halves the width on the way. */
static oq_status declare_up(oq_builder *b, const oq_vae_wan *s, oq_vae_wan_stage *stage, bool time)
{
    const int64_t c = stage->c_out;
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "%s", s->residual ? "upsampler" : "upsamplers.0"));
    OQ_TRY(oq_declare_conv2d(b, &stage->resample, "resample.1", s->residual ? c : c / 2, c, 3));
    stage->resample.spec.upsample = 2;
    stage->has_resample = true;
    stage->has_time = time;
    if (time) OQ_TRY(oq_declare_conv3d(b, &stage->time_conv, "time_conv", 2 * c, c, 3, 1));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare_up_stage(oq_builder *b, const oq_vae_wan *s, oq_vae_wan_stage *stage, int64_t i)
{
    const int64_t n = s->n_blocks, before = s->multiplier[i ? n - i : n - 1], now = s->multiplier[n - 1 - i];
    const int64_t c_in = s->decoder_dim * before / (i && !s->residual ? 2 : 1), c_out = s->decoder_dim * now;
    oq_scope saved;
    char name[32];
    OQ_TRY(oq_scope_enter(b, &saved, "up_blocks.%lld", (long long)i));
    OQ_TRY(stage_resnets(b, stage, s->n_res_blocks + 1, c_in, c_out));
    for (int64_t r = 0; r < stage->n_resnets; r++) {
        snprintf(name, sizeof name, "resnets.%lld", (long long)r);
        OQ_TRY(declare_resnet(b, &stage->resnets[r], name, r ? c_out : c_in, c_out));
    }
    if (i < n - 1) OQ_TRY(declare_up(b, s, stage, s->halves_time[n - 2 - i]));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare_decoder(oq_builder *b, const oq_vae_wan *s, oq_vae_wan_side *d)
{
    const int64_t top = s->decoder_dim * s->multiplier[s->n_blocks - 1],
                  last = s->decoder_dim * s->multiplier[0];
    oq_scope saved;
    OQ_TRY(oq_scope_enter(b, &saved, "decoder"));
    OQ_TRY(oq_declare_conv3d(b, &d->conv_in, "conv_in", top, s->z_dim, 3, 3));
    OQ_TRY(declare_mid(b, &d->mid, top));
    for (int64_t i = 0; i < s->n_blocks; i++) OQ_TRY(declare_up_stage(b, s, &d->stages[i], i));
    OQ_TRY(oq_declare_vector(b, &d->norm_out, "norm_out.gamma", last));
    OQ_TRY(oq_declare_conv3d(b, &d->conv_out, "conv_out", s->out_channels, last, 3, 3));
    oq_scope_leave(b, saved);
    return OQ_OK;
}

static oq_status declare(oq_builder *b, void *self)
{
    oq_vae_wan *s = self;
    b->unused = s->encoder_unused;
    OQ_TRY(declare_encoder(b, s, &s->encoder));
    OQ_TRY(declare_point(b, &s->quant, "quant_conv", 2 * s->z_dim, 2 * s->z_dim));
    b->unused = false;
    OQ_TRY(declare_point(b, &s->post_quant, "post_quant_conv", s->z_dim, s->z_dim));
    return declare_decoder(b, s, &s->decoder);
}

/* ---- row of the module list ---------------------------------------------------------------------------- */

static const char *const class_names[] = {"AutoencoderKLWan", "AutoencoderKLQwenImage", NULL};

/* The original release, also in ComfyUI's files: what stands in a list is counted, a resnet's parts too. */
#define RESNET(theirs, ours)                                                                                 \
    {.from = theirs ".residual.0", .to = ours ".norm1"},                                                     \
        {.from = theirs ".residual.2", .to = ours ".conv1"},                                                 \
        {.from = theirs ".residual.3", .to = ours ".norm2"},                                                 \
        {.from = theirs ".residual.6", .to = ours ".conv2"},                                                 \
    {                                                                                                        \
        .from = theirs ".shortcut", .to = ours ".conv_shortcut"                                              \
    }
#define SIDE(side)                                                                                           \
    {.from = side ".conv1", .to = side ".conv_in"}, {.from = side ".head.0", .to = side ".norm_out"},        \
        {.from = side ".head.2", .to = side ".conv_out"},                                                    \
        {.from = side ".middle.1", .to = side ".mid_block.attentions.0"},                                    \
        RESNET(side ".middle.0", side ".mid_block.resnets.0"),                                               \
        RESNET(side ".middle.2", side ".mid_block.resnets.1")
/* Wan 2.1's decoder has one list of three resnets and an enlargement, three resnets and an enlargement, ... */
#define UP(ours, r0, r1, r2)                                                                                 \
    RESNET("decoder.upsamples." r0, "decoder.up_blocks." ours ".resnets.0"),                                 \
        RESNET("decoder.upsamples." r1, "decoder.up_blocks." ours ".resnets.1"),                             \
        RESNET("decoder.upsamples." r2, "decoder.up_blocks." ours ".resnets.2")
#define ENLARGED(ours, theirs)                                                                               \
    {                                                                                                        \
        .from = "decoder.upsamples." theirs, .to = "decoder.up_blocks." ours ".upsamplers.0"                 \
    }
static const oq_name_rule names[] = {
    {.from = "conv1", .to = "quant_conv"},
    {.from = "conv2", .to = "post_quant_conv"},
    SIDE("encoder"),
    SIDE("decoder"),
    /* Wan 2.2: lists in a list; what changes the resolution is the last of its stage */
    RESNET("encoder.downsamples.*.downsamples.*", "encoder.down_blocks.*.resnets.*"),
    RESNET("decoder.upsamples.*.upsamples.*", "decoder.up_blocks.*.resnets.*"),
    {.from = "encoder.downsamples.*.downsamples.2", .to = "encoder.down_blocks.*.downsampler"},
    {.from = "decoder.upsamples.*.upsamples.3", .to = "decoder.up_blocks.*.upsampler"},
    /* Wan 2.1 and Qwen-Image */
    RESNET("encoder.downsamples.*", "encoder.down_blocks.*"),
    {.from = "encoder.downsamples.*.resample", .to = "encoder.down_blocks.*.resample"},
    {.from = "encoder.downsamples.*.time_conv", .to = "encoder.down_blocks.*.time_conv"},
    UP("0", "0", "1", "2"),
    ENLARGED("0", "3"),
    UP("1", "4", "5", "6"),
    ENLARGED("1", "7"),
    UP("2", "8", "9", "10"),
    ENLARGED("2", "11"),
    UP("3", "12", "13", "14"),
    {0},
};

static const char *const signatures[] = {
    "decoder.mid_block.attentions.0.to_qkv,decoder.up_blocks.0.resnets.0.norm1.gamma,post_quant_conv",
    "decoder.middle.0.residual.0.gamma,decoder.upsamples.0,decoder.head.0.gamma,conv2",
    NULL,
};

const oq_module_type oq_module_vae_wan = {
    .name = "vae_wan",
    .what = "autoencoder (Wan or Qwen-Image)",
    .signatures = signatures,
    .class_names = class_names,
    .self_bytes = sizeof(oq_vae_wan),
    .names = names,
    .describe = describe,
    .declare = declare,
};
