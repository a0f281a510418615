/* plan_attention.c -- runtime attention quantization: which layers it reaches, with which kernels, and why not. */
#include "plan/plan_internal.h"

#include <inttypes.h>
#include <string.h>

/* ---- one layer ----------------------------------------------------------------------------------------- */

static bool selected(const oq_selector *s, int64_t index)
{
    return index >= 0 && s->n_ranges > 0 && oq_selector_has(s, index);
}

/* A list of layers is of no use for a layer without a number, unless that is out of it anyway. */
static oq_status check_index(oq_plan *plan, const oq_plan_component *c, const oq_attention *a)
{
    const oq_attention_policy *p = &c->attention_policy;
    const bool asked = (p->precision != OQ_ATTENTION_PLAIN && p->skip_layers.n_ranges && !a->plain) ||
                       (p->sparsity > 0 && p->sparse_skip_layers.n_ranges && !a->dense);
    if (!asked || oq_attention_layer_index(a->name) >= 0) return OQ_OK;
    return oq_fail(plan->env, OQ_E_CONFIG,
                   "attention of '%s': layers to skip are given, but layer '%s' has no number", c->name,
                   a->name);
}

static oq_status find_kernel(oq_plan *plan, const oq_plan_component *c, oq_attention *a, unsigned mode)
{
    const oq_attention_policy *p = &c->attention_policy;
    oq_attention_spec *spec = &a->mode_spec[mode];
    *spec = a->spec;
    if (mode & OQ_MODE_QUANTIZED) spec->precision = p->precision;
    if (mode & OQ_MODE_SPARSE) spec->sparsity = p->sparsity;
    const char *kind = oq_attention_precision_name(spec->precision);
    if (!oq_attention_dim_ok(spec->head_dim))
        return oq_fail(plan->env, OQ_E_CONFIG,
                       "attention of '%s': layer '%s' has heads of %" PRId64
                       ", %s attention needs a power of two from 16 to 256",
                       c->name, a->name, spec->head_dim, mode & OQ_MODE_QUANTIZED ? kind : "block-sparse");
    if (spec->causal)
        return oq_fail(plan->env, OQ_E_CONFIG,
                       "attention of '%s': layer '%s' is causal, which is not quantized at run time", c->name,
                       a->name);
    a->mode_kernel[mode] = plan->backend->find_attention(plan->device, spec);
    if (a->mode_kernel[mode]) return OQ_OK;
    return oq_fail(
        plan->env, OQ_E_UNSUPPORTED,
        "attention of '%s': backend '%s' has no %s%s attention for layer '%s' with heads of %" PRId64,
        c->name, plan->backend->name, mode & OQ_MODE_SPARSE ? "block-sparse " : "", kind, a->name,
        spec->head_dim);
}

static const char *why_plain(const oq_attention_policy *p, const oq_attention *a, int64_t index)
{
    if (p->precision == OQ_ATTENTION_PLAIN) return NULL;
    if (a->plain) return a->plain;
    return selected(&p->skip_layers, index) ? "skip_layers" : NULL;
}

static const char *why_dense(const oq_attention_policy *p, const oq_attention *a, int64_t index)
{
    if (p->sparsity == 0) return NULL;
    if (a->dense) return a->dense;
    return selected(&p->sparse_skip_layers, index) ? "sparse_skip_layers" : NULL;
}

static oq_status choose_layer(oq_plan *plan, oq_plan_component *c, oq_plan_attention *row)
{
    const oq_attention_policy *p = &c->attention_policy;
    oq_attention *a = row->attention;
    OQ_TRY(check_index(plan, c, a));
    row->index = oq_attention_layer_index(a->name);
    row->plain = why_plain(p, a, row->index);
    row->dense = why_dense(p, a, row->index);
    if (p->precision != OQ_ATTENTION_PLAIN && !row->plain) a->modes |= OQ_MODE_QUANTIZED;
    if (p->sparsity > 0 && !row->dense) a->modes |= OQ_MODE_SPARSE;
    a->steps = &c->attention_steps;
    for (unsigned mode = 1; mode < OQ_N_MODES; mode++)
        if ((mode & a->modes) == mode) OQ_TRY(find_kernel(plan, c, a, mode));
    return OQ_OK;
}

