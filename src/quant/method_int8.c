/* method_int8.c -- int8 W8A8: weights with one scale per output row, activations with one per token. */
#include "quant/method.h"

static const oq_method_option options[] = {
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_int8_serialized"),
    {.name = "activation_scheme",
     .type = OQ_METHOD_CHOICE,
     .choices = "dynamic",
     .fallback = "\"dynamic\"",
     .help = "dynamic: a scale from each token itself"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

static oq_status choose(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    (void)env, (void)args, (void)layer;
    *out = (oq_scheme){
        .weight = &oq_format_int8_channel, .act = &oq_dtype_i8, .act_scale = OQ_ACT_DYNAMIC_TOKEN};
    return OQ_OK;
}

const oq_method oq_method_int8 = {
    .name = "int8",
    .aliases = "int8_w8a8,w8a8_int8",
    .help = "weights (a scale per output row) and activations (a scale per token) in INT8",
    .options = options,
    .online = true,
    .serialized = true,
    .tolerated = "version,quant_library",
    .choose = choose,
};
