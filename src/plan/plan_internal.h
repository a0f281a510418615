/* plan_internal.h -- what the files of this room share. */
#ifndef OQ_PLAN_PLAN_INTERNAL_H
#define OQ_PLAN_PLAN_INTERNAL_H

#include "plan/plan.h"

/* plan_account.c: every tensor that the component needs exists with the right shape and type; every tensor of the
 * file is needed or known to be harmless. */
oq_status oq_plan_account(oq_plan *plan, oq_plan_component *c);

/* plan_split.c: products that the file stores in pieces become an item for each, before anything is chosen. */
oq_status oq_plan_split(oq_plan *plan, oq_plan_component *c);

/* plan_kernels.c: a layer as quant/ sees it. */
oq_status oq_plan_describe(oq_plan *plan, const oq_plan_component *c, const oq_linear *l, oq_layer_desc *out);
/* plan_kernels.c: storage, kernel and bytes of each item. */
oq_status oq_plan_choose(oq_plan *plan, oq_plan_component *c);

/* plan_unused.c: takes what is never run out of the component's lists, once it is accounted for. */
oq_status oq_plan_set_aside(oq_plan *plan, oq_plan_component *c);
oq_json  *oq_plan_unused_to_json(const oq_plan_component *c);
void      oq_plan_print_unused(const oq_plan_component *c, oq_strbuf *out); /* nothing where all is run */

/* plan_names.c: does a rule's pattern ('*' is one component) fit the name, up to the end of a component? */
bool oq_plan_name_fits(const char *pattern, const char *name);

/* plan_attention.c: what runtime attention quantization does to the component's layers. */
oq_status oq_plan_attend(oq_plan *plan, oq_plan_component *c);
void      oq_plan_print_attention(const oq_plan_component *c, oq_strbuf *out); /* nothing where it is off */
oq_json  *oq_plan_attention_to_json(const oq_plan_component *c, const oq_plan_attention *row);
oq_json  *oq_plan_policy_to_json(const oq_plan_component *c); /* null where it is off */

#endif
