/* method_mxfp4.c -- OCP MXFP4: e2m1 weights and activations with an 8-bit exponent per 32 columns, optional
 * smoothing scale, 8-bit activations for chosen steps and layers. */
#include "quant/method_mxfp4.h"

#include "format/float4.h"

#include <ctype.h>
#include <string.h>

static const oq_method_option options[] = {
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_mxfp4_serialized"),
    OQ_METHOD_IGNORED_ROW(""),
    OQ_MXFP4_FALLBACK_ROWS,
    {.name = "require_smooth_scale",
     .type = OQ_METHOD_BOOL,
     .fallback = "false",
     .side = OQ_SIDE_EITHER,
     .help = "every layer of the checkpoint must have its mul_scale"},
    {.name = "mxfp4_scale_alg",
     .type = OQ_METHOD_INT,
     .max = 2,
     .fallback = "0",
     .side = OQ_SIDE_REQUEST,
     .help = "0: the OCP exponent, floor(log2 amax) - 2; 2: the least exponent that brings amax to 7.25 or "
             "below"},
    {0},
};

/* Segments of letters, digits and '_' joined by dots; the first begins with a letter or '_', later ones may
 * be numbers. */
static bool is_layer_path(const char *path)
{
    bool first = true;
    for (const char *s = path;; s++) {
        const char *begin = s;
        const bool number = isdigit((unsigned char)*s) != 0;
        while (isalnum((unsigned char)*s) || *s == '_') {
            if (number && !isdigit((unsigned char)*s)) return false;
            s++;
        }
        if (s == begin || (first && number)) return false;
        first = false;
        if (*s == '\0') return true;
        if (*s != '.') return false;
    }
}

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    const int64_t alg = oq_json_int(oq_json_get(args->options, "mxfp4_scale_alg"), 0);
    if (alg != 0 && alg != 2)
        return oq_fail(env, OQ_E_CONFIG, "method 'mxfp4': mxfp4_scale_alg is %lld, it must be 0 or 2",
                       (long long)alg);
    if (oq_json_bool(oq_json_get(args->options, "require_smooth_scale"), false) && !args->serialized)
        return oq_fail(env, OQ_E_CONFIG,
                       "method 'mxfp4': require_smooth_scale needs a checkpoint quantized beforehand");
    const oq_json *layers = oq_json_get(args->options, "w4a8_fallback_layers");
    for (size_t i = 0; i < oq_json_size(layers); i++)
        if (!is_layer_path(oq_json_string(oq_json_at(layers, i))))
            return oq_fail(env, OQ_E_CONFIG,
                           "method 'mxfp4': w4a8_fallback_layers names '%s', which is no layer's full name",
                           oq_json_string(oq_json_at(layers, i)));
    return OQ_OK;
}

static bool has_name(const oq_json *names, const char *name)
{
    for (size_t i = 0; i < oq_json_size(names); i++)
        if (strcmp(oq_json_string(oq_json_at(names, i)), name) == 0) return true;
    return false;
}

/* A layer that is named, or has a part that is, keeps its 4-bit weights and gets 8-bit activations. */
static bool falls_back(const oq_method_args *args, const oq_layer_desc *layer)
{
    const oq_json *names = oq_json_get(args->options, "w4a8_fallback_layers");
    bool yes = has_name(names, layer->name);
    for (int i = 0; i < layer->n_parts; i++) yes |= has_name(names, layer->parts[i]);
    return yes;
}

static bool is_q725(const oq_method_args *args)
{
    return oq_json_int(oq_json_get(args->options, "mxfp4_scale_alg"), 0) == 2;
}

/* Activations of a layer: of 8 bits where its name is listed. */
static oq_status adjust(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer,
                        oq_scheme *scheme)
{
    (void)env;
    const bool eight = falls_back(args, layer);
    scheme->act = eight ? &oq_dtype_f8_e4m3 : &oq_dtype_f4_e2m1;
    scheme->act_scale = is_q725(args) && !eight ? OQ_ACT_DYNAMIC_MX_Q725 : OQ_ACT_DYNAMIC_MX;
    return OQ_OK;
}

static oq_status choose(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    out->weight = is_q725(args) ? &oq_format_mxfp4_q725 : &oq_format_mxfp4;
    return adjust(env, args, layer, out);
}

/* A listed layer has activations of 8 bits in every step. */
static const oq_json *steps(const oq_method_args *args, const oq_layer_desc *layer, const oq_scheme *scheme,
                            oq_scheme *out)
{
    const oq_json *list = oq_json_get(args->options, "w4a8_fallback_steps");
    (void)layer;
    *out = *scheme;
    out->act = &oq_dtype_f8_e4m3;
    out->act_scale = OQ_ACT_DYNAMIC_MX;
    return scheme->act == &oq_dtype_f4_e2m1 && oq_json_size(list) > 0 ? list : NULL;
}

const oq_method oq_method_mxfp4 = {
    .name = "mxfp4",
    .help = "weights and activations in MXFP4: e2m1 with a power of two per 32 columns",
    .options = options,
    .online = true,
    .serialized = true,
    .tolerated = "*",
    .validate = validate,
    .choose = choose,
    .adjust = adjust,
    .steps = steps,
};
