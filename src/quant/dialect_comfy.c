/* dialect_comfy.c -- FP8, INT8, INT4, MXFP8 and NVFP4 as ComfyUI writes them. Older files carry an empty tensor `scaled_fp8` and spell
 * `scale_weight`, `scale_input`; newer ones say each layer's format in a tensor `comfy_quant` of JSON text, or for
 * all layers in the header's `_quantization_metadata`, and spell `weight_scale`, `input_scale`. Black Forest Labs' files
 * have a list of their NVFP4 layers beside them. */
#include "quant/dialect_comfy.h"
#include "quant/around_planes.h"
#include "quant/block_planes.h"
#include "quant/comfy_formats.h"
#include "quant/scaled_planes.h"
#include "quant/torchao_int4.h"

#include "base/names.h"
#include "format/format_e5m2.h"

#include <stdio.h>
#include <string.h>

#define METADATA "_quantization_metadata"
#define LISTED   "quantized_layers"

extern const oq_method oq_method_fp8, oq_method_comfy_nvfp4, oq_method_int8_convrot, oq_method_svdquant;

static const oq_scaled_spelling fp8 = {
    .code = &oq_dtype_f8_e4m3,
    .tensor = &oq_format_fp8_e4m3_tensor,
    .channel = &oq_format_fp8_e4m3_channel,
    .scale_names = "weight_scale,scale_weight",
    .input_names = "input_scale,scale_input",
    .spare_names = "comfy_quant",
    .unit_input_means_none = true,
};

/* Activations stay as they are: no machine multiplies e5m2 by e5m2. ComfyUI, where a GPU has FP8 at all, rounds x to e5m2 first and
 * then multiplies floats after all, which costs two bits of x and gains nothing; elsewhere it leaves x as it is. */
static const oq_scaled_spelling e5m2 = {
    .code = &oq_dtype_f8_e5m2,
    .tensor = &oq_format_fp8_e5m2_tensor,
    .channel = &oq_format_fp8_e5m2_channel,
    .scale_names = "weight_scale,scale_weight",
    .input_names = "input_scale,scale_input",
    .spare_names = "comfy_quant",
};

/* Their codes' rows may be rotated: each run of so many columns by the matrix of oq_rotate. */
static const oq_scaled_spelling int8 = {
    .code = &oq_dtype_i8,
    .tensor = &oq_format_int8_tensor,
    .channel = &oq_format_int8_channel,
    .scale_names = "weight_scale,scale_weight",
    .input_names = "input_scale,scale_input",
    .spare_names = "comfy_quant",
    .unit_input_means_none = true,
};

/* ---- evidence ------------------------------------------------------------------------------------------ */

/* Its type tells the codes' (F32 means e4m3), two elements ask for products in full precision. */
static bool is_marker(const oq_ckpt_tensor *t)
{
    return strcmp(t->name, "scaled_fp8") == 0 || oq_name_ends(t->name, ".scaled_fp8");
}

static bool is_mark(const oq_ckpt_tensor *t)
{
    return is_marker(t) || oq_name_ends(t->name, ".comfy_quant") || oq_name_ends(t->name, ".scale_weight");
}

bool oq_comfy_marked(const oq_ckpt *ckpt)
{
    if (!ckpt) return false;
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        if (is_mark(&ckpt->tensors[i])) return true;
    return oq_ckpt_metadata(ckpt, METADATA) != NULL;
}

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    if (named == &oq_method_comfy_nvfp4 || named == &oq_method_int8_convrot) return true;
    return (!named || named == &oq_method_fp8) &&
           (oq_comfy_marked(ckpt) || (!named && oq_block_look(ckpt).tiles));
}

static bool harmless(const oq_ckpt_tensor *t)
{
    return is_marker(t) || oq_name_ends(t->name, ".comfy_quant");
}

/* ---- what the file says per layer ---------------------------------------------------------------------- */

static bool has_weight(const oq_ckpt *ckpt, const char *layer)
{
    return oq_scaled_find(ckpt, layer, "weight") != NULL;
}

