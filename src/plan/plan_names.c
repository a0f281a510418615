/* plan_names.c -- between the module's spelling of names and the file's. */
#include "plan/plan_internal.h"

#include "base/names.h"

#include <stdio.h>
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

enum { MAX_NAME = 1024 }; /* module names are our own and short; a longer candidate is simply not found */

/* from + the part of `name` behind `to`; either may be empty. False: does not fit. */
static bool rewrite(const oq_name_rule *rule, const char *name, char out[MAX_NAME])
{
    const char *rest = name + strlen(rule->to);
    if (*rest == '.') rest++;
    const char *dot = rule->from[0] && *rest ? "." : "";
    const int n = snprintf(out, MAX_NAME, "%s%s%s", rule->from, dot, rest);
    return n >= 0 && n < MAX_NAME;
}

/* The file's spelling: `name` itself, or a candidate written to `buffer`. */
static const char *spell(const oq_plan_component *c, const char *name, char buffer[MAX_NAME])
{
    if (!c->ckpt || !c->module->names || any_below(c->ckpt, name)) return name;
    for (const oq_name_rule *rule = c->module->names; rule->from; rule++)
        if (rule->to && oq_dotted_prefix(rule->to, name) && rewrite(rule, name, buffer) &&
            any_below(c->ckpt, buffer))
            return buffer;
    return name;
}

const char *oq_plan_ckpt_name(void *component, const char *name)
{
    oq_plan_component *c = component;
    char buffer[MAX_NAME];
    const char *spelled = spell(c, name, buffer);
    if (spelled == name) return name;
    const char *copy = oq_arena_strdup(c->builder.arena, spelled);
    return copy ? copy : name;
}

const oq_ckpt_tensor *oq_plan_tensor(const oq_plan_component *c, const char *name, const char *suffix)
{
    if (!c->ckpt) return NULL;
    char buffer[MAX_NAME], full[MAX_NAME];
    const int n = snprintf(full, sizeof full, "%s%s", spell(c, name, buffer), suffix);
    return n >= 0 && n < MAX_NAME ? oq_ckpt_find(c->ckpt, full) : NULL;
}
