/* dialect_compressed_tensors.c -- llm-compressor's layouts float-quantized, int-quantized, mxfp8-quantized and mxfp4-pack-quantized: `weight` beside
 * `weight_scale`. Each of config_groups says which layers it means (a class, names, re: patterns) and what they are. */
#include "quant/block_planes.h"
#include "quant/scaled_planes.h"

#include "base/regex.h"

#include <string.h>

extern const oq_method oq_method_compressed_tensors;

static const oq_scaled_spelling fp8 = {
    .code = &oq_dtype_f8_e4m3,
    .tensor = &oq_format_fp8_e4m3_tensor,
    .channel = &oq_format_fp8_e4m3_channel,
    .block = &oq_format_fp8_e4m3_block128,
    .scale_names = "weight_scale",
};
static const oq_scaled_spelling int8 = {
    .code = &oq_dtype_i8,
    .tensor = &oq_format_int8_tensor,
    .channel = &oq_format_int8_channel,
    .scale_names = "weight_scale",
};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_compressed_tensors;
}

/* ---- the group of a layer ------------------------------------------------------------------------------ */

/* How closely a target means the layer: 3 its name, 2 a pattern, 1 its class, 0 not at all. */
static oq_status rank_target(oq_env *env, const char *target, const char *name, int *rank)
{
    oq_regex *regex = NULL;
    *rank = 0;
    if (!target) return OQ_OK;
    if (strncmp(target, "re:", 3) == 0) {
        OQ_TRY(oq_regex_new(env, target + 3, &regex));
        *rank = oq_regex_matches_start(regex, name) ? 2 : 0;
        oq_regex_free(env, regex);
    } else if (strcmp(target, name) == 0) {
        *rank = 3;
    } else if (strcmp(target, "Linear") == 0) {
        *rank = 1;
    }
    return OQ_OK;
}

static oq_status find_group(oq_env *env, const oq_declared *declared, const char *name, const char **key,
                            const oq_json **out)
{
    const oq_json *groups = oq_json_get(declared->options, "config_groups"), *group = NULL;
    const char *group_key = NULL;
    void *at = NULL;
    int best = 0;
    *out = NULL;
    while (oq_json_next(groups, &at, &group_key, &group)) {
        const oq_json *targets = oq_json_get(group, "targets");
        for (size_t i = 0; i < oq_json_size(targets); i++) {
            int rank = 0;
            OQ_TRY(rank_target(env, oq_json_string(oq_json_at(targets, i)), name, &rank));
            if (rank > best) best = rank, *key = group_key, *out = group;
        }
    }
    return OQ_OK;
}

/* ---- what a group says --------------------------------------------------------------------------------- */

typedef struct group_words {
    oq_env *env;
    const char *key, *name; /* of the group, of the layer */
    const oq_json *json;
} group_words;

static const char *word(const oq_json *of, const char *key)
{
    const char *text = oq_json_string(oq_json_get(of, key));
    return text ? text : "";
}

static oq_status fail_part(const group_words *g, const char *part, const oq_json *of, const char *known)
{
    return oq_fail(
        g->env, OQ_E_UNSUPPORTED,
        "layer '%s': group '%s' has %s of %lld bits, type '%s', strategy '%s', which is not in this build "
        "yet; %s",
        g->name, g->key, part, (long long)oq_json_int(oq_json_get(of, "num_bits"), 0), word(of, "type"),
        word(of, "strategy"), known);
}

static bool is_8bit(const oq_json *of)
{
    return oq_json_int(oq_json_get(of, "num_bits"), 0) == 8 &&
           oq_json_bool(oq_json_get(of, "symmetric"), true);
}

static oq_status read_weights(const group_words *g, const oq_scaled_spelling **spelling,
                              oq_scaled_rules *rules)
{
    static const char known[] =
        "symmetric 8 bits of type float or int are, per tensor, channel or 128 x 128 block";
    const oq_json *w = oq_json_get(g->json, "weights");
    const oq_json *block = oq_json_get(w, "block_structure");
    const char *strategy = word(w, "strategy");
    *spelling = strcmp(word(w, "type"), "float") == 0 ? &fp8
                : strcmp(word(w, "type"), "int") == 0 ? &int8
                                                      : NULL;
    if (!*spelling || !is_8bit(w)) return fail_part(g, "weights", w, known);
    if (strcmp(strategy, "tensor") == 0)
        rules->format = (*spelling)->tensor;
    else if (strcmp(strategy, "channel") == 0)
        rules->format = (*spelling)->channel;
    else if (strcmp(strategy, "block") == 0 && oq_json_int(oq_json_at(block, 0), 0) == 128 &&
             oq_json_int(oq_json_at(block, 1), 0) == 128)
        rules->format = (*spelling)->block;
    return rules->format ? OQ_OK : fail_part(g, "weights", w, known);
}

