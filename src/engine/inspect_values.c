/* inspect_values.c -- the first values of one tensor as they stand in the file, or of one quantized layer as
 * they are meant. */
#include "engine/inspect.h"

#include "base/names.h"
#include "base/size.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- one number ---------------------------------------------------------------------------------------- */

static oq_json *integer_value(const oq_dtype *dtype, const uint8_t *p)
{
    const bool is_signed =
        dtype == &oq_dtype_i64 || dtype == &oq_dtype_i32 || dtype == &oq_dtype_i16 || dtype == &oq_dtype_i8;
    uint64_t v = 0;
    memcpy(&v, p, dtype->bytes);
    const unsigned unused = 64 - 8 * (unsigned)dtype->bytes;
    if (is_signed) return oq_json_new_int((int64_t)(v << unused) >> unused);
    return v > INT64_MAX ? oq_json_new_real((double)v) : oq_json_new_int((int64_t)v);
}

/* Exact, except unsigned integers beyond 2^63. */
static oq_json *element_value(const oq_dtype *dtype, const uint8_t *p)
{
    if (!dtype->floating) return integer_value(dtype, p);
    if (dtype == &oq_dtype_f64) {
        double x;
        memcpy(&x, p, sizeof x);
        return oq_json_new_real(x);
    }
    float x;
    dtype->to_f32(&x, p, 1);
    return oq_json_new_real((double)x);
}

/* One number out of GGUF's blocks. */
static oq_json *block_value(const oq_ckpt_tensor *t, int64_t i)
{
    const oq_planes planes = {{t->data}};
    float x;
    t->format->decode_span(t->format, &x, &planes, 0, i, 1, 1, t->elems);
    return oq_json_new_real((double)x);
}

/* ---- finding by name ----------------------------------------------------------------------------------- */

/* In a whole model names carry their component: "transformer.layers.0.…". NULL: not this part's. */
static const char *name_inside(const oq_inspect_part *part, const char *name)
{
    if (!part->name) return name;
    return oq_dotted_prefix(part->name, name) && strlen(name) > strlen(part->name)
               ? name + strlen(part->name) + 1
               : NULL;
}

typedef struct found_tensor {
    const oq_inspect_part *part;
    const oq_ckpt_tensor *tensor;
} found_tensor;

static found_tensor find_tensor(const oq_inspect *inspect, const char *name)
{
    for (size_t i = 0; i < inspect->n_parts; i++) {
        const oq_inspect_part *part = &inspect->parts[i];
        const char *inside = part->ckpt ? name_inside(part, name) : NULL;
        const oq_ckpt_tensor *t = inside ? oq_ckpt_find(part->ckpt, inside) : NULL;
        if (t) return (found_tensor){part, t};
    }
    return (found_tensor){0};
}

/* Every name that could have been meant, for the message. */
static oq_status fail_name(const oq_inspect *inspect, const char *kind, const char *name, bool layers)
{
    oq_env *env = inspect->env;
    const char *best = NULL, *best_part = NULL;
    for (size_t i = 0; i < inspect->n_parts; i++) {
        const oq_inspect_part *part = &inspect->parts[i];
        const char *inside = part->ckpt ? name_inside(part, name) : NULL;
        const size_t n = !inside ? 0 : layers ? part->n_layers : part->ckpt->n_tensors;
        const char **names = NULL;
        if (!n) continue;
        OQ_TRY(oq_new(env, n, sizeof *names, "names", &names));
        for (size_t k = 0; k < n; k++) names[k] = layers ? part->layers[k].name : part->ckpt->tensors[k].name;
        const int near = oq_name_nearest(inside, names, n);
        if (near >= 0) best = names[near], best_part = part->name;
        oq_free(env, names);
    }
    if (best)
        return oq_fail(env, OQ_E_NOTFOUND, "%s: holds no %s '%s'; the nearest is '%s%s%s'", inspect->path,
                       kind, name, best_part ? best_part : "", best_part ? "." : "", best);
    return oq_fail(env, OQ_E_NOTFOUND, "%s: holds no %s '%s'", inspect->path, kind, name);
}

/* ---- the report ---------------------------------------------------------------------------------------- */

