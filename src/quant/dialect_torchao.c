/* dialect_torchao.c -- TorchAO's tensor subclasses as safetensors holds them: module.weight is taken apart into
 * `_weight_qdata` and `_weight_scale`, and the header's entry of its name tells the class and its arguments. */
#include "quant/around_planes.h"
#include "quant/block_planes.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"
#include "quant/torchao_act.h"
#include "quant/torchao_int4.h"

#include "base/size.h"
#include "format/format_int.h"
#include "format/float4.h"

#include <string.h>

extern const oq_method oq_method_torchao;

#define TORCHAO(dtype, format, codes)                                                                        \
    {                                                                                                        \
        .code = &dtype, .tensor = &format##_tensor, .channel = &format##_channel, .weight_name = codes,      \
        .scale_names = "_weight_scale", .input_names = "_weight_act_quant_scale",                            \
        .spare_names = "_weight_zero_point,_weight_act_pre_scale"                                            \
    }

static const oq_scaled_spelling fp8 = TORCHAO(oq_dtype_f8_e4m3, oq_format_fp8_e4m3, "_weight_qdata");
static const oq_scaled_spelling int8 = TORCHAO(oq_dtype_i8, oq_format_int8, "_weight_qdata");
/* AffineQuantizedTensor's */
static const oq_scaled_spelling affine_fp8 =
    TORCHAO(oq_dtype_f8_e4m3, oq_format_fp8_e4m3, "_weight_float8_data");
static const oq_scaled_spelling affine_int8 = TORCHAO(oq_dtype_i8, oq_format_int8, "_weight_int_data");

/* x times these before its quantization. */
static const oq_around_names around = {.smooth = "_weight_act_pre_scale"};

static const char *const endings[] = {"._weight_qdata", "._weight_int_data", "._weight_float8_data",
                                      "._weight_packed_weight"};

/* The length of the layer's name in that of its codes; 0: these are no codes. */
static size_t layer_length(const oq_ckpt_tensor *t)
{
    const size_t length = strlen(t->name);
    for (size_t i = 0; i < OQ_COUNT(endings); i++) {
        const size_t m = strlen(endings[i]);
        if (length > m && strcmp(t->name + length - m, endings[i]) == 0) return length - m;
    }
    return 0;
}

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    if (named) return named == &oq_method_torchao;
    for (size_t i = 0; ckpt && i < ckpt->n_tensors; i++)
        if (layer_length(&ckpt->tensors[i])) return true;
    return false;
}

/* The class that the header gives a layer's weight; *data is owned by *json. */
static oq_status read_class(oq_env *env, const oq_ckpt *ckpt, const char *name, oq_json **json,
                            const char **class_name)
{
    char key[1024];
    const size_t n = strlen(name), m = sizeof ".weight";
    *json = NULL;
    *class_name = NULL;
    if (n + m > sizeof key) return OQ_OK;
    memcpy(key, name, n);
    memcpy(key + n, ".weight", m);
    const char *text = oq_json_string(oq_ckpt_metadata(ckpt, key));
    if (!text) return OQ_OK;
    OQ_TRY(oq_json_parse(env, text, strlen(text), key, json));
    *class_name = oq_json_string(oq_json_get(*json, "_type"));
    return OQ_OK;
}

/* ---- integers of a byte each, in groups: IntxUnpackedToInt8Tensor ---------------------------------------- */

typedef struct intx { /* one layer of them */
    oq_env *env;
    const oq_ckpt *ckpt;
    const char *name;
    int64_t n, k, bits, group; /* bits: of the format that holds them */
    const char *suffix;        /* of the codes */
    bool act;                  /* activations have a scale and a zero point per token */
    const oq_ckpt_tensor *codes, *scale, *zero;
} intx;

static int half_of(int64_t bits)
{
    return 1 << (bits - 1);
}

static int number_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x = 0.0f;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x >= -512.0f && x <= 512.0f ? (int)x : 512;
}

