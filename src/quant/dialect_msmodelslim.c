/* dialect_msmodelslim.c -- Ascend msModelSlim's layouts. quant_model_description.json names the type of each tensor: integers
 * of 8 bits (W8A8, W8A8_DYNAMIC, W8A8_MIX, W8A16) or of 4, in bytes (W4A4_DYNAMIC) or in pairs of rows (W4A8_DYNAMIC), FP8, MXFP8, MXFP4 with one scale or
 * two; each may have factors of its input (mul_scale) and a low-rank branch (svd_lowrank_l1, _l2). */
#include "quant/around_planes.h"
#include "quant/block_planes.h"
#include "quant/packed_planes.h"
#include "quant/pair_planes.h"
#include "quant/scaled_planes.h"

#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

extern const oq_method oq_method_ascend;

#define AROUND "mul_scale,svd_lowrank_l1,svd_lowrank_l2"
#define STATIC "deq_scale,quant_bias,input_offset,input_scale"

/* x times these before its quantization; the branch takes it after them, inside of the wrapper that multiplies. */
static const oq_around_names around = {
    .smooth = "mul_scale", .down = "svd_lowrank_l1", .up = "svd_lowrank_l2", .smoothed_branch = true};

static const oq_scaled_spelling fp8 = {
    .code = &oq_dtype_f8_e4m3,
    .tensor = &oq_format_fp8_e4m3_tensor,
    .channel = &oq_format_fp8_e4m3_channel,
    .scale_names = "weight_scale",
    .spare_names = "weight_offset," AROUND,
};
static const oq_scaled_spelling int8 = {
    .code = &oq_dtype_i8,
    .tensor = &oq_format_int8_tensor,
    .channel = &oq_format_int8_channel,
    .scale_names = "weight_scale",
    .spare_names = "weight_offset," AROUND,
};
/* Both treatments of activations in one file: that of whole prompts, which denoising is like, is a scale per token. */
static const oq_scaled_spelling int8_mix = {
    .code = &oq_dtype_i8,
    .tensor = &oq_format_int8_tensor,
    .channel = &oq_format_int8_channel,
    .scale_names = "weight_scale",
    .input_names = "none",
    .spare_names = "weight_offset," STATIC "," AROUND,
};
static const oq_block_names mxfp4_names = {"weight", "weight_scale", "", "", false};

typedef enum form {
    FORM_FP8,
    FORM_INT8,
    FORM_BYTES4,
    FORM_MIX,
    FORM_STATIC,
    FORM_PAIRS,
    FORM_BLOCK,
    FORM_DUAL
} form;

typedef struct type_row {
    const char *name;
    form form;
    oq_scaled_act act; /* FORM_FP8, FORM_INT8 */
    oq_block_layout block;
} type_row;

static const type_row types[] = {
    {"W8A8_DYNAMIC", FORM_INT8, OQ_SCALED_ACT_DYNAMIC, {0}},
    {"W8A8_MIX", FORM_MIX, OQ_SCALED_ACT_DYNAMIC, {0}},
    {"W8A16", FORM_INT8, OQ_SCALED_ACT_NONE, {0}},
    {"W4A4_DYNAMIC", FORM_BYTES4, OQ_SCALED_ACT_DYNAMIC, {0}},
    {"W8A8", FORM_STATIC, OQ_SCALED_ACT_STATIC, {0}},
    {"W4A8_DYNAMIC", FORM_PAIRS, OQ_SCALED_ACT_DYNAMIC, {0}},
    {"WFP8AFP8_DYNAMIC", FORM_FP8, OQ_SCALED_ACT_DYNAMIC, {0}},
    {"W8A8_MXFP8", FORM_BLOCK, 0, {.kind = OQ_BLOCK_MXFP8}},
    {"W4A8_MXFP", FORM_BLOCK, 0, {.kind = OQ_BLOCK_MXFP4, .names = &mxfp4_names, .act = &oq_dtype_f8_e4m3}},
    {"W4A4_MXFP4", FORM_BLOCK, 0, {.kind = OQ_BLOCK_MXFP4, .names = &mxfp4_names}},
    {"W4A4_MXFP4_DUALSCALE", FORM_DUAL, 0, {.kind = OQ_BLOCK_MXFP4, .names = &mxfp4_names}},
};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_ascend;
}

