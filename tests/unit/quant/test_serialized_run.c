/* test_serialized_run.c -- the demo model's transformer, written down quantized and run: where the file holds what
 * loading would have made of the plain weights, the picture is the same to the byte; every other spelling comes close
 * to the plain picture. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/strbuf.h"
#include "ckpt/ckpt.h"
#include "format/float4.h"
#include "format/format.h"

#include "support/env_setup.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

typedef struct spelling {
    const char *name;
    const oq_format *format;
    const char *scale;  /* name of the scale tensor */
    bool input_scale;   /* static activations */
    const char *config; /* quantization_config of the file; NULL: none, the tensors tell */
    const char *online; /* the request that makes the same of plain weights; NULL: none does */
    const char *marker; /* an empty tensor that tells the spelling; NULL: none */
    const char *weight; /* what stands for "weight" in names of codes; NULL: that */
    double db;          /* the least PSNR beside the plain picture; 0: 25 dB */
    bool ascend;        /* msModelSlim's static type */
    const char *only;   /* the layers whose names begin so; NULL: all */
    int zero;           /* its zero point of activations */
} spelling;

typedef struct writer { /* header and data of a safetensors file in the making */
    oq_env *env;
    oq_strbuf header, data;
} writer;

static void put(writer *w, const char *name, const char *type, const int64_t *dim, int n_dims,
                const void *data, size_t bytes)
{
    const size_t begin = w->data.size;
    oq_strbuf_printf(&w->header, "%s\"%s\": {\"dtype\": \"%s\", \"shape\": [", w->header.size > 1 ? ", " : "",
                     name, type);
    for (int i = 0; i < n_dims; i++) oq_strbuf_printf(&w->header, "%s%lld", i ? ", " : "", (long long)dim[i]);
    oq_strbuf_add(&w->data, data, bytes);
    oq_strbuf_printf(&w->header, "], \"data_offsets\": [%zu, %zu]}", begin, w->data.size);
}

/* Attention and feed forward of every block: what the network lets a method quantize. */
static bool is_quantized(const spelling *s, const oq_ckpt_tensor *t)
{
    const size_t n = strlen(t->name);
    if (s->only && strncmp(t->name, s->only, strlen(s->only)) != 0) return false;
    return t->n_dims == 2 && n > 7 && strcmp(t->name + n - 7, ".weight") == 0 &&
           (strstr(t->name, ".attention.to_") || strstr(t->name, ".feed_forward.w"));
}

/* Codes and scales of one byte as ModelOpt spells them; the second-level scale where the format has one. */
static void put_blocks(writer *w, const spelling *s, const oq_ckpt_tensor *t)
{
    const oq_format *f = s->format;
    const int64_t n = t->dim[0], k = t->dim[1], groups = (k + f->block_k - 1) / f->block_k;
    const size_t code_bytes = f->plane_bytes(f, OQ_PLANE_DATA, n, k);
    const bool two_levels = f->planes & 1u << OQ_PLANE_GLOBAL;
    const int stem = (int)strlen(t->name) - 7;
    float *values = malloc((size_t)t->elems * sizeof *values), global = 0;
    void *codes = malloc(code_bytes), *scales = malloc((size_t)(n * groups));
    char name[256];
    t->dtype->to_f32(values, t->data, (size_t)t->elems);
    f->encode(f, &(oq_planes_mut){{codes, scales, &global}}, values, n, k);
    snprintf(name, sizeof name, "%.*s.%s", stem, t->name, s->weight ? s->weight : "weight");
    put(w, name, (int64_t)code_bytes < n * k ? "U8" : "F8_E4M3",
        (const int64_t[]){n, (int64_t)code_bytes / n}, 2, codes, code_bytes);
    snprintf(name, sizeof name, "%.*s.weight_scale", stem, t->name);
    put(w, name, two_levels ? "F8_E4M3" : "U8", (const int64_t[]){n, groups}, 2, scales,
        (size_t)(n * groups));
    snprintf(name, sizeof name, "%.*s.weight_scale_2", stem, t->name);
    if (two_levels) put(w, name, "F32", NULL, 0, &global, sizeof global);
    free(values);
    free(codes);
    free(scales);
}

static void put_beside(writer *w, const oq_ckpt_tensor *t, const char *suffix, const char *type,
                       int64_t elems, const void *data, size_t bytes)
{
    char name[256];
    snprintf(name, sizeof name, "%s%s", t->name, suffix);
    put(w, name, type, &elems, 1, data, bytes);
}

