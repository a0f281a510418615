/* size.h -- checked arithmetic for sizes that come from files and requests. False means: does not fit. */
#ifndef OQ_BASE_SIZE_H
#define OQ_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool oq_size_mul(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline bool oq_size_add(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

static inline bool oq_i64_mul(int64_t a, int64_t b, int64_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static inline size_t oq_align_up(size_t n, size_t alignment)
{
    return (n + alignment - 1) / alignment * alignment;
}

static inline int64_t oq_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t oq_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline size_t oq_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

static inline int64_t oq_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
