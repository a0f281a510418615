/* elem.h -- one element of a view, and work shared out over rows. Activations are F32 or BF16; nothing else
 * comes to the operations. References read and write through these, fast versions have their own vector
 * loads. */
#ifndef OQ_CPU_ELEM_H
#define OQ_CPU_ELEM_H

#include "base/pool.h"
#include "format/float8.h"
#include "tensor/tensor.h"

static inline bool oq_elem_is_bf16(const oq_tensor *t)
{
    return t->dtype == &oq_dtype_bf16;
}

static inline float oq_elem_get(const oq_tensor *t, int64_t row, int64_t col)
{
    const int64_t at = row * t->ld + col;
    return oq_elem_is_bf16(t) ? oq_bf16_to_f32(((const uint16_t *)t->data)[at])
                              : ((const float *)t->data)[at];
}

static inline void oq_elem_put(const oq_tensor *t, int64_t row, int64_t col, float value)
{
    const int64_t at = row * t->ld + col;
    if (oq_elem_is_bf16(t))
        ((uint16_t *)t->data)[at] = oq_bf16_from_f32(value);
    else
        ((float *)t->data)[at] = value;
}

static inline void *oq_elem_row(const oq_tensor *t, int64_t row)
{
    return (char *)t->data + row * t->ld * (oq_elem_is_bf16(t) ? 2 : 4);
}

/* What `value` becomes when it is stored to t. */
static inline float oq_elem_round(const oq_tensor *t, float value)
{
    return oq_elem_is_bf16(t) ? oq_bf16_round(value) : value;
}

/* Calls fn(args, first, end) over disjoint ranges that cover [0, rows). The split follows rows and cols
 * alone; a job too small to be worth waking anybody runs here. */
typedef void (*oq_rows_fn)(const void *args, int64_t first, int64_t end);
void oq_rows_run(oq_pool *pool, int64_t rows, int64_t cols, oq_rows_fn fn, const void *args);

#endif
