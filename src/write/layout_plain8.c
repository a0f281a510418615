/* layout_plain8.c -- 8-bit weights beside a scale, in the simplest spellings: transformers' fp8, int8 per row, and
 * optimum-quanto's. */
#include "write/layout.h"

#include "base/size.h"

#include <string.h>

static void put_one(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const float one = 1.0f;
    (void)l, (void)planes;
    memcpy(dst, &one, sizeof one);
}

static bool is_fp8(const oq_format *f)
{
    return f == &oq_format_fp8_e4m3_tensor || f == &oq_format_fp8_e4m3_channel;
}

/* ---- fp8 ----------------------------------------------------------------------------------------------- */

static int spell_fp8(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const oq_format *f = l->scheme.weight;
    const bool block = f == &oq_format_fp8_e4m3_block128;
    if (!is_fp8(f) && !block) return 0;
    out[0] = oq_spell_plane(l, ".weight", "F8_E4M3", OQ_PLANE_DATA, l->n, l->k);
    if (block)
        out[1] = oq_spell_plane(l, ".weight_scale_inv", "F32", OQ_PLANE_SCALE, oq_ceil_div(l->n, 128),
                                oq_ceil_div(l->k, 128));
    else
        out[1] = oq_spell_plane(l, ".weight_scale", "F32", OQ_PLANE_SCALE,
                                f == &oq_format_fp8_e4m3_tensor ? -1 : l->n, -1);
    if (l->scheme.act_scale != OQ_ACT_STATIC_TENSOR) return 2;
    out[2] = oq_spell_input_scale(".input_scale");
    return 3;
}

static oq_json *config_fp8(const oq_write_component *c)
{
    oq_json *o = oq_json_new_object(), *block = NULL;
    const oq_scheme *s = &c->layers[0].scheme;
    oq_json_set(o, "quant_method", oq_json_new_string("fp8"));
    oq_json_set(o, "fmt", oq_json_new_string("e4m3"));
    oq_json_set(o, "activation_scheme",
                oq_json_new_string(s->act_scale == OQ_ACT_STATIC_TENSOR ? "static" : "dynamic"));
    if (s->weight == &oq_format_fp8_e4m3_block128) {
        block = oq_json_new_array();
        oq_json_append(block, oq_json_new_int(128));
        oq_json_append(block, oq_json_new_int(128));
        oq_json_set(o, "weight_block_size", block);
    }
    oq_json_set(o, "modules_to_not_convert", oq_write_names(c->plain, c->n_plain));
    return o;
}

const oq_layout oq_layout_fp8 = {
    .name = "fp8",
    .help = "FP8 per tensor, per channel or in 128x128 blocks",
    .producer = "transformers, vLLM",
    .in_file = true,
    .spell = spell_fp8,
    .config = config_fp8,
};

/* ---- int8 ---------------------------------------------------------------------------------------------- */

static int spell_int8(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const bool tensor = l->scheme.weight == &oq_format_int8_tensor;
    if (!tensor && l->scheme.weight != &oq_format_int8_channel) return 0;
    out[0] = oq_spell_plane(l, ".weight", "I8", OQ_PLANE_DATA, l->n, l->k);
    out[1] = oq_spell_plane(l, ".weight_scale", "F32", OQ_PLANE_SCALE, tensor ? -1 : l->n, -1);
    if (l->scheme.act_scale != OQ_ACT_STATIC_TENSOR) return 2;
    out[2] = oq_spell_input_scale(".input_scale");
    return 3;
}

static oq_json *config_int8(const oq_write_component *c)
{
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "quant_method", oq_json_new_string("int8"));
    oq_json_set(o, "is_checkpoint_int8_serialized", oq_json_new_bool(true));
    oq_json_set(o, "ignored_layers", oq_write_names(c->plain, c->n_plain));
    return o;
}

const oq_layout oq_layout_int8 = {
    .name = "int8",
    .help = "INT8 per row or per tensor",
    .producer = "vLLM-Omni",
    .in_file = true,
    .spell = spell_int8,
    .config = config_int8,
};

/* ---- quanto -------------------------------------------------------------------------------------------- */

static int spell_quanto(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const oq_format *f = l->scheme.weight;
    if (f != &oq_format_int8_channel && f != &oq_format_fp8_e4m3_channel) return 0;
    out[0] = oq_spell_plane(l, ".weight._data", f == &oq_format_int8_channel ? "I8" : "F8_E4M3",
                            OQ_PLANE_DATA, l->n, l->k);
    out[1] = oq_spell_plane(l, ".weight._scale", "F32", OQ_PLANE_SCALE, l->n, 1);
    out[2] = oq_spell_made(".input_scale", "F32", sizeof(float), -1, -1, put_one);
    out[3] = oq_spell_made(".output_scale", "F32", sizeof(float), -1, -1, put_one);
    return 4;
}

static oq_json *config_quanto(const oq_write_component *c)
{
    oq_json *o = oq_json_new_object();
    const bool int8 = c->layers[0].scheme.weight == &oq_format_int8_channel;
    oq_json_set(o, "quant_method", oq_json_new_string("quanto"));
    oq_json_set(o, "weights_dtype", oq_json_new_string(int8 ? "int8" : "float8"));
    oq_json_set(o, "modules_to_not_convert", oq_write_names(c->plain, c->n_plain));
    return o;
}

const oq_layout oq_layout_quanto = {
    .name = "quanto",
    .help = "INT8 or FP8 per row, activations plain",
    .producer = "optimum-quanto",
    .in_file = true,
    .spell = spell_quanto,
    .config = config_quanto,
};
