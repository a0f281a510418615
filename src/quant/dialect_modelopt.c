/* dialect_modelopt.c -- NVIDIA ModelOpt's 8-bit layouts: `weight` with `weight_scale`, and an `input_scale` that
 * its per-tensor FP8 always has. The algorithm is one for the file (quant_algo), or one per layer
 * (MIXED_PRECISION: quantized_layers). */
#include "quant/method_modelopt.h"
#include "quant/scaled_planes.h"

#include "base/names.h"

#include <string.h>

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

typedef struct algorithm_row {
    const char *name;
    const oq_scaled_spelling *spelling;
    oq_scaled_rules rules;
} algorithm_row;

static const algorithm_row algorithms[] = {
    {"FP8", &fp8, {OQ_SCALED_ACT_STATIC, &oq_format_fp8_e4m3_tensor}},
    {"FP8_PER_CHANNEL_PER_TOKEN", &fp8, {OQ_SCALED_ACT_DYNAMIC, &oq_format_fp8_e4m3_channel}},
    {"FP8_PB_WO", &fp8, {OQ_SCALED_ACT_NONE, &oq_format_fp8_e4m3_block128}},
    {"W8A8_SQ_PER_CHANNEL", &int8, {OQ_SCALED_ACT_STATIC, &oq_format_int8_channel}},
};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_modelopt || named == &oq_method_modelopt_mixed;
}

/* The algorithm that the metadata gives one layer; NULL in *out: none, the layer is plain. */
static oq_status find_algorithm(oq_env *env, const oq_declared *declared, const char *name,
                                const algorithm_row **out)
{
    const oq_json *options = declared->options;
    const oq_json *from = options;
    *out = NULL;
    if (declared->method == &oq_method_modelopt_mixed)
        from = oq_json_get(oq_json_get(options, "quantized_layers"), name);
    if (!from) return OQ_OK;
    const char *algo = oq_json_string(oq_json_get(from, "quant_algo"));
    for (size_t i = 0; algo && i < OQ_COUNT(algorithms) && !*out; i++)
        if (oq_name_equal(algorithms[i].name, algo)) *out = &algorithms[i];
    if (*out) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s': quant_algo '%s' is not in this build yet; FP8, FP8_PER_CHANNEL_PER_TOKEN, "
                   "FP8_PB_WO and W8A8_SQ_PER_CHANNEL are",
                   name, algo ? algo : "(none)");
}

/* A layer that the metadata leaves out must be plain. */
static oq_status check_plain(oq_env *env, const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    if (!t || (t->dtype && t->dtype->floating && t->dtype->bytes > 1)) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %s, but quantized_layers does not name '%s'", t->name,
                   t->type_name, name);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const algorithm_row *row = NULL;
    *found = false;
    OQ_TRY(find_algorithm(env, declared, name, &row));
    if (!row) return check_plain(env, ckpt, name);
    const oq_ckpt_tensor *smooth = oq_scaled_find(ckpt, name, "pre_quant_scale");
    if (smooth)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "tensor '%s' scales the activations of its layer before they are quantized, which is not in "
            "this build yet",
            smooth->name);
    return oq_scaled_locate(env, row->spelling, &row->rules, declared, ckpt, name, n, k, out, found);
}

const oq_dialect oq_dialect_modelopt = {
    .name = "modelopt",
    .help =
        "ModelOpt FP8 (per tensor with input_scale, per channel, per block) and INT8, also mixed per layer",
    .method = &oq_method_modelopt,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
};
