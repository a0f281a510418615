/* torchao_act.h -- what TorchAO's classes say of their activations. An argument that nobody knows is refused: it may make other
 * codes of x. Private to this room. */
#ifndef OQ_QUANT_TORCHAO_ACT_H
#define OQ_QUANT_TORCHAO_ACT_H

#include "quant/block_planes.h"
#include "quant/scaled_planes.h"

/* The text under `key`, which a type wraps: {"_type": ..., "_data": text}; "" where there is none. */
const char *oq_torchao_word(const oq_json *data, const char *key);

/* Float8Tensor's and Int8Tensor's act_quant_kwargs: activations with a scale per row, one that the file has (`fixed`), or none.
 * *has_zero: each row has a zero point too. OQ_E_UNSUPPORTED names what is not read. */
oq_status oq_torchao_read_act(oq_env *env, const oq_json *data, const char *name, bool fixed,
                              oq_scaled_rules *out, bool *has_zero);
/* The function that quantizes x, of a LinearActivationQuantizedTensor. */
oq_status oq_torchao_read_function(oq_env *env, const char *name, const oq_json *outer, oq_scaled_rules *out);
/* MXTensor's: the weights' type, and how its exponents are chosen. */
oq_status oq_torchao_read_mx_act(oq_env *env, const oq_json *data, const char *name, oq_block_layout *out);
/* NVFP4Tensor's, of which its reader asks for the kind of scale alone. */
oq_status oq_torchao_check_nvfp4_act(oq_env *env, const oq_json *data, const char *name);

#endif
