/* load_item.c -- the bytes of one item: from the file's planes, or encoded from plain weights, then packed.
 */
#include "load/load_internal.h"

#include "base/size.h"
#include "ckpt/ckpt.h"
#include "format/float8.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void forget(const oq_loading *ld, const oq_ckpt_tensor *t)
{
    oq_ckpt_forget(ld->c->ckpt, t);
}

/* Blocks are those of the flattened tensor: the rows that are meant may begin inside one. */
static void read_values(const oq_plan_values *v, size_t first, size_t count, float *dst)
{
    const oq_ckpt_tensor *t = v->tensor;
    if (t->dtype) {
        t->dtype->to_f32(dst, v->data + first * t->dtype->bytes, count);
        return;
    }
    const int64_t row = v->whole ? t->elems / v->whole : 0;
    t->format->decode_span(t->format, dst, &(oq_planes){{t->data}}, 0, v->first * row + (int64_t)first,
                           (int64_t)count, 1, t->elems);
}

/* The shape is that of the rows alone; halves change places on the way. */
static void read_rows(const oq_plan_values *v, const int64_t *dim, int n_dims, float *dst)
{
    size_t elems = 1;
    for (int i = 0; i < n_dims; i++) elems *= (size_t)dim[i];
    const size_t half = v->halves_swapped ? elems / (size_t)dim[0] * (size_t)(dim[0] / 2) : 0;
    read_values(v, half, elems - half, dst);
    read_values(v, 0, half, dst + elems - half);
}

oq_status oq_load_values(const oq_loading *ld, const char *name, const char *suffix, const int64_t *dim,
                         int n_dims, float *dst)
{
    if (!ld->c->ckpt) {
        char full[1024];
        snprintf(full, sizeof full, "%s%s", name, suffix);
        oq_dummy_fill(dst, full, dim, n_dims);
        return OQ_OK;
    }
    const oq_plan_values v = oq_plan_find_values(ld->c, name, suffix);
    if (!v.tensor || (!v.tensor->dtype && !v.tensor->format))
        return OQ_E_NOTFOUND; /* the plan accounted for it: only a bug leads here */
    read_rows(&v, dim, n_dims, dst);
    if (!v.whole) forget(ld, v.tensor);
    return OQ_OK;
}

/* A BF16 run holds its vectors as `module.to(bfloat16)` would: rounded once, whatever the file's type. */
static void round_to_compute(const oq_loading *ld, float *x, int64_t n)
{
    if (ld->c->compute != &oq_dtype_bf16) return;
    for (int64_t i = 0; i < n; i++) x[i] = oq_bf16_round(x[i]);
}

oq_status oq_load_vector(const oq_loading *ld, const oq_vector *v, float *dst)
{
    OQ_TRY(oq_load_values(ld, v->name, "", &v->n, 1, dst));
    if (!v->wide) round_to_compute(ld, dst, v->n);
    return OQ_OK;
}

oq_status oq_load_table(const oq_loading *ld, const oq_table *t, void *dst)
{
    const int64_t dim[2] = {t->rows, t->cols};
    const size_t elems = (size_t)(t->rows * t->cols);
    if (ld->c->ckpt) {
        const oq_ckpt_tensor *file = oq_plan_find_values(ld->c, t->name, "").tensor;
        if (file && file->dtype == t->tensor.dtype) {
            memcpy(dst, file->data, elems * file->dtype->bytes);
            forget(ld, file);
            return OQ_OK;
        }
    }
    float *values = oq_alloc_raw(ld->env, elems * sizeof *values);
    if (!values) return OQ_E_NOMEM;
    const oq_status st = oq_load_values(ld, t->name, "", dim, 2, values);
    if (st == OQ_OK) t->tensor.dtype->from_f32(dst, values, elems);
    oq_free(ld->env, values);
    return st;
}

static oq_status load_bias(const oq_loading *ld, const char *name, int64_t n, bool wide, float *bias)
{
    OQ_TRY(oq_load_values(ld, name, ".bias", &n, 1, bias));
    if (!wide) round_to_compute(ld, bias, n);
    return OQ_OK;
}

