/* method_modelopt.c -- NVIDIA ModelOpt's checkpoints: FP8 and INT8 layouts (modelopt), NVFP4 (modelopt_fp4),
 * MXFP8 (modelopt_mxfp8) and per-layer mixtures (modelopt_mixed). Metadata is nested (hf_quant_config.json)
 * or flat (config.json); it is made flat before the rows are read. */
#include "quant/method_modelopt.h"

#include "format/float4.h"

#include "base/names.h"

#include <string.h>

static const struct {
    const char *algo;
    const oq_method *method;
} algorithms[] = {
    {"FP8", &oq_method_modelopt},
    {"FP8_PER_CHANNEL_PER_TOKEN", &oq_method_modelopt},
    {"FP8_PB_WO", &oq_method_modelopt},
    {"W8A8_SQ_PER_CHANNEL", &oq_method_modelopt},
    {"NVFP4", &oq_method_modelopt_fp4},
    {"W4A16_NVFP4", &oq_method_modelopt_fp4},
    {"NVFP4_AWQ", &oq_method_modelopt_fp4},
    {"NVFP4_SVD", &oq_method_modelopt_fp4},
    {"W4A8_NVFP4_FP8", &oq_method_modelopt_fp4},
    {"W8A16", &oq_method_modelopt},
    {"W4A16_AWQ", &oq_method_modelopt},
    {"INT4_AWQ", &oq_method_modelopt},
    {"W4A8_AWQ", &oq_method_modelopt},
    {"W4A8_MXFP4_FP8", &oq_method_modelopt},
    {"MXFP4", &oq_method_modelopt},
    {"MXFP8", &oq_method_modelopt_mxfp8},
    {"MIXED_PRECISION", &oq_method_modelopt_mixed},
};

static const oq_method_option options[] = {
    {.name = "quant_algo",
     .type = OQ_METHOD_CHOICE,
     .choices = "FP8,FP8_PER_CHANNEL_PER_TOKEN,FP8_PB_WO,W8A8_SQ_PER_CHANNEL,W8A16,W4A16_AWQ,INT4_AWQ,W4A8_"
                "AWQ,NVFP4,W4A16_NVFP4,"
                "NVFP4_AWQ,NVFP4_SVD,W4A8_NVFP4_FP8,W4A8_MXFP4_FP8,MXFP4,MXFP8,MIXED_PRECISION",
     .help = "the producer's algorithm"},
    {.name = "group_size",
     .type = OQ_METHOD_INT,
     .min = 1,
     .max = 65536,
     .help = "columns that share a scale"},
    OQ_METHOD_IGNORED_ROW(",exclude_modules,ignore"),
    {.name = "activations",
     .type = OQ_METHOD_CHOICE,
     .choices = "none,dynamic",
     .fallback = "\"none\"",
     .side = OQ_SIDE_ONLINE,
     .help = "online NVFP4: activations stay as they are, or become e2m1 under a scale of all of them"},
    {.name = "mxfp4_activations",
     .type = OQ_METHOD_CHOICE,
     .choices = "none,dynamic",
     .help = "quant_algo MXFP4, which two recipes write: activations stay as they are "
             "(MXFP4_MLP_WEIGHT_ONLY_CFG), or "
             "become e2m1 in groups of 32 (MXFP4_DEFAULT_CFG; so too where nobody says, with a warning)"},
    {.name = "kv_cache_quant_algo",
     .type = OQ_METHOD_STRING,
     .help = "the producer's wish for a language model's cache"},
    {.name = "kv_cache_scheme", .type = OQ_METHOD_OBJECT, .help = "the same in the flat shape"},
    {.name = "config_groups",
     .type = OQ_METHOD_OBJECT,
     .help = "the producer's own description of its groups"},
    {.name = "quantized_layers",
     .type = OQ_METHOD_OBJECT,
     .help = "MIXED_PRECISION: a layer's name to its algorithm"},
    {.name = "producer", .type = OQ_METHOD_OBJECT, .help = "name and version of the producer"},
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_modelopt_serialized"),
    {0},
};

static const char *algorithm_of(const oq_json *options_json)
{
    const oq_json *nested = oq_json_get(options_json, "quantization");
    const oq_json *from = oq_json_type(nested) == OQ_JSON_OBJECT ? nested : options_json;
    return oq_json_string(oq_json_get(from, "quant_algo"));
}