/* As bitsandbytes writes it: the first code of a byte high, the table, a text with the shape. */
static void put_nf4(writer *w, const spelling *s, const oq_ckpt_tensor *t)
{
    const oq_format *f = s->format;
    const int64_t n = t->dim[0], k = t->dim[1], blocks = n * k / 64, groups = (blocks + 255) / 256;
    const bool nested = f == &oq_format_nf4_b64_nested;
    float *values = malloc((size_t)t->elems * sizeof *values),
          *scales = malloc((size_t)blocks * sizeof *scales),
          *global = malloc((size_t)(257 + groups) * sizeof *global);
    uint8_t *codes = malloc((size_t)(n * k / 2));
    char text[256];
    t->dtype->to_f32(values, t->data, (size_t)t->elems);
    f->encode(f, &(oq_planes_mut){{codes, scales, global}}, values, n, k);
    for (int64_t i = 0; i < n * k / 2; i++) codes[i] = (uint8_t)(codes[i] << 4 | codes[i] >> 4);
    put(w, t->name, "U8", (const int64_t[]){n * k / 2, 1}, 2, codes, (size_t)(n * k / 2));
    put_beside(w, t, ".absmax", nested ? "U8" : "F32", blocks, scales,
               (size_t)blocks * (nested ? 1 : sizeof *scales));
    put_beside(w, t, ".quant_map", "F32", 16, oq_nf4_table, 16 * sizeof(float));
    if (nested) put_beside(w, t, ".nested_quant_map", "F32", 256, global + 1, 256 * sizeof *global);
    if (nested)
        put_beside(w, t, ".nested_absmax", "F32", groups, global + 257, (size_t)groups * sizeof *global);
    snprintf(
        text, sizeof text,
        "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"shape\": [%lld, %lld], \"nested_blocksize\": 256, "
        "\"nested_offset\": %.9g}",
        (long long)n, (long long)k, nested ? (double)global[0] : 0.0);
    put_beside(w, t, ".quant_state.bitsandbytes__nf4", "U8", (int64_t)strlen(text), text, strlen(text));
    free(values);
    free(scales);
    free(global);
    free(codes);
}

/* Codes of x are x / 0.5 + zero, coarse enough that none is cut off: quant_bias takes off what the weights make of the
 * zero point. */
static void put_ascend(writer *w, const spelling *s, const oq_ckpt_tensor *t)
{
    const int64_t n = t->dim[0], k = t->dim[1];
    const float input = 0.5f, zero = (float)s->zero;
    float *values = malloc((size_t)t->elems * sizeof *values), *scales = malloc((size_t)n * sizeof *scales);
    int8_t *codes = malloc((size_t)t->elems);
    int32_t *bias = calloc((size_t)n, sizeof *bias);
    const int stem = (int)strlen(t->name) - 7;
    char name[256];
    t->dtype->to_f32(values, t->data, (size_t)t->elems);
    s->format->encode(s->format, &(oq_planes_mut){{codes, scales}}, values, n, k);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t c = 0; c < k; c++) bias[r] -= s->zero * codes[r * k + c];
        scales[r] *= input;
    }
    put(w, t->name, "I8", t->dim, 2, codes, (size_t)t->elems);
    snprintf(name, sizeof name, "%.*s.deq_scale", stem, t->name);
    put(w, name, "F32", &n, 1, scales, (size_t)n * sizeof *scales);
    snprintf(name, sizeof name, "%.*s.quant_bias", stem, t->name);
    put(w, name, "I32", &n, 1, bias, (size_t)n * sizeof *bias);
    snprintf(name, sizeof name, "%.*s.input_scale", stem, t->name);
    put(w, name, "F32", (const int64_t[]){1}, 1, &input, sizeof input);
    snprintf(name, sizeof name, "%.*s.input_offset", stem, t->name);
    put(w, name, "F32", (const int64_t[]){1}, 1, &zero, sizeof zero);
    free(values), free(scales), free(codes), free(bias);
}

