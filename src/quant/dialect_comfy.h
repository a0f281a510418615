/* dialect_comfy.h -- how ComfyUI's files are told from others that have the same tensors. Private to this room. */
#ifndef OQ_QUANT_DIALECT_COMFY_H
#define OQ_QUANT_DIALECT_COMFY_H

#include "ckpt/ckpt.h"

/* Any mark that only ComfyUI's files have: the tensor `scaled_fp8`, a `scale_weight`, a layer's `comfy_quant`, or
 * `_quantization_metadata` in the header. */
bool oq_comfy_marked(const oq_ckpt *ckpt);

#endif