/* One layer's word, told by `from`: it must mean a layer of this file, and agree with what was said before. */
static oq_status put_layer(oq_env *env, const oq_ckpt *ckpt, const char *from, const char *layer,
                           const oq_json *word, oq_json *layers)
{
    const oq_json *before = oq_json_get(layers, layer);
    if (oq_json_type(word) != OQ_JSON_OBJECT || !oq_json_string(oq_json_get(word, "format")))
        return oq_fail(env, OQ_E_FORMAT, "%s says nothing about the format of layer '%s'", from, layer);
    if (!has_weight(ckpt, layer))
        return oq_fail(env, OQ_E_FORMAT, "%s describes layer '%s', but '%s.weight' is missing", from, layer,
                       layer);
    if (before && !oq_json_equal(before, word))
        return oq_fail(env, OQ_E_FORMAT, "%s contradicts the header's " METADATA " about layer '%s'", from,
                       layer);
    if (before || oq_json_set(layers, layer, oq_json_copy(word))) return OQ_OK;
    return oq_fail(env, OQ_E_NOMEM, "no memory for " METADATA);
}

static oq_status read_header(oq_env *env, const oq_ckpt *ckpt, oq_json *layers)
{
    const oq_json *value = oq_ckpt_metadata(ckpt, METADATA);
    const char *text = oq_json_string(value);
    oq_json *json = NULL;
    void *at = NULL;
    const char *layer = NULL;
    const oq_json *word = NULL;
    if (!value) return OQ_OK;
    if (!text) return oq_fail(env, OQ_E_FORMAT, METADATA " must be text, not %s", oq_json_type_name(value));
    OQ_TRY(oq_json_parse(env, text, strlen(text), METADATA, &json));
    const oq_json *all = oq_json_get(json, "layers");
    oq_status st = OQ_OK;
    if (oq_json_type(all) != OQ_JSON_OBJECT)
        st = oq_fail(env, OQ_E_FORMAT, METADATA " has no mapping 'layers'");
    while (st == OQ_OK && oq_json_next(all, &at, &layer, &word))
        st = put_layer(env, ckpt, METADATA, oq_ckpt_inside(ckpt, layer), word, layers);
    oq_json_free(json);
    return st;
}

static oq_status read_tensor(oq_env *env, const oq_ckpt *ckpt, const oq_ckpt_tensor *t, oq_json *layers)
{
    char layer[1024], from[1100];
    oq_json *word = NULL;
    const size_t n = strlen(t->name) - strlen(".comfy_quant");
    if (t->dtype != &oq_dtype_u8 || t->bytes == 0 || !t->data || n >= sizeof layer)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' must hold JSON text as U8, not %zu bytes of %s",
                       t->name, t->bytes, t->type_name);
    snprintf(layer, sizeof layer, "%.*s", (int)n, t->name);
    snprintf(from, sizeof from, "tensor '%.1024s'", t->name);
    OQ_TRY(oq_json_parse(env, (const char *)t->data, t->bytes, t->name, &word));
    const oq_status st = put_layer(env, ckpt, from, layer, word, layers);
    oq_json_free(word);
    return st;
}

/* A name of quantized_layers as the file's tensors are named now. */
static const char *listed_name(const oq_ckpt *ckpt, const char *entry)
{
    static const char wrapper[] = "transformer.";
    const char *name = oq_ckpt_inside(ckpt, entry);
    return strncmp(name, wrapper, sizeof wrapper - 1) == 0 && !has_weight(ckpt, name)
               ? name + sizeof wrapper - 1
               : name;
}

/* Each entry must mean a layer whose codes are two to a byte. */
static oq_status check_listed(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt)
{
    const oq_json *list = oq_json_get(declared->options, LISTED);
    for (size_t i = 0; i < oq_json_size(list); i++) {
        const char *name = listed_name(ckpt, oq_json_string(oq_json_at(list, i)));
        const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
        if (t && t->dtype == &oq_dtype_u8) continue;
        return oq_fail(env, OQ_E_FORMAT, LISTED " names '%s', but '%s.weight' is %s, not U8",
                       oq_json_string(oq_json_at(list, i)), name, t ? t->type_name : "missing");
    }
    return OQ_OK;
}

