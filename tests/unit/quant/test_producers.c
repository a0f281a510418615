/* test_producers.c -- files as producers write them: each names its dialect, its layers decode to the producer's own
 * values bit for bit, and what is wrong in a file is one sentence. The folders hold leading rows of layers that the
 * producer's tool wrote, with the values that the tool itself gives for them; Q*.safetensors are made by hand after
 * reports by users of other programs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "format/float4.h"
#include "format/float8.h"
#include "quant/resolve.h"

#include <stdio.h>
#include <string.h>

#define DATA OMNIQ_SOURCE_DIR "/tests/data/quant/"

typedef struct file { /* one checkpoint and what was decided about it */
    oq_env *env;
    oq_ckpt *ckpt;
    oq_json *config;
    oq_resolved *resolved;
} file;

static int setup(void **state)
{
    static file f;
    memset(&f, 0, sizeof f);
    if (oq_env_new(NULL, &f.env) != OQ_OK) return -1;
    *state = &f;
    return 0;
}

static void close_file(file *f)
{
    oq_resolved_free(f->resolved);
    oq_json_free(f->config);
    oq_ckpt_close(f->ckpt);
    f->resolved = NULL, f->config = NULL, f->ckpt = NULL;
    oq_env_clear(f->env);
}

static int teardown(void **state)
{
    file *f = *state;
    close_file(f);
    oq_env_free(f->env);
    return 0;
}

