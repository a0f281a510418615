/* memory_ckpt.h -- a checkpoint that lives in a test's own arrays, without a file. */
#ifndef OQ_TESTS_MEMORY_CKPT_H
#define OQ_TESTS_MEMORY_CKPT_H

#include "ckpt/ckpt.h"

enum { MEMORY_CKPT_MAX = 64 };

typedef struct memory_ckpt {
    oq_ckpt ckpt;
    oq_ckpt_tensor tensors[MEMORY_CKPT_MAX]; /* sorted by name */
} memory_ckpt;

void memory_ckpt_init(memory_ckpt *m);
/* `name` and `data` are borrowed; rows or cols below zero leave that dimension out (both: a 0-d tensor). */
void memory_ckpt_add(memory_ckpt *m, const char *name, const oq_dtype *dtype, const void *data, int64_t rows,
                     int64_t cols);
void memory_ckpt_remove(memory_ckpt *m, const char *name);

#endif
