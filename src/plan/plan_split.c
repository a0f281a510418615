/* plan_split.c -- fused products whose parts the file stores unlike each other (a GGUF file may hold q and k in Q4_K and v in
 * Q6_K, another may smooth the input of each by factors of its own): nothing is decoded and rounded again, each part becomes
 * a product of its own. */
#include "plan/plan_internal.h"

#include <string.h>

/* Parts of `l` as layers of their own. */
static oq_status take_apart(oq_plan *plan, oq_linear *l, oq_item *to)
{
    oq_linear *apart = NULL;
    OQ_TRY(oq_arena_new(&plan->arena, (size_t)l->n_parts, sizeof *apart, l->name, &apart));
    for (int i = 0; i < l->n_parts; i++) {
        apart[i] = (oq_linear){.name = l->parts[i].name,
                               .parts = &l->parts[i],
                               .n_parts = 1,
                               .has_bias = l->has_bias,
                               .keep = l->keep,
                               .wide = l->wide,
                               .flat = l->flat,
                               .spec = {.n = l->parts[i].n, .k = l->spec.k}};
        to[i] = (oq_item){.kind = OQ_ITEM_LINEAR, .u.linear = &apart[i]};
    }
    l->apart = apart;
    return OQ_OK;
}

static oq_status find_apart(oq_plan *plan, oq_plan_component *c, bool *apart, size_t *n_items)
{
    *n_items = 0;
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const oq_item *item = &c->builder.items[i];
        oq_layer_desc desc;
        ++*n_items;
        if (item->kind != OQ_ITEM_LINEAR || item->u.linear->n_parts < 2) continue;
        OQ_TRY(oq_plan_describe(plan, c, item->u.linear, &desc));
        OQ_TRY(oq_resolve_apart(plan->env, plan->resolved, c->resolved, &desc, c->ckpt, oq_plan_place, c,
                                &apart[i]));
        if (apart[i]) *n_items += (size_t)item->u.linear->n_parts - 1;
    }
    return OQ_OK;
}

oq_status oq_plan_split(oq_plan *plan, oq_plan_component *c)
{
    bool *apart = NULL;
    oq_item *items = NULL;
    size_t n = 0, at = 0;
    if (!c->resolved->dialect) return OQ_OK;
    OQ_TRY(oq_arena_new(&plan->arena, c->builder.n_items, sizeof *apart, "plan", &apart));
    OQ_TRY(find_apart(plan, c, apart, &n));
    if (n == c->builder.n_items) return OQ_OK;
    OQ_TRY(oq_arena_new(&plan->arena, n, sizeof *items, "plan", &items));
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const oq_item item = c->builder.items[i];
        if (apart[i]) OQ_TRY(take_apart(plan, item.u.linear, items + at));
        if (!apart[i]) items[at] = item;
        at += apart[i] ? (size_t)item.u.linear->n_parts : 1;
    }
    c->builder.items = items;
    c->builder.n_items = c->builder.capacity = n;
    return OQ_OK;
}