/* ---- what the description says of one layer ------------------------------------------------------------ */

/* The word under the weight's name, as the file has it or as its tensors are named now; NULL: none. */
static const char *word_of(const oq_declared *declared, const oq_ckpt *ckpt, const char *name)
{
    static const char *const inside[] = {"", ".linear"};
    const oq_json *all = oq_json_get(declared->options, "quant_model_description");
    const char *const prefixes[] = {"", ckpt->prefix ? ckpt->prefix : ""};
    for (size_t p = 0; p < OQ_COUNT(prefixes); p++)
        for (size_t i = 0; i < OQ_COUNT(inside); i++) {
            char key[1100];
            snprintf(key, sizeof key, "%s%s%s.weight", prefixes[p], name, inside[i]);
            const char *word = oq_json_string(oq_json_get(all, key));
            if (word) return word;
        }
    return NULL;
}

/* The row of a word, whose "_SVD" tells of a branch; NULL: none. */
static const type_row *row_of(const char *word)
{
    char plain[64] = "";
    const char *svd = word ? strstr(word, "_SVD") : NULL;
    if (!word || strlen(word) >= sizeof plain) return NULL;
    snprintf(plain, sizeof plain, "%.*s%s", svd ? (int)(svd - word) : (int)strlen(word), word,
             svd ? svd + strlen("_SVD") : "");
    for (size_t i = 0; i < OQ_COUNT(types); i++)
        if (strcmp(types[i].name, plain) == 0) return &types[i];
    return NULL;
}

static oq_status find_row(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                          const type_row **out)
{
    const char *word = word_of(declared, ckpt, name);
    *out = row_of(word);
    if (*out) return OQ_OK;
    if (word && strcmp(word, "FLOAT") != 0)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layer '%s': msModelSlim's type '%s' is not in this build yet; W8A8, W8A8_DYNAMIC, W8A8_MIX, "
            "W8A16, W4A8_DYNAMIC, W4A4_DYNAMIC, WFP8AFP8_DYNAMIC, W8A8_MXFP8, W4A8_MXFP, W4A4_MXFP4 and "
            "W4A4_MXFP4_DUALSCALE are",
            name, word);
    if (oq_scaled_is_plain(ckpt, name)) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "layer '%s' is quantized in the file, but quant_model_description %s",
                   name, word ? "says FLOAT" : "does not name it");
}

/* Does the description name this tensor of the layer, in any spelling of it? */
static bool is_described(const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                         const char *suffix)
{
    static const char *const inside[] = {"", ".linear", ".div"};
    const oq_json *all = oq_json_get(declared->options, "quant_model_description");
    const char *const prefixes[] = {"", ckpt->prefix ? ckpt->prefix : ""};
    for (size_t p = 0; p < OQ_COUNT(prefixes); p++)
        for (size_t i = 0; i < OQ_COUNT(inside); i++) {
            char key[1100];
            snprintf(key, sizeof key, "%s%s%s.%s", prefixes[p], name, inside[i], suffix);
            if (oq_json_get(all, key)) return true;
        }
    return false;
}

/* What the description names is there: without its zero points or factors a layer would be read as another one. */
static oq_status check_described(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt,
                                 const char *name)
{
    static const char *const suffixes[] = {
        "weight_scale",   "weight_offset", "weight_dual_scale", "mul_scale",   "svd_lowrank_l1",
        "svd_lowrank_l2", "deq_scale",     "quant_bias",        "input_scale", "input_offset"};
    for (size_t i = 0; i < OQ_COUNT(suffixes); i++)
        if (!oq_scaled_find(ckpt, name, suffixes[i]) && is_described(declared, ckpt, name, suffixes[i]))
            return oq_fail(env, OQ_E_FORMAT, "tensor '%s.%s' is missing, which quant_model_description names",
                           name, suffixes[i]);
    return OQ_OK;
}

