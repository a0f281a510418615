/* torchao_int4.h -- TorchAO's (and ComfyUI's) integers of four bits with zero points that are floats: in rows, or in the tiles of its
 * tensor-core kernel. Private to this room. */
#ifndef OQ_QUANT_TORCHAO_INT4_H
#define OQ_QUANT_TORCHAO_INT4_H

#include "quant/dialect.h"

/* Rows of codes [n, k/2], the first of two in the low nibble, scales and zero points [k/group, n] under names of their own. */
typedef struct oq_int4_rows {
    const char *codes, *scale, *zero, *known; /* suffixes; csv of all that may stand there */
    bool is_signed; /* codes are -8..7; else 0..15, of which 8 is taken off */
} oq_int4_rows;
oq_status oq_int4_rows_locate(oq_env *env, const oq_int4_rows *rows, int64_t group, const oq_ckpt *ckpt,
                              const char *name, int64_t n, int64_t k, oq_part_source *out, bool *found);
/* Int4Tensor: `_weight_qdata` [n, k/2], `_weight_scale` and `_weight_zero_point` [k/group, n]. `data`: the class's
 * attributes. */
oq_status oq_torchao_locate_int4(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                                 const oq_json *data, oq_part_source *out, bool *found);
/* Int4PlainInt32Tensor as XPUs write it: `_weight_qdata` [n, k/8] of I32, codes 0..15 in their order, the first in the lowest bits,
 * `_weight_scale` and (whole, I8) `_weight_zero_point` [k/group, n]; value = (code - zero) * scale. */
oq_status oq_torchao_locate_words(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                                  const oq_json *data, oq_part_source *out, bool *found);
/* Int4TilePackedTo4dTensor: `_weight_qdata` [n/8, k/(16 t), 32, t/2] of I32 and `_weight_scale_and_zero` [k/group, n, 2],
 * both of rows and columns that may be padded. */
oq_status oq_torchao_locate_tiles(oq_env *env, const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                                  const oq_json *data, oq_part_source *out, bool *found);
/* The same under the name `codes`. */
oq_status oq_torchao_locate_tiles_in(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *codes,
                                     int64_t n, int64_t k, const oq_json *data, oq_part_source *out, bool *found);

#endif