/* `quant` NULL: the tensors alone. */
static oq_status decide(file *f, const char *path, const oq_json *quant)
{
    close_file(f);
    if (oq_ckpt_open(f->env, path, &f->ckpt) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    const oq_resolve_input in = {.name = "transformer",
                                 .class_name = "Net",
                                 .quantizable = true,
                                 .quant = quant,
                                 .quant_source = "net/config.json",
                                 .ckpt = f->ckpt};
    return oq_resolve(f->env, NULL, &in, 1, &f->resolved);
}

static const oq_resolved_component *component(const file *f)
{
    return &f->resolved->components[0];
}

static oq_status locate(const file *f, const char *name, int64_t n, int64_t k, oq_part_source *out,
                        bool *found)
{
    const oq_resolved_component *c = component(f);
    return c->dialect->locate(f->env, &c->declared, f->ckpt, name, n, k, out, found);
}

/* Row `row` of a layer, from planes in canonical order. */
static void decode(const oq_part_source *part, int64_t row, int64_t n, int64_t k, float *out)
{
    static float room[OQ_N_PLANES][8192];
    const oq_format *f = part->format;
    oq_planes planes = {{NULL}};
    for (int p = 0; p < OQ_N_PLANES; p++) {
        const oq_plane_source *s = &part->plane[p];
        if (!(f->planes & 1u << p)) continue;
        const size_t bytes = f->plane_bytes(f, (oq_plane)p, n, k);
        assert_true(s->tensor && bytes <= sizeof room[p]);
        assert_true(s->make || s->fix || s->tensor->bytes == bytes);
        oq_plane_read(s, room[p], bytes, n, k);
        planes.plane[p] = room[p];
    }
    f->decode_row(f, out, &planes, row, n, k);
}

/* ---- the producers' own files -------------------------------------------------------------------------- */

typedef struct producer_row {
    const char *folder, *config, *dialect, *layer;
    int64_t n, k;
    const oq_format *format;
    const oq_dtype *act;
    oq_act_scale act_scale;
} producer_row;

static const producer_row producers[] = {
    {"modelopt_fp8", "config.json", "modelopt", "all_final_layer.2-1.linear", 16, 192,
     &oq_format_fp8_e4m3_tensor, &oq_dtype_f8_e4m3, OQ_ACT_STATIC_TENSOR},
    {"modelopt_fp8_channel", "config.json", "modelopt", "model.layers.0.self_attn.q_proj", 16, 256,
     &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"modelopt_fp8_channel", "hf_quant_config.json", "modelopt", "model.layers.0.self_attn.q_proj", 16, 256,
     &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"modelopt_fp8_block", "config.json", "modelopt", "model.layers.0.self_attn.q_proj", 128, 256,
     &oq_format_fp8_e4m3_block128, NULL, OQ_ACT_NONE},
    {"modelopt_mixed", "config.json", "modelopt", "layers.8.attention.to_k", 16, 192,
     &oq_format_fp8_e4m3_tensor, &oq_dtype_f8_e4m3, OQ_ACT_STATIC_TENSOR},
    {"ct_fp8_channel", "config.json", "compressed-tensors", "model.layers.0.self_attn.q_proj", 16, 256,
     &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"ct_fp8_block", "config.json", "compressed-tensors", "model.layers.1.self_attn.q_proj", 128, 256,
     &oq_format_fp8_e4m3_block128, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_GROUP},
    {"ct_int8_channel", "config.json", "compressed-tensors", "model.layers.0.self_attn.q_proj", 16, 256,
     &oq_format_int8_channel, &oq_dtype_i8, OQ_ACT_DYNAMIC_TOKEN},
    {"autoround_fp8", "config.json", "autoround", "model.layers.1.self_attn.q_proj", 16, 256,
     &oq_format_fp8_e4m3_channel, &oq_dtype_f8_e4m3, OQ_ACT_STATIC_TENSOR},
    {"modelopt_nvfp4", "config.json", "modelopt", "all_final_layer.2-1.linear", 16, 192, &oq_format_nvfp4,
     &oq_dtype_f4_e2m1, OQ_ACT_STATIC_NVFP4},
    {"modelopt_nvfp4_tiled", "config.json", "modelopt", "all_final_layer.2-1.linear", 64, 192,
     &oq_format_nvfp4, &oq_dtype_f4_e2m1, OQ_ACT_STATIC_NVFP4},
    {"modelopt_mixed4", "config.json", "modelopt", "layers.8.feed_forward.w1", 16, 192, &oq_format_nvfp4,
     &oq_dtype_f4_e2m1, OQ_ACT_STATIC_NVFP4},
    {"modelopt_mxfp8", "config.json", "modelopt", "layers.1.attention.to_q", 16, 192, &oq_format_mxfp8,
     &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX},
    {"ct_mxfp8", "config.json", "compressed-tensors", "model.layers.0.self_attn.q_proj", 16, 256,
     &oq_format_mxfp8, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX},
    {"ct_mxfp4", "config.json", "compressed-tensors", "model.layers.1.self_attn.q_proj", 16, 256,
     &oq_format_mxfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX_EVEN},
    {"autoround_mxfp8", "config.json", "autoround", "model.layers.1.self_attn.q_proj", 16, 256,
     &oq_format_mxfp8, &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_MX_FLOOR},
    {"autoround_mxfp4", "config.json", "autoround", "model.layers.0.self_attn.q_proj", 16, 256,
     &oq_format_mxfp4, &oq_dtype_f4_e2m1, OQ_ACT_DYNAMIC_MX},
    {"torchao_fp8", "config.json", "torchao", "layers.0.attention.to_q", 16, 192, &oq_format_fp8_e4m3_channel,
     &oq_dtype_f8_e4m3, OQ_ACT_DYNAMIC_TOKEN},
    {"torchao_int8", "config.json", "torchao", "layers.0.attention.to_q", 16, 192, &oq_format_int8_channel,
     NULL, OQ_ACT_NONE},
    {"bitsandbytes_nf4_nested", "config.json", "bitsandbytes", "all_final_layer.2-1.linear", 64, 192,
     &oq_format_nf4_b64_nested, NULL, OQ_ACT_NONE},
    {"bitsandbytes_b32_nested", "config.json", "bitsandbytes", "layer", 8, 96, &oq_format_nf4_b32_nested,
     NULL, OQ_ACT_NONE},
    {"bitsandbytes_b128", "config.json", "bitsandbytes", "layer", 6, 128, &oq_format_fp4_b128, NULL,
     OQ_ACT_NONE},
    {"bitsandbytes_b256_nested", "config.json", "bitsandbytes", "layer", 6, 160, &oq_format_nf4_b256_nested,
     NULL, OQ_ACT_NONE},
    {"bitsandbytes_b4096_nested", "config.json", "bitsandbytes", "layer", 40, 250,
     &oq_format_nf4_b4096_nested, NULL, OQ_ACT_NONE},
    {"bitsandbytes_odd", "config.json", "bitsandbytes", "layer", 5, 51, &oq_format_nf4_b64, NULL,
     OQ_ACT_NONE},
    {"bitsandbytes_fp4", "config.json", "bitsandbytes", "layers.2.attention.to_q", 16, 192,
     &oq_format_fp4_b64, NULL, OQ_ACT_NONE},
    {"bitsandbytes_nf4_bf16", "config.json", "bitsandbytes", "layers.5.attention.to_q", 16, 192,
     &oq_format_nf4_b64, NULL, OQ_ACT_NONE},
    {"quanto_int8", "config.json", "quanto", "layers.0.attention.to_out.0", 16, 192, &oq_format_int8_channel,
     NULL, OQ_ACT_NONE},
};

/* The rows of `index` as the producer has them. A producer that dequantizes to BF16 rounds once. */
static void check_values(const file *f, const producer_row *row, const oq_part_source *part)
{
    int64_t rows[8];
    oq_ckpt *expected = NULL;
    char path[1024];
    float is[256], wanted[256];
    snprintf(path, sizeof path, DATA "%s/expected.safetensors", row->folder);
    assert_int_equal(oq_ckpt_open(f->env, path, &expected), OQ_OK);
    const oq_ckpt_tensor *t = oq_ckpt_find(expected, "rows");
    const oq_ckpt_tensor *index = oq_ckpt_find(expected, "index");
    assert_true(t && index && t->dim[1] == row->k && t->dim[0] >= 2 && index->bytes <= sizeof rows);
    memcpy(rows, index->data, index->bytes);
    for (int64_t i = 0; i < t->dim[0]; i++) {
        decode(part, rows[i], row->n, row->k, is);
        t->dtype->to_f32(wanted, t->data + (size_t)(i * row->k) * t->dtype->bytes, (size_t)row->k);
        for (int64_t c = 0; c < row->k; c++) {
            if (t->dtype == &oq_dtype_bf16) is[c] = oq_bf16_round(is[c]);
            if (is[c] < wanted[c] || is[c] > wanted[c])
                fail_msg("%s: row %d column %d is %.9g, the producer has %.9g", row->folder, (int)rows[i],
                         (int)c, (double)is[c], (double)wanted[c]);
        }
    }
    oq_ckpt_close(expected);
}

static void test_producers(void **state)
{
    file *f = *state;
    for (size_t i = 0; i < OQ_COUNT(producers); i++) {
        const producer_row *row = &producers[i];
        oq_part_source part;
        bool found = false;
        char path[1024];
        oq_json *config = NULL;
        snprintf(path, sizeof path, DATA "%s/%s", row->folder, row->config);
        assert_int_equal(oq_json_parse_file(f->env, path, 1 << 20, &config), OQ_OK);
        const oq_json *quant = oq_json_get(config, "quantization_config");
        snprintf(path, sizeof path, DATA "%s/model.safetensors", row->folder);
        if (decide(f, path, quant ? quant : config) != OQ_OK)
            fail_msg("%s: %s", row->folder, oq_env_error(f->env));
        f->config = config;
        assert_non_null(component(f)->dialect);
        assert_string_equal(component(f)->dialect->name, row->dialect);
        if (locate(f, row->layer, row->n, row->k, &part, &found) != OQ_OK)
            fail_msg("%s: %s", row->folder, oq_env_error(f->env));
        assert_true(found);
        assert_ptr_equal(part.format, row->format);
        assert_ptr_equal(part.act, row->act);
        assert_int_equal(part.act_scale, row->act_scale);
        check_values(f, row, &part);
        if (!component(f)->dialect->join) continue;
        component(f)->dialect->join(&part); /* the same values as rows of a larger product */
        assert_false(part.format->planes & 1u << OQ_PLANE_GLOBAL);
        check_values(f, row, &part);
    }
}

/* ---- reports by users of other programs ---------------------------------------------------------------- */

#define BY_HALF                                                                                              \
    {                                                                                                        \
        0.5f, -0.5f, 0.0009765625f, 0.0068359375f, 0.0078125f, 224, -224, 0, -0.0f, 1, 0.25f, 0.125f,        \
            0.0625f, 0.03125f, 0.015625f, 4                                                                  \
    }
#define BY_ROW                                                                                               \
    {                                                                                                        \
        0.5f, -0.5f, 0.0009765625f, 0.0068359375f, 0.0078125f, 224, -224, 0, -0.0f, 4, 1, 0.5f, 0.25f,       \
            0.125f, 0.0625f, 16                                                                              \
    }
#define BY_ONE                                                                                               \
    {                                                                                                        \
        1, -1, 0.001953125f, 0.013671875f, 0.015625f, 448, -448, 0, -0.0f, 2, 0.5f, 0.25f, 0.125f, 0.0625f,  \
            0.03125f, 8                                                                                      \
    }

static const struct {
    const char *file, *dialect;
    const oq_format *format;
    oq_act_scale act_scale;
    float values[16];
} good[] = {
    {"Q01_comfy_scaled", "comfy", &oq_format_fp8_e4m3_tensor, OQ_ACT_DYNAMIC_TOKEN,
     BY_HALF}, /* scale_input is 1 */
    {"Q02_scale_bf16_1", "fp8", &oq_format_fp8_e4m3_tensor, OQ_ACT_DYNAMIC_TOKEN, BY_HALF},
    {"Q03_row", "fp8", &oq_format_fp8_e4m3_channel, OQ_ACT_DYNAMIC_TOKEN, BY_ROW},
    {"Q04_row_col", "fp8", &oq_format_fp8_e4m3_channel, OQ_ACT_DYNAMIC_TOKEN, BY_ROW},
    {"Q05_scaled_f32_marker2", "comfy", &oq_format_fp8_e4m3_tensor, OQ_ACT_NONE, BY_HALF},
    {"Q07_plain_fp8", "fp8_plain", &oq_format_fp8_e4m3_tensor, OQ_ACT_NONE, BY_ONE},
    {"Q14_comfy_quant_fp8", "comfy", &oq_format_fp8_e4m3_tensor, OQ_ACT_NONE, BY_HALF},
    {"Q17_meta_layers", "comfy", &oq_format_fp8_e4m3_tensor, OQ_ACT_DYNAMIC_TOKEN, BY_HALF},
};

static void test_good_reports(void **state)
{
    file *f = *state;
    for (size_t i = 0; i < OQ_COUNT(good); i++) {
        oq_part_source part;
        bool found = false;
        char path[1024];
        float row[8];
        snprintf(path, sizeof path, DATA "%s.safetensors", good[i].file);
        if (decide(f, path, NULL) != OQ_OK) fail_msg("%s: %s", good[i].file, oq_env_error(f->env));
        assert_non_null(component(f)->dialect);
        assert_string_equal(component(f)->dialect->name, good[i].dialect);
        assert_string_equal(component(f)->declared.method->name, "fp8");
        if (locate(f, "l", 2, 8, &part, &found) != OQ_OK)
            fail_msg("%s: %s", good[i].file, oq_env_error(f->env));
        assert_true(found);
        assert_ptr_equal(part.format, good[i].format);
        assert_int_equal(part.act_scale, good[i].act_scale);
        assert_int_equal(part.act != NULL, part.act_scale != OQ_ACT_NONE);
        for (int64_t r = 0; r < 2; r++) {
            decode(&part, r, 2, 8, row);
            assert_memory_equal(row, good[i].values + 8 * r, sizeof row);
        }
    }
}

static const struct {
    const char *file;
    oq_status status;
    const char *text;
} bad[] = {
    {"Q08_scale_zero", OQ_E_FORMAT, "scale 'l.weight_scale' is 0 at index 0, beside codes that are not zero"},
    {"Q09_scale_nan", OQ_E_FORMAT,
     "scale 'l.weight_scale' is nan at index 0; it must be positive and finite"},
    {"Q12_two_spellings", OQ_E_FORMAT,
     "tensors 'l.weight_scale' and 'l.scale_weight' are two scales of one weight"},
    {"Q15_comfy_quant_unknown", OQ_E_UNSUPPORTED,
     "layer 'l' is in ComfyUI's format 'int3_magic', which is not in this build yet; 'float8_e4m3fn', "
     "'float8_e5m2', "
     "'int8_tensorwise', 'mxfp8', 'nvfp4', 'convrot_w4a4', 'asym_w4a8_int8', 'svdquant_w4a4' and 'awq_w4a16' "
     "are"},
};

static void test_bad_reports(void **state)
{
    file *f = *state;
    for (size_t i = 0; i < OQ_COUNT(bad); i++) {
        oq_part_source part;
        bool found = false;
        char path[1024];
        snprintf(path, sizeof path, DATA "%s.safetensors", bad[i].file);
        assert_int_equal(decide(f, path, NULL), OQ_OK);
        assert_non_null(component(f)->dialect);
        const bool nvfp4 = strstr(bad[i].file, "nvfp4") != NULL;
        assert_int_equal(locate(f, "l", nvfp4 ? 1 : 2, nvfp4 ? 16 : 8, &part, &found), bad[i].status);
        assert_false(found);
        assert_string_equal(oq_env_error(f->env), bad[i].text);
    }
}

/* Codes that are NaN decode to NaN, so that a run stops; a scale alone is no layer. */
static void test_nan_and_orphan(void **state)
{
    file *f = *state;
    oq_part_source part;
    bool found = false;
    float row[2];
    assert_int_equal(decide(f, DATA "Q11_fp8_nan_code.safetensors", NULL), OQ_OK);
    assert_int_equal(locate(f, "l", 1, 2, &part, &found), OQ_OK);
    decode(&part, 0, 1, 2, row);
    assert_false(row[0] <= 0 || row[0] >= 0 || row[1] <= 0 || row[1] >= 0);

    assert_int_equal(decide(f, DATA "Q13_orphan_scale.safetensors", NULL), OQ_OK);
    assert_null(component(f)->dialect);
}

/* One weight in ModelOpt's layout, in ComfyUI's (nibbles swapped, scales in tiles), and in a file that says nothing:
 * the same values. Bytes of MXFP8's scales are exponents. */
static void test_blocks(void **state)
{
    static const struct {
        const char *file, *dialect, *method;
    } rows[] = {{"Q20_nvfp4_modelopt", "modelopt", "modelopt_fp4"},
                {"Q21_nvfp4_comfy", "comfy", "comfy_nvfp4"},
                {"Q22_nvfp4_no_meta", "modelopt", "modelopt_fp4"}};
    static const float first[8] = {0, 0.375f, 1, -0.125f, -0.5f, -1.5f, 0.25f, 0.75f};
    file *f = *state;
    float values[3][16][32];
    oq_part_source part;
    bool found = false;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char path[1024];
        snprintf(path, sizeof path, DATA "%s.safetensors", rows[i].file);
        if (decide(f, path, NULL) != OQ_OK) fail_msg("%s: %s", rows[i].file, oq_env_error(f->env));
        assert_non_null(component(f)->dialect);
        assert_string_equal(component(f)->dialect->name, rows[i].dialect);
        assert_string_equal(component(f)->declared.method->name, rows[i].method);
        if (locate(f, "l", 16, 32, &part, &found) != OQ_OK)
            fail_msg("%s: %s", rows[i].file, oq_env_error(f->env));
        assert_ptr_equal(part.format, &oq_format_nvfp4);
        for (int r = 0; r < 16; r++) decode(&part, r, 16, 32, values[i][r]);
        assert_memory_equal(values[i][0], first, sizeof first);
        assert_memory_equal(values[i], values[0], sizeof values[0]);
    }
    /* the NaN byte over a block of zeros is a block of zeros */
    assert_int_equal(decide(f, DATA "Q25_nvfp4_scale_nanbyte.safetensors", NULL), OQ_OK);
    assert_int_equal(locate(f, "l", 1, 16, &part, &found), OQ_OK);
    decode(&part, 0, 1, 16, values[0][0]);
    for (int c = 0; c < 16; c++) assert_true(found && values[0][0][c] == 0.0f);
    assert_int_equal(decide(f, DATA "Q26_mxfp8_u8.safetensors", NULL), OQ_OK);
    assert_int_equal(locate(f, "l", 1, 32, &part, &found), OQ_OK);
    assert_ptr_equal(part.format, &oq_format_mxfp8);
    decode(&part, 0, 1, 32, values[0][0]);
    for (int c = 0; c < 32; c++) assert_true(values[0][0][c] >= 2 && values[0][0][c] <= 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(test_producers, setup, teardown),
        cmocka_unit_test_setup_teardown(test_good_reports, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_reports, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nan_and_orphan, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
