/* quantize_layers.c -- from planned products to layers as they stand in files: parts that the file holds as one are one
 * layer there, a layout is found that holds them all, and every other tensor is copied. */
#include "engine/quantize.h"

#include "base/names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sources ------------------------------------------------------------------------------------------- */

static const oq_inspect_layer *find_source(const oq_inspect_part *part, const char *name)
{
    for (size_t i = 0; i < part->n_layers; i++)
        if (strcmp(part->layers[i].name, name) == 0) return &part->layers[i];
    return NULL;
}

static const oq_ckpt_tensor *find_weight(const oq_quantize *q, const oq_inspect_part *part, const char *name)
{
    char *full = oq_arena_printf((oq_arena *)&q->source.arena, "%s.weight", name);
    return full ? oq_ckpt_find(part->ckpt, full) : NULL;
}

/* ---- layers of the file -------------------------------------------------------------------------------- */

static oq_write_layer *known_layer(oq_quantize_part *p, const char *name)
{
    for (size_t i = p->n_layers; i-- > 0;)
        if (strcmp(p->layers[i].name, name) == 0) return &p->layers[i];
    return NULL;
}

static bool known_plain(const oq_quantize_part *p, const char *name)
{
    for (size_t i = p->n_plain; i-- > 0;)
        if (strcmp(p->plain[i], name) == 0) return true;
    return false;
}

/* Parts of one layer of the file must become the same. */
static oq_status add_layer(oq_quantize *q, oq_quantize_part *p, const oq_plan_layer *planned, int part)
{
    const oq_place place = oq_plan_place(p->planned, planned->linear->parts[part].name);
    const bool quantized = planned->choice.quantized;
    oq_write_layer *layer = known_layer(p, place.name);
    oq_scheme scheme = planned->choice.scheme;
    if (quantized) oq_quantize_refine(q, &scheme);
    const bool clash = layer ? !quantized || !oq_scheme_equal(&layer->scheme, &scheme)
                             : quantized && known_plain(p, place.name);
    if (clash)
        return oq_fail(
            q->env, OQ_E_MISMATCH,
            "%s: '%s' is one tensor in the file, but its part '%s' shall become something else than the "
            "part before",
            p->name, place.name, planned->linear->parts[part].name);
    if (layer) return OQ_OK;
    if (!quantized) {
        if (!known_plain(p, place.name)) p->plain[p->n_plain++] = place.name;
        return OQ_OK;
    }
    p->layers[p->n_layers++] =
        (oq_write_layer){.name = place.name,
                         .n = place.whole ? place.whole : planned->linear->parts[part].n,
                         .k = planned->linear->spec.k,
                         .scheme = scheme,
                         .input_scale = oq_act_is_static(scheme.act_scale) ? 1.0f : 0.0f};
    return OQ_OK;
}

/* Of a layer that the pipeline never runs: a file may go without it, as ComfyUI's pruned text encoders do. */
static bool is_left_out(const oq_quantize *q, const oq_quantize_part *p, const oq_plan_layer *planned)
{
    for (int part = 0; part < planned->linear->n_parts; part++) {
        const char *name = oq_plan_place(p->planned, planned->linear->parts[part].name).name;
        if (find_source(p->part, name) || find_weight(q, p->part, name)) return false;
    }
    return true;
}

static oq_status list_layers(oq_quantize *q, oq_quantize_part *p)
{
    const size_t used = p->planned->n_layers, all = used + p->planned->unused.n_layers;
    size_t n = 0;
    for (size_t i = 0; i < all; i++) n += (size_t)p->planned->layers[i].linear->n_parts;
    OQ_TRY(oq_arena_new(&q->source.arena, n + 1, sizeof *p->layers, "layers", &p->layers));
    OQ_TRY(oq_arena_new(&q->source.arena, n + 1, sizeof *p->plain, "layers", &p->plain));
    for (size_t i = 0; i < all; i++) {
        const oq_plan_layer *planned = &p->planned->layers[i];
        if (i >= used && is_left_out(q, p, planned)) continue;
        for (int part = 0; part < planned->linear->n_parts; part++) OQ_TRY(add_layer(q, p, planned, part));
    }
    return OQ_OK;
}

