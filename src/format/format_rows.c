/* format_rows.c -- rows of a weight as a weight of their own: files that hold several layers one behind the other
 * (fused products) are taken apart without decoding anything. */
#include "format/format.h"

#include "base/size.h"

#include <string.h>

/* A plane that has nothing to do with the number of rows: one scale of the whole tensor. */
static bool is_shared(const oq_format *f, oq_plane plane, int64_t k)
{
    return f->plane_bytes(f, plane, 1, k) == f->plane_bytes(f, plane, 4096, k);
}

static bool is_edge(const oq_format *f, int64_t row, int64_t whole, int64_t k)
{
    if (row == 0 || row == whole) return true;
    if (f->block_n > 1) return row % f->block_n == 0;
    return !f->flat || row * k % f->block_k == 0;
}

bool oq_format_rows_separable(const oq_format *f, int64_t first, int64_t n, int64_t whole, int64_t k)
{
    const bool nested = f->flat && f->planes & 1u << OQ_PLANE_GLOBAL; /* blocks of blocks, behind a map */
    if (first < 0 || n < 1 || first > whole - n) return false;
    if (nested || f->spread) return n == whole;
    return is_edge(f, first, whole, k) && is_edge(f, first + n, whole, k);
}

void oq_format_take_rows(const oq_format *f, oq_plane plane, void *dst, const void *src, int64_t first,
                         int64_t n, int64_t whole, int64_t k)
{
    const size_t bytes = f->plane_bytes(f, plane, n, k);
    size_t at = 0;
    if (plane == OQ_PLANE_INPUT_SCALE) {
        memcpy(dst, src, sizeof(float));
        return;
    }
    if (n != whole && first && !is_shared(f, plane, k)) at = f->plane_bytes(f, plane, first, k);
    memcpy(dst, (const char *)src + at, bytes);
}
