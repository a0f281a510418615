/* linear_any_fetch.h -- codes of weights in their format's own planes, fetched before they are decoded. */
#ifndef OQ_CPU_LINEAR_LINEAR_ANY_FETCH_H
#define OQ_CPU_LINEAR_LINEAR_ANY_FETCH_H

#include "cpu/linear/linear_decode_simd.h"

/* The columns that come next, on their way into L2 while the product runs on those at hand. */
static void fetch_ahead(const codes_of_row *c, int64_t row, int64_t first, int64_t count)
{
    const size_t from = c->row_bytes * (size_t)first / (size_t)c->k,
                 n = c->row_bytes * (size_t)count / (size_t)c->k;
    const char *const at = c->data + (size_t)row * c->row_bytes + from;
    for (size_t i = 0; i < n; i += 64) __builtin_prefetch(at + i, 0, 2);
}

#endif