/* ---- layout -------------------------------------------------------------------------------------------- */

/* The first layer that the layout does not hold; NULL: all fit. */
static const oq_write_layer *misfit(const oq_layout *layout, const oq_quantize_part *p)
{
    oq_spelled spelled[OQ_LAYOUT_MAX];
    for (size_t i = 0; i < p->n_layers; i++)
        if (oq_layout_spell(layout, &p->layers[i], spelled) == 0) return &p->layers[i];
    return NULL;
}

static oq_status fail_misfit(const oq_quantize *q, const oq_quantize_part *p, const oq_layout *layout,
                             const oq_write_layer *l)
{
    char scheme[128], fits[256] = "";
    size_t at = 0;
    oq_spelled spelled[OQ_LAYOUT_MAX];
    oq_scheme_describe(&l->scheme, scheme, sizeof scheme);
    for (size_t i = 0; oq_layout_list[i] && at < sizeof fits; i++)
        if (oq_layout_spell(oq_layout_list[i], l, spelled))
            at += (size_t)snprintf(fits + at, sizeof fits - at, "%s%s", at ? ", " : "",
                                   oq_layout_list[i]->name);
    return oq_fail(q->env, OQ_E_MISMATCH,
                   "%s: layout '%s' does not hold layer '%s' of [%lld, %lld] as %s; it holds %s%s%s", p->name,
                   layout->name, l->name, (long long)l->n, (long long)l->k, scheme, layout->help,
                   at ? "; this layer fits " : "", fits);
}

static oq_status unknown_layout(oq_env *env, const char *name)
{
    const char *names[64];
    char all[512] = "";
    size_t n = 0, at = 0;
    for (; oq_layout_list[n] && n < OQ_COUNT(names); n++) {
        names[n] = oq_layout_list[n]->name;
        if (at < sizeof all)
            at += (size_t)snprintf(all + at, sizeof all - at, "%s%s", n ? ", " : "", names[n]);
    }
    const int near = oq_name_nearest(name, names, n);
    if (near >= 0)
        return oq_fail(env, OQ_E_ARG, "layout '%s' is unknown; did you mean '%s'? there are %s", name,
                       names[near], all);
    return oq_fail(env, OQ_E_ARG, "layout '%s' is unknown; there are %s", name, all);
}

static void note_zeros(oq_quantize_part *p)
{
    bool zeros = false;
    for (size_t i = 0; i < p->n_layers; i++)
        zeros |= p->layers[i].scheme.weight->int_bits && !oq_write_symmetric(p->layers[i].scheme.weight);
    for (size_t i = 0; i < p->n_layers; i++) p->layers[i].zeros_beside = zeros;
}

static oq_status choose_layout(oq_quantize *q, oq_quantize_part *p)
{
    const char *name = oq_options_text(q->options, "layout", NULL);
    const oq_write_layer *bad = NULL;
    if (!name && q->container == &oq_container_gguf) name = "gguf";
    if (name && !(p->layout = oq_layout_find(name))) return unknown_layout(q->env, name);
    if (p->layout) {
        bad = misfit(p->layout, p);
        return bad ? fail_misfit(q, p, p->layout, bad) : OQ_OK;
    }
    for (size_t i = 0; oq_layout_list[i]; i++)
        if (!misfit(oq_layout_list[i], p)) {
            p->layout = oq_layout_list[i];
            return OQ_OK;
        }
    bad = misfit(oq_layout_list[0], p);
    return fail_misfit(q, p, oq_layout_list[0], bad);
}

/* ---- the list of what is written ----------------------------------------------------------------------- */

static bool *claims_of(oq_quantize *q, const oq_inspect_part *part)
{
    bool *claimed = NULL;
    if (oq_arena_new(&q->source.arena, part->ckpt->n_tensors + 1, sizeof *claimed, "claims", &claimed) !=
        OQ_OK)
        return NULL;
    for (size_t i = 0; i < part->n_layers; i++) {
        const oq_part_source *source = &part->layers[i].source;
        for (int plane = 0; plane < OQ_N_PLANES; plane++)
            if (source->plane[plane].tensor)
                claimed[source->plane[plane].tensor - part->ckpt->tensors] = true;
        for (int b = 0; b < OQ_MAX_BESIDE && source->beside[b]; b++)
            claimed[source->beside[b] - part->ckpt->tensors] = true;
    }
    return claimed;
}