oq_status oq_load_conv2d(const oq_loading *ld, const oq_conv2d *conv, void *dst, float *bias)
{
    const oq_conv2d_spec *s = &conv->spec;
    const int64_t video[5] = {s->c_out, s->c_in, s->kt, s->kh, s->kw};
    const int64_t image[4] = {s->c_out, s->c_in, s->kh, s->kw};
    const int64_t n = s->c_out * s->c_in * oq_conv2d_taps_t(s) * s->kh * s->kw;
    float *values = oq_alloc_raw(ld->env, (size_t)n * sizeof *values);
    if (!values) return OQ_E_NOMEM;
    oq_status st = oq_load_values(ld, conv->name, ".weight", s->kt ? video : image, s->kt ? 5 : 4, values);
    if (st == OQ_OK) {
        round_to_compute(ld, values, n);
        conv->kernel->pack(dst, values, s);
        if (conv->has_bias) st = load_bias(ld, conv->name, s->c_out, false, bias);
    }
    oq_free(ld->env, values);
    return st;
}

/* ---- linear -------------------------------------------------------------------------------------------- */

typedef struct planes_owned { /* planes of a whole layer and the buffers behind them */
    oq_planes planes;
    void *owned[OQ_N_PLANES];
} planes_owned;

static void free_planes(oq_env *env, planes_owned *p)
{
    for (int i = 0; i < OQ_N_PLANES; i++) oq_free(env, p->owned[i]);
}

static oq_status own_plane(oq_env *env, planes_owned *p, int plane, size_t bytes)
{
    p->owned[plane] = oq_alloc_raw(env, bytes);
    p->planes.plane[plane] = p->owned[plane];
    return p->owned[plane] ? OQ_OK : OQ_E_NOMEM;
}

/* All parts' weights as f32 [n, k]. */
static oq_status plain_values(const oq_loading *ld, const oq_linear *l, float *values)
{
    for (int i = 0; i < l->n_parts; i++) {
        const int64_t dim[2] = {l->parts[i].n, l->spec.k};
        OQ_TRY(oq_load_values(ld, l->parts[i].name, ".weight", dim, 2, values));
        values += dim[0] * dim[1];
    }
    return OQ_OK;
}

/* Weights that the file holds in exactly the planned type need no copy: tensor NULL where they do. */
static oq_plan_values zero_copy(const oq_loading *ld, const oq_plan_layer *layer)
{
    const oq_linear *l = layer->linear;
    const oq_plan_values none = {0};
    if (!ld->c->ckpt || l->n_parts != 1 || layer->choice.quantized) return none;
    const oq_plan_values v = oq_plan_find_values(ld->c, l->parts[0].name, ".weight");
    const bool as_is = v.tensor && v.tensor->dtype && !v.halves_swapped &&
                       oq_format_plain(v.tensor->dtype) == l->spec.scheme.weight;
    return as_is ? v : none;
}

