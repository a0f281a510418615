/* layout_gptq.c -- GPTQ's own layout: integers packed along the columns, zero points (one less than they are, or, as gptq_v2, as
 * they are), and for each column its group, which is where columns that were ordered by activation tell their order. */
#include "write/layout.h"

#include "base/size.h"

#include <stdio.h>
#include <string.h>

/* ---- as GPTQ: the columns of a row are one stream of bits through words */

/* `value` at bit `at` of a stream whose words stand `stride` apart. */
static void put_bits(uint32_t *words, int64_t stride, int64_t at, int bits, unsigned value)
{
    const int in = (int)(at % 32);
    words[at / 32 * stride] |= (uint32_t)value << in;
    if (in + bits > 32) words[(at / 32 + 1) * stride] |= (uint32_t)value >> (32 - in);
}

/* The model's column that column c of the planes is. */
static int64_t column_of(const oq_planes *planes, int64_t c)
{
    const int32_t *order = planes->plane[OQ_PLANE_ORDER];
    return order ? order[c] : c;
}

static void put_gptq_codes(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const int bits = l->scheme.weight->int_bits;
    memset(dst, 0, (size_t)(l->k * bits / 32 * l->n) * 4);
    for (int64_t r = 0; r < l->n; r++)
        for (int64_t c = 0; c < l->k; c++)
            put_bits((uint32_t *)dst + r, l->n, column_of(planes, c) * bits, bits,
                     oq_write_int_code(l, planes, r, c));
}

static void put_gptq_zeros(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const int bits = l->scheme.weight->int_bits;
    const int64_t groups = l->k / l->scheme.weight->block_k, words = l->n * bits / 32;
    const unsigned less = l->zeros_beside ? 0u : 1u;
    memset(dst, 0, (size_t)(groups * words) * 4);
    for (int64_t g = 0; g < groups; g++)
        for (int64_t r = 0; r < l->n; r++)
            put_bits((uint32_t *)dst + g * words, 1, r * bits, bits,
                     (oq_write_int_zero(l, planes, r, g) - less) & ((1u << bits) - 1u));
}

int oq_spell_gptq(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const int bits = l->scheme.weight->int_bits;
    const int64_t groups = l->k / l->scheme.weight->block_k;
    const int64_t words_k = l->k * bits / 32, words_n = l->n * bits / 32;
    if (l->k * bits % 32 || l->n * bits % 32) return 0;
    out[0] = oq_spell_made(".qweight", "I32", (size_t)(words_k * l->n) * 4, words_k, l->n, put_gptq_codes);
    out[1] = oq_spell_made(".qzeros", "I32", (size_t)(groups * words_n) * 4, groups, words_n, put_gptq_zeros);
    out[2] = oq_spell_made(".scales", "F32", (size_t)(groups * l->n) * 4, groups, l->n, oq_put_column_scales);
    return 3;
}

/* ---- the group of each column -------------------------------------------------------------------------- */

static void put_groups(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    for (int64_t c = 0; c < l->k; c++)
        ((int32_t *)dst)[column_of(planes, c)] = (int32_t)(c / l->scheme.weight->block_k);
}

static int spell(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const oq_format *f = l->scheme.weight;
    if (!f->int_bits || l->scheme.act || l->k % f->block_k) return 0;
    const int n = oq_spell_gptq(l, out);
    if (!n) return 0;
    out[n] = oq_spell_made(".g_idx", "I32", (size_t)l->k * sizeof(int32_t), l->k, -1, put_groups);
    out[n].plane = OQ_PLANE_ORDER;
    return n + 1;
}

/* ---- metadata ------------------------------------------------------------------------------------------ */

/* GPTQModel's patterns: this name and no other, after `sign`. */
static void put_pattern(const oq_write_component *c, oq_json *dynamic, const char *sign, const char *name,
                        oq_json *value)
{
    oq_strbuf text;
    oq_strbuf_init(&text, c->env);
    oq_strbuf_puts(&text, sign);
    for (; *name; name++) {
        if (*name == '.') oq_strbuf_putc(&text, '\\');
        oq_strbuf_putc(&text, *name);
    }
    oq_strbuf_putc(&text, '$');
    oq_json_set(dynamic, oq_strbuf_text(&text), value);
    oq_strbuf_deinit(&text);
}

/* Layers that stay plain, and those that differ from the first. */
static oq_json *exceptions(const oq_write_component *c)
{
    const oq_format *first = c->layers[0].scheme.weight;
    oq_json *dynamic = oq_json_new_object();
    for (size_t i = 0; i < c->n_plain; i++) put_pattern(c, dynamic, "-:", c->plain[i], oq_json_new_object());
    for (size_t i = 1; i < c->n_layers; i++) {
        const oq_format *f = c->layers[i].scheme.weight;
        if (f == first) continue;
        oq_json *o = oq_json_new_object();
        oq_json_set(o, "bits", oq_json_new_int(f->int_bits));
        oq_json_set(o, "group_size", oq_json_new_int(f->block_k));
        oq_json_set(o, "sym", oq_json_new_bool(oq_write_symmetric(f)));
        put_pattern(c, dynamic, "+:", c->layers[i].name, o);
    }
    return dynamic;
}

static oq_json *config(const oq_write_component *c)
{
    const oq_format *f = c->layers[0].scheme.weight;
    oq_json *o = oq_json_new_object();
    bool ordered = false;
    for (size_t i = 0; i < c->n_layers; i++) ordered |= c->layers[i].scheme.order;
    oq_json_set(o, "quant_method", oq_json_new_string("gptq"));
    oq_json_set(o, "checkpoint_format", oq_json_new_string(c->layers[0].zeros_beside ? "gptq_v2" : "gptq"));
    oq_json_set(o, "bits", oq_json_new_int(f->int_bits));
    oq_json_set(o, "group_size", oq_json_new_int(f->block_k));
    oq_json_set(o, "sym", oq_json_new_bool(oq_write_symmetric(f)));
    oq_json_set(o, "desc_act", oq_json_new_bool(ordered));
    oq_json *dynamic = exceptions(c);
    if (oq_json_size(dynamic))
        oq_json_set(o, "dynamic", dynamic);
    else
        oq_json_free(dynamic);
    return o;
}

const oq_layout oq_layout_gptq = {
    .name = "gptq",
    .help = "integers of 2, 3, 4, 8 bits in groups",
    .producer = "GPTQModel, AutoGPTQ",
    .spell = spell,
    .config = config,
};
