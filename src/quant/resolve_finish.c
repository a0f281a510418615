/* resolve_finish.c -- after all layers were seen: entries that matched nothing, methods that did nothing; and
 * the resolved value as JSON. */
#include "quant/resolve_internal.h"

#include "base/names.h"
#include "base/strbuf.h"

#include <string.h>

/* ---- entries without a match --------------------------------------------------------------------------- */

static size_t count_dots(const char *text)
{
    size_t n = 0;
    for (; *text; text++) n += *text == '.';
    return n;
}

/* The end of `n` dotted components that begin at `at`; NULL: there are not that many. */
static const char *run_end(const char *at, size_t n)
{
    for (; n > 0; n--) {
        at = strchr(at, '.');
        if (!at) return NULL;
        at++;
    }
    const char *end = strchr(at, '.');
    return end ? end : at + strlen(at);
}

typedef struct nearest {
    oq_env *env;
    const char *pattern;
    char run[256], layer[512]; /* the best so far and a layer that has it */
} nearest;

/* Keeps the better of the best run and this one: by asking which of the two is nearer to the entry. */
static void offer(nearest *best, const char *run, size_t n, const char *layer)
{
    char text[256];
    if (n >= sizeof text) return;
    memcpy(text, run, n);
    text[n] = '\0';
    const char *candidates[2] = {best->run, text};
    const bool first = best->run[0] == '\0';
    const int i = oq_name_nearest(best->pattern, first ? candidates + 1 : candidates, first ? 1 : 2);
    if (i < 0 || (!first && i == 0)) return;
    memcpy(best->run, text, n + 1);
    const size_t length = strlen(layer) < sizeof best->layer ? strlen(layer) : sizeof best->layer - 1;
    memcpy(best->layer, layer, length);
    best->layer[length] = '\0';
}

static void offer_runs(nearest *best, const char *layer)
{
    const size_t n = count_dots(best->pattern);
    for (const char *at = layer; at; at = strchr(at, '.') ? strchr(at, '.') + 1 : NULL) {
        const char *end = run_end(at, n);
        if (!end) return;
        offer(best, at, (size_t)(end - at), layer);
    }
}

static oq_status fail_unmatched(oq_env *env, const oq_resolved *resolved, const char *pattern,
                                const char *const *names, size_t n_names)
{
    nearest best = {.env = env, .pattern = pattern};
    const bool plain_text = strncmp(pattern, "re:", 3) != 0 && !strpbrk(pattern, "*?[");
    for (size_t i = 0; plain_text && i < n_names; i++) offer_runs(&best, names[i]);
    for (size_t i = 0; plain_text && i < resolved->n_parts; i++) offer_runs(&best, resolved->parts[i]);
    if (strcmp(best.run, pattern) == 0) /* layers of a component that the request does not reach */
        return oq_fail(
            env, OQ_E_CONFIG,
            "ignored_layers entry '%s' means layers like '%s', which the request that it stands in does not "
            "quantize",
            pattern, best.layer);
    if (best.run[0])
        return oq_fail(env, OQ_E_CONFIG,
                       "ignored_layers entry '%s' matches no layer; nearest is '%s' as in '%s'", pattern,
                       best.run, best.layer);
    const char *first = n_names ? names[0] : "none", *middle = n_names ? names[n_names / 2] : "none";
    return oq_fail(env, OQ_E_CONFIG,
                   "ignored_layers entry '%s' matches no layer; layers are named like '%s' and '%s'", pattern,
                   first, middle);
}

/* What --ignored-layers says goes to each component, and has its effect once any of them has such a layer. */
static bool matches_anywhere(const oq_resolved *resolved, const char *pattern)
{
    for (size_t i = 0; i < resolved->n_components; i++) {
        const oq_resolved_component *c = &resolved->components[i];
        for (size_t j = 0; j < c->n_routes; j++)
            for (size_t k = 0; k < c->routes[j].n_ignored; k++) {
                const oq_pattern *p = &c->routes[j].ignored[k];
                if (p->common && p->matches > 0 && strcmp(p->text, pattern) == 0) return true;
            }
    }
    return false;
}

