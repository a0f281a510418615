/* plan_kernels.c -- for each declared item: how it is stored, who computes it, how many bytes it takes. */
#include "plan/plan_internal.h"

#include "base/size.h"

#include <string.h>

#define BLOCK_ALIGNMENT 256

static size_t padded(size_t bytes)
{
    return oq_align_up(bytes, BLOCK_ALIGNMENT);
}

/* Type in the file of a plain layer: the widest of its parts, F32 where they differ. NULL: dummy. */
static const oq_dtype *stored_type(oq_plan_component *c, const oq_linear *l)
{
    const oq_dtype *stored = NULL;
    for (int i = 0; i < l->n_parts; i++) {
        const oq_ckpt_tensor *t = oq_plan_find_values(c, l->parts[i].name, ".weight").tensor;
        if (!t || !t->dtype) return NULL;
        if (stored && stored != t->dtype) return &oq_dtype_f32;
        stored = t->dtype;
    }
    return stored;
}

/* A plain weight stays as narrow as it is in the file, unless the compute type is narrower: BF16 runs round
 * F32 files once, as `from_pretrained(torch_dtype=bfloat16)` does; F32 runs and wide layers keep BF16 weights,
 * which they read exactly. */
static const oq_format *plain_format(const oq_plan_component *c, const oq_dtype *stored, bool wide)
{
    if (c->compute == &oq_dtype_bf16 && !wide) return &oq_format_bf16;
    if (stored == &oq_dtype_bf16) return &oq_format_bf16;
    return &oq_format_f32;
}

oq_status oq_plan_describe(oq_plan *plan, const oq_plan_component *c, const oq_linear *l, oq_layer_desc *out)
{
    const char **parts = NULL;
    int64_t *part_n = NULL;
    OQ_TRY(oq_arena_new(&plan->arena, (size_t)l->n_parts, sizeof *parts, l->name, &parts));
    OQ_TRY(oq_arena_new(&plan->arena, (size_t)l->n_parts, sizeof *part_n, l->name, &part_n));
    for (int i = 0; i < l->n_parts; i++) parts[i] = l->parts[i].name, part_n[i] = l->parts[i].n;
    *out = (oq_layer_desc){.component = c->name,
                           .name = l->name,
                           .parts = parts,
                           .part_n = part_n,
                           .n_parts = l->n_parts,
                           .n = l->spec.n,
                           .k = l->spec.k,
                           .keep = l->keep};
    return OQ_OK;
}

/* Largest temporary of loading this layer: f32 rows to encode from, and the planes they become. */
static size_t load_bytes(const oq_plan_layer *layer)
{
    const oq_linear_spec *s = &layer->linear->spec;
    const size_t elems = (size_t)(s->n * s->k);
    if (layer->choice.serialized) return layer->linear->n_parts > 1 ? elems : 0;
    if (layer->choice.quantized) return elems * 4 + elems;
    return layer->stored && oq_format_plain(layer->stored) == s->scheme.weight && layer->linear->n_parts == 1
               ? 0
               : elems * 8;
}

/* Steps that treat activations otherwise: by the same kernel, from the same bytes. */
static oq_status choose_steps(oq_plan *plan, const oq_plan_component *c, const oq_plan_layer *layer)
{
    oq_linear *l = layer->linear;
    const oq_json *list = layer->choice.steps;
    int64_t *steps = NULL;
    if (!list) return OQ_OK;
    l->at_steps = (oq_linear_spec){layer->choice.at_steps, l->spec.n, l->spec.k};
    if (plan->backend->find_linear(plan->device, &l->at_steps) != l->kernel ||
        l->kernel->packed_bytes(&l->at_steps) != l->kernel->packed_bytes(&l->spec))
        return oq_fail(plan->env, OQ_E_UNSUPPORTED,
                       "%s: layer '%s': backend '%s' has no kernel that multiplies it in both ways that its "
                       "steps ask for",
                       c->name, l->name, plan->backend->name);
    l->n_steps = oq_json_size(list);
    OQ_TRY(oq_arena_new(&plan->arena, l->n_steps, sizeof *steps, l->name, &steps));
    for (size_t i = 0; i < l->n_steps; i++) steps[i] = oq_json_int(oq_json_at(list, i), -1);
    l->steps = steps;
    return OQ_OK;
}

