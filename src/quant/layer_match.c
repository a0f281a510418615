/* layer_match.c -- one entry of ignored_layers against one layer: its fused name, then its parts. */
#include "quant/layer_match.h"

#include "base/names.h"
#include "base/regex.h"

#include <stdio.h>
#include <string.h>

typedef enum pattern_kind { PATTERN_WORDS, PATTERN_GLOB, PATTERN_REGEX } pattern_kind;

typedef struct matcher {
    pattern_kind kind;
    const char *text;
    oq_regex *regex;
    const char *component;
} matcher;

static bool match_name(const matcher *m, const char *name)
{
    char full[1024]; /* names come from networks, never near this long; a longer one is tried without its
                        component */
    const int n = snprintf(full, sizeof full, "%s.%s", m->component, name);
    const bool fits = n > 0 && (size_t)n < sizeof full;
    switch (m->kind) {
    case PATTERN_REGEX:
        return oq_regex_matches_start(m->regex, name) || (fits && oq_regex_matches_start(m->regex, full));
    case PATTERN_GLOB:
        return oq_glob_match(m->text, name) || (fits && oq_glob_match(m->text, full));
    case PATTERN_WORDS:
        break;
    }
    return oq_dotted_run(m->text, name) || (fits && oq_dotted_run(m->text, full));
}

static uint64_t all_bits(int n)
{
    return n >= 64 ? ~(uint64_t)0 : ((uint64_t)1 << n) - 1;
}

oq_status oq_layer_match(oq_env *env, const char *pattern, const oq_layer_desc *layer, uint64_t *part_bits,
                         oq_match *out)
{
    matcher m = {.text = pattern, .component = layer->component};
    *out = OQ_MATCH_NO;
    *part_bits = 0;
    if (strncmp(pattern, "re:", 3) == 0) {
        m.kind = PATTERN_REGEX;
        OQ_TRY(oq_regex_new(env, pattern + 3, &m.regex));
    } else if (strpbrk(pattern, "*?[")) {
        m.kind = PATTERN_GLOB;
    }
    const uint64_t all = all_bits(layer->n_parts);
    if (match_name(&m, layer->name)) *part_bits = all;
    for (int i = 0; *part_bits != all && i < layer->n_parts && i < 64; i++)
        if (match_name(&m, layer->parts[i])) *part_bits |= (uint64_t)1 << i;
    oq_regex_free(env, m.regex);
    if (*part_bits) *out = *part_bits == all ? OQ_MATCH_YES : OQ_MATCH_SOME_PARTS;
    return OQ_OK;
}
