/* plan_account.c -- the account of a component's tensors: each one needed is there with its shape, each one
 * there is needed. Headers alone are read, so `omniq plan` says all of this before a weight is touched. */
#include "plan/plan_internal.h"

#include "base/names.h"
#include "base/strbuf.h"

#include <string.h>

typedef struct account {
    oq_plan *plan;
    oq_plan_component *c;
    bool *claimed;  /* per tensor of the file */
    bool *declared; /* per name rule, once it is asked for: layers stand below it */
    bool unused; /* the item at hand is never run: a file may lack it (ComfyUI's pruned text encoders do) */
    oq_env *env;
} account;

static void claim(account *a, const oq_ckpt_tensor *t)
{
    a->claimed[t - a->c->ckpt->tensors] = true;
}

static void put_shape(oq_strbuf *buf, const int64_t *dim, int n)
{
    oq_strbuf_putc(buf, '[');
    for (int i = 0; i < n; i++) oq_strbuf_printf(buf, "%s%lld", i ? ", " : "", (long long)dim[i]);
    oq_strbuf_putc(buf, ']');
}

static oq_status wrong_shape(account *a, const oq_ckpt_tensor *t, const int64_t *dim, int n)
{
    oq_strbuf buf;
    oq_strbuf_init(&buf, a->env);
    put_shape(&buf, t->dim, t->n_dims);
    oq_strbuf_puts(&buf, ", the network needs ");
    put_shape(&buf, dim, n);
    const oq_status st = oq_fail(a->env, OQ_E_FORMAT, "%s: tensor '%s' has shape %s", a->c->name, t->name,
                                 oq_strbuf_text(&buf));
    oq_strbuf_deinit(&buf);
    return st;
}

/* The name in the file that is nearest to a missing one: a typo or a renamed network shows at once. */
static oq_status missing(account *a, const char *name, const char *suffix)
{
    const char *file = oq_path_leaf(a->c->ckpt->path);
    return oq_fail(a->env, OQ_E_FORMAT, "%s: tensor '%s%s' is missing in '%s' (%zu tensors)", a->c->name,
                   oq_plan_place(a->c, name).name, suffix, file, a->c->ckpt->n_tensors);
}

typedef enum shape_rule {
    SHAPE_EXACT,
    SHAPE_SQUEEZED, /* axes of length 1 do not count: [1, n], [n, 1, 1, 1] */
    SHAPE_KERNEL    /* [n, ...] of a convolution for [n, k]: the rest, flattened, is k */
} shape_rule;

static int squeeze(const int64_t *dim, int n, int64_t *out)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        if (dim[i] != 1) out[count++] = dim[i];
    return count;
}

static bool shape_fits(const oq_ckpt_tensor *t, const int64_t *dim, int n, shape_rule rule)
{
    int64_t have[OQ_CKPT_MAX_DIMS], want[2];
    if (t->n_dims == n && memcmp(t->dim, dim, (size_t)n * sizeof *dim) == 0) return true;
    if (rule == SHAPE_EXACT) return false;
    if (rule == SHAPE_KERNEL) return t->n_dims > 2 && t->dim[0] == dim[0] && t->elems == dim[0] * dim[1];
    const int n_have = squeeze(t->dim, t->n_dims, have), n_want = squeeze(dim, n, want);
    return n_have == n_want && memcmp(have, want, (size_t)n_want * sizeof *want) == 0;
}

