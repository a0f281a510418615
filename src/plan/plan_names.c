/* plan_names.c -- between the module's spelling of names and the file's. */
#include "plan/plan_internal.h"

#include "base/names.h"

#include <string.h>

/* Does any tensor of the file begin with `prefix` as whole dotted components? Tensors are sorted by name. */
static bool any_below(const oq_ckpt *ckpt, const char *prefix)
{
    size_t low = 0, high = ckpt->n_tensors;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(ckpt->tensors[middle].name, prefix) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    /* "a-b" sorts between "a" and "a.b": walk on while the plain prefix still fits. */
    for (const size_t n = strlen(prefix); low < ckpt->n_tensors; low++) {
        const char *name = ckpt->tensors[low].name;
        if (strncmp(name, prefix, n) != 0) return false;
        if (name[n] == '\0' || name[n] == '.') return true;
    }
    return false;
}

/* from + the part of `name` behind `to`; either may be empty. */
static char *rewrite(oq_arena *arena, const oq_name_rule *rule, const char *name)
{
    const char *rest = name + strlen(rule->to);
    if (*rest == '.') rest++;
    const char *dot = rule->from[0] && *rest ? "." : "";
    return oq_arena_printf(arena, "%s%s%s", rule->from, dot, rest);
}

const char *oq_plan_ckpt_name(void *component, const char *name)
{
    oq_plan_component *c = component;
    if (!c->ckpt || !c->module->names || any_below(c->ckpt, name)) return name;
    for (const oq_name_rule *rule = c->module->names; rule->from; rule++) {
        if (!rule->to || !oq_dotted_prefix(rule->to, name)) continue;
        const char *candidate = rewrite(c->builder.arena, rule, name);
        if (candidate && any_below(c->ckpt, candidate)) return candidate;
    }
    return name;
}

const oq_ckpt_tensor *oq_plan_tensor(oq_plan_component *c, const char *name, const char *suffix)
{
    if (!c->ckpt) return NULL;
    char *full = oq_arena_printf(c->builder.arena, "%s%s", oq_plan_ckpt_name(c, name), suffix);
    return full ? oq_ckpt_find(c->ckpt, full) : NULL;
}