/* With a list in the metadata, a layer that it leaves out must be plain. */
static oq_status check_unlisted(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt,
                                const char *name)
{
    const oq_json *list = oq_json_get(declared->options, LISTED);
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    if (!list || !t || (t->dtype && t->dtype->floating && t->dtype->bytes > 1)) return OQ_OK;
    for (size_t i = 0; i < oq_json_size(list); i++)
        if (strcmp(listed_name(ckpt, oq_json_string(oq_json_at(list, i))), name) == 0) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %s, but " LISTED " does not name '%s'", t->name,
                   t->type_name, name);
}

/* ---- formats of fewer than eight bits ------------------------------------------------------------------ */

/* Modulation in AWQ's manner, as comfy-kitchen lays it out: value = (code - 8) * scale + zero. */
static oq_status locate_awq(const oq_comfy_layer *l, oq_part_source *out)
{
    static const oq_int4_rows awq = {"weight", "weight_scale", "weight_zeros",
                                     "weight,weight_scale,weight_zeros,comfy_quant,bias", false};
    bool found = false;
    return oq_int4_rows_locate(l->env, &awq, oq_comfy_number(l->word, "group_size", 64), l->ckpt, l->name,
                               l->n, l->k, out, &found);
}

static int64_t pair_columns(const oq_ckpt *ckpt, const oq_json *word, const char *name,
                            const oq_ckpt_tensor *t)
{
    (void)ckpt, (void)word, (void)name;
    return 2 * t->dim[1];
}

/* Formats of fewer than eight bits in bytes, which only their word tells. */
static const struct narrow_row {
    const char *format;
    oq_status (*locate)(const oq_comfy_layer *l, oq_part_source *out);
    int64_t (*columns)(const oq_ckpt *ckpt, const oq_json *word, const char *name, const oq_ckpt_tensor *t);
    int64_t group;           /* columns under a scale, which the format fixes; 0: it does not, or has none */
    const oq_method *method; /* what files are called that have such layers; NULL: stands beside others */
} narrow[] = {
    {"awq_w4a16", locate_awq, pair_columns, 0, NULL},
    {"convrot_w4a4", oq_comfy_w4a4_locate, pair_columns, 0, &oq_method_int8_convrot},
    {"asym_w4a8_int8", oq_comfy_w4a8_locate, oq_comfy_w4a8_columns, 0, &oq_method_int8_convrot},
    {"svdquant_w4a4", oq_comfy_svdquant_locate, pair_columns, 64, &oq_method_svdquant},
};

static const struct narrow_row *narrow_of(const oq_json *word)
{
    const char *format = oq_json_string(oq_json_get(word, "format"));
    for (size_t i = 0; format && i < OQ_COUNT(narrow); i++)
        if (strcmp(narrow[i].format, format) == 0) return &narrow[i];
    return NULL;
}

/* Of the first layer that says it. */
static const oq_method *narrow_method(const oq_json *layers)
{
    const oq_json *word = NULL;
    const char *name = NULL;
    void *at = NULL;
    while (oq_json_next(layers, &at, &name, &word)) {
        const struct narrow_row *row = narrow_of(word);
        if (row && row->method) return row->method;
    }
    return NULL;
}

