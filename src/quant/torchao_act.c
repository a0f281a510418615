/* torchao_act.c -- reads what TorchAO's classes say of their activations (act_quant_kwargs, input_quant_func), and refuses by name
 * what would make other codes of x. */
#include "quant/torchao_act.h"

#include "base/names.h"

#include <string.h>

const char *oq_torchao_word(const oq_json *data, const char *key)
{
    const char *text = oq_json_string(oq_json_get(oq_json_get(data, key), "_data"));
    return text ? text : "";
}

/* Arguments beside those of `known` (csv). One that is null asks for nothing. */
static oq_status refuse_others(oq_env *env, const oq_json *arguments, const char *known, const char *name)
{
    const oq_json *value = NULL;
    const char *key = NULL;
    void *at = NULL;
    while (oq_json_next(arguments, &at, &key, &value)) {
        if (oq_json_type(value) == OQ_JSON_NULL || oq_csv_has(known, key)) continue;
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s': '%s' changes how activations are quantized, in a way that is not in this "
                       "build yet",
                       name, key);
    }
    return OQ_OK;
}

/* MappingType by its name, or (in pickles) by its number. */
static oq_status read_mapping(oq_env *env, const oq_json *mapping, const char *name, bool *asymmetric)
{
    const oq_json *data = oq_json_get(mapping, "_data");
    const char *word = oq_json_string(data);
    const int64_t number = word ? 0 : oq_json_int(data, 0);
    *asymmetric = word ? strcmp(word, "ASYMMETRIC") == 0 : number == 3;
    if (*asymmetric || oq_json_type(mapping) == OQ_JSON_NULL || number == 1) return OQ_OK;
    if (word && strcmp(word, "SYMMETRIC") == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s': mapping_type '%s' of activations is not in this build yet; SYMMETRIC and "
                   "ASYMMETRIC are",
                   name,
                   word          ? word
                   : number == 2 ? "SYMMETRIC_NO_CLIPPING_ERR"
                                 : "(unknown)");
}

/* Arguments under which codes of activations are other ones: bounds of the largest value, half the range of a byte, another type of
 * it. mm_config and kernel_preference choose how products are made of the same codes. */
static oq_status check_arguments(oq_env *env, const oq_json *arguments, const char *name)
{
    static const char *const bounds[] = {"hp_value_lb", "hp_value_ub"};
    const oq_json *type = oq_json_get(arguments, "float8_dtype"),
                  *reduced = oq_json_get(arguments, "reduce_range");
    for (size_t i = 0; i < OQ_COUNT(bounds); i++)
        if (oq_json_type(oq_json_get(arguments, bounds[i])) != OQ_JSON_NULL)
            return oq_fail(env, OQ_E_UNSUPPORTED,
                           "layer '%s': activations whose scale is bounded (%s) are not in this build yet",
                           name, bounds[i]);
    if (oq_json_type(reduced) != OQ_JSON_NULL && oq_json_bool(reduced, true))
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layer '%s': activations of half a byte's range (reduce_range) are not in this build yet", name);
    if (oq_json_type(type) != OQ_JSON_NULL &&
        strcmp(oq_torchao_word(arguments, "float8_dtype"), "float8_e4m3fn") != 0)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s': activations of type '%s' are not in this build yet; float8_e4m3fn is",
                       name, oq_torchao_word(arguments, "float8_dtype"));
    return refuse_others(env, arguments,
                         "granularity,mapping_type,reduce_range,float8_dtype,hp_value_lb,hp_value_ub,mm_"
                         "config,kernel_preference",
                         name);
}

/* A scale for each row of x: PerRow of its last dimension. */
static bool is_per_row(const oq_json *granularity)
{
    const char *word = oq_json_string(oq_json_get(granularity, "_type"));
    return word && strcmp(word, "PerRow") == 0 &&
           oq_json_int(oq_json_get(oq_json_get(granularity, "_data"), "dim"), -1) == -1;
}

static oq_status fail_granularity(oq_env *env, const char *name, const oq_json *granularity)
{
    const char *word = oq_json_string(oq_json_get(granularity, "_type"));
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s': activations of granularity '%s' are not in this build yet; 'PerRow' of the "
                   "last dimension is",
                   name, word ? word : "(none)");
}

