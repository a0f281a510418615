/* dialect_autoround.c -- AutoRound's FP8 exports (`weight` e4m3 with `weight_scale` of any float type, and an
 * `input_scale` where the packing is fp8_static), MXFP8 and MXFP4. */
#include "quant/block_planes.h"
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

/* Codes of four bits in bytes, as MXFP4 and NVFP4 have them. */
static bool has_packed(const oq_ckpt *ckpt)
{
    size_t length = 0;
    int64_t n = 0, k = 0;
    for (size_t i = 0; ckpt && i < ckpt->n_tensors; i++)
        if ((ckpt->tensors[i].dtype == &oq_dtype_u8 || ckpt->tensors[i].dtype == &oq_dtype_i32) &&
            oq_block_layer_of(NULL, ckpt, &ckpt->tensors[i], &length, &n, &k))
            return true;
    return false;
}

/* Its integer packings have the same method name: the codes tell them apart. */
static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    return named == &oq_method_inc && (oq_scaled_detect(&spelling, ckpt) || has_packed(ckpt));
}

static bool is_plain(const oq_ckpt *ckpt, const char *name)
{
    return !oq_scaled_find(ckpt, name, "weight_packed") && !oq_scaled_find(ckpt, name, "weight_scale");
}

/* MX by data_type and bits; *is_mx false: FP8. */
static oq_status read_mx(oq_env *env, const oq_declared *declared, const char *name, oq_block_layout *out,
                         bool *is_mx)
{
    const oq_json *options = declared->options;
    const char *type = oq_json_string(oq_json_get(options, "data_type"));
    const int64_t bits = oq_json_int(oq_json_get(options, "weight_bits"), 0);
    *is_mx = type && strcmp(type, "mx_fp") == 0 && (bits == 4 || bits == 8);
    *out = (oq_block_layout){.kind = bits == 4 ? OQ_BLOCK_MXFP4 : OQ_BLOCK_MXFP8,
                             .weight_only = oq_json_int(oq_json_get(options, "act_bits"), 16) >= 16};
    if (*is_mx || !type || strcmp(type, "fp") == 0) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s': data_type '%s' of %lld bits is not in this build yet; fp and mx_fp are", name,
                   type, (long long)bits);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const char *packing = oq_json_string(oq_json_get(declared->options, "packing_format"));
    oq_scaled_rules rules;
    oq_block_layout block;
    bool is_mx = false;
    *found = false;
    if (!is_plain(ckpt, name)) OQ_TRY(read_mx(env, declared, name, &block, &is_mx));
    if (is_mx) {
        OQ_TRY(oq_block_locate(env, &block, NULL, ckpt, name, n, k, out));
        *found = true;
        return OQ_OK;
    }
    OQ_TRY(oq_scaled_declared_rules(env, &spelling, declared, name, &rules));
    if (packing && strcmp(packing, "auto_round:fp8_static") == 0) rules.act = OQ_SCALED_ACT_STATIC;
    return oq_scaled_locate(env, &spelling, &rules, declared, ckpt, name, n, k, out, found);
}

const oq_dialect oq_dialect_autoround = {
    .name = "autoround",
    .help = "AutoRound's FP8 (static or dynamic), MXFP8 and MXFP4",
    .method = &oq_method_inc,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = oq_block_layer_of,
};
