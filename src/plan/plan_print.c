/* plan_print.c -- the plan as JSON and as a table. */
#include "plan/plan_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static oq_json *scheme_to_json(const oq_scheme *s)
{
    oq_json *json = oq_json_new_object();
    oq_json_set(json, "weight", oq_json_new_string(s->weight->name));
    oq_json_set(json, "act", oq_json_new_string(s->act ? s->act->label : NULL));
    oq_json_set(json, "act_scale", oq_json_new_string(oq_act_scale_name(s->act_scale)));
    if (s->act_min_rows) oq_json_set(json, "act_min_rows", oq_json_new_int(s->act_min_rows));
    return json;
}

/* What the layer's kernel does besides the product, in the order of the arithmetic. */
static const struct fusion_name {
    unsigned bit;
    const char *name;
} fusion_names[] = {{OQ_FUSE_ROWS, "rows"}, {OQ_FUSE_UNARY, "unary"}, {OQ_FUSE_GLU, "glu"},
                    {OQ_FUSE_ADD, "add"},   {OQ_FUSE_PRE, "pre"},     {OQ_FUSE_AGAIN, "again"}};

static oq_json *fused_to_json(const oq_linear *l)
{
    oq_json *json = oq_json_new_array();
    for (size_t i = 0; i < OQ_COUNT(fusion_names); i++)
        if (l->fused & fusion_names[i].bit) oq_json_append(json, oq_json_new_string(fusion_names[i].name));
    return json;
}

static oq_json *layer_to_json(const oq_plan_layer *layer)
{
    const oq_linear *l = layer->linear;
    oq_json *json = oq_json_new_object();
    oq_json_set(json, "name", oq_json_new_string(l->name));
    oq_json_set(json, "n", oq_json_new_int(l->spec.n));
    oq_json_set(json, "k", oq_json_new_int(l->spec.k));
    oq_json_set(json, "scheme", scheme_to_json(&l->spec.scheme));
    oq_json_set(json, "kernel", oq_json_new_string(l->kernel->name));
    oq_json_set(json, "fused", fused_to_json(l));
    oq_json_set(json, "bytes", oq_json_new_int((int64_t)layer->bytes));
    oq_json_set(json, "quantized", oq_json_new_bool(layer->choice.quantized));
    oq_json_set(json, "reason", oq_json_new_string(layer->choice.reason));
    if (l->n_parts > 1) {
        oq_json *parts = oq_json_new_array();
        for (int i = 0; i < l->n_parts; i++) {
            const char *dot = strrchr(l->parts[i].name, '.');
            oq_json_append(parts, oq_json_new_string(dot ? dot + 1 : l->parts[i].name));
        }
        oq_json_set(json, "parts", parts);
    }
    return json;
}

static oq_json *kernel_row(const char *name, const char *kernel)
{
    oq_json *json = oq_json_new_object();
    oq_json_set(json, "name", oq_json_new_string(name));
    oq_json_set(json, "kernel", oq_json_new_string(kernel));
    return json;
}

static const char *method_name(const oq_plan_component *c)
{
    const oq_resolved_component *r = c->resolved;
    for (size_t i = 0; i < r->n_routes; i++)
        if (r->routes[i].args) return r->routes[i].args->method->name;
    return NULL;
}

