/* dialect_quark.c -- AMD Quark's layouts: `weight` with `weight_scale` (FP8 and INT8 per tensor, channel or block, MXFP4 two
 * to a byte, four-bit integers in AWQ's words) and an `input_scale` where activations are static. What a layer is says the
 * first pattern of layer_quant_config that means it, else its class, else global_quant_config. */
#include "quant/block_planes.h"
#include "quant/packed_planes.h"
#include "quant/quark_words.h"
#include "quant/scaled_planes.h"

#include "base/names.h"

#include <stdio.h>
#include <string.h>

extern const oq_method oq_method_quark;

#define ZEROS "weight_zero_point,input_zero_point"

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
    .spare_names = ZEROS,
};
static const oq_block_names mxfp4_names = {"weight", "weight_scale", "", "input_scale", false};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_quark;
}

/* ---- what the metadata says of one layer --------------------------------------------------------------- */

typedef struct layer_words {
    oq_env *env;
    const oq_ckpt *ckpt;
    const char *name;
    const oq_json *options, *weight, *input, *output, *bias; /* NULL: nothing, or null */
} layer_words;

static const char *word(const oq_json *of, const char *key)
{
    const char *text = oq_json_string(oq_json_get(of, key));
    return text ? text : "";
}

static bool is(const oq_json *of, const char *key, const char *wanted)
{
    return strcmp(word(of, key), wanted) == 0;
}

static int64_t number(const oq_json *of, const char *key)
{
    return oq_json_int(oq_json_get(of, key), 0);
}

static bool is_dynamic(const layer_words *w)
{
    return oq_json_bool(oq_json_get(w->input, "is_dynamic"), false);
}

static oq_status fail_words(const layer_words *w, const char *part, const oq_json *of, const char *known)
{
    if (oq_json_type(of) != OQ_JSON_OBJECT)
        return oq_fail(w->env, OQ_E_UNSUPPORTED, "layer '%s': Quark's metadata describes its %s by %s; %s",
                       w->name, part, oq_json_type_name(of), known);
    return oq_fail(
        w->env, OQ_E_UNSUPPORTED,
        "layer '%s': Quark's metadata gives its %s dtype '%s', qscheme '%s', group_size %lld%s, which is "
        "not in this build yet; %s",
        w->name, part, word(of, "dtype"), word(of, "qscheme"), (long long)number(of, "group_size"),
        oq_json_bool(oq_json_get(of, "is_dynamic"), false) ? " (dynamic)" : "", known);
}

/* Groups of 32 under powers of two. */
static bool is_mx(const oq_json *of)
{
    return is(of, "qscheme", "per_group") && number(of, "group_size") == OQ_ACT_MX_GROUP &&
           is(of, "scale_format", "e8m0");
}

static bool is_blocks(const oq_json *of)
{
    const oq_json *block = oq_json_get(of, "block_size");
    return is(of, "qscheme", "per_block") && oq_json_int(oq_json_at(block, 0), 0) == 128 &&
           oq_json_int(oq_json_at(block, 1), 0) == 128;
}

/* ---- 8 bits -------------------------------------------------------------------------------------------- */

/* Zero points are written even where codes are symmetric: then they are all zero. */
static oq_status check_zero(const layer_words *w, const char *suffix)
{
    const oq_ckpt_tensor *t = oq_scaled_find(w->ckpt, w->name, suffix);
    for (size_t i = 0; t && t->data && i < t->bytes; i++)
        if (t->data[i])
            return oq_fail(
                w->env, OQ_E_UNSUPPORTED,
                "tensor '%s' holds zero points that are not zero; integers of 8 bits are read without",
                t->name);
    return OQ_OK;
}

