/* method_w4a16.c -- integer weights in groups, rounded to nearest while loading; activations stay as they are. */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "bits",
     .aliases = "weight_bits",
     .type = OQ_METHOD_INT,
     .min = 2,
     .max = 8,
     .fallback = "4",
     .help = "bits of a code: 2, 3, 4 or 8"},
    {.name = "group_size",
     .type = OQ_METHOD_INT,
     .min = 16,
     .max = 128,
     .fallback = "128",
     .help = "columns that share a scale: 16, 32, 64 or 128"},
    {.name = "sym",
     .aliases = "symmetric",
     .type = OQ_METHOD_BOOL,
     .fallback = "true",
     .help = "codes around zero; false: with a zero point per group"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

static const oq_format *format_of(const oq_method_args *args)
{
    return oq_format_int((int)oq_json_int(oq_json_get(args->options, "bits"), 4),
                         (int)oq_json_int(oq_json_get(args->options, "group_size"), 128),
                         !oq_json_bool(oq_json_get(args->options, "sym"), true), &oq_dtype_f32);
}

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    if (format_of(args)) return OQ_OK;
    return oq_fail(
        env, OQ_E_CONFIG,
        "method 'w4a16': %lld bits in groups of %lld: bits are 2, 3, 4 or 8, groups 16, 32, 64 or 128",
        (long long)oq_json_int(oq_json_get(args->options, "bits"), 0),
        (long long)oq_json_int(oq_json_get(args->options, "group_size"), 0));
}

/* Rows that are no whole groups take the next smaller one; then plain. */
static oq_status choose(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    const int bits = (int)oq_json_int(oq_json_get(args->options, "bits"), 4);
    const bool sym = oq_json_bool(oq_json_get(args->options, "sym"), true);
    (void)env;
    for (int group = format_of(args)->block_k; group >= 16 && !out->weight; group /= 2)
        if (layer->k % group == 0)
            *out = (oq_scheme){.weight = oq_format_int(bits, group, !sym, &oq_dtype_f32)};
    return OQ_OK;
}

const oq_method oq_method_w4a16 = {
    .name = "w4a16",
    .aliases = "int4,woq,rtn",
    .help = "integer weights of 2, 3, 4 or 8 bits in groups, 16-bit activations, rounded while loading",
    .options = options,
    .online = true,
    .validate = validate,
    .choose = choose,
};