static oq_status check_patterns(oq_env *env, oq_resolved *resolved, const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < resolved->n_components; i++) {
        const oq_resolved_component *c = &resolved->components[i];
        for (size_t j = 0; j < c->n_routes; j++) {
            for (size_t k = 0; k < c->routes[j].n_ignored; k++) {
                const oq_pattern *p = &c->routes[j].ignored[k];
                if (p->matches > 0 || (p->common && matches_anywhere(resolved, p->text))) continue;
                if (p->user) return fail_unmatched(env, resolved, p->text, names, n_names);
                OQ_TRY(oq_resolved_warn(resolved,
                                        "component '%s': the checkpoint ignores '%s', which matches no layer",
                                        c->name, p->text));
            }
        }
    }
    return OQ_OK;
}

/* A request for layers that are none does nothing, whatever it asks for. */
static oq_status check_routes(oq_env *env, const oq_resolved *resolved, const char *const *names,
                              size_t n_names)
{
    for (size_t i = 0; i < resolved->n_components; i++)
        for (size_t j = 0; j < resolved->components[i].n_routes; j++) {
            const oq_route *route = &resolved->components[i].routes[j];
            if (resolved->components[i].source == OQ_SOURCE_NONE) break; /* its layers did not ask */
            if (route->layers || strcmp(route->prefix, resolved->components[i].name) == 0) continue;
            nearest best = {.env = env, .pattern = route->prefix};
            for (size_t k = 0; k < n_names; k++) offer_runs(&best, names[k]);
            return oq_fail(
                env, OQ_E_CONFIG, "quantization_config names '%s', which begins no layer's name%s%s%s",
                route->prefix, best.run[0] ? "; nearest is '" : "", best.run, best.run[0] ? "'" : "");
        }
    return OQ_OK;
}

/* ---- options that name layers -------------------------------------------------------------------------- */

/* `layer` without its component, or a part, of any component. */
static bool is_layer(const oq_resolved *resolved, const char *layer, const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names + resolved->n_parts; i++) {
        const char *full = i < n_names ? names[i] : resolved->parts[i - n_names];
        const char *dot = strchr(full, '.');
        if (dot && strcmp(dot + 1, layer) == 0) return true;
    }
    return false;
}

static oq_status check_fallback_layers(oq_env *env, const oq_resolved *resolved, const oq_method_args *args,
                                       const char *const *names, size_t n_names)
{
    static const char key[] = "w4a8_fallback_layers";
    const oq_json *layers = oq_json_get(args->options, key);
    for (size_t i = 0; i < oq_json_size(layers); i++) {
        const char *layer = oq_json_string(oq_json_at(layers, i));
        if (is_layer(resolved, layer, names, n_names)) continue;
        nearest best = {.env = env, .pattern = layer};
        for (size_t j = 0; j < n_names; j++) offer_runs(&best, names[j]);
        for (size_t j = 0; j < resolved->n_parts; j++) offer_runs(&best, resolved->parts[j]);
        return oq_fail(env, OQ_E_CONFIG, "method '%s': %s names '%s', which is no layer; %s is '%s'",
                       args->method->name, key, layer, best.run[0] ? "nearest" : "one",
                       best.run[0] ? best.run
                       : n_names   ? names[0]
                                   : "none");
    }
    return OQ_OK;
}

static oq_status check_named_layers(oq_env *env, const oq_resolved *resolved, const char *const *names,
                                    size_t n_names)
{
    for (size_t i = 0; i < resolved->n_components; i++)
        for (size_t j = 0; j < resolved->components[i].n_routes; j++)
            if (resolved->components[i].routes[j].args)
                OQ_TRY(check_fallback_layers(env, resolved, resolved->components[i].routes[j].args, names,
                                             n_names));
    return OQ_OK;
}

/* ---- methods without effect ---------------------------------------------------------------------------- */

static const char *method_of(const oq_resolved_component *c)
{
    if (c->declared.method) return c->declared.method->name;
    for (size_t i = 0; i < c->n_routes; i++)
        if (c->routes[i].args) return c->routes[i].args->method->name;
    return "none";
}

/* A global request is satisfied by any component; a named one and a quantized file by the component itself.
 */