/* The type of a format that is no more than one; NULL: another. */
static const oq_dtype *plain_type(const oq_format *f)
{
    for (const oq_dtype *const *d = oq_dtype_list; *d; d++)
        if (oq_format_plain(*d) == f) return *d;
    return NULL;
}

/* A product that the source has in pieces, cut by columns: they are not put together. */
static oq_status check_uncut(oq_quantize *q, const oq_quantize_part *p, const char *name)
{
    const oq_linear *l = NULL;
    const char *leaf = strrchr(name, '.');
    for (size_t i = 0; i < p->planned->n_layers && !l; i++)
        if (strcmp(p->planned->layers[i].linear->name, name) == 0) l = p->planned->layers[i].linear;
    for (int i = 0; l && i < l->n_columns; i++) {
        const char *piece = oq_plan_place(p->planned, l->columns[i].name).name;
        if (!find_source(p->part, piece) && !find_weight(q, p->part, piece)) continue;
        return oq_fail(
            q->env, OQ_E_UNSUPPORTED,
            "%s: the source has layer '%s' in pieces of its columns ('%s'), which are not put together: "
            "--ignored-layers %s leaves them plain",
            p->name, name, piece, leaf ? leaf + 1 : name);
    }
    return OQ_OK;
}

/* The source of one part of a layer: a quantized layer, or a plain tensor of [?, k] numbers. */
static oq_status find_part(oq_quantize *q, const oq_quantize_part *p, const oq_write_layer *l,
                           const char *name, const oq_inspect_layer **layer, const oq_ckpt_tensor **weight)
{
    *layer = find_source(p->part, name);
    *weight = *layer ? NULL : find_weight(q, p->part, name);
    const oq_ckpt_tensor *t = *weight;
    if (!*layer && !t) OQ_TRY(check_uncut(q, p, name));
    if (!*layer && (!t || !t->dtype || !t->dtype->floating || t->n_dims < 2 || t->elems != t->dim[0] * l->k))
        return oq_fail(
            q->env, OQ_E_FORMAT,
            "%s: layer '%s' needs a tensor '%s.weight' of %lld floating point numbers a row in the source",
            p->name, l->name, name, (long long)l->k);
    if (!*layer || (*layer)->k == l->k) return OQ_OK;
    return oq_fail(q->env, OQ_E_FORMAT, "%s: layer '%s' is [%lld, %lld], the network needs %lld columns",
                   p->name, name, (long long)(*layer)->n, (long long)(*layer)->k, (long long)l->k);
}

/* One layer of the output: the first of its parts makes the job, the others follow. */
static oq_status add_layer_job(oq_quantize *q, oq_quantize_part *p, size_t i, bool *claimed)
{
    const oq_write_layer *l = &p->layers[i];
    const oq_dtype *plain = plain_type(l->scheme.weight);
    int64_t rows = 0;
    for (int f = 0; f < p->spellings[i].n_from; f++) {
        const oq_inspect_layer *source = NULL;
        const oq_ckpt_tensor *weight = NULL;
        OQ_TRY(find_part(q, p, l, p->spellings[i].from[f], &source, &weight));
        rows += source ? source->n : weight->dim[0];
        if (weight) claimed[weight - p->part->ckpt->tensors] = true;
        if (f)
            OQ_TRY(oq_rewrite_also(&p->rewrite, source, weight));
        else if (!plain)
            OQ_TRY(oq_rewrite_encode(&p->rewrite, p->layout, l, source, weight));
        else if (source)
            OQ_TRY(oq_rewrite_decode(&p->rewrite, l->name, source, plain));
        else
            OQ_TRY(oq_rewrite_copy(&p->rewrite, oq_arena_printf(&q->source.arena, "%s.weight", l->name),
                                   weight, plain));
    }
    if (p->spellings[i].halves_swapped) oq_rewrite_swap_halves(&p->rewrite);
    if (rows == l->n) return OQ_OK;
    return oq_fail(q->env, OQ_E_FORMAT, "%s: layer '%s' has %lld rows in the source, the network needs %lld",
                   p->name, l->name, (long long)rows, (long long)l->n);
}

