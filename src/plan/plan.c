/* plan.c -- builds the plan: networks describe and declare themselves, quant/ decides each layer, kernels are
 * chosen, every tensor is accounted for. Order of a layer's decision: the network's own reason, ignored
 * names, method. */
#include "plan/plan_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_items(const void *a, const void *b)
{
    const oq_item *x = *(const oq_item *const *)a, *y = *(const oq_item *const *)b;
    const int order = strcmp(oq_item_name(x), oq_item_name(y));
    return order ? order : (x->kind == OQ_ITEM_ATTENTION) - (y->kind == OQ_ITEM_ATTENTION);
}

/* Two items of one name would share their tensors: a bug of the network, found before it costs a picture. An
 * attention may bear the name of its scope. */
static oq_status check_unique(oq_plan *plan, const oq_plan_component *c)
{
    const size_t n = c->builder.n_items;
    const oq_item **sorted = NULL;
    OQ_TRY(oq_new(plan->env, n, sizeof *sorted, "plan", &sorted));
    for (size_t i = 0; i < n; i++) sorted[i] = &c->builder.items[i];
    if (n) qsort(sorted, n, sizeof *sorted, compare_items);
    oq_status st = OQ_OK;
    for (size_t i = 1; st == OQ_OK && i < n; i++)
        if (strcmp(oq_item_name(sorted[i - 1]), oq_item_name(sorted[i])) == 0 &&
            sorted[i]->kind != OQ_ITEM_ATTENTION)
            st = oq_fail(plan->env, OQ_E_ARG, "%s: network '%s' declares '%s' twice", c->name,
                         c->module->name, oq_item_name(sorted[i]));
    oq_free(plan->env, sorted);
    return st;
}

static oq_status read_policy(oq_plan *plan, oq_plan_component *c, const oq_plan_params *params,
                             const oq_plan_input *input)
{
    const oq_quant_config *wish = input->denoiser ? params->config : NULL;
    return oq_attention_policy_read(plan->env, &plan->arena, wish, c->name, &c->attention_policy);
}

static oq_status build_component(oq_plan *plan, oq_plan_component *c, const oq_plan_input *input)
{
    char *scope = oq_arena_strdup(&plan->arena, "");
    OQ_TRY(oq_arena_new(&plan->arena, 1, input->module->self_bytes, input->module->name, &c->self));
    if (!scope) return oq_fail(plan->env, OQ_E_NOMEM, "plan: no memory");
    c->builder = (oq_builder){.env = plan->env, .arena = &plan->arena, .component = c->name, .scope = scope};
    OQ_TRY(c->module->describe(plan->env, input->config, c->self));
    if (input->trim) input->trim(input->model_index, c->self);
    OQ_TRY(c->module->declare(&c->builder, c->self));
    OQ_TRY(check_unique(plan, c));
    OQ_TRY(oq_plan_split(plan, c));
    OQ_TRY(oq_plan_choose(plan, c));
    OQ_TRY(oq_plan_account(plan, c));
    OQ_TRY(oq_plan_set_aside(plan, c));
    return oq_plan_attend(plan, c);
}

static const oq_resolved_component *find_resolved(const oq_resolved *resolved, const char *name)
{
    for (size_t i = 0; i < resolved->n_components; i++)
        if (strcmp(resolved->components[i].name, name) == 0) return &resolved->components[i];
    return NULL;
}

/* An attention wish names only components that take one. */
static oq_status check_policy_names(oq_plan *plan, const oq_plan_params *params)
{
    const char **names = NULL;
    size_t n = 0;
    OQ_TRY(oq_arena_new(&plan->arena, params->n_inputs, sizeof *names, "plan", &names));
    for (size_t i = 0; i < params->n_inputs; i++)
        if (params->inputs[i].denoiser) names[n++] = params->inputs[i].name;
    return oq_attention_policy_check_names(plan->env, params->config, names, n);
}

