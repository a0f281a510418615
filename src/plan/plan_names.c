/* plan_names.c -- between the module's spelling of names and the file's: rules with '*', layers that the file holds as
 * rows of a larger one. */
#include "plan/plan_internal.h"

#include "base/names.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_NAME = 1024,
    MAX_STARS = 8
}; /* module names are our own and short; a longer candidate is not found */

typedef struct captured { /* what the stars of a pattern stood for, and what came behind it */
    const char *star[MAX_STARS];
    int n[MAX_STARS], count;
    const char *rest; /* without its leading dot */
} captured;

/* Does the pattern fit the beginning of `name`, up to the end of a component? */
static bool match_pattern(const char *pattern, const char *name, captured *out)
{
    *out = (captured){0};
    for (; *pattern; pattern++) {
        if (*pattern != '*') {
            if (*name++ != *pattern) return false;
            continue;
        }
        const size_t n = strcspn(name, ".");
        if (n == 0 || out->count == MAX_STARS) return false;
        out->star[out->count] = name;
        out->n[out->count++] = (int)n;
        name += n;
    }
    out->rest = *name == '.' ? name + 1 : name;
    return *name == '\0' || *name == '.';
}

bool oq_plan_name_fits(const char *pattern, const char *name)
{
    captured with;
    return match_pattern(pattern, name, &with);
}

/* The pattern with its stars filled in, the rest behind it; "" joins without a dot. False: does not fit. */
static bool fill_pattern(const char *pattern, const captured *with, bool rest, char out[MAX_NAME])
{
    int star = 0;
    size_t at = 0;
    for (; *pattern && at < MAX_NAME - 1; pattern++) {
        if (*pattern != '*') {
            out[at++] = *pattern;
            continue;
        }
        if (star == with->count || at + (size_t)with->n[star] >= MAX_NAME) return false;
        memcpy(out + at, with->star[star], (size_t)with->n[star]);
        at += (size_t)with->n[star++];
    }
    const char *tail = rest ? with->rest : "";
    const int n = snprintf(out + at, MAX_NAME - at, "%s%s", at && *tail ? "." : "", tail);
    return *pattern == '\0' && n >= 0 && (size_t)n < MAX_NAME - at;
}

bool oq_plan_respell(const char *pattern, const char *name, const char *other, char *out, size_t n)
{
    char buffer[MAX_NAME];
    captured with;
    if (!match_pattern(pattern, name, &with) || !fill_pattern(other, &with, true, buffer) ||
        strlen(buffer) >= n)
        return false;
    memcpy(out, buffer, strlen(buffer) + 1);
    return true;
}

/* Rows of a declared layer by its name as a part; 0: there is none. */
static int64_t rows_of(const oq_plan_component *c, const char *name)
{
    for (size_t i = 0; i < c->builder.n_items; i++) {
        if (c->builder.items[i].kind != OQ_ITEM_LINEAR) continue;
        const oq_linear *l = c->builder.items[i].u.linear;
        for (int p = 0; p < l->n_parts; p++)
            if (strcmp(l->parts[p].name, name) == 0) return l->parts[p].n;
    }
    return 0;
}

/* Word `index` of a rule of several names: its rows among those of all. False: one of them is no layer. */
static bool place_rows(const oq_plan_component *c, const char *to, size_t index, const captured *with,
                       oq_place *out)
{
    char word[MAX_NAME], name[MAX_NAME];
    if (!strchr(to, ',')) return true;
    for (size_t i = 0; oq_csv_word(to, i, word, sizeof word); i++) {
        const int64_t n = fill_pattern(word, with, false, name) ? rows_of(c, name) : 0;
        if (n == 0) return false;
        if (i == index) out->first = out->whole;
        out->whole += n;
    }
    return true;
}

/* The rule, word by word: where it leads to a name of the file, that is the place. */
static bool try_rule(const oq_plan_component *c, const oq_name_rule *rule, const char *name,
                     char buffer[MAX_NAME], oq_place *out)
{
    char word[MAX_NAME];
    captured with;
    if (!*rule->to) { /* a wrapper around the whole network */
        with = (captured){.rest = name};
        if (!fill_pattern(rule->from, &with, true, buffer) || !oq_ckpt_any_below(c->ckpt, buffer))
            return false;
        *out = (oq_place){.name = buffer};
        return true;
    }
    for (size_t i = 0; oq_csv_word(rule->to, i, word, sizeof word); i++) {
        *out = (oq_place){.name = buffer, .halves_swapped = rule->halves_swapped};
        if (match_pattern(word, name, &with) && fill_pattern(rule->from, &with, true, buffer) &&
            oq_ckpt_any_below(c->ckpt, buffer) && place_rows(c, rule->to, i, &with, out))
            return true;
    }
    return false;
}

/* The place, its name `name` itself or written to `buffer`. */
static oq_place find_place(const oq_plan_component *c, const char *name, char buffer[MAX_NAME])
{
    oq_place place = {.name = name};
    if (!c->ckpt || !c->module->names || oq_ckpt_any_below(c->ckpt, name)) return place;
    for (const oq_name_rule *rule = c->module->names; rule->from; rule++)
        if (rule->to && try_rule(c, rule, name, buffer, &place)) return place;
    return (oq_place){.name = name};
}

oq_place oq_plan_place(void *component, const char *name)
{
    oq_plan_component *c = component;
    char buffer[MAX_NAME];
    oq_place place = find_place(c, name, buffer);
    if (place.name != buffer) return place;
    const char *copy = oq_arena_strdup(c->builder.arena, buffer);
    place.name = copy ? copy : name;
    return place;
}

oq_plan_values oq_plan_find_values(const oq_plan_component *c, const char *name, const char *suffix)
{
    char buffer[MAX_NAME], full[MAX_NAME];
    if (!c->ckpt) return (oq_plan_values){0};
    const oq_place place = find_place(c, name, buffer);
    const int n = snprintf(full, sizeof full, "%s%s", place.name, suffix);
    const oq_ckpt_tensor *t = n >= 0 && n < MAX_NAME ? oq_ckpt_find(c->ckpt, full) : NULL;
    oq_plan_values out = {
        .tensor = t, .first = place.first, .whole = place.whole, .halves_swapped = place.halves_swapped};
    if (!t) return out;
    out.data = t->data;
    if (t->data && place.whole && t->n_dims && t->dim[0] == place.whole)
        out.data += t->bytes / (size_t)place.whole * (size_t)place.first;
    return out;
}
