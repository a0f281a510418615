/* recipe_search.c -- a search from its options to the assignment: what is searched and what is held out, the measurement, and the
 * reading of it that turns out best when it runs. */
#include "engine/recipe.h"

#include "base/names.h"

#include <string.h>

static const char default_methods[] = "nvfp4,int3,int4,int4-g32,fp8-channel,int8,bf16";

/* ---- the assignment that runs best --------------------------------------------------------------------- */

/* Prompts scatter: single layers' figures are believed by half, and more only where whole runs are better by more than that
 * scatter. Moving each layer's figure at random and keeping the best of eight runs did not help held-out prompts. */
static const double trusts[] = {0.5, 0.75, 1.0}, clearly_better = 0.8; /* in error: 1 dB */

oq_status oq_recipe_try_chosen(const oq_recipe *r, const oq_recipe_set *set, bool pictures,
                               oq_recipe_outcome *out)
{
    char *spec = NULL;
    oq_json *json = oq_recipe_json(r);
    oq_status st = oq_json_dump(r->env, json, OQ_JSON_COMPACT, &spec);
    if (st == OQ_OK) st = oq_recipe_try(r, set, spec, pictures, out);
    out->bytes = oq_recipe_bytes(r);
    oq_free(r->env, spec);
    oq_json_free(json);
    return st;
}

oq_status oq_recipe_search(oq_recipe *r, size_t budget)
{
    double best = trusts[0], best_error = 0;
    const double started_s = oq_now_s();
    for (size_t t = 0; t < OQ_COUNT(trusts); t++) {
        oq_recipe_outcome got = {0};
        oq_recipe_set_errors(r, trusts[t]);
        OQ_TRY(oq_recipe_solve(r, budget));
        OQ_TRY(oq_recipe_try_chosen(r, &r->search, false, &got));
        if (t == 0 || got.error < clearly_better * best_error) best = trusts[t], best_error = got.error;
        oq_report_progress(r->env, "try", (int64_t)t + 1, (int64_t)OQ_COUNT(trusts), oq_now_s() - started_s);
    }
    oq_recipe_set_errors(r, best);
    return oq_recipe_solve(r, budget);
}

/* ---- one method everywhere ----------------------------------------------------------------------------- */

size_t oq_recipe_uniform_bytes(const oq_recipe *r, int m)
{
    size_t bytes = 0;
    for (size_t i = 0; i < r->n_layers; i++) {
        const oq_recipe_layer *l = &r->layers[i];
        bytes += l->choice[m].bytes ? l->choice[m].bytes : l->choice[r->n_methods - 1].bytes;
    }
    return bytes;
}

oq_status oq_recipe_try_uniform(oq_recipe *r, int m, const oq_recipe_set *set, oq_recipe_outcome *out)
{
    const char *spec = NULL;
    OQ_TRY(oq_recipe_uniform(r, m, &spec));
    out->bytes = oq_recipe_uniform_bytes(r, m);
    return oq_recipe_try(r, set, spec, true, out);
}

/* ---- prompts ------------------------------------------------------------------------------------------- */

/* Of several prompts the last third is held out; a single one is judged under another seed. */
static oq_status split_prompts(oq_recipe *r)
{
    const size_t n_own = oq_options_count(r->options, "held-out-prompt");
    oq_request *search = &r->search.request, *held = &r->held_out.request;
    OQ_TRY(oq_request_make(r->env, r->reference, r->options, &r->arena, search));
    *held = *search;
    if (n_own) {
        const char **own = NULL;
        OQ_TRY(oq_arena_new(&r->arena, n_own, sizeof *own, "prompts", &own));
        for (size_t i = 0; i < n_own; i++) {
            own[i] = oq_arena_strdup(&r->arena, oq_options_item(r->options, "held-out-prompt", i));
            if (!own[i]) return oq_fail(r->env, OQ_E_NOMEM, "prompts: no memory");
        }
        held->prompts = own;
        held->n_prompts = (int)n_own;
    } else if (search->n_prompts > 1) {
        held->n_prompts = (search->n_prompts + 2) / 3;
        search->n_prompts -= held->n_prompts;
        held->prompts = search->prompts + search->n_prompts;
    }
    held->seed += 1000;
    return OQ_OK;
}

/* Refuses a component that has no layer to search. */
static oq_status check_components(const oq_recipe *r)
{
    const char *only = oq_options_text(r->options, "components", NULL);
    char word[64];
    for (size_t i = 0; only && oq_csv_word(only, i, word, sizeof word); i++) {
        size_t n = 0;
        for (size_t l = 0; l < r->n_layers; l++) n += strcmp(r->layers[l].component, word) == 0;
        if (n == 0)
            return oq_fail(r->env, OQ_E_ARG,
                           "--components '%s': '%s' has no layer that these methods quantize", only, word);
    }
    return OQ_OK;
}

/* ---- a whole search ------------------------------------------------------------------------------------ */

size_t oq_recipe_runs(const oq_recipe *r)
{
    const size_t steps = (size_t)r->search.request.steps,
                 always = 1 + (size_t)r->n_methods - 1 + OQ_COUNT(trusts);
    return always + (r->by_forward ? (r->n_layers * OQ_RECIPE_FORWARDS + steps - 1) / steps : r->n_layers);
}

oq_status oq_recipe_begin(oq_recipe *r)
{
    oq_arena_init(&r->arena, r->env);
    r->by_forward = strcmp(oq_options_text(r->options, "measure-by", "runs"), "forwards") == 0;
    OQ_TRY(oq_recipe_read_methods(r, oq_options_text(r->options, "methods", default_methods)));
    OQ_TRY(oq_recipe_prepare(r, NULL, &r->reference));
    OQ_TRY(oq_recipe_list(r));
    OQ_TRY(check_components(r));
    return split_prompts(r);
}

/* From the plain run, before the long work: how much of it there is. Each run of a search takes about as long as that one. */
static void tell_time(const oq_recipe *r, double plain_s)
{
    const char *budget = oq_options_text(r->options, "budget", NULL);
    const size_t searching = oq_recipe_runs(r) - 1, judging = (size_t)r->n_methods + 1;
    const double held = (double)oq_recipe_items(&r->held_out) / oq_recipe_items(&r->search);
    const double left_s = plain_s * ((double)searching + held * (double)judging);
    oq_log(r->env, OQ_LOG_RESULT,
           "recipe: %s%s, %zu layers: %zu runs to search and %zu to judge take about %.0f %s, as the first "
           "took %.2f s ('--dry-run' tells their number alone)",
           budget ? "budget " : "no budget is given, so ", budget ? budget : OQ_RECIPE_BUDGET, r->n_layers,
           searching, judging, left_s < 120 ? left_s : left_s / 60, left_s < 120 ? "s" : "minutes", plain_s);
}

oq_status oq_recipe_look(oq_recipe *r)
{
    OQ_TRY(oq_model_load(r->env, r->reference));
    const double started_s = oq_now_s();
    OQ_TRY(oq_recipe_record(r, &r->search));
    tell_time(r, oq_now_s() - started_s);
    OQ_TRY(oq_recipe_record(r, &r->held_out));
    return oq_recipe_measure(r);
}

void oq_recipe_end(oq_recipe *r)
{
    oq_recipe_set_free(&r->search);
    oq_recipe_set_free(&r->held_out);
    oq_model_close(r->reference);
    oq_arena_deinit(&r->arena);
}