static oq_status read_layers(oq_env *env, const oq_declare_input *in, oq_declared *out)
{
    oq_json *layers = oq_json_new_object();
    if (!oq_json_append(in->held, layers)) return oq_fail(env, OQ_E_NOMEM, "no memory for " METADATA);
    OQ_TRY(oq_declared_read(env, in, out));
    if (!in->ckpt) return OQ_OK;
    OQ_TRY(check_listed(env, out, in->ckpt));
    OQ_TRY(read_header(env, in->ckpt, layers));
    for (size_t i = 0; i < in->ckpt->n_tensors; i++)
        if (oq_name_ends(in->ckpt->tensors[i].name, ".comfy_quant"))
            OQ_TRY(read_tensor(env, in->ckpt, &in->ckpt->tensors[i], layers));
    out->layers = layers;
    const oq_method *narrow_one = narrow_method(layers);
    if (narrow_one) out->method = narrow_one;
    if (oq_block_look(in->ckpt).any) out->method = &oq_method_comfy_nvfp4;
    return OQ_OK;
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

static bool file_is_full_precision(const oq_ckpt *ckpt)
{
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        if (is_marker(&ckpt->tensors[i])) return ckpt->tensors[i].elems == 2;
    return false;
}

/* By its codes. */
static const oq_scaled_spelling *spelling_of(const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    return t && t->dtype == int8.code ? &int8 : t && t->dtype == e5m2.code ? &e5m2 : &fp8;
}

/* Columns under a scale, which the format fixes; a word may repeat them. */
static oq_status check_group(oq_env *env, const oq_json *word, const char *name, int64_t columns)
{
    const int64_t told = oq_comfy_number(word, "group_size", columns);
    if (told == columns) return OQ_OK;
    return oq_fail(
        env, OQ_E_FORMAT,
        "layer '%s' is said to be in ComfyUI's format '%s' with group_size %lld; that format has %lld", name,
        oq_json_string(oq_json_get(word, "format")), (long long)told, (long long)columns);
}

static oq_status check_format(oq_env *env, const oq_ckpt *ckpt, const oq_json *word, const char *name)
{
    const char *format = oq_json_string(oq_json_get(word, "format"));
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    const oq_dtype *code = strcmp(format, "int8_tensorwise") == 0 ? int8.code
                           : strcmp(format, "float8_e5m2") == 0   ? e5m2.code
                           : strcmp(format, "float8_e4m3fn") == 0 ? fp8.code
                                                                  : NULL;
    if (!code)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s' is in ComfyUI's format '%s', which is not in this build yet; "
                       "'float8_e4m3fn', 'float8_e5m2', 'int8_tensorwise', 'mxfp8', 'nvfp4', 'convrot_w4a4', "
                       "'asym_w4a8_int8', 'svdquant_w4a4' and 'awq_w4a16' are",
                       name, format);
    if (t && t->dtype == code) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "layer '%s' is said to be in ComfyUI's format '%s', but '%s.weight' is %s", name, format,
                   name, t ? t->type_name : "missing");
}

/* By its word, or where the file has none by the codes: two to a byte is NVFP4. What ComfyUI has a word of it quantizes x for, under
 * the file's scale or, where that is missing, one of all of x; a file without words says nothing of x. */
static bool is_block(const oq_comfy_layer *l, oq_block_layout *out)
{
    const char *format = oq_json_string(oq_json_get(l->word, "format"));
    const oq_ckpt_tensor *t = oq_scaled_find(l->ckpt, l->name, "weight");
    const bool mxfp8 = format && strcmp(format, "mxfp8") == 0;
    *out =
        (oq_block_layout){.kind = mxfp8 ? OQ_BLOCK_MXFP8 : OQ_BLOCK_NVFP4, .high_first = true, .tiled = true};
    const bool scaled = mxfp8 || oq_scaled_find(l->ckpt, l->name, "input_scale");
    out->weight_only = l->plain_x || (!l->word && !scaled);
    if (!scaled) out->act_scale = OQ_ACT_DYNAMIC_NVFP4;
    if (format) return mxfp8 || strcmp(format, "nvfp4") == 0;
    return t && t->dtype == &oq_dtype_u8;
}