static void put_quantized(writer *w, const spelling *s, const oq_ckpt_tensor *t)
{
    const int64_t n = t->dim[0], k = t->dim[1];
    if (s->ascend) {
        put_ascend(w, s, t);
        return;
    }
    if (s->format == &oq_format_nf4_b64 || s->format == &oq_format_nf4_b64_nested) {
        put_nf4(w, s, t);
        return;
    }
    if (!s->format->element) {
        put_blocks(w, s, t);
        return;
    }
    const size_t code_bytes = s->format->plane_bytes(s->format, OQ_PLANE_DATA, n, k);
    const size_t scale_bytes = s->format->plane_bytes(s->format, OQ_PLANE_SCALE, n, k);
    float *values = malloc((size_t)t->elems * sizeof *values), *scales = malloc(scale_bytes),
          input = 20.0f / 448.0f;
    void *codes = malloc(code_bytes);
    char name[256];
    const int stem = (int)strlen(t->name) - 7;
    t->dtype->to_f32(values, t->data, (size_t)t->elems);
    s->format->encode(s->format, &(oq_planes_mut){{codes, scales}}, values, n, k);
    snprintf(name, sizeof name, "%.*s.%s", stem, t->name, s->weight ? s->weight : "weight");
    put(w, name, s->format->element->name, t->dim, 2, codes, code_bytes);
    const int64_t rows = s->format->block_n ? (n + s->format->block_n - 1) / s->format->block_n : 1;
    const int64_t cols = s->format->block_k ? (k + s->format->block_k - 1) / s->format->block_k : 1;
    snprintf(name, sizeof name, "%.*s.%s", stem, t->name, s->scale);
    put(w, name, "F32", (const int64_t[]){rows, cols}, rows * cols > 1 ? 2 : 0, scales, scale_bytes);
    snprintf(name, sizeof name, "%.*s.input_scale", stem, t->name);
    if (s->input_scale) put(w, name, "F32", NULL, 0, &input, sizeof input);
    free(values);
    free(scales);
    free(codes);
}

static void write_weights(oq_env *env, const spelling *s, const char *dir)
{
    oq_ckpt *ckpt = NULL;
    writer w = {.env = env};
    oq_strbuf_init(&w.header, env);
    oq_strbuf_init(&w.data, env);
    assert_int_equal(oq_ckpt_open_folder(env, MODEL "/transformer", NULL, &ckpt), OQ_OK);
    oq_strbuf_putc(&w.header, '{');
    for (size_t i = 0; i < ckpt->n_tensors; i++) {
        const oq_ckpt_tensor *t = &ckpt->tensors[i];
        if (is_quantized(s, t))
            put_quantized(&w, s, t);
        else
            put(&w, t->name, t->type_name, t->dim, t->n_dims, t->data, t->bytes);
    }
    if (s->marker) put(&w, s->marker, "F8_E4M3", (const int64_t[]){0}, 1, NULL, 0);
    oq_strbuf_putc(&w.header, '}');
    scratch_safetensors(dir, "diffusion_pytorch_model.safetensors", oq_strbuf_text(&w.header), w.data.text,
                        w.data.size);
    oq_ckpt_close(ckpt);
    oq_strbuf_deinit(&w.header);
    oq_strbuf_deinit(&w.data);
}

/* The type of each tensor of the demo model. */
static oq_json *words_of(oq_env *env, const spelling *s)
{
    oq_ckpt *ckpt = NULL;
    oq_json *words = oq_json_new_object();
    assert_int_equal(oq_ckpt_open_folder(env, MODEL "/transformer", NULL, &ckpt), OQ_OK);
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        assert_true(oq_json_set(words, ckpt->tensors[i].name,
                                oq_json_new_string(is_quantized(s, &ckpt->tensors[i]) ? "W8A8" : "FLOAT")));
    oq_ckpt_close(ckpt);
    return words;
}

static void write_config(oq_env *env, const spelling *s, const char *dir)
{
    oq_json *config = NULL, *quant = NULL;
    char *text = NULL;
    assert_int_equal(oq_json_parse_file(env, MODEL "/transformer/config.json", 1 << 20, &config), OQ_OK);
    if (s->config) {
        assert_int_equal(oq_json_parse(env, s->config, strlen(s->config), "t", &quant), OQ_OK);
        if (s->ascend) assert_true(oq_json_set(quant, "quant_model_description", words_of(env, s)));
        assert_true(oq_json_set(config, "quantization_config", quant));
    }
    assert_int_equal(oq_json_dump(env, config, OQ_JSON_INDENT, &text), OQ_OK);
    scratch_text(dir, "config.json", text);
    oq_free(env, text);
    oq_json_free(config);
}

