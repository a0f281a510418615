/* method_gguf.c -- GGUF's blocks: weights from a GGUF file, or plain weights rounded to one of its types. */
#include "quant/method.h"

#include "format/gguf_type.h"

static const oq_method_option options[] = {
    {.name = "gguf_model",
     .type = OQ_METHOD_STRING,
     .side = OQ_SIDE_REQUEST,
     .help = "the GGUF file of the transformer, as --transformer names it"},
    {.name = "type",
     .type = OQ_METHOD_CHOICE,
     .choices =
         "Q8_0,Q6_K,Q5_K,Q4_K,Q3_K,Q2_K,Q5_1,Q5_0,Q4_1,Q4_0,IQ4_NL,IQ4_XS,MXFP4,NVFP4,TQ2_0,TQ1_0,Q8_K,"
         "F16,BF16",
     .fallback = "\"Q8_0\"",
     .side = OQ_SIDE_ONLINE,
     .help = "what plain weights become; rows that are not whole blocks of it take the next smaller block"},
    OQ_METHOD_IGNORED_ROW(",unquantized_modules"),
    {0},
};

/* As the format's own converter does it: blocks of 32 where 256 do not fit, and plain where these do not either. */
static oq_status choose(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    const char *name = oq_json_string(oq_json_get(args->options, "type"));
    const oq_gguf_type *wanted = oq_gguf_type_by_name(name);
    if (!wanted) return oq_fail(env, OQ_E_CONFIG, "method 'gguf': type '%s' is not written", name);
    const oq_gguf_type *type = oq_gguf_type_fitting(wanted, layer->k);
    *out = (oq_scheme){.weight = type->format ? type->format : oq_format_plain(type->dtype)};
    return OQ_OK;
}

const oq_method oq_method_gguf = {
    .name = "gguf",
    .help = "weight only, in the blocks of GGUF: from a GGUF file, or quantized while loading",
    .options = options,
    .online = true,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
    .file_keys = "gguf_model",
    .choose = choose,
};
