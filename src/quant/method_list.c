/* method_list.c -- every quantization method, the order of help and documentation. One line per
 * method_<name>.c (method_modelopt.c holds a family of four). */
#include "quant/method_modelopt.h"

extern const oq_method oq_method_fp8, oq_method_int8, oq_method_bitsandbytes, oq_method_comfy_nvfp4,
    oq_method_inc, oq_method_w4a16, oq_method_gptq, oq_method_awq, oq_method_mxfp8, oq_method_mxfp4,
    oq_method_mxfp4_dualscale, oq_method_ascend, oq_method_gguf, oq_method_torchao, oq_method_svdquant,
    oq_method_int8_convrot, oq_method_quark, oq_method_compressed_tensors, oq_method_quanto,
    oq_method_fp8_blockwise_mixed, oq_method_sdnq, oq_method_hqq;

const oq_method *const oq_method_list[] = {
    &oq_method_fp8,
    &oq_method_int8,
    &oq_method_bitsandbytes,
    &oq_method_mxfp8,
    &oq_method_mxfp4,
    &oq_method_mxfp4_dualscale,
    &oq_method_w4a16,
    &oq_method_modelopt,
    &oq_method_modelopt_fp4,
    &oq_method_modelopt_mixed,
    &oq_method_modelopt_mxfp8,
    &oq_method_comfy_nvfp4,
    &oq_method_inc,
    &oq_method_gptq,
    &oq_method_awq,
    &oq_method_compressed_tensors,
    &oq_method_torchao,
    &oq_method_quanto,
    &oq_method_sdnq,
    &oq_method_hqq,
    &oq_method_gguf,
    &oq_method_svdquant,
    &oq_method_int8_convrot,
    &oq_method_quark,
    &oq_method_ascend,
    &oq_method_fp8_blockwise_mixed,
    NULL,
};
