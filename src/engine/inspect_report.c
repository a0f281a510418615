/* inspect_report.c -- the whole finding as one JSON object (its keys are a contract) and as tables for
 * people. */
#include "engine/inspect.h"

#include <string.h>

static const char *const plane_names[OQ_N_PLANES] = {"data", "scale", "global", "zero", "input_scale"};

/* ---- JSON ---------------------------------------------------------------------------------------------- */

static oq_json *shape_json(const int64_t *dim, int n)
{
    oq_json *shape = oq_json_new_array();
    for (int i = 0; i < n; i++) oq_json_append(shape, oq_json_new_int(dim[i]));
    return shape;
}

static void put_component(oq_json *row, const oq_inspect_part *part)
{
    if (part->name) oq_json_set(row, "component", oq_json_new_string(part->name));
}

static void put_tensors(const oq_inspect_part *part, oq_json *out)
{
    for (size_t i = 0; part->ckpt && i < part->ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &part->ckpt->tensors[i];
        oq_json *row = oq_json_new_object();
        put_component(row, part);
        oq_json_set(row, "name", oq_json_new_string(t->name));
        oq_json_set(row, "dtype", oq_json_new_string(t->type_name));
        oq_json_set(row, "shape", shape_json(t->dim, t->n_dims));
        oq_json_set(row, "bytes", oq_json_new_int((int64_t)t->bytes));
        oq_json_append(out, row);
    }
}

static oq_json *planes_json(const oq_inspect_layer *layer)
{
    oq_json *planes = oq_json_new_object();
    for (int i = 0; i < OQ_N_PLANES; i++) {
        const oq_ckpt_tensor *t = layer->source.plane[i].tensor;
        if (!t) continue;
        oq_json *row = oq_json_new_object();
        oq_json_set(row, "tensor", oq_json_new_string(t->name));
        oq_json_set(row, "dtype", oq_json_new_string(t->type_name));
        oq_json_set(row, "shape", shape_json(t->dim, t->n_dims));
        oq_json_set(planes, plane_names[i], row);
    }
    return planes;
}

static void put_layers(const oq_inspect_part *part, oq_json *out)
{
    for (size_t i = 0; i < part->n_layers; i++) {
        const oq_inspect_layer *layer = &part->layers[i];
        const oq_part_source *source = &layer->source;
        oq_json *row = oq_json_new_object();
        put_component(row, part);
        oq_json_set(row, "name", oq_json_new_string(layer->name));
        oq_json_set(row, "format", oq_json_new_string(source->format->name));
        oq_json_set(row, "shape", shape_json((const int64_t[]){layer->n, layer->k}, 2));
        oq_json_set(row, "act", oq_json_new_string(source->act ? source->act->label : NULL));
        oq_json_set(row, "act_scale", oq_json_new_string(oq_act_scale_name(source->act_scale)));
        if (source->act_min_rows) oq_json_set(row, "act_min_rows", oq_json_new_int(source->act_min_rows));
        oq_json_set(row, "planes", planes_json(layer));
        oq_json_append(out, row);
    }
}

static bool is_quantized(const oq_inspect_part *part)
{
    return part->declared || part->n_unclaimed || (part->component && part->component->quant);
}

/* The name that all quantized parts share; NULL: none, or not one. */
static const char *common_name(const oq_inspect_part *parts, size_t n, bool dialect)
{
    const char *common = NULL;
    for (size_t i = 0; i < n; i++) {
        const oq_inspect_part *p = &parts[i];
        if (!is_quantized(p)) continue;
        const char *name = dialect       ? (p->dialect ? p->dialect->name : NULL)
                           : p->declared ? p->declared->method->name
                                         : NULL;
        if (!name || (common && strcmp(common, name) != 0)) return NULL;
        common = name;
    }
    return common;
}

static void put_unclaimed(const oq_inspect_part *part, oq_json *out)
{
    for (size_t i = 0; i < part->n_unclaimed; i++)
        oq_json_append(out, oq_json_new_string(part->unclaimed[i]));
}