/* arg[0] bits, arg[1] columns of a group in the file, arg[2] those of the format */
static void make_intx_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t bits = self->arg[0], row_bytes = (k * bits + 7) / 8;
    const int8_t *const src = (const int8_t *)self->tensor->data;
    memset(dst, 0, (size_t)(n * row_bytes));
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < k; c++)
            oq_code_put((uint8_t *)dst + r * row_bytes, c, (int)bits,
                        (uint8_t)(src[r * k + c] + half_of(bits)));
}

static void make_intx_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]), stored = oq_ceil_div(k, self->arg[1]);
    const int bits = (int)self->arg[0];
    memset(dst, 0, (size_t)n * oq_int_zero_row_bytes(bits, groups));
    for (int64_t r = 0; r < n; r++)
        for (int64_t j = 0; j < groups; j++)
            oq_int_put_zero(dst, bits, r, j, groups,
                            (unsigned)(number_at(self->tensor, r * stored + j * self->arg[2] / self->arg[1]) +
                                       half_of(bits)));
}

static oq_status read_intx(const oq_json *data, intx *x)
{
    const oq_json *block = oq_json_get(data, "block_size"),
                  *act = oq_json_get(data, "activation_quantization");
    const char *type = oq_json_string(oq_json_get(oq_json_get(data, "target_dtype"), "_data"));
    const char *how = oq_json_string(act) ? oq_json_string(act) : oq_json_string(oq_json_get(act, "_data"));
    const int bits = type && strncmp(type, "int", 3) == 0 && type[3] >= '1' && type[3] <= '8' && !type[4]
                         ? type[3] - '0'
                         : 0;
    x->bits = bits <= 2 ? 2 : bits <= 4 ? bits : 8;
    x->group = oq_json_int(oq_json_at(block, 1), 0);
    x->act = oq_json_type(act) != OQ_JSON_NULL;
    if (x->act &&
        (!how || (strcmp(how, "INT8_ASYM_PER_TOKEN") != 0 && strcmp(how, "int8_asym_per_token") != 0)))
        return oq_fail(
            x->env, OQ_E_UNSUPPORTED,
            "layer '%s': activations '%s' are not in this build yet; int8_asym_per_token and plain "
            "ones are",
            x->name, how ? how : "(unnamed)");
    if (bits && oq_json_int(oq_json_at(block, 0), 0) == 1 && x->group > 0 && x->group <= x->k) return OQ_OK;
    return oq_fail(
        x->env, OQ_E_UNSUPPORTED,
        "layer '%s': codes of type '%s' in blocks of [%lld, %lld] are not in this build yet; int1 to int8 in "
        "blocks of [1, columns] are",
        x->name, type ? type : "(none)", (long long)oq_json_int(oq_json_at(block, 0), 0),
        (long long)x->group);
}

/* One a byte, within the bits. */
static oq_status check_bytes(const intx *x)
{
    const int half = half_of(x->bits);
    const oq_ckpt_tensor *t = x->codes;
    if (!t) return oq_fail(x->env, OQ_E_FORMAT, "tensor '%s.%s' is missing", x->name, x->suffix);
    if (t->dtype != &oq_dtype_i8 || t->n_dims != 2 || t->dim[0] != x->n || t->dim[1] != x->k)
        return oq_fail(x->env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, it needs [%lld, %lld] of I8",
                       t->name, (long long)t->elems, t->type_name, (long long)x->n, (long long)x->k);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const int code = (int8_t)t->data[i];
        if (code >= -half && code < half) continue;
        return oq_fail(x->env, OQ_E_FORMAT, "tensor '%s' has code %d at index %lld, outside of %lld bits",
                       t->name, code, (long long)i, (long long)x->bits);
    }
    return OQ_OK;
}

/* Whole numbers of any type, also without a dimension for the groups where there is one. */
static oq_status check_zeros(const intx *x, int64_t groups)
{
    const int half = half_of(x->bits);
    const oq_ckpt_tensor *t = x->zero;
    if (!t) return oq_fail(x->env, OQ_E_FORMAT, "tensor '%s._weight_zero_point' is missing", x->name);
    if (!t->dtype || t->dtype->floating || t->elems != x->n * groups)
        return oq_fail(x->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values of %s, it needs [%lld, %lld] of whole numbers", t->name,
                       (long long)t->elems, t->type_name, (long long)x->n, (long long)groups);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const int zero = number_at(t, i);
        if (zero >= -half && zero < half) continue;
        return oq_fail(x->env, OQ_E_FORMAT,
                       "tensor '%s' has zero point %d at index %lld, outside of %lld bits", t->name, zero,
                       (long long)i, (long long)x->bits);
    }
    return OQ_OK;
}

