/* method_awq.c -- AWQ checkpoints: 4-bit weights packed along N in the order 0 2 4 6 1 3 5 7, zeros as they
 * are. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "bits",
     .aliases = "w_bit,weight_bits",
     .type = OQ_METHOD_INT,
     .min = 4,
     .max = 8,
     .help = "bits of a code"},
    {.name = "group_size",
     .aliases = "q_group_size",
     .type = OQ_METHOD_INT,
     .min = -1,
     .max = 65536,
     .help = "columns that share a scale; -1: the whole row"},
    {.name = "zero_point", .type = OQ_METHOD_BOOL, .fallback = "true", .help = "codes have zero points"},
    {.name = "version",
     .type = OQ_METHOD_CHOICE,
     .choices = "gemm,gemv,gemv_fast,marlin,exllama,exllamav2,ipex,llm_awq",
     .fallback = "\"gemm\"",
     .help = "the producer's packing"},
    {.name = "backend", .type = OQ_METHOD_STRING, .help = "llm-awq: its packing, whatever the version"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    if (args->serialized && !oq_json_get(args->options, "bits"))
        return oq_fail(env, OQ_E_CONFIG, "method 'awq': the checkpoint's metadata has no 'bits'");
    return OQ_OK;
}

const oq_method oq_method_awq = {
    .name = "awq",
    .aliases = "awq_marlin,auto_awq",
    .help = "AWQ checkpoints: 4-bit weights with zero points, 16-bit activations",
    .options = options,
    .serialized = true,
    .tolerated = "*",
    .validate = validate,
};
