/* dialect_compressed_tensors.c -- llm-compressor's layouts: float-quantized, int-quantized and mxfp8-quantized have
 * `weight` beside `weight_scale`, pack-quantized, nvfp4-pack-quantized and mxfp4-pack-quantized `weight_packed`. Each of
 * config_groups says which layers it means (a class, names, re: patterns) and what they are. Sparse weights that are not quantized
 * have `compressed` and `bitmask`. */
#include "quant/block_planes.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"
#include "quant/sparse_planes.h"
#include "quant/tensor_groups.h"

#include <stdio.h>
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

/* The layout of a group's layers; the file's own may be "mixed-precision". */
static const char *format_of(const group_words *g, const oq_declared *declared)
{
    const char *own = word(g->json, "format");
    return *own ? own : word(declared->options, "format");
}

/* Codes in a layout whose decoding is missing: the layer's format says which. */
static oq_status refuse_packed(const group_words *g, const oq_declared *declared, const oq_ckpt *ckpt)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, g->name, "weight_packed");
    const char *format = format_of(g, declared);
    if (!t) return OQ_OK;
    return oq_fail(g->env, OQ_E_UNSUPPORTED,
                   "tensor '%s' is in the layout '%s', which is not in this build yet", t->name,
                   *format ? format : "(unnamed)");
}

/* Activations beside blocks: the weights' own type; MX and NVFP4 scale them while running, NVFP4 under a static one. */
static oq_status check_block_inputs(const group_words *g, const oq_block_layout *block)
{
    const oq_json *weights = oq_json_get(g->json, "weights"), *in = oq_json_get(g->json, "input_activations");
    const oq_json *dynamic = oq_json_get(in, "dynamic");
    const char *local = oq_json_string(dynamic);
    const bool nvfp4 = block->kind == OQ_BLOCK_NVFP4;
    const bool scaled = nvfp4 ? local && strcmp(local, "local") == 0 : oq_json_bool(dynamic, false);
    const bool same =
        oq_json_int(oq_json_get(in, "num_bits"), 0) == oq_json_int(oq_json_get(weights, "num_bits"), 0) &&
        oq_json_int(oq_json_get(in, "group_size"), 0) == (nvfp4 ? OQ_ACT_NVFP4_GROUP : OQ_ACT_MX_GROUP);
    if (block->weight_only || (same && scaled)) return OQ_OK;
    return fail_part(g, "input_activations", in,
                     nvfp4 ? "4 bits in local groups of 16 are"
                           : "the weights' own type in dynamic groups of 32 is");
}

/* Floats in groups: MXFP8, MXFP4, NVFP4. */
static oq_status read_block(const group_words *g, const oq_declared *declared, oq_block_layout *out,
                            bool *is_block)
{
    static const struct {
        const char *format;
        oq_block_layout layout;
    } rows[] = {
        {"mxfp8-quantized", {.kind = OQ_BLOCK_MXFP8, .act_scale = OQ_ACT_DYNAMIC_MX}},
        {"mxfp4-pack-quantized", {.kind = OQ_BLOCK_MXFP4, .act_scale = OQ_ACT_DYNAMIC_MX_EVEN}},
        {"nvfp4-pack-quantized", {.kind = OQ_BLOCK_NVFP4, .names = &oq_block_names_global}},
    };
    const char *format = format_of(g, declared);
    *is_block = false;
    for (size_t i = 0; i < OQ_COUNT(rows) && !*is_block; i++)
        if (strcmp(rows[i].format, format) == 0) *is_block = true, *out = rows[i].layout;
    if (!*is_block) return OQ_OK;
    out->weight_only = oq_json_type(oq_json_get(g->json, "input_activations")) == OQ_JSON_NULL;
    return check_block_inputs(g, out);
}