/* What n parts together have of quantization; null in JSON when all are plain. */
static oq_json *quantization_json(const oq_inspect_part *parts, size_t n)
{
    oq_json *layers = oq_json_new_array(), *unclaimed = oq_json_new_array(), *out = oq_json_new_object();
    size_t n_quantized = 0;
    for (size_t i = 0; i < n; i++) {
        n_quantized += is_quantized(&parts[i]);
        put_layers(&parts[i], layers);
        put_unclaimed(&parts[i], unclaimed);
    }
    oq_json_set(out, "dialect", oq_json_new_string(common_name(parts, n, true)));
    oq_json_set(out, "method", oq_json_new_string(common_name(parts, n, false)));
    oq_json_set(out, "layers", layers);
    oq_json_set(out, "unclaimed", unclaimed);
    if (n_quantized) return out;
    oq_json_free(out);
    return oq_json_new_null();
}

/* The component's own words about its quantization, and the file that they stand in. */
static void put_declaration(const oq_inspect_part *part, oq_json *out)
{
    const oq_json *quant = part->component ? part->component->quant : NULL;
    if (!quant) return;
    oq_json_set(out, "declared", oq_json_copy(quant));
    oq_json_set(out, "declared_in", oq_json_new_string(part->component->quant_source));
}

static oq_json *files_json(const oq_ckpt *ckpt)
{
    oq_json *files = oq_json_new_array();
    for (int i = 0; ckpt && i < ckpt->n_files; i++) {
        oq_json *row = oq_json_new_object();
        oq_json_set(row, "path", oq_json_new_string(ckpt->files[i].path));
        oq_json_set(row, "bytes", oq_json_new_int((int64_t)ckpt->files[i].map.bytes));
        oq_json_set(row, "header_hash", oq_json_new_string(ckpt->files[i].header_hash));
        oq_json_append(files, row);
    }
    return files;
}

/* The first file's word counts where shards repeat a key. */
static oq_json *metadata_json(const oq_ckpt *ckpt)
{
    oq_json *out = oq_json_new_object();
    for (int i = 0; ckpt && i < ckpt->n_files; i++) {
        void *at = NULL;
        const char *key;
        const oq_json *value;
        while (oq_json_next(ckpt->files[i].metadata, &at, &key, &value))
            if (!oq_json_get(out, key)) oq_json_set(out, key, oq_json_copy(value));
    }
    return out;
}

static oq_json *component_json(const oq_inspect_part *part)
{
    oq_json *out = oq_json_new_object();
    oq_json_set(out, "library", oq_json_new_string(part->library));
    oq_json_set(out, "class", oq_json_new_string(part->class_name));
    oq_json_set(out, "path", oq_json_new_string(part->component->path));
    oq_json_set(out, "metadata", metadata_json(part->ckpt));
    oq_json_set(out, "files", files_json(part->ckpt));
    put_declaration(part, out);
    return out;
}

static oq_json *report_json(const oq_inspect *inspect)
{
    const oq_inspect_part *one = inspect->folder ? NULL : &inspect->parts[0];
    oq_json *out = oq_json_new_object(), *tensors = oq_json_new_array();
    for (size_t i = 0; i < inspect->n_parts; i++) put_tensors(&inspect->parts[i], tensors);
    if (inspect->verified) oq_json_set(out, "verify", oq_json_ref(inspect->verified));
    oq_json_set(out, "format", oq_json_new_string(inspect->format));
    oq_json_set(out, "path", oq_json_new_string(inspect->path));
    oq_json_set(out, "class", oq_json_new_string(one ? one->class_name : inspect->folder->class_name));
    oq_json_set(out, "metadata", metadata_json(one ? one->ckpt : NULL));
    if (one) {
        oq_json_set(out, "files", files_json(one->ckpt));
        put_declaration(one, out);
    } else {
        oq_json *components = oq_json_new_object();
        for (size_t i = 0; i < inspect->n_parts; i++)
            oq_json_set(components, inspect->parts[i].name, component_json(&inspect->parts[i]));
        oq_json_set(out, "components", components);
    }
    oq_json_set(out, "quantization", quantization_json(inspect->parts, inspect->n_parts));
    oq_json_set(out, "tensors", tensors);
    oq_json_set(out, "judged", oq_json_new_string(inspect->judged));
    oq_json_set(out, "problems", oq_json_ref(inspect->problems));
    return out;
}

