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

void oq_group_codes(const oq_group_traits *t, float *dst, const oq_planes *src, int64_t row, int64_t first,
                    int64_t count, int64_t k)
{
    const uint8_t *const codes = (const uint8_t *)src->plane[OQ_PLANE_DATA] + row * row_bytes(t, k);
    if (t->table)
        oq_code4_to_f32(dst, codes, first, count, t->table);
    else
        oq_e4m3_row_to_f32(dst, codes + first, (size_t)count);
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
            if (!t->table) memcpy(row + c, codes, (size_t)count);
            for (int64_t i = 0; t->table && i < count; i++) oq_code4_put(row, c + i, codes[i]);
        }
    }
}
