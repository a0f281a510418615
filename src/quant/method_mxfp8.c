/* method_mxfp8.c -- OCP MXFP8: e4m3 weights and activations with an 8-bit exponent per 32 columns. */
#include "quant/method.h"

static const oq_method_option options[] = {
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_mxfp8_serialized"),
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

/* An incomplete last group of a row is a shorter group; nothing is padded. */
static oq_status choose(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    (void)env, (void)args, (void)layer;
    *out = (oq_scheme){.weight = &oq_format_mxfp8, .act = &oq_dtype_f8_e4m3, .act_scale = OQ_ACT_DYNAMIC_MX};
    return OQ_OK;
}

const oq_method oq_method_mxfp8 = {
    .name = "mxfp8",
    .help = "weights and activations in MXFP8: e4m3 with a power of two per 32 columns",
    .options = options,
    .online = true,
    .serialized = true,
    .tolerated = "*",
    .choose = choose,
};