/* ---- text ---------------------------------------------------------------------------------------------- */

enum { LABEL_WIDTH = 13, NAME_WIDTH_MAX = 72 };

static void put_label(oq_strbuf *text, const char *label)
{
    oq_strbuf_printf(text, "%-*s", LABEL_WIDTH, label);
}

static void put_shape(oq_strbuf *text, const oq_ckpt_tensor *t)
{
    oq_strbuf_putc(text, '[');
    for (int i = 0; i < t->n_dims; i++) oq_strbuf_printf(text, "%s%lld", i ? ", " : "", (long long)t->dim[i]);
    oq_strbuf_putc(text, ']');
}

static void put_container(oq_strbuf *text, const oq_ckpt *ckpt)
{
    put_label(text, "weights");
    oq_strbuf_printf(text, "%s, %d file%s, ", ckpt->container, ckpt->n_files, ckpt->n_files == 1 ? "" : "s");
    oq_strbuf_put_bytes(text, ckpt->bytes);
    oq_strbuf_printf(text, ", %zu tensor%s", ckpt->n_tensors, ckpt->n_tensors == 1 ? "" : "s");
    size_t left = ckpt->n_tensors;
    bool *counted = NULL; /* by type, in the order of the first tensor of each */
    if (!left || oq_new(text->env, left, sizeof *counted, "report", &counted) != OQ_OK) left = 0;
    for (size_t i = 0; left && i < ckpt->n_tensors; i++) {
        size_t same = 0;
        if (counted[i]) continue;
        for (size_t k = i; k < ckpt->n_tensors; k++)
            if (strcmp(ckpt->tensors[k].type_name, ckpt->tensors[i].type_name) == 0)
                counted[k] = true, same++;
        oq_strbuf_printf(text, "%s%zu %s", left == ckpt->n_tensors ? ": " : ", ", same,
                         ckpt->tensors[i].type_name);
        left -= same;
    }
    oq_free(text->env, counted);
    oq_strbuf_putc(text, '\n');
}

static void put_metadata(oq_strbuf *text, const oq_ckpt *ckpt)
{
    oq_json *metadata = metadata_json(ckpt);
    void *at = NULL;
    const char *key;
    const oq_json *value;
    bool first = true;
    while (oq_json_next(metadata, &at, &key, &value)) {
        char *dumped = NULL; /* a GGUF file's numbers and lists; safetensors has strings alone */
        const char *shown = oq_json_string(value);
        if (!shown && oq_json_dump(text->env, value, OQ_JSON_COMPACT, &dumped) == OQ_OK) shown = dumped;
        put_label(text, first ? "metadata" : "");
        oq_strbuf_printf(text, "%s = %.200s%s\n", key, shown ? shown : "",
                         shown && strlen(shown) > 200 ? "..." : "");
        oq_free(text->env, dumped);
        first = false;
    }
    oq_json_free(metadata);
}