static oq_status read_inputs8(const layer_words *w, const oq_scaled_spelling *spelling,
                              oq_scaled_rules *rules)
{
    static const char known[] = "the weights' own type is, one static scale or one of each token";
    const bool block = rules->format == spelling->block, dynamic = is_dynamic(w);
    rules->act = dynamic ? OQ_SCALED_ACT_DYNAMIC : OQ_SCALED_ACT_STATIC;
    if (!w->input) {
        rules->act = OQ_SCALED_ACT_NONE;
        return OQ_OK;
    }
    const bool fits = block ? dynamic && is(w->input, "qscheme", "per_group") &&
                                  number(w->input, "group_size") == OQ_ACT_GROUP
                      : dynamic
                          ? is(w->input, "qscheme", "per_channel") || is(w->input, "qscheme", "per_tensor")
                          : is(w->input, "qscheme", "per_tensor");
    if (fits && strcmp(word(w->input, "dtype"), word(w->weight, "dtype")) == 0) return OQ_OK;
    return fail_words(w, "activations", w->input, known);
}

static oq_status locate8(const layer_words *w, const oq_scaled_spelling *spelling,
                         const oq_declared *declared, int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    oq_scaled_rules rules = {.format = is(w->weight, "qscheme", "per_tensor")    ? spelling->tensor
                                       : is(w->weight, "qscheme", "per_channel") ? spelling->channel
                                       : is_blocks(w->weight)                    ? spelling->block
                                                                                 : NULL};
    if (!rules.format)
        return fail_words(w, "weight", w->weight, "8 bits per tensor, channel or 128 x 128 block are");
    OQ_TRY(read_inputs8(w, spelling, &rules));
    if (spelling == &int8) {
        OQ_TRY(check_zero(w, "weight_zero_point"));
        OQ_TRY(check_zero(w, "input_zero_point"));
    }
    OQ_TRY(oq_scaled_locate(w->env, spelling, &rules, declared, w->ckpt, w->name, n, k, out, found));
    if (*found && spelling == &int8) {
        out->beside[0] = oq_scaled_find(w->ckpt, w->name, "weight_zero_point");
        out->beside[out->beside[0] ? 1 : 0] = oq_scaled_find(w->ckpt, w->name, "input_zero_point");
    }
    return OQ_OK;
}

/* ---- 4 bits -------------------------------------------------------------------------------------------- */

static bool is_packed(const oq_json *weight)
{
    return (is(weight, "dtype", "int4") || is(weight, "dtype", "uint4")) &&
           is(weight, "qscheme", "per_group");
}

static oq_packed_layout packed_layout(const layer_words *w)
{
    return (oq_packed_layout){.packing = OQ_PACK_AWQ_PLAIN,
                              .bits = 4,
                              .group = number(w->weight, "group_size"),
                              .symmetric = oq_json_bool(oq_json_get(w->weight, "symmetric"), true),
                              .is_signed = is(w->weight, "dtype", "int4")};
}

static oq_status locate_packed(const layer_words *w, int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const oq_packed_layout layout = packed_layout(w);
    const char *pack = oq_json_string(oq_json_get(oq_json_get(w->options, "export"), "pack_method"));
    if (pack && strcmp(pack, "reorder") != 0)
        return oq_fail(w->env, OQ_E_UNSUPPORTED,
                       "layer '%s': Quark's pack_method '%s' is not in this build yet; 'reorder' is", w->name,
                       pack);
    if (w->input) return fail_words(w, "activations", w->input, "beside integers of 4 bits none are");
    return oq_packed_locate(w->env, &layout, w->ckpt, w->name, n, k, out, found);
}

