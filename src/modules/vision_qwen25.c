/* vision_qwen25.c -- vision tower of Qwen2.5-VL: configuration, names, shapes. The forward pass is in
 * vision_qwen25_forward.c. */
#include "modules/vision_qwen25.h"

#include "modules/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- configuration ------------------------------------------------------------------------------------- */

#define FIELD(member) offsetof(oq_vision_qwen25, member)
#define IGNORED(key)                                                                                         \
    {                                                                                                        \
        key, OQ_FIELD_IGNORED, 0, 0, 0, 0, NULL                                                              \
    }

/* Absent keys are those of the published 7B: files written by transformers 4 leave them out. */
static const oq_model_field fields[] = {
    {"depth", OQ_FIELD_INT, FIELD(depth), 1, 1024, 32, NULL},
    {"hidden_size", OQ_FIELD_INT, FIELD(hidden_size), 4, 1 << 17, NAN, NULL},
    {"intermediate_size", OQ_FIELD_INT, FIELD(intermediate_size), 1, 1 << 20, 3420, NULL},
    {"num_heads", OQ_FIELD_INT, FIELD(n_heads), 1, 4096, 16, NULL},
    {"out_hidden_size", OQ_FIELD_INT, FIELD(out_hidden_size), 1, 1 << 17, 3584, NULL},
    {"in_channels", OQ_FIELD_FIXED, 0, 0, 0, 0, "3"},
    {"in_chans", OQ_FIELD_FIXED, 0, 0, 0, 0, "3"},
    {"patch_size", OQ_FIELD_INT, FIELD(patch_size), 1, 256, 14, NULL},
    {"temporal_patch_size", OQ_FIELD_INT, FIELD(temporal_patch_size), 1, 16, 2, NULL},
    {"spatial_merge_size", OQ_FIELD_INT, FIELD(merge_size), 1, 16, 2, NULL},
    {"window_size", OQ_FIELD_INT, FIELD(window_size), 1, 1 << 20, 112, NULL},
    {"fullatt_block_indexes", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"rope_parameters", OQ_FIELD_CUSTOM, 0, 0, 0, 0, NULL},
    {"hidden_act", OQ_FIELD_FIXED, 0, 0, 0, 0, "\"silu\""},
    IGNORED("spatial_patch_size"), /* patch_size says it */
    IGNORED("tokens_per_second"),  /* of videos */
    IGNORED("model_type"),
    IGNORED("initializer_range"),
    IGNORED("dtype"),
    IGNORED("torch_dtype"),
};

static oq_status read_rope(oq_env *env, const char *what, const oq_json *config, oq_vision_qwen25 *s)
{
    const oq_json *rope = oq_json_get(config, "rope_parameters");
    const char *type = oq_json_string(oq_json_get(rope, "rope_type"));
    if (type && strcmp(type, "axial") != 0)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "config.json of %s: 'rope_parameters.rope_type' is '%s', only 'axial' is supported",
                       what, type);
    s->rope_theta = oq_json_real(oq_json_get(rope, "rope_theta"), 10000);
    if (s->rope_theta >= 1 && s->rope_theta <= 1e12) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "config.json of %s: 'rope_theta' is out of range (%g)", what,
                   s->rope_theta);
}

static oq_status read_full(oq_env *env, const char *what, const oq_json *config, oq_vision_qwen25 *s)
{
    static const int64_t published[] = {7, 15, 23, 31};
    if (oq_json_get(config, "fullatt_block_indexes"))
        return oq_model_config_ints(env, what, config, "fullatt_block_indexes", 0, s->depth - 1, s->full,
                                    OQ_VISION_QWEN25_MAX_FULL, &s->n_full);
    for (size_t i = 0; i < OQ_COUNT(published); i++)
        if (published[i] < s->depth) s->full[s->n_full++] = published[i];
    return OQ_OK;
}

