/* torch_names.h -- the names that a pickled file of weights may mention, and what they mean. Private to ckpt/. */
#ifndef OQ_CKPT_TORCH_NAMES_H
#define OQ_CKPT_TORCH_NAMES_H

#include "format/dtype.h"

typedef struct oq_torch_type { /* an element type */
    const char *name;          /* "torch.bfloat16" */
    const char *storage;       /* "torch.BFloat16Storage"; NULL: none */
    const char *type_name;     /* safetensors' spelling */
    const oq_dtype *dtype;     /* NULL: kept as bytes */
    int bytes;                 /* 0: is mentioned, not stored */
} oq_torch_type;

/* By the type's own name or that of its storages; NULL: none. */
const oq_torch_type *oq_torch_type_find(const char *name);

typedef enum oq_torch_call {
    OQ_TORCH_NOTHING,     /* a name that is only mentioned, or a class of plain values */
    OQ_TORCH_TENSOR,      /* (storage, offset, size, stride, …) */
    OQ_TORCH_TENSOR_TYPED, /* the same with an element type as seventh */
    OQ_TORCH_PARAMETER,   /* (tensor, …) */
    OQ_TORCH_FROM_TYPE,   /* (function, class, arguments, state) */
    OQ_TORCH_WRAPPER,     /* (class, type, size, …) */
    OQ_TORCH_TEXT         /* (text): a device, a layout */
} oq_torch_call;
oq_torch_call oq_torch_call_of(const char *name);

/* An oq_pickle_known: is the name on the list? */
bool oq_torch_known(const char *module, const char *name);

#endif
