/* layout_torchao.c -- TorchAO's tensor subclasses as its safetensors form holds them: module.weight taken apart into
 * `_weight_qdata`, `_weight_scale` and so on; the header tells each weight's class and its arguments. */
#include "write/layout.h"

#include "base/size.h"

#include <stdio.h>
#include <string.h>

typedef enum class_kind { NOTHING, FLOAT8, INT8, INTX, MX, NVFP4 } class_kind;

static class_kind kind_of(const oq_write_layer *l)
{
    const oq_scheme *s = &l->scheme;
    const oq_format *f = s->weight;
    const bool token = s->act_scale == OQ_ACT_DYNAMIC_TOKEN, plain = !s->act;
    if (f == &oq_format_fp8_e4m3_channel) return plain || token ? FLOAT8 : NOTHING;
    if (f == &oq_format_int8_channel) return plain || token ? INT8 : NOTHING;
    if (f == &oq_format_mxfp8 || f == &oq_format_mxfp4)
        return l->k % 32 == 0 && (plain || oq_act_is_mx(s->act_scale)) ? MX : NOTHING;
    if (f == &oq_format_nvfp4)
        return l->k % 16 == 0 && (plain || s->act_scale == OQ_ACT_DYNAMIC_NVFP4 || l->input_scale > 0)
                   ? NVFP4
                   : NOTHING;
    return f->int_bits && plain && l->k % f->block_k == 0 ? INTX : NOTHING;
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

static void put_int_codes(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const int half = 1 << (l->scheme.weight->int_bits - 1);
    for (int64_t r = 0; r < l->n; r++)
        for (int64_t c = 0; c < l->k; c++)
            ((int8_t *)dst)[r * l->k + c] = (int8_t)((int)oq_write_int_code(l, planes, r, c) - half);
}

static void put_int_zeros(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    const oq_format *f = l->scheme.weight;
    const int half = 1 << (f->int_bits - 1);
    const int64_t groups = l->k / f->block_k;
    for (int64_t r = 0; r < l->n; r++)
        for (int64_t g = 0; g < groups; g++)
            ((int8_t *)dst)[r * groups + g] = (int8_t)((int)oq_write_int_zero(l, planes, r, g) - half);
}

static void put_no_zeros(void *dst, const oq_write_layer *l, const oq_planes *planes)
{
    (void)planes;
    memset(dst, 0, (size_t)l->n);
}

static int spell(const oq_write_layer *l, oq_spelled out[OQ_LAYOUT_MAX])
{
    const class_kind kind = kind_of(l);
    const oq_format *f = l->scheme.weight;
    const int64_t n = l->n, k = l->k, groups = f->block_k ? k / f->block_k : 1;
    const bool four = f == &oq_format_mxfp4 || f == &oq_format_nvfp4;
    if (kind == NOTHING) return 0;
    if (kind == INTX)
        out[0] = oq_spell_made("._weight_qdata", "I8", (size_t)(n * k), n, k, put_int_codes);
    else
        out[0] = oq_spell_plane(l, "._weight_qdata",
                                kind == INT8 ? "I8"
                                : four       ? "U8"
                                             : "F8_E4M3",
                                OQ_PLANE_DATA, n, four ? k / 2 : k);
    out[1] = oq_spell_plane(l, "._weight_scale",
                            kind == MX      ? "F8_E8M0"
                            : kind == NVFP4 ? "F8_E4M3"
                                            : "F32",
                            OQ_PLANE_SCALE, n, groups);
    switch (kind) {
    case INT8:
        out[2] = oq_spell_made("._weight_zero_point", "I8", (size_t)n, n, 1, put_no_zeros);
        return 3;
    case INTX:
        out[2] = oq_spell_made("._weight_zero_point", "I8", (size_t)(n * groups), n, groups, put_int_zeros);
        return 3;
    case NVFP4:
        out[2] = oq_spell_plane(l, "._weight_per_tensor_scale", "F32", OQ_PLANE_GLOBAL, -1, -1);
        if (!(l->input_scale > 0)) return 3;
        out[3] = oq_spell_input_scale("._weight_act_per_tensor_scale");
        return 4;
    default:
        return 2;
    }
}

/* ---- words of the header --------------------------------------------------------------------------------- */

static oq_json *typed(const char *type, oq_json *data)
{
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "_type", oq_json_new_string(type));
    oq_json_set(o, "_data", data);
    return o;
}

static oq_json *word(const char *type, const char *text)
{
    return typed(type, oq_json_new_string(text));
}

