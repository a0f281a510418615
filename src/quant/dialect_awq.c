/* dialect_awq.c -- AutoAWQ's `qweight`, `qzeros`, `scales` in the order of its gemm kernel. */
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include <string.h>

extern const oq_method oq_method_awq;

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    (void)ckpt;
    return named == &oq_method_awq;
}

static oq_packed_layout read_layout(const oq_declared *declared)
{
    return (oq_packed_layout){
        .packing = OQ_PACK_AWQ,
        .bits = oq_json_int(oq_json_get(declared->options, "bits"), 4),
        .group = oq_json_int(oq_json_get(declared->options, "group_size"), 128),
        .symmetric = !oq_json_bool(oq_json_get(declared->options, "zero_point"), true),
    };
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const oq_packed_layout layout = read_layout(declared);
    const char *version = oq_json_string(oq_json_get(declared->options, "version"));
    *found = false;
    if (version && strcmp(version, "gemm") != 0 && oq_scaled_find(ckpt, name, "qweight"))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s' is in AWQ's packing '%s', which is not in this build yet; 'gemm' is", name,
                       version);
    return oq_packed_locate(env, &layout, ckpt, name, n, k, out, found);
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    const oq_packed_layout layout = read_layout(declared);
    return oq_packed_layer_of(&layout, ckpt, t, name_length, n, k);
}

const oq_dialect oq_dialect_awq = {
    .name = "awq",
    .help = "AutoAWQ's packed integers of 4 bits in the order of its gemm kernel",
    .method = &oq_method_awq,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = layer_of,
};
