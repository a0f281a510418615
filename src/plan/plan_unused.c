/* plan_unused.c -- what of a network its pipeline never runs (the layers of a text encoder behind the last state that is
 * taken): it is accounted for like the rest, told, and then no part of what is loaded, streamed or adapted. */
#include "plan/plan_internal.h"

static bool is_linear(const oq_item *item)
{
    return item->kind == OQ_ITEM_LINEAR;
}

static size_t count_layers(const oq_plan_component *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->builder.n_items; i++)
        n += c->builder.items[i].unused && is_linear(&c->builder.items[i]);
    return n;
}

static void note(oq_plan_unused *u, const oq_item *item)
{
    if (!u->first) u->first = oq_item_name(item);
    u->last = oq_item_name(item);
    if (is_linear(item)) u->names[u->n_layers++] = item->u.linear->name;
}

/* Those that run keep their order, the others follow them. */
static oq_status part_layers(oq_plan *plan, oq_plan_component *c)
{
    oq_plan_layer *aside = NULL;
    size_t n = 0, n_aside = 0, at = 0;
    OQ_TRY(oq_new(plan->env, count_layers(c) + 1, sizeof *aside, "plan", &aside));
    for (size_t i = 0; i < c->builder.n_items; i++) {
        if (!is_linear(&c->builder.items[i])) continue;
        if (c->builder.items[i].unused)
            aside[n_aside++] = c->layers[at++];
        else
            c->layers[n++] = c->layers[at++];
    }
    for (size_t i = 0; i < n_aside; i++) c->layers[n + i] = aside[i];
    c->n_layers = n;
    oq_free(plan->env, aside);
    return OQ_OK;
}

oq_status oq_plan_set_aside(oq_plan *plan, oq_plan_component *c)
{
    oq_builder *b = &c->builder;
    size_t n = 0;
    OQ_TRY(oq_arena_new(&plan->arena, count_layers(c), sizeof *c->unused.names, "plan", &c->unused.names));
    OQ_TRY(part_layers(plan, c));
    for (size_t i = 0; i < b->n_items; i++) {
        const oq_item item = b->items[i];
        if (item.unused)
            note(&c->unused, &item);
        else
            b->items[n++] = item;
    }
    b->n_items = n;
    return OQ_OK;
}

oq_json *oq_plan_unused_to_json(const oq_plan_component *c)
{
    const oq_plan_unused *u = &c->unused;
    oq_json *json = oq_json_new_object();
    oq_json_set(json, "layers", oq_json_new_int((int64_t)u->n_layers));
    oq_json_set(json, "tensors", oq_json_new_int((int64_t)u->n_tensors));
    oq_json_set(json, "absent", oq_json_new_int((int64_t)u->n_absent));
    oq_json_set(json, "params", oq_json_new_int(u->params));
    oq_json_set(json, "file_bytes", oq_json_new_int((int64_t)u->file_bytes));
    oq_json_set(json, "first", oq_json_new_string(u->first));
    oq_json_set(json, "last", oq_json_new_string(u->last));
    return json;
}

void oq_plan_print_unused(const oq_plan_component *c, oq_strbuf *out)
{
    const oq_plan_unused *u = &c->unused;
    if (!u->first) return;
    oq_strbuf_printf(
        out, "  not used by this pipeline, not loaded: %s to %s (%zu linear layers, %.2f M parameters",
        u->first, u->last, u->n_layers, (double)u->params / 1e6);
    if (u->n_absent) oq_strbuf_printf(out, "; %zu tensors are not in the file", u->n_absent);
    oq_strbuf_puts(out, ")\n");
}
