/* method_mxfp4_dualscale.c -- MXFP4 with a second scale per 512 columns; online, the first blocks stay plain.
 */
#include "quant/method_mxfp4.h"

#include "format/float4.h"

#include <stdlib.h>
#include <string.h>

static const oq_method_option options[] = {
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_serialized"),
    OQ_METHOD_IGNORED_ROW(""),
    {.name = "num_bf16_fallback_layers",
     .type = OQ_METHOD_INT,
     .max = 1e6,
     .fallback = "5",
     .side = OQ_SIDE_REQUEST,
     .help = "online: blocks.0 .. blocks.n-1 stay plain, in networks that name them so (Wan)"},
    OQ_MXFP4_FALLBACK_ROWS,
    {0},
};

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    static const char *const empty[] = {"w4a8_fallback_steps", "w4a8_fallback_layers"};
    for (size_t i = 0; i < OQ_COUNT(empty); i++)
        if (oq_json_size(oq_json_get(args->options, empty[i])) > 0)
            return oq_fail(env, OQ_E_CONFIG, "method 'mxfp4_dualscale': %s must be empty", empty[i]);
    return OQ_OK;
}

int64_t oq_mxfp4_block(const char *layer)
{
    static const char prefix[] = "blocks.";
    if (strncmp(layer, prefix, sizeof prefix - 1) != 0) return -1;
    const char *digits = layer + sizeof prefix - 1;
    const size_t n = strspn(digits, "0123456789");
    return n > 0 && n < 10 && digits[n] == '.' ? strtoll(digits, NULL, 10) : -1;
}

/* Layers of the first blocks stay plain. */
static oq_status choose(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    const int64_t block = oq_mxfp4_block(layer->name);
    (void)env;
    *out = (oq_scheme){0};
    if (block >= 0 && block < oq_json_int(oq_json_get(args->options, "num_bf16_fallback_layers"), 0))
        return OQ_OK;
    *out = (oq_scheme){
        .weight = &oq_format_mxfp4_dual, .act = &oq_dtype_f4_e2m1, .act_scale = OQ_ACT_DYNAMIC_MX_DUAL};
    return OQ_OK;
}

const oq_method oq_method_mxfp4_dualscale = {
    .name = "mxfp4_dualscale",
    .aliases = "mxfp4_dual_scale",
    .help = "weights and activations in MXFP4 with a second scale, f32, per 512 columns",
    .options = options,
    .online = true,
    .serialized = true,
    .tolerated = "*",
    .validate = validate,
    .choose = choose,
};