static oq_json *component_to_json(const oq_plan_component *c)
{
    oq_json *json = oq_json_new_object(), *layers = oq_json_new_array();
    oq_json *convolutions = oq_json_new_array(), *attention = oq_json_new_array();
    oq_json_set(json, "class", oq_json_new_string(c->class_name));
    oq_json_set(json, "method", oq_json_new_string(method_name(c)));
    oq_json_set(json, "source", oq_json_new_string(oq_quant_source_name(c->resolved->source)));
    oq_json_set(json, "from", oq_json_new_string(c->resolved->from));
    for (size_t i = 0; i < c->n_layers; i++) oq_json_append(layers, layer_to_json(&c->layers[i]));
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const oq_item *item = &c->builder.items[i];
        if (item->kind == OQ_ITEM_CONV2D)
            oq_json_append(convolutions, kernel_row(item->u.conv2d->name, item->u.conv2d->kernel->name));
    }
    for (size_t i = 0; i < c->n_attentions; i++)
        oq_json_append(attention, oq_plan_attention_to_json(c, &c->attentions[i]));
    oq_json_set(json, "layers", layers);
    oq_json_set(json, "convolutions", convolutions);
    oq_json_set(json, "attention", attention);
    oq_json_set(json, "attention_policy", oq_plan_policy_to_json(c));
    oq_json_set(json, "bytes", oq_json_new_int((int64_t)c->bytes));
    oq_json_set(json, "file_bytes", oq_json_new_int((int64_t)c->file_bytes));
    oq_json_set(json, "params", oq_json_new_int(c->params));
    oq_json_set(json, "tensors", oq_json_new_int((int64_t)c->n_tensors));
    oq_json_set(json, "unused", oq_plan_unused_to_json(c));
    return json;
}

static const char *const phase_words[OQ_N_PHASES] = {NULL, "text", "denoise", "decode"};

oq_json *oq_plan_to_json(const oq_plan *plan)
{
    oq_json *json = oq_json_new_object(), *components = oq_json_new_object(), *warnings = oq_json_new_array();
    oq_json *phases = oq_json_new_object();
    for (size_t i = 0; i < plan->n_components; i++)
        oq_json_set(components, plan->components[i].name, component_to_json(&plan->components[i]));
    for (size_t i = 0; i < plan->n_warnings; i++)
        oq_json_append(warnings, oq_json_new_string(plan->warnings[i]));
    oq_json_set(json, "components", components);
    oq_json_set(json, "compute", oq_json_new_string(plan->compute->label));
    oq_json_set(json, "backend", oq_json_new_string(plan->backend->name));
    oq_json_set(json, "scratch_bytes", oq_json_new_int((int64_t)plan->scratch_bytes));
    for (int i = 1; i < OQ_N_PHASES; i++)
        oq_json_set(phases, phase_words[i], oq_json_new_int((int64_t)plan->phase_bytes[i]));
    oq_json_set(json, "scratch_phases", phases);
    oq_json_set(json, "weights_bytes", oq_json_new_int((int64_t)plan->weights_bytes));
    if (plan->stream_bytes) {
        oq_json_set(json, "stream_bytes", oq_json_new_int((int64_t)plan->stream_bytes));
        oq_json_set(json, "window_bytes", oq_json_new_int((int64_t)plan->window_bytes));
    }
    oq_json_set(json, "load_bytes", oq_json_new_int((int64_t)plan->load_bytes));
    oq_json_set(json, "warnings", warnings);
    return json;
}

/* ---- table --------------------------------------------------------------------------------------------- */

typedef struct group { /* layers that differ in the numbers of their names alone */
    const oq_plan_layer *first;
    char pattern[160];
    size_t count, bytes;
} group;

/* "layers.11.attention.to_qkv" -> "layers.*.attention.to_qkv" */
static void make_pattern(const char *name, char *out, size_t size)
{
    size_t n = 0;
    for (const char *at = name; *at && n + 2 < size;) {
        const size_t word = strcspn(at, ".");
        if (strspn(at, "0123456789") == word && word > 0) {
            out[n++] = '*';
        } else {
            for (size_t i = 0; i < word && n + 2 < size; i++) out[n++] = at[i];
        }
        at += word;
        if (*at) out[n++] = *at++;
    }
    out[n] = '\0';
}

static bool same_group(const group *g, const oq_plan_layer *layer, const char *pattern)
{
    const oq_linear *a = g->first->linear, *b = layer->linear;
    return strcmp(g->pattern, pattern) == 0 && a->spec.n == b->spec.n && a->spec.k == b->spec.k &&
           oq_scheme_equal(&a->spec.scheme, &b->spec.scheme) && a->kernel == b->kernel &&
           a->fused == b->fused && strcmp(g->first->choice.reason, layer->choice.reason) == 0;
}

