/* layout_autoround.c -- Intel AutoRound's layouts: integers packed as GPTQ, those of four bits also as AWQ, and MXFP8, MXFP4 as
 * llm-compressor spells them. */
#include "write/layout.h"

#include "base/size.h"

#include <string.h>

/* ---- as AWQ: eight rows in a word, in the order of its kernel ------------------------------------------ */

static const int awq_order[8] = {0, 2, 4, 6, 1, 3, 5, 7};

static void put_awq_codes(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    for (int64_t c = 0; c < l->k; c++)
        for (int64_t w = 0; w < l->n / 8; w++) {
            uint32_t word = 0;
            for (int i = 0; i < 8; i++)
                word |= (uint32_t)oq_write_int_code(l, planes, 8 * w + awq_order[i], c) << (4 * i);
            ((uint32_t *)dst)[c * (l->n / 8) + w] = word;
        }
}

static void put_awq_zeros(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const int64_t groups = l->k / l->scheme.weight->block_k;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t w = 0; w < l->n / 8; w++) {
            uint32_t word = 0;
            for (int i = 0; i < 8; i++)
                word |= (uint32_t)oq_write_int_zero(l, planes, 8 * w + awq_order[i], g) << (4 * i);
            ((uint32_t *)dst)[g * (l->n / 8) + w] = word;
        }
}

static int spell_awq(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const int64_t groups = l->k / l->scheme.weight->block_k;
    out[0] = oq_spell_made(".qweight", "I32", (size_t)(l->k * (l->n / 8)) * 4, l->k, l->n / 8, put_awq_codes);
    out[1] =
        oq_spell_made(".qzeros", "I32", (size_t)(groups * (l->n / 8)) * 4, groups, l->n / 8, put_awq_zeros);
    out[2] = oq_spell_made(".scales", "F32", (size_t)(groups * l->n) * 4, groups, l->n, oq_put_column_scales);
    return 3;
}

/* ---- both ---------------------------------------------------------------------------------------------- */

static bool fits(const oq_write_layer *l)
{
    return l->scheme.weight->int_bits && !l->scheme.act && l->k % l->scheme.weight->block_k == 0;
}

static int spell_mx(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const bool fp8 = l->scheme.weight == &oq_format_mxfp8;
    if ((!fp8 && l->scheme.weight != &oq_format_mxfp4) || l->k % 32 || !l->scheme.act) return 0;
    out[0] = fp8 ? oq_spell_plane(l, ".weight", "F8_E4M3", OQ_PLANE_DATA, l->n, l->k)
                 : oq_spell_plane(l, ".weight_packed", "U8", OQ_PLANE_DATA, l->n, l->k / 2);
    out[1] = oq_spell_plane(l, ".weight_scale", "U8", OQ_PLANE_SCALE, l->n, l->k / 32);
    return 2;
}

static int spell_autoround(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    return fits(l) ? oq_spell_gptq(l, out) : spell_mx(l, out);
}

static int spell_autoround_awq(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    return fits(l) && l->scheme.weight->int_bits == 4 && l->n % 8 == 0 ? spell_awq(l, out) : 0;
}

/* What a layer is: of integers, or in MX with activations of its own bits. */
static void put_kind(oq_json *o, const oq_format *f)
{
    const bool mx = !f->int_bits;
    const int bits = !mx ? f->int_bits : f == &oq_format_mxfp8 ? 8 : 4;
    oq_json_set(o, "bits", oq_json_new_int(bits));
    oq_json_set(o, "data_type", oq_json_new_string(mx ? "mx_fp" : "int"));
    oq_json_set(o, "group_size", oq_json_new_int(f->block_k));
    oq_json_set(o, "sym", oq_json_new_bool(oq_write_symmetric(f)));
    if (!mx) return;
    oq_json_set(o, "act_bits", oq_json_new_int(bits));
    oq_json_set(o, "act_data_type", oq_json_new_string("mx_fp"));
    oq_json_set(o, "act_group_size", oq_json_new_int(32));
    oq_json_set(o, "act_sym", oq_json_new_bool(true));
    oq_json_set(o, "act_dynamic", oq_json_new_bool(true));
}

/* The layer that the file's own words mean: of integers where there is one, since their packing is told for all of them and
 * that of MX needs no word. */
static const oq_write_layer *leading(const oq_write_component *c)
{
    for (size_t i = 0; i < c->n_layers; i++)
        if (c->layers[i].scheme.weight->int_bits) return &c->layers[i];
    return &c->layers[0];
}

/* Layers that stay plain, or differ from the leading one, by name. */
static oq_json *extra_config(const oq_write_component *c)
{
    const oq_format *const first = leading(c)->scheme.weight;
    oq_json *extra = oq_json_new_object();
    for (size_t i = 0; i < c->n_plain; i++) {
        oq_json *o = oq_json_new_object();
        oq_json_set(o, "bits", oq_json_new_int(16));
        oq_json_set(o, "data_type", oq_json_new_string("float"));
        oq_json_set(extra, c->plain[i], o);
    }
    for (size_t i = 0; i < c->n_layers; i++) {
        const oq_format *f = c->layers[i].scheme.weight;
        if (f == first) continue;
        oq_json *o = oq_json_new_object();
        put_kind(o, f);
        oq_json_set(extra, c->layers[i].name, o);
    }
    return extra;
}

static oq_json *config_of(const oq_write_component *c, const char *packing)
{
    const oq_format *const f = leading(c)->scheme.weight;
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "quant_method", oq_json_new_string("auto-round"));
    oq_json_set(o, "packing_format", oq_json_new_string(f->int_bits ? packing : "auto_round:llm_compressor"));
    put_kind(o, f);
    oq_json *extra = extra_config(c);
    if (oq_json_size(extra))
        oq_json_set(o, "extra_config", extra);
    else
        oq_json_free(extra);
    return o;
}

static oq_json *config_autoround(const oq_write_component *c)
{
    return config_of(c, leading(c)->zeros_beside ? "auto_round:gptqmodel" : "auto_round:auto_gptq");
}

static oq_json *config_autoround_awq(const oq_write_component *c)
{
    return config_of(c, "auto_round:auto_awq");
}

const oq_layout oq_layout_autoround = {
    .name = "auto-round",
    .help = "integers of 2, 3, 4, 8 bits in groups, packed as GPTQ; MXFP8, MXFP4",
    .producer = "Intel AutoRound",
    .spell = spell_autoround,
    .config = config_autoround,
};

const oq_layout oq_layout_autoround_awq = {
    .name = "auto-round-awq",
    .help = "INT4 in groups of 32, 64, 128 packed as AWQ",
    .producer = "Intel AutoRound",
    .spell = spell_autoround_awq,
    .config = config_autoround_awq,
};
