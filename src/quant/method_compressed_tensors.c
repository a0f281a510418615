/* method_compressed_tensors.c -- llm-compressor's checkpoints: config_groups say what each group of layers
 * is. */
#include "quant/method.h"

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
    {0},
};

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    if (args->serialized && oq_json_size(oq_json_get(args->options, "config_groups")) == 0)
        return oq_fail(env, OQ_E_CONFIG,
                       "method 'compressed-tensors': the checkpoint's metadata has no config_groups");
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
};
