/* sparse_planes.h -- plain weights of which a file keeps those that are not zero, and a bit for each place. Private to this room. */
#ifndef OQ_QUANT_SPARSE_PLANES_H
#define OQ_QUANT_SPARSE_PLANES_H

#include "quant/dialect.h"

/* compressed-tensors' sparse-24-bitmask (`compressed` [n, k/2], two of four places in each row) and sparse-bitmask (`compressed` [count],
 * `row_offsets` I64 [n]): `bitmask` U8 [n, ceil(k/8)], low bits first, `shape` I64 of n and k. The numbers are put into their places: a dense
 * weight of the stored type. *found false: the layer has no `compressed`. */
oq_status oq_sparse_locate(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k, oq_part_source *out,
                           bool *found);
/* The shape of the layer whose numbers t are. */
bool oq_sparse_layer_of(const oq_ckpt *ckpt, const oq_ckpt_tensor *t, size_t *name_length, int64_t *n, int64_t *k);

#endif