static oq_status add_encoded(oq_quantize *q, oq_quantize_part *p, bool *claimed)
{
    for (size_t i = 0; i < p->n_layers; i++) OQ_TRY(add_layer_job(q, p, i, claimed));
    return OQ_OK;
}

/* Biases that do not stand in the order of their layer's rows, or make up for a shift of x, are made anew. */
static oq_status add_biases(oq_quantize *q, oq_quantize_part *p, bool *claimed)
{
    const oq_inspect_part *part = p->part;
    for (size_t i = 0; i < part->n_layers; i++) {
        const oq_ckpt_tensor *bias = part->layers[i].source.bias.tensor;
        oq_scheme scheme;
        if (!bias) continue;
        claimed[bias - part->ckpt->tensors] = true;
        if (part->dialect->harmless && part->dialect->harmless(bias)) continue;
        if (p->respell)
            return oq_fail(
                q->env, OQ_E_UNSUPPORTED,
                "%s: tensor '%s' stands in another order than its layer's rows, so that it is not written by "
                "the original's names: leave --names away, or dequantize first",
                p->name, bias->name);
        oq_part_scheme(&part->layers[i].source, &scheme);
        OQ_TRY(
            oq_rewrite_bias(&p->rewrite, &part->layers[i], scheme.shift != 0 ? &oq_dtype_f32 : bias->dtype));
    }
    return OQ_OK;
}

static bool is_part_of_output(const oq_quantize_part *p, const char *name)
{
    for (size_t i = 0; i < p->n_layers; i++)
        for (int f = 0; f < p->spellings[i].n_from; f++)
            if (strcmp(p->spellings[i].from[f], name) == 0) return true;
    return false;
}

/* A tensor that no layer took, with those that the output holds behind it. */
static oq_status add_plain(oq_quantize *q, oq_quantize_part *p, const oq_ckpt_tensor *t, bool *claimed)
{
    const oq_ckpt *ckpt = p->part->ckpt;
    oq_spelling s;
    OQ_TRY(oq_quantize_spell(q, p, t->name, &s));
    for (int i = 0; i < s.n_from; i++) {
        const oq_ckpt_tensor *from = oq_ckpt_find(ckpt, s.from[i]);
        if (!from || claimed[from - ckpt->tensors])
            return oq_fail(q->env, OQ_E_FORMAT, "%s: '%s' needs '%s' beside '%s' in the source", p->name,
                           s.name, s.from[i], t->name);
        claimed[from - ckpt->tensors] = true;
        OQ_TRY(i ? oq_rewrite_also(&p->rewrite, NULL, from)
                 : oq_rewrite_copy(&p->rewrite, s.name, from, NULL));
    }
    if (s.halves_swapped) oq_rewrite_swap_halves(&p->rewrite);
    return OQ_OK;
}

/* Layers that are quantized in the source and shall not be any more, then everything else. */
static oq_status add_rest(oq_quantize *q, oq_quantize_part *p, bool *claimed)
{
    const oq_inspect_part *part = p->part;
    for (size_t i = 0; i < part->n_layers; i++) {
        const char *name = part->layers[i].name;
        if (is_part_of_output(p, name)) continue;
        oq_spelling s;
        OQ_TRY(oq_quantize_spell(q, p, name, &s));
        if (s.n_from > 1)
            return oq_fail(
                q->env, OQ_E_UNSUPPORTED,
                "%s: '%s' stays plain but is quantized in the source, and the original holds it with "
                "others as '%s': leave --names away, or dequantize first",
                p->name, name, s.name);
        OQ_TRY(oq_rewrite_decode(&p->rewrite, s.name, &part->layers[i], &oq_dtype_bf16));
        if (s.halves_swapped) oq_rewrite_swap_halves(&p->rewrite);
    }
    for (size_t i = 0; i < part->ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &part->ckpt->tensors[i];
        if (claimed[i] || (part->dialect && part->dialect->harmless && part->dialect->harmless(t))) continue;
        OQ_TRY(add_plain(q, p, t, claimed));
    }
    return OQ_OK;
}

