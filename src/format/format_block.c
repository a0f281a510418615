/* format_block.c -- the frame of formats whose blocks hold codes and scales together: where a block of the flattened
 * matrix is, which part of it a span needs. What is in it is each format's own business. */
#include "format/format_block.h"

#include <string.h>

#include "base/size.h"

size_t oq_block_plane_bytes(const oq_format *f, oq_plane plane, int64_t n, int64_t k)
{
    size_t total = 0, bytes = 0;
    const size_t elems = (size_t)f->block->elems;
    if (plane != OQ_PLANE_DATA || n <= 0 || k <= 0) return 0;
    if (!oq_size_mul((size_t)n, (size_t)k, &total)) return SIZE_MAX;
    const size_t blocks = total / elems + (total % elems != 0);
    return oq_size_mul(blocks, (size_t)f->block->bytes, &bytes) ? bytes : SIZE_MAX;
}

void oq_block_decode_span(const oq_format *f, float *dst, const oq_planes *src, int64_t row, int64_t first,
                          int64_t count, int64_t n, int64_t k)
{
    const oq_block *const b = f->block;
    const uint8_t *const data = src->plane[OQ_PLANE_DATA];
    float part[OQ_BLOCK_ELEMS];
    (void)n;
    for (int64_t at = row * k + first, end = at + count; at < end;) {
        const int64_t block = at / b->elems, skip = at % b->elems;
        const int64_t take = oq_min_i64(b->elems - skip, end - at);
        const uint8_t *const from = data + block * b->bytes;
        if (take == b->elems) {
            b->decode(dst, from);
        } else {
            b->decode(part, from);
            memcpy(dst, part + skip, (size_t)take * sizeof *dst);
        }
        dst += take;
        at += take;
    }
}

void oq_block_encode(const oq_format *f, oq_planes_mut *dst, const float *src, int64_t n, int64_t k)
{
    const oq_block *const b = f->block;
    uint8_t *to = dst->plane[OQ_PLANE_DATA];
    const int64_t total = n * k;
    for (int64_t at = 0; at < total; at += b->elems, to += b->bytes) {
        float part[OQ_BLOCK_ELEMS] = {0};
        const int64_t count = oq_min_i64(b->elems, total - at);
        memcpy(part, src + at, (size_t)count * sizeof *part);
        const float amax = oq_amax(part, 1, count, count);
        memset(to, 0, (size_t)b->bytes);
        if (amax != amax && b->poison)
            b->poison(to);
        else
            b->encode(to, part);
    }
}