static bool all_zero(const oq_ckpt_tensor *t)
{
    for (size_t i = 0; t->data && i < t->bytes; i++)
        if (t->data[i]) return false;
    return true;
}

static oq_status fill_intx(intx *x, oq_part_source *out)
{
    const oq_ckpt *ckpt = x->ckpt;
    const int64_t groups = oq_ceil_div(x->k, x->group), of_format = oq_group_of_format(x->group, groups);
    if (!of_format)
        return oq_fail(x->env, OQ_E_UNSUPPORTED,
                       "layer '%s' has groups of %lld columns; multiples of 16 and whole rows are read",
                       x->name, (long long)x->group);
    x->codes = oq_scaled_find(ckpt, x->name, x->suffix);
    x->zero = oq_scaled_find(ckpt, x->name, "_weight_zero_point");
    OQ_TRY(check_bytes(x));
    OQ_TRY(check_zeros(x, groups));
    OQ_TRY(oq_group_scale(x->env, ckpt, x->name, "_weight_scale", x->n, groups, &x->scale));
    const oq_plane_source plane = {.arg = {x->bits, x->group, of_format}};
    *out = (oq_part_source){
        .format = oq_format_int((int)x->bits, (int)of_format, !all_zero(x->zero), x->scale->dtype)};
    for (int p = OQ_PLANE_DATA; p <= OQ_PLANE_ZERO; p++) out->plane[p] = plane;
    out->plane[OQ_PLANE_DATA].tensor = x->codes, out->plane[OQ_PLANE_DATA].make = make_intx_codes;
    out->plane[OQ_PLANE_SCALE].tensor = x->scale, out->plane[OQ_PLANE_SCALE].make = oq_group_make_scales;
    out->plane[OQ_PLANE_ZERO].tensor = x->zero, out->plane[OQ_PLANE_ZERO].make = make_intx_zeros;
    return OQ_OK;
}

static oq_status locate_intx(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                             const oq_json *data, oq_part_source *out, bool *found)
{
    intx x = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k, .suffix = "_weight_qdata"};
    OQ_TRY(read_intx(data, &x));
    OQ_TRY(fill_intx(&x, out));
    if (x.act) out->act = &oq_dtype_i8, out->act_scale = OQ_ACT_DYNAMIC_ZERO;
    *found = true;
    return OQ_OK;
}

/* ---- blocks: MXTensor, NVFP4Tensor --------------------------------------------------------------------- */

/* Columns under a scale, which the class fixes; files of some versions do not say them. */
static oq_status check_block(oq_env *env, const oq_json *data, const char *name, int64_t wanted)
{
    const oq_json *block = oq_json_get(data, "block_size");
    const int64_t columns = oq_json_int(block, 0);
    if (oq_json_type(block) == OQ_JSON_NULL || columns == wanted) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s' has blocks of %lld columns, which is not in this build yet; %lld are", name,
                   (long long)columns, (long long)wanted);
}

static oq_status locate_mx(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                           const oq_json *data, oq_part_source *out, bool *found)
{
    static const oq_block_names names = {"_weight_qdata", "_weight_scale", "", "", false};
    const char *type = oq_torchao_word(data, "elem_dtype");
    const bool four = strcmp(type, "float4_e2m1fn_x2") == 0;
    oq_block_layout layout = {.kind = four ? OQ_BLOCK_MXFP4 : OQ_BLOCK_MXFP8,
                              .names = &names,
                              .tiled = oq_json_bool(oq_json_get(data, "is_swizzled_scales"), false),
                              .told = oq_json_get(data, "is_swizzled_scales") != NULL};
    if (!four && strcmp(type, "float8_e4m3fn") != 0)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layer '%s' has MX codes of type '%s', which is not in this build yet; float8_e4m3fn and "
            "float4_e2m1fn_x2 are",
            name, type);
    OQ_TRY(check_block(env, data, name, 32));
    OQ_TRY(oq_torchao_read_mx_act(env, data, name, &layout));
    OQ_TRY(oq_block_locate(env, &layout, NULL, ckpt, name, n, k, out));
    *found = true;
    return OQ_OK;
}