typedef struct listing {
    oq_json *values;
    const char *name, *dtype, *format; /* format NULL: a tensor */
    const int64_t *dim;
    int n_dims;
    int64_t elems;
} listing;

static void put_text(const listing *l, oq_strbuf *text)
{
    const size_t n = oq_json_size(l->values);
    oq_strbuf_printf(text, "%s  %s [", l->name, l->format ? l->format : l->dtype);
    for (int i = 0; i < l->n_dims; i++) oq_strbuf_printf(text, "%s%lld", i ? ", " : "", (long long)l->dim[i]);
    oq_strbuf_puts(text, "]\n");
    for (size_t i = 0; i < n; i++) {
        const oq_json *v = oq_json_at(l->values, i);
        oq_strbuf_puts(text, i % 8 ? " " : "  ");
        if (oq_json_type(v) == OQ_JSON_INT)
            oq_strbuf_printf(text, "%12lld", (long long)oq_json_int(v, 0));
        else
            oq_strbuf_printf(text, "%12.6g", oq_json_real(v, 0));
        if (i % 8 == 7 || i + 1 == n) oq_strbuf_putc(text, '\n');
    }
    if ((int64_t)n < l->elems)
        oq_strbuf_printf(text, "  ... %lld more (--limit)\n", (long long)(l->elems - (int64_t)n));
}

/* Takes the values. */
static oq_status finish(oq_env *env, const listing *l, oq_report **out)
{
    oq_json *json = oq_json_new_object(), *shape = oq_json_new_array();
    oq_strbuf text;
    oq_strbuf_init(&text, env);
    for (int i = 0; i < l->n_dims; i++) oq_json_append(shape, oq_json_new_int(l->dim[i]));
    oq_json_set(json, "name", oq_json_new_string(l->name));
    oq_json_set(json, "dtype", oq_json_new_string(l->dtype));
    if (l->format) oq_json_set(json, "format", oq_json_new_string(l->format));
    oq_json_set(json, "shape", shape);
    put_text(l, &text);
    oq_json_set(json, "values", l->values);
    return oq_report_finish(env, json, &text, true, out);
}

oq_status oq_inspect_tensor(const oq_inspect *inspect, const char *name, int64_t limit, oq_report **out)
{
    const oq_ckpt_tensor *t = find_tensor(inspect, name).tensor;
    if (!t) return fail_name(inspect, "tensor", name, false);
    if (!t->dtype && !t->format)
        return oq_fail(inspect->env, OQ_E_UNSUPPORTED,
                       "tensor '%s' is %s, whose values are not read by this build yet", name, t->type_name);
    listing l = {.values = oq_json_new_array(),
                 .name = name,
                 .dtype = t->type_name,
                 .dim = t->dim,
                 .n_dims = t->n_dims,
                 .elems = t->elems};
    for (int64_t i = 0; i < oq_min_i64(limit, t->elems); i++)
        oq_json_append(l.values, t->dtype ? element_value(t->dtype, t->data + (size_t)i * t->dtype->bytes)
                                          : block_value(t, i));
    return finish(inspect->env, &l, out);
}

/* ---- a quantized layer --------------------------------------------------------------------------------- */

typedef struct planes_buffer {
    oq_planes planes;
    void *owned
        [OQ_N_PLANES]; /* planes in another layout, and small ones whose alignment the file does not promise */
} planes_buffer;

static void free_planes(oq_env *env, planes_buffer *p)
{
    for (int i = 0; i < OQ_N_PLANES; i++) oq_free(env, p->owned[i]);
}

static oq_status make_plane(oq_env *env, const oq_inspect_layer *layer, oq_plane plane, planes_buffer *out)
{
    const oq_format *f = layer->source.format;
    const oq_plane_source *source = &layer->source.plane[plane];
    const size_t bytes = f->plane_bytes(f, plane, layer->n, layer->k);
    out->planes.plane[plane] = source->tensor->data;
    const bool as_is = !source->fix && !source->make;
    if (as_is && source->tensor->bytes != bytes)
        return oq_fail(env, OQ_E_FORMAT, "tensor '%s' has %zu bytes, layer '%s' needs %zu",
                       source->tensor->name, source->tensor->bytes, layer->name, bytes);
    if (as_is && plane == OQ_PLANE_DATA) return OQ_OK;
    OQ_TRY(oq_new(env, bytes, 1, source->tensor->name, &out->owned[plane]));
    out->planes.plane[plane] = out->owned[plane];
    oq_plane_read(source, out->owned[plane], bytes, layer->n, layer->k);
    return OQ_OK;
}

