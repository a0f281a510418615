/* dialect_autoround.c -- AutoRound's exports: integers of 2 to 8 bits in GPTQ's or AWQ's packing, FP8 (`weight` e4m3 with
 * `weight_scale` of any float type, and an `input_scale` where the packing is fp8_static), MXFP8, MXFP4 and NVFP4.
 * extra_config changes single layers. */
#include "quant/block_planes.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include "base/regex.h"

#include <stdio.h>
#include <string.h>

extern const oq_method oq_method_inc;

static const oq_scaled_spelling spelling = {
    .code = &oq_dtype_f8_e4m3,
    .tensor = &oq_format_fp8_e4m3_tensor,
    .channel = &oq_format_fp8_e4m3_channel,
    .block = &oq_format_fp8_e4m3_block128,
    .scale_names = "weight_scale,weight_scale_inv",
};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_inc;
}

/* ---- what the metadata says of one layer --------------------------------------------------------------- */

typedef struct layer_words {
    oq_env *env;
    const oq_json *options, *own; /* own: its entry in extra_config; NULL: none */
    const char *name;
} layer_words;

/* A key is a layer's name, also without a leading "model."; else an expression that is searched for in the name. */
static oq_status find_own(oq_env *env, const oq_declared *declared, const char *name, const oq_json **out)
{
    const oq_json *all = oq_json_get(declared->options, "extra_config"), *value = NULL;
    const char *key = NULL;
    char full[1024];
    void *at = NULL;
    snprintf(full, sizeof full, "model.%s", name);
    *out = oq_json_get(all, name);
    if (!*out) *out = oq_json_get(all, full);
    while (!*out && oq_json_next(all, &at, &key, &value)) {
        oq_regex *regex = NULL;
        size_t begin = 0, end = 0;
        if (!strpbrk(key, "*+?^$()[]{}|\\")) continue;
        OQ_TRY(oq_regex_new(env, key, &regex));
        if (oq_regex_find(regex, name, strlen(name), 0, &begin, &end) == 1) *out = value;
        oq_regex_free(env, regex);
    }
    return OQ_OK;
}

/* The layer's own value under the producer's key, else the file's under the option's. */
static const oq_json *get(const layer_words *w, const char *key, const char *option)
{
    const oq_json *own = oq_json_get(w->own, key);
    return own ? own : oq_json_get(w->options, option);
}

static int64_t bits_of(const layer_words *w)
{
    return oq_json_int(get(w, "bits", "weight_bits"), 0);
}

static const char *type_of(const layer_words *w)
{
    const char *type = oq_json_string(get(w, "data_type", "data_type"));
    return type ? type : "int";
}

static const char *packing_of(const oq_json *options)
{
    const char *packing = oq_json_string(oq_json_get(options, "packing_format"));
    return packing ? packing : "auto_round:auto_gptq";
}

/* ---- activations --------------------------------------------------------------------------------------- */

static bool acts_are_plain(const layer_words *w)
{
    return oq_json_int(get(w, "act_bits", "act_bits"), 16) >= 16;
}

static oq_status fail_activations(const layer_words *w, const char *known)
{
    const char *type = oq_json_string(get(w, "act_data_type", "act_data_type"));
    return oq_fail(
        w->env, OQ_E_UNSUPPORTED,
        "layer '%s': activations of %lld bits, act_data_type '%s', act_group_size %lld, act_dynamic %s, are "
        "not in this build yet beside weights of data_type '%s' and %lld bits; %s",
        w->name, (long long)oq_json_int(get(w, "act_bits", "act_bits"), 16), type ? type : "(none)",
        (long long)oq_json_int(get(w, "act_group_size", "act_group_size"), 0),
        oq_json_bool(get(w, "act_dynamic", "act_dynamic"), true) ? "true" : "false", type_of(w),
        (long long)bits_of(w), known);
}

/* MX and NVFP4: activations, where they are quantized, are what the weights are, scaled while running. */
static oq_status check_block_activations(const layer_words *w, int64_t group)
{
    const char *type = oq_json_string(get(w, "act_data_type", "act_data_type"));
    const bool nv = strcmp(type_of(w), "nv_fp") == 0;
    if (acts_are_plain(w)) return OQ_OK;
    if (oq_json_int(get(w, "act_bits", "act_bits"), 16) == bits_of(w) &&
        (!type || (nv ? strncmp(type, "nv_fp", 5) == 0 : strcmp(type, "mx_fp") == 0)) &&
        oq_json_int(get(w, "act_group_size", "act_group_size"), group) == group &&
        oq_json_bool(get(w, "act_dynamic", "act_dynamic"), true))
        return OQ_OK;
    return fail_activations(w, "the weights' own type is, in dynamic groups of their size");
}

/* FP8: nothing said leaves it to the file, which has an input_scale or none. */
static oq_status read_float_activations(const layer_words *w, oq_scaled_rules *rules)
{
    const oq_json *bits = get(w, "act_bits", "act_bits"), *dynamic = get(w, "act_dynamic", "act_dynamic");
    const char *type = oq_json_string(get(w, "act_data_type", "act_data_type"));
    if (strcmp(packing_of(w->options), "auto_round:fp8_static") == 0) rules->act = OQ_SCALED_ACT_STATIC;
    if (!bits) return OQ_OK;
    if (acts_are_plain(w)) {
        rules->act = OQ_SCALED_ACT_NONE;
        return OQ_OK;
    }
    if (oq_json_int(bits, 0) != 8 || (type && strncmp(type, "fp", 2) != 0))
        return fail_activations(w, "8 bits of type fp are");
    if (dynamic && rules->act == OQ_SCALED_ACT_FILE)
        rules->act = oq_json_bool(dynamic, true) ? OQ_SCALED_ACT_DYNAMIC : OQ_SCALED_ACT_STATIC;
    return OQ_OK;
}

