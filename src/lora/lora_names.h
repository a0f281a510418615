/* lora_names.h -- the keys of adapter files: which tensor of which layer, in anybody's spelling. */
#ifndef OQ_LORA_LORA_NAMES_H
#define OQ_LORA_LORA_NAMES_H

#include "plan/plan.h"

typedef enum oq_lora_role {
    OQ_LORA_DOWN,
    OQ_LORA_UP,
    OQ_LORA_ALPHA,
    OQ_LORA_HADA_1A, /* LoHa: (1A 1B) * (2A 2B), element by element */
    OQ_LORA_HADA_1B,
    OQ_LORA_HADA_2A,
    OQ_LORA_HADA_2B,
    OQ_LORA_KRON_1, /* LoKr: factor 1 (x) factor 2; each whole, or the two behind it as a product */
    OQ_LORA_KRON_1A,
    OQ_LORA_KRON_1B,
    OQ_LORA_KRON_2,
    OQ_LORA_KRON_2A,
    OQ_LORA_KRON_2B,
    OQ_LORA_N_ROLES
} oq_lora_role;

/* The layer's name in a key ("transformer.x.to_q" of "transformer.x.to_q.lora_A.weight"): its length, and the role of the
 * tensor. 0: no key of an adapter that runs here; *foreign then names the kind that it belongs to ("DoRA"), or NULL. */
size_t oq_lora_key(const char *key, oq_lora_role *role, const char **foreign);

typedef struct oq_lora_target { /* rows of a layer that an adapter changes */
    oq_plan_component *component;
    oq_linear *linear;
    int64_t    at, n;    /* columns of its product */
    int64_t    from;     /* rows of the adapter's own `up` that they come from */
} oq_lora_target;

enum { OQ_LORA_MAX_TARGETS = 8 };

typedef struct oq_lora_names oq_lora_names; /* every spelling of every linear layer of a plan */
oq_status oq_lora_names_new(oq_env *env, oq_plan *plan, oq_lora_names **out);
void oq_lora_names_free(oq_env *env, oq_lora_names *names);
/* The layer's rows in the order of the file; *rows: how many `up` must have. 0: no layer has the name. */
int oq_lora_names_find(const oq_lora_names *names, const char *name, size_t n, oq_lora_target targets[OQ_LORA_MAX_TARGETS],
                       int64_t *rows, bool *halves_swapped);

#endif
