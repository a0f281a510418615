/* layout_compressed_tensors.c -- llm-compressor's layouts: float-quantized, int-quantized, MXFP8, MXFP4, NVFP4 and integers
 * packed into words, in groups of layers of one scheme. */
#include "write/layout.h"

#include "base/size.h"
#include "format/float4.h"

#include <stdio.h>
#include <string.h>

typedef struct row {
    const oq_format *format;
    const char *layout, *type, *strategy;
    int bits, group;
} row;

static const row rows[] = {
    {&oq_format_fp8_e4m3_tensor, "float-quantized", "float", "tensor", 8, 0},
    {&oq_format_fp8_e4m3_channel, "float-quantized", "float", "channel", 8, 0},
    {&oq_format_fp8_e4m3_block128, "float-quantized", "float", "block", 8, 0},
    {&oq_format_int8_tensor, "int-quantized", "int", "tensor", 8, 0},
    {&oq_format_int8_channel, "int-quantized", "int", "channel", 8, 0},
    {&oq_format_mxfp8, "mxfp8-quantized", "float", "group", 8, 32},
    {&oq_format_mxfp4, "mxfp4-pack-quantized", "float", "group", 4, 32},
    {&oq_format_mxfp4_q725, "mxfp4-pack-quantized", "float", "group", 4, 32},
    {&oq_format_nvfp4, "nvfp4-pack-quantized", "float", "tensor_group", 4, 16},
    {&oq_format_nvfp4_inverse, "nvfp4-pack-quantized", "float", "tensor_group", 4, 16},
};

static bool find(const oq_format *f, row *out)
{
    const int bits = f->int_bits;
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        if (rows[i].format == f) {
            *out = rows[i];
            return true;
        }
    *out = (row){f, "pack-quantized", "int", "group", bits, f->block_k};
    return bits != 0;
}

/* [n, k], as two I64. */
static void put_shape(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    (void)planes;
    const int64_t shape[2] = {l->n, l->k};
    memcpy(dst, shape, sizeof shape);
}

/* Zero points of as many rows as a word takes, the first of them in its low bits. */
static void put_zeros(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const int bits = l->scheme.weight->int_bits, per_word = 32 / bits;
    const int64_t groups = oq_ceil_div(l->k, l->scheme.weight->block_k);
    for (int64_t r = 0; r < oq_ceil_div(l->n, per_word); r++)
        for (int64_t g = 0; g < groups; g++) {
            uint32_t word = 0;
            for (int64_t i = 0; i < per_word && r * per_word + i < l->n; i++)
                word |= (uint32_t)oq_write_int_zero(l, planes, r * per_word + i, g) << (bits * i);
            memcpy((char *)dst + (r * groups + g) * 4, &word, sizeof word);
        }
}

static int spell_packed(const oq_write_layer *l, const row *r, oq_spelled *out)
{
    const int64_t groups = l->k / r->group, words = l->k * r->bits / 32;
    const bool asymmetric = !oq_write_symmetric(l->scheme.weight);
    int n = 0;
    if (l->k % r->group || l->k * r->bits % 32 || (asymmetric && 32 % r->bits)) return 0;
    out[n++] = oq_spell_plane(l, ".weight_packed", "I32", OQ_PLANE_DATA, l->n, words);
    out[n++] = oq_spell_plane(l, ".weight_scale", "F32", OQ_PLANE_SCALE, l->n, groups);
    out[n++] = oq_spell_made(".weight_shape", "I64", 2 * sizeof(int64_t), 2, -1, put_shape);
    if (asymmetric) {
        const int64_t rows_of_words = oq_ceil_div(l->n, 32 / r->bits);
        out[n++] = oq_spell_made(".weight_zero_point", "I32", (size_t)(rows_of_words * groups) * 4,
                                 rows_of_words, groups, put_zeros);
    }
    return n;
}

