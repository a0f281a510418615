/* method_int8_convrot.c -- INT8 and INT4 weights rotated by a Hadamard matrix per group of columns (ComfyUI's layout).
 */
#include "quant/method.h"

static const oq_method_option options[] = {
    {.name = "group_size",
     .aliases = "convrot_groupsize",
     .type = OQ_METHOD_INT,
     .min = 4,
     .max = 65536,
     .fallback = "256",
     .help = "columns rotated together: a power of four"},
    {.name = "layer_configs", .type = OQ_METHOD_OBJECT, .help = "a layer's full name to its marker"},
    OQ_METHOD_IGNORED_ROW(""),
    {0},
};

static oq_status validate(oq_env *env, const oq_method_args *args)
{
    const int64_t group = oq_json_int(oq_json_get(args->options, "group_size"), 0);
    int64_t power = 4;
    while (power < group) power *= 4;
    if (power == group) return OQ_OK;
    return oq_fail(env, OQ_E_CONFIG, "method 'int8_convrot': group_size is %lld, it must be a power of four",
                   (long long)group);
}

const oq_method oq_method_int8_convrot = {
    .name = "int8_convrot",
    .aliases = "convrot",
    .help = "INT8 and INT4 checkpoints of ComfyUI whose weights were rotated by a Hadamard matrix in groups",
    .options = options,
    .serialized = true,
    .producer = true,
    .tolerated = "*",
    .validate = validate,
};
