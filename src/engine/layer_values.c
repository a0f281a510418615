/* layer_values.c -- a quantized layer as it stands in a file: its planes in canonical order, and the plain weights that it
 * stands for. Any thread; writes no error text. */
#include "engine/inspect.h"

#include <string.h>

/* ---- planes of a layer in canonical order -------------------------------------------------------------- */

void oq_layer_planes_free(oq_env *env, oq_layer_planes *p)
{
    for (int i = 0; i < OQ_N_PLANES; i++) oq_free(env, p->owned[i]);
}

oq_status oq_layer_planes_own(oq_env *env, oq_layer_planes *p, int plane, size_t bytes)
{
    p->owned[plane] = bytes == SIZE_MAX ? NULL : oq_alloc_raw(env, bytes);
    p->planes.plane[plane] = p->owned[plane];
    return p->owned[plane] ? OQ_OK : OQ_E_NOMEM;
}

oq_status oq_layer_planes_read(oq_env *env, const oq_inspect_layer *layer, oq_layer_planes *p)
{
    oq_scheme scheme;
    oq_part_scheme(&layer->source, &scheme);
    for (int i = 0; i < OQ_N_PLANES; i++) {
        const oq_plane_source *source = &layer->source.plane[i];
        const size_t bytes = oq_scheme_plane_bytes(&scheme, (oq_plane)i, layer->n, layer->k);
        if (bytes == 0 || i == OQ_PLANE_INPUT_SCALE) continue;
        if (!source->tensor) return OQ_E_FORMAT;
        if (!source->fix && !source->make && source->tensor->bytes != bytes) return OQ_E_FORMAT;
        if (!source->fix && !source->make && i == OQ_PLANE_DATA) {
            p->planes.plane[i] = source->tensor->data;
            continue;
        }
        OQ_TRY(oq_layer_planes_own(env, p, i, bytes));
        oq_plane_read(source, p->owned[i], bytes, layer->n, layer->k);
    }
    return OQ_OK;
}

void oq_inspect_layer_forget(const oq_ckpt *ckpt, const oq_inspect_layer *layer)
{
    for (int i = 0; i < OQ_N_PLANES; i++)
        if (layer->source.plane[i].tensor) oq_ckpt_forget(ckpt, layer->source.plane[i].tensor);
}

/* ---- values -------------------------------------------------------------------------------------------- */

/* What stands around the product goes into the weight: y = W R(P(S x)) + U D x is one plain row of it. */
void oq_layer_fold_row(const oq_scheme *s, const oq_planes *p, float *row, float *spare, int64_t r, int64_t k)
{
    const int32_t *order = p->plane[OQ_PLANE_ORDER];
    const float *smooth = p->plane[OQ_PLANE_SMOOTH];
    const float *down = p->plane[OQ_PLANE_DOWN], *up = p->plane[OQ_PLANE_UP];
    for (int64_t c = 0; s->rotate && c < k; c += s->rotate) oq_rotate(row + c, s->rotate);
    if (s->order) {
        memset(spare, 0, (size_t)k * sizeof *spare);
        for (int64_t c = 0; c < k; c++) spare[order[c]] += row[c];
        memcpy(row, spare, (size_t)k * sizeof *row);
    }
    for (int64_t c = 0; s->smooth && c < k; c++) row[c] *= smooth[c];
    for (int64_t i = 0; i < s->rank; i++)
        for (int64_t c = 0; c < k; c++) row[c] += up[r * s->rank + i] * down[i * k + c];
}

oq_status oq_layer_values(oq_env *env, const oq_inspect_layer *layer, float *dst)
{
    oq_layer_planes p = {0};
    oq_scheme scheme;
    const oq_format *f = layer->source.format;
    float *spare = oq_alloc_raw(env, (size_t)layer->k * sizeof *spare);
    const oq_status st = spare ? oq_layer_planes_read(env, layer, &p) : OQ_E_NOMEM;
    oq_part_scheme(&layer->source, &scheme);
    for (int64_t r = 0; st == OQ_OK && r < layer->n; r++) {
        float *row = dst + r * layer->k;
        f->decode_row(f, row, &p.planes, r, layer->n, layer->k);
        oq_layer_fold_row(&scheme, &p.planes, row, spare, r, layer->k);
    }
    oq_layer_planes_free(env, &p);
    oq_free(env, spare);
    return st;
}
