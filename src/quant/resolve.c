/* resolve.c -- wishes meet facts, component by component. Order of rules: components that are never
 * quantized; a checkpoint that declares a quantization (adopted, refined, or in conflict); a wish for plain
 * weights. */
#include "quant/method_modelopt.h"
#include "quant/resolve_internal.h"

#include "base/names.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUBJECT "quantization_config"

typedef struct shared_patterns { /* components covered by one request count their matches together */
    const oq_quant_spec *spec;
    oq_pattern *patterns;
    size_t n;
} shared_patterns;

typedef struct candidate candidate;

typedef struct resolver {
    oq_env *env;
    oq_resolved *resolved;
    const oq_quant_config *config;
    candidate *all;
    size_t n_all;
    shared_patterns *shared;
    size_t n_shared, cap_shared;
} resolver;

/* One component on its way: what the model says, what the request says, what the checkpoint says. */
struct candidate {
    resolver *r;
    const oq_resolve_input *in;
    oq_resolved_component *out;
    const oq_quant_spec *wish; /* NULL: none */
    oq_disk disk;
};

const char *oq_quant_source_name(oq_quant_source s)
{
    static const char *const names[] = {"none", "online", "serialized"};
    return names[s];
}

oq_status oq_resolved_warn(oq_resolved *resolved, const char *fmt, ...)
{
    oq_env *env = resolved->arena.env;
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (resolved->n_warnings == resolved->cap_warnings) {
        const size_t capacity = resolved->cap_warnings ? 2 * resolved->cap_warnings : 8;
        const char **more = NULL;
        OQ_TRY(oq_arena_new(&resolved->arena, capacity, sizeof *more, "warnings", &more));
        if (resolved->n_warnings) memcpy(more, resolved->warnings, resolved->n_warnings * sizeof *more);
        resolved->warnings = more;
        resolved->cap_warnings = capacity;
    }
    const char *copy = oq_arena_strdup(&resolved->arena, text);
    if (!copy) return oq_fail(env, OQ_E_NOMEM, "no memory for a warning");
    resolved->warnings[resolved->n_warnings++] = copy;
    return OQ_OK;
}

/* ---- the request's keys -------------------------------------------------------------------------------- */

static oq_status fail_component(oq_env *env, const char *key, const oq_resolve_input *inputs, size_t n_inputs)
{
    const char *names[32];
    char all[512] = "";
    size_t n = 0, at = 0;
    for (; n < n_inputs && n < OQ_COUNT(names); n++) {
        names[n] = inputs[n].name;
        if (at < sizeof all)
            at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", n ? ", " : "", names[n]);
    }
    char head[128];
    snprintf(head, sizeof head, "%.*s", (int)strcspn(key, "."), key);
    const int i = oq_name_nearest(head, names, n);
    if (i >= 0)
        return oq_fail(env, OQ_E_CONFIG,
                       SUBJECT " names component '%s', which this model does not have; did you mean '%s'? it "
                               "has %s",
                       key, names[i], all);
    return oq_fail(env, OQ_E_CONFIG,
                   SUBJECT " names component '%s', which this model does not have; it has %s", key, all);
}

static oq_status check_keys(oq_env *env, const oq_quant_config *config, const oq_resolve_input *inputs,
                            size_t n_inputs)
{
    for (size_t i = 0; config && i < config->n_entries; i++) {
        const char *key = config->entries[i].component;
        bool known = *key == '\0';
        for (size_t j = 0; j < n_inputs && !known; j++) known = oq_dotted_prefix(inputs[j].name, key);
        if (!known) return fail_component(env, key, inputs, n_inputs);
    }
    return OQ_OK;
}

/* Entries below the component: "transformer.layers.0" for "transformer". */
static bool is_below(const char *component, const char *key)
{
    return oq_dotted_prefix(component, key) && strcmp(component, key) != 0;
}

static bool is_named(const oq_quant_config *config, const char *component)
{
    for (size_t i = 0; config && i < config->n_entries; i++)
        if (*config->entries[i].component && oq_dotted_prefix(component, config->entries[i].component))
            return true;
    return false;
}

static oq_status find_method(const candidate *c, const oq_quant_spec *spec, const oq_method **out)
{
    *out = oq_method_find(c->r->env, spec->method);
    if (*out) return OQ_OK;
    char where[160];
    snprintf(where, sizeof where, SUBJECT " of '%.100s'", c->in->name);
    return oq_method_unknown(c->r->env, c->out->named ? where : SUBJECT, spec->method);
}

