/* layout_modelopt.c -- NVIDIA ModelOpt's layouts: FP8 with static activations, FP8 per channel, FP8 in 128x128 blocks, NVFP4
 * with scales in rows, MXFP8, INT8 with SmoothQuant's factors; one algorithm for all layers or one each. */
#include "write/layout.h"

#include "base/size.h"

#include <string.h>

/* The algorithm of a scheme; NULL: ModelOpt has none. */
static const char *algorithm(const oq_write_layer *l)
{
    const oq_scheme *s = &l->scheme;
    const oq_format *f = s->weight;
    if (f == &oq_format_fp8_e4m3_tensor && s->act_scale == OQ_ACT_STATIC_TENSOR) return "FP8";
    if (f == &oq_format_fp8_e4m3_channel && s->act_scale == OQ_ACT_DYNAMIC_TOKEN)
        return "FP8_PER_CHANNEL_PER_TOKEN";
    if (f == &oq_format_fp8_e4m3_block128) return "FP8_PB_WO";
    if (f == &oq_format_nvfp4) return l->input_scale > 0 ? "NVFP4" : "W4A16_NVFP4";
    if (f == &oq_format_mxfp8) return "MXFP8";
    if (f == &oq_format_int8_channel && s->act_scale == OQ_ACT_STATIC_TENSOR && s->smooth)
        return "W8A8_SQ_PER_CHANNEL";
    return NULL;
}

static int spell_fp8(const oq_write_layer *l, oq_spelled *out)
{
    const oq_format *f = l->scheme.weight;
    const bool block = f == &oq_format_fp8_e4m3_block128, tensor = f == &oq_format_fp8_e4m3_tensor;
    out[0] = oq_spell_plane(l, ".weight", "F8_E4M3", OQ_PLANE_DATA, l->n, l->k);
    out[1] = oq_spell_plane(l, ".weight_scale", "F32", OQ_PLANE_SCALE,
                            tensor  ? -1
                            : block ? oq_ceil_div(l->n, 128)
                                    : l->n,
                            block ? oq_ceil_div(l->k, 128) : -1);
    if (!tensor) return 2;
    out[2] = oq_spell_input_scale(".input_scale");
    return 3;
}

static int spell_int8(const oq_write_layer *l, oq_spelled *out)
{
    out[0] = oq_spell_plane(l, ".weight", "I8", OQ_PLANE_DATA, l->n, l->k);
    out[1] = oq_spell_plane(l, ".weight_scale", "F32", OQ_PLANE_SCALE, l->n, -1);
    out[2] = oq_spell_input_scale(".input_scale");
    out[3] = oq_spell_smooth(l, ".pre_quant_scale");
    return 4;
}

static int spell_nvfp4(const oq_write_layer *l, oq_spelled *out)
{
    if (l->k % 16) return 0;
    out[0] = oq_spell_plane(l, ".weight", "U8", OQ_PLANE_DATA, l->n, l->k / 2);
    out[1] = oq_spell_plane(l, ".weight_scale", "F8_E4M3", OQ_PLANE_SCALE, l->n, l->k / 16);
    out[2] = oq_spell_plane(l, ".weight_scale_2", "F32", OQ_PLANE_GLOBAL, -1, -1);
    if (!(l->input_scale > 0)) return 3;
    out[3] = oq_spell_input_scale(".input_scale");
    return 4;
}

static int spell(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const char *algo = algorithm(l);
    if (!algo) return 0;
    if (l->scheme.weight == &oq_format_nvfp4) return spell_nvfp4(l, out);
    if (l->scheme.weight == &oq_format_int8_channel) return spell_int8(l, out);
    if (strcmp(algo, "MXFP8") != 0) return spell_fp8(l, out);
    if (l->k % 32) return 0;
    out[0] = oq_spell_plane(l, ".weight", "F8_E4M3", OQ_PLANE_DATA, l->n, l->k);
    out[1] = oq_spell_plane(l, ".weight_scale", "U8", OQ_PLANE_SCALE, l->n, l->k / 32);
    return 2;
}

static void put_producer(oq_json *o)
{
    oq_json *producer = oq_json_new_object();
    oq_json_set(producer, "name", oq_json_new_string("modelopt"));
    oq_json_set(producer, "version", oq_json_new_string("0.47.0"));
    oq_json_set(o, "producer", producer);
}

static oq_json *config(const oq_write_component *c)
{
    oq_json *o = oq_json_new_object();
    bool uniform = true;
    for (size_t i = 1; i < c->n_layers; i++)
        uniform &= strcmp(algorithm(&c->layers[i]), algorithm(&c->layers[0])) == 0;
    oq_json_set(o, "quant_method", oq_json_new_string("modelopt"));
    oq_json_set(o, "quant_algo", oq_json_new_string(uniform ? algorithm(&c->layers[0]) : "MIXED_PRECISION"));
    if (!uniform) {
        oq_json *layers = oq_json_new_object();
        for (size_t i = 0; i < c->n_layers; i++) {
            oq_json *word = oq_json_new_object();
            const char *algo = algorithm(&c->layers[i]);
            oq_json_set(word, "quant_algo", oq_json_new_string(algo));
            if (c->layers[i].scheme.weight == &oq_format_nvfp4)
                oq_json_set(word, "group_size", oq_json_new_int(16));
            oq_json_set(layers, c->layers[i].name, word);
        }
        oq_json_set(o, "quantized_layers", layers);
    }
    oq_json_set(o, "ignore", oq_write_names(c->plain, c->n_plain));
    put_producer(o);
    return o;
}

const oq_layout oq_layout_modelopt = {
    .name = "modelopt",
    .help =
        "FP8 (static activations; per channel and token; 128x128), NVFP4, MXFP8, smoothed INT8, or a mixture",
    .producer = "NVIDIA ModelOpt",
    .spell = spell,
    .config = config,
};