const oq_method *oq_modelopt_refine(const oq_method *method, const oq_json *options_json)
{
    const char *algo = algorithm_of(options_json);
    if (!method || !algo || method->options != options) return method;
    for (size_t i = 0; i < OQ_COUNT(algorithms); i++)
        if (oq_name_equal(algorithms[i].algo, algo)) return algorithms[i].method;
    return method;
}

/* Members of "quantization" move up; a member that stands in both shapes with different values is an error
 * later. */
static oq_status prepare(oq_env *env, oq_json *raw)
{
    oq_json *nested = oq_json_copy(oq_json_get(raw, "quantization"));
    if (!nested) return OQ_OK;
    oq_status st = OQ_OK;
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    if (oq_json_type(nested) != OQ_JSON_OBJECT)
        st = oq_fail(env, OQ_E_CONFIG, "method 'modelopt': 'quantization' must be a mapping, not %s",
                     oq_json_type_name(nested));
    while (st == OQ_OK && oq_json_next(nested, &at, &key, &value)) {
        const oq_json *flat = oq_json_get(raw, key);
        if (flat && !oq_json_equal(flat, value))
            st = oq_fail(env, OQ_E_CONFIG, "method 'modelopt': '%s' is given twice with different values",
                         key);
        else if (!flat && !oq_json_set(raw, key, oq_json_copy(value)))
            st = oq_fail(env, OQ_E_NOMEM, "method 'modelopt': no memory for '%s'", key);
    }
    oq_json_free(nested);
    return st;
}

static bool is_mxfp4(const oq_json *words)
{
    const char *algo = oq_json_string(oq_json_get(words, "quant_algo"));
    return algo && oq_name_equal(algo, "MXFP4");
}

/* Is it the algorithm of any layer? */
static bool has_mxfp4(const oq_method_args *args)
{
    const oq_json *words = NULL;
    const char *name = NULL;
    void *at = NULL;
    if (args->method != &oq_method_modelopt_mixed) return is_mxfp4(args->options);
    while (oq_json_next(oq_json_get(args->options, "quantized_layers"), &at, &name, &words))
        if (is_mxfp4(words)) return true;
    return false;
}

bool oq_modelopt_is_ambiguous(const oq_method_args *args)
{
    return args->method->options == options && !oq_json_get(args->options, "mxfp4_activations") &&
           has_mxfp4(args);
}

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    const char *name = args->method->name;
    const char *algo = oq_json_string(oq_json_get(args->options, "quant_algo"));
    if (oq_json_get(args->options, "mxfp4_activations") && !has_mxfp4(args))
        return oq_fail(env, OQ_E_CONFIG,
                       "method '%s': mxfp4_activations goes with checkpoints of quant_algo MXFP4", name);
    if (!args->serialized) return OQ_OK;
    if (!algo)
        return oq_fail(env, OQ_E_CONFIG, "method '%s': the checkpoint's metadata has no quant_algo", name);
    const oq_method *meant = oq_modelopt_refine(args->method, args->options);
    if (meant != args->method && args->method != &oq_method_modelopt)
        return oq_fail(env, OQ_E_CONFIG, "method '%s' does not go with quant_algo '%s', which is method '%s'",
                       name, algo, meant->name);
    if (meant == &oq_method_modelopt_mixed &&
        oq_json_size(oq_json_get(args->options, "quantized_layers")) == 0)
        return oq_fail(env, OQ_E_CONFIG, "method '%s': quant_algo MIXED_PRECISION needs quantized_layers",
                       name);
    return OQ_OK;
}

/* Plain weights as NVFP4, rows of whole groups; activations stay as they are, or are quantized under a scale of all of
 * them. */
static oq_status choose_nvfp4(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer,
                              oq_scheme *out)
{
    const char *act = oq_json_string(oq_json_get(args->options, "activations"));
    (void)env;
    if (layer->k % 16 != 0) return OQ_OK;
    *out = (oq_scheme){.weight = &oq_format_nvfp4};
    if (act && strcmp(act, "dynamic") == 0)
        out->act = &oq_dtype_f4_e2m1, out->act_scale = OQ_ACT_DYNAMIC_NVFP4;
    return OQ_OK;
}

/* ---- made-up weights ----------------------------------------------------------------------------------- */