/* ---- routes -------------------------------------------------------------------------------------------- */

static bool is_common(const oq_quant_config *config, const char *text)
{
    const oq_json *list = config ? config->common_ignored : NULL;
    for (size_t i = 0; i < oq_json_size(list); i++)
        if (strcmp(oq_json_string(oq_json_at(list, i)), text) == 0) return true;
    return false;
}

static oq_status make_patterns(resolver *r, const oq_json *list, bool user, oq_pattern **out, size_t *n)
{
    *n = oq_json_size(list);
    OQ_TRY(oq_arena_new(&r->resolved->arena, *n, sizeof **out, "ignored_layers", out));
    for (size_t i = 0; i < *n; i++) {
        const char *text = oq_json_string(oq_json_at(list, i));
        (*out)[i] = (oq_pattern){.text = text, .user = user, .common = user && is_common(r->config, text)};
    }
    return OQ_OK;
}

static oq_status share_patterns(resolver *r, const oq_quant_spec *spec, const oq_json *list, oq_route *route)
{
    for (size_t i = 0; i < r->n_shared; i++) {
        if (r->shared[i].spec != spec) continue;
        route->ignored = r->shared[i].patterns;
        route->n_ignored = r->shared[i].n;
        return OQ_OK;
    }
    OQ_TRY(make_patterns(r, list, true, &route->ignored, &route->n_ignored));
    if (r->n_shared < r->cap_shared)
        r->shared[r->n_shared++] = (shared_patterns){spec, route->ignored, route->n_ignored};
    return OQ_OK;
}

/* `spec` NULL: the ignored list is the checkpoint's. */
static oq_status add_route(candidate *c, const char *prefix, const oq_method_args *args,
                           const oq_quant_spec *spec)
{
    oq_route *route = &c->out->routes[c->out->n_routes];
    *route = (oq_route){.prefix = oq_arena_strdup(&c->r->resolved->arena, prefix), .args = args};
    if (!route->prefix) return oq_fail(c->r->env, OQ_E_NOMEM, "component '%s': no memory", c->in->name);
    if (args) {
        const oq_json *list = oq_json_get(args->options, "ignored_layers");
        if (spec)
            OQ_TRY(share_patterns(c->r, spec, list, route));
        else
            OQ_TRY(make_patterns(c->r, list, false, &route->ignored, &route->n_ignored));
    }
    c->out->n_routes++;
    return OQ_OK;
}

static int by_length(const void *a, const void *b)
{
    const size_t n = strlen(((const oq_route *)a)->prefix), m = strlen(((const oq_route *)b)->prefix);
    return n < m ? 1 : n > m ? -1 : strcmp(((const oq_route *)a)->prefix, ((const oq_route *)b)->prefix);
}

/* ---- plain weights ------------------------------------------------------------------------------------- */

static oq_status fail_not_online(const candidate *c, const oq_method *method)
{
    if (method->online)
        return oq_fail(
            c->r->env, OQ_E_MISMATCH,
            "component '%s': the request describes a checkpoint quantized beforehand with '%s', but this one "
            "declares no quantization and its weights are plain; to quantize them while loading, write it "
            "under "
            "'method' and leave out the keys of a checkpoint",
            c->in->name, method->name);
    return oq_fail(
        c->r->env, OQ_E_MISMATCH,
        "component '%s': method '%s' reads checkpoints that were quantized beforehand; this one declares no "
        "quantization and its weights are plain",
        c->in->name, method->name);
}

/* A request for weights that are plain in the file. */
static oq_status read_online(const candidate *c, const oq_quant_spec *spec, oq_method_args **out)
{
    const oq_method *method = NULL;
    OQ_TRY(find_method(c, spec, &method));
    method = oq_modelopt_refine(method, spec->options);
    if (!method->missing && (!method->online || oq_spec_is_serialized(method, spec)))
        return fail_not_online(c, method);
    OQ_TRY(oq_method_args_parse(c->r->env, SUBJECT, &c->r->resolved->arena, c->r->resolved->held, method,
                                spec->options, false, out));
    (*out)->calibrated = c->in->calibrated;
    return OQ_OK;
}

