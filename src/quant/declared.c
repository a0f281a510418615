/* declared.c -- a checkpoint's quantization metadata as the option rows of the method it names, and one plane
 * of a layer in canonical bytes. */
#include "quant/dialect.h"

#include "base/names.h"

#include <string.h>

/* The metadata without the keys that name the method; NULL: nothing but the name. */
static oq_json *without_method(const oq_json *quant)
{
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    oq_json *rest = oq_json_new_object();
    while (oq_json_next(quant, &at, &key, &value)) {
        if (oq_name_equal(key, "quant_method") || oq_name_equal(key, "method")) continue;
        if (oq_json_set(rest, key, oq_json_copy(value))) continue;
        oq_json_free(rest);
        return NULL;
    }
    return rest;
}

static oq_status list_ignored(const oq_declare_input *in, oq_declared *out)
{
    const oq_json *list = oq_json_get(out->options, "ignored_layers");
    const char **names = NULL;
    out->n_ignored = oq_json_size(list);
    OQ_TRY(oq_arena_new(in->arena, out->n_ignored, sizeof *names, "ignored_layers", &names));
    for (size_t i = 0; i < out->n_ignored; i++) names[i] = oq_json_string(oq_json_at(list, i));
    out->ignored = names;
    return OQ_OK;
}

void oq_part_scheme(const oq_part_source *part, oq_scheme *out)
{
    *out = (oq_scheme){.weight = part->format,
                       .act = part->act,
                       .act_scale = part->act_scale,
                       .act_min_rows = part->act_min_rows,
                       .smooth = part->plane[OQ_PLANE_SMOOTH].tensor != NULL,
                       .order = part->plane[OQ_PLANE_ORDER].tensor != NULL,
                       .rotate = part->rotate,
                       .rank = part->rank,
                       .outlier = part->outlier,
                       .shift = part->shift};
}

void oq_plane_read(const oq_plane_source *source, void *dst, size_t bytes, int64_t n, int64_t k)
{
    if (source->make)
        source->make(dst, source, n, k);
    else if (source->fix)
        source->fix(dst, source->tensor, n, k);
    else if (bytes)
        memcpy(dst, source->tensor->data, bytes);
}

oq_status oq_declared_read(oq_env *env, const oq_declare_input *in, oq_declared *out)
{
    const char *where = in->quant_source ? in->quant_source : in->method->name;
    oq_json *rest = without_method(in->quant), *read = NULL;
    *out = (oq_declared){.method = in->method};
    if (!rest) return oq_fail(env, OQ_E_NOMEM, "%s: no memory for quantization metadata", where);
    const oq_status st = oq_method_options_read(env, where, in->method, rest, false, &read);
    oq_json_free(rest);
    OQ_TRY(st);
    if (!oq_json_append(in->held, read))
        return oq_fail(env, OQ_E_NOMEM, "%s: no memory for quantization metadata", where);
    out->options = read;
    return list_ignored(in, out);
}
