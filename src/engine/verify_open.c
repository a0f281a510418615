/* verify_open.c -- which plain weights belong to which quantized layer: of a planned model by its own names, of an inspected
 * file by the file's, or by the network's rules where the file holds several layers as one. */
#include "engine/verify.h"

#include "base/names.h"
#include "engine/recognize.h"

#include <stdio.h>
#include <string.h>

enum { MAX_NAME = 1024 };

/* ---- the base -------------------------------------------------------------------------------------------- */

static oq_status open_base(oq_env *env, const char *path, size_t n, oq_verify *v)
{
    *v = (oq_verify){.env = env, .path = path};
    oq_arena_init(&v->arena, env);
    if (!oq_file_exists(path)) {
        OQ_TRY(oq_folder_open(env, path, &v->folder));
    } else if (oq_file_is_dir(path)) {
        char *index = oq_path_join(env, path, "model_index.json");
        const bool model = index && oq_file_exists(index);
        oq_free(env, index);
        if (model) OQ_TRY(oq_folder_open(env, path, &v->folder));
    }
    return oq_arena_new(&v->arena, n + 1, sizeof *v->ckpts, "base", &v->ckpts);
}

/* Weights of the base for this network; *out NULL: the base is one component, and another one. */
static oq_status base_of(oq_verify *v, const char *component, const oq_module_type *module, oq_ckpt **out)
{
    oq_env *env = v->env;
    const oq_folder_component *c = v->folder && component ? oq_folder_find(v->folder, component) : NULL;
    oq_ckpt **slot = &v->ckpts[v->n_ckpts];
    *out = NULL;
    if (v->folder && !c)
        return oq_fail(env, OQ_E_NOTFOUND, "--verify-against '%s': the model has no component '%s'", v->path,
                       component ? component : "(unnamed)");
    OQ_TRY(c                         ? oq_ckpt_open_folder(env, c->path, NULL, slot)
           : oq_file_is_dir(v->path) ? oq_ckpt_open_folder(env, v->path, NULL, slot)
                                     : oq_ckpt_open(env, v->path, slot));
    v->n_ckpts++;
    if (!c && module && oq_recognize(*slot, module).module != module) return OQ_OK;
    if (module) OQ_TRY(oq_recognize_as(env, *slot, module, "--verify-against"));
    *out = *slot;
    return OQ_OK;
}

void oq_verify_deinit(oq_verify *v)
{
    for (size_t i = 0; v->ckpts && i < v->n_ckpts; i++) oq_ckpt_close(v->ckpts[i]);
    oq_folder_close(v->folder);
    oq_free(v->env, v->layers);
    if (v->arena.env) oq_arena_deinit(&v->arena);
    *v = (oq_verify){.env = v->env};
}

/* ---- layers ---------------------------------------------------------------------------------------------- */

static oq_status add_layer(oq_verify *v, const oq_verify_layer *l)
{
    if (v->n_layers == v->cap_layers) {
        const size_t capacity = v->cap_layers ? 2 * v->cap_layers : 256;
        oq_verify_layer *more = NULL;
        OQ_TRY(oq_new(v->env, capacity, sizeof *more, "layers", &more));
        if (v->n_layers) memcpy(more, v->layers, v->n_layers * sizeof *more);
        oq_free(v->env, v->layers);
        v->layers = more;
        v->cap_layers = capacity;
    }
    v->layers[v->n_layers++] = *l;
    return OQ_OK;
}

static oq_status check_base(const oq_verify *v, const oq_verify_layer *l, const oq_verify_base *b)
{
    const oq_ckpt_tensor *t = b->tensor;
    const int64_t columns = b->columns ? b->columns : l->k;
    if (t && t->dtype && t->dtype->floating && t->dtype->bytes > 1 && t->data && b->rows > 0 &&
        t->elems >= (b->first + b->rows) * columns && t->elems % columns == 0)
        return OQ_OK;
    return oq_fail(v->env, OQ_E_MISMATCH,
                   "--verify-against '%s': has no plain weights of [%lld, %lld] for layer '%s' of the %s",
                   v->path, (long long)l->n, (long long)l->k, l->name, l->component ? l->component : "file");
}

/* ---- a planned model ------------------------------------------------------------------------------------- */

/* Columns of a layer that the file at hand has in pieces; the base has it whole. */
static oq_plan_values values_of_piece(const oq_plan_component *base, const oq_linear *l, oq_verify_base *b)
{
    const oq_linear *whole = l->whole;
    for (const oq_linear *before = whole->apart; before < l; before++) b->column += before->spec.k;
    b->columns = whole->spec.k;
    return oq_plan_find_values(base, whole->name, ".weight");
}

static oq_status add_planned(oq_verify *v, const oq_plan_component *base, const oq_plan_layer *planned)
{
    for (int i = 0; i < planned->linear->n_parts; i++) {
        const oq_part *part = &planned->linear->parts[i];
        oq_plan_values values = oq_plan_find_values(base, part->name, ".weight");
        oq_verify_layer l = {.component = base->name,
                             .name = part->name,
                             .n = part->n,
                             .k = planned->linear->spec.k,
                             .source = planned->choice.part[i],
                             .n_base = 1};
        if (!values.tensor && planned->linear->whole && planned->linear->whole->apart_columns)
            values = values_of_piece(base, planned->linear, &l.base[0]);
        l.base[0].tensor = values.tensor;
        l.base[0].first = values.whole ? values.first : 0;
        l.base[0].rows = part->n;
        l.base[0].halves_swapped = values.halves_swapped;
        OQ_TRY(check_base(v, &l, &l.base[0]));
        OQ_TRY(add_layer(v, &l));
    }
    return OQ_OK;
}

