/* module.h -- what one network tells the house about itself. Its forward functions are typed and called by pipelines. */
#ifndef OQ_NN_MODULE_H
#define OQ_NN_MODULE_H

#include "base/json.h"
#include "nn/nn.h"

/* Checkpoint spelling -> module spelling, applied before any matching. The first rule that fits a tensor's name wins;
 * `from` is a dotted prefix. to NULL: a harmless leftover that no layer needs (why says so). */
typedef struct oq_name_rule {
    const char *from, *to, *why;
} oq_name_rule;

typedef struct oq_module_type { /* one network: dit_zimage, te_qwen3, vae_kl */
    const char         *name;
    const char *const  *class_names; /* model_index / config classes it runs, NULL-terminated */
    size_t              self_bytes;
    const oq_name_rule *names;       /* ends with from NULL; may be NULL */
    /* Reads config.json into self. A key that changes the computation and is not understood, or a value that is not
     * supported: OQ_E_UNSUPPORTED naming key and value. Harmless keys are logged at DEBUG. */
    oq_status (*describe)(oq_env *env, const oq_json *config, void *self);
    oq_status (*declare)(oq_builder *b, void *self); /* names + shapes, once; allocates its arrays from b->arena */
} oq_module_type;

#endif
