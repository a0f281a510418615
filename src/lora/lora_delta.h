/* lora_delta.h -- what one named adapter of a file adds to a layer, and the form in which that is run: a product of low rank
 * (LoRA, and LoHa as a product of the product of both ranks), the whole difference (LoHa where that is smaller), or a
 * Kronecker product (LoKr), whose factors stay as small as they are in the file. */
#ifndef OQ_LORA_LORA_DELTA_H
#define OQ_LORA_LORA_DELTA_H

#include "lora/lora_names.h"

typedef struct oq_lora_delta {
    oq_lora_form form;
    const oq_ckpt_tensor *const *tensor; /* [OQ_LORA_N_ROLES], the caller's */
    int64_t k;                           /* columns of the layer */
    int64_t down_n, down_k, up_n, up_k;  /* the pair's layers; up_n 0: as many as the rows that are meant; down_n 0: none */
    double rank;                         /* alpha is divided by it; 0: alpha has no effect */
} oq_lora_delta;

typedef struct oq_lora_subject { /* of errors, and what the adapter must fit */
    const char *path, *name;
    int n_name;
    int64_t rows, k;
    bool halves_swapped;
} oq_lora_subject;

/* Tensors that are missing, do not belong together or do not fit: OQ_E_FORMAT naming the layer and the shapes. */
oq_status oq_lora_delta_make(oq_env *env, const oq_lora_subject *subject, const oq_ckpt_tensor *const *tensor,
                             oq_lora_delta *out);
/* Weights of the pair: down [down_n, down_k], up [up_n or n, up_k] for rows [from, from + n), times `scale`. */
oq_status oq_lora_delta_fill(oq_env *env, const oq_lora_delta *d, int64_t from, int64_t n,
                             const oq_lora_subject *subject, double scale, float *down, float *up);

#endif
