/* dialect_modelopt.c -- NVIDIA ModelOpt's layouts: `weight` with `weight_scale`, an `input_scale` where activations are
 * static, factors of the input (pre_quant_scale) and a low-rank branch (svdquant_lora_a, _b). The algorithm is one for the
 * file (quant_algo), or one per layer (MIXED_PRECISION: quantized_layers). */
#include "quant/around_planes.h"
#include "quant/block_planes.h"
#include "quant/method_modelopt.h"
#include "quant/dialect_comfy.h"
#include "quant/packed_planes.h"
#include "quant/pair_planes.h"
#include "quant/scaled_planes.h"

#include "base/names.h"

#include <stdio.h>
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

/* MXFP4 under one static scale of the activations, which are e4m3. */
static const oq_block_names mxfp4_names = {"weight", "weight_scale", "", "input_scale", false};

typedef enum pairs { NO_PAIRS, PAIRS, PAIRS_E4M3 } pairs; /* integers of two rows a byte; rounded to e4m3 */

typedef struct algorithm_row {
    const char *name;
    const oq_scaled_spelling *spelling;
    oq_scaled_rules rules;
    oq_block_layout block; /* where spelling is NULL */
    bool smooth, branch;   /* layers may have factors of their input, and a low-rank branch */
    pairs pairs;
} algorithm_row;

static const algorithm_row algorithms[] = {
    {.name = "FP8", .spelling = &fp8, .rules = {OQ_SCALED_ACT_STATIC, &oq_format_fp8_e4m3_tensor}},
    {.name = "FP8_PER_CHANNEL_PER_TOKEN",
     .spelling = &fp8,
     .rules = {OQ_SCALED_ACT_DYNAMIC, &oq_format_fp8_e4m3_channel}},
    {.name = "FP8_PB_WO", .spelling = &fp8, .rules = {OQ_SCALED_ACT_NONE, &oq_format_fp8_e4m3_block128}},
    {.name = "W8A8_SQ_PER_CHANNEL",
     .spelling = &int8,
     .rules = {OQ_SCALED_ACT_STATIC, &oq_format_int8_channel},
     .smooth = true},
    {.name = "W8A16", .spelling = &int8, .rules = {OQ_SCALED_ACT_NONE, &oq_format_int8_channel}},
    {.name = "W4A16_AWQ", .smooth = true, .pairs = PAIRS},
    {.name = "INT4_AWQ", .smooth = true, .pairs = PAIRS},
    {.name = "W4A8_AWQ", .smooth = true, .pairs = PAIRS_E4M3},
    {.name = "NVFP4"},
    {.name = "NVFP4_AWQ", .smooth = true},
    {.name = "NVFP4_SVD", .smooth = true, .branch = true},
    {.name = "W4A16_NVFP4", .block = {.weight_only = true}},
    {.name = "W4A8_NVFP4_FP8", .block = {.act_scale = OQ_ACT_STATIC_TENSOR, .act = &oq_dtype_f8_e4m3}},
    {.name = "W4A8_MXFP4_FP8",
     .block = {.kind = OQ_BLOCK_MXFP4,
               .names = &mxfp4_names,
               .act_scale = OQ_ACT_STATIC_TENSOR,
               .act = &oq_dtype_f8_e4m3}},
    {.name = "MXFP8", .block = {.kind = OQ_BLOCK_MXFP8}},
    /* Of MXFP4_DEFAULT_CFG: x too in dynamic groups of 32. The name is all that the file says. */
    {.name = "MXFP4",
     .block = {.kind = OQ_BLOCK_MXFP4, .names = &mxfp4_names, .act_scale = OQ_ACT_DYNAMIC_MX_CEIL}},
};

static bool detect(const oq_method *named, const oq_ckpt *ckpt)
{
    return named ? named->options == oq_method_modelopt.options
                 : !oq_comfy_marked(ckpt) && oq_block_look(ckpt).rows;
}

/* What the metadata says of one layer; NULL: nothing. */
static const oq_json *words_of(const oq_declared *declared, const char *name)
{
    if (declared->method != &oq_method_modelopt_mixed) return declared->options;
    return oq_json_get(oq_json_get(declared->options, "quantized_layers"), name);
}

static const algorithm_row *row_of(const oq_declared *declared, const char *name)
{
    const char *algo = oq_json_string(oq_json_get(words_of(declared, name), "quant_algo"));
    for (size_t i = 0; algo && i < OQ_COUNT(algorithms); i++)
        if (oq_name_equal(algorithms[i].name, algo)) return &algorithms[i];
    return NULL;
}

