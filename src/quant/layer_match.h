/* layer_match.h -- does an entry of ignored_layers mean this layer? */
#ifndef OQ_QUANT_LAYER_MATCH_H
#define OQ_QUANT_LAYER_MATCH_H

#include "quant/method.h"

typedef enum oq_match { OQ_MATCH_NO, OQ_MATCH_YES, OQ_MATCH_SOME_PARTS } oq_match;

/* Exact full name (with or without the component in front), "re:" regular expression anchored at the
 * beginning, glob when it holds * ? or [, else a contiguous run of whole dotted components. Tried on the
 * fused name, then on each part: SOME_PARTS when only some of them match (the caller ORs over all entries
 * before it complains). part_bits receives one bit per matching part (all bits when the fused name matched).
 * A malformed regex: OQ_E_CONFIG. */
oq_status oq_layer_match(oq_env *env, const char *pattern, const oq_layer_desc *layer, uint64_t *part_bits,
                         oq_match *out);

#endif