oq_status oq_torchao_read_act(oq_env *env, const oq_json *data, const char *name, bool fixed,
                              oq_scaled_rules *out, bool *has_zero)
{
    const oq_json *act = oq_json_get(data, "act_quant_kwargs"), *arguments = oq_json_get(act, "_data");
    const oq_json *granularity = oq_json_get(arguments, "granularity");
    *out = (oq_scaled_rules){.act = OQ_SCALED_ACT_NONE};
    *has_zero = false;
    if (oq_json_type(act) == OQ_JSON_NULL) return OQ_OK;
    OQ_TRY(read_mapping(env, oq_json_get(arguments, "mapping_type"), name, has_zero));
    if (*has_zero && fixed)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layer '%s': activations with a zero point of the file are not in this build yet; those "
            "with one per token are",
            name);
    OQ_TRY(check_arguments(env, arguments, name));
    out->act = fixed ? OQ_SCALED_ACT_STATIC : OQ_SCALED_ACT_DYNAMIC;
    return fixed || is_per_row(granularity) ? OQ_OK : fail_granularity(env, name, granularity);
}

oq_status oq_torchao_read_function(oq_env *env, const char *name, const oq_json *outer, oq_scaled_rules *out)
{
    const char *function = oq_json_string(oq_json_get(outer, "input_quant_func"));
    const oq_json *arguments = oq_json_get(outer, "quant_kwargs");
    const oq_json *granularity = oq_json_get(arguments, "activation_granularity");
    static const char per_token[] = "._int8_symm_per_token_reduced_range_quant",
                      per_row[] = "._input_activation_quant_func_fp8";
    const bool int8 = function && oq_name_ends(function, per_token);
    const bool fp8 = function && oq_name_ends(function, per_row);
    const char *type = oq_torchao_word(arguments, "activation_dtype");
    out->act = OQ_SCALED_ACT_DYNAMIC;
    if (fp8 && !is_per_row(granularity)) return fail_granularity(env, name, granularity);
    if (fp8 && *type && strcmp(type, "float8_e4m3fn") != 0)
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s': activations of type '%s' are not in this build yet; float8_e4m3fn is",
                       name, type);
    if (fp8) return refuse_others(env, arguments, "activation_granularity,activation_dtype", name);
    if (int8) return refuse_others(env, arguments, "", name);
    return oq_fail(env, OQ_E_UNSUPPORTED, "layer '%s': activations by '%s' are not in this build yet", name,
                   function ? function : "(none)");
}

static oq_status check_columns(oq_env *env, const oq_json *act, const char *name, int64_t wanted)
{
    const int64_t columns = oq_json_int(oq_json_get(act, "block_size"), wanted);
    if (columns == wanted) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s' has activations in blocks of %lld, which is not in this build yet; %lld are",
                   name, (long long)columns, (long long)wanted);
}

oq_status oq_torchao_read_mx_act(oq_env *env, const oq_json *data, const char *name, oq_block_layout *out)
{
    static const struct {
        const char *mode;
        oq_act_scale scale;
    } modes[] = {{"RCEIL", OQ_ACT_DYNAMIC_MX_CEIL},
                 {"FLOOR", OQ_ACT_DYNAMIC_MX_FLOOR},
                 {"EVEN", OQ_ACT_DYNAMIC_MX_EVEN}};
    const oq_json *act = oq_json_get(oq_json_get(data, "act_quant_kwargs"), "_data");
    const char *mode = oq_torchao_word(act, "scaling_mode"), *type = oq_torchao_word(act, "elem_dtype");
    out->weight_only = oq_json_type(act) == OQ_JSON_NULL;
    if (out->weight_only) return OQ_OK;
    for (size_t i = 0; i < OQ_COUNT(modes); i++)
        if (strcmp(modes[i].mode, mode) == 0) out->act_scale = modes[i].scale;
    if (out->act_scale == OQ_ACT_NONE || strcmp(type, oq_torchao_word(data, "elem_dtype")) != 0)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layer '%s': activations of type '%s' with exponents by '%s' are not in this build yet; "
            "the weights' own type by RCEIL, FLOOR or EVEN is",
            name, type, mode);
    OQ_TRY(check_columns(env, act, name, 32));
    return refuse_others(env, act,
                         "elem_dtype,block_size,scaling_mode,kernel_preference,gemm_kernel_choice,pack_fp6,"
                         "is_swizzled_scales",
                         name);
}

oq_status oq_torchao_check_nvfp4_act(oq_env *env, const oq_json *data, const char *name)
{
    const oq_json *act = oq_json_get(oq_json_get(data, "act_quant_kwargs"), "_data");
    OQ_TRY(check_columns(env, act, name, 16));
    return refuse_others(env, act,
                         "block_size,is_swizzled_scales,use_triton_kernel,quantize_to_nvfp4_kernel_choice,"
                         "use_dynamic_per_tensor_scale",
                         name);
}