/* svdquant_w4a4's codes in tiles of 128 rows and 64 columns. */
static bool is_tiled(const oq_ckpt_tensor *t, size_t *name_length, int64_t *n, int64_t *k)
{
    if (t->n_dims != 4 || t->dtype != &oq_dtype_i8 || !oq_name_ends(t->name, ".weight") ||
        t->dim[0] > INT32_MAX || t->dim[1] > INT32_MAX || t->dim[2] != 32 || t->dim[3] != 128 ||
        t->elems <= 0)
        return false;
    *name_length = strlen(t->name) - strlen(".weight");
    *n = 128 * t->dim[0], *k = 64 * t->dim[1];
    return true;
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    if (is_tiled(t, name_length, n, k)) return true;
    if (!oq_block_layer_of(declared, ckpt, t, name_length, n, k)) return false;
    if (t->dtype != &oq_dtype_i8 || *name_length >= sizeof name) return true;
    snprintf(name, sizeof name, "%.*s", (int)*name_length, t->name);
    const oq_json *word = oq_json_get(declared->layers, name);
    const struct narrow_row *row = narrow_of(word);
    if (row) *k = row->columns(ckpt, word, name, t);
    return *k > 0;
}

static oq_status locate_bytes(const oq_comfy_layer *l, const oq_declared *declared, oq_part_source *out,
                              bool *found)
{
    const oq_scaled_spelling *spelling = spelling_of(l->ckpt, l->name);
    oq_scaled_rules rules = {.act = OQ_SCALED_ACT_FILE};
    int32_t rotate = 0;
    if (l->plain_x || file_is_full_precision(l->ckpt) || spelling == &e5m2) rules.act = OQ_SCALED_ACT_NONE;
    if (spelling == &int8 && oq_comfy_flag(l->word, "convrot")) OQ_TRY(oq_comfy_rotation(l, &rotate));
    OQ_TRY(oq_scaled_locate(l->env, spelling, &rules, declared, l->ckpt, l->name, l->n, l->k, out, found));
    out->rotate = *found ? rotate : 0;
    return OQ_OK;
}

/* NVFP4 may have factors of its input beside it, as ModelOpt's AWQ leaves them. */
static oq_status locate_block(const oq_comfy_layer *l, const oq_block_layout *block, oq_part_source *out)
{
    static const oq_around_names factors = {.smooth = "pre_quant_scale"};
    const bool nvfp4 = block->kind == OQ_BLOCK_NVFP4;
    OQ_TRY(oq_block_locate(l->env, block, nvfp4 ? "comfy_quant,pre_quant_scale" : "comfy_quant", l->ckpt,
                           l->name, l->n, l->k, out));
    return nvfp4 ? oq_around_locate(l->env, &factors, l->ckpt, l->name, l->n, l->k, out) : OQ_OK;
}

/* ComfyUI multiplies a text encoder's weights as floats, whatever its file says. */
static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const oq_json *word = oq_json_get(declared->layers, name);
    const bool plain_x = declared->encoder || oq_comfy_flag(word, "full_precision_matrix_mult");
    const oq_comfy_layer l = {
        .env = env, .ckpt = ckpt, .word = word, .name = name, .n = n, .k = k, .plain_x = plain_x};
    const struct narrow_row *row = narrow_of(word);
    oq_block_layout block;
    *found = false;
    OQ_TRY(check_unlisted(env, declared, ckpt, name));
    if (row) {
        if (row->group) OQ_TRY(check_group(env, word, name, row->group));
        OQ_TRY(row->locate(&l, out));
        *found = true;
        return OQ_OK;
    }
    if (is_block(&l, &block)) {
        OQ_TRY(check_group(env, word, name, block.kind == OQ_BLOCK_NVFP4 ? 16 : 32));
        OQ_TRY(locate_block(&l, &block, out));
        *found = true;
        return OQ_OK;
    }
    if (word) OQ_TRY(check_format(env, ckpt, word, name));
    return locate_bytes(&l, declared, out, found);
}

const oq_dialect oq_dialect_comfy = {
    .name = "comfy",
    .help = "ComfyUI's FP8, INT8 (rotated or not), MXFP8, NVFP4, INT4 (rotated, SVDQuant, of modulation): "
            "scaled_fp8, "
            "comfy_quant or _quantization_metadata",
    .method = &oq_method_fp8,
    .detect = detect,
    .read = read_layers,
    .locate = locate,
    .harmless = harmless,
    .layer_of = layer_of,
};