oq_status oq_vision_qwen25_describe(oq_env *env, const char *what, const oq_json *config, oq_vision_qwen25 *s)
{
    char name[64];
    snprintf(name, sizeof name, "%s's vision tower", what);
    OQ_TRY(oq_model_config_read(env, name, config, fields, OQ_COUNT(fields), s));
    OQ_TRY(read_full(env, name, config, s));
    OQ_TRY(read_rope(env, name, config, s));
    s->in_channels = 3;
    s->head_dim = s->hidden_size / s->n_heads;
    if (s->hidden_size % s->n_heads || s->head_dim % 4)
        return oq_fail(env, OQ_E_FORMAT,
                       "config.json of %s: 'hidden_size' %lld does not divide into %lld heads of a multiple "
                       "of 4",
                       name, (long long)s->hidden_size, (long long)s->n_heads);
    if (s->window_size / s->patch_size / s->merge_size >= 1) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "config.json of %s: a window of %lld pixels holds no state of %lld",
                   name, (long long)s->window_size, (long long)(s->patch_size * s->merge_size));
}

int64_t oq_vision_qwen25_patch(const oq_vision_qwen25 *s)
{
    return s->in_channels * s->temporal_patch_size * s->patch_size * s->patch_size;
}

/* ---- declaration --------------------------------------------------------------------------------------- */

static oq_status declare_block(oq_builder *b, const oq_vision_qwen25 *s, oq_vision_qwen25_block *l)
{
    const int64_t D = s->hidden_size, F = s->intermediate_size;
    const oq_part gate_up[] = {{"mlp.gate_proj", F}, {"mlp.up_proj", F}};
    const oq_attention_spec spec = {.head_dim = s->head_dim, .n_heads = s->n_heads, .n_kv_heads = s->n_heads};
    OQ_TRY(oq_declare_vector(b, &l->norm1, "norm1.weight", D));
    OQ_TRY(oq_declare_linear(b, &l->qkv, "attn.qkv", 3 * D, D, OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS), NULL));
    OQ_TRY(oq_declare_attention(b, &l->attention, "attn", spec));
    OQ_TRY(oq_declare_linear(b, &l->proj, "attn.proj", D, D, OQ_BIAS | OQ_WANTS(OQ_FUSE_ADD), NULL));
    OQ_TRY(oq_declare_vector(b, &l->norm2, "norm2.weight", D));
    OQ_TRY(oq_declare_fused(b, &l->gate_up, "mlp.gate_up_proj", D,
                            OQ_BIAS | OQ_WANTS(OQ_FUSE_ROWS | OQ_FUSE_GLU), gate_up, 2, NULL));
    return oq_declare_linear(b, &l->down, "mlp.down_proj", D, F, OQ_BIAS | OQ_WANTS(OQ_FUSE_ADD), NULL);
}

static bool is_full(const oq_vision_qwen25 *s, int64_t block)
{
    for (int64_t i = 0; i < s->n_full; i++)
        if (s->full[i] == block) return true;
    return false;
}

oq_status oq_vision_qwen25_declare(oq_builder *b, oq_vision_qwen25 *s)
{
    const int64_t D = s->hidden_size, merged = s->merge_size * s->merge_size * D;
    OQ_TRY(oq_declare_linear(b, &s->patch_embed, "patch_embed.proj", D, oq_vision_qwen25_patch(s), 0,
                             "embedder"));
    s->patch_embed.flat = true;
    OQ_TRY(oq_arena_new(b->arena, (size_t)s->depth, sizeof *s->blocks, "vision blocks", &s->blocks));
    for (int64_t i = 0; i < s->depth; i++) {
        oq_scope saved;
        s->blocks[i].full = is_full(s, i);
        OQ_TRY(oq_scope_enter(b, &saved, "blocks.%lld", (long long)i));
        OQ_TRY(declare_block(b, s, &s->blocks[i]));
        oq_scope_leave(b, saved);
    }
    OQ_TRY(oq_declare_vector(b, &s->merger_norm, "merger.ln_q.weight", D));
    OQ_TRY(oq_declare_linear(b, &s->merger_in, "merger.mlp.0", merged, merged,
                             OQ_BIAS | OQ_WANTS(OQ_FUSE_UNARY), NULL));
    return oq_declare_linear(b, &s->merger_out, "merger.mlp.2", s->out_hidden_size, merged, OQ_BIAS, NULL);
}
