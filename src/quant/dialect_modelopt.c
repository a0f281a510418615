/* dialect_modelopt.c -- NVIDIA ModelOpt's layouts: `weight` with `weight_scale`, an `input_scale` where activations are
 * static, factors of the input (pre_quant_scale) and a low-rank branch (svdquant_lora_a, _b). The algorithm is one for the file (quant_algo), or one per layer
 * (MIXED_PRECISION: quantized_layers). */
#include "quant/around_planes.h"
#include "quant/block_planes.h"
#include "quant/method_modelopt.h"
#include "quant/dialect_comfy.h"
#include "quant/scaled_planes.h"

#include "base/names.h"

#include <string.h>

#define AROUND "pre_quant_scale,svdquant_lora_a,svdquant_lora_b"

static const oq_scaled_spelling fp8 = {
    .code = &oq_dtype_f8_e4m3,
    .tensor = &oq_format_fp8_e4m3_tensor,
    .channel = &oq_format_fp8_e4m3_channel,
    .block = &oq_format_fp8_e4m3_block128,
    .scale_names = "weight_scale",
};
static const oq_scaled_spelling int8 = {
    .code = &oq_dtype_i8,
    .tensor = &oq_format_int8_tensor,
    .channel = &oq_format_int8_channel,
    .scale_names = "weight_scale",
    .spare_names = AROUND,
};

/* x times these before its quantization; the branch of NVFP4_SVD takes it after them. */
static const oq_around_names around = {
    .smooth = "pre_quant_scale", .down = "svdquant_lora_a", .up = "svdquant_lora_b", .smoothed_branch = true};

typedef struct algorithm_row {
    const char *name;
    const oq_scaled_spelling *spelling;
    oq_scaled_rules rules;
    oq_block_layout block; /* where spelling is NULL */
    bool smooth, branch;   /* layers may have factors of their input, and a low-rank branch */
} algorithm_row;

static const algorithm_row algorithms[] = {
    {"FP8", &fp8, {OQ_SCALED_ACT_STATIC, &oq_format_fp8_e4m3_tensor}, {0}, false, false},
    {"FP8_PER_CHANNEL_PER_TOKEN",
     &fp8,
     {OQ_SCALED_ACT_DYNAMIC, &oq_format_fp8_e4m3_channel},
     {0},
     false,
     false},
    {"FP8_PB_WO", &fp8, {OQ_SCALED_ACT_NONE, &oq_format_fp8_e4m3_block128}, {0}, false, false},
    {"W8A8_SQ_PER_CHANNEL", &int8, {OQ_SCALED_ACT_STATIC, &oq_format_int8_channel}, {0}, true, false},
    {"NVFP4", NULL, {0}, {0}, false, false},
    {"NVFP4_AWQ", NULL, {0}, {0}, true, false},
    {"NVFP4_SVD", NULL, {0}, {0}, true, true},
    {"W4A16_NVFP4", NULL, {0}, {.weight_only = true}, false, false},
    {"MXFP8", NULL, {0}, {.kind = OQ_BLOCK_MXFP8}, false, false},
};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    return named ? named->options == oq_method_modelopt.options
                 : !oq_comfy_marked(ckpt) && oq_block_look(ckpt).rows;
}

/* The algorithm that the metadata gives one layer; NULL in *out: none, the layer is plain. */
static oq_status find_algorithm(oq_env *env, const oq_declared *declared, const char *name,
                                const algorithm_row **out)
{
    const oq_json *options = declared->options;
    const oq_json *from = options;
    *out = NULL;
    if (declared->method == &oq_method_modelopt_mixed)
        from = oq_json_get(oq_json_get(options, "quantized_layers"), name);
    if (!from) return OQ_OK;
    const char *algo = oq_json_string(oq_json_get(from, "quant_algo"));
    for (size_t i = 0; algo && i < OQ_COUNT(algorithms) && !*out; i++)
        if (oq_name_equal(algorithms[i].name, algo)) *out = &algorithms[i];
    if (*out) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s': quant_algo '%s' is not in this build yet; FP8, FP8_PER_CHANNEL_PER_TOKEN, "
                   "FP8_PB_WO, W8A8_SQ_PER_CHANNEL, NVFP4, NVFP4_AWQ, NVFP4_SVD, W4A16_NVFP4 and MXFP8 are",
                   name, algo ? algo : "(none)");
}