/* A global request for a method that only reads checkpoints means the components that were quantized with it; where
 * none was, a producer's layout still means transformers and not text encoders. */
static bool leaves_plain(const candidate *c, const oq_quant_spec *spec)
{
    const oq_method *method = oq_method_find(c->r->env, spec->method);
    const bool online = method && method->online && !oq_spec_is_serialized(method, spec);
    if (!method || c->out->named || (online && !method->producer)) return false;
    for (size_t i = 0; i < c->r->n_all; i++) {
        const oq_disk *disk = &c->r->all[i].disk;
        if (disk->present && oq_disk_agrees(disk, method, oq_modelopt_refine(method, spec->options)))
            return true;
    }
    return !online && c->in->encoder && method->producer;
}

static oq_status resolve_online(candidate *c)
{
    oq_method_args *args = NULL;
    if (!c->wish || !c->wish->method || leaves_plain(c, c->wish)) return OQ_OK;
    OQ_TRY(read_online(c, c->wish, &args));
    c->out->source = args->method->online ? OQ_SOURCE_ONLINE : OQ_SOURCE_SERIALIZED;
    return add_route(c, c->in->name, args, c->wish);
}

/* The checkpoint's own words for made-up weights: all of them where the method makes up its layers, else the layers
 * that stay plain. */
static oq_status declared_words(const candidate *c, const oq_json **out)
{
    const oq_method *method = c->disk.declared.method;
    oq_json *options = oq_json_new_object();
    const oq_json *ignored = oq_json_get(c->disk.declared.options, "ignored_layers");
    *out = c->disk.declared.options;
    if (!oq_json_append(c->r->resolved->held, options) ||
        (ignored && !oq_json_set(options, "ignored_layers", oq_json_copy(ignored))))
        return oq_fail(c->r->env, OQ_E_NOMEM, "component '%s': no memory for options", c->in->name);
    if (c->disk.serialized && !method->pretend) *out = options;
    return OQ_OK;
}

/* The file only names a method to apply while loading, or the weights are made up (dummy loading). */
static oq_status adopt_online(candidate *c)
{
    const oq_method *method = c->disk.declared.method;
    const oq_json *options = NULL;
    oq_method_args *args = NULL;
    oq_resolved *resolved = c->r->resolved;
    const char *subject = oq_disk_subject(&resolved->arena, &c->disk, c->in);
    if (c->disk.serialized && !method->missing && !method->choose && !method->pretend)
        return oq_fail(c->r->env, OQ_E_UNSUPPORTED,
                       "component '%s': %s '%s', whose layers dummy loading does not make up", c->in->name,
                       subject, method->name);
    OQ_TRY(declared_words(c, &options));
    if (c->disk.serialized)
        OQ_TRY(oq_resolved_warn(
            resolved, "component '%s': %s '%s'; its weights are made up and quantized while loading",
            c->in->name, subject, method->name));
    OQ_TRY(oq_method_args_parse(c->r->env, c->disk.source, &resolved->arena, resolved->held, method, options,
                                false, &args));
    args->pretended = c->disk.serialized && method->pretend;
    c->out->source = method->online || args->pretended ? OQ_SOURCE_ONLINE : OQ_SOURCE_SERIALIZED;
    return add_route(c, c->in->name, args, NULL);
}

/* ---- a checkpoint that declares a quantization --------------------------------------------------------- */

static oq_status fail_conflict(const candidate *c, const char *wish)
{
    const char *is = c->disk.declared.method->name;
    return oq_fail(c->r->env, OQ_E_MISMATCH,
                   "component '%s': the request asks for '%s', but %s '%s'; ask for '%s' or leave it out",
                   c->in->name, wish, oq_disk_subject(&c->r->resolved->arena, &c->disk, c->in), is, is);
}

static oq_status check_agreement(const candidate *c, const oq_quant_spec *spec)
{
    const oq_method *method = NULL;
    if (!spec->method) return fail_conflict(c, "none");
    OQ_TRY(find_method(c, spec, &method));
    if (oq_disk_agrees(&c->disk, method, oq_modelopt_refine(method, spec->options))) return OQ_OK;
    return fail_conflict(c, spec->method);
}