/* ---- integers ------------------------------------------------------------------------------------------ */

static oq_packed_layout packed_layout(const layer_words *w)
{
    const char *packing = packing_of(w->options);
    const bool gptq = strcmp(packing, "auto_round:auto_gptq") == 0;
    return (oq_packed_layout){
        .packing = strcmp(packing, "auto_round:auto_awq") == 0         ? OQ_PACK_AWQ
                   : strcmp(packing, "auto_round:llm_compressor") == 0 ? OQ_PACK_ROWS
                                                                       : OQ_PACK_GPTQ,
        .bits = bits_of(w),
        .group = oq_json_int(get(w, "group_size", "group_size"), 128),
        .symmetric = oq_json_bool(get(w, "sym", "sym"), true),
        .zeros_minus_one = gptq,
    };
}

/* ---- blocks -------------------------------------------------------------------------------------------- */

/* MX by data_type and bits; *is_block false: FP8. Its activations round their exponents down too. */
static oq_status read_block(const layer_words *w, oq_block_layout *out, bool *is_block)
{
    const char *type = type_of(w);
    const int64_t bits = bits_of(w);
    const bool mx = strcmp(type, "mx_fp") == 0 && (bits == 4 || bits == 8),
               nv = strcmp(type, "nv_fp") == 0 && bits == 4;
    *is_block = mx || nv;
    *out = (oq_block_layout){.kind = nv          ? OQ_BLOCK_NVFP4
                                     : bits == 4 ? OQ_BLOCK_MXFP4
                                                 : OQ_BLOCK_MXFP8,
                             .names = nv ? &oq_block_names_global : NULL,
                             .weight_only = acts_are_plain(w),
                             .act_scale = bits == 4 ? OQ_ACT_DYNAMIC_MX : OQ_ACT_DYNAMIC_MX_FLOOR};
    if (*is_block) return check_block_activations(w, nv ? OQ_ACT_NVFP4_GROUP : OQ_ACT_MX_GROUP);
    if (strcmp(type, "fp") == 0) return OQ_OK;
    return oq_fail(
        w->env, OQ_E_UNSUPPORTED,
        "layer '%s': data_type '%s' of %lld bits is not in this build yet; int, fp, mx_fp and nv_fp are",
        w->name, type, (long long)bits);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static bool is_plain(const oq_ckpt *ckpt, const char *name)
{
    return !oq_scaled_find(ckpt, name, "weight_packed") && !oq_scaled_find(ckpt, name, "weight_scale") &&
           !oq_scaled_find(ckpt, name, "qweight");
}

static oq_status locate_floats(const layer_words *w, const oq_declared *declared, const oq_ckpt *ckpt,
                               int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    oq_scaled_rules rules;
    oq_block_layout block;
    bool is_block = false;
    OQ_TRY(read_block(w, &block, &is_block));
    if (is_block) {
        OQ_TRY(oq_block_locate(w->env, &block, NULL, ckpt, w->name, n, k, out));
        *found = true;
        return OQ_OK;
    }
    OQ_TRY(oq_scaled_declared_rules(w->env, &spelling, declared, w->name, &rules));
    OQ_TRY(read_float_activations(w, &rules));
    return oq_scaled_locate(w->env, &spelling, &rules, declared, ckpt, w->name, n, k, out, found);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    layer_words w = {.env = env, .options = declared->options, .name = name};
    *found = false;
    OQ_TRY(find_own(env, declared, name, &w.own));
    if (is_plain(ckpt, name)) {
        oq_scaled_rules none = {.act = OQ_SCALED_ACT_NONE};
        return oq_scaled_locate(env, &spelling, &none, declared, ckpt, name, n, k, out, found);
    }
    if (bits_of(&w) >= 16)
        return oq_fail(env, OQ_E_FORMAT,
                       "layer '%s' is quantized in the file, but extra_config gives it %lld bits", name,
                       (long long)bits_of(&w));
    if (strcmp(type_of(&w), "int") != 0) return locate_floats(&w, declared, ckpt, n, k, out, found);
    if (!acts_are_plain(&w)) return fail_activations(&w, "beside integers they stay as they are");
    const oq_packed_layout layout = packed_layout(&w);
    OQ_TRY(oq_packed_locate(env, &layout, ckpt, name, n, k, out, found));
    if (*found) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s.%s' is missing: the metadata says packed integers ('%s')",
                   name, oq_packed_codes(layout.packing), packing_of(declared->options));
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    layer_words w = {.env = ckpt->arena.env, .options = declared->options, .name = name};
    oq_packed_layout layout = packed_layout(&w);
    /* its name first: it may be of another kind than the file as a whole */
    const bool named = oq_packed_layer_of(&layout, ckpt, t, name_length, n, k) ||
                       oq_block_layer_of(declared, ckpt, t, name_length, n, k);
    if (!named || *name_length >= sizeof name) return false;
    snprintf(name, sizeof name, "%.*s", (int)*name_length, t->name);
    *name_length = 0; /* a plain "X.weight" holds no codes */
    if (find_own(w.env, declared, name, &w.own) != OQ_OK) return false;
    if (strcmp(type_of(&w), "int") != 0) return oq_block_layer_of(declared, ckpt, t, name_length, n, k);
    layout = packed_layout(&w);
    return oq_packed_layer_of(&layout, ckpt, t, name_length, n, k);
}

const oq_dialect oq_dialect_autoround = {
    .name = "autoround",
    .help = "AutoRound's integers of 2, 3, 4 and 8 bits, FP8 (static or dynamic), MXFP8, MXFP4 and NVFP4",
    .method = &oq_method_inc,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = layer_of,
};