/* Activations: of four bits under a scale of all of x, or under one that the file has; or plain. */
static oq_status locate_nvfp4(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                              const oq_json *data, oq_part_source *out, bool *found)
{
    static const oq_block_names names = {"_weight_qdata", "_weight_scale", "_weight_per_tensor_scale",
                                         "_weight_act_per_tensor_scale", false};
    const oq_json *act = oq_json_get(oq_json_get(data, "act_quant_kwargs"), "_data");
    const bool fixed = oq_scaled_find(ckpt, name, names.input) != NULL;
    const bool dynamic = oq_json_bool(oq_json_get(act, "use_dynamic_per_tensor_scale"), false);
    const oq_block_layout layout = {.kind = OQ_BLOCK_NVFP4,
                                    .names = &names,
                                    .tiled = oq_json_bool(oq_json_get(data, "is_swizzled_scales"), false),
                                    .told = oq_json_get(data, "is_swizzled_scales") != NULL,
                                    .weight_only = oq_json_type(act) == OQ_JSON_NULL || !fixed};
    if (oq_json_type(act) != OQ_JSON_NULL && !fixed && !dynamic)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s': activations under block scales alone are not in this build yet; a scale "
                       "of the file or "
                       "of all of them is",
                       name);
    OQ_TRY(oq_torchao_check_nvfp4_act(env, data, name));
    OQ_TRY(check_block(env, data, name, 16));
    OQ_TRY(oq_block_locate(env, &layout, NULL, ckpt, name, n, k, out));
    if (oq_json_type(act) != OQ_JSON_NULL && !fixed)
        out->act = &oq_dtype_f4_e2m1, out->act_scale = OQ_ACT_DYNAMIC_NVFP4;
    *found = true;
    return OQ_OK;
}

/* ---- codes of a byte under a scale per row: Float8Tensor, Int8Tensor ------------------------------------ */

typedef struct bytes8 { /* one layer of them */
    const oq_scaled_spelling *spelling;
    oq_scaled_rules rules;
    bool act_zero; /* activations have zero points */
    int64_t group; /* columns under a scale */
} bytes8;

/* Groups of columns, and zero points other than 0, are integers in groups. */
static oq_status locate_bytes(oq_env *env, const bytes8 *b, const oq_declared *declared, const oq_ckpt *ckpt,
                              const char *name, int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const oq_ckpt_tensor *zero = oq_scaled_find(ckpt, name, "_weight_zero_point");
    const bool grouped = b->spelling->code == &oq_dtype_i8 && b->group > 0 && b->group <= k && zero &&
                         (b->group != k || !all_zero(zero));
    if (grouped && b->rules.act != OQ_SCALED_ACT_NONE)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layer '%s' has weights in groups or with zero points and quantized activations, which is "
            "not in this build yet",
            name);
    if (grouped) {
        intx x = {.env = env,
                  .ckpt = ckpt,
                  .name = name,
                  .n = n,
                  .k = k,
                  .bits = 8,
                  .group = b->group,
                  .suffix = b->spelling->weight_name};
        OQ_TRY(fill_intx(&x, out));
        *found = true;
    } else {
        OQ_TRY(oq_scaled_locate(env, b->spelling, &b->rules, declared, ckpt, name, n, k, out, found));
    }
    if (*found && b->act_zero && b->spelling->code == &oq_dtype_i8) out->act_scale = OQ_ACT_DYNAMIC_ZERO;
    const oq_status st = *found ? oq_around_locate(env, &around, ckpt, name, n, k, out) : OQ_OK;
    *found = *found && st == OQ_OK;
    return st;
}

