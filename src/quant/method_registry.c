/* method_registry.c -- a method of the caller's own: per layer it names the built-in method that treats it.
 */
#include "quant/method_registry.h"

#include "base/names.h"

#include <string.h>

typedef struct custom { /* `method` comes first: args->method leads back here */
    oq_method method;
    oq_custom_method user;
    struct custom *next;
} custom;

struct oq_registry {
    oq_arena arena;
    custom *first, **tail;
};

static const oq_method_option custom_options[] = {OQ_METHOD_IGNORED_ROW(""), {0}};

const oq_method *oq_registry_first(const oq_registry *registry)
{
    return registry && registry->first ? &registry->first->method : NULL;
}

const oq_method *oq_registry_next(const oq_method *method)
{
    const custom *next = ((const custom *)(const void *)method)->next;
    return next ? &next->method : NULL;
}

const oq_method *oq_registry_find(const oq_registry *registry, const char *name)
{
    const oq_method *m = oq_registry_first(registry);
    while (m && !oq_name_equal(m->name, name)) m = oq_registry_next(m);
    return m;
}

/* What the built-in method would do by default. */
static oq_status choose_builtin(oq_env *env, const oq_method *method, const oq_layer_desc *layer,
                                oq_scheme *out)
{
    oq_arena arena;
    oq_method_args *args = NULL;
    oq_json *held = oq_json_new_array();
    if (!held) return oq_fail(env, OQ_E_NOMEM, "method '%s': no memory for options", method->name);
    oq_arena_init(&arena, env);
    oq_status st = oq_method_args_parse(env, method->name, &arena, held, method, NULL, false, &args);
    if (st == OQ_OK) st = method->choose(env, args, layer, out);
    oq_arena_deinit(&arena);
    oq_json_free(held);
    return st;
}

static oq_status choose_custom(oq_env *env, const oq_method_args *args, const oq_layer_desc *layer,
                               oq_scheme *out)
{
    const custom *c = (const custom *)(const void *)args->method;
    oq_arena arena;
    *out = (oq_scheme){0};
    oq_arena_init(&arena, env);
    const char *full = oq_arena_printf(&arena, "%s.%s", layer->component, layer->name);
    const char *name = full ? c->user.choose(c->user.user, full, layer->n, layer->k) : NULL;
    oq_arena_deinit(&arena);
    if (!full) return oq_fail(env, OQ_E_NOMEM, "method '%s': no memory for a layer's name", c->method.name);
    if (!name)
        return oq_fail(env, OQ_E_UNSUPPORTED, "method '%s' refuses layer '%s.%s' of %lld x %lld",
                       c->method.name, layer->component, layer->name, (long long)layer->n,
                       (long long)layer->k);
    if (oq_name_equal(name, "none")) return OQ_OK;
    const oq_method *builtin = oq_method_find(NULL, name);
    if (!builtin) return oq_method_unknown(env, c->method.name, name);
    if (builtin->missing || !builtin->choose)
        return oq_fail(env, OQ_E_UNSUPPORTED, "method '%s' gives layer '%s.%s' to method '%s', which is %s",
                       c->method.name, layer->component, layer->name, builtin->name,
                       builtin->missing ? builtin->missing : "not an online method");
    return choose_builtin(env, builtin, layer, out);
}

static void registry_free(oq_env *env, oq_registry *registry)
{
    oq_arena_deinit(&registry->arena);
    oq_free(env, registry);
}

static oq_status open_registry(oq_env *env)
{
    if (env->registry) return OQ_OK;
    oq_registry *registry = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *registry, "registry of methods", &registry));
    oq_arena_init(&registry->arena, env);
    registry->tail = &registry->first;
    env->registry = registry;
    env->registry_free = registry_free;
    return OQ_OK;
}

oq_status oq_method_register(oq_env *env, const oq_custom_method *method)
{
    if (!env) return OQ_E_ARG;
    if (!method || method->size < sizeof *method || !method->name || !*method->name || !method->choose)
        return oq_fail(env, OQ_E_ARG, "a registered method needs its size, a name and a choose function");
    if (oq_name_equal(method->name, "none") || oq_method_find(env, method->name))
        return oq_fail(env, OQ_E_ARG, "method '%s' cannot be registered: the name is taken", method->name);
    OQ_TRY(open_registry(env));
    oq_registry *registry = env->registry;
    custom *c = NULL;
    OQ_TRY(oq_arena_new(&registry->arena, 1, sizeof *c, "registered method", &c));
    c->user = *method;
    c->method = (oq_method){.name = oq_arena_strdup(&registry->arena, method->name),
                            .help = "registered by the calling program",
                            .options = custom_options,
                            .online = true,
                            .choose = choose_custom};
    if (!c->method.name) return oq_fail(env, OQ_E_NOMEM, "method '%s': no memory", method->name);
    c->user.name = c->method.name;
    *registry->tail = c;
    registry->tail = &c->next;
    return OQ_OK;
}
