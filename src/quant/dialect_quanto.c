/* dialect_quanto.c -- optimum-quanto: `weight._data` (int8, e4m3 or e5m2) with `weight._scale` per row, or codes of
 * four and two bits in groups (quanto_bits.c); `input_scale` and `output_scale` are 1 where activations are not quantized. */
#include "quant/quanto_bits.h"
#include "quant/scaled_planes.h"

#include "base/names.h"
#include "base/size.h"
#include "format/format_e5m2.h"

#include <stdio.h>
#include <string.h>

extern const oq_method oq_method_quanto;

#define QUANTO(dtype, format)                                                                                \
    {                                                                                                        \
        .code = &dtype, .tensor = &format##_tensor, .channel = &format##_channel,                            \
        .weight_name = "weight._data", .scale_names = "weight._scale", .spare_names = "output_scale"         \
    }

static const oq_scaled_spelling spellings[] = {QUANTO(oq_dtype_i8, oq_format_int8),
                                               QUANTO(oq_dtype_f8_e4m3, oq_format_fp8_e4m3),
                                               QUANTO(oq_dtype_f8_e5m2, oq_format_fp8_e5m2)};

static const oq_scaled_spelling *spelling_of(const oq_ckpt_tensor *codes)
{
    for (size_t i = 1; codes && i < OQ_COUNT(spellings); i++)
        if (spellings[i].code == codes->dtype) return &spellings[i];
    return &spellings[0];
}

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    if (named) return named == &oq_method_quanto;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const char *name = ckpt->tensors[i].name;
        const size_t length = strlen(name), m = sizeof "." OQ_QUANTO_BITS_CODES - 1;
        if (length > m && strcmp(name + length - m, "." OQ_QUANTO_BITS_CODES) == 0) return true;
    }
    for (size_t i = 0; i < OQ_COUNT(spellings); i++)
        if (oq_scaled_detect(&spellings[i], ckpt)) return true;
    return false;
}

/* One float that is 1, or none. Others were measured: that layer's input and output are quantized. */
static oq_status check_measured(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *suffix)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, suffix);
    float x = 1.0f;
    if (!t) return OQ_OK;
    if (t->elems != 1 || !t->dtype || !t->dtype->floating)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' has %lld values of %s, it must be one float", t->name,
                       (long long)t->elems, t->type_name);
    if (t->data) t->dtype->to_f32(&x, t->data, 1);
    if (x == 1.0f) return OQ_OK;
    return oq_fail(
        env, OQ_E_UNSUPPORTED,
        "tensor '%s' is %g: layer '%s' has quantized activations, of what comes out of it too, which "
        "are not in this build yet",
        t->name, (double)x, name);
}

static oq_status check_activations(oq_env *env, const oq_declared *declared)
{
    const char *acts = oq_json_string(oq_json_get(declared->options, "activations_dtype"));
    if (!acts || strcmp(acts, "none") == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "method 'quanto': activations_dtype '%s' is not in this build yet; plain activations are",
                   acts);
}

/* The type that the metadata says is the type of the codes. */
static oq_status check_codes(oq_env *env, const oq_declared *declared, const oq_ckpt_tensor *codes)
{
    const char *says = oq_json_string(oq_json_get(declared->options, "weights_dtype"));
    if (!says || !codes) return OQ_OK;
    if (strcmp(says, codes->dtype == &oq_dtype_i8        ? "int8"
                     : codes->dtype == &oq_dtype_f8_e5m2 ? "float8_e5m2"
                                                         : "float8") == 0)
        return OQ_OK;
    return oq_fail(env, OQ_E_MISMATCH, "tensor '%s' is %s, but the metadata says weights_dtype '%s'",
                   codes->name, codes->type_name, says);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    static const oq_scaled_rules rules = {.act = OQ_SCALED_ACT_NONE};
    const oq_ckpt_tensor *codes = oq_scaled_find(ckpt, name, "weight._data");
    const bool bits = oq_scaled_find(ckpt, name, OQ_QUANTO_BITS_CODES) != NULL;
    *found = false;
    if (!codes && !bits && oq_scaled_find(ckpt, name, "weight")) return OQ_OK; /* a layer that was left out */
    OQ_TRY(check_activations(env, declared));
    OQ_TRY(check_measured(env, ckpt, name, "input_scale"));
    OQ_TRY(check_measured(env, ckpt, name, "output_scale"));
    if (bits) {
        const char *says = oq_json_string(oq_json_get(declared->options, "weights_dtype"));
        OQ_TRY(oq_quanto_bits_locate(env, ckpt, name, says, n, k, out));
        out->beside[0] = oq_scaled_find(ckpt, name, "input_scale");
        *found = true;
        return OQ_OK;
    }
    OQ_TRY(check_codes(env, declared, codes));
    return oq_scaled_locate(env, spelling_of(codes), &rules, declared, ckpt, name, n, k, out, found);
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    (void)declared;
    static const char ending[] = ".weight._data", packed[] = "." OQ_QUANTO_BITS_CODES;
    const size_t length = strlen(t->name), m = sizeof ending - 1, l = sizeof packed - 1;
    char name[1024];
    if (length > l && length - l < sizeof name && strcmp(t->name + length - l, packed) == 0) {
        *name_length = length - l;
        snprintf(name, sizeof name, "%.*s", (int)(length - l), t->name);
        return oq_quanto_bits_shape(ckpt, name, t, n, k);
    }
    if (length <= m || strcmp(t->name + length - m, ending) != 0) return false;
    *name_length = length - m;
    if (t->n_dims != 2) return false;
    *n = t->dim[0];
    *k = t->dim[1];
    return true;
}

static bool harmless(const oq_ckpt_tensor *t)
{
    const size_t n = strlen(t->name), m = strlen(".output_scale");
    return n > m && strcmp(t->name + n - m, ".output_scale") == 0;
}

const oq_dialect oq_dialect_quanto = {
    .name = "quanto",
    .help =
        "optimum-quanto's weight._data (int8, e4m3, e5m2, or four and two bits in groups) with weight._scale",
    .method = &oq_method_quanto,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .harmless = harmless,
    .layer_of = layer_of,
    .shape_from = "its dimensions and those of its 'weight._scale'",
};
