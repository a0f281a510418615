/* packed_planes.h -- what the dialects of integer weights share: codes of 2 to 8 bits packed into words of 32 bits,
 * with a scale (and a zero point) per group of columns. Private to this room. */
#ifndef OQ_QUANT_PACKED_PLANES_H
#define OQ_QUANT_PACKED_PLANES_H

#include "quant/dialect.h"

typedef enum oq_packing {
    OQ_PACK_GPTQ, /* qweight [k*b/32, n]: per column of the tensor a stream along k; qzeros [groups, n*b/32]; scales
                     [groups, n]; g_idx [k] */
    OQ_PACK_PLANES, /* the same with each run of 32 codes in planes of 4, 2 and 1 bits (of 8 bits: of 8); sides are multiples of 32 */
    OQ_PACK_AWQ,  /* qweight [k, n/8] and qzeros [groups, n/8], four bits in the order 0 2 4 6 1 3 5 7; scales [groups, n] */
    OQ_PACK_AWQ_PLAIN, /* the same under the names weight, weight_zero_point and weight_scale */
    OQ_PACK_ROWS  /* weight_packed [n, k*b/32], weight_scale [n, groups], weight_zero_point [n*b/32, groups] */
} oq_packing;

typedef struct oq_packed_layout {
    oq_packing packing;
    int64_t bits, group; /* group: columns under a scale; -1: the whole row */
    bool symmetric;        /* says the metadata: zero points, where there are any, are all half of the codes' range */
    bool zeros_minus_one;  /* OQ_PACK_GPTQ: stored less by one ... */
    bool zeros_borrow;     /* ... which was taken off whole words: a zero point of 0 borrows from the next one of its word */
    bool is_signed;        /* OQ_PACK_AWQ_PLAIN: codes and zero points in two's complement, half the range less */
} oq_packed_layout;

/* oq_dialect.locate for such a layer; *found false: it has no codes in this packing. */
oq_status oq_packed_locate(oq_env *env, const oq_packed_layout *layout, const oq_ckpt *ckpt, const char *name,
                           int64_t n, int64_t k, oq_part_source *out, bool *found);
/* oq_dialect.layer_of: the shape of the layer whose codes `tensor` holds in this layout; false: it holds none. */
bool oq_packed_layer_of(const oq_packed_layout *layout, const oq_ckpt *ckpt, const oq_ckpt_tensor *tensor,
                        size_t *name_length, int64_t *n, int64_t *k);
/* ---- for other dialects of grouped integers ------------------------------------------------------------------------ */

/* Columns of a group in the format that holds groups of `group` columns, `groups` of them in a row: the largest of its
 * sizes that these are made of. 0: none. */
int64_t oq_group_of_format(int64_t group, int64_t groups);
/* Finds scales [n, groups] and checks type, shape and values. */
oq_status oq_group_scale(oq_env *env, const oq_ckpt *ckpt, const char *name, const char *suffix, int64_t n,
                         int64_t groups, const oq_ckpt_tensor **out);
/* Their type and values alone: finite, of either sign. */
oq_status oq_group_scale_values(oq_env *env, const oq_ckpt_tensor *t);
/* oq_plane_source.make for them: arg[1] columns of a group in the file, arg[2] those of the format. */
void oq_group_make_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k);
/* The same as f32. */
void oq_group_make_wide_scales(void *dst, const oq_plane_source *self, int64_t n, int64_t k);

/* The suffix of the codes ("qweight"). */
const char *oq_packed_codes(oq_packing packing);

#endif