/* The request's options over the file's; a global fp8 over ModelOpt's FP8 brings no options along. */
static oq_status refine(const candidate *c, oq_json **out)
{
    oq_env *env = c->r->env;
    const oq_method *method = c->disk.declared.method;
    oq_json *wish = NULL;
    const bool foreign = oq_method_find(env, c->wish->method)->options != method->options;
    if (foreign && oq_json_size(c->wish->options) > 0)
        return oq_fail(env, OQ_E_MISMATCH, "component '%s': options of method '%s' do not go with %s '%s'",
                       c->in->name, c->wish->method, oq_disk_subject(&c->r->resolved->arena, &c->disk, c->in),
                       method->name);
    OQ_TRY(oq_method_options_read(env, SUBJECT, method, c->wish->options, true, &wish));
    const oq_status st = oq_disk_merge(env, c->r->resolved, c->in, &c->disk, wish, out);
    oq_json_free(wish);
    return st;
}

static oq_status resolve_declared(candidate *c)
{
    oq_resolved *resolved = c->r->resolved;
    oq_method_args *args = NULL;
    oq_json *merged = NULL;
    if (c->wish) OQ_TRY(check_agreement(c, c->wish));
    if (!c->wish) {
        c->out->from = "checkpoint";
        if (!c->disk.serialized || !c->in->ckpt) return adopt_online(c);
    }
    if (c->wish)
        OQ_TRY(refine(c, &merged));
    else
        merged = oq_json_ref(c->disk.declared.options);
    if (!oq_json_append(resolved->held, merged))
        return oq_fail(c->r->env, OQ_E_NOMEM, "component '%s': no memory for options", c->in->name);
    const bool serialized = c->disk.serialized && c->in->ckpt;
    OQ_TRY(oq_method_args_parse(c->r->env, c->disk.source ? c->disk.source : SUBJECT, &resolved->arena,
                                resolved->held, c->disk.declared.method, merged, serialized, &args));
    if (oq_modelopt_is_ambiguous(args))
        OQ_TRY(oq_resolved_warn(resolved,
                                "component '%s': ModelOpt's MXFP4_DEFAULT_CFG and MXFP4_MLP_WEIGHT_ONLY_CFG "
                                "both write quant_algo MXFP4 "
                                "and no more; activations are quantized to four bits as the first has it, "
                                "mxfp4_activations 'none' "
                                "leaves them as they are",
                                c->in->name));
    c->out->source = serialized || !args->method->online ? OQ_SOURCE_SERIALIZED : OQ_SOURCE_ONLINE;
    const bool own = c->wish && c->disk.declared.n_ignored == 0;
    return add_route(c, c->in->name, args, own ? c->wish : NULL);
}

/* ---- one component ------------------------------------------------------------------------------------- */

static oq_status resolve_plain_component(const candidate *c)
{
    const oq_quant_config *config = c->r->config;
    for (size_t i = 0; config && i < config->n_entries; i++) {
        const oq_quant_entry *e = &config->entries[i];
        if (*e->component && e->spec.method && oq_dotted_prefix(c->in->name, e->component))
            return oq_fail(c->r->env, OQ_E_CONFIG,
                           SUBJECT " asks for '%s' in '%s', but component '%s' (%s) is never quantized",
                           e->spec.method, e->component, c->in->name, c->in->class_name);
    }
    if (oq_json_type(c->in->quant) == OQ_JSON_NULL) return OQ_OK;
    return oq_fail(c->r->env, OQ_E_UNSUPPORTED,
                   "component '%s': '%s' declares a quantization, but a %s is read plain", c->in->name,
                   c->in->quant_source, c->in->class_name);
}

/* Entries below the component's own name. */
static oq_status resolve_below(candidate *c)
{
    const oq_quant_config *config = c->r->config;
    for (size_t i = 0; config && i < config->n_entries; i++) {
        const oq_quant_entry *e = &config->entries[i];
        oq_method_args *args = NULL;
        if (!is_below(c->in->name, e->component)) continue;
        if (e->spec.method && c->out->source == OQ_SOURCE_SERIALIZED && c->disk.present) {
            OQ_TRY(check_agreement(c, &e->spec));
            if (c->out->n_routes) continue; /* the component's own route says the same */
        }
        if (e->spec.method) OQ_TRY(read_online(c, &e->spec, &args));
        OQ_TRY(add_route(c, e->component, args, &e->spec));
        if (args && c->out->source == OQ_SOURCE_NONE)
            c->out->source = args->method->online ? OQ_SOURCE_ONLINE : OQ_SOURCE_SERIALIZED;
    }
    qsort(c->out->routes, c->out->n_routes, sizeof *c->out->routes, by_length);
    return OQ_OK;
}

