/* format_group.h -- shared by the formats that scale short runs along a row: sizes of packed planes, and the two walks
 * over groups. */
#ifndef OQ_FORMAT_FORMAT_GROUP_H
#define OQ_FORMAT_FORMAT_GROUP_H

#include "format/format_scaled.h"

/* What a group format is made of. Rows begin at whole bytes and with a new group. */
typedef struct oq_group_traits {
    const float *table;  /* value of each four-bit code; NULL: codes are e4m3, one a byte */
    size_t scale_bytes;  /* of one group's scale */
    size_t zero_bytes;   /* of one group's zero point */
    size_t global_bytes; /* of the whole tensor's scale */
} oq_group_traits;

size_t oq_group_plane_bytes(const oq_format *f, const oq_group_traits *t, oq_plane plane, int64_t n,
                            int64_t k);
/* `piece` without its scales; offsets are 0. Returns the number of scales: groups first / block_k and following. */
int oq_group_piece_begin(const oq_format *f, const oq_group_traits *t, oq_group_piece *out,
                         const oq_planes *src, int64_t row, int64_t first, int64_t count, int64_t k);
/* decode_span by the format's own pieces. */
void oq_group_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                          int64_t count, int64_t n, int64_t k);

/* One group of at most 128 numbers: their codes, and its scale (and zero point) at index `group` of the planes. */
typedef void (*oq_group_encode_fn)(const oq_format *f, const oq_planes_mut *dst, int64_t group,
                                   uint8_t *codes, const float *x, int64_t count);
void oq_group_encode(const oq_format *f, const oq_group_traits *t, oq_planes_mut *dst, const float *src,
                     int64_t n, int64_t k, oq_group_encode_fn encode_group);

#endif
