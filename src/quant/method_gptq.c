/* method_gptq.c -- GPTQ checkpoints: integer weights packed along K into 32-bit words, zeros stored minus
 * one. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "bits",
     .aliases = "weight_bits,wbits",
     .type = OQ_METHOD_INT,
     .min = 2,
     .max = 8,
     .help = "bits of a code"},
    {.name = "group_size",
     .type = OQ_METHOD_INT,
     .min = -1,
     .max = 65536,
     .help = "columns that share a scale; -1: the whole row"},
    {.name = "desc_act",
     .type = OQ_METHOD_BOOL,
     .fallback = "false",
     .help = "columns were ordered by activation"},
    {.name = "sym", .type = OQ_METHOD_BOOL, .fallback = "true", .help = "symmetric codes"},
    {.name = "checkpoint_format",
     .type = OQ_METHOD_CHOICE,
     .aliases = "format",
     .choices = "gptq,gptq_v2,gptq_p",
     .fallback = "\"gptq\"",
     .help = "gptq stores zeros minus one, gptq_v2 as they are; so does gptq_p, with codes in planes"},
    {.name = "true_sequential", .type = OQ_METHOD_BOOL, .help = "how the producer went through the layers"},
    {.name = "lm_head",
     .type = OQ_METHOD_BOOL,
     .fallback = "false",
     .help = "the output head is quantized too"},
    {.name = "meta", .type = OQ_METHOD_OBJECT, .help = "who wrote the file ('quantizer')"},
    {.name = "dynamic", .type = OQ_METHOD_OBJECT, .help = "regular expression to overrides of a layer"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    if (args->serialized && !oq_json_get(args->options, "bits"))
        return oq_fail(env, OQ_E_CONFIG, "method 'gptq': the checkpoint's metadata has no 'bits'");
    return OQ_OK;
}

const oq_method oq_method_gptq = {
    .name = "gptq",
    .aliases = "gptq_marlin,auto_gptq",
    .help = "GPTQ checkpoints: weights of 2 to 8 bits, 16-bit activations",
    .options = options,
    .serialized = true,
    .tolerated = "*",
    .unread = "adapter",
    .validate = validate,
};