static oq_json *per_row(void)
{
    oq_json *o = oq_json_new_object();
    oq_json_set(o, "dim", oq_json_new_int(-1));
    return typed("PerRow", o);
}

static oq_json *block_of(int64_t rows, int64_t columns)
{
    oq_json *list = oq_json_new_array();
    oq_json_append(list, oq_json_new_int(rows));
    oq_json_append(list, oq_json_new_int(columns));
    return list;
}

/* The argument "act_quant_kwargs" of the class; null where x stays as it is. */
static oq_json *act_of(class_kind kind, const oq_write_layer *l, const char *element)
{
    static const char *const names[] = {[FLOAT8] = "QuantizeTensorToFloat8Kwargs",
                                        [INT8] = "QuantizeTensorToInt8Kwargs",
                                        [MX] = "QuantizeTensorToMXKwargs",
                                        [NVFP4] = "QuantizeTensorToNVFP4Kwargs"};
    if (!l->scheme.act) return oq_json_new_null();
    oq_json *o = oq_json_new_object();
    switch (kind) {
    case FLOAT8:
        oq_json_set(o, "float8_dtype", word("torch.dtype", "float8_e4m3fn"));
        oq_json_set(o, "granularity", per_row());
        oq_json_set(o, "kernel_preference", word("KernelPreference", "AUTO"));
        break;
    case INT8:
        oq_json_set(o, "granularity", per_row());
        oq_json_set(o, "mapping_type", word("MappingType", "SYMMETRIC"));
        break;
    case MX:
        oq_json_set(o, "elem_dtype", word("torch.dtype", element));
        oq_json_set(o, "block_size", oq_json_new_int(32));
        oq_json_set(o, "scaling_mode",
                    word("ScaleCalculationMode", l->scheme.act_scale == OQ_ACT_DYNAMIC_MX_CEIL   ? "RCEIL"
                                                 : l->scheme.act_scale == OQ_ACT_DYNAMIC_MX_EVEN ? "EVEN"
                                                                                                 : "FLOOR"));
        oq_json_set(o, "kernel_preference", word("KernelPreference", "AUTO"));
        oq_json_set(o, "is_swizzled_scales", oq_json_new_bool(false));
        break;
    default:
        oq_json_set(o, "block_size", oq_json_new_int(16));
        oq_json_set(o, "is_swizzled_scales", oq_json_new_bool(false));
        oq_json_set(o, "use_dynamic_per_tensor_scale", oq_json_new_bool(!(l->input_scale > 0)));
        break;
    }
    return typed(names[kind], o);
}

/* Arguments of the class besides its tensors. */
static oq_json *data_of(class_kind kind, const oq_write_layer *l)
{
    const oq_format *f = l->scheme.weight;
    const char *element = f == &oq_format_mxfp4 ? "float4_e2m1fn_x2" : "float8_e4m3fn";
    char bits[16];
    oq_json *o = oq_json_new_object();
    if (kind == MX || kind == NVFP4) {
        oq_json_set(o, "block_size", oq_json_new_int(f->block_k));
        oq_json_set(o, "orig_dtype", word("torch.dtype", "bfloat16"));
        oq_json_set(o, "is_swizzled_scales", oq_json_new_bool(false));
    } else {
        oq_json_set(o, "block_size", block_of(1, f->block_k ? f->block_k : l->k));
        oq_json_set(o, "dtype", word("torch.dtype", "bfloat16"));
    }
    if (kind == INTX) {
        snprintf(bits, sizeof bits, "int%d", f->int_bits);
        oq_json_set(o, "target_dtype", word("torch.dtype", bits));
        oq_json_set(o, "activation_quantization", oq_json_new_null());
        return o;
    }
    oq_json_set(o, "act_quant_kwargs", act_of(kind, l, element));
    if (kind == FLOAT8) oq_json_set(o, "mm_config", oq_json_new_null());
    if (kind == FLOAT8 || kind == MX) oq_json_set(o, "kernel_preference", word("KernelPreference", "AUTO"));
    if (kind == MX) oq_json_set(o, "elem_dtype", word("torch.dtype", element));
    if (kind == NVFP4) oq_json_set(o, "use_triton_kernel", oq_json_new_bool(false));
    return o;
}