/* Floating weights without a scale beside them; also a layer that the checkpoint does not have at all. */
static bool is_plain(const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    return !oq_scaled_find(ckpt, name, "weight_scale") &&
           (!t || (t->dtype && t->dtype->floating && t->dtype->bytes > 1));
}

static bool has_input_scale(const oq_ckpt *ckpt)
{
    static const char ending[] = ".input_scale";
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const size_t n = strlen(ckpt->tensors[i].name), m = sizeof ending - 1;
        if (n > m && strcmp(ckpt->tensors[i].name + n - m, ending) == 0) return true;
    }
    return false;
}

/* NVFP4 whose file says nothing: ModelOpt's, where the scales can only be in rows. */
static oq_status read_declared(oq_env *env, const oq_declare_input *in, oq_declared *out)
{
    oq_declare_input input = *in;
    if (oq_json_type(in->quant) != OQ_JSON_NULL) return oq_declared_read(env, in, out);
    oq_json *quant = oq_json_new_object();
    const bool ok = oq_json_set(quant, "quant_algo",
                                oq_json_new_string(has_input_scale(in->ckpt) ? "NVFP4" : "W4A16_NVFP4")) &&
                    oq_json_append(in->held, quant);
    if (!ok) return oq_fail(env, OQ_E_NOMEM, "no memory for quantization metadata");
    input.quant = quant;
    input.method = &oq_method_modelopt_fp4;
    return oq_declared_read(env, &input, out);
}

/* A layer that the metadata leaves out must be plain. */
static oq_status check_plain(oq_env *env, const oq_ckpt *ckpt, const char *name)
{
    const oq_ckpt_tensor *t = oq_scaled_find(ckpt, name, "weight");
    if (!t || (t->dtype && t->dtype->floating && t->dtype->bytes > 1)) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT, "tensor '%s' is %s, but quantized_layers does not name '%s'", t->name,
                   t->type_name, name);
}

/* Tensors around the product that the layer's algorithm does not have: left out, they would make another picture. */
static oq_status refuse_around(oq_env *env, const oq_ckpt *ckpt, const char *name, const algorithm_row *row)
{
    const oq_ckpt_tensor *smooth = row->smooth ? NULL : oq_scaled_find(ckpt, name, "pre_quant_scale");
    const oq_ckpt_tensor *branch = row->branch ? NULL : oq_scaled_find(ckpt, name, "svdquant_lora_a");
    if (!smooth && !branch) return OQ_OK;
    return oq_fail(env, OQ_E_FORMAT,
                   "tensor '%s' changes what layer '%s' computes, but its quant_algo is %s, which has none",
                   (smooth ? smooth : branch)->name, name, row->name);
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const algorithm_row *row = NULL;
    *found = false;
    OQ_TRY(find_algorithm(env, declared, name, &row));
    if (!row) return check_plain(env, ckpt, name);
    OQ_TRY(refuse_around(env, ckpt, name, row));
    if (!row->spelling) {
        if (is_plain(ckpt, name)) return OQ_OK;
        oq_block_layout layout = row->block;
        layout.tiled = oq_ckpt_metadata(ckpt, "_quantization_metadata") != NULL;
        OQ_TRY(oq_block_locate(env, &layout, AROUND, ckpt, name, n, k, out));
        *found = true;
    } else {
        OQ_TRY(oq_scaled_locate(env, row->spelling, &row->rules, declared, ckpt, name, n, k, out, found));
    }
    if (!*found) return OQ_OK;
    const oq_status st = oq_around_locate(env, &around, ckpt, name, n, k, out);
    *found = st == OQ_OK;
    return st;
}

const oq_dialect oq_dialect_modelopt = {
    .name = "modelopt",
    .help = "ModelOpt's FP8, INT8, MXFP8 and NVFP4, also mixed per layer",
    .method = &oq_method_modelopt,
    .detect = detect,
    .read = read_declared,
    .locate = locate,
    .layer_of = oq_block_layer_of,
};