static oq_status make_planes(oq_env *env, const oq_inspect_layer *layer, planes_buffer *out)
{
    *out = (planes_buffer){0};
    for (int i = 0; i < OQ_N_PLANES; i++)
        if (layer->source.format->planes & 1u << i && layer->source.plane[i].tensor)
            OQ_TRY(make_plane(env, layer, (oq_plane)i, out));
    return OQ_OK;
}

static oq_status decode_layer(oq_env *env, const oq_inspect_layer *layer, int64_t limit, oq_json *values)
{
    const oq_format *f = layer->source.format;
    planes_buffer planes;
    float *row = NULL;
    oq_status st = make_planes(env, layer, &planes);
    if (st == OQ_OK) st = oq_new(env, (size_t)layer->k + 1, sizeof *row, layer->name, &row);
    for (int64_t r = 0; st == OQ_OK && r < layer->n && r * layer->k < limit; r++) {
        f->decode_row(f, row, &planes.planes, r, layer->n, layer->k);
        for (int64_t c = 0; c < layer->k && r * layer->k + c < limit; c++)
            oq_json_append(values, oq_json_new_real((double)row[c]));
    }
    oq_free(env, row);
    free_planes(env, &planes);
    return st;
}

static const oq_inspect_layer *find_layer(const oq_inspect *inspect, const char *name)
{
    for (size_t i = 0; i < inspect->n_parts; i++) {
        const oq_inspect_part *part = &inspect->parts[i];
        const char *inside = name_inside(part, name);
        for (size_t k = 0; inside && k < part->n_layers; k++)
            if (strcmp(part->layers[k].name, inside) == 0) return &part->layers[k];
    }
    return NULL;
}

/* A plain weight of that name is the likeliest misunderstanding, a broken layer the next. */
static oq_status fail_layer(const oq_inspect *inspect, const char *name)
{
    for (size_t i = 0; i < oq_json_size(inspect->problems); i++) {
        const oq_json *problem = oq_json_at(inspect->problems, i);
        const char *tensor = oq_json_string(oq_json_get(problem, "tensor"));
        const size_t n = strlen(name);
        if (tensor && strncmp(tensor, name, n) == 0 && strcmp(tensor + n, ".weight") == 0)
            return oq_fail(inspect->env, OQ_E_FORMAT, "layer '%s' cannot be read: %s", name,
                           oq_json_string(oq_json_get(problem, "message")));
    }
    char *weight = NULL;
    OQ_TRY(oq_new(inspect->env, strlen(name) + sizeof ".weight", 1, "name", &weight));
    memcpy(weight, name, strlen(name));
    memcpy(weight + strlen(name), ".weight", sizeof ".weight");
    const oq_ckpt_tensor *t = find_tensor(inspect, weight).tensor;
    oq_free(inspect->env, weight);
    if (!t) return fail_name(inspect, "quantized layer", name, true);
    return oq_fail(inspect->env, OQ_E_NOTFOUND,
                   "layer '%s' is not quantized: --tensor %s.weight shows its %s values", name, name,
                   t->type_name);
}

oq_status oq_inspect_layer_values(const oq_inspect *inspect, const char *name, int64_t limit, oq_report **out)
{
    const oq_inspect_layer *layer = find_layer(inspect, name);
    if (!layer) return fail_layer(inspect, name);
    const int64_t dim[] = {layer->n, layer->k};
    listing l = {.values = oq_json_new_array(),
                 .name = name,
                 .dtype = "F32",
                 .format = layer->source.format->name,
                 .dim = dim,
                 .n_dims = 2,
                 .elems = layer->n * layer->k};
    const oq_status st = decode_layer(inspect->env, layer, limit, l.values);
    if (st == OQ_OK) return finish(inspect->env, &l, out);
    oq_json_free(l.values);
    return st;
}