static oq_json *class_of(const oq_write_layer *l)
{
    static const char *const names[] = {[FLOAT8] = "Float8Tensor",
                                        [INT8] = "Int8Tensor",
                                        [INTX] = "IntxUnpackedToInt8Tensor",
                                        [MX] = "MXTensor",
                                        [NVFP4] = "NVFP4Tensor"};
    const size_t skip = strlen("._weight_");
    oq_spelled spelled[OQ_LAYOUT_MAX];
    oq_json *o = typed(names[kind_of(l)], data_of(kind_of(l), l)), *tensors = oq_json_new_array();
    const int n = spell(l, spelled);
    for (int i = 0; i < n; i++) oq_json_append(tensors, oq_json_new_string(spelled[i].suffix + skip));
    oq_json_set(o, "_tensor_data_names", tensors);
    return o;
}

static void put_text(const oq_write_component *c, oq_json *header, const char *key, oq_json *value)
{
    char *text = NULL;
    if (oq_json_dump(c->env, value, OQ_JSON_COMPACT, &text) == OQ_OK)
        oq_json_set(header, key, oq_json_new_string(text));
    oq_free(c->env, text);
    oq_json_free(value);
}

/* Its reader takes names apart at their last dot; one without stays out of the list, where it is read as it is. */
static void metadata(const oq_write_component *c, oq_json *header)
{
    oq_json *names = oq_json_new_array();
    for (size_t i = 0; i < c->n_layers; i++) {
        char key[1024];
        snprintf(key, sizeof key, "%s.weight", c->layers[i].name);
        oq_json_append(names, oq_json_new_string(key));
        put_text(c, header, key, class_of(&c->layers[i]));
    }
    for (size_t i = 0; i < c->n_tensors; i++) {
        oq_json *plain = oq_json_new_object();
        if (!strchr(c->tensors[i], '.')) {
            oq_json_free(plain);
            continue;
        }
        oq_json_append(names, oq_json_new_string(c->tensors[i]));
        oq_json_set(plain, "_type", oq_json_new_string("Tensor"));
        put_text(c, header, c->tensors[i], plain);
    }
    put_text(c, header, "tensor_names", names);
}

/* ---- config.json ----------------------------------------------------------------------------------------- */

/* A configuration of the version whose classes are written: readers refuse those before it by name. */
static oq_json *second(const char *type, oq_json *data)
{
    oq_json *o = typed(type, data);
    oq_json_set(o, "_version", oq_json_new_int(2));
    return o;
}

/* The configuration that makes such a layer. */
static oq_json *recipe_of(const oq_write_layer *l)
{
    const bool act = l->scheme.act != NULL;
    const oq_format *f = l->scheme.weight;
    oq_json *o = oq_json_new_object(), *group = NULL;
    char bits[16];
    switch (kind_of(l)) {
    case FLOAT8:
        if (act) oq_json_set(o, "granularity", per_row());
        return second(act ? "Float8DynamicActivationFloat8WeightConfig" : "Float8WeightOnlyConfig", o);
    case INT8:
        return second(act ? "Int8DynamicActivationInt8WeightConfig" : "Int8WeightOnlyConfig", o);
    case INTX:
        group = oq_json_new_object();
        snprintf(bits, sizeof bits, "int%d", f->int_bits);
        oq_json_set(group, "group_size", oq_json_new_int(f->block_k));
        oq_json_set(o, "granularity", typed("PerGroup", group));
        oq_json_set(o, "weight_dtype", word("torch.dtype", bits));
        return second("IntxWeightOnlyConfig", o);
    case MX:
        oq_json_set(o, "weight_dtype",
                    word("torch.dtype", f == &oq_format_mxfp4 ? "float4_e2m1fn_x2" : "float8_e4m3fn"));
        oq_json_set(o, "activation_dtype",
                    word("torch.dtype", f == &oq_format_mxfp4 ? "float4_e2m1fn_x2" : "float8_e4m3fn"));
        return typed("MXDynamicActivationMXWeightConfig", o);
    default:
        return typed(act ? "NVFP4DynamicActivationNVFP4WeightConfig" : "NVFP4WeightOnlyConfig", o);
    }
}

static oq_json *config(const oq_write_component *c)
{
    oq_json *o = oq_json_new_object(), *type = oq_json_new_object();
    oq_json_set(type, "default", recipe_of(&c->layers[0]));
    oq_json_set(o, "quant_method", oq_json_new_string("torchao"));
    oq_json_set(o, "quant_type", type);
    oq_json_set(o, "modules_to_not_convert", oq_write_names(c->plain, c->n_plain));
    return o;
}

const oq_layout oq_layout_torchao = {
    .name = "torchao",
    .help = "FP8 and INT8 per row, integers in groups, MXFP8, MXFP4, NVFP4, each weight telling its class",
    .producer = "TorchAO, diffusers",
    .in_file = true,
    .spell = spell,
    .config = config,
    .metadata = metadata,
};
