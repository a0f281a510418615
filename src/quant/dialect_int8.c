/* dialect_int8.c -- serialized INT8: `weight` int8 with `weight_scale` (one, or one per output row), and
 * `input_scale` where activations are static. */
#include "quant/dialect_comfy.h"
#include "quant/scaled_planes.h"

extern const oq_method oq_method_int8;

static const oq_scaled_spelling spelling = {
    .code = &oq_dtype_i8,
    .tensor = &oq_format_int8_tensor,
    .channel = &oq_format_int8_channel,
    .scale_names = "weight_scale",
};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    return named ? named == &oq_method_int8 : oq_scaled_detect(&spelling, ckpt) && !oq_comfy_marked(ckpt);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    oq_scaled_rules rules;
    OQ_TRY(oq_scaled_declared_rules(env, &spelling, declared, name, &rules));
    return oq_scaled_locate(env, &spelling, &rules, declared, ckpt, name, n, k, out, found);
}

const oq_dialect oq_dialect_int8 = {
    .name = "int8",
    .help = "weight (int8) with weight_scale, optional input_scale",
    .method = &oq_method_int8,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
};
