/* plan_steps.c -- steps that are computed alike: what of the plan's choices a step switches on, as one number. */
#include "plan/plan_internal.h"

static uint64_t mix(uint64_t h, uint64_t bit)
{
    return (h ^ bit) * 0x100000001b3u; /* FNV-1a */
}

static bool plain_step(const oq_attention_steps *s, int64_t step)
{
    for (size_t i = 0; i < s->n_plain; i++)
        if (step >= s->plain[i].first && step <= s->plain[i].last) return true;
    return false;
}

static bool other_spec(const oq_linear *l, int64_t step)
{
    for (size_t i = 0; i < l->n_steps; i++)
        if (l->steps[i] == step) return true;
    return false;
}

uint64_t oq_plan_step_kind(const oq_plan *plan, int64_t step)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < plan->n_components; i++) {
        const oq_plan_component *c = &plan->components[i];
        const oq_attention_steps *s = &c->attention_steps;
        h = mix(h, plain_step(s, step));
        h = mix(h, step >= s->sparse.first && step <= s->sparse.last);
        for (size_t j = 0; j < c->n_layers; j++) h = mix(h, other_spec(c->layers[j].linear, step));
    }
    return h;
}