static oq_status build_components(oq_plan *plan, const oq_plan_params *params)
{
    OQ_TRY(check_policy_names(plan, params));
    OQ_TRY(oq_arena_new(&plan->arena, params->n_inputs, sizeof *plan->components, "plan", &plan->components));
    for (size_t i = 0; i < params->n_inputs; i++) {
        const oq_plan_input *input = &params->inputs[i];
        oq_plan_component *c = &plan->components[plan->n_components++];
        *c = (oq_plan_component){.name = oq_arena_strdup(&plan->arena, input->name),
                                 .class_name = oq_arena_strdup(&plan->arena, input->class_name),
                                 .module = input->module,
                                 .ckpt = input->ckpt,
                                 .compute = input->wide ? &oq_dtype_f32 : plan->compute,
                                 .resolved = find_resolved(plan->resolved, input->name)};
        if (!c->name || !c->class_name) return oq_fail(plan->env, OQ_E_NOMEM, "plan: no memory");
        if (!c->resolved) return oq_fail(plan->env, OQ_E_ARG, "component '%s' was not resolved", input->name);
        OQ_TRY(read_policy(plan, c, params, input));
        OQ_TRY(build_component(plan, c, input));
        plan->weights_bytes += c->bytes;
        if (c->load_bytes > plan->load_bytes) plan->load_bytes = c->load_bytes;
    }
    return OQ_OK;
}

/* Patterns are judged once all layers of all components were seen, those that are never run too. */
static oq_status finish_patterns(oq_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_components; i++)
        n += plan->components[i].n_layers + plan->components[i].unused.n_layers;
    const char **names = NULL;
    OQ_TRY(oq_arena_new(&plan->arena, n, sizeof *names, "plan", &names));
    n = 0;
    for (size_t i = 0; i < plan->n_components; i++) {
        const oq_plan_component *c = &plan->components[i];
        for (size_t j = 0; j < c->n_layers + c->unused.n_layers; j++) {
            const char *name = j < c->n_layers ? c->layers[j].linear->name : c->unused.names[j - c->n_layers];
            names[n] = oq_arena_printf(&plan->arena, "%s.%s", c->name, name);
            if (!names[n++]) return oq_fail(plan->env, OQ_E_NOMEM, "plan: no memory");
        }
    }
    OQ_TRY(oq_resolve_finish(plan->env, plan->resolved, names, n));
    for (size_t i = 0; i < plan->resolved->n_warnings; i++)
        OQ_TRY(oq_plan_warn(plan, "%s", plan->resolved->warnings[i]));
    return OQ_OK;
}

oq_status oq_plan_build(oq_env *env, const oq_plan_params *params, oq_plan **out)
{
    oq_plan *plan = NULL;
    *out = NULL;
    oq_status st = oq_new(env, 1, sizeof *plan, "plan", &plan);
    if (st != OQ_OK) {
        oq_resolved_free(params->resolved);
        return st;
    }
    oq_arena_init(&plan->arena, env);
    plan->env = env;
    plan->backend = params->backend;
    plan->device = params->device;
    plan->compute = params->compute;
    plan->resolved = params->resolved;
    st = build_components(plan, params);
    if (st == OQ_OK) st = finish_patterns(plan);
    if (st != OQ_OK) {
        oq_plan_free(plan);
        return st;
    }
    *out = plan;
    return OQ_OK;
}

void oq_plan_free(oq_plan *plan)
{
    if (!plan) return;
    oq_env *env = plan->env;
    oq_resolved_free(plan->resolved);
    oq_arena_deinit(&plan->arena);
    oq_free(env, plan);
}

const oq_plan_component *oq_plan_find(const oq_plan *plan, const char *component)
{
    for (size_t i = 0; i < plan->n_components; i++)
        if (strcmp(plan->components[i].name, component) == 0) return &plan->components[i];
    return NULL;
}

oq_status oq_plan_warn(oq_plan *plan, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (plan->n_warnings == plan->cap_warnings) {
        const size_t capacity = plan->cap_warnings ? plan->cap_warnings * 2 : 8;
        const char **grown = NULL;
        OQ_TRY(oq_arena_new(&plan->arena, capacity, sizeof *grown, "warnings", &grown));
        if (plan->n_warnings) memcpy(grown, plan->warnings, plan->n_warnings * sizeof *grown);
        plan->warnings = grown;
        plan->cap_warnings = capacity;
    }
    char *copy = oq_arena_strdup(&plan->arena, text);
    if (!copy) return oq_fail(plan->env, OQ_E_NOMEM, "warnings: no memory");
    plan->warnings[plan->n_warnings++] = copy;
    oq_log(plan->env, OQ_LOG_WARN, "%s", copy);
    return OQ_OK;
}
