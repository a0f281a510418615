/* container.h -- the files that layouts are written into: what stands in front of the tensors' bytes, and where those
 * begin. One file container_<name>.c each. */
#ifndef OQ_WRITE_CONTAINER_H
#define OQ_WRITE_CONTAINER_H

#include "base/json.h"
#include "base/strbuf.h"
#include "format/dtype.h"

enum { OQ_WRITE_MAX_DIMS = 8 };

typedef struct oq_write_tensor { /* one tensor of an output */
    const char *name, *type;     /* type: safetensors' spelling, or a GGUF type's name */
    int n_dims;
    int64_t dim[OQ_WRITE_MAX_DIMS]; /* row-major, of weights: blocks do not show */
    size_t bytes, at;               /* `at`: behind the header */
    int file;
} oq_write_tensor;

typedef struct oq_write_container {
    const char *name, *ending; /* "gguf", ".gguf" */
    size_t align;              /* each tensor begins at a multiple of it */
    bool whole;                /* one file, however many the source has */
    bool small_f32;            /* vectors and small tensors are F32: its readers take no others */
    /* Everything in front of the data of one file, appended; its length is a multiple of `align`. Tensors in the order of
     * their bytes. metadata: entries of the header, may be NULL. Bad names or types: OQ_E_UNSUPPORTED naming the tensor. */
    oq_status (*header)(oq_env *env, const oq_json *metadata, oq_write_tensor *const *tensors, size_t n,
                        oq_strbuf *out);
} oq_write_container;

extern const oq_write_container oq_container_safetensors, oq_container_gguf;
/* The container whose ending the path has; NULL: a folder's name. */
const oq_write_container *oq_write_container_of(const char *path);

#endif