/* A model folder whose transformer is quantized and whose other parts are the demo model's own. */
static void write_model(oq_env *env, const spelling *s, char *model, size_t size)
{
    char dir[600], name[64], from[600], to[700];
    static const char *const links[] = {"model_index.json", "omniq.json", "scheduler",
                                        "text_encoder",     "tokenizer",  "vae"};
    snprintf(name, sizeof name, "serialized_%s", s->name);
    snprintf(model, size, "%s", scratch_dir(OMNIQ_BINARY_DIR, name));
    scratch_subdir(model, "transformer");
    snprintf(dir, sizeof dir, "%s/transformer", model);
    for (size_t i = 0; i < OQ_COUNT(links); i++) {
        snprintf(from, sizeof from, "%s/%s", MODEL, links[i]);
        snprintf(to, sizeof to, "%s/%s", model, links[i]);
        if (oq_file_exists(from) || oq_file_is_dir(from)) assert_int_equal(symlink(from, to), 0);
    }
    write_weights(env, s, dir);
    write_config(env, s, dir);
}

static oq_media *draw(oq_env *env, const char *model, const char *request, const char *dtype)
{
    oq_options *o = NULL;
    oq_model *m = NULL;
    oq_media *media = NULL;
    const char *const values[][2] = {
        {"model", model}, {"prompt", "a large red ball"}, {"seed", "7"},   {"width", "64"}, {"height", "64"},
        {"steps", "2"},   {"guidance-scale", "0"},        {"dtype", dtype}};
    oq_status st = oq_options_new(env, "generate", &o);
    for (size_t i = 0; st == OQ_OK && i < OQ_COUNT(values); i++)
        st = oq_options_set(o, values[i][0], values[i][1]);
    if (st == OQ_OK && request) st = oq_options_set(o, "quantization", request);
    if (st == OQ_OK) st = oq_model_open(env, o, &m);
    if (st == OQ_OK) st = oq_generate(env, m, o, &media);
    if (st != OQ_OK) fail_msg("%s: %s", model, oq_env_error(env));
    oq_model_close(m);
    oq_options_free(o);
    return media;
}

static oq_media *generate(oq_env *env, const char *model, const char *request)
{
    return draw(env, model, request, "bf16");
}

static void compare(const oq_media *a, const oq_media *b, oq_metrics *out)
{
    oq_metrics_u8(oq_media_pixels(a, 0), oq_media_pixels(b, 0), 64 * 64 * 3, out);
}

