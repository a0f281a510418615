/* selector.h -- "0,1,4-6": a set of step or layer numbers, kept as ranges so that "0-999999999" costs nothing. */
#ifndef OQ_CONFIG_SELECTOR_H
#define OQ_CONFIG_SELECTOR_H

#include "base/arena.h"
#include "base/json.h"

typedef struct oq_selector_range {
    int64_t first, last; /* inclusive */
} oq_selector_range;

typedef struct oq_selector {
    bool given;                /* false: null, or an empty text: nothing is selected and nobody asked */
    oq_selector_range *ranges; /* ascending, disjoint, not adjacent */
    size_t n_ranges;
} oq_selector;

/* Numbers and inclusive ranges separated by commas; spaces around both are fine, empty words are skipped, an empty
 * text is not given. `what` names the option in errors (OQ_E_CONFIG). Ranges live in `arena`. */
oq_status oq_selector_parse(oq_env *env, oq_arena *arena, const char *what, const char *text,
                            oq_selector *out);
/* The same from null, a string, or a list of whole numbers (true counts as 1, false as 0). */
oq_status oq_selector_from_json(oq_env *env, oq_arena *arena, const char *what, const oq_json *json,
                                oq_selector *out);
bool oq_selector_has(const oq_selector *selector, int64_t i);

#endif
