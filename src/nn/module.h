/* module.h -- what one network tells the house about itself. Its forward functions are typed and called by pipelines. */
#ifndef OQ_NN_MODULE_H
#define OQ_NN_MODULE_H

#include "base/json.h"
#include "nn/nn.h"

/* Checkpoint spelling -> module spelling, applied before any matching. `from` and `to` are dotted prefixes of names in
 * which '*' stands for any one component ("layers.*.attention.out"); the same component comes back on the other side. A
 * name that the file holds as it is needs no rule; else the first rule that leads to a name of the file wins.
 * `to` of several names, comma separated: the file holds their rows one behind the other (a fused product).
 * to NULL: a harmless leftover that no layer needs (why says so). */
typedef struct oq_name_rule {
    const char *from, *to, *why;
    bool        read_only; /* a later producer's spelling: files come with it, none is written with it as the original */
    bool        halves_swapped; /* the file holds the second half of the rows first ([shift, scale] for [scale, shift]) */
} oq_name_rule;

typedef struct oq_module_type { /* one network: dit_zimage, te_qwen3, vae_kl */
    const char         *name;
    const char         *gguf;        /* "general.architecture" of its GGUF files; NULL: none is usual */
    const char         *what;        /* for people: "transformer (Z-Image)", "text encoder (Qwen3)" */
    /* How a file is recognised by its tensors alone, in any spelling and of any producer: each entry is a csv of names
     * (of layers, without ".weight") that must all be there below one prefix, or with '!' must not. NULL-terminated;
     * NULL: never. */
    const char *const  *signatures;
    const char *const  *class_names; /* model_index / config classes it runs, NULL-terminated */
    size_t              self_bytes;
    const oq_name_rule *names;       /* ends with from NULL; may be NULL */
    /* Reads config.json into self. A key that changes the computation and is not understood, or a value that is not
     * supported: OQ_E_UNSUPPORTED naming key and value. Harmless keys are logged at DEBUG. */
    oq_status (*describe)(oq_env *env, const oq_json *config, void *self);
    oq_status (*declare)(oq_builder *b, void *self); /* names + shapes, once; allocates its arrays from b->arena */
} oq_module_type;

#endif