/* ---- a component --------------------------------------------------------------------------------------- */

/* A selector that can never match was meant for another model. */
static oq_status check_layers(oq_plan *plan, const oq_plan_component *c, const char *name,
                              const oq_selector *s)
{
    int64_t last = -1;
    for (size_t i = 0; i < c->n_attentions; i++)
        if (c->attentions[i].index > last) last = c->attentions[i].index;
    const int64_t asked = s->n_ranges ? s->ranges[s->n_ranges - 1].last : -1;
    if (asked <= last) return OQ_OK;
    return oq_fail(plan->env, OQ_E_CONFIG,
                   "attention of '%s': %s selects layer %" PRId64 ", it has layers 0 to %" PRId64, c->name,
                   name, asked, last);
}

static oq_status make_steps(oq_plan *plan, oq_plan_component *c)
{
    const oq_attention_policy *p = &c->attention_policy;
    oq_step_range *plain = NULL;
    const size_t n = p->precision == OQ_ATTENTION_PLAIN ? 0 : p->skip_steps.n_ranges;
    if (n) OQ_TRY(oq_arena_new(&plan->arena, n, sizeof *plain, "attention", &plain));
    for (size_t i = 0; i < n; i++)
        plain[i] = (oq_step_range){p->skip_steps.ranges[i].first, p->skip_steps.ranges[i].last};
    c->attention_steps =
        (oq_attention_steps){.plain = plain, .n_plain = n, .sparse = {p->start_step, p->end_step}};
    return OQ_OK;
}

static oq_status list_layers(oq_plan *plan, oq_plan_component *c)
{
    for (size_t i = 0; i < c->builder.n_items; i++)
        c->n_attentions += c->builder.items[i].kind == OQ_ITEM_ATTENTION;
    OQ_TRY(oq_arena_new(&plan->arena, c->n_attentions, sizeof *c->attentions, "plan", &c->attentions));
    size_t n = 0;
    for (size_t i = 0; i < c->builder.n_items; i++)
        if (c->builder.items[i].kind == OQ_ITEM_ATTENTION)
            c->attentions[n++].attention = c->builder.items[i].u.attention;
    return OQ_OK;
}

oq_status oq_plan_attend(oq_plan *plan, oq_plan_component *c)
{
    const oq_attention_policy *p = &c->attention_policy;
    OQ_TRY(list_layers(plan, c));
    if (!oq_attention_policy_active(p)) return OQ_OK;
    OQ_TRY(make_steps(plan, c));
    unsigned reached = 0;
    for (size_t i = 0; i < c->n_attentions; i++) {
        OQ_TRY(choose_layer(plan, c, &c->attentions[i]));
        reached |= c->attentions[i].attention->modes;
    }
    OQ_TRY(check_layers(plan, c, "skip_layers", &p->skip_layers));
    OQ_TRY(check_layers(plan, c, "sparse_skip_layers", &p->sparse_skip_layers));
    if (reached) return OQ_OK;
    return oq_fail(plan->env, OQ_E_CONFIG, "attention of '%s': none of its %zu attention layers is reached",
                   c->name, c->n_attentions);
}

oq_status oq_plan_check_steps(const oq_plan *plan, int64_t steps)
{
    for (size_t i = 0; i < plan->n_components; i++)
        OQ_TRY(oq_attention_policy_check_steps(plan->env, &plan->components[i].attention_policy,
                                               plan->components[i].name, steps));
    return OQ_OK;
}

/* ---- printing ------------------------------------------------------------------------------------------ */

static void put_selector(oq_strbuf *out, const oq_selector *s)
{
    for (size_t i = 0; i < s->n_ranges; i++) {
        oq_strbuf_printf(out, "%s%" PRId64, i ? "," : "", s->ranges[i].first);
        if (s->ranges[i].last > s->ranges[i].first) oq_strbuf_printf(out, "-%" PRId64, s->ranges[i].last);
    }
}