static oq_status locate_mxfp4(const layer_words *w, int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    static const char known[] = "MXFP4 in dynamic groups of 32 is, or fp8_e4m3 under one static scale";
    oq_block_layout block = {.kind = OQ_BLOCK_MXFP4, .names = &mxfp4_names, .weight_only = !w->input};
    if (is(w->input, "dtype", "fp8_e4m3") && is(w->input, "qscheme", "per_tensor") && !is_dynamic(w)) {
        block.act = &oq_dtype_f8_e4m3;
        block.act_scale = OQ_ACT_STATIC_TENSOR;
    } else if (w->input) {
        const char *mode = word(w->input, "scale_calculation_mode");
        block.act_scale = strcmp(mode, "even") == 0    ? OQ_ACT_DYNAMIC_MX_EVEN
                          : strcmp(mode, "floor") == 0 ? OQ_ACT_DYNAMIC_MX
                          : strcmp(mode, "ceil") == 0  ? OQ_ACT_DYNAMIC_MX_CEIL
                                                       : OQ_ACT_NONE;
        if (!is(w->input, "dtype", "fp4") || !is_mx(w->input) || !is_dynamic(w) || !block.act_scale)
            return fail_words(w, "activations", w->input, known);
    }
    OQ_TRY(oq_block_locate(w->env, &block, NULL, w->ckpt, w->name, n, k, out));
    *found = true;
    return OQ_OK;
}

/* Outputs of these layers are quantized for a language model's cache, which diffusion does not have. */
static bool feeds_cache(const layer_words *w)
{
    const oq_json *group = oq_json_get(oq_json_get(w->options, "export"), "kv_cache_group");
    for (size_t i = 0; i < oq_json_size(group); i++) {
        const char *pattern = oq_json_string(oq_json_at(group, i));
        if (pattern && oq_glob_match(pattern, w->name)) return true;
    }
    return false;
}

static oq_status check_others(const layer_words *w)
{
    static const char known[] = "weights and activations that go in are";
    if (w->bias) return fail_words(w, "bias", w->bias, known);
    if (w->output && !feeds_cache(w)) return fail_words(w, "output", w->output, known);
    return OQ_OK;
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static const oq_json *unless_null(const oq_json *of, const char *key)
{
    const oq_json *value = oq_json_get(of, key);
    return oq_json_type(value) == OQ_JSON_NULL ? NULL : value;
}

static layer_words words_of(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name)
{
    const oq_json *words = oq_quark_words_find(declared->options, name);
    return (layer_words){.env = env,
                         .ckpt = ckpt,
                         .name = name,
                         .options = declared->options,
                         .weight = unless_null(words, "weight"),
                         .input = unless_null(words, "input_tensors"),
                         .output = unless_null(words, "output_tensors"),
                         .bias = unless_null(words, "bias")};
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const layer_words w = words_of(env, declared, ckpt, name);
    *found = false;
    if (oq_scaled_is_plain(ckpt, name)) return OQ_OK;
    if (!w.weight)
        return oq_fail(env, OQ_E_FORMAT,
                       "layer '%s' is quantized in the file, but neither layer_quant_config nor "
                       "global_quant_config says how",
                       name);
    OQ_TRY(check_others(&w));
    if (is(w.weight, "dtype", "fp8_e4m3") && !is(w.weight, "qscheme", "per_group"))
        return locate8(&w, &fp8, declared, n, k, out, found);
    if (is(w.weight, "dtype", "int8")) return locate8(&w, &int8, declared, n, k, out, found);
    if (is_packed(w.weight)) return locate_packed(&w, n, k, out, found);
    if (is(w.weight, "dtype", "fp4") && is_mx(w.weight)) return locate_mxfp4(&w, n, k, out, found);
    return fail_words(
        &w, "weight", w.weight,
        "fp8_e4m3 and int8 per tensor or channel, int4 and uint4 per group, and fp4 per group of 32 "
        "with e8m0 scales are");
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    if (!oq_block_layer_of(declared, ckpt, t, name_length, n, k)) return false;
    snprintf(name, sizeof name, "%.*s", (int)*name_length, t->name);
    const layer_words w = words_of(ckpt->arena.env, declared, ckpt, name);
    if (t->dtype == &oq_dtype_i32 && is_packed(w.weight)) *n = 8 * t->dim[1], *k = t->dim[0];
    return true;
}

const oq_dialect oq_dialect_quark = {
    .name = "quark",
    .help = "Quark's FP8, INT8, integers of four bits and MXFP4, also mixed per layer",
    .method = &oq_method_quark,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = layer_of,
};
