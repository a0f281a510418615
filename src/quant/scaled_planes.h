/* scaled_planes.h -- what the fp8 and int8 dialects share: a code tensor `weight` beside a scale tensor, per
 * tensor, per output row or per 128x128 block, and an optional static scale of the activations. Private to
 * this room. */
#ifndef OQ_QUANT_SCALED_PLANES_H
#define OQ_QUANT_SCALED_PLANES_H

#include "quant/dialect.h"

typedef struct oq_scaled_spelling {
    const oq_dtype *code;                      /* element type of `weight`; also of quantized activations */
    const oq_format *tensor, *channel, *block; /* block NULL: none */
    const char *scale_names; /* csv of suffixes; the first is the one that messages ask for */
} oq_scaled_spelling;

/* True if some tensor "X.weight" holds codes and has its scale beside it. */
bool oq_scaled_detect(const oq_scaled_spelling *spelling, const oq_ckpt *ckpt);
/* oq_dialect.locate for such a spelling. */
oq_status oq_scaled_locate(oq_env *env, const oq_scaled_spelling *spelling, const oq_declared *declared,
                           const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k, oq_part_source *out,
                           bool *found);

#endif
