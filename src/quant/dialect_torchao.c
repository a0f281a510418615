/* dialect_torchao.c -- TorchAO's tensor subclasses as safetensors holds them: module.weight is taken apart into
 * `_weight_qdata` and `_weight_scale`, and the header's entry of its name tells the class and its arguments. */
#include "quant/scaled_planes.h"

#include <string.h>

extern const oq_method oq_method_torchao;

#define TORCHAO(dtype, format)                                                                               \
    {                                                                                                        \
        .code = &dtype, .tensor = &format##_tensor, .channel = &format##_channel,                            \
        .weight_name = "_weight_qdata", .scale_names = "_weight_scale", .spare_names = "_weight_zero_point"  \
    }

static const oq_scaled_spelling fp8 = TORCHAO(oq_dtype_f8_e4m3, oq_format_fp8_e4m3);
static const oq_scaled_spelling int8 = TORCHAO(oq_dtype_i8, oq_format_int8);

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    if (named) return named == &oq_method_torchao;
    return oq_scaled_detect(&fp8, ckpt) || oq_scaled_detect(&int8, ckpt);
}

/* The class's arguments: activations with a scale per row, or none. */
static oq_status read_rules(oq_env *env, const oq_json *data, const char *name, oq_scaled_rules *out)
{
    const oq_json *act = oq_json_get(data, "act_quant_kwargs");
    const oq_json *granularity = oq_json_get(oq_json_get(oq_json_get(act, "_data"), "granularity"), "_type");
    const char *word = oq_json_string(granularity);
    *out = (oq_scaled_rules){.act = OQ_SCALED_ACT_NONE};
    if (oq_json_type(act) == OQ_JSON_NULL) return OQ_OK;
    out->act = OQ_SCALED_ACT_DYNAMIC;
    if (word && strcmp(word, "PerRow") == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s': activations of granularity '%s' are not in this build yet; 'PerRow' is", name,
                   word ? word : "(none)");
}

static oq_status check_zero_points(oq_env *env, const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "_weight_zero_point");
    for (size_t i = 0; t && t->data && i < t->bytes; i++)
        if (t->data[i])
            return oq_fail(env, OQ_E_UNSUPPORTED,
                           "tensor '%s' has zero points that are not zero, which is not in this build yet",
                           t->name);
    return OQ_OK;
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

static oq_status locate_class(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                              int64_t n, int64_t k, const char *class_name, const oq_json *json,
                              oq_part_source *out, bool *found)
{
    const bool is_fp8 = class_name && strcmp(class_name, "Float8Tensor") == 0;
    oq_scaled_rules rules;
    if (!is_fp8 && !(class_name && strcmp(class_name, "Int8Tensor") == 0))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s' is a TorchAO tensor of class '%s', which is not in this build yet; "
                       "'Float8Tensor' and "
                       "'Int8Tensor' are",
                       name, class_name ? class_name : "(none in the header)");
    OQ_TRY(read_rules(env, oq_json_get(json, "_data"), name, &rules));
    OQ_TRY(check_zero_points(env, ckpt, name));
    return oq_scaled_locate(env, is_fp8 ? &fp8 : &int8, &rules, declared, ckpt, name, n, k, out, found);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const char *class_name = NULL;
    oq_json *json = NULL;
    *found = false;
    if (!oq_scaled_find(ckpt, name, "_weight_qdata") && !oq_scaled_find(ckpt, name, "_weight_scale"))
        return OQ_OK; /* a layer that was left out */
    OQ_TRY(read_class(env, ckpt, name, &json, &class_name));
    const oq_status st = locate_class(env, declared, ckpt, name, n, k, class_name, json, out, found);
    oq_json_free(json);
    return st;
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    (void)declared, (void)ckpt;
    static const char ending[] = "._weight_qdata";
    const size_t length = strlen(t->name), m = sizeof ending - 1;
    if (t->n_dims != 2 || length <= m || strcmp(t->name + length - m, ending) != 0) return false;
    *name_length = length - m;
    *n = t->dim[0];
    *k = t->dim[1];
    return true;
}

static bool harmless(const oq_ckpt_tensor *t)
{
    static const char ending[] = "._weight_zero_point";
    const size_t n = strlen(t->name), m = sizeof ending - 1;
    return n > m && strcmp(t->name + n - m, ending) == 0;
}

const oq_dialect oq_dialect_torchao = {
    .name = "torchao",
    .help = "TorchAO's Float8Tensor and Int8Tensor, weight only or with a scale per row of activations",
    .method = &oq_method_torchao,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .harmless = harmless,
    .layer_of = layer_of,
};
