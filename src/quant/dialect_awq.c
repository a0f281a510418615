/* dialect_awq.c -- AutoAWQ's `qweight`, `qzeros`, `scales` in the orders of its kernels: `version` says which. */
#include "quant/awq_planes.h"
#include "quant/packed_planes.h"
#include "quant/scaled_planes.h"

#include "base/names.h"
#include "base/size.h"

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

static const char *text(const oq_declared *declared, const char *key, const char *none)
{
    const char *word = oq_json_string(oq_json_get(declared->options, key));
    return word ? word : none;
}

/* exllama, exllamav2 and ipex are kernels for files of gemm's order; llm-awq's files have that of gemv_fast. false: gemm's. */
static bool read_packing(const oq_declared *declared, oq_awq_packing *out)
{
    static const struct {
        const char *version;
        oq_awq_packing packing;
    } rows[] = {{"gemv", OQ_AWQ_GEMV},
                {"gemv_fast", OQ_AWQ_GEMV_FAST},
                {"llm_awq", OQ_AWQ_GEMV_FAST},
                {"marlin", OQ_AWQ_MARLIN}};
    const char *version = text(declared, "version", "gemm"), *backend = text(declared, "backend", "");
    if (oq_name_equal(backend, "llm-awq")) version = "llm_awq";
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (oq_name_equal(rows[i].version, version)) {
            *out = rows[i].packing;
            return true;
        }
    return false;
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const oq_packed_layout layout = read_layout(declared);
    oq_awq_packing packing;
    if (!read_packing(declared, &packing))
        return oq_packed_locate(env, &layout, ckpt, name, n, k, out, found);
    *found = false;
    if (layout.bits != 4 && oq_scaled_find(ckpt, name, "qweight"))
        return oq_fail(env, OQ_E_UNSUPPORTED,
                       "layer '%s' has codes of %lld bits; AWQ's packings are read with 4", name,
                       (long long)layout.bits);
    return oq_awq_locate(env, packing, layout.group, !layout.symmetric, ckpt, name, n, k, out, found);
}

static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    const oq_packed_layout layout = read_layout(declared);
    oq_awq_packing packing;
    if (read_packing(declared, &packing)) return oq_awq_layer_of(packing, t, name_length, n, k);
    return oq_packed_layer_of(&layout, ckpt, t, name_length, n, k);
}

const oq_dialect oq_dialect_awq = {
    .name = "awq",
    .help =
        "AutoAWQ's packed integers of 4 bits in the orders of its gemm, gemv, gemv_fast and marlin kernels",
    .method = &oq_method_awq,
    .detect = detect,
    .read = oq_declared_read,
    .locate = locate,
    .layer_of = layer_of,
};