static oq_status describe_part(oq_quantize *q, oq_quantize_part *p)
{
    const char **others = NULL;
    size_t n_others = 0;
    OQ_TRY(oq_arena_new(&q->source.arena, p->rewrite.n_jobs + 1, sizeof *others, "tensors", &others));
    for (size_t i = 0; i < p->rewrite.n_jobs; i++)
        if (!p->rewrite.jobs[i].to.scheme.weight) others[n_others++] = p->rewrite.jobs[i].out[0]->name;
    const oq_write_component c = {.env = q->env,
                                  .tensors = others,
                                  .n_tensors = n_others,
                                  .layers = p->layers,
                                  .n_layers = p->n_layers,
                                  .plain = p->plain,
                                  .n_plain = p->n_plain,
                                  .architecture = p->module->gguf ? p->module->gguf : "diffusion"};
    if (!p->layout) return OQ_OK;
    p->metadata = oq_json_new_object();
    if (p->layout->config) p->quant = p->layout->config(&c);
    if (p->layout->metadata) p->layout->metadata(&c, p->metadata);
    char *text = NULL;
    if (p->quant) OQ_TRY(oq_json_dump(q->env, p->quant, OQ_JSON_COMPACT, &text));
    const bool ok =
        p->metadata && (!text || oq_json_set(p->metadata, "quantization_config", oq_json_new_string(text)));
    oq_free(q->env, text);
    return ok ? OQ_OK : oq_fail(q->env, OQ_E_NOMEM, "%s: no memory for its metadata", p->name);
}

/* Weights as the layout's reader takes them. */
static void adopt_formats(oq_quantize_part *p)
{
    for (size_t i = 0; p->layout && p->layout->own && i < p->n_layers; i++) {
        const oq_format *own = p->layout->own(p->layers[i].scheme.weight);
        if (own) p->layers[i].scheme.weight = own;
    }
}

/* The kind of file that the layout needs; the output's name must not promise another. */
static oq_status choose_container(const oq_quantize *q, const oq_quantize_part *p,
                                  const oq_write_container **out)
{
    *out = p->layout && p->layout->container ? p->layout->container : &oq_container_safetensors;
    if (!q->container || q->container == *out) return OQ_OK;
    return oq_fail(q->env, OQ_E_ARG, "%s: layout '%s' is written into a %s file, whose name ends in '%s'",
                   oq_options_text(q->options, "output", ""), p->layout ? p->layout->name : "(plain)",
                   (*out)->name, (*out)->ending);
}

static oq_status list_part(oq_quantize *q, oq_quantize_part *p, const char *single_name)
{
    const oq_write_container *container = NULL;
    OQ_TRY(list_layers(q, p));
    OQ_TRY(oq_quantize_choose_names(q, p));
    OQ_TRY(oq_quantize_spell_all(q, p));
    note_zeros(p);
    if (p->n_layers) OQ_TRY(choose_layout(q, p));
    adopt_formats(p);
    OQ_TRY(choose_container(q, p, &container));
    OQ_TRY(oq_rewrite_begin(q->env, &q->source.arena, p->part, container, single_name, &p->rewrite));
    bool *claimed = claims_of(q, p->part);
    if (!claimed) return oq_fail(q->env, OQ_E_NOMEM, "%s: no memory", p->name);
    OQ_TRY(add_encoded(q, p, claimed));
    OQ_TRY(add_biases(q, p, claimed));
    OQ_TRY(add_rest(q, p, claimed));
    return describe_part(q, p);
}

oq_status oq_quantize_layers(oq_quantize *q)
{
    const char *output = oq_options_text(q->options, "output", "");
    q->container = oq_write_container_of(output);
    for (size_t i = 0; i < q->n_parts; i++)
        OQ_TRY(list_part(q, &q->parts[i], q->container ? oq_path_leaf(output) : NULL));
    size_t quantized = 0, plain = 0;
    for (size_t i = 0; i < q->n_parts; i++) quantized += q->parts[i].n_layers, plain += q->parts[i].n_plain;
    if (quantized) return OQ_OK;
    return oq_fail(q->env, OQ_E_CONFIG,
                   "%s: nothing would be quantized: its %zu linear layers all stay plain (%s)",
                   q->source.path, plain, q->parts[0].name);
}
