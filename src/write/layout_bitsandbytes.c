/* layout_bitsandbytes.c -- bitsandbytes' NF4 and FP4, with the absmax plain or in eight bits themselves. */
#include "write/layout.h"

#include "base/size.h"
#include "format/float4.h"

#include <stdio.h>
#include <string.h>

enum { NESTED = 256, MAP = 256, STATE = 256 };

static bool is_nf4(const oq_format *f)
{
    return strncmp(f->name, "nf4_", 4) == 0;
}

static bool is_nested(const oq_format *f)
{
    return f->planes & 1u << OQ_PLANE_GLOBAL;
}

static void put_table(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    (void)planes;
    memcpy(dst, is_nf4(l->scheme.weight) ? oq_nf4_table : oq_fp4_table, 16 * sizeof(float));
}

static void put_map(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    (void)l;
    memcpy(dst, (const float *)planes->plane[OQ_PLANE_GLOBAL] + 1, MAP * sizeof(float));
}

static int64_t nested_blocks(const oq_write_layer *l)
{
    return oq_ceil_div(oq_ceil_div(l->n * l->k, l->scheme.weight->block_k), NESTED);
}

static void put_nested_absmax(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    memcpy(dst, (const float *)planes->plane[OQ_PLANE_GLOBAL] + 1 + MAP,
           (size_t)nested_blocks(l) * sizeof(float));
}

/* JSON text of a fixed length, spaces behind it: the offset is known only once the layer is encoded. */
static void put_state(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const oq_format *f = l->scheme.weight;
    char nested[128] = "", text[STATE + 1];
    if (is_nested(f))
        snprintf(nested, sizeof nested,
                 ", \"nested_blocksize\": %d, \"nested_dtype\": \"float32\", \"nested_offset\": %.9g", NESTED,
                 (double)*(const float *)planes->plane[OQ_PLANE_GLOBAL]);
    const int n = snprintf(text, sizeof text,
                           "{\"quant_type\": \"%s\", \"blocksize\": %d, \"dtype\": \"bfloat16\", \"shape\": "
                           "[%lld, %lld]%s}",
                           is_nf4(f) ? "nf4" : "fp4", f->block_k, (long long)l->n, (long long)l->k, nested);
    memset(dst, ' ', STATE);
    memcpy(dst, text, (size_t)n);
}

static int spell(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const oq_format *f = l->scheme.weight;
    const int64_t total = l->n * l->k, blocks = oq_ceil_div(total, f->block_k ? f->block_k : 1);
    int n = 0;
    if (f != oq_format_bnb4(is_nf4(f), f->block_k, is_nested(f)) || l->scheme.act || total % 2) return 0;
    out[n++] = oq_spell_made(".weight", "U8", f->plane_bytes(f, OQ_PLANE_DATA, l->n, l->k), total / 2, 1,
                             oq_put_nibbles_swapped);
    out[n++] = oq_spell_plane(l, ".weight.absmax", is_nested(f) ? "U8" : "F32", OQ_PLANE_SCALE, blocks, -1);
    out[n++] = oq_spell_made(".weight.quant_map", "F32", 16 * sizeof(float), 16, -1, put_table);
    if (is_nested(f)) {
        out[n++] = oq_spell_made(".weight.nested_quant_map", "F32", MAP * sizeof(float), MAP, -1, put_map);
        out[n++] = oq_spell_made(".weight.nested_absmax", "F32", (size_t)nested_blocks(l) * sizeof(float),
                                 nested_blocks(l), -1, put_nested_absmax);
    }
    out[n++] = oq_spell_made(is_nf4(f) ? ".weight.quant_state.bitsandbytes__nf4"
                                       : ".weight.quant_state.bitsandbytes__fp4",
                             "U8", STATE, STATE, -1, put_state);
    return n;
}

static oq_json *config(const oq_write_component *c)
{
    const oq_format *f = c->layers[0].scheme.weight;
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "quant_method", oq_json_new_string("bitsandbytes"));
    oq_json_set(o, "load_in_4bit", oq_json_new_bool(true));
    oq_json_set(o, "load_in_8bit", oq_json_new_bool(false));
    oq_json_set(o, "bnb_4bit_quant_type", oq_json_new_string(is_nf4(f) ? "nf4" : "fp4"));
    oq_json_set(o, "bnb_4bit_use_double_quant", oq_json_new_bool(is_nested(f)));
    oq_json_set(o, "bnb_4bit_compute_dtype", oq_json_new_string("bfloat16"));
    oq_json_set(o, "bnb_4bit_quant_storage", oq_json_new_string("uint8"));
    oq_json_set(o, "llm_int8_skip_modules", oq_write_names(c->plain, c->n_plain));
    return o;
}

const oq_layout oq_layout_bitsandbytes = {
    .name = "bitsandbytes",
    .help = "NF4 and FP4 in blocks of 32 to 4096, absmax plain or nested",
    .producer = "bitsandbytes",
    .in_file = true,
    .spell = spell,
    .config = config,
};
