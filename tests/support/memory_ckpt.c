/* memory_ckpt.c -- tensors kept in order by insertion. */
#include "support/memory_ckpt.h"

#include <stdlib.h>
#include <string.h>

void memory_ckpt_init(memory_ckpt *m)
{
    memset(m, 0, sizeof *m);
    m->ckpt.path = "memory";
    m->ckpt.container = "safetensors";
    m->ckpt.tensors = m->tensors;
}

void memory_ckpt_remove(memory_ckpt *m, const char *name)
{
    size_t n = 0;
    for (size_t i = 0; i < m->ckpt.n_tensors; i++)
        if (strcmp(m->tensors[i].name, name) != 0) m->tensors[n++] = m->tensors[i];
    m->ckpt.n_tensors = n;
}

void memory_ckpt_add(memory_ckpt *m, const char *name, const oq_dtype *dtype, const void *data, int64_t rows,
                     int64_t cols)
{
    memory_ckpt_remove(m, name);
    if (m->ckpt.n_tensors == MEMORY_CKPT_MAX) abort();
    size_t at = m->ckpt.n_tensors++;
    while (at > 0 && strcmp(m->tensors[at - 1].name, name) > 0) {
        m->tensors[at] = m->tensors[at - 1];
        at--;
    }
    oq_ckpt_tensor *t = &m->tensors[at];
    *t = (oq_ckpt_tensor){.name = name, .dtype = dtype, .type_name = dtype->name, .data = data, .elems = 1};
    if (rows >= 0) t->dim[t->n_dims++] = rows;
    if (cols >= 0) t->dim[t->n_dims++] = cols;
    for (int i = 0; i < t->n_dims; i++) t->elems *= t->dim[i];
    t->bytes = (size_t)t->elems * dtype->bytes;
}
