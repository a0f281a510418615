/* pair_planes.h -- what dialects share about integers of four bits of two rows in one byte: U8 (or I8) [n/2, k], row 2r in
 * the low nibble of row r, codes in two's complement. Private to this room. */
#ifndef OQ_QUANT_PAIR_PLANES_H
#define OQ_QUANT_PAIR_PLANES_H

#include "quant/dialect.h"

/* Planes DATA and SCALE of such a layer ("X.weight", "X.weight_scale" [n, groups] or [n]) in a format of OQ_INT_FORMATS.
 * `group`: columns under a scale as the metadata says, 0: as the scale's shape says. A missing plane is an error. */
oq_status oq_pair_locate(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t group, int64_t n, int64_t k,
                         oq_part_source *out);

#endif
