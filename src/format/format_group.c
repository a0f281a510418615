/* format_group.c -- the frame of group formats: where codes and scales are. What they mean is each format's own
 * business. */
#include "format/format_group.h"

#include <string.h>

#include "base/size.h"
#include "format/float4.h"
#include "format/float8.h"

static int64_t row_bytes(const oq_group_traits *t, int64_t k)
{
    return t->table ? k / 2 + (k & 1) : k;
}

size_t oq_group_plane_bytes(const oq_format *f, const oq_group_traits *t, oq_plane plane, int64_t n,
                            int64_t k)
{
    if (!(f->planes & 1u << plane) || n <= 0 || k <= 0) return 0;
    if (plane == OQ_PLANE_GLOBAL) return t->global_bytes;
    size_t bytes = 0;
    const bool data = plane == OQ_PLANE_DATA;
    const int64_t columns = data ? row_bytes(t, k) : k / f->block_k + (k % f->block_k != 0);
    const size_t each = data ? 1 : plane == OQ_PLANE_SCALE ? t->scale_bytes : t->zero_bytes;
    if (!oq_size_mul((size_t)n, (size_t)columns, &bytes) || !oq_size_mul(bytes, each, &bytes))
        return SIZE_MAX;
    return bytes;
}

int oq_group_piece_begin(const oq_format *f, const oq_group_traits *t, oq_group_piece *out,
                         const oq_planes *src, int64_t row, int64_t first, int64_t count, int64_t k)
{
    const int64_t group = first / f->block_k;
    out->table = t->table;
    out->codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * row_bytes(t, k);
    out->first = first;
    out->lead = oq_min_i64((group + 1) * f->block_k - first, count);
    const int n_scales = (int)((first + count - 1) / f->block_k - group) + 1;
    for (int i = 0; i < n_scales; i++) out->offset[i] = 0.0f;
    return n_scales;
}

static void decode_piece(const oq_format *f, float *dst, const oq_group_piece *p, int64_t count)
{
    if (p->table)
        oq_code4_to_f32(dst, p->codes, p->first, count, p->table);
    else
        oq_e4m3_row_to_f32(dst, p->codes + p->first, (size_t)count);
    int64_t end = p->lead;
    for (int64_t i = 0, g = 0; i < count; g++, end = oq_min_i64(end + f->block_k, count)) {
        const float scale = p->scale[g], offset = p->offset[g];
        for (; i < end; i++) dst[i] = (dst[i] - offset) * scale;
    }
}

void oq_group_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                          int64_t count, int64_t n, int64_t k)
{
    oq_group_piece piece;
    for (int64_t at = 0; at < count; at += OQ_PIECE) {
        const int64_t columns = oq_min_i64(OQ_PIECE, count - at);
        f->piece(f, &piece, src, row, first + at, columns, n, k);
        decode_piece(f, dst + at, &piece, columns);
    }
}

void oq_group_encode(const oq_format *f, const oq_group_traits *t, oq_planes_mut *dst, const float *src,
                     int64_t n, int64_t k, oq_group_encode_fn encode_group)
{
    uint8_t codes[128];
    int64_t group = 0;
    for (int64_t r = 0; r < n; r++) {
        uint8_t *const row = (uint8_t *)dst->plane[OQ_PLANE_DATA] + r * row_bytes(t, k);
        for (int64_t c = 0; c < k; c += f->block_k, group++) {
            const int64_t count = oq_min_i64(f->block_k, k - c);
            encode_group(f, dst, group, codes, src + r * k + c, count);
            if (t->table)
                oq_code4_pack(row, c, codes, count);
            else
                memcpy(row + c, codes, (size_t)count);
        }
    }
}
