/* quality_budgets.c -- searched recipes of the demo model beside every single method, budget by budget. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/quality_budgets.h"
#include "support/quality_rows.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const search_prompts[] = {
    "a large green star above a small pink cross on a teal background",
    "a small dotted blue ball to the right of a large orange diamond on a black background",
    "a large yellow triangle below a small red ring on a gray background",
    "a small purple square to the left of a large black heart on a white background",
};

static void must(oq_env *env, oq_status st)
{
    if (st != OQ_OK) fail_msg("%s", oq_env_error(env));
}

static void set(oq_env *env, oq_options *o, const char *name, const char *value)
{
    must(env, oq_options_set(o, name, value));
}

oq_options *quality_budget_options(oq_env *env, const char *methods, int n_prompts, const char *steps)
{
    oq_options *o = NULL;
    must(env, oq_options_new(env, "recipe", &o));
    set(env, o, "model", OMNIQ_SOURCE_DIR "/models/toybox");
    set(env, o, "components", "transformer");
    set(env, o, "methods", methods);
    set(env, o, "steps", steps);
    set(env, o, "seed", "100");
    for (int i = 0; i < n_prompts; i++) set(env, o, "prompt", search_prompts[i]);
    for (int i = 0; i < QUALITY_PROMPTS; i++) set(env, o, "held-out-prompt", quality_prompts[i]);
    return o;
}

void quality_budget_uniforms(oq_recipe *r, oq_recipe_outcome *uniform)
{
    for (int m = 0; m + 1 < r->n_methods; m++) {
        must(r->env, oq_recipe_try_uniform(r, m, &r->held_out, &uniform[m]));
        fprintf(stderr, "%s everywhere: %.1f dB\n", r->method[m], uniform[m].mean_db);
    }
}

quality_budget quality_budget_run(oq_recipe *r, const oq_recipe_outcome *uniform, const char *budget)
{
    quality_budget q = {.best = -1};
    size_t bytes = 0;
    must(r->env, oq_recipe_read_budget(r, budget, &bytes));
    must(r->env, oq_recipe_search(r, bytes));
    must(r->env, oq_recipe_try_chosen(r, &r->held_out, true, &q.recipe));
    assert_true(q.recipe.bytes <= bytes);
    for (int m = 0; m + 1 < r->n_methods; m++)
        if (uniform[m].bytes <= bytes && (q.best < 0 || uniform[m].mean_db > uniform[q.best].mean_db))
            q.best = m;
    fprintf(stderr, "%s: %.1f dB, %s alone %.1f\n", budget, q.recipe.mean_db,
            q.best < 0 ? "-" : r->method[q.best], q.best < 0 ? 0 : uniform[q.best].mean_db);
    return q;
}

static void put(oq_strbuf *out, const char *what, size_t bytes, double weights, const oq_recipe_outcome *o)
{
    oq_strbuf_printf(out, "| %s | %.2f | %.1f | %.1f |", what, 8.0 * (double)bytes / weights, o->mean_db,
                     o->worst_db);
}

void quality_budget_table(oq_env *env, oq_strbuf *out)
{
    static const char methods[] =
        "int2-g32,int3,int3-g32,q3_k,mxfp4,nf4,gguf-mxfp4,iq4_xs,q4_0,nvfp4,int4,int4-g32,q4_1,"
        "q4_k,q5_0,q5_1,q5_k,fp8-channel,int8,q6_k,q8_0";
    static const char *const budgets[] = {"3.5bpw", "4bpw", "4.5bpw", "5bpw",
                                          "5.5bpw", "6bpw", "7bpw",   "8.25bpw"};
    oq_options *o = quality_budget_options(env, methods, 4, "8");
    oq_recipe r = {.env = env, .options = o};
    oq_recipe_outcome uniform[OQ_RECIPE_METHODS];
    must(env, oq_recipe_begin(&r));
    must(env, oq_recipe_look(&r));
    quality_budget_uniforms(&r, uniform);
    oq_strbuf_puts(
        out, "| budget | recipe: bits | PSNR mean | worst | best single method | bits | PSNR mean | worst |\n"
             "|---|---|---|---|---|---|---|---|\n");
    for (size_t b = 0; b < OQ_COUNT(budgets); b++) {
        const quality_budget q = quality_budget_run(&r, uniform, budgets[b]);
        char budget[32];
        snprintf(budget, sizeof budget, "%.*s", (int)strcspn(budgets[b], "b"), budgets[b]);
        put(out, budget, q.recipe.bytes, r.weights, &q.recipe);
        if (q.best < 0)
            oq_strbuf_puts(out, " none fits | | | |\n");
        else
            oq_strbuf_printf(out, " %s | %.2f | %.1f | %.1f |\n", r.method[q.best],
                             8.0 * (double)uniform[q.best].bytes / r.weights, uniform[q.best].mean_db,
                             uniform[q.best].worst_db);
    }
    oq_recipe_end(&r);
    oq_options_free(o);
}