/* A plain tensor name + suffix of this shape and of a floating type. */
static oq_status need_shaped(account *a, const char *name, const char *suffix, const int64_t *shape, int n,
                             shape_rule rule)
{
    const oq_plan_values values = oq_plan_find_values(a->c, name, suffix);
    const oq_ckpt_tensor *t = values.tensor;
    int64_t dim[OQ_CKPT_MAX_DIMS] = {0};
    if (a->c->ckpt && !t && a->unused) {
        a->c->unused.n_absent++;
        return OQ_OK;
    }
    a->c->n_tensors++;
    if (!a->c->ckpt) return OQ_OK;
    if (!t) return missing(a, name, suffix);
    if (!a->claimed[t - a->c->ckpt->tensors]) a->c->file_bytes += t->bytes;
    claim(a, t);
    memcpy(dim, shape, (size_t)n * sizeof *dim);
    if (values.whole) dim[0] = values.whole;
    if (!shape_fits(t, dim, n, rule)) return wrong_shape(a, t, dim, n);
    if (t->format) return OQ_OK; /* blocks that say all of their values themselves */
    if (!t->dtype || !t->dtype->floating)
        return oq_fail(a->env, OQ_E_FORMAT,
                       "%s: tensor '%s' holds %s, the network needs floating point numbers", a->c->name,
                       t->name, t->type_name);
    const oq_dialect *dialect = a->c->resolved->dialect;
    if (t->dtype->bytes == 1 && !(dialect && dialect->values_in_codes))
        return oq_fail(
            a->env, OQ_E_FORMAT,
            "%s: tensor '%s' holds %s without a scale and is not a quantized layer; nothing says what its "
            "values mean",
            a->c->name, t->name, t->type_name);
    return OQ_OK;
}

static oq_status need(account *a, const char *name, const char *suffix, const int64_t *dim, int n)
{
    return need_shaped(a, name, suffix, dim, n, SHAPE_EXACT);
}

static void claim_once(account *a, const oq_ckpt_tensor *t)
{
    if (!t || a->claimed[t - a->c->ckpt->tensors]) return;
    claim(a, t);
    a->c->file_bytes += t->bytes;
    a->c->n_tensors++;
}

static void claim_part(account *a, const oq_part_source *part)
{
    for (int p = 0; p < OQ_N_PLANES; p++) claim_once(a, part->plane[p].tensor);
    for (int i = 0; i < OQ_MAX_BESIDE; i++) claim_once(a, part->beside[i]);
}

static oq_status account_linear(account *a, const oq_plan_layer *layer)
{
    const oq_linear *l = layer->linear;
    for (int i = 0; i < l->n_parts; i++) {
        const oq_part *part = &l->parts[i];
        a->c->params += part->n * l->spec.k + (l->has_bias ? part->n : 0);
        if (layer->choice.serialized) {
            claim_part(a, &layer->choice.part[i]);
        } else {
            OQ_TRY(need_shaped(a, part->name, ".weight", (int64_t[]){part->n, l->spec.k}, 2,
                               l->flat ? SHAPE_KERNEL : SHAPE_SQUEEZED));
        }
        const oq_ckpt_tensor *bias = layer->choice.serialized ? layer->choice.part[i].bias.tensor : NULL;
        if (l->has_bias && bias) claim_once(a, bias);
        if (l->has_bias && !bias) OQ_TRY(need(a, part->name, ".bias", &part->n, 1));
    }
    return OQ_OK;
}

static oq_status account_conv2d(account *a, const oq_conv2d *c)
{
    const oq_conv2d_spec *s = &c->spec;
    const int64_t video[5] = {s->c_out, s->c_in, s->kt, s->kh, s->kw};
    const int64_t image[4] = {s->c_out, s->c_in, s->kh, s->kw};
    a->c->params += s->c_out * s->c_in * oq_conv2d_taps_t(s) * s->kh * s->kw + (c->has_bias ? s->c_out : 0);
    OQ_TRY(need(a, c->name, ".weight", s->kt ? video : image, s->kt ? 5 : 4));
    return c->has_bias ? need(a, c->name, ".bias", &s->c_out, 1) : OQ_OK;
}

/* A vector may be stored as [n] or, like pad tokens and norms of convolutions, with axes of length 1. */
static oq_status account_vector(account *a, const oq_vector *v)
{
    const int64_t rows = v->rows ? v->rows : 1;
    a->c->params += v->n;
    if (rows == 1) return need_shaped(a, v->name, "", &v->n, 1, SHAPE_SQUEEZED);
    return need_shaped(a, v->name, "", (int64_t[]){rows, v->n / rows}, 2, SHAPE_SQUEEZED);
}

/* A vocabulary may be padded: rows behind those that the configuration counts are not used. */
static oq_status account_table(account *a, const oq_table *t)
{
    const oq_ckpt_tensor *file = oq_plan_find_values(a->c, t->name, "").tensor;
    const bool longer = file && file->n_dims == 2 && file->dim[0] > t->rows;
    return need(a, t->name, "", (int64_t[]){longer ? file->dim[0] : t->rows, t->cols}, 2);
}