static size_t make_groups(const oq_plan_component *c, bool all_layers, group *groups)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_layers; i++) {
        const oq_plan_layer *layer = &c->layers[i];
        char pattern[sizeof groups->pattern];
        if (all_layers)
            snprintf(pattern, sizeof pattern, "%s", layer->linear->name);
        else
            make_pattern(layer->linear->name, pattern, sizeof pattern);
        size_t j = 0;
        while (j < n && !same_group(&groups[j], layer, pattern)) j++;
        if (j == n) {
            groups[n] = (group){.first = layer};
            memcpy(groups[n++].pattern, pattern, sizeof pattern);
        }
        groups[j].count++;
        groups[j].bytes += layer->bytes;
    }
    for (size_t j = 0; j < n; j++) /* one layer alone keeps its own name: it is the one that rules match */
        if (groups[j].count == 1)
            snprintf(groups[j].pattern, sizeof groups[j].pattern, "%s", groups[j].first->linear->name);
    return n;
}

enum { N_CELLS = 5 };

typedef struct row { /* the cells of a group that stand in columns */
    char cells[N_CELLS][160];
} row;

static void make_row(const group *g, row *out)
{
    const oq_linear *l = g->first->linear;
    const oq_scheme *s = &l->spec.scheme;
    const size_t size = sizeof out->cells[0];
    char from[32];
    out->cells[1][0] = '\0';
    oq_act_describe_from(from, sizeof from, s->act_min_rows);
    snprintf(out->cells[0], size, "%s", g->pattern);
    if (g->count > 1) snprintf(out->cells[1], size, "x%zu", g->count);
    snprintf(out->cells[2], size, "%lldx%lld", (long long)l->spec.n, (long long)l->spec.k);
    if (s->act)
        snprintf(out->cells[3], size, "%s / %s %s%s", s->weight->name, s->act->label,
                 oq_act_scale_name(s->act_scale), from);
    else
        snprintf(out->cells[3], size, "%s", s->weight->name);
    int at = snprintf(out->cells[4], size, "%s", l->kernel->name);
    for (size_t i = 0; i < OQ_COUNT(fusion_names); i++)
        if ((l->fused & fusion_names[i].bit) && at > 0 && (size_t)at < size)
            at += snprintf(out->cells[4] + at, size - (size_t)at, " +%s", fusion_names[i].name);
}

/* Every column is as wide as its widest cell of the component. */
static void print_groups(const group *groups, size_t n, oq_strbuf *out)
{
    row r;
    int widths[N_CELLS] = {0};
    for (size_t i = 0; i < n; i++) {
        make_row(&groups[i], &r);
        for (int c = 0; c < N_CELLS; c++)
            if ((int)strlen(r.cells[c]) > widths[c]) widths[c] = (int)strlen(r.cells[c]);
    }
    for (size_t i = 0; i < n; i++) {
        make_row(&groups[i], &r);
        oq_strbuf_puts(out, "  ");
        for (int c = 0; c < N_CELLS; c++)
            if (widths[c]) oq_strbuf_printf(out, "%-*s  ", widths[c], r.cells[c]);
        oq_strbuf_put_bytes(out, groups[i].bytes);
        oq_strbuf_printf(out, "  (%s)\n", groups[i].first->choice.reason);
    }
}

static const char *other_kernel(const oq_item *item)
{
    if (item->kind == OQ_ITEM_CONV2D) return item->u.conv2d->kernel->name;
    return item->kind == OQ_ITEM_ATTENTION ? item->u.attention->kernel->name : NULL;
}

