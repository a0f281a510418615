/* method_registry.h -- methods that a program registered in its env (oq_method_register). Private to this
 * room. */
#ifndef OQ_QUANT_METHOD_REGISTRY_H
#define OQ_QUANT_METHOD_REGISTRY_H

#include "quant/method.h"

const oq_method *oq_registry_find(const oq_registry *registry,
                                  const char *name); /* NULL: none; registry may be NULL */
/* In order of registration; the next of the last is NULL. */
const oq_method *oq_registry_first(const oq_registry *registry);
const oq_method *oq_registry_next(const oq_method *method);

#endif
