/* method_fp8.c -- fp8: weights e4m3 (one scale per tensor, per channel or per 128x128 block), activations
 * e4m3 with a scale per token, or per 128 columns of a token where the weight has blocks. */
#include "quant/method.h"

#include <string.h>

static const oq_method_option options[] = {
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_fp8_serialized"),
    {.name = "activation_scheme",
     .type = OQ_METHOD_CHOICE,
     .choices = "dynamic,static",
     .fallback = "\"dynamic\"",
     .help = "dynamic: scales from the activations themselves; static: the checkpoint's input_scale"},
    OQ_METHOD_IGNORED_ROW(""),
    {.name = "weight_strategy",
     .type = OQ_METHOD_CHOICE,
     .choices = "tensor,channel,block",
     .fallback = "\"tensor\"",
     .side = OQ_SIDE_ONLINE,
     .help =
         "what one weight scale covers when plain weights are quantized: the matrix, an output row, 128x128"},
    {.name = "weight_block_size",
     .type = OQ_METHOD_INTS,
     .min = 1,
     .max = 65536,
     .help = "rows and columns of one block in a checkpoint quantized beforehand: [128, 128]"},
    {.name = "fmt", .type = OQ_METHOD_CHOICE, .choices = "e4m3", .help = "element type in the checkpoint"},
    {0},
};

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    const oq_json *block = oq_json_get(args->options, "weight_block_size");
    if (!block) return OQ_OK;
    if (!args->serialized)
        return oq_fail(env, OQ_E_CONFIG,
                       "method 'fp8': weight_block_size describes a checkpoint quantized beforehand; "
                       "to quantize plain weights by 128x128 blocks set weight_strategy to 'block'");
    if (oq_json_size(block) != 2)
        return oq_fail(env, OQ_E_CONFIG, "method 'fp8': weight_block_size has %zu entries, it needs 2",
                       oq_json_size(block));
    if (strcmp(oq_json_string(oq_json_get(args->options, "activation_scheme")), "dynamic") != 0)
        return oq_fail(env, OQ_E_CONFIG,
                       "method 'fp8': weight_block_size goes with dynamic activations alone");
    return OQ_OK;
}

/* Edges that do not fill a block of 128 are shorter blocks; nothing is padded. */
static oq_status choose(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    static const struct {
        const char *strategy;
        const oq_format *weight;
        oq_act_scale act;
    } rows[] = {{"tensor", &oq_format_fp8_e4m3_tensor, OQ_ACT_DYNAMIC_TOKEN},
                {"channel", &oq_format_fp8_e4m3_channel, OQ_ACT_DYNAMIC_TOKEN},
                {"block", &oq_format_fp8_e4m3_block128, OQ_ACT_DYNAMIC_GROUP}};
    const char *strategy = oq_json_string(oq_json_get(args->options, "weight_strategy"));
    const bool fixed = strcmp(oq_json_string(oq_json_get(args->options, "activation_scheme")), "static") == 0;
    if (fixed && !args->calibrated)
        return oq_fail(
            env, OQ_E_MISMATCH,
            "%s: layer '%s': method 'fp8' with static activations needs the input_scale of a checkpoint "
            "quantized beforehand; these weights are plain ('omniq quantize' measures it)",
            layer->component, layer->name);
    if (fixed && strcmp(strategy, "block") == 0)
        return oq_fail(env, OQ_E_CONFIG,
                       "method 'fp8': weight_strategy 'block' goes with dynamic activations alone");
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (strcmp(rows[i].strategy, strategy) == 0)
            *out = (oq_scheme){.weight = rows[i].weight,
                               .act = &oq_dtype_f8_e4m3,
                               .act_scale = fixed ? OQ_ACT_STATIC_TENSOR : rows[i].act};
    return OQ_OK;
}

const oq_method oq_method_fp8 = {
    .name = "fp8",
    .aliases = "float8,fp8_e4m3",
    .help = "weights and activations in FP8 (e4m3), quantized while loading or read from a checkpoint",
    .options = options,
    .online = true,
    .serialized = true,
    .tolerated = "dequantize,version,quant_library",
    .validate = validate,
    .choose = choose,
};