/* Asked where the format itself has no way to say that a weight is no number. */
static bool all_finite(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* Plain weights -> the scheme's planes: encoded where the layer is quantized, rounded where it is not. */
static oq_status encode_planes(const oq_loading *ld, const oq_linear *l, planes_owned *p)
{
    const oq_format *f = l->spec.scheme.weight;
    const int64_t n = l->spec.n, k = l->spec.k;
    float *values = oq_alloc_raw(ld->env, (size_t)(n * k) * sizeof *values);
    if (!values) return OQ_E_NOMEM;
    oq_status st = plain_values(ld, l, values);
    oq_planes_mut to = {0};
    for (int plane = 0; st == OQ_OK && plane < OQ_N_PLANES; plane++) {
        if (!(f->planes & 1u << plane)) continue;
        st = own_plane(ld->env, p, plane, f->plane_bytes(f, (oq_plane)plane, n, k));
        to.plane[plane] = p->owned[plane];
    }
    if (st == OQ_OK && f->block && !f->block->poison && !all_finite(values, n * k)) st = OQ_E_FORMAT;
    if (st == OQ_OK) f->encode(f, &to, values, n, k);
    oq_free(ld->env, values);
    return st;
}

/* The part's rows out of those of the larger layer that the file holds. */
static oq_status plane_rows(const oq_loading *ld, const oq_part_source *part, int plane, void *dst, int64_t n,
                            int64_t k)
{
    const oq_format *f = part->format;
    const oq_plane_source *source = &part->plane[plane];
    const bool as_is = !source->make && !source->fix;
    const size_t bytes =
        plane == OQ_PLANE_INPUT_SCALE ? sizeof(float) : f->plane_bytes(f, (oq_plane)plane, part->whole, k);
    void *own = as_is ? NULL : oq_alloc_raw(ld->env, bytes);
    if (!as_is && !own) return OQ_E_NOMEM;
    if (!as_is) oq_plane_read(&part->plane[plane], own, bytes, part->whole, k);
    const void *src = as_is ? (const void *)source->tensor->data : own;
    const int64_t half = part->halves_swapped ? n / 2 : 0;
    oq_format_take_rows(f, (oq_plane)plane, dst, src, part->first + half, n - half, part->whole, k);
    if (half && plane != OQ_PLANE_INPUT_SCALE)
        oq_format_take_rows(f, (oq_plane)plane,
                            (char *)dst + f->plane_bytes(f, (oq_plane)plane, n - half, k) *
                                              (f->plane_bytes(f, (oq_plane)plane, n, k) !=
                                               f->plane_bytes(f, (oq_plane)plane, n - half, k)),
                            src, part->first, half, part->whole, k);
    oq_free(ld->env, own);
    return OQ_OK;
}

/* One part's plane in canonical bytes, at `dst`. */
static oq_status part_plane(const oq_loading *ld, const oq_part_source *part, int plane, void *dst,
                            size_t bytes, int64_t n, int64_t k)
{
    if (part->whole) return plane_rows(ld, part, plane, dst, n, k);
    oq_plane_read(&part->plane[plane], dst, bytes, n, k);
    return OQ_OK;
}

/* Scales of a part inside the whole layer's scale plane; *bytes: how many. A per-tensor scale in a per-channel layer
 * (fused parts with scales of their own) is repeated over the part's rows: exact, nothing is quantized again. */
static oq_status part_scale(const oq_loading *ld, const oq_part_source *part, const oq_format *whole,
                            void *dst, int64_t n, int64_t k, size_t *bytes)
{
    float scale;
    *bytes = part->format->plane_bytes(part->format, OQ_PLANE_SCALE, n, k);
    if (part->format == whole || !(whole->block_n == 1 && part->format->block_n == 0))
        return part_plane(ld, part, OQ_PLANE_SCALE, dst, *bytes, n, k);
    OQ_TRY(part_plane(ld, part, OQ_PLANE_SCALE, &scale, sizeof scale, n, k));
    for (int64_t i = 0; i < n; i++) memcpy((char *)dst + i * 4, &scale, sizeof scale);
    *bytes = (size_t)n * sizeof scale;
    return OQ_OK;
}

/* A part's second-level scale, repeated over its rows where fused parts keep their own. */
static oq_status part_global(const oq_loading *ld, const oq_part_source *part, const oq_format *whole,
                             void *dst, int64_t n, int64_t k, size_t *bytes)
{
    const size_t one = part->format->plane_bytes(part->format, OQ_PLANE_GLOBAL, n, k);
    const bool repeated = part->format != whole;
    OQ_TRY(part_plane(ld, part, OQ_PLANE_GLOBAL, dst, one, n, k));
    for (int64_t i = 1; repeated && i < n; i++) memcpy((char *)dst + (size_t)i * one, dst, one);
    *bytes = repeated ? (size_t)n * one : one;
    return OQ_OK;
}

/* Static activation scale of a fused layer: the largest of its parts', so that no part's activations
 * saturate. */
static oq_status input_scale(const oq_loading *ld, const oq_plan_layer *layer, planes_owned *p)
{
    float largest = 0.0f;
    for (int i = 0; i < layer->linear->n_parts; i++) {
        const oq_part_source *part = &layer->choice.part[i];
        if (!part->plane[OQ_PLANE_INPUT_SCALE].tensor) return OQ_OK;
        float scale;
        OQ_TRY(part_plane(ld, part, OQ_PLANE_INPUT_SCALE, &scale, sizeof scale, layer->linear->parts[i].n,
                          layer->linear->spec.k));
        if (scale > largest) largest = scale;
    }
    OQ_TRY(own_plane(ld->env, p, OQ_PLANE_INPUT_SCALE, sizeof largest));
    memcpy(p->owned[OQ_PLANE_INPUT_SCALE], &largest, sizeof largest);
    return OQ_OK;
}

static oq_status put_part(const oq_loading *ld, const oq_plan_layer *layer, int plane, int i, char *to,
                          size_t *bytes)
{
    const oq_part_source *part = &layer->choice.part[i];
    const oq_format *whole = layer->linear->spec.scheme.weight;
    const int64_t n = layer->linear->parts[i].n, k = layer->linear->spec.k;
    if (plane == OQ_PLANE_SCALE) return part_scale(ld, part, whole, to, n, k, bytes);
    if (plane == OQ_PLANE_GLOBAL) return part_global(ld, part, whole, to, n, k, bytes);
    *bytes = part->format->plane_bytes(part->format, (oq_plane)plane, n, k);
    return part_plane(ld, part, plane, to, *bytes, n, k);
}

static oq_status stored_plane(const oq_loading *ld, const oq_plan_layer *layer, int plane, planes_owned *p)
{
    const oq_linear *l = layer->linear;
    const oq_format *whole = l->spec.scheme.weight;
    const oq_part_source *first = &layer->choice.part[0];
    const bool together = layer->choice.together;
    const bool alone = l->n_parts == 1 && !first->whole;
    if (plane == OQ_PLANE_DATA && (alone || together) && !first->plane[plane].fix &&
        !first->plane[plane].make) {
        p->planes.plane[plane] = first->plane[plane].tensor->data;
        return OQ_OK;
    }
    const size_t all = whole->plane_bytes(whole, (oq_plane)plane, l->spec.n, l->spec.k);
    OQ_TRY(own_plane(ld->env, p, plane, all));
    char *to = p->owned[plane];
    if (together) {
        oq_plane_read(&first->plane[plane], to, all, l->spec.n, l->spec.k);
        return OQ_OK;
    }
    for (int i = 0; i < l->n_parts; i++) {
        size_t bytes = 0;
        OQ_TRY(put_part(ld, layer, plane, i, to, &bytes));
        to += bytes;
    }
    return OQ_OK;
}

/* What stands around the product: of a single part, or of a fused layer that the file holds as one. Only UP has the
 * layer's rows. */
static oq_status around_plane(const oq_loading *ld, const oq_plan_layer *layer, int plane, planes_owned *p)
{
    const oq_linear_spec *s = &layer->linear->spec;
    const oq_part_source *part = &layer->choice.part[0];
    const int64_t n = part->whole ? part->whole : s->n;
    const size_t bytes = oq_scheme_plane_bytes(&s->scheme, (oq_plane)plane, n, s->k);
    if (bytes == 0) return OQ_OK;
    OQ_TRY(own_plane(ld->env, p, plane, bytes));
    oq_plane_read(&part->plane[plane], p->owned[plane], bytes, n, s->k);
    if (plane != OQ_PLANE_UP || n == s->n) return OQ_OK;
    float *up = p->owned[plane];
    memmove(up, up + part->first * s->scheme.rank, (size_t)(s->n * s->scheme.rank) * sizeof *up);
    return OQ_OK;
}

static oq_status stored_planes(const oq_loading *ld, const oq_plan_layer *layer, planes_owned *p)
{
    for (int plane = 0; plane < OQ_N_PLANES; plane++)
        if (layer->linear->spec.scheme.weight->planes & 1u << plane)
            OQ_TRY(stored_plane(ld, layer, plane, p));
    OQ_TRY(input_scale(ld, layer, p));
    for (int plane = OQ_PLANE_SMOOTH; plane <= OQ_PLANE_UP; plane++)
        OQ_TRY(around_plane(ld, layer, plane, p));
    return OQ_OK;
}

static void forget_parts(const oq_loading *ld, const oq_plan_layer *layer)
{
    for (int i = 0; layer->choice.serialized && i < layer->linear->n_parts; i++) {
        const oq_ckpt_tensor *t = layer->choice.part[i].plane[OQ_PLANE_DATA].tensor;
        if (t) forget(ld, t);
    }
}

/* A stored bias in another order, of all rows that the file holds as one. What makes up for a shift is no parameter of the
 * network: it is not rounded to the compute type. */
static oq_status stored_bias(const oq_loading *ld, const oq_part_source *part, int64_t n, int64_t k,
                             bool wide, float *bias)
{
    const int64_t whole = part->whole ? part->whole : n;
    float *all = oq_alloc_raw(ld->env, (size_t)whole * sizeof *all);
    if (!all) return OQ_E_NOMEM;
    oq_plane_read(&part->bias, all, (size_t)whole * sizeof *all, whole, k);
    memcpy(bias, all + part->first, (size_t)n * sizeof *bias);
    oq_free(ld->env, all);
    const bool shifted = part->shift < 0 || part->shift > 0;
    if (!wide && !shifted) round_to_compute(ld, bias, n);
    return OQ_OK;
}

static oq_status part_bias(const oq_loading *ld, const oq_plan_layer *layer, int i, float *bias)
{
    const oq_linear *l = layer->linear;
    const oq_part_source *part = layer->choice.serialized ? &layer->choice.part[i] : NULL;
    if (part && part->bias.tensor) return stored_bias(ld, part, l->parts[i].n, l->spec.k, l->wide, bias);
    return load_bias(ld, l->parts[i].name, l->parts[i].n, l->wide, bias);
}

oq_status oq_load_linear_bias(const oq_loading *ld, const oq_plan_layer *layer, float *bias)
{
    const oq_linear *l = layer->linear;
    for (int i = 0; l->has_bias && i < l->n_parts; i++) {
        OQ_TRY(part_bias(ld, layer, i, bias));
        bias += l->parts[i].n;
    }
    return OQ_OK;
}

bool oq_load_fill(const oq_loading *ld, const oq_linear *l, void *packed)
{
    enum { MOST = 8 };
    oq_dummy_part parts[MOST];
    const oq_backend *const b = ld->plan->backend;
    if (ld->c->ckpt || !b->fill_linear || l->n_parts > MOST) return false;
    for (int i = 0; i < l->n_parts; i++) {
        char name[1024];
        const int64_t dim[2] = {l->parts[i].n, l->spec.k};
        snprintf(name, sizeof name, "%s.weight", l->parts[i].name);
        parts[i] = (oq_dummy_part){.seed = oq_dummy_seed(name), .rows = dim[0]};
        oq_dummy_rule(name, dim, 2, &parts[i].scale, &parts[i].offset);
    }
    return b->fill_linear(ld->plan->device, &l->spec, packed, parts, l->n_parts);
}

oq_status oq_load_linear(const oq_loading *ld, const oq_plan_layer *layer, void *dst, float *bias)
{
    const oq_linear *l = layer->linear;
    planes_owned p = {0};
    oq_status st = OQ_OK;
    const oq_plan_values direct = zero_copy(ld, layer);
    if (direct.tensor)
        p.planes.plane[OQ_PLANE_DATA] = direct.data;
    else
        st = layer->choice.serialized ? stored_planes(ld, layer, &p) : encode_planes(ld, l, &p);
    if (st == OQ_OK) l->kernel->pack(dst, &p.planes, &l->spec);
    if (direct.tensor && !direct.whole) forget(ld, direct.tensor);
    forget_parts(ld, layer);
    free_planes(ld->env, &p);
    return st == OQ_OK ? oq_load_linear_bias(ld, layer, bias) : st;
}