static oq_status check_effect(oq_env *env, oq_resolved *resolved)
{
    int64_t global = 0;
    const oq_resolved_component *without = NULL;
    for (size_t i = 0; i < resolved->n_components; i++) {
        const oq_resolved_component *c = &resolved->components[i];
        if (c->source == OQ_SOURCE_NONE) continue;
        global += c->n_quantized;
        if (c->n_quantized > 0) continue;
        if (c->source == OQ_SOURCE_SERIALIZED)
            return oq_fail(env, OQ_E_MISMATCH,
                           "component '%s': method '%s' is declared, but none of its %lld layers is "
                           "quantized in the file",
                           c->name, method_of(c), (long long)c->n_layers);
        if (c->named)
            return oq_fail(env, OQ_E_CONFIG, "component '%s': method '%s' quantizes none of its %lld layers",
                           c->name, method_of(c), (long long)c->n_layers);
        without = c;
    }
    if (without && global == 0)
        return oq_fail(env, OQ_E_CONFIG, "method '%s' quantizes none of the %lld layers of component '%s'",
                       method_of(without), (long long)without->n_layers, without->name);
    return OQ_OK;
}

static oq_status warn_unlisted(oq_resolved *resolved)
{
    for (size_t i = 0; i < resolved->n_components; i++) {
        const oq_resolved_component *c = &resolved->components[i];
        if (c->n_unlisted > 0)
            OQ_TRY(oq_resolved_warn(
                resolved,
                "component '%s': %lld layers are plain in the file although '%s' is declared and "
                "no list names them, the first is '%s'",
                c->name, (long long)c->n_unlisted, method_of(c), c->unlisted ? c->unlisted : ""));
    }
    return OQ_OK;
}

oq_status oq_resolve_finish(oq_env *env, oq_resolved *resolved, const char *const *names, size_t n_names)
{
    OQ_TRY(check_routes(env, resolved, names, n_names));
    OQ_TRY(check_patterns(env, resolved, names, n_names));
    OQ_TRY(check_named_layers(env, resolved, names, n_names));
    OQ_TRY(check_effect(env, resolved));
    return warn_unlisted(resolved);
}

/* ---- print --------------------------------------------------------------------------------------------- */

static oq_json *print_route(const oq_route *route)
{
    oq_json *json = oq_json_new_object(), *ignored = oq_json_new_array();
    oq_json_set(json, "prefix", oq_json_new_string(route->prefix));
    oq_json_set(json, "method", oq_json_new_string(route->args ? route->args->method->name : NULL));
    oq_json_set(json, "options", route->args ? oq_json_copy(route->args->options) : oq_json_new_null());
    for (size_t i = 0; i < route->n_ignored; i++) {
        oq_json *entry = oq_json_new_object();
        oq_json_set(entry, "entry", oq_json_new_string(route->ignored[i].text));
        oq_json_set(entry, "from", oq_json_new_string(route->ignored[i].user ? "request" : "checkpoint"));
        oq_json_set(entry, "matches", oq_json_new_int(route->ignored[i].matches));
        oq_json_append(ignored, entry);
    }
    oq_json_set(json, "ignored", ignored);
    return json;
}

static oq_json *print_component(const oq_resolved_component *c)
{
    oq_json *json = oq_json_new_object(), *routes = oq_json_new_array();
    oq_json_set(json, "name", oq_json_new_string(c->name));
    oq_json_set(json, "class", oq_json_new_string(c->class_name));
    oq_json_set(json, "source", oq_json_new_string(oq_quant_source_name(c->source)));
    oq_json_set(json, "from", oq_json_new_string(c->from));
    oq_json_set(json, "dialect", oq_json_new_string(c->dialect ? c->dialect->name : NULL));
    oq_json_set(json, "declared_in", oq_json_new_string(c->declared_in));
    for (size_t i = 0; i < c->n_routes; i++) oq_json_append(routes, print_route(&c->routes[i]));
    oq_json_set(json, "routes", routes);
    return json;
}

oq_json *oq_resolved_to_json(const oq_resolved *resolved)
{
    oq_json *json = oq_json_new_object(), *components = oq_json_new_array(), *warnings = oq_json_new_array();
    for (size_t i = 0; i < resolved->n_components; i++)
        oq_json_append(components, print_component(&resolved->components[i]));
    for (size_t i = 0; i < resolved->n_warnings; i++)
        oq_json_append(warnings, oq_json_new_string(resolved->warnings[i]));
    oq_json_set(json, "components", components);
    oq_json_set(json, "warnings", warnings);
    return json;
}
