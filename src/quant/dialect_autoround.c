/* dialect_autoround.c -- AutoRound's FP8 exports: `weight` e4m3 with `weight_scale` of any float type, and an
 * `input_scale` where the packing is fp8_static. */
#include "quant/scaled_planes.h"

#include <string.h>

extern const oq_method oq_method_inc;

static const oq_scaled_spelling spelling = {
    .code = &oq_dtype_f8_e4m3,
    .tensor = &oq_format_fp8_e4m3_tensor,
    .channel = &oq_format_fp8_e4m3_channel,
    .block = &oq_format_fp8_e4m3_block128,
    .scale_names = "weight_scale,weight_scale_inv",
};

/* Its integer and MX packings have the same method name: the codes tell them apart. */
static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    return named == &oq_method_inc && oq_scaled_detect(&spelling, ckpt);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const char *packing = oq_json_string(oq_json_get(declared->options, "packing_format"));
    oq_scaled_rules rules;
    OQ_TRY(oq_scaled_declared_rules(env, &spelling, declared, name, &rules));
    if (packing && strcmp(packing, "auto_round:fp8_static") == 0) rules.act = OQ_SCALED_ACT_STATIC;
    return oq_scaled_locate(env, &spelling, &rules, declared, ckpt, name, n, k, out, found);
}

const oq_dialect oq_dialect_autoround = {
    .name = "autoround",
    .help = "AutoRound's FP8 exports, static or dynamic",
    .method = &oq_method_inc,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
};
