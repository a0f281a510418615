/* format_int4_channel.c -- symmetric codes of four bits under one f32 scale for each row. */
#include "format/format_group.h"

#include "base/size.h"
#include "format/float4.h"

static size_t plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    size_t bytes = 0;
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    const size_t row = plane == OQ_PLANE_DATA ? (size_t)(k / 2 + (k & 1)) : sizeof(float);
    return oq_size_mul((size_t)n, row, &bytes) ? bytes : SIZE_MAX;
}

/* One group as long as the row. */
static void piece(const oq_format *f, oq_group_piece *out, const oq_planes *src, int64_t row, int64_t first,
                  int64_t count, int64_t n, int64_t k)
{
    (void)f, (void)n;
    out->table = oq_int4_table;
    out->codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * (k / 2 + (k & 1));
    out->first = first;
    out->lead = count;
    out->scale[0] = ((const float *)src->plane[OQ_PLANE_SCALE])[row];
    out->offset[0] = 8.0f;
}

const oq_format oq_format_int4_channel = {.name = "int4_channel",
                                          .kernel_name = "int4",
                                          .planes = 1u << OQ_PLANE_DATA | 1u << OQ_PLANE_SCALE,
                                          .block_n = 1,
                                          .plane_bytes = plane_bytes,
                                          .decode_row = oq_span_decode_row,
                                          .decode_span = oq_group_decode_span,
                                          .piece = piece};