static const struct {
    const char *algo;
    const oq_format *weight;
    const oq_dtype *act;
    oq_act_scale act_scale;
} made_up[] = {
    {"FP8", &oq_format_fp8_e4m3_tensor, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"FP8_PER_CHANNEL_PER_TOKEN", &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"FP8_PB_WO", &oq_format_fp8_e4m3_block128, NULL, OQ_ACT_NONE},
    {"W8A8_SQ_PER_CHANNEL", &oq_format_int8_channel, &oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN},
    {"W8A16", &oq_format_int8_channel, NULL, OQ_ACT_NONE},
    {"W4A16_AWQ", &oq_format_int4_g128, NULL, OQ_ACT_NONE},
    {"INT4_AWQ", &oq_format_int4_g128, NULL, OQ_ACT_NONE},
    {"W4A8_AWQ", &oq_format_int4_g128, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"NVFP4", &oq_format_nvfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_NVFP4},
    {"NVFP4_AWQ", &oq_format_nvfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_NVFP4},
    {"NVFP4_SVD", &oq_format_nvfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_NVFP4},
    {"W4A16_NVFP4", &oq_format_nvfp4, NULL, OQ_ACT_NONE},
    {"W4A8_NVFP4_FP8", &oq_format_nvfp4, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"W4A8_MXFP4_FP8", &oq_format_mxfp4, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"MXFP4", &oq_format_mxfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_CEIL},
    {"MXFP8", &oq_format_mxfp8, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX},
};

/* A layer of a mixture by the first of its parts that is named. */
static const oq_json *words_of(const oq_method_args *args, const oq_layer_desc *layer)
{
    const oq_json *layers = oq_json_get(args->options, "quantized_layers");
    if (args->method != &oq_method_modelopt_mixed) return args->options;
    const oq_json *words = oq_json_get(layers, layer->name);
    for (int i = 0; !words && i < layer->n_parts; i++) words = oq_json_get(layers, layer->parts[i]);
    return words;
}

/* What the request says of activations that the file leaves open. */
static oq_status adjust(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer,
                        oq_scheme *scheme)
{
    const char *act = oq_json_string(oq_json_get(args->options, "mxfp4_activations"));
    (void)env;
    if (!act || strcmp(act, "none") != 0 || !is_mxfp4(words_of(args, layer))) return OQ_OK;
    scheme->act = NULL;
    scheme->act_scale = OQ_ACT_NONE;
    return OQ_OK;
}

static oq_status pretend(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    const char *algo = oq_json_string(oq_json_get(words_of(args, layer), "quant_algo"));
    for (size_t i = 0; algo && i < OQ_COUNT(made_up); i++)
        if (oq_name_equal(made_up[i].algo, algo))
            *out = (oq_scheme){
                .weight = made_up[i].weight, .act = made_up[i].act, .act_scale = made_up[i].act_scale};
    if (out->weight == &oq_format_nvfp4 && layer->k % 16 != 0) *out = (oq_scheme){0};
    return out->weight ? adjust(env, args, layer, out) : OQ_OK;
}

#define MODELOPT(symbol, method_name, method_aliases, chooser, sentence)                                     \
    const oq_method symbol = {.name = method_name,                                                           \
                              .aliases = method_aliases,                                                     \
                              .help = sentence,                                                              \
                              .options = options,                                                            \
                              .online = (chooser) != NULL,                                                   \
                              .serialized = true,                                                            \
                              .producer = true,                                                              \
                              .tolerated = "*",                                                              \
                              .prepare = prepare,                                                            \
                              .validate = validate,                                                          \
                              .choose = chooser,                                                             \
                              .adjust = adjust,                                                              \
                              .pretend = pretend}

MODELOPT(oq_method_modelopt, "modelopt", "modelopt_fp8", NULL,
         "FP8, INT8 and INT4 checkpoints by NVIDIA ModelOpt");
MODELOPT(oq_method_modelopt_fp4, "modelopt_fp4", "nvfp4,fp4,modelopt_nvfp4", choose_nvfp4,
         "NVFP4: checkpoints by NVIDIA ModelOpt, with 4-bit activations or plain ones; or weights quantized "
         "while loading");
MODELOPT(oq_method_modelopt_mixed, "modelopt_mixed", NULL, NULL,
         "checkpoints by NVIDIA ModelOpt with an algorithm per layer");
MODELOPT(oq_method_modelopt_mxfp8, "modelopt_mxfp8", NULL, NULL, "MXFP8 checkpoints by NVIDIA ModelOpt");
