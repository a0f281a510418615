/* layout_common.c -- what several layouts spell alike. */
#include "write/layout.h"

#include "base/size.h"
#include "format/format_int.h"

#include <string.h>

oq_spelled oq_spell_made(const char *suffix, const char *type, size_t bytes, int64_t d0, int64_t d1,
                         void (*put)(void *dst, const oq_write_layer *layer, const oq_planes *planes))
{
    const int n_dims = d0 < 0 ? 0 : d1 < 0 ? 1 : 2;
    return (oq_spelled){
        .suffix = suffix, .type = type, .n_dims = n_dims, .dim = {d0, d1}, .bytes = bytes, .put = put};
}

oq_spelled oq_spell_plane(const oq_write_layer *l, const char *suffix, const char *type, oq_plane plane,
                          int64_t d0, int64_t d1)
{
    const oq_format *f = l->scheme.weight;
    oq_spelled s = oq_spell_made(suffix, type, f->plane_bytes(f, plane, l->n, l->k), d0, d1, NULL);
    s.plane = plane;
    return s;
}

static void put_input_scale(void *dst, const oq_write_layer *layer, const oq_planes *planes)
{
    (void)planes;
    memcpy(dst, &layer->input_scale, sizeof layer->input_scale);
}

oq_spelled oq_spell_input_scale(const char *suffix)
{
    oq_spelled s = oq_spell_made(suffix, "F32", sizeof(float), -1, -1, put_input_scale);
    s.plane = OQ_PLANE_INPUT_SCALE;
    return s;
}

static void put_smooth(void *dst, const oq_write_layer *layer, const oq_planes *planes)
{
    (void)planes;
    oq_dtype_bf16.from_f32(dst, layer->smooth, (size_t)layer->k);
}

oq_spelled oq_spell_smooth(const oq_write_layer *l, const char *suffix)
{
    oq_spelled s = oq_spell_made(suffix, "BF16", 2 * (size_t)l->k, l->k, -1, put_smooth);
    s.plane = OQ_PLANE_SMOOTH;
    return s;
}

/* What stands around the product would be lost in a layout that has no place for it. */
int oq_layout_spell(const oq_layout *layout, const oq_write_layer *layer, oq_spelled out[OQ_LAYOUT_MAX])
{
    const int n = layout->spell(layer, out);
    bool scaled = !oq_act_is_static(layer->scheme.act_scale), smoothed = !layer->scheme.smooth;
    bool ordered = !layer->scheme.order;
    for (int i = 0; i < n; i++) {
        scaled |= out[i].plane == OQ_PLANE_INPUT_SCALE;
        smoothed |= out[i].plane == OQ_PLANE_SMOOTH;
        ordered |= out[i].plane == OQ_PLANE_ORDER;
    }
    return scaled && smoothed && ordered ? n : 0;
}

void oq_put_nibbles_swapped(void *dst, const oq_write_layer *layer, const oq_planes *planes)
{
    const oq_format *f = layer->scheme.weight;
    const uint8_t *from = planes->plane[OQ_PLANE_DATA];
    uint8_t *to = dst;
    const size_t bytes = f->plane_bytes(f, OQ_PLANE_DATA, layer->n, layer->k);
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)(from[i] << 4 | from[i] >> 4);
}

bool oq_write_symmetric(const oq_format *f)
{
    return !(f->planes & 1u << OQ_PLANE_ZERO);
}

unsigned oq_write_int_code(const oq_write_layer *layer, const oq_planes *planes, int64_t row, int64_t column)
{
    const int bits = layer->scheme.weight->int_bits;
    const int64_t row_bytes = oq_ceil_div(bits * layer->k, 8), at = bits * column;
    const uint8_t *p = (const uint8_t *)planes->plane[OQ_PLANE_DATA] + row * row_bytes + at / 8;
    const unsigned low = p[0], high = at % 8 + bits > 8 ? p[1] : 0u;
    return (low | high << 8) >> at % 8 & ((1u << bits) - 1u);
}

unsigned oq_write_int_zero(const oq_write_layer *l, const oq_planes *planes, int64_t row, int64_t group)
{
    const void *zero = planes->plane[OQ_PLANE_ZERO];
    const int bits = l->scheme.weight->int_bits;
    return zero ? oq_int_zero(zero, bits, row, group, oq_ceil_div(l->k, l->scheme.weight->block_k))
                : 1u << (bits - 1);
}

void oq_put_column_scales(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const float *scale = planes->plane[OQ_PLANE_SCALE];
    const int64_t groups = l->k / l->scheme.weight->block_k;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < l->n; r++) ((float *)dst)[g * l->n + r] = scale[r * groups + g];
}

oq_json *oq_write_names(const char *const *names, size_t n)
{
    oq_json *list = oq_json_new_array();
    for (size_t i = 0; i < n; i++) oq_json_append(list, oq_json_new_string(names[i]));
    return list;
}

bool oq_write_uniform(const oq_write_component *c)
{
    for (size_t i = 1; i < c->n_layers; i++)
        if (!oq_scheme_equal(&c->layers[i].scheme, &c->layers[0].scheme)) return false;
    return true;
}
