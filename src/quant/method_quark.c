/* method_quark.c -- AMD Quark's checkpoints; global_quant_config, layer_type_quant_config and layer_quant_config say what a
 * layer is. */
#include "quant/method.h"
#include "quant/packed_planes.h"
#include "quant/quark_words.h"

#include "format/float4.h"

#include <string.h>

static const oq_method_option options[] = {
    {.name = "global_quant_config", .type = OQ_METHOD_ANY, .help = "what layers are that nothing else means"},
    {.name = "layer_type_quant_config",
     .type = OQ_METHOD_OBJECT,
     .help = "a class of layers to what they are"},
    {.name = "layer_quant_config", .type = OQ_METHOD_OBJECT, .help = "a pattern of names to what they are"},
    {.name = "export", .type = OQ_METHOD_OBJECT, .help = "how the producer packed codes"},
    {.name = "algo_config", .type = OQ_METHOD_ANY, .help = "what the producer did before"},
    OQ_METHOD_IGNORED_ROW(",exclude"),
    {.name = "svd_rank",
     .aliases = "rank",
     .type = OQ_METHOD_INT,
     .min = 1,
     .max = 65536,
     .help = "of the low-rank branch; absent: none"},
    OQ_METHOD_SERIALIZED_ROW("is_checkpoint_w4a8_serialized"),
    {.name = "quark_export_format",
     .type = OQ_METHOD_CHOICE,
     .choices = "bf16,mxfp4_packed,mxfp4_unshuffled",
     .help = "how the checkpoint stores codes, where nothing else says it"},
    {0},
};

/* One of algo_config: rotations r1 and r2 are in the weights unless r1 is said to be online; r3 and r4 are made while the
 * network runs. */
static oq_status check_algorithm(oq_env *env, const oq_json *algorithm)
{
    static const char *const online[] = {"online_r1_rotation", "r3", "r4"};
    const char *name = oq_json_string(oq_json_get(algorithm, "name"));
    for (size_t i = 0; i < OQ_COUNT(online); i++)
        if (oq_json_bool(oq_json_get(algorithm, online[i]), false))
            return oq_fail(
                env, OQ_E_UNSUPPORTED,
                "method 'quark': algo_config's '%s' has '%s': activations are rotated while the network "
                "runs, which is not in this build yet",
                name ? name : "(unnamed)", online[i]);
    return OQ_OK;
}

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    const oq_json *algorithms = oq_json_get(args->options, "algo_config");
    if (oq_json_type(algorithms) != OQ_JSON_ARRAY) return check_algorithm(env, algorithms);
    for (size_t i = 0; i < oq_json_size(algorithms); i++)
        OQ_TRY(check_algorithm(env, oq_json_at(algorithms, i)));
    return OQ_OK;
}

/* ---- made-up weights ----------------------------------------------------------------------------------- */

static bool is(const oq_json *of, const char *key, const char *word)
{
    const char *text = oq_json_string(oq_json_get(of, key));
    return text && strcmp(text, word) == 0;
}

/* NULL: another weight than those of checkpoints that are read. */
static const oq_format *made_up_format(const oq_json *w)
{
    const bool fp8 = is(w, "dtype", "fp8_e4m3"), int8 = is(w, "dtype", "int8");
    const int64_t group = oq_json_int(oq_json_get(w, "group_size"), 0);
    const int64_t of = group > 0 ? oq_group_of_format(group, 0) : 0;
    if (is(w, "qscheme", "per_tensor"))
        return fp8 ? &oq_format_fp8_e4m3_tensor : int8 ? &oq_format_int8_tensor : NULL;
    if (is(w, "qscheme", "per_channel"))
        return fp8 ? &oq_format_fp8_e4m3_channel : int8 ? &oq_format_int8_channel : NULL;
    if (is(w, "qscheme", "per_block")) return fp8 ? &oq_format_fp8_e4m3_block128 : NULL;
    if (is(w, "dtype", "fp4") && group == OQ_ACT_MX_GROUP) return &oq_format_mxfp4;
    if ((is(w, "dtype", "int4") || is(w, "dtype", "uint4")) && of)
        return oq_format_int(4, (int)of, !oq_json_bool(oq_json_get(w, "symmetric"), true), &oq_dtype_f32);
    return NULL;
}

static void choose_activations(const oq_json *in, oq_scheme *out)
{
    if (oq_json_type(in) != OQ_JSON_OBJECT) return;
    out->act = is(in, "dtype", "int8") ? &oq_dtype_i8 : &oq_dtype_f8_e4m3;
    out->act_scale =
        out->weight == &oq_format_fp8_e4m3_block128 ? OQ_ACT_DYNAMIC_GROUP : OQ_ACT_DYNAMIC_TOKEN;
    if (!is(in, "dtype", "fp4")) return;
    out->act = &oq_dtype_f4_e2m1;
    out->act_scale = is(in, "scale_calculation_mode", "floor")  ? OQ_ACT_DYNAMIC_MX
                     : is(in, "scale_calculation_mode", "ceil") ? OQ_ACT_DYNAMIC_MX_CEIL
                                                                : OQ_ACT_DYNAMIC_MX_EVEN;
}

static oq_status pretend(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer, oq_scheme *out)
{
    const oq_json *words =
        oq_quark_words_find(args->options, layer->parts[0]); /* patterns mean what files hold */
    const oq_json *w = oq_json_get(words, "weight");
    if (oq_json_type(w) == OQ_JSON_NULL) return OQ_OK;
    const int64_t group = oq_json_int(oq_json_get(w, "group_size"), 0);
    const bool branch = oq_json_int(oq_json_get(args->options, "svd_rank"), 0) > 0;
    out->weight = branch ? NULL : made_up_format(w);
    if (!out->weight)
        return oq_fail(
            env, OQ_E_UNSUPPORTED,
            "layer '%s': dummy loading makes up FP8 and INT8 per tensor, channel or block, integers of four "
            "bits in groups and MXFP4 as Quark's metadata declares them, without a low-rank branch",
            layer->name);
    if (group > 0 && layer->k % group != 0) {
        *out = (oq_scheme){0};
        return OQ_OK;
    }
    choose_activations(oq_json_get(words, "input_tensors"), out);
    return OQ_OK;
}

const oq_method oq_method_quark = {
    .name = "quark",
    .aliases = "quark_w4a8,quark_svdquant",
    .help = "checkpoints by AMD Quark: FP8, INT8, integers of four bits in groups, MXFP4",
    .options = options,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
    .unread = "softmax_quant_spec",
    .file_keys = "global_quant_config,layer_quant_config",
    .validate = validate,
    .pretend = pretend,
};
