/* tensor_groups.h -- compressed-tensors' config_groups: which of them means a layer. Private to this room. */
#ifndef OQ_QUANT_TENSOR_GROUPS_H
#define OQ_QUANT_TENSOR_GROUPS_H

#include "quant/method.h"

/* The group of `options` whose target means the layer most closely (its name, a re: pattern, its class), its key in *key;
 * NULL in *out: none does. */
oq_status oq_tensor_group_find(oq_env *env, const oq_json *options, const char *name, const char **key, const oq_json **out);

#endif