/* What a scale stands for, where the class says it: all of the weight, or a row. Groups of columns are read apart. */
static oq_status read_blocks(oq_env *env, const oq_json *data, const char *name, int64_t n, int64_t k,
                             bytes8 *out)
{
    const oq_json *block = oq_json_get(data, "block_size");
    const int64_t rows = oq_json_int(oq_json_at(block, 0), 0), cols = oq_json_int(oq_json_at(block, 1), 0);
    const bool int8_groups = out->spelling->code == &oq_dtype_i8 && rows == 1 && cols > 0 && cols < k;
    out->group = oq_json_size(block) == 2 ? cols : k;
    if (oq_json_type(block) == OQ_JSON_NULL || int8_groups) return OQ_OK;
    if (cols == k && rows == 1) out->rules.format = out->spelling->channel;
    if (cols == k && rows == n && n != 1) out->rules.format = out->spelling->tensor;
    if (out->rules.format) return OQ_OK;
    return oq_fail(
        env, OQ_E_UNSUPPORTED,
        "layer '%s' of [%lld, %lld] has a scale for each [%lld, %lld], which is not in this build yet; "
        "[1, %lld] and [%lld, %lld] are",
        name, (long long)n, (long long)k, (long long)rows, (long long)cols, (long long)k, (long long)n,
        (long long)k);
}

static oq_status locate_scaled(oq_env *env, const oq_scaled_spelling *spelling, const oq_declared *declared,
                               const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                               const oq_json *data, oq_part_source *out, bool *found)
{
    const bool fixed = oq_scaled_find(ckpt, name, "_weight_act_quant_scale") != NULL;
    bytes8 b = {.spelling = spelling};
    OQ_TRY(oq_torchao_read_act(env, data, name, fixed, &b.rules, &b.act_zero));
    OQ_TRY(read_blocks(env, data, name, n, k, &b));
    return locate_bytes(env, &b, declared, ckpt, name, n, k, out, found);
}

/* ---- AffineQuantizedTensor of earlier versions: what holds the codes is a class inside it ---------------- */

static oq_status locate_affine(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt,
                               const char *name, int64_t n, int64_t k, const oq_json *outer,
                               oq_part_source *out, bool *found)
{
    const oq_json *weight = oq_json_get(outer, "original_weight_tensor");
    const oq_json *data = weight ? oq_json_get(weight, "_data") : outer,
                  *impl = oq_json_get(data, "tensor_impl");
    const char *holder = oq_json_string(oq_json_get(impl, "_type"));
    bytes8 b = {.rules.act = OQ_SCALED_ACT_NONE};
    if (weight) OQ_TRY(oq_torchao_read_function(env, name, outer, &b.rules));
    if (holder && oq_json_bool(oq_json_get(oq_json_get(impl, "_data"), "transposed"), false))
        holder = "transposed";
    if (holder && strcmp(holder, "TensorCoreTiledAQTTensorImpl") == 0 && !weight)
        return oq_torchao_locate_tiles_in(env, ckpt, name, "_weight_packed_weight", n, k, data, out, found);
    if (holder && strcmp(holder, "PlainAQTTensorImpl") == 0) b.spelling = &affine_int8;
    if (holder && strcmp(holder, "Float8AQTTensorImpl") == 0) b.spelling = &affine_fp8;
    if (b.spelling) OQ_TRY(read_blocks(env, data, name, n, k, &b));
    if (b.spelling) return locate_bytes(env, &b, declared, ckpt, name, n, k, out, found);
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s' is an AffineQuantizedTensor held by '%s', which is not in this build yet; "
                   "PlainAQTTensorImpl, Float8AQTTensorImpl and TensorCoreTiledAQTTensorImpl are",
                   name, holder ? holder : "(none)");
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

typedef struct class_row {
    const char *name;
    const oq_scaled_spelling *spelling; /* NULL: locate, or (both) locate_affine */
    oq_status (*locate)(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                        const oq_json *data, oq_part_source *out, bool *found);
} class_row;

