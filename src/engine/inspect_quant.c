/* inspect_quant.c -- what a checkpoint says about its own quantization, and which layers are quantized in
 * fact: every matrix is offered to the dialect under its own name, as no network is at hand to ask for it. */
#include "engine/inspect.h"
#include "engine/recognize.h"

#include <string.h>

static bool ends_with(const char *name, const char *suffix)
{
    const size_t n = strlen(name), m = strlen(suffix);
    return n > m && strcmp(name + n - m, suffix) == 0;
}

/* As the plan calls it, so that one fault is one sentence. */
static const char *name_of(const oq_inspect_part *part)
{
    const oq_module_type *module = part->class_name ? oq_module_find(part->class_name) : NULL;
    if (part->name) return part->name;
    return module ? oq_usual_component(module) : "weights";
}

/* The decision that the checkpoint makes when nobody wishes anything. */
static oq_status resolve_part(oq_inspect *inspect, oq_inspect_part *part)
{
    const oq_folder_component *c = part->component;
    const oq_resolve_input input = {
        .name = name_of(part),
        .class_name = part->class_name ? part->class_name : "",
        .quantizable = strcmp(name_of(part), "vae") != 0,
        .quant = c ? c->quant : NULL,
        .quant_source = c ? c->quant_source : NULL,
        .ckpt = part->ckpt,
    };
    OQ_TRY(oq_inspect_note(inspect, part, NULL, oq_resolve(inspect->env, NULL, &input, 1, &part->resolved)));
    if (!part->resolved) return OQ_OK;
    const oq_resolved_component *found = &part->resolved->components[0];
    for (size_t i = 0; i < part->resolved->n_warnings; i++)
        oq_inspect_problem(inspect, part, "warning", NULL, "%s", part->resolved->warnings[i]);
    if (!found->declared.method) return OQ_OK;
    part->declared = &found->declared;
    part->dialect = found->dialect;
    if (!part->dialect)
        oq_inspect_problem(inspect, part, oq_inspect_severity(inspect), NULL,
                           "the layers of method '%s' cannot be read by this build yet",
                           part->declared->method->name);
    return OQ_OK;
}

/* Codes whose layer has no shape: what stands beside them would lose its meaning. */
static void report_shapeless(oq_inspect *inspect, const oq_inspect_part *part, const oq_ckpt_tensor *codes)
{
    const char *from = part->dialect->shape_from;
    oq_inspect_problem(
        inspect, part, oq_inspect_severity(inspect), codes->name,
        "tensor '%s' holds codes of the spelling '%s', but the shape of their layer is not told by %s",
        codes->name, part->dialect->name, from ? from : "its dimensions");
}

static oq_status locate_layer(oq_inspect *inspect, oq_inspect_part *part, const oq_ckpt_tensor *weight)
{
    oq_env *env = inspect->env;
    oq_inspect_layer *layer = &part->layers[part->n_layers];
    size_t length = 0;
    bool found = false;
    if (!oq_dialect_layer_of(part->dialect, part->declared, part->ckpt, weight, &length, &layer->n,
                             &layer->k)) {
        if (length) report_shapeless(inspect, part, weight);
        return OQ_OK;
    }
    layer->name = oq_arena_strndup(&inspect->arena, weight->name, length);
    if (!layer->name)
        return oq_fail(env, OQ_E_NOMEM, "%s: no memory for the names of its layers", inspect->path);
    const oq_status st = oq_dialect_locate(env, part->dialect, part->declared, part->ckpt, layer->name,
                                           layer->n, layer->k, &layer->source, &found);
    OQ_TRY(oq_inspect_note(inspect, part, weight->name, st));
    if (st == OQ_OK && found) part->n_layers++;
    return OQ_OK;
}

static oq_status locate_layers(oq_inspect *inspect, oq_inspect_part *part)
{
    const size_t n = part->ckpt->n_tensors;
    OQ_TRY(oq_arena_new(&inspect->arena, n + 1, sizeof *part->layers, "layers", &part->layers));
    for (size_t i = 0; i < n; i++) OQ_TRY(locate_layer(inspect, part, &part->ckpt->tensors[i]));
    return OQ_OK;
}

/* Does the tensor only make sense beside quantized codes? By its type, or by its name; in a file that says it is quantized matrices of
 * bytes and words are codes too. */
static bool looks_quantized(const oq_inspect_part *part, const oq_ckpt_tensor *t)
{
    static const char *const suffixes[] = {
        ".weight_scale",
        ".weight_scale_inv",
        ".weight_scale_2",
        ".scale_weight",
        ".input_scale",
        ".scale_input",
        ".weight_zero_point",
        ".qweight",
        ".qzeros",
        ".scales",
        ".absmax",
        ".quant_map",
        ".comfy_quant",
        ".W_q",
        ".weight_packed",
        "._weight_scale",
        "._weight_scale_and_zero",
        ".weight._scale",
        ".weight._shift",
    };
    for (size_t i = 0; i < OQ_COUNT(suffixes); i++)
        if (ends_with(t->name, suffixes[i])) return true;
    if (part->declared && t->n_dims >= 2 && (t->dtype == &oq_dtype_u8 || t->dtype == &oq_dtype_i32))
        return true;
    return (!t->dtype && !t->format) || t->dtype == &oq_dtype_f8_e4m3 || t->dtype == &oq_dtype_f8_e5m2 ||
           t->dtype == &oq_dtype_i8;
}

static oq_status collect_unclaimed(oq_inspect *inspect, oq_inspect_part *part)
{
    const oq_ckpt *ckpt = part->ckpt;
    bool *claimed = NULL;
    OQ_TRY(oq_new(inspect->env, ckpt->n_tensors + 1, sizeof *claimed, "claims", &claimed));
    for (size_t i = 0; i < part->n_layers; i++) {
        const oq_part_source *source = &part->layers[i].source;
        for (int p = 0; p < OQ_N_PLANES; p++)
            if (source->plane[p].tensor) claimed[source->plane[p].tensor - ckpt->tensors] = true;
        for (int j = 0; j < OQ_MAX_BESIDE; j++)
            if (source->beside[j]) claimed[source->beside[j] - ckpt->tensors] = true;
    }
    const oq_status st = oq_arena_new(&inspect->arena, ckpt->n_tensors + 1, sizeof *part->unclaimed,
                                      "unclaimed tensors", &part->unclaimed);
    for (size_t i = 0; st == OQ_OK && i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        const bool harmless = part->dialect && part->dialect->harmless && part->dialect->harmless(t);
        if (!claimed[i] && !harmless && looks_quantized(part, t))
            part->unclaimed[part->n_unclaimed++] = t->name;
    }
    oq_free(inspect->env, claimed);
    return st;
}

oq_status oq_inspect_quant(oq_inspect *inspect, oq_inspect_part *part)
{
    if (!part->ckpt) return OQ_OK;
    OQ_TRY(resolve_part(inspect, part));
    if (part->dialect) OQ_TRY(locate_layers(inspect, part));
    OQ_TRY(collect_unclaimed(inspect, part));
    if (part->n_unclaimed && !part->declared && part->resolved)
        oq_inspect_problem(inspect, part, oq_inspect_severity(inspect), part->unclaimed[0],
                           "%zu tensor%s quantized, but in no spelling that this build reads",
                           part->n_unclaimed, part->n_unclaimed == 1 ? " looks" : "s look");
    return OQ_OK;
}
