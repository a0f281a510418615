/* recognize.h -- which network a weight file holds, by its tensors alone: never by its name. */
#ifndef OQ_ENGINE_RECOGNIZE_H
#define OQ_ENGINE_RECOGNIZE_H

#include "ckpt/ckpt.h"
#include "nn/module.h"

typedef struct oq_recognized {
    const oq_module_type *module; /* NULL: none that this build runs */
    const char           *what;   /* for people: "text encoder (Qwen3)"; NULL: not even known by name */
    char                  prefix[128]; /* in front of all its names, with the dot; "" without */
} oq_recognized;

/* A component's usual name, by the kind of network: "transformer", "text_encoder", "vae". */
const char *oq_usual_component(const oq_module_type *module);
/* Does the network run configurations of this class? name NULL: no. */
bool oq_module_has_class(const oq_module_type *module, const char *name);
/* `wanted` (may be NULL) is looked for first: an all-in-one file holds several networks. */
oq_recognized oq_recognize(const oq_ckpt *ckpt, const oq_module_type *wanted);
/* The file must hold `wanted`: names lose their prefix, other networks' tensors are left out. `slot` begins the
 * sentence of refusal ("--transformer"). OQ_E_MISMATCH names what the file is. */
oq_status oq_recognize_as(oq_env *env, oq_ckpt *ckpt, const oq_module_type *wanted, const char *slot);

#endif
