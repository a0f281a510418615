/* dialect_fp8.c -- serialized FP8 as transformers, vLLM and diffusers' tools write it: `weight` e4m3 with
 * `weight_scale` (one, or one per output row) or `weight_scale_inv` (128x128 blocks; a multiplier despite its
 * name), and `input_scale` where activations are static. */
#include "quant/dialect_comfy.h"
#include "quant/scaled_planes.h"

extern const oq_method oq_method_fp8, oq_method_fp8_blockwise_mixed;

static const oq_scaled_spelling spelling = {
    .code = &oq_dtype_f8_e4m3,
    .tensor = &oq_format_fp8_e4m3_tensor,
    .channel = &oq_format_fp8_e4m3_channel,
    .block = &oq_format_fp8_e4m3_block128,
    .scale_names = "weight_scale,weight_scale_inv",
};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    if (named == &oq_method_fp8_blockwise_mixed) return true;
    return (named ? named == &oq_method_fp8 : oq_scaled_detect(&spelling, ckpt)) && !oq_comfy_marked(ckpt);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    oq_scaled_rules rules;
    OQ_TRY(oq_scaled_declared_rules(env, &spelling, declared, name, &rules));
    if (declared->method == &oq_method_fp8_blockwise_mixed) /* weights by blocks, activations as they are */
        rules = (oq_scaled_rules){.act = OQ_SCALED_ACT_NONE, .format = spelling.block};
    return oq_scaled_locate(env, &spelling, &rules, declared, ckpt, name, n, k, out, found);
}

const oq_dialect oq_dialect_fp8 = {
    .name = "fp8",
    .help = "weight (e4m3) with weight_scale or weight_scale_inv, optional input_scale",
    .method = &oq_method_fp8,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
};