static int spell_mx(const oq_write_layer *l, const row *r, oq_spelled *out)
{
    if (l->k % 32) return 0;
    out[0] = r->bits == 4 ? oq_spell_plane(l, ".weight_packed", "U8", OQ_PLANE_DATA, l->n, l->k / 2)
                          : oq_spell_plane(l, ".weight", "F8_E4M3", OQ_PLANE_DATA, l->n, l->k);
    out[1] = oq_spell_plane(l, ".weight_scale", "U8", OQ_PLANE_SCALE, l->n, l->k / 32);
    return 2;
}

/* Scales of the tensor are divisors here. */
static const oq_format *own(const oq_format *f)
{
    return f == &oq_format_nvfp4 ? &oq_format_nvfp4_inverse : NULL;
}

static void put_input_divisor(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const float divisor = 1.0f / l->input_scale;
    (void)planes;
    memcpy(dst, &divisor, sizeof divisor);
}

static int spell_nvfp4(const oq_write_layer *l, oq_spelled *out)
{
    if (l->k % 16 || (l->scheme.act && !(l->input_scale > 0)))
        return 0; /* activations need a scale that was measured */
    out[0] = oq_spell_plane(l, ".weight_packed", "U8", OQ_PLANE_DATA, l->n, l->k / 2);
    out[1] = oq_spell_plane(l, ".weight_scale", "F8_E4M3", OQ_PLANE_SCALE, l->n, l->k / 16);
    out[2] = oq_spell_plane(l, ".weight_global_scale", "F32", OQ_PLANE_GLOBAL, 1, -1);
    if (!l->scheme.act) return 3;
    out[3] = oq_spell_made(".input_global_scale", "F32", sizeof(float), 1, -1, put_input_divisor);
    out[3].plane = OQ_PLANE_INPUT_SCALE;
    return 4;
}

static int spell(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    row found, *r = &found;
    if (!find(l->scheme.weight, r)) return 0;
    if (strcmp(r->layout, "pack-quantized") == 0) return l->scheme.act ? 0 : spell_packed(l, r, out);
    if (strncmp(r->layout, "mx", 2) == 0) return spell_mx(l, r, out);
    if (strncmp(r->layout, "nvfp4", 5) == 0) return spell_nvfp4(l, out);
    const bool block = strcmp(r->strategy, "block") == 0, tensor = strcmp(r->strategy, "tensor") == 0;
    out[0] = oq_spell_plane(l, ".weight", strcmp(r->type, "int") == 0 ? "I8" : "F8_E4M3", OQ_PLANE_DATA, l->n,
                            l->k);
    out[1] = oq_spell_plane(l, ".weight_scale", "F32", OQ_PLANE_SCALE,
                            tensor  ? 1
                            : block ? oq_ceil_div(l->n, 128)
                                    : l->n,
                            tensor  ? -1
                            : block ? oq_ceil_div(l->k, 128)
                                    : 1);
    if (l->scheme.act_scale != OQ_ACT_STATIC_TENSOR) return 2;
    out[2] = oq_spell_input_scale(".input_scale");
    out[2].n_dims = 1, out[2].dim[0] = 1;
    return 3;
}

/* ---- metadata ------------------------------------------------------------------------------------------ */

static oq_json *args_of(const char *type, int bits, const char *strategy, bool symmetric, int group,
                        bool dynamic)
{
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "num_bits", oq_json_new_int(bits));
    oq_json_set(o, "type", oq_json_new_string(type));
    oq_json_set(o, "strategy", oq_json_new_string(strategy));
    oq_json_set(o, "symmetric", oq_json_new_bool(symmetric));
    oq_json_set(o, "dynamic", oq_json_new_bool(dynamic));
    oq_json_set(o, "group_size", group ? oq_json_new_int(group) : oq_json_new_null());
    oq_json *block = oq_json_new_null();
    if (strcmp(strategy, "block") == 0) {
        oq_json_free(block);
        block = oq_json_new_array();
        oq_json_append(block, oq_json_new_int(128));
        oq_json_append(block, oq_json_new_int(128));
    }
    oq_json_set(o, "block_structure", block);
    if (group && strcmp(type, "float") == 0 && group <= 32)
        oq_json_set(o, "scale_dtype",
                    oq_json_new_string(group == 32 ? "torch.uint8" : "torch.float8_e4m3fn"));
    return o;
}

