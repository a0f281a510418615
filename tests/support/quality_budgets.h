/* quality_budgets.h -- searched recipes of the demo model beside every single method, judged on the six prompts of
 * docs/QUALITY.md, which are not searched on. Failures abort the test. */
#ifndef OQ_TESTS_QUALITY_BUDGETS_H
#define OQ_TESTS_QUALITY_BUDGETS_H

#include "engine/recipe.h"

/* Options of a search of the transformer over the first n of four prompts; the caller's. */
oq_options *quality_budget_options(oq_env *env, const char *methods, int n_prompts, const char *steps);
/* Each method of a measured recipe everywhere; [n_methods]. */
void quality_budget_uniforms(oq_recipe *recipe, oq_recipe_outcome *uniform);

typedef struct quality_budget {
    oq_recipe_outcome recipe; /* on the held-out prompts */
    int best;                 /* method whose pictures are nearest there, of those within the budget; -1: none is */
} quality_budget;
quality_budget quality_budget_run(oq_recipe *recipe, const oq_recipe_outcome *uniform, const char *budget);

/* The block "budgets" of docs/QUALITY.md. */
void quality_budget_table(oq_env *env, oq_strbuf *out);

#endif