static void put_quantization(oq_strbuf *text, const oq_inspect_part *part)
{
    put_label(text, "quantization");
    if (!is_quantized(part)) {
        oq_strbuf_puts(text, "none\n");
        return;
    }
    oq_strbuf_printf(text, "%s", part->declared ? part->declared->method->name : "unknown");
    if (part->dialect) oq_strbuf_printf(text, ", spelled as %s", part->dialect->name);
    if (part->component && part->component->quant)
        oq_strbuf_printf(text, ", declared in %s", part->component->quant_source);
    oq_strbuf_printf(text, ": %zu quantized layer%s\n", part->n_layers, part->n_layers == 1 ? "" : "s");
    for (size_t i = 0; i < part->n_layers; i++) {
        const oq_inspect_layer *layer = &part->layers[i];
        oq_strbuf_printf(text, "  %s  [%lld, %lld]  %s", layer->name, (long long)layer->n,
                         (long long)layer->k, layer->source.format->name);
        char from[32];
        oq_act_describe_from(from, sizeof from, layer->source.act_min_rows);
        if (layer->source.act)
            oq_strbuf_printf(text, ", activations %s %s%s", layer->source.act->label,
                             oq_act_scale_name(layer->source.act_scale), from);
        oq_strbuf_putc(text, '\n');
    }
    for (size_t i = 0; i < part->n_unclaimed; i++)
        oq_strbuf_printf(text, "  %s belongs to no layer\n", part->unclaimed[i]);
}

static void put_tensor_table(oq_strbuf *text, const oq_ckpt *ckpt)
{
    int width = 4;
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const size_t n = strlen(ckpt->tensors[i].name);
        if (n > (size_t)width) width = n > NAME_WIDTH_MAX ? NAME_WIDTH_MAX : (int)n;
    }
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        oq_strbuf_printf(text, "  %-*s  %-8s ", width, t->name, t->type_name);
        put_shape(text, t);
        oq_strbuf_putc(text, '\n');
    }
}

static void put_part(oq_strbuf *text, const oq_inspect_part *part)
{
    if (part->name) oq_strbuf_printf(text, "\n%s\n", part->name);
    if (part->class_name) {
        put_label(text, "class");
        oq_strbuf_printf(text, "%s%s%s%s\n", part->class_name, part->library ? " (" : "",
                         part->library ? part->library : "", part->library ? ")" : "");
    }
    if (!part->ckpt) return;
    put_container(text, part->ckpt);
    put_metadata(text, part->ckpt);
    put_quantization(text, part);
    put_tensor_table(text, part->ckpt);
}

static void put_judged(oq_strbuf *text, const oq_inspect *inspect)
{
    oq_strbuf_putc(text, '\n');
    put_label(text, "judged");
    oq_strbuf_puts(text, strcmp(inspect->judged, "tensors") == 0
                             ? "by its tensors alone; with --model DIR as generate would take it\n"
                             : "as generate would take it\n");
}

static void put_problems(oq_strbuf *text, const oq_json *problems)
{
    const size_t n = oq_json_size(problems);
    put_label(text, "problems");
    if (n)
        oq_strbuf_printf(text, "%zu\n", n);
    else
        oq_strbuf_puts(text, "none\n");
    for (size_t i = 0; i < n; i++) {
        const oq_json *row = oq_json_at(problems, i);
        const char *component = oq_json_string(oq_json_get(row, "component"));
        const char *tensor = oq_json_string(oq_json_get(row, "tensor"));
        oq_strbuf_printf(text, "  %s: ", oq_json_string(oq_json_get(row, "severity")));
        if (component) oq_strbuf_printf(text, "%s: ", component);
        if (tensor) oq_strbuf_printf(text, "%s: ", tensor);
        oq_strbuf_printf(text, "%s\n", oq_json_string(oq_json_get(row, "message")));
    }
}

oq_status oq_inspect_report(oq_inspect *inspect, oq_report **out)
{
    oq_strbuf text;
    oq_strbuf_init(&text, inspect->env);
    put_label(&text, inspect->folder ? "model" : "path");
    oq_strbuf_printf(&text, "%s\n", inspect->path);
    if (inspect->folder) {
        put_label(&text, "class");
        oq_strbuf_printf(&text, "%s\n", inspect->folder->class_name);
    }
    for (size_t i = 0; i < inspect->n_parts; i++) put_part(&text, &inspect->parts[i]);
    put_judged(&text, inspect);
    put_problems(&text, inspect->problems);
    if (inspect->verified_text) oq_strbuf_puts(&text, inspect->verified_text);
    return oq_report_finish(inspect->env, report_json(inspect), &text, !oq_inspect_refused(inspect), out);
}