/* Dynamic scales go per token, beside block weights per 128 columns of a token; static ones per tensor. */
static oq_status read_inputs(const group_words *g, const oq_scaled_spelling *spelling, oq_scaled_rules *rules)
{
    const oq_json *weights = oq_json_get(g->json, "weights"), *in = oq_json_get(g->json, "input_activations");
    const bool block = rules->format == spelling->block;
    const char *strategy = word(in, "strategy");
    rules->act = OQ_SCALED_ACT_NONE;
    if (oq_json_type(in) == OQ_JSON_NULL) return OQ_OK;
    rules->act =
        oq_json_bool(oq_json_get(in, "dynamic"), false) ? OQ_SCALED_ACT_DYNAMIC : OQ_SCALED_ACT_STATIC;
    const bool fits = rules->act == OQ_SCALED_ACT_STATIC ? !block && strcmp(strategy, "tensor") == 0
                      : block                            ? strcmp(strategy, "group") == 0 &&
                                    oq_json_int(oq_json_get(in, "group_size"), 0) == OQ_ACT_GROUP
                              : strcmp(strategy, "token") == 0;
    if (fits && is_8bit(in) && strcmp(word(in, "type"), word(weights, "type")) == 0) return OQ_OK;
    return fail_part(
        g, "input_activations", in,
        "symmetric 8 bits of the weights' own type are: dynamic per token (per 128 columns beside "
        "blocks), or static per tensor");
}

/* Codes in a layout whose decoding is missing: the layer's format says which. */
static oq_status refuse_packed(const group_words *g, const oq_declared *declared, const oq_ckpt *ckpt)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, g->name, "weight_packed");
    const char *format = word(g->json, "format");
    if (!*format) format = word(declared->options, "format");
    if (!t) return OQ_OK;
    return oq_fail(g->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' is in the layout '%s', which is not in this build yet", t->name,
                   *format ? format : "(unnamed)");
}

/* MXFP8 and MXFP4: floats in groups of 32 columns under powers of two. */
static oq_status read_mx(const group_words *g, const oq_declared *declared, oq_block_layout *out, bool *is_mx)
{
    const oq_json *weights = oq_json_get(g->json, "weights"), *in = oq_json_get(g->json, "input_activations");
    const char *format = word(g->json, "format");
    if (!*format) format = word(declared->options, "format");
    *out = (oq_block_layout){.weight_only = oq_json_type(in) == OQ_JSON_NULL};
    *is_mx = true;
    if (strcmp(format, "mxfp8-quantized") == 0)
        out->kind = OQ_BLOCK_MXFP8;
    else if (strcmp(format, "mxfp4-pack-quantized") == 0)
        out->kind = OQ_BLOCK_MXFP4;
    else
        *is_mx = false;
    const bool same =
        oq_json_int(oq_json_get(in, "num_bits"), 0) == oq_json_int(oq_json_get(weights, "num_bits"), 0) &&
        oq_json_int(oq_json_get(in, "group_size"), 0) == OQ_ACT_MX_GROUP &&
        oq_json_bool(oq_json_get(in, "dynamic"), false);
    if (!*is_mx || out->weight_only || same) return OQ_OK;
    return fail_part(g, "input_activations", in, "the weights' own type in dynamic groups of 32 is");
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static bool is_plain(const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    return t && t->dtype && t->dtype->floating && t->dtype->bytes > 1 &&
           !oq_scaled_find(ckpt, name, "weight_scale");
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    group_words g = {.env = env, .key = "", .name = name};
    const oq_scaled_spelling *spelling = &fp8;
    oq_scaled_rules rules = {0};
    *found = false;
    if (is_plain(ckpt, name)) return OQ_OK;
    OQ_TRY(find_group(env, declared, name, &g.key, &g.json));
    if (!g.json) {
        if (!oq_scaled_find(ckpt, name, "weight") && !oq_scaled_find(ckpt, name, "weight_packed"))
            return OQ_OK;
        return oq_fail(env, OQ_E_FORMAT, "layer '%s' is quantized, but no group of config_groups means it",
                       name);
    }
    oq_block_layout block;
    bool is_mx = false;
    OQ_TRY(read_mx(&g, declared, &block, &is_mx));
    if (is_mx) {
        OQ_TRY(oq_block_locate(env, &block, NULL, ckpt, name, n, k, out));
        *found = true;
        return OQ_OK;
    }
    OQ_TRY(refuse_packed(&g, declared, ckpt));
    OQ_TRY(read_weights(&g, &spelling, &rules));
    OQ_TRY(read_inputs(&g, spelling, &rules));
    return oq_scaled_locate(env, spelling, &rules, declared, ckpt, name, n, k, out, found);
}

const oq_dialect oq_dialect_compressed_tensors = {
    .name = "compressed-tensors",
    .help = "llm-compressor's float-quantized, int-quantized, MXFP8 and MXFP4 layers, in groups",
    .method = &oq_method_compressed_tensors,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = oq_block_layer_of,
};
