/* plan_split.c -- products that the file stores in pieces unlike each other (a GGUF file may hold q and k in Q4_K and v in
 * Q6_K, another may smooth the input of each by factors of its own) or cut by columns (nunchaku's FLUX.1 has a layer over the
 * attention and one over the MLP where the network has one over both): nothing is decoded and rounded again, each piece
 * becomes a product of its own. */
#include "plan/plan_internal.h"

#include <string.h>

/* ---- by columns ----------------------------------------------------------------------------------------- */

static bool has_any(const oq_plan_component *c, const char *name)
{
    return oq_ckpt_any_below(c->ckpt, oq_plan_place((void *)c, name).name);
}

static bool is_cut(const oq_plan_component *c, const oq_linear *l)
{
    if (!c->ckpt || l->n_columns == 0 || has_any(c, l->name)) return false;
    for (int i = 0; i < l->n_columns; i++)
        if (!has_any(c, l->columns[i].name)) return false;
    return true;
}

/* Any of the columns' layers may bring the bias, or several their shares of it; the first is missed where none does. */
static oq_status take_columns(oq_plan *plan, const oq_plan_component *c, oq_linear *l)
{
    oq_part *parts = NULL;
    bool any = false;
    OQ_TRY(oq_arena_new(&plan->arena, (size_t)l->n_columns, sizeof *parts, l->name, &parts));
    for (int i = 0; i < l->n_columns; i++) {
        const bool bias = l->has_bias && oq_plan_find_values(c, l->columns[i].name, ".bias").tensor;
        parts[i] = (oq_part){.name = l->columns[i].name, .n = l->spec.n};
        l->apart[i] = (oq_linear){.name = parts[i].name,
                                  .parts = &parts[i],
                                  .has_bias = bias,
                                  .spec = {.n = l->spec.n, .k = l->columns[i].k}};
        any |= bias;
    }
    l->apart[0].has_bias |= l->has_bias && !any;
    l->apart_columns = true;
    return OQ_OK;
}

/* ---- both ------------------------------------------------------------------------------------------------ */

static void take_rows(oq_linear *l)
{
    for (int i = 0; i < l->n_parts; i++)
        l->apart[i] = (oq_linear){.name = l->parts[i].name,
                                  .parts = &l->parts[i],
                                  .has_bias = l->has_bias,
                                  .flat = l->flat,
                                  .spec = {.n = l->parts[i].n, .k = l->spec.k}};
}

/* Pieces of the item as layers of their own. */
static oq_status take_apart(oq_plan *plan, const oq_plan_component *c, const oq_item *item, int n,
                            oq_item *to)
{
    oq_linear *l = item->u.linear;
    const bool columns = is_cut(c, l);
    OQ_TRY(oq_arena_new(&plan->arena, (size_t)n, sizeof *l->apart, l->name, &l->apart));
    l->n_apart = n;
    if (columns) OQ_TRY(take_columns(plan, c, l));
    if (!columns) take_rows(l);
    for (int i = 0; i < n; i++) {
        l->apart[i].n_parts = 1;
        l->apart[i].keep = l->keep;
        l->apart[i].wide = l->wide;
        l->apart[i].whole = l;
        to[i] = (oq_item){.kind = OQ_ITEM_LINEAR, .unused = item->unused, .u.linear = &l->apart[i]};
    }
    return OQ_OK;
}

/* Into how many pieces: 0 where it stays one. */
static oq_status count_pieces(oq_plan *plan, oq_plan_component *c, const oq_linear *l, int *n)
{
    oq_layer_desc desc;
    bool apart = false;
    *n = is_cut(c, l) ? l->n_columns : 0;
    if (*n || !c->resolved->dialect || l->n_parts < 2) return OQ_OK;
    OQ_TRY(oq_plan_describe(plan, c, l, &desc));
    OQ_TRY(
        oq_resolve_apart(plan->env, plan->resolved, c->resolved, &desc, c->ckpt, oq_plan_place, c, &apart));
    if (apart) *n = l->n_parts;
    return OQ_OK;
}

oq_status oq_plan_split(oq_plan *plan, oq_plan_component *c)
{
    int *pieces = NULL;
    oq_item *items = NULL;
    size_t n = 0, at = 0;
    if (!c->ckpt) return OQ_OK;
    OQ_TRY(oq_arena_new(&plan->arena, c->builder.n_items, sizeof *pieces, "plan", &pieces));
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const oq_item *item = &c->builder.items[i];
        if (item->kind == OQ_ITEM_LINEAR) OQ_TRY(count_pieces(plan, c, item->u.linear, &pieces[i]));
        n += pieces[i] ? (size_t)pieces[i] : 1;
    }
    if (n == c->builder.n_items) return OQ_OK;
    OQ_TRY(oq_arena_new(&plan->arena, n, sizeof *items, "plan", &items));
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const oq_item item = c->builder.items[i];
        if (pieces[i]) OQ_TRY(take_apart(plan, c, &item, pieces[i], items + at));
        if (!pieces[i]) items[at] = item;
        at += pieces[i] ? (size_t)pieces[i] : 1;
    }
    c->builder.items = items;
    c->builder.n_items = c->builder.capacity = n;
    return OQ_OK;
}
