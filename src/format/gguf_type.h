/* gguf_type.h -- the element types of GGUF files: number, name, block, and what reads them. */
#ifndef OQ_FORMAT_GGUF_TYPE_H
#define OQ_FORMAT_GGUF_TYPE_H

#include "format/format.h"

typedef struct oq_gguf_type {
    uint32_t id;
    const char *name;        /* "Q4_K" */
    int elems, bytes;        /* of one block; 1 and the element's size for plain types */
    const oq_dtype *dtype;   /* plain types */
    const oq_format *format; /* blocks; NULL with dtype NULL: known, not read (see `why`) */
    const char *why;         /* not read because; NULL: it is */
} oq_gguf_type;

extern const oq_gguf_type oq_gguf_types[]; /* ends with name NULL */
const oq_gguf_type *oq_gguf_type_by_id(uint32_t id);         /* NULL: unknown */
const oq_gguf_type *oq_gguf_type_by_name(const char *name);  /* case-blind; NULL: unknown */
const oq_gguf_type *oq_gguf_type_of(const oq_format *format); /* plain and block formats; NULL: none */

/* The type that takes rows of k weights where `wanted` does not divide them: the producer's next best of blocks of 32,
 * else F16. `wanted` itself where it does. */
const oq_gguf_type *oq_gguf_type_fitting(const oq_gguf_type *wanted, int64_t k);

#endif