static void test_spellings(void **state)
{
    oq_env *env = *state;
    static const spelling rows[] = {
        {"int8", &oq_format_int8_channel, "weight_scale", false, "{\"quant_method\": \"int8\"}",
         .online = "{\"transformer\": {\"method\": \"int8\"}}"},
        {"fp8_channel", &oq_format_fp8_e4m3_channel, "weight_scale", false,
         "{\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\"}",
         .online = "{\"transformer\": {\"method\": \"fp8\", \"weight_strategy\": \"channel\"}}"},
        {"int8_tensor", &oq_format_int8_tensor, "weight_scale", false, "{\"quant_method\": \"int8\"}",
         .online = NULL},
        {"fp8_tensor", &oq_format_fp8_e4m3_tensor, "weight_scale", false, "{\"quant_method\": \"fp8\"}",
         .online = NULL},
        {"fp8_static", &oq_format_fp8_e4m3_tensor, "weight_scale", true,
         "{\"quant_method\": \"fp8\", \"activation_scheme\": \"static\"}", .online = NULL},
        {"fp8_block", &oq_format_fp8_e4m3_block128, "weight_scale_inv", false,
         "{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"fmt\": \"e4m3\"}", .online = NULL},
        {"modelopt_fp8", &oq_format_fp8_e4m3_tensor, "weight_scale", true,
         "{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\", \"ignore\": [\"all_*\", \"cap_*\", "
         "\"t_embedder*\", "
         "\"*adaLN_modulation*\"]}",
         .online = NULL},
        {"modelopt_fp8_block", &oq_format_fp8_e4m3_block128, "weight_scale", false,
         "{\"quant_method\": \"modelopt\", \"quant_algo\": \"fp8_pb_wo\"}", .online = NULL},
        {"modelopt_mxfp8", &oq_format_mxfp8, NULL, false,
         "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\"}",
         .online = "{\"transformer\": {\"method\": \"mxfp8\"}}"},
        {"modelopt_nvfp4", &oq_format_nvfp4, NULL, false,
         "{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A16_NVFP4\", \"group_size\": 16}",
         .online = NULL, .db = 18},
        {"ct_mxfp4", &oq_format_mxfp4, NULL, false,
         "{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp4-pack-quantized\", "
         "\"config_groups\": {\"group_0\": "
         "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"float\", \"group_size\": "
         "32}, "
         "\"input_activations\": {\"num_bits\": 4, \"type\": \"float\", \"group_size\": 32, \"dynamic\": "
         "true}}}}",
         .online = NULL, .weight = "weight_packed", .db = 18},
        {"autoround_mxfp4", &oq_format_mxfp4, NULL, false,
         "{\"quant_method\": \"auto-round\", \"bits\": 4, \"act_bits\": 4, \"group_size\": 32, "
         "\"data_type\": "
         "\"mx_fp\", \"packing_format\": \"auto_round:llm_compressor\"}",
         .online = "{\"transformer\": {\"method\": \"mxfp4\"}}", .weight = "weight_packed", .db = 18},
        {"bitsandbytes_nf4", &oq_format_nf4_b64, NULL, false,
         "{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}",
         .online = "{\"transformer\": {\"method\": \"bitsandbytes\", \"compress_statistics\": false}}",
         .db = 18},
        {"bitsandbytes_nested", &oq_format_nf4_b64_nested, NULL, false,
         "{\"quant_method\": \"bitsandbytes\"}", .online = NULL, .db = 18},
        {"comfy", &oq_format_fp8_e4m3_tensor, "scale_weight", false, NULL, NULL, .marker = "scaled_fp8"},
        {"ct_int8", &oq_format_int8_channel, "weight_scale", false,
         "{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", \"config_groups\": "
         "{\"group_0\": "
         "{\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, \"type\": \"int\", \"strategy\": "
         "\"channel\", "
         "\"symmetric\": true}, \"input_activations\": {\"num_bits\": 8, \"type\": \"int\", \"strategy\": "
         "\"token\", "
         "\"dynamic\": true, \"symmetric\": true}}}, \"ignore\": [\"re:.*embedder\", \"re:all_final.*\", "
         "\"re:.*adaLN_modulation.*\"]}",
         .online = "{\"transformer\": {\"method\": \"int8\"}}"},
        {"quanto", &oq_format_int8_channel, "weight._scale", false, "{\"quant_method\": \"quanto\"}", NULL,
         .weight = "weight._data"},
    };
    oq_media *plain = generate(env, MODEL, NULL);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char model[512];
        oq_metrics metrics;
        write_model(env, &rows[i], model, sizeof model);
        oq_media *stored = generate(env, model, NULL);
        compare(plain, stored, &metrics);
        if (!(metrics.psnr_db > (rows[i].db > 0 ? rows[i].db : 25) && metrics.max_abs > 0))
            fail_msg("%s: %g dB", rows[i].name, metrics.psnr_db);
        if (rows[i].online) {
            oq_media *online = generate(env, MODEL, rows[i].online);
            compare(online, stored, &metrics);
            if (metrics.max_abs > 0)
                fail_msg("%s: online and stored differ, %g dB", rows[i].name, metrics.psnr_db);
            oq_media_free(online);
        }
        oq_media_free(stored);
        scratch_dir(OMNIQ_BINARY_DIR, strrchr(model, '/') + strlen("/scratch-")); /* 10 MB less on the disk */
    }
    oq_media_free(plain);
}

/* A network without biases gets those that make up for a zero point: codes of activations are all 20 less, their products
 * the same to rounding. One block in float32, because a code on a rounding's edge falls either way: with every layer
 * quantized such codes breed others, and two pictures end 30 dB apart on any machine. */
static void test_zero_point(void **state)
{
    oq_env *env = *state;
    oq_media *plain = draw(env, MODEL, NULL, "fp32"), *stored[2];
    oq_metrics metrics;
    char model[512];
    for (int i = 0; i < 2; i++) {
        const spelling s = {.name = "ascend_static",
                            .format = &oq_format_int8_channel,
                            .config = "{\"quant_method\": \"ascend\"}",
                            .ascend = true,
                            .only = "layers.5.",
                            .zero = i ? -20 : 0};
        write_model(env, &s, model, sizeof model);
        stored[i] = draw(env, model, NULL, "fp32");
        compare(plain, stored[i], &metrics);
        printf("static INT8 with a zero point of %d: %.1f dB\n", s.zero, metrics.psnr_db);
        assert_true(metrics.psnr_db > 20 && metrics.psnr_db < 50);
    }
    compare(stored[0], stored[1], &metrics);
    printf("%.1f dB beside one another\n", metrics.psnr_db);
    assert_true(metrics.psnr_db > 55);
    for (int i = 0; i < 2; i++) oq_media_free(stored[i]);
    oq_media_free(plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_spellings, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_zero_point, env_setup, env_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
