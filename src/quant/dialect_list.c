/* dialect_list.c -- every spelling of quantized checkpoints, in detection order. One entry per
 * dialect_<name>.c. */
#include "quant/dialect.h"

extern const oq_dialect oq_dialect_modelopt, oq_dialect_compressed_tensors, oq_dialect_autoround,
    oq_dialect_quanto, oq_dialect_bitsandbytes, oq_dialect_torchao, oq_dialect_comfy, oq_dialect_fp8,
    oq_dialect_int8, oq_dialect_fp8_plain, oq_dialect_gptq, oq_dialect_awq, oq_dialect_mx, oq_dialect_gguf,
    oq_dialect_msmodelslim, oq_dialect_quark, oq_dialect_nunchaku, oq_dialect_sdnq, oq_dialect_hqq;

/* clang-format off */
const oq_dialect *const oq_dialect_list[] = {
    &oq_dialect_modelopt,
    &oq_dialect_compressed_tensors,
    &oq_dialect_autoround,
    &oq_dialect_gptq,
    &oq_dialect_awq,
    &oq_dialect_mx,
    &oq_dialect_msmodelslim,
    &oq_dialect_quark,
    &oq_dialect_quanto,
    &oq_dialect_sdnq,
    &oq_dialect_hqq,
    &oq_dialect_bitsandbytes,
    &oq_dialect_torchao,
    &oq_dialect_nunchaku,
    &oq_dialect_comfy,
    &oq_dialect_fp8,
    &oq_dialect_int8,
    &oq_dialect_fp8_plain,
    &oq_dialect_gguf,
    NULL,
};
/* clang-format on */

/* A dialect may read a family of methods; the evidence of tensors is none here. */
bool oq_dialect_reads(const oq_method *method)
{
    const oq_ckpt empty = {0};
    for (const oq_dialect *const *d = oq_dialect_list; *d; d++)
        if ((*d)->method == method || (*d)->detect(method, &empty)) return true;
    return false;
}
