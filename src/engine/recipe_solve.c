/* recipe_solve.c -- the assignment of methods to layers within a budget of bytes. */
#include "engine/recipe.h"

#include <math.h>

static const oq_recipe_choice *chosen(const oq_recipe_layer *l)
{
    return &l->choice[l->chosen];
}

size_t oq_recipe_bytes(const oq_recipe *r)
{
    size_t bytes = 0;
    for (size_t i = 0; i < r->n_layers; i++) bytes += chosen(&r->layers[i])->bytes;
    return bytes;
}

double oq_recipe_error(const oq_recipe *r)
{
    double error = 0;
    for (size_t i = 0; i < r->n_layers; i++) error += chosen(&r->layers[i])->error;
    return error;
}

/* The smaller choice that costs least error per byte saved; ties go to the one that saves more. -1: none is smaller. */
static int next_down(const oq_recipe *r, const oq_recipe_layer *l, double *slope)
{
    int best = -1;
    for (int m = 0; m < r->n_methods; m++) {
        const oq_recipe_choice *c = &l->choice[m];
        if (!c->bytes || c->bytes >= chosen(l)->bytes) continue;
        const double saved = (double)(chosen(l)->bytes - c->bytes);
        const double s = (c->error - chosen(l)->error) / saved;
        if (best < 0 || s < *slope || (s <= *slope && c->bytes < l->choice[best].bytes)) best = m, *slope = s;
    }
    return best;
}

/* From the best everywhere downwards, always by the cheapest trade, until it fits. */
static oq_status walk_down(oq_recipe *r, size_t budget)
{
    size_t bytes = oq_recipe_bytes(r);
    while (bytes > budget) {
        oq_recipe_layer *best = NULL;
        double best_slope = INFINITY;
        int to = -1;
        for (size_t i = 0; i < r->n_layers; i++) {
            double slope = INFINITY;
            const int m = next_down(r, &r->layers[i], &slope);
            if (m >= 0 && (!best || slope < best_slope)) best = &r->layers[i], best_slope = slope, to = m;
        }
        if (!best)
            return oq_fail(
                r->env, OQ_E_ARG,
                "a budget of %zu bytes (%.2f bits a weight): these methods need at least %zu (%.2f)", budget,
                8.0 * (double)budget / r->weights, bytes, 8.0 * (double)bytes / r->weights);
        bytes -= chosen(best)->bytes - best->choice[to].bytes;
        best->chosen = to;
    }
    return OQ_OK;
}

/* Whatever fits into the rest of the budget and helps most, again and again. */
static void spend_rest(oq_recipe *r, size_t budget)
{
    for (;;) {
        const size_t left = budget - oq_recipe_bytes(r);
        oq_recipe_layer *best = NULL;
        double gain = 0;
        int to = -1;
        for (size_t i = 0; i < r->n_layers; i++)
            for (int m = 0; m < r->n_methods; m++) {
                oq_recipe_layer *l = &r->layers[i];
                const oq_recipe_choice *c = &l->choice[m];
                if (!c->bytes || c->bytes > chosen(l)->bytes + left) continue;
                if (chosen(l)->error - c->error > gain) best = l, to = m, gain = chosen(l)->error - c->error;
            }
        if (!best) return;
        best->chosen = to;
    }
}

void oq_recipe_set_errors(oq_recipe *r, double trust)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < r->n_layers; i++)
        if (r->layers[i].reach > 0) sum += log(r->layers[i].reach), n++;
    const double mean = n ? sum / (double)n : 0;
    for (size_t i = 0; i < r->n_layers; i++) {
        oq_recipe_layer *l = &r->layers[i];
        const double own = l->reach > 0 ? log(l->reach) : mean;
        for (int m = 0; m + 1 < r->n_methods; m++)
            l->choice[m].error = l->choice[m].noise * exp(trust * own + (1 - trust) * mean);
    }
}

oq_status oq_recipe_solve(oq_recipe *r, size_t budget)
{
    for (size_t i = 0; i < r->n_layers; i++) {
        oq_recipe_layer *l = &r->layers[i];
        l->chosen = r->n_methods - 1;
        for (int m = 0; m < r->n_methods; m++)
            if (l->choice[m].bytes && l->choice[m].error < chosen(l)->error) l->chosen = m;
    }
    OQ_TRY(walk_down(r, budget));
    spend_rest(r, budget);
    return OQ_OK;
}
