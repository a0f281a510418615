/* quanto_bits.h -- optimum-quanto's codes of four and two bits: groups of columns with a scale and a shift. Private to this
 * room. */
#ifndef OQ_QUANT_QUANTO_BITS_H
#define OQ_QUANT_QUANTO_BITS_H

#include "quant/dialect.h"

#define OQ_QUANTO_BITS_CODES "weight._data._data"

/* `weight._data._data` [groups / (8 / bits), columns of a group] bytes, whose upper bits are later groups of the whole matrix;
 * `weight._scale` and `weight._shift` [groups, 1]. `says`: the type that the metadata gives, "int4" or "int2"; NULL: none. */
oq_status oq_quanto_bits_locate(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *says, int64_t n,
                                int64_t k, oq_part_source *out);
/* The shape of the layer whose codes `t` are; false: its scales do not tell. */
bool oq_quanto_bits_shape(const oq_ckpt *ckpt, const char *name, const oq_ckpt_tensor *t, int64_t *n, int64_t *k);

#endif
