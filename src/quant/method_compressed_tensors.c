/* method_compressed_tensors.c -- llm-compressor's checkpoints: config_groups say what each group of layers
 * is. */
#include "quant/packed_planes.h"
#include "quant/tensor_groups.h"

#include "format/float4.h"

#include <string.h>

static const oq_method_option options[] = {
    {.name = "config_groups",
     .type = OQ_METHOD_OBJECT,
     .help = "group to targets, weights and input_activations"},
    {.name = "format", .type = OQ_METHOD_STRING, .help = "float-quantized, int-quantized, pack-quantized, …"},
    OQ_METHOD_IGNORED_ROW(",ignore"),
    {.name = "quantization_status", .type = OQ_METHOD_STRING, .help = "compressed"},
    {.name = "kv_cache_scheme",
     .type = OQ_METHOD_OBJECT,
     .help = "the producer's wish for a language model's cache"},
    {.name = "sparsity_config", .type = OQ_METHOD_OBJECT, .help = "sparse weights"},
    {.name = "transform_config",
     .type = OQ_METHOD_OBJECT,
     .help = "rotations of weights; those of activations while running are refused"},
    {0},
};

/* A transform at weight_input or weight_output is in the weights already; every other place is a product that the network
 * would have to make while it runs. */
static oq_status check_transforms(oq_env *env, const oq_json *config)
{
    const oq_json *scheme = NULL;
    const char *key = NULL;
    void *at = NULL;
    while (oq_json_next(oq_json_get(config, "config_groups"), &at, &key, &scheme)) {
        const oq_json *apply = oq_json_get(scheme, "apply");
        for (size_t i = 0; i < oq_json_size(apply); i++) {
            const char *place = oq_json_string(oq_json_get(oq_json_at(apply, i), "location"));
            if (place && (strcmp(place, "weight_input") == 0 || strcmp(place, "weight_output") == 0))
                continue;
            return oq_fail(
                env, OQ_E_UNSUPPORTED,
                "method 'compressed-tensors': transform_config's '%s' transforms '%s' while the network "
                "runs, which is not in this build yet; transforms of weights alone are",
                key, place ? place : "(nothing named)");
        }
    }
    return OQ_OK;
}

static oq_status check_outputs(oq_env *env, const oq_json *groups)
{
    const oq_json *group = NULL;
    const char *key = NULL;
    void *at = NULL;
    while (oq_json_next(groups, &at, &key, &group))
        if (oq_json_type(oq_json_get(group, "output_activations")) != OQ_JSON_NULL)
            return oq_fail(
                env, OQ_E_UNSUPPORTED,
                "method 'compressed-tensors': group '%s' quantizes output_activations, which is not in this "
                "build yet",
                key);
    return OQ_OK;
}

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    const bool sparse = oq_json_type(oq_json_get(args->options, "sparsity_config")) == OQ_JSON_OBJECT;
    OQ_TRY(check_transforms(env, oq_json_get(args->options, "transform_config")));
    OQ_TRY(check_outputs(env, oq_json_get(args->options, "config_groups")));
    if (args->serialized && !sparse && oq_json_size(oq_json_get(args->options, "config_groups")) == 0)
        return oq_fail(env, OQ_E_CONFIG,
                       "method 'compressed-tensors': the checkpoint's metadata has no config_groups");
    return OQ_OK;
}

/* ---- made-up weights ----------------------------------------------------------------------------------- */

static bool is(const oq_json *of, const char *key, const char *word)
{
    const char *text = oq_json_string(oq_json_get(of, key));
    return text && strcmp(text, word) == 0;
}

static int64_t number(const oq_json *of, const char *key)
{
    return oq_json_int(oq_json_get(of, key), 0);
}

/* A scale for the tensor, a row, a block of 128 x 128; NULL: another strategy. */
static const oq_format *scaled_format(const oq_json *w, bool is_float)
{
    if (is(w, "strategy", "tensor")) return is_float ? &oq_format_fp8_e4m3_tensor : &oq_format_int8_tensor;
    if (is(w, "strategy", "channel")) return is_float ? &oq_format_fp8_e4m3_channel : &oq_format_int8_channel;
    return is_float && is(w, "strategy", "block") ? &oq_format_fp8_e4m3_block128 : NULL;
}

/* Numbers of 4 and 8 bits in groups of 16 (NVFP4) and 32 (MX), integers in groups of 16, 32, 64, 128 or more. */
static const oq_format *grouped_format(const oq_json *w, bool is_float, int64_t k)
{
    const int64_t bits = number(w, "num_bits"), group = number(w, "group_size");
    if (is_float && bits == 4)
        return group == 16 ? &oq_format_nvfp4_inverse : group == 32 ? &oq_format_mxfp4 : NULL;
    if (is_float) return bits == 8 && group == 32 ? &oq_format_mxfp8 : NULL;
    const int64_t of = group > 0 && k % group == 0 ? oq_group_of_format(group, 0) : 0;
    if (!of) return NULL;
    return oq_format_int((int)bits, (int)of, !oq_json_bool(oq_json_get(w, "symmetric"), true), &oq_dtype_f32);
}

/* How such a producer treats x beside this weight. */
static void choose_activations(const oq_json *in, oq_scheme *out)
{
    const bool integers = is(in, "type", "int");
    if (oq_json_type(in) != OQ_JSON_OBJECT) return;
    out->act = integers ? &oq_dtype_i8 : &oq_dtype_f8_e4m3;
    out->act_scale = OQ_ACT_DYNAMIC_TOKEN;
    if (out->weight == &oq_format_fp8_e4m3_block128) out->act_scale = OQ_ACT_DYNAMIC_GROUP;
    if (out->weight == &oq_format_mxfp8) out->act_scale = OQ_ACT_DYNAMIC_MX;
    if (out->weight == &oq_format_mxfp4)
        out->act = &oq_dtype_f4_e2m1, out->act_scale = OQ_ACT_DYNAMIC_MX_EVEN;
    if (out->weight == &oq_format_nvfp4_inverse)
        out->act = &oq_dtype_f4_e2m1, out->act_scale = OQ_ACT_DYNAMIC_NVFP4;
}

static oq_status pretend(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    const oq_json *group = NULL;
    const char *key = "";
    OQ_TRY(oq_tensor_group_find(env, args->options, layer->name, &key, &group));
    for (int i = 0; !group && i < layer->n_parts; i++)
        OQ_TRY(oq_tensor_group_find(env, args->options, layer->parts[i], &key, &group));
    if (!group) return OQ_OK;
    const oq_json *w = oq_json_get(group, "weights"), *in = oq_json_get(group, "input_activations");
    if (number(w, "group_size") > 0 && layer->k % number(w, "group_size") != 0)
        return OQ_OK; /* stays plain there */
    const bool is_float = is(w, "type", "float"), in_groups = number(w, "group_size") > 0;
    out->weight = in_groups ? grouped_format(w, is_float, layer->k) : scaled_format(w, is_float);
    if (!out->weight || (!in_groups && number(w, "num_bits") != 8))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s': group '%s' has weights of %lld bits that dummy loading does not make up",
                       layer->name, key, (long long)number(w, "num_bits"));
    choose_activations(in, out);
    return OQ_OK;
}

const oq_method oq_method_compressed_tensors = {
    .name = "compressed-tensors",
    .aliases = "compressed_tensor,llm_compressor,llmcompressor",
    .help = "llm-compressor checkpoints: FP8, INT8, packed integers, MXFP8, MXFP4, NVFP4",
    .options = options,
    .serialized = true,
    .tolerated = "*",
    .validate = validate,
    .pretend = pretend,
};