/* ---- integers ------------------------------------------------------------------------------------------ */

typedef struct layer {
    oq_env *env;
    const oq_ckpt *ckpt;
    const char *name;
    const type_row *row;
    int64_t n, k;
} layer;

static float value_at(const oq_ckpt_tensor *t, int64_t i)
{
    float x = 0.0f;
    t->dtype->to_f32(&x, t->data + (size_t)i * t->dtype->bytes, 1);
    return x;
}

/* Has the tensor a number that is not zero? False where it is not there. */
static bool has_values(const oq_ckpt_tensor *t)
{
    for (int64_t i = 0; t && t->data && t->dtype && i < t->elems; i++)
        if (value_at(t, i) < 0 || value_at(t, i) > 0) return true;
    return false;
}

static void claim(oq_part_source *out, const oq_ckpt_tensor *t)
{
    int i = 0;
    while (i < OQ_MAX_BESIDE - 1 && out->beside[i]) i++;
    if (t) out->beside[i] = t;
}

/* Of the static treatment, what a mixed layer does not need. */
static void claim_static(const layer *l, oq_part_source *out)
{
    static const char *const suffixes[] = {"deq_scale", "quant_bias", "input_offset", "input_scale"};
    for (size_t i = 0; l->row->form == FORM_MIX && i < OQ_COUNT(suffixes); i++)
        claim(out, oq_scaled_find(l->ckpt, l->name, suffixes[i]));
}

/* Signed codes plus 128; zero points with them. */
static void make_codes(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < n * k; i++) ((uint8_t *)dst)[i] = self->tensor->data[i] ^ 0x80;
}

static void make_zeros(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const int64_t groups = oq_ceil_div(k, self->arg[2]), stored = oq_ceil_div(k, self->arg[1]);
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < groups; g++)
            ((uint8_t *)dst)[r * groups + g] =
                (uint8_t)(value_at(self->tensor, r * stored + g * self->arg[2] / self->arg[1]) + 128.0f);
}

static oq_status check_offsets(const layer *l, const oq_ckpt_tensor *t, int64_t groups)
{
    if (!t->dtype || !t->dtype->floating || t->n_dims != 2 || t->dim[0] != l->n || t->dim[1] != groups)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values of %s, it needs [%lld, %lld] of a float", t->name,
                       (long long)t->elems, t->type_name, (long long)l->n, (long long)groups);
    for (int64_t i = 0; t->data && i < t->elems; i++) {
        const float x = value_at(t, i);
        if (!(x >= -128.0f && x <= 127.0f) || rintf(x) < x || rintf(x) > x)
            return oq_fail(l->env, OQ_E_FORMAT,
                           "tensor '%s' is %g at index %lld; a zero point is one of the codes", t->name,
                           (double)x, (long long)i);
    }
    return OQ_OK;
}

/* Scales per group of columns, or zero points that are not zero. */
static oq_status locate_groups(const layer *l, const oq_ckpt_tensor *codes, const oq_ckpt_tensor *offset,
                               int64_t groups, oq_part_source *out)
{
    const oq_ckpt_tensor *scale = NULL;
    const int64_t columns = groups > 0 && l->k % groups == 0 ? l->k / groups : 0,
                  of_format = columns ? oq_group_of_format(columns, groups) : 0;
    if (!of_format)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "layer '%s' has %lld groups of %lld columns; groups of a multiple of 16 are read",
                       l->name, (long long)groups, (long long)l->k);
    OQ_TRY(oq_group_scale(l->env, l->ckpt, l->name, "weight_scale", l->n, groups, &scale));
    if (offset) OQ_TRY(check_offsets(l, offset, groups));
    const bool zeros = has_values(offset);
    const oq_plane_source common = {.arg = {8, columns, of_format}};
    const bool quantized = l->row->act == OQ_SCALED_ACT_DYNAMIC;
    *out = (oq_part_source){.format = oq_format_int(8, (int)of_format, zeros, scale->dtype),
                            .act = quantized ? &oq_dtype_i8 : NULL,
                            .act_scale = quantized ? OQ_ACT_DYNAMIC_TOKEN : OQ_ACT_NONE};
    for (int p = OQ_PLANE_DATA; p <= OQ_PLANE_ZERO; p++) out->plane[p] = common;
    out->plane[OQ_PLANE_DATA].tensor = codes;
    out->plane[OQ_PLANE_DATA].make = make_codes;
    out->plane[OQ_PLANE_SCALE].tensor = scale;
    out->plane[OQ_PLANE_SCALE].make = oq_group_make_scales;
    out->plane[OQ_PLANE_ZERO].tensor = offset;
    out->plane[OQ_PLANE_ZERO].make = make_zeros;
    return OQ_OK;
}

