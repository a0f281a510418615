/* st_writer.h -- small safetensors files made by code, for tests. */
#ifndef OQ_TESTS_ST_WRITER_H
#define OQ_TESTS_ST_WRITER_H

#include "format/dtype.h"

typedef struct st_tensor {
    const char *name;
    const oq_dtype *dtype;
    int n_dims;
    int64_t dim[6];
    const void *data; /* in dtype */
} st_tensor;

/* Writes the tensors in the given order; aborts the test program if the file cannot be written. */
void st_write(const char *path, const st_tensor *tensors, size_t n);

#endif
