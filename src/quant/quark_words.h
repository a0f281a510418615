/* quark_words.h -- what Quark's metadata says of a layer. Private to this room. */
#ifndef OQ_QUANT_QUARK_WORDS_H
#define OQ_QUANT_QUARK_WORDS_H

#include "base/json.h"

/* {"weight", "input_tensors"} of the first pattern of layer_quant_config that means the layer, else of its class, else the
 * global one; NULL: none. */
const oq_json *oq_quark_words_find(const oq_json *options, const char *name);

#endif
