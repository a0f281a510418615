/* awq_planes.h -- AWQ's packings other than that of its gemm kernel, which packed_planes.h has. Private to this room. */
#ifndef OQ_QUANT_AWQ_PLANES_H
#define OQ_QUANT_AWQ_PLANES_H

#include "quant/dialect.h"

/* [..] as AutoAWQ's classes have them; groups fill up a run of w words of eight numbers: ceil(groups / 8), of groups of 64 an even
 * number of them, of 32 a multiple of four. */
typedef enum oq_awq_packing {
    OQ_AWQ_GEMV,      /* qweight I32 [n, k/8], first column in the low nibble; qzeros I32 [n, w]; scales [n, 8 w] */
    OQ_AWQ_GEMV_FAST, /* qweight I16 [n/4, k] in tiles; scales and qzeros (llm-awq: scaled_zeros) [8 w, n], floats: value = code * scale + zero */
    OQ_AWQ_MARLIN     /* qweight I32 [k/16, 2 n] in the order of a tensor core's operands; scales [groups, n], no zero points */
} oq_awq_packing;

/* oq_dialect.locate for such a layer of four bits, groups of `group` columns (-1: the whole row); *found false: it has no qweight. */
oq_status oq_awq_locate(oq_env *env, oq_awq_packing packing, int64_t group, bool zero_points, const oq_ckpt *ckpt,
                        const char *name, int64_t n, int64_t k, oq_part_source *out, bool *found);
/* The shape of the layer whose codes t are. */
bool oq_awq_layer_of(oq_awq_packing packing, const oq_ckpt_tensor *t, size_t *name_length, int64_t *n, int64_t *k);

#endif
