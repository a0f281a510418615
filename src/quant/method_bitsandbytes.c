/* method_bitsandbytes.c -- 4-bit weights by code table (NF4, FP4) in blocks; LLM.int8 from checkpoints alone. */
#include "quant/method.h"

#include <string.h>

static const oq_method_option options[] = {
    {.name = "quant_type",
     .aliases = "bnb_4bit_quant_type",
     .type = OQ_METHOD_CHOICE,
     .choices = "nf4,fp4",
     .fallback = "\"nf4\"",
     .help = "code table of 4-bit weights"},
    {.name = "compress_statistics",
     .aliases = "bnb_4bit_use_double_quant",
     .type = OQ_METHOD_BOOL,
     .fallback = "true",
     .help = "quantize the block scales to 8 bits again"},
    {.name = "blocksize",
     .type = OQ_METHOD_INT,
     .min = 32,
     .max = 4096,
     .fallback = "64",
     .help = "weights under one scale: a power of two from 32 to 4096"},
    OQ_METHOD_IGNORED_ROW(",llm_int8_skip_modules"),
    {.name = "load_in_4bit", .type = OQ_METHOD_BOOL, .help = "the checkpoint holds 4-bit weights"},
    {.name = "load_in_8bit", .type = OQ_METHOD_BOOL, .help = "the checkpoint holds LLM.int8 weights"},
    {.name = "bnb_4bit_compute_dtype",
     .type = OQ_METHOD_STRING,
     .help = "type of the product in the checkpoint's code"},
    {.name = "bnb_4bit_quant_storage",
     .type = OQ_METHOD_STRING,
     .help = "type that the packed bytes are stored under"},
    {.name = "llm_int8_threshold",
     .type = OQ_METHOD_REAL,
     .max = 1e9,
     .help = "activations above it are multiplied in 16 bit; 0: none"},
    {0},
};

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    if (oq_json_bool(oq_json_get(args->options, "load_in_4bit"), false) &&
        oq_json_bool(oq_json_get(args->options, "load_in_8bit"), false))
        return oq_fail(env, OQ_E_CONFIG,
                       "method 'bitsandbytes': load_in_4bit and load_in_8bit are both true");
    const int64_t block = oq_json_int(oq_json_get(args->options, "blocksize"), 64);
    if (!oq_format_bnb4(true, block, false))
        return oq_fail(
            env, OQ_E_CONFIG,
            "method 'bitsandbytes': 'blocksize' is %lld; it must be a power of two from 32 to 4096",
            (long long)block);
    return OQ_OK;
}

/* load_in_8bit says that the file is quantized; LLM.int8's threshold for plain weights is refused here, not passed
 * over. */
static oq_status choose(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    const bool nf4 = strcmp(oq_json_string(oq_json_get(args->options, "quant_type")), "nf4") == 0;
    const bool nested = oq_json_bool(oq_json_get(args->options, "compress_statistics"), true);
    if (oq_json_get(args->options, "llm_int8_threshold"))
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "%s: layer '%s': option 'llm_int8_threshold' of method 'bitsandbytes' is not in this build "
            "yet; plain weights become NF4 or FP4",
            layer->component, layer->name);
    out->weight = oq_format_bnb4(nf4, oq_json_int(oq_json_get(args->options, "blocksize"), 64), nested);
    return OQ_OK;
}

const oq_method oq_method_bitsandbytes = {
    .name = "bitsandbytes",
    .aliases = "bnb,nf4",
    .help = "4-bit weights (NF4 or FP4) in blocks of 64 (32 to 4096) with 16-bit activations; checkpoints of "
            "LLM.int8",
    .options = options,
    .online = true,
    .serialized = true,
    .tolerated = "*",
    .file_keys =
        "load_in_4bit,_load_in_4bit,load_in_8bit,_load_in_8bit,bnb_4bit_quant_type,llm_int8_skip_modules",
    .validate = validate,
    .choose = choose,
};