static oq_json *inputs_of(const oq_scheme *s)
{
    if (!s->act) return oq_json_new_null();
    const int bits = s->act == &oq_dtype_f4_e2m1 ? 4 : 8;
    const char *type = s->act == &oq_dtype_i8 ? "int" : "float";
    oq_json *local = NULL;
    switch (s->act_scale) {
    case OQ_ACT_STATIC_NVFP4:
        local = args_of(type, bits, "tensor_group", true, OQ_ACT_NVFP4_GROUP, true);
        oq_json_set(local, "dynamic", oq_json_new_string("local"));
        return local;
    case OQ_ACT_STATIC_TENSOR:
        return args_of(type, bits, "tensor", true, 0, false);
    case OQ_ACT_DYNAMIC_TOKEN:
        return args_of(type, bits, "token", true, 0, true);
    case OQ_ACT_DYNAMIC_GROUP:
        return args_of(type, bits, "group", true, OQ_ACT_GROUP, true);
    default:
        return args_of(type, bits, "group", true, OQ_ACT_MX_GROUP, true);
    }
}

static oq_json *group_of(const oq_scheme *s, oq_json *targets)
{
    row found, *r = &found;
    find(s->weight, r);
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "format", oq_json_new_string(r->layout));
    oq_json_set(o, "targets", targets);
    oq_json_set(o, "weights",
                args_of(r->type, r->bits, r->strategy, oq_write_symmetric(s->weight), r->group, false));
    oq_json_set(o, "input_activations", inputs_of(s));
    oq_json_set(o, "output_activations", oq_json_new_null());
    return o;
}

/* Layers of the scheme of layer `first`, by name. */
static oq_json *targets_like(const oq_write_component *c, size_t first)
{
    oq_json *list = oq_json_new_array();
    for (size_t i = first; i < c->n_layers; i++)
        if (oq_scheme_equal(&c->layers[i].scheme, &c->layers[first].scheme))
            oq_json_append(list, oq_json_new_string(c->layers[i].name));
    return list;
}

static bool is_new_scheme(const oq_write_component *c, size_t i)
{
    for (size_t j = 0; j < i; j++)
        if (oq_scheme_equal(&c->layers[j].scheme, &c->layers[i].scheme)) return false;
    return true;
}

static oq_json *config(const oq_write_component *c)
{
    oq_json *o = oq_json_new_object(), *groups = oq_json_new_object();
    const bool uniform = oq_write_uniform(c);
    int n = 0;
    for (size_t i = 0; i < c->n_layers; i++) {
        char key[32];
        if (!is_new_scheme(c, i)) continue;
        oq_json *targets = uniform ? oq_json_new_array() : targets_like(c, i);
        if (uniform) oq_json_append(targets, oq_json_new_string("Linear"));
        snprintf(key, sizeof key, "group_%d", n++);
        oq_json_set(groups, key, group_of(&c->layers[i].scheme, targets));
    }
    oq_json_set(o, "quant_method", oq_json_new_string("compressed-tensors"));
    row first;
    find(c->layers[0].scheme.weight, &first);
    oq_json_set(o, "format", oq_json_new_string(n == 1 ? first.layout : "mixed-precision"));
    oq_json_set(o, "quantization_status", oq_json_new_string("compressed"));
    oq_json_set(o, "config_groups", groups);
    oq_json_set(o, "ignore", oq_write_names(c->plain, c->n_plain));
    oq_json_set(o, "kv_cache_scheme", oq_json_new_null());
    return o;
}

const oq_layout oq_layout_compressed_tensors = {
    .name = "compressed-tensors",
    .help =
        "FP8 (tensor, channel, 128x128), INT8, MXFP8, MXFP4, NVFP4, integers of 2, 3, 4, 8 bits in groups",
    .producer = "llm-compressor",
    .own = own,
    .spell = spell,
    .config = config,
};