/* Scales per row, or per group, which only their shape tells. */
static oq_status locate_int8(const layer *l, const oq_declared *declared, oq_part_source *out)
{
    const oq_ckpt_tensor *codes = oq_scaled_find(l->ckpt, l->name, "weight"),
                         *scale = oq_scaled_find(l->ckpt, l->name, "weight_scale"),
                         *offset = oq_scaled_find(l->ckpt, l->name, "weight_offset");
    const oq_scaled_rules rules = {.act = l->row->act};
    const int64_t groups = scale && scale->n_dims == 2 ? scale->dim[1] : 1;
    bool found = false;
    if (codes && codes->dtype == &oq_dtype_i8 && codes->n_dims == 2 && codes->dim[0] == l->n &&
        codes->dim[1] == l->k && (groups > 1 || has_values(offset))) {
        OQ_TRY(locate_groups(l, codes, offset, groups, out));
        claim_static(l, out);
        return OQ_OK;
    }
    OQ_TRY(oq_scaled_locate(l->env, l->row->form == FORM_MIX ? &int8_mix : &int8, &rules, declared, l->ckpt,
                            l->name, l->n, l->k, out, &found));
    claim(out, offset);
    claim_static(l, out);
    return OQ_OK;
}

/* ---- static activations -------------------------------------------------------------------------------- */

/* deq_scale is the product of both scales: as F32, or as its bits in I64. */
static void make_static_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const float input = value_at(self->of, 0);
    (void)k;
    for (int64_t r = 0; r < n; r++) {
        float x;
        memcpy(&x, self->tensor->data + (size_t)r * self->tensor->dtype->bytes, sizeof x);
        x /= input;
        memcpy((float *)dst + r, &x, sizeof x);
    }
}

static oq_status check_deq_scale(const layer *l, const oq_ckpt_tensor *t)
{
    if ((t->dtype != &oq_dtype_f32 && t->dtype != &oq_dtype_i64) || t->elems != l->n)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, it needs %lld of F32 or I64",
                       t->name, (long long)t->elems, t->type_name, (long long)l->n);
    for (int64_t r = 0; t->data && r < l->n; r++) {
        float x;
        memcpy(&x, t->data + (size_t)r * t->dtype->bytes, sizeof x);
        uint32_t rest = 0;
        if (t->dtype == &oq_dtype_i64) memcpy(&rest, t->data + (size_t)r * sizeof(int64_t) + 4, sizeof rest);
        if (rest || !isnormal(x) || x < 0)
            return oq_fail(l->env, OQ_E_FORMAT,
                           "scale '%s' is %g at index %lld; it must be positive and finite", t->name,
                           (double)x, (long long)r);
    }
    return OQ_OK;
}

/* A bias in units of the product. */
static void make_static_bias(void *dst, const oq_plane_source *self, int64_t n, int64_t k)
{
    const oq_ckpt_tensor *deq = self->of;
    (void)k;
    for (int64_t r = 0; r < n; r++) {
        float unit;
        memcpy(&unit, deq->data + (size_t)r * deq->dtype->bytes, sizeof unit);
        ((float *)dst)[r] = (float)((double)value_at(self->tensor, r) * (double)unit);
    }
}

