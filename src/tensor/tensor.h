/* tensor.h -- a view: rows x cols of one element type, `ld` elements from row to row. No arithmetic, no ownership.
 * Images are rows = B*H*W in that order and cols = C (NHWC); sequences are rows = tokens, cols = features.
 * In measure mode `data` is NULL and only the shape is true, so nobody does pointer arithmetic: ask for sub-views. */
#ifndef OQ_TENSOR_TENSOR_H
#define OQ_TENSOR_TENSOR_H

#include "format/dtype.h"

typedef struct oq_tensor {
    void           *data;
    const oq_dtype *dtype;
    int64_t         rows, cols, ld;
} oq_tensor;

static inline oq_tensor oq_tensor_make(void *data, const oq_dtype *dtype, int64_t rows, int64_t cols)
{
    return (oq_tensor){data, dtype, rows, cols, cols};
}

/* Rows [first, first + count). */
static inline oq_tensor oq_tensor_rows(oq_tensor t, int64_t first, int64_t count)
{
    if (t.data) t.data = (char *)t.data + (size_t)(first * t.ld) * t.dtype->bytes;
    t.rows = count;
    return t;
}

/* Columns [first, first + count). */
static inline oq_tensor oq_tensor_cols(oq_tensor t, int64_t first, int64_t count)
{
    if (t.data) t.data = (char *)t.data + (size_t)first * t.dtype->bytes;
    t.cols = count;
    return t;
}

/* Another shape over the same contiguous elements (ld == cols). */
static inline oq_tensor oq_tensor_reshape(oq_tensor t, int64_t rows, int64_t cols)
{
    t.rows = rows;
    t.cols = t.ld = cols;
    return t;
}

static inline size_t oq_tensor_bytes(oq_tensor t)
{
    return (size_t)(t.rows * t.cols) * t.dtype->bytes;
}

#endif