static oq_status copy_names(candidate *c)
{
    oq_arena *arena = &c->r->resolved->arena;
    const oq_quant_config *config = c->r->config;
    const size_t n = (config ? config->n_entries : 0) + 1;
    c->out->name = oq_arena_strdup(arena, c->in->name);
    c->out->class_name = oq_arena_strdup(arena, c->in->class_name ? c->in->class_name : "");
    c->out->from = "default";
    if (!c->out->name || !c->out->class_name)
        return oq_fail(c->r->env, OQ_E_NOMEM, "component '%s': no memory", c->in->name);
    return oq_arena_new(arena, n, sizeof *c->out->routes, "routes", &c->out->routes);
}

static oq_status resolve_component(candidate *c)
{
    const oq_quant_config *config = c->r->config;
    if (!c->in->quantizable) return resolve_plain_component(c);
    c->out->named = is_named(config, c->in->name);
    c->wish = config ? oq_quant_config_route(config, c->in->name) : NULL;
    if (c->wish) c->out->from = config->from ? config->from : "config";
    if (c->disk.present) {
        c->out->dialect = c->disk.serialized ? c->disk.dialect : NULL;
        c->out->declared = c->disk.declared;
        c->out->declared_in = c->disk.source;
        OQ_TRY(resolve_declared(c));
    } else {
        OQ_TRY(resolve_online(c));
    }
    return resolve_below(c);
}

static oq_status resolve_all(oq_env *env, const oq_quant_config *config, const oq_resolve_input *inputs,
                             size_t n_inputs, oq_resolved *resolved)
{
    resolver r = {.env = env,
                  .resolved = resolved,
                  .config = config,
                  .cap_shared = (config ? config->n_entries : 0) + 2};
    OQ_TRY(check_keys(env, config, inputs, n_inputs));
    OQ_TRY(oq_arena_new(&resolved->arena, r.cap_shared, sizeof *r.shared, "patterns", &r.shared));
    OQ_TRY(oq_arena_new(&resolved->arena, n_inputs, sizeof *resolved->components, "components",
                        &resolved->components));
    OQ_TRY(oq_arena_new(&resolved->arena, n_inputs, sizeof *r.all, "components", &r.all));
    resolved->n_components = r.n_all = n_inputs;
    for (size_t i = 0; i < n_inputs; i++) {
        r.all[i] = (candidate){.r = &r, .in = &inputs[i], .out = &resolved->components[i]};
        OQ_TRY(copy_names(&r.all[i]));
        const oq_quant_spec *wish = config ? oq_quant_config_route(config, inputs[i].name) : NULL;
        const oq_method *method = wish && wish->method ? oq_method_find(env, wish->method) : NULL;
        if (inputs[i].quantizable) OQ_TRY(oq_disk_read(env, resolved, &inputs[i], method, &r.all[i].disk));
    }
    for (size_t i = 0; i < n_inputs; i++) OQ_TRY(resolve_component(&r.all[i]));
    return OQ_OK;
}

oq_status oq_resolve(oq_env *env, const oq_quant_config *config, const oq_resolve_input *inputs,
                     size_t n_inputs, oq_resolved **out)
{
    oq_resolved *resolved = NULL;
    *out = NULL;
    OQ_TRY(oq_new(env, 1, sizeof *resolved, "resolved quantization", &resolved));
    oq_arena_init(&resolved->arena, env);
    resolved->held = oq_json_new_array();
    oq_status st = resolved->held ? OQ_OK : oq_fail(env, OQ_E_NOMEM, "no memory for a resolved quantization");
    if (st == OQ_OK) st = resolve_all(env, config, inputs, n_inputs, resolved);
    if (config && config->file && strncmp(oq_env_error(env), SUBJECT, strlen(SUBJECT)) == 0)
        st = oq_fail_within(env, st, config->file);
    if (st == OQ_OK)
        *out = resolved;
    else
        oq_resolved_free(resolved);
    return st;
}

void oq_resolved_free(oq_resolved *resolved)
{
    if (!resolved) return;
    oq_env *env = resolved->arena.env;
    oq_json_free(resolved->held);
    oq_arena_deinit(&resolved->arena);
    oq_free(env, resolved);
}