static void put_count(oq_strbuf *out, const oq_plan_component *c, unsigned bit, const char *what)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_attentions; i++) n += (c->attentions[i].attention->modes & bit) != 0;
    oq_strbuf_printf(out, "%s in %zu of %zu layers", what, n, c->n_attentions);
}

/* "  kept plain: layers.0.attention (skip_layers), ..." */
static void put_reasons(oq_strbuf *out, const oq_plan_component *c, bool dense)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_attentions; i++) {
        const oq_plan_attention *row = &c->attentions[i];
        const char *why = dense ? row->dense : row->plain;
        if (!why) continue;
        oq_strbuf_printf(out, "%s%s (%s)",
                         n++     ? ", "
                         : dense ? "    dense: "
                                 : "    plain: ",
                         row->attention->name, why);
    }
    if (n) oq_strbuf_putc(out, '\n');
}

void oq_plan_print_attention(const oq_plan_component *c, oq_strbuf *out)
{
    const oq_attention_policy *p = &c->attention_policy;
    if (!oq_attention_policy_active(p)) return;
    oq_strbuf_puts(out, "  attention: ");
    if (p->precision != OQ_ATTENTION_PLAIN) {
        put_count(out, c, OQ_MODE_QUANTIZED, oq_attention_precision_name(p->precision));
        if (p->skip_steps.n_ranges) {
            oq_strbuf_puts(out, ", plain in steps ");
            put_selector(out, &p->skip_steps);
        }
    }
    if (p->sparsity > 0) {
        if (p->precision != OQ_ATTENTION_PLAIN) oq_strbuf_puts(out, "; ");
        oq_strbuf_printf(out, "%g of the key blocks", p->sparsity);
        put_count(out, c, OQ_MODE_SPARSE, " left out");
        oq_strbuf_printf(out, ", from step %" PRId64, p->start_step);
        if (p->end_step != INT64_MAX) oq_strbuf_printf(out, " to %" PRId64, p->end_step);
    }
    oq_strbuf_putc(out, '\n');
    put_reasons(out, c, false);
    put_reasons(out, c, true);
}

oq_json *oq_plan_attention_to_json(const oq_plan_component *c, const oq_plan_attention *row)
{
    const oq_attention *a = row->attention;
    const oq_attention_policy *p = &c->attention_policy;
    oq_json *json = oq_json_new_object();
    oq_json_set(json, "name", oq_json_new_string(a->name));
    oq_json_set(json, "kernel", oq_json_new_string((a->modes ? a->mode_kernel[a->modes] : a->kernel)->name));
    if (!oq_attention_policy_active(p)) return json;
    const bool quantized = a->modes & OQ_MODE_QUANTIZED, sparse = a->modes & OQ_MODE_SPARSE;
    oq_json_set(
        json, "precision",
        oq_json_new_string(oq_attention_precision_name(quantized ? p->precision : OQ_ATTENTION_PLAIN)));
    oq_json_set(json, "sparsity", oq_json_new_real(sparse ? p->sparsity : 0));
    if (row->plain) oq_json_set(json, "plain", oq_json_new_string(row->plain));
    if (row->dense) oq_json_set(json, "dense", oq_json_new_string(row->dense));
    return json;
}

oq_json *oq_plan_policy_to_json(const oq_plan_component *c)
{
    const oq_attention_policy *p = &c->attention_policy;
    if (!oq_attention_policy_active(p)) return oq_json_new_null();
    oq_json *json = oq_json_new_object();
    oq_strbuf steps;
    oq_strbuf_init(&steps, c->builder.env);
    put_selector(&steps, &p->skip_steps);
    oq_json_set(json, "precision", oq_json_new_string(oq_attention_precision_name(p->precision)));
    oq_json_set(json, "plain_steps", oq_json_new_string(oq_strbuf_text(&steps)));
    oq_json_set(json, "sparsity", oq_json_new_real(p->sparsity));
    if (p->sparsity > 0) {
        oq_json_set(json, "start_step", oq_json_new_int(p->start_step));
        oq_json_set(json, "end_step",
                    p->end_step == INT64_MAX ? oq_json_new_null() : oq_json_new_int(p->end_step));
    }
    oq_strbuf_deinit(&steps);
    return json;
}