/* The algorithm that the metadata gives one layer; NULL in *out: none, the layer is plain. */
static oq_status find_algorithm(oq_env *env, const oq_declared *declared, const char *name,
                                const algorithm_row **out)
{
    const oq_json *from = words_of(declared, name);
    *out = NULL;
    if (!from) return OQ_OK;
    *out = row_of(declared, name);
    if (*out) return OQ_OK;
    const char *algo = oq_json_string(oq_json_get(from, "quant_algo"));
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "layer '%s': quant_algo '%s' is not in this build yet; FP8, FP8_PER_CHANNEL_PER_TOKEN, "
                   "FP8_PB_WO, W8A8_SQ_PER_CHANNEL, W8A16, W4A16_AWQ, W4A8_AWQ, NVFP4, NVFP4_AWQ, NVFP4_SVD, "
                   "W4A16_NVFP4, W4A8_NVFP4_FP8, W4A8_MXFP4_FP8, MXFP4 and MXFP8 are",
                   name, algo ? algo : "(none)");
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

/* Tensors beside a weight in pairs that nobody knows. */
static oq_status refuse_strangers(oq_env *env, const oq_ckpt *ckpt, const char *name,
                                  const algorithm_row *row)
{
    const oq_ckpt_tensor *other = oq_scaled_stranger(
        ckpt, name,
        row->pairs == PAIRS ? "weight,bias,weight_scale,pre_quant_scale"
                            : "weight,bias,weight_scale,pre_quant_scale,weight_scale_2,input_scale");
    if (!other) return OQ_OK;
    return oq_fail(env, OQ_E_UNSUPPORTED,
                   "tensor '%s' changes what layer '%s' computes, in a way that is not in this build yet",
                   other->name, name);
}

/* Integers of four bits; W4A8_AWQ's products with their scales are e4m3 under weight_scale_2, x is under input_scale. */
static oq_status locate_pairs(oq_env *env, const oq_declared *declared, const algorithm_row *row,
                              const oq_ckpt *ckpt, const char *name, int64_t n, int64_t k,
                              oq_part_source *out)
{
    const int64_t group = oq_json_int(oq_json_get(words_of(declared, name), "group_size"), 0);
    const oq_ckpt_tensor *global = NULL, *input = NULL;
    OQ_TRY(refuse_strangers(env, ckpt, name, row));
    OQ_TRY(oq_pair_locate(env, ckpt, name, group, n, k, out));
    if (row->pairs == PAIRS) return OQ_OK;
    if (out->format->int_bits != 4 || out->format->block_k != 128)
        return oq_fail(env, OQ_E_UNSUPPORTED, "layer '%s': %s is read in groups of 128 columns", name,
                       row->name);
    OQ_TRY(oq_block_number(env, ckpt, name, "weight_scale_2", &global));
    OQ_TRY(oq_block_number(env, ckpt, name, "input_scale", &input));
    out->format = &oq_format_int4_e4m3_g128;
    out->plane[OQ_PLANE_SCALE].make = oq_group_make_wide_scales;
    out->act = &oq_dtype_f8_e4m3;
    out->act_scale = OQ_ACT_STATIC_TENSOR;
    out->plane[OQ_PLANE_GLOBAL].tensor = global;
    out->plane[OQ_PLANE_INPUT_SCALE].tensor = input;
    return OQ_OK;
}

static oq_status locate(oq_env *env, const oq_declared *declared, const oq_ckpt *ckpt, const char *name,
                        int64_t n, int64_t k, oq_part_source *out, bool *found)
{
    const algorithm_row *row = NULL;
    *found = false;
    OQ_TRY(find_algorithm(env, declared, name, &row));
    if (!row) return check_plain(env, ckpt, name);
    OQ_TRY(refuse_around(env, ckpt, name, row));
    if (!row->spelling && oq_scaled_is_plain(ckpt, name)) return OQ_OK;
    if (row->pairs) {
        OQ_TRY(locate_pairs(env, declared, row, ckpt, name, n, k, out));
        *found = true;
    } else if (!row->spelling) {
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

/* Two codes a byte are two columns, in pairs two rows. */
static bool layer_of(const oq_declared *declared, const oq_ckpt *ckpt, const oq_ckpt_tensor *t,
                     size_t *name_length, int64_t *n, int64_t *k)
{
    char name[1024];
    if (!oq_block_layer_of(declared, ckpt, t, name_length, n, k)) return false;
    snprintf(name, sizeof name, "%.*s", (int)*name_length, t->name);
    const algorithm_row *row = row_of(declared, name);
    if (t->dtype == &oq_dtype_u8 && row && row->pairs) *n = 2 * t->dim[0], *k = t->dim[1];
    return true;
}

const oq_dialect oq_dialect_modelopt = {
    .name = "modelopt",
    .help = "ModelOpt's FP8, INT8, INT4 (AWQ), MXFP8, MXFP4 and NVFP4, also mixed per layer",
    .method = &oq_method_modelopt,
    .detect = detect,
    .read = read_declared,
    .locate = locate,
    .layer_of = layer_of,
};