/* Integers in words: groups or whole rows. */
static oq_status read_pack(const group_words *g, const oq_declared *declared, oq_packed_layout *out,
                           bool *is_pack)
{
    const oq_json *w = oq_json_get(g->json, "weights"), *in = oq_json_get(g->json, "input_activations");
    const char *strategy = word(w, "strategy");
    *is_pack = strcmp(format_of(g, declared), "pack-quantized") == 0;
    *out = (oq_packed_layout){
        .packing = OQ_PACK_ROWS,
        .bits = oq_json_int(oq_json_get(w, "num_bits"), 0),
        .group = strcmp(strategy, "channel") == 0 ? -1 : oq_json_int(oq_json_get(w, "group_size"), 0),
        .symmetric = oq_json_bool(oq_json_get(w, "symmetric"), true)};
    if (!*is_pack) return OQ_OK;
    if (strcmp(word(w, "type"), "int") != 0 ||
        (strcmp(strategy, "channel") != 0 && strcmp(strategy, "group") != 0))
        return fail_part(g, "weights", w, "integers in groups or per channel are packed this way");
    if (oq_json_type(in) == OQ_JSON_NULL) return OQ_OK;
    return fail_part(g, "input_activations", in, "packed integers go with activations as they are");
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
    OQ_TRY(oq_sparse_locate(env, ckpt, name, n, k, out, found));
    if (*found) return OQ_OK;
    OQ_TRY(oq_tensor_group_find(env, declared->options, name, &g.key, &g.json));
    if (!g.json) {
        if (!oq_scaled_find(ckpt, name, "weight") && !oq_scaled_find(ckpt, name, "weight_packed"))
            return OQ_OK;
        return oq_fail(env, OQ_E_FORMAT, "layer '%s' is quantized, but no group of config_groups means it",
                       name);
    }
    oq_block_layout block;
    oq_packed_layout pack;
    bool is_block = false, is_pack = false;
    OQ_TRY(read_block(&g, declared, &block, &is_block));
    if (is_block) {
        OQ_TRY(oq_block_locate(env, &block, NULL, ckpt, name, n, k, out));
        *found = true;
        return OQ_OK;
    }
    OQ_TRY(read_pack(&g, declared, &pack, &is_pack));
    if (is_pack) {
        OQ_TRY(oq_packed_locate(env, &pack, ckpt, name, n, k, out, found));
        if (*found) return OQ_OK;
    }
    OQ_TRY(refuse_packed(&g, declared, ckpt));
    OQ_TRY(read_weights(&g, &spelling, &rules));
    OQ_TRY(read_inputs(&g, spelling, &rules));
    return oq_scaled_locate(env, spelling, &rules, declared, ckpt, name, n, k, out, found);
}

/* Words hold integers; the layer's group says of how many bits. */
static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    group_words g = {.env = ckpt->arena.env, .key = "", .name = name};
    oq_packed_layout pack = {.packing = OQ_PACK_ROWS};
    if (oq_sparse_layer_of(ckpt, t, name_length, n, k)) return true;
    if (t->dtype != &oq_dtype_i32) return oq_block_layer_of(declared, ckpt, t, name_length, n, k);
    if (!oq_packed_layer_of(&pack, ckpt, t, name_length, n, k) || *name_length >= sizeof name) return false;
    snprintf(name, sizeof name, "%.*s", (int)*name_length, t->name);
    if (oq_tensor_group_find(g.env, declared->options, name, &g.key, &g.json) != OQ_OK) return false;
    pack.bits = oq_json_int(oq_json_get(oq_json_get(g.json, "weights"), "num_bits"), 0);
    return oq_packed_layer_of(&pack, ckpt, t, name_length, n, k);
}

const oq_dialect oq_dialect_compressed_tensors = {
    .name = "compressed-tensors",
    .help =
        "llm-compressor's FP8, INT8, packed integers, MXFP8, MXFP4 and NVFP4, in groups, and sparse weights",
    .method = &oq_method_compressed_tensors,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = layer_of,
    .shape_from = "its dimensions or 'shape' beside it",
};