/* unused: nobody computes it, but the file's planes belong to it. */
static oq_status choose_linear(oq_plan *plan, oq_plan_component *c, oq_plan_layer *layer, bool unused)
{
    oq_linear *l = layer->linear;
    oq_layer_desc desc;
    OQ_TRY(oq_plan_describe(plan, c, l, &desc));
    desc.unused = unused;
    OQ_TRY(oq_resolve_layer(plan->env, plan->resolved, c->resolved, &desc, c->ckpt, oq_plan_place, c,
                            &layer->choice));
    if (unused) return OQ_OK;
    if (layer->choice.scheme.weight) {
        l->spec.scheme = layer->choice.scheme;
        /* What makes up for a shift of x is there whether the network has a bias or not; such a layer has one part. */
        const bool shifted = l->spec.scheme.shift < 0 || l->spec.scheme.shift > 0;
        if (shifted && layer->choice.serialized && layer->choice.part[0].bias.tensor) l->has_bias = true;
    } else {
        layer->stored = stored_type(c, l);
        l->spec.scheme = (oq_scheme){.weight = plain_format(c, layer->stored, l->wide)};
    }
    l->kernel = plan->backend->find_linear(plan->device, &l->spec);
    if (!l->kernel) {
        char scheme[160];
        oq_scheme_describe(&l->spec.scheme, scheme, sizeof scheme);
        return oq_fail(plan->env, OQ_E_UNSUPPORTED, "%s: layer '%s': backend '%s' has no kernel for %s",
                       c->name, l->name, plan->backend->name, scheme);
    }
    OQ_TRY(choose_steps(plan, c, layer));
    l->fused = l->kernel->fuses ? l->kernel->fuses(&l->spec) & l->wants : 0;
    layer->bytes =
        padded(l->kernel->packed_bytes(&l->spec)) + (l->has_bias ? padded((size_t)l->spec.n * 4) : 0);
    c->bytes += layer->bytes;
    const size_t temporary = load_bytes(layer);
    if (temporary > c->load_bytes) c->load_bytes = temporary;
    return OQ_OK;
}

/* A weight that the file holds, or the run rounds, as bf16 may rest as such. */
static const oq_dtype *conv2d_weight(oq_plan_component *c, const oq_conv2d *conv)
{
    const oq_ckpt_tensor *file = oq_plan_find_values(c, conv->name, ".weight").tensor;
    return c->compute == &oq_dtype_bf16 || (file && file->dtype == &oq_dtype_bf16) ? &oq_dtype_bf16 : NULL;
}

static oq_status choose_conv2d(oq_plan *plan, oq_plan_component *c, oq_conv2d *conv)
{
    oq_conv2d_spec *s = &conv->spec;
    s->compute = c->compute;
    s->weight = conv2d_weight(c, conv);
    conv->kernel = plan->backend->find_conv2d(plan->device, s);
    if (!conv->kernel && s->kt == 0 && s->upsample == 2) {
        s->upsample = 1;
        conv->upsample_first = true;
        conv->kernel = plan->backend->find_conv2d(plan->device, s);
    }
    if (!conv->kernel)
        return oq_fail(plan->env, OQ_E_UNSUPPORTED,
                       "%s: layer '%s': backend '%s' has no kernel for a %d x %d x %d convolution", c->name,
                       conv->name, plan->backend->name, oq_conv2d_taps_t(s), s->kh, s->kw);
    c->bytes += padded(conv->kernel->packed_bytes(s)) + (conv->has_bias ? padded((size_t)s->c_out * 4) : 0);
    const size_t temporary = (size_t)(s->c_out * s->c_in * oq_conv2d_taps_t(s) * s->kh * s->kw) * 4;
    if (temporary > c->load_bytes) c->load_bytes = temporary;
    return OQ_OK;
}

static oq_status choose_attention(oq_plan *plan, const oq_plan_component *c, oq_attention *a)
{
    a->kernel = plan->backend->find_attention(plan->device, &a->spec);
    if (a->kernel) return OQ_OK;
    return oq_fail(plan->env, OQ_E_UNSUPPORTED,
                   "%s: layer '%s': backend '%s' has no attention kernel for heads of %lld", c->name, a->name,
                   plan->backend->name, (long long)a->spec.head_dim);
}

static oq_status choose_item(oq_plan *plan, oq_plan_component *c, const oq_item *item)
{
    switch (item->kind) {
    case OQ_ITEM_CONV2D:
        return choose_conv2d(plan, c, item->u.conv2d);
    case OQ_ITEM_ATTENTION:
        return choose_attention(plan, c, item->u.attention);
    case OQ_ITEM_VECTOR:
        c->bytes += padded((size_t)item->u.vector->n * 4);
        return OQ_OK;
    case OQ_ITEM_TABLE: {
        oq_table *t = item->u.table;
        t->tensor = oq_tensor_make(NULL, c->compute, t->rows, t->cols);
        const oq_ckpt_tensor *file = oq_plan_find_values(c, t->name, "").tensor;
        if (file && file->dtype == &oq_dtype_bf16) t->tensor.dtype = &oq_dtype_bf16;
        c->bytes += padded(oq_tensor_bytes(t->tensor));
        return OQ_OK;
    }
    case OQ_ITEM_LINEAR:
        break;
    }
    return OQ_OK;
}

oq_status oq_plan_choose(oq_plan *plan, oq_plan_component *c)
{
    for (size_t i = 0; i < c->builder.n_items; i++) c->n_layers += c->builder.items[i].kind == OQ_ITEM_LINEAR;
    OQ_TRY(oq_arena_new(&plan->arena, c->n_layers, sizeof *c->layers, "plan", &c->layers));
    size_t i_layer = 0;
    for (size_t i = 0; i < c->builder.n_items; i++) {
        const oq_item *item = &c->builder.items[i];
        if (item->kind == OQ_ITEM_LINEAR) {
            c->layers[i_layer].linear = item->u.linear;
            OQ_TRY(choose_linear(plan, c, &c->layers[i_layer++], item->unused));
        } else if (!item->unused) {
            OQ_TRY(choose_item(plan, c, item));
        }
    }
    return OQ_OK;
}