static oq_status check_zero_point(const layer *l, const oq_ckpt_tensor *offset, const oq_ckpt_tensor *bias)
{
    const float x = value_at(offset, 0);
    if (!offset->dtype->floating && offset->dtype != &oq_dtype_i8)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s' is %s, a zero point is a float or I8", offset->name,
                       offset->type_name);
    if (offset->elems != 1 || !(x >= -128.0f && x <= 127.0f) || rintf(x) < x || rintf(x) > x)
        return oq_fail(l->env, OQ_E_FORMAT,
                       "tensor '%s' has %lld values, the first is %g; a zero point is one of the codes",
                       offset->name, (long long)offset->elems, (double)x);
    if (oq_scaled_find(l->ckpt, l->name, "mul_scale") || oq_scaled_find(l->ckpt, l->name, "svd_lowrank_l1"))
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' is %g: a zero point of smoothed activations is not in this build yet",
                       offset->name, (double)x);
    if (bias && bias->dtype && bias->elems == l->n) return OQ_OK;
    return oq_fail(
        l->env, OQ_E_FORMAT,
        "tensor '%s.quant_bias' has %lld values; beside '%s', which it makes up for, it needs %lld", l->name,
        (long long)(bias ? bias->elems : 0), offset->name, (long long)l->n);
}

/* Codes of activations are x / scale + zero point; what the weights make of that stands in quant_bias with the bias itself. */
static oq_status locate_zero_point(const layer *l, const oq_ckpt_tensor *deq, const oq_ckpt_tensor *input,
                                   oq_part_source *out)
{
    const oq_ckpt_tensor *offset = oq_scaled_find(l->ckpt, l->name, "input_offset"),
                         *in_units = oq_scaled_find(l->ckpt, l->name, "quant_bias"),
                         *bias = oq_scaled_find(l->ckpt, l->name, "bias");
    claim(out, offset);
    if (has_values(offset)) {
        OQ_TRY(check_zero_point(l, offset, in_units));
        out->shift = value_at(offset, 0) * value_at(input, 0);
        out->bias = (oq_plane_source){.tensor = in_units, .make = make_static_bias, .of = deq};
        claim(out, bias);
        return OQ_OK;
    }
    if (has_values(in_units) && !bias)
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' holds a bias in units of the product, and '%s.bias' is missing",
                       in_units->name, l->name);
    claim(out, in_units);
    return OQ_OK;
}

static oq_status locate_static(const layer *l, oq_part_source *out)
{
    const oq_ckpt_tensor *codes = oq_scaled_find(l->ckpt, l->name, "weight"),
                         *deq = oq_scaled_find(l->ckpt, l->name, "deq_scale"), *input = NULL;
    OQ_TRY(oq_block_number(l->env, l->ckpt, l->name, "input_scale", &input));
    if (!codes || codes->dtype != &oq_dtype_i8 || codes->n_dims != 2 || codes->dim[0] != l->n ||
        codes->dim[1] != l->k)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.weight' is %s, its layer needs [%lld, %lld] of I8",
                       l->name, codes ? codes->type_name : "missing", (long long)l->n, (long long)l->k);
    if (!deq)
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.deq_scale' is missing beside its codes", l->name);
    OQ_TRY(check_deq_scale(l, deq));
    *out = (oq_part_source){
        .format = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_STATIC_TENSOR};
    out->plane[OQ_PLANE_DATA].tensor = codes;
    out->plane[OQ_PLANE_SCALE] = (oq_plane_source){.tensor = deq, .make = make_static_scales, .of = input};
    out->plane[OQ_PLANE_INPUT_SCALE].tensor = input;
    claim(out, oq_scaled_find(l->ckpt, l->name, "weight_scale"));
    claim(out, oq_scaled_find(l->ckpt, l->name, "weight_offset"));
    return locate_zero_point(l, deq, input, out);
}

/* ---- one layer ----------------------------------------------------------------------------------------- */

