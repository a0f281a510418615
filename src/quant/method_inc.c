/* method_inc.c -- Intel AutoRound / Neural Compressor: W2..W8 with 16-bit activations, and its MX, NVFP4 and
 * FP8 exports. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "weight_bits",
     .aliases = "bits",
     .type = OQ_METHOD_INT,
     .min = 2,
     .max = 8,
     .help = "2, 3, 4 or 8"},
    {.name = "group_size",
     .type = OQ_METHOD_ANY,
     .help = "columns that share a scale; -1: the whole row; [rows, columns] for FP8 blocks"},
    {.name = "sym", .type = OQ_METHOD_BOOL, .fallback = "true", .help = "symmetric codes"},
    {.name = "packing_format",
     .type = OQ_METHOD_CHOICE,
     .choices = "auto_round:auto_gptq,auto_round:gptqmodel,auto_round:auto_awq,auto_round:llm_compressor,"
                "auto_round:fp8,"
                "auto_round:fp8_static,auto_round",
     .fallback = "\"auto_round:auto_gptq\"",
     .help = "how codes are packed"},
    {.name = "block_name_to_quantize",
     .aliases = "to_quant_block_names",
     .type = OQ_METHOD_CSV,
     .help = "blocks that are quantized; absent: all"},
    {.name = "extra_config",
     .type = OQ_METHOD_OBJECT,
     .help = "a layer's name (or regular expression) to its overrides"},
    {.name = "data_type",
     .type = OQ_METHOD_CHOICE,
     .choices = "int,fp,mx_fp,nv_fp",
     .fallback = "\"int\"",
     .help = "kind of code"},
    {.name = "act_bits",
     .type = OQ_METHOD_INT,
     .min = 1,
     .max = 32,
     .help = "bits of activations; 16 and more: they stay as they are"},
    {.name = "act_data_type", .type = OQ_METHOD_STRING, .help = "kind of the activations' codes"},
    {.name = "act_group_size", .type = OQ_METHOD_ANY, .help = "columns of activations that share a scale"},
    {.name = "act_dynamic",
     .type = OQ_METHOD_BOOL,
     .help = "scales from the activations themselves; false: the checkpoint's input_scale"},
    {.name = "activation_scheme",
     .type = OQ_METHOD_CHOICE,
     .choices = "dynamic,static",
     .help = "FP8: scales from the activations themselves, or the checkpoint's input_scale"},
    {.name = "backend",
     .type = OQ_METHOD_CHOICE,
     .choices = "auto,gptq,gptq:marlin,awq,awq:marlin,marlin",
     .fallback = "\"auto\"",
     .help = "the producer's choice of kernel"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

static oq_status check_group(oq_env *env, const oq_json *group)
{
    if (oq_json_type(group) == OQ_JSON_INT) {
        const int64_t size = oq_json_int(group, 0);
        if (size == -1 || (size >= 1 && size <= 65536)) return OQ_OK;
        return oq_fail(env, OQ_E_CONFIG, "method 'inc': group_size is %lld, it must be -1 or at least 1",
                       (long long)size);
    }
    bool pair = oq_json_type(group) == OQ_JSON_ARRAY && oq_json_size(group) == 2;
    for (size_t i = 0; pair && i < 2; i++)
        pair = oq_json_type(oq_json_at(group, i)) == OQ_JSON_INT && oq_json_int(oq_json_at(group, i), 0) >= 1;
    if (pair) return OQ_OK;
    return oq_fail(env, OQ_E_CONFIG,
                   "method 'inc': group_size must be a whole number or [rows, columns], not %s",
                   oq_json_type_name(group));
}

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    const oq_json *bits = oq_json_get(args->options, "weight_bits"),
                  *group = oq_json_get(args->options, "group_size");
    if (!bits || !group)
        return oq_fail(env, OQ_E_CONFIG, "method 'inc' needs %s", bits ? "group_size" : "weight_bits");
    const int64_t n = oq_json_int(bits, 0);
    if (n != 2 && n != 3 && n != 4 && n != 8)
        return oq_fail(env, OQ_E_CONFIG, "method 'inc': weight_bits is %lld, it must be 2, 3, 4 or 8",
                       (long long)n);
    return check_group(env, group);
}

const oq_method oq_method_inc = {
    .name = "inc",
    .aliases = "auto_round,autoround,intel",
    .help = "checkpoints by Intel AutoRound: integers of 2 to 8 bits, FP8, MXFP8, MXFP4, NVFP4",
    .options = options,
    .serialized = true,
    .tolerated = "*",
    .unread = "rotation_config,spinquant_config,hadamard_config",
    .validate = validate,
};
