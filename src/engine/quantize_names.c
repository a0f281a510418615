/* quantize_names.c -- names of the output as the network's first release spells them: the module's name rules backwards.
 * Products that the release holds as one become one layer. */
#include "engine/quantize.h"

#include "base/names.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 1024 };

/* The rule by which `name` is a word of `to`; NULL: none, the name is the same in both. */
static const oq_name_rule *find_rule(const oq_quantize_part *p, const char *name, size_t *index, char *out)
{
    char word[MAX_NAME];
    for (const oq_name_rule *rule = p->module->names; rule && rule->from; rule++) {
        if (rule->read_only || !rule->to || !*rule->to) continue; /* a leftover, a wrapper */
        for (size_t i = 0; oq_csv_word(rule->to, i, word, sizeof word); i++)
            if (oq_plan_respell(word, name, rule->from, out, MAX_NAME)) {
                *index = i;
                return rule;
            }
    }
    return NULL;
}

oq_status oq_quantize_spell(oq_quantize *q, const oq_quantize_part *p, const char *name, oq_spelling *out)
{
    char text[MAX_NAME], word[MAX_NAME], first[MAX_NAME], other[MAX_NAME];
    size_t index = 0;
    oq_arena *arena = &q->source.arena;
    *out = (oq_spelling){.name = name, .n_from = 1};
    out->from[0] = name;
    const oq_name_rule *rule = p->respell ? find_rule(p, name, &index, text) : NULL;
    if (!rule) return OQ_OK;
    out->name = oq_arena_strdup(arena, text);
    out->halves_swapped = rule->halves_swapped;
    out->n_from = 0;
    oq_csv_word(rule->to, index, first, sizeof first);
    for (size_t i = 0; oq_csv_word(rule->to, i, word, sizeof word); i++) {
        if (out->n_from == OQ_SPELLING_MAX || !oq_plan_respell(first, name, word, other, sizeof other))
            return oq_fail(q->env, OQ_E_UNSUPPORTED, "%s: '%s' has no original name", p->name, name);
        if (!(out->from[out->n_from++] = oq_arena_strdup(arena, other))) break;
    }
    if (out->name && out->n_from && out->from[out->n_from - 1]) return OQ_OK;
    return oq_fail(q->env, OQ_E_NOMEM, "%s: no memory for names", p->name);
}

static bool has_original_names(const oq_module_type *module)
{
    const oq_name_rule *rule = module->names;
    while (rule && rule->from && rule->read_only) rule++;
    return rule && rule->from;
}

oq_status oq_quantize_choose_names(oq_quantize *q, oq_quantize_part *p)
{
    const bool wanted = strcmp(oq_options_text(q->options, "names", "source"), "original") == 0;
    p->respell = wanted && strncmp(p->module->name, "dit_", 4) == 0;
    if (!p->respell || has_original_names(p->module)) return OQ_OK;
    return oq_fail(q->env, OQ_E_UNSUPPORTED,
                   "%s: this build knows one spelling of the names of a %s; --names original has no other",
                   p->name, p->module->what);
}

/* ---- layers ---------------------------------------------------------------------------------------------- */

static oq_write_layer *find_layer(oq_quantize_part *p, const char *name)
{
    for (size_t i = 0; i < p->n_layers; i++)
        if (strcmp(p->layers[i].name, name) == 0) return &p->layers[i];
    return NULL;
}

static oq_status fail_mixture(const oq_quantize *q, const oq_quantize_part *p, const oq_spelling *s,
                              const char *other)
{
    return oq_fail(
        q->env, OQ_E_MISMATCH,
        "%s: the original holds '%s' and '%s' as one, '%s', but they shall become different things", p->name,
        s->from[0], other, s->name);
}

/* One layer of the output out of those that it holds. */
static oq_status join_layers(oq_quantize *q, oq_quantize_part *p, const oq_spelling *s, oq_write_layer *out)
{
    const oq_write_layer *first = find_layer(p, s->from[0]);
    if (!first) return fail_mixture(q, p, s, s->from[s->n_from - 1]);
    *out = *first;
    out->name = s->name;
    for (int i = 1; i < s->n_from; i++) {
        const oq_write_layer *l = find_layer(p, s->from[i]);
        if (!l || !oq_scheme_equal(&l->scheme, &first->scheme) || l->k != first->k)
            return fail_mixture(q, p, s, s->from[i]);
        out->n += l->n;
    }
    return OQ_OK;
}

static oq_status spell_layers(oq_quantize *q, oq_quantize_part *p)
{
    oq_write_layer *layers = NULL;
    size_t n = 0;
    OQ_TRY(oq_arena_new(&q->source.arena, p->n_layers + 1, sizeof *layers, "layers", &layers));
    OQ_TRY(oq_arena_new(&q->source.arena, p->n_layers + 1, sizeof *p->spellings, "layers", &p->spellings));
    for (size_t i = 0; i < p->n_layers; i++) {
        oq_spelling s;
        bool known = false;
        OQ_TRY(oq_quantize_spell(q, p, p->layers[i].name, &s));
        for (size_t j = 0; j < n && !known; j++) known = strcmp(layers[j].name, s.name) == 0;
        if (known) continue;
        OQ_TRY(join_layers(q, p, &s, &layers[n]));
        p->spellings[n++] = s;
    }
    p->layers = layers;
    p->n_layers = n;
    return OQ_OK;
}

static oq_status spell_plain(oq_quantize *q, oq_quantize_part *p)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_plain; i++) {
        oq_spelling s;
        bool known = false;
        OQ_TRY(oq_quantize_spell(q, p, p->plain[i], &s));
        for (size_t j = 0; j < p->n_layers; j++)
            if (strcmp(p->layers[j].name, s.name) == 0) return fail_mixture(q, p, &s, p->plain[i]);
        for (size_t j = 0; j < n && !known; j++) known = strcmp(p->plain[j], s.name) == 0;
        if (!known) p->plain[n++] = s.name;
    }
    p->n_plain = n;
    return OQ_OK;
}

oq_status oq_quantize_spell_all(oq_quantize *q, oq_quantize_part *p)
{
    OQ_TRY(spell_layers(q, p));
    return p->respell ? spell_plain(q, p) : OQ_OK;
}