static oq_status account_item(account *a, const oq_item *item, const oq_plan_layer *layer)
{
    switch (item->kind) {
    case OQ_ITEM_LINEAR:
        return account_linear(a, layer);
    case OQ_ITEM_CONV2D:
        return account_conv2d(a, item->u.conv2d);
    case OQ_ITEM_VECTOR:
        return account_vector(a, item->u.vector);
    case OQ_ITEM_TABLE:
        a->c->params += item->u.table->rows * item->u.table->cols;
        return account_table(a, item->u.table);
    case OQ_ITEM_ATTENTION:
        break;
    }
    return OQ_OK;
}

static oq_status account_items(account *a)
{
    oq_plan_component *c = a->c;
    size_t i_layer = 0;
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const oq_item *item = &c->builder.items[i];
        const oq_plan_layer *layer = item->kind == OQ_ITEM_LINEAR ? &c->layers[i_layer++] : NULL;
        const oq_plan_component before = *c;
        a->unused = item->unused;
        OQ_TRY(account_item(a, item, layer));
        if (!item->unused) continue;
        c->unused.params += c->params - before.params;
        c->unused.n_tensors += c->n_tensors - before.n_tensors;
        c->unused.file_bytes += c->file_bytes - before.file_bytes;
    }
    return OQ_OK;
}

/* A rule of leftovers says nothing where something is declared below its name: the rest of that is then not as it should be. */
static bool is_declared(const oq_plan_component *c, const oq_name_rule *rule)
{
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const char *name = oq_item_name(&c->builder.items[i]);
        if (oq_plan_name_fits(rule->from, oq_plan_place((void *)(uintptr_t)c, name).name)) return true;
    }
    return false;
}

static oq_status find_declared(account *a)
{
    size_t n = 0;
    for (const oq_name_rule *rule = a->c->module->names; rule && rule->from; rule++) n++;
    OQ_TRY(oq_new(a->env, n + 1, sizeof *a->declared, "tensor account", &a->declared));
    for (size_t i = 0; i < n; i++) {
        const oq_name_rule *rule = &a->c->module->names[i];
        a->declared[i] = !rule->to && is_declared(a->c, rule);
    }
    return OQ_OK;
}

static bool harmless(const account *a, const oq_ckpt_tensor *t)
{
    const oq_name_rule *rules = a->c->module->names;
    for (size_t i = 0; rules && rules[i].from; i++)
        if (!rules[i].to && !a->declared[i] && oq_plan_name_fits(rules[i].from, t->name)) return true;
    const oq_dialect *d = a->c->resolved->dialect;
    return d && d->harmless && d->harmless(t);
}

static oq_status account_leftovers(account *a)
{
    const oq_ckpt_tensor *first = NULL;
    size_t n = 0;
    for (size_t i = 0; i < a->c->ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &a->c->ckpt->tensors[i];
        if (a->claimed[i]) continue;
        if (!a->declared) OQ_TRY(find_declared(a));
        if (harmless(a, t)) {
            oq_log(a->env, OQ_LOG_DEBUG, "%s: tensor '%s' is not needed", a->c->name, t->name);
            continue;
        }
        if (!first) first = t;
        n++;
    }
    if (n == 0) return OQ_OK;
    return oq_fail(a->env, OQ_E_FORMAT, "%s: %zu of %zu tensors belong to no layer of %s, the first is '%s'",
                   a->c->name, n, a->c->ckpt->n_tensors, a->c->class_name, first->name);
}

oq_status oq_plan_account(oq_plan *plan, oq_plan_component *c)
{
    account a = {.plan = plan, .c = c, .env = plan->env};
    if (c->ckpt)
        OQ_TRY(oq_new(plan->env, c->ckpt->n_tensors, sizeof *a.claimed, "tensor account", &a.claimed));
    oq_status st = account_items(&a);
    if (st == OQ_OK && c->ckpt) st = account_leftovers(&a);
    oq_free(plan->env, a.claimed);
    oq_free(plan->env, a.declared);
    return st;
}