/* scale_bias serves a machine that takes codes without sign; nothing of it is left in the values. */
static oq_status locate_pairs(const layer *l, oq_part_source *out)
{
    const oq_ckpt_tensor *offset = oq_scaled_find(l->ckpt, l->name, "weight_offset");
    if (has_values(offset))
        return oq_fail(l->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' holds zero points that are not zero; W4A8_DYNAMIC is read without",
                       offset->name);
    OQ_TRY(oq_pair_locate(l->env, l->ckpt, l->name, 0, l->n, l->k, out));
    out->act = &oq_dtype_i8;
    out->act_scale = OQ_ACT_DYNAMIC_TOKEN;
    claim(out, offset);
    claim(out, oq_scaled_find(l->ckpt, l->name, "scale_bias"));
    return OQ_OK;
}

static oq_status locate_block(const layer *l, oq_part_source *out)
{
    const oq_ckpt_tensor *dual = NULL;
    OQ_TRY(oq_block_locate(l->env, &l->row->block, AROUND ",weight_dual_scale", l->ckpt, l->name, l->n, l->k,
                           out));
    OQ_TRY(oq_block_dual(l->env, l->ckpt, l->name, l->n, l->k, &dual));
    if ((dual != NULL) != (l->row->form == FORM_DUAL))
        return oq_fail(l->env, OQ_E_FORMAT, "tensor '%s.weight_dual_scale' is %s, but the layer's type is %s",
                       l->name, dual ? "there" : "missing", l->row->name);
    if (!dual) return OQ_OK;
    out->format = &oq_format_mxfp4_dual;
    out->act_scale = OQ_ACT_DYNAMIC_MX_DUAL;
    out->plane[OQ_PLANE_GLOBAL].tensor = dual;
    return OQ_OK;
}

static oq_status locate_form(const layer *l, const oq_declared *declared, oq_part_source *out)
{
    const oq_scaled_rules rules = {.act = l->row->act, .format = &oq_format_fp8_e4m3_channel};
    bool found = false;
    switch (l->row->form) {
    case FORM_INT8:
    case FORM_BYTES4:
    case FORM_MIX:
        OQ_TRY(locate_int8(l, declared, out));
        if (l->row->form == FORM_BYTES4) out->act_scale = OQ_ACT_DYNAMIC_TOKEN4;
        return OQ_OK;
    case FORM_STATIC:
        return locate_static(l, out);
    case FORM_PAIRS:
        return locate_pairs(l, out);
    case FORM_BLOCK:
    case FORM_DUAL:
        return locate_block(l, out);
    case FORM_FP8:
        break;
    }
    OQ_TRY(oq_scaled_locate(l->env, &fp8, &rules, declared, l->ckpt, l->name, l->n, l->k, out, &found));
    claim(out, oq_scaled_find(l->ckpt, l->name, "weight_offset"));
    return OQ_OK;
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    layer l = {.env = env, .ckpt = ckpt, .name = name, .n = n, .k = k};
    *found = false;
    OQ_TRY(find_row(env, declared, ckpt, name, &l.row));
    if (!l.row) return OQ_OK;
    if (oq_scaled_is_plain(ckpt, name))
        return oq_fail(env, OQ_E_FORMAT,
                       "layer '%s' is plain in the file, but quant_model_description says %s", name,
                       l.row->name);
    OQ_TRY(check_described(env, declared, ckpt, name));
    OQ_TRY(locate_form(&l, declared, out));
    OQ_TRY(oq_around_locate(env, &around, ckpt, name, n, k, out));
    *found = true;
    return OQ_OK;
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    if (!oq_block_layer_of(declared, ckpt, t, name_length, n, k)) return false;
    snprintf(name, sizeof name, "%.*s", (int)*name_length, t->name);
    const type_row *row = row_of(word_of(declared, ckpt, name));
    if (row && row->form == FORM_PAIRS) *n = 2 * t->dim[0], *k = t->dim[1];
    return true;
}

const oq_dialect oq_dialect_msmodelslim = {
    .name = "msmodelslim",
    .help =
        "msModelSlim's INT8, INT4, FP8, MXFP8 and MXFP4, a type per layer in quant_model_description.json",
    .method = &oq_method_ascend,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = layer_of,
};