static bool has_stored(const oq_plan_component *c)
{
    for (size_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].choice.serialized && c->layers[i].choice.part) return true;
    return false;
}

oq_status oq_verify_model(oq_env *env, const oq_model *model, const char *path, oq_verify *v)
{
    OQ_TRY(open_base(env, path, model->plan->n_components, v));
    for (size_t i = 0; i < model->plan->n_components; i++) {
        const oq_plan_component *c = &model->plan->components[i];
        oq_ckpt *ckpt = NULL;
        if (!has_stored(c)) continue;
        OQ_TRY(base_of(v, c->name, c->module, &ckpt));
        if (!ckpt) continue;
        oq_plan_component base = *c;
        base.ckpt = ckpt;
        for (size_t j = 0; j < c->n_layers; j++)
            if (c->layers[j].choice.serialized && c->layers[j].choice.part)
                OQ_TRY(add_planned(v, &base, &c->layers[j]));
    }
    if (v->n_layers) return OQ_OK;
    return oq_fail(
        env, OQ_E_ARG,
        "--verify-against '%s': the model's files hold no quantized layer of that; layers that are "
        "quantized while loading need no check",
        path);
}

/* ---- an inspected file ----------------------------------------------------------------------------------- */

static oq_status add_base(oq_verify *v, const oq_ckpt *ckpt, const char *name, oq_verify_layer *l)
{
    char full[MAX_NAME];
    const int n = snprintf(full, sizeof full, "%s.weight", name);
    if (l->n_base == OQ_VERIFY_PARTS || n < 0 || (size_t)n >= sizeof full)
        return check_base(v, l, &(oq_verify_base){0});
    oq_verify_base *b = &l->base[l->n_base++];
    b->tensor = oq_ckpt_find(ckpt, full);
    b->rows = b->tensor ? b->tensor->elems / l->k : 0;
    return check_base(v, l, b);
}

/* By the file's own name, or by what the network's rules say it is. */
static oq_status find_bases(oq_verify *v, const oq_ckpt *ckpt, const oq_module_type *module, const char *name,
                            oq_verify_layer *l)
{
    char word[MAX_NAME], other[MAX_NAME];
    if (oq_ckpt_any_below(ckpt, name)) return add_base(v, ckpt, name, l);
    for (const oq_name_rule *rule = module ? module->names : NULL; rule && rule->from; rule++) {
        if (!rule->to || !*rule->to || !oq_plan_respell(rule->from, name, "x", other, sizeof other)) continue;
        for (size_t i = 0; oq_csv_word(rule->to, i, word, sizeof word); i++)
            if (oq_plan_respell(rule->from, name, word, other, sizeof other))
                OQ_TRY(add_base(v, ckpt, other, l));
        for (int i = 0; i < l->n_base; i++) l->base[i].halves_swapped = rule->halves_swapped;
        return OQ_OK;
    }
    return add_base(v, ckpt, name, l);
}

static oq_status add_inspected(oq_verify *v, const oq_inspect_part *part, const oq_ckpt *ckpt,
                               const oq_module_type *module, const char *prefix)
{
    const size_t skip = strlen(prefix);
    for (size_t i = 0; i < part->n_layers; i++) {
        const oq_inspect_layer *from = &part->layers[i];
        const char *name = strncmp(from->name, prefix, skip) == 0 ? from->name + skip : from->name;
        int64_t rows = 0;
        oq_verify_layer l = {
            .component = part->name, .name = from->name, .n = from->n, .k = from->k, .source = from->source};
        OQ_TRY(find_bases(v, ckpt, module, name, &l));
        for (int b = 0; b < l.n_base; b++) rows += l.base[b].rows;
        if (rows != l.n) OQ_TRY(check_base(v, &l, &(oq_verify_base){0}));
        OQ_TRY(add_layer(v, &l));
    }
    return OQ_OK;
}

oq_status oq_verify_inspected(oq_inspect *inspect, const char *path, oq_verify *v)
{
    OQ_TRY(open_base(inspect->env, path, inspect->n_parts, v));
    for (size_t i = 0; i < inspect->n_parts; i++) {
        const oq_inspect_part *part = &inspect->parts[i];
        oq_ckpt *ckpt = NULL;
        if (!part->n_layers) continue;
        const oq_recognized found =
            oq_recognize(part->ckpt, part->class_name ? oq_module_find(part->class_name) : NULL);
        const char *component = part->name     ? part->name
                                : found.module ? oq_usual_component(found.module)
                                               : NULL;
        OQ_TRY(base_of(v, component, found.module, &ckpt));
        if (ckpt) OQ_TRY(add_inspected(v, part, ckpt, found.module, found.prefix));
    }
    if (v->n_layers) return OQ_OK;
    return oq_fail(inspect->env, OQ_E_ARG, "--verify-against '%s': %s holds no quantized layer of that", path,
                   inspect->path);
}