static const class_row classes[] = {
    {"Float8Tensor", &fp8, NULL},
    {"Int8Tensor", &int8, NULL},
    {"Int4Tensor", NULL, oq_torchao_locate_int4},
    {"Int4PlainInt32Tensor", NULL, oq_torchao_locate_words},
    {"Int4TilePackedTo4dTensor", NULL, oq_torchao_locate_tiles},
    {"IntxUnpackedToInt8Tensor", NULL, locate_intx},
    {"MXTensor", NULL, locate_mx},
    {"NVFP4Tensor", NULL, locate_nvfp4},
    {"AffineQuantizedTensor", NULL, NULL},
    {"LinearActivationQuantizedTensor", NULL, NULL},
};

static oq_status locate_class(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                              int64_t n, int64_t k, const char *class_name, const oq_json *json,
                              oq_part_source *out, bool *found)
{
    const oq_json *data = oq_json_get(json, "_data");
    const class_row *row = NULL;
    for (size_t i = 0; class_name && i < OQ_COUNT(classes) && !row; i++)
        if (strcmp(classes[i].name, class_name) == 0) row = &classes[i];
    if (!row)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layer '%s' is a TorchAO tensor of class '%s', which is not in this build yet; Float8Tensor, "
            "Int8Tensor, Int4Tensor, Int4PlainInt32Tensor, Int4TilePackedTo4dTensor, "
            "IntxUnpackedToInt8Tensor, MXTensor, NVFP4Tensor and "
            "AffineQuantizedTensor are",
            name, class_name ? class_name : "(none in the header)");
    if (row->locate) return row->locate(env, ckpt, name, n, k, data, out, found);
    if (!row->spelling) return locate_affine(env, declared, ckpt, name, n, k, data, out, found);
    return locate_scaled(env, row->spelling, declared, ckpt, name, n, k, data, out, found);
}

static bool has_codes(const oq_ckpt *ckpt, const char *name)
{
    bool any =
        oq_scaled_find(ckpt, name, "_weight_scale") || oq_scaled_find(ckpt, name, "_weight_scale_and_zero");
    for (size_t i = 0; i < OQ_COUNT(endings); i++) any = any || oq_scaled_find(ckpt, name, endings[i] + 1);
    return any;
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const char *class_name = NULL;
    oq_json *json = NULL;
    *found = false;
    if (!has_codes(ckpt, name)) return OQ_OK; /* a layer that was left out */
    OQ_TRY(read_class(env, ckpt, name, &json, &class_name));
    const oq_status st = locate_class(env, declared, ckpt, name, n, k, class_name, json, out, found);
    oq_json_free(json);
    return st;
}

/* The class tells the shape where codes are packed; else it is that of the codes. */
static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    const char *class_name = NULL;
    oq_json *json = NULL;
    (void)declared;
    *name_length = layer_length(t);
    if (!*name_length || *name_length >= sizeof name || t->n_dims < 2 || t->dim[1] > INT32_MAX) return false;
    memcpy(name, t->name, *name_length);
    name[*name_length] = '\0';
    read_class(NULL, ckpt, name, &json, &class_name);
    const oq_json *shape = oq_json_get(oq_json_get(json, "_data"), "shape");
    const bool told = oq_json_size(shape) == 2;
    *n = told ? oq_json_int(oq_json_at(shape, 0), 0) : t->dim[0];
    *k = told ? oq_json_int(oq_json_at(shape, 1), 0)
              : t->dim[1] * (t->dtype == &oq_dtype_u8    ? 2
                             : t->dtype == &oq_dtype_i32 ? 8
                                                         : 1);
    oq_json_free(json);
    return *n > 0 && *k > 0 && *n <= INT32_MAX && *k <= INT32_MAX && (told || t->n_dims == 2);
}

static bool harmless(const oq_ckpt_tensor *t)
{
    static const char ending[] = "._weight_zero_point";
    const size_t n = strlen(t->name), m = sizeof ending - 1;
    return n > m && strcmp(t->name + n - m, ending) == 0;
}

const oq_dialect oq_dialect_torchao = {
    .name = "torchao",
    .help =
        "TorchAO's tensor classes of 4 and 8 bits: safetensors and pickled .bin, of today and of 0.7 to 0.9",
    .method = &oq_method_torchao,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .harmless = harmless,
    .layer_of = layer_of,
    .shape_from = "'shape' of its class in the file's header",
};