/* What convolves and attends, with how many times; linear layers have a table of their own. */
static void print_kernels(const oq_plan_component *c, oq_strbuf *out)
{
    enum { MOST = 16 };
    const char *names[MOST];
    size_t counts[MOST] = {0}, n = 0;
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const char *const name = other_kernel(&c->builder.items[i]);
        size_t j = 0;
        while (name && j < n && strcmp(names[j], name) != 0) j++;
        if (!name || j == MOST) continue;
        if (j == n) names[n++] = name;
        counts[j]++;
    }
    for (size_t j = 0; j < n; j++) oq_strbuf_printf(out, "%s%s x%zu", j ? ", " : "  ", names[j], counts[j]);
    if (n) oq_strbuf_putc(out, '\n');
}

static oq_status print_component(oq_env *env, const oq_plan_component *c, bool all_layers, oq_strbuf *out)
{
    const char *method = method_name(c);
    group *groups = NULL;
    OQ_TRY(oq_new(env, c->n_layers, sizeof *groups, "plan table", &groups));
    size_t quantized = 0;
    for (size_t i = 0; i < c->n_layers; i++) quantized += c->layers[i].choice.quantized;
    oq_strbuf_printf(out, "%s: %s, %s", c->name, c->class_name, method ? method : "unquantized");
    if (c->resolved->source != OQ_SOURCE_NONE)
        oq_strbuf_printf(out, " (%s, from %s)", oq_quant_source_name(c->resolved->source), c->resolved->from);
    oq_strbuf_printf(out, ", %zu of %zu linear layers quantized, %.2f M parameters, ", quantized, c->n_layers,
                     (double)c->params / 1e6);
    oq_strbuf_put_bytes(out, c->bytes);
    oq_strbuf_putc(out, '\n');
    const size_t n = make_groups(c, all_layers, groups);
    print_groups(groups, n, out);
    oq_plan_print_unused(c, out);
    print_kernels(c, out);
    oq_plan_print_attention(c, out);
    oq_free(env, groups);
    return OQ_OK;
}

/* What kernels were chosen by, where something was measured for that. */
static void print_choice(const oq_plan *plan, oq_strbuf *out)
{
    oq_device_info info;
    plan->backend->info(plan->device, &info);
    if (info.rates[0]) oq_strbuf_printf(out, " (%s)", info.rates);
    oq_strbuf_putc(out, '\n');
}

/* What a limit of the device's memory leads to. */
static void print_streamed(const oq_plan *plan, oq_strbuf *out)
{
    oq_strbuf_puts(out, " (");
    oq_strbuf_put_bytes(out, plan->stream_bytes);
    oq_strbuf_puts(out, " of them in host memory, through a window of ");
    oq_strbuf_put_bytes(out, plan->window_bytes);
    oq_strbuf_puts(out, " each time they are used)");
}

oq_status oq_plan_print(const oq_plan *plan, bool all_layers, oq_strbuf *out)
{
    for (size_t i = 0; i < plan->n_components; i++)
        OQ_TRY(print_component(plan->env, &plan->components[i], all_layers, out));
    oq_strbuf_printf(out, "total: weights ");
    oq_strbuf_put_bytes(out, plan->weights_bytes);
    if (plan->stream_bytes) print_streamed(plan, out);
    oq_strbuf_puts(out, ", scratch ");
    oq_strbuf_put_bytes(out, plan->scratch_bytes);
    for (int i = 1; i < OQ_N_PHASES; i++) {
        oq_strbuf_printf(out, "%s%s ", i == 1 ? " (" : ", ", phase_words[i]);
        oq_strbuf_put_bytes(out, plan->phase_bytes[i]);
    }
    oq_strbuf_puts(out, "), largest temporary while loading ");
    oq_strbuf_put_bytes(out, plan->load_bytes);
    oq_strbuf_printf(out, ", compute %s on %s", plan->compute->label, plan->backend->name);
    print_choice(plan, out);
    for (size_t i = 0; i < plan->n_warnings; i++) oq_strbuf_printf(out, "warning: %s\n", plan->warnings[i]);
    return oq_strbuf_check(out, "plan table");
}
