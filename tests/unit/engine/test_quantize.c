/* test_quantize.c -- every layout that is written: read back to the bit, run, and taken back to plain weights that are the
 * format's own encode and decode; what is refused, and that nothing is left behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"
#include "format/format.h"

#include "support/env_setup.h"
#include "support/scratch.h"
#include "support/toybox_run.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- every layout -------------------------------------------------------------------------------------- */

typedef struct row {
    const char *quantization, *layout; /* layout NULL: the default */
    const char *format;                /* of every quantized layer; A|B: one of them */
    double db;                         /* the least PSNR beside the plain picture */
    bool same; /* loading quantizes each fused product as the file does: the pictures are equal */
} row;

/* Most layers by one request, those of one block by another. */
#define MIXED(most, some) "{\"transformer\": {" most "}, \"transformer.layers.0\": {" some "}}"

static const row rows[] = {
    {"fp8", NULL, "fp8_e4m3_tensor", 28, false},
    {"{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", NULL, "fp8_e4m3_channel", 30, true},
    {"{\"method\": \"fp8\", \"weight_strategy\": \"block\"}", NULL, "fp8_e4m3_block128", 28, false},
    {"int8", NULL, "int8_channel", 35, true},
    {"mxfp8", NULL, "mxfp8", 28, true},
    {"mxfp4", NULL, "mxfp4", 12, false}, /* llm-compressor chooses activations' exponents its own way */
    {"bitsandbytes", NULL, "nf4_b64_nested", 20, false},
    {"{\"method\": \"bitsandbytes\", \"quant_type\": \"fp4\"}", NULL, "fp4_b64_nested", 16, false},
    {"{\"method\": \"bitsandbytes\", \"blocksize\": 128}", NULL, "nf4_b128_nested", 18, false},
    {"{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", "modelopt", "fp8_e4m3_channel", 30, true},
    {"{\"method\": \"fp8\", \"weight_strategy\": \"block\"}", "modelopt", "fp8_e4m3_block128", 28, false},
    {"mxfp8", "modelopt", "mxfp8", 28, true},
    {"nvfp4", NULL, "nvfp4_inverse", 18, false},
    {"nvfp4", "modelopt", "nvfp4", 18, false},
    {"nvfp4", "comfy", "nvfp4", 18, false},
    {"{\"method\": \"nvfp4\", \"activations\": \"dynamic\"}", "comfy", "nvfp4", 14, false},
    {"w4a16", NULL, "int4_g64", 12, false}, /* K = 192 does not take 128 */
    {"{\"method\": \"w4a16\", \"group_size\": 32}", NULL, "int4_g32", 12, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"sym\": false}", NULL, "int4z_g64", 12, true},
    {"{\"method\": \"w4a16\", \"group_size\": 16}", "auto-round", "int4_g16", 14, true},
    {"{\"method\": \"w4a16\", \"group_size\": 32}", "auto-round", "int4_g32", 12, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"sym\": false}", "auto-round", "int4z_g64", 12, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"sym\": false}", "auto-round-awq", "int4z_g64", 12, true},
    {"{\"method\": \"w4a16\", \"group_size\": 32}", "auto-round-awq", "int4_g32", 12, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"sym\": false}", "gptq", "int4z_g64", 12, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"bits\": 3}", "gptq", "int3_g64", 8, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"bits\": 3}", NULL, "int3_g64", 8, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"bits\": 3}", "auto-round", "int3_g64", 8, true},
    {"{\"method\": \"w4a16\", \"group_size\": 32, \"bits\": 2}", "auto-round", "int2_g32", 3, true},
    {"{\"method\": \"w4a16\", \"group_size\": 16, \"bits\": 2, \"sym\": false}", "gptq", "int2z_g16", 5,
     true},
    {"{\"method\": \"w4a16\", \"group_size\": 32, \"bits\": 2, \"sym\": false}", NULL, "int2z_g32", 5, true},
    {"{\"method\": \"w4a16\", \"group_size\": 32, \"bits\": 3, \"sym\": false}", "auto-round", "int3z_g32",
     10, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"bits\": 8}", NULL, "int8_g64", 40, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"bits\": 8, \"sym\": false}", "auto-round", "int8z_g64",
     40, true},
    {"fp8", "comfy", "fp8_e4m3_tensor", 28, false},
    {"mxfp8", "comfy", "mxfp8", 28, true},
    {"mxfp8", "auto-round", "mxfp8", 28, false},
    {"mxfp4", "auto-round", "mxfp4", 12, true},
    {"fp8", "fp8", "fp8_e4m3_tensor", 28, false},
    {"{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", "fp8", "fp8_e4m3_channel", 30, true},
    {"{\"method\": \"fp8\", \"weight_strategy\": \"block\"}", "fp8", "fp8_e4m3_block128", 28, false},
    {"int8", "int8", "int8_channel", 35, true},
    {"int8", "torchao", "int8_channel", 35, true},
    {"{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", "torchao", "fp8_e4m3_channel", 30, true},
    {"{\"method\": \"w4a16\", \"group_size\": 32}", "torchao", "int4_g32", 12, true},
    {"{\"method\": \"w4a16\", \"group_size\": 64, \"sym\": false, \"bits\": 8}", "torchao", "int8z_g64", 40,
     true},
    {"mxfp8", "torchao", "mxfp8", 28, false},
    {"mxfp4", "torchao", "mxfp4", 12, false},
    {"nvfp4", "torchao", "nvfp4", 18, false},
    {"{\"method\": \"nvfp4\", \"activations\": \"dynamic\"}", "torchao", "nvfp4", 14, false},
    {MIXED("\"method\": \"w4a16\", \"group_size\": 32",
           "\"method\": \"w4a16\", \"bits\": 8, \"group_size\": 32"),
     "gptq", "int4_g32|int8_g32", 12, true},
    {MIXED("\"method\": \"w4a16\", \"group_size\": 32",
           "\"method\": \"w4a16\", \"bits\": 3, \"group_size\": 64"),
     "auto-round", "int4_g32|int3_g64", 10, true},
    {MIXED("\"method\": \"mxfp4\"", "\"method\": \"mxfp8\""), "auto-round", "mxfp4|mxfp8", 12, false},
    {MIXED("\"method\": \"mxfp4\"", "\"method\": \"w4a16\", \"group_size\": 32"), "auto-round",
     "mxfp4|int4_g32", 12, true},
    {"int8", "quanto", "int8_channel", 35, false},
    {"{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}", "quanto", "fp8_e4m3_channel", 30, false},
};

#ifdef OMNIQ_SANITIZED
enum { ROW_STEP = 4 }; /* a few of each kind: thirty-five pictures take too long there */
#else
enum { ROW_STEP = 1 };
#endif

/* The quantized layers take no more than 1.05 times their bytes in the file, as the kernels hold them. */
static void expect_small(oq_env *env, const char *out, const oq_json *written, const char *what)
{
    const char *const with[] = {"model", MODEL, "transformer", out, NULL};
    oq_json *plan = NULL;
    double file = 0, held = 0;
    for (size_t i = 0; i < oq_json_size(written); i++) {
        const oq_json *l = oq_json_at(written, i);
        file += oq_json_real(oq_json_get(l, "bits_per_weight"), 0) / 8 *
                (double)oq_json_int(oq_json_get(l, "n"), 0) * (double)oq_json_int(oq_json_get(l, "k"), 0);
    }
    done(env, "plan", NULL, with, &plan);
    const oq_json *layers =
        oq_json_get(oq_json_get(oq_json_get(plan, "components"), "transformer"), "layers");
    for (size_t i = 0; i < oq_json_size(layers); i++)
        if (oq_json_bool(oq_json_get(oq_json_at(layers, i), "quantized"), false))
            held += (double)oq_json_int(oq_json_get(oq_json_at(layers, i), "bytes"), 0);
    if (!(held > 0.5 * file && held <= 1.05 * file))
        fail_msg("%s: %.0f bytes in memory for %.0f in the file", what, held, file);
    oq_json_free(plan);
}

/* Scales go out in F32, or in what the layout fixes, which is never BF16: its eight bits cost 0.2 % of every weight. */
static void expect_wide_scales(oq_env *env, const char *folder)
{
    oq_ckpt *ckpt = NULL;
    assert_int_equal(oq_ckpt_open_folder(env, folder, NULL, &ckpt), OQ_OK);
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        if (strstr(ckpt->tensors[i].name, "scale") && ckpt->tensors[i].dtype == &oq_dtype_bf16)
            fail_msg("%s is BF16", ckpt->tensors[i].name);
    oq_ckpt_close(ckpt);
}

static void expect_format(const char *formats, const char *format)
{
    const char *other = strchr(formats, '|');
    const size_t n = other ? (size_t)(other - formats) : strlen(formats);
    if ((strlen(format) == n && strncmp(formats, format, n) == 0) ||
        (other && strcmp(other + 1, format) == 0))
        return;
    fail_msg("format %s instead of %s", format, formats);
}

static void test_layouts(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-layouts")), out[512], back[512];
    const picture plain = draw(env, MODEL, NULL, NULL);
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(back, sizeof back, "%s/back", root);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i += ROW_STEP) {
        const row *r = &rows[i];
        oq_json *json = NULL;
        const char *const with[] = {"quantization",
                                    r->quantization,
                                    "output",
                                    out,
                                    "force",
                                    "true",
                                    r->layout ? "layout" : NULL,
                                    r->layout,
                                    NULL};
        done(env, "quantize", TRANSFORMER, with, &json);
        const oq_json *c = oq_json_get(oq_json_get(json, "components"), "transformer");
        const oq_json *layers = oq_json_get(c, "layers");
        assert_int_equal(oq_json_size(layers), 98);
        for (size_t l = 0; l < oq_json_size(layers); l++)
            if (strcmp(r->quantization, "w4a16") != 0)
                expect_format(r->format, oq_json_string(oq_json_get(oq_json_at(layers, l), "format")));
        if (r->layout) assert_string_equal(oq_json_string(oq_json_get(c, "layout")), r->layout);
        assert_true(oq_json_bool(oq_json_get(json, "verified"), false));
        expect_plain_again(env, out, back, layers);
        expect_small(env, out, layers, r->format);
        expect_wide_scales(env, out);
        oq_json_free(json);
        const picture got = draw(env, MODEL, "transformer", out);
        const double db = psnr(&plain, &got);
        if (!(db >= r->db && db < 90))
            fail_msg("%s in %s: %.1f dB", r->quantization, r->layout ? r->layout : "-", db);
        if (r->same) {
            char wish[256];
            snprintf(wish, sizeof wish,
                     strncmp(r->quantization, "{\"tr", 4) == 0 ? "%s"
                     : r->quantization[0] == '{'               ? "{\"transformer\": %s}"
                                                               : "{\"transformer\": \"%s\"}",
                     r->quantization);
            const picture online = draw(env, MODEL, "quantization", wish);
            if (memcmp(online.pixels, got.pixels, got.n) != 0)
                fail_msg("%s in %s: another picture than while loading", r->quantization,
                         r->layout ? r->layout : "-");
            free(online.pixels);
        }
        free(got.pixels);
    }
    free(plain.pixels);
    free(root);
}

/* TorchAO refuses configurations of a version before the classes that are written (0.18: "version 1 of
 * Int8DynamicActivationInt8WeightConfig has been removed"); transformers makes one of config.json before it reads a weight. */
static void test_torchao_versions(void **state)
{
    static const char *const specs[] = {"int8", "{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}",
                                        "{\"method\": \"w4a16\", \"group_size\": 32}"};
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-torchao")), out[512], path[600];
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(path, sizeof path, "%s/config.json", out);
    for (size_t i = 0; i < 3; i++) {
        oq_json *config = NULL;
        char *text = NULL;
        size_t n = 0;
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", specs[i], "layout", "torchao", "output", out, "force",
                                   "true", NULL},
             NULL);
        assert_int_equal(oq_file_read(env, path, 1 << 20, &text, &n), OQ_OK);
        assert_int_equal(oq_json_parse(env, text, n, path, &config), OQ_OK);
        const oq_json *type = oq_json_get(oq_json_get(config, "quantization_config"), "quant_type");
        assert_int_equal(oq_json_int(oq_json_get(oq_json_get(type, "default"), "_version"), 1), 2);
        oq_json_free(config);
        oq_free(env, text);
    }
    free(root);
}

/* ---- forms of source and output ------------------------------------------------------------------------ */

static void test_whole_model(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-model")), out[512];
    snprintf(out, sizeof out, "%s/toybox", root);
    done(env, "quantize", MODEL, (const char *const[]){"quantization", "int8", "output", out, NULL}, NULL);
    const picture online = draw(env, MODEL, "quantization", "int8"), file = draw(env, out, NULL, NULL);
    assert_memory_equal(online.pixels, file.pixels, file.n);
    free(online.pixels);
    free(file.pixels);
    free(root);
}

/* A folder's component as one file, for which a layout in the header tells what it is; then back, and in another
 * format without the plain weights. */
static void test_single_files(void **state)
{
    static const char *const layouts[] = {"compressed-tensors", "comfy", "fp8"};
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-files")), one[512], again[512], back[512],
         folder[512];
    snprintf(one, sizeof one, "%s/one.safetensors", root);
    snprintf(again, sizeof again, "%s/again.safetensors", root);
    snprintf(back, sizeof back, "%s/back.safetensors", root);
    snprintf(folder, sizeof folder, "%s/folder", root);
    done(env, "quantize", TRANSFORMER, (const char *const[]){"quantization", "fp8", "output", folder, NULL},
         NULL);
    const picture fp8 = draw(env, MODEL, "transformer", folder);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", "fp8", "output", one, "layout", layouts[i], "force",
                                   "true", NULL},
             NULL);
        const picture got = draw(env, MODEL, "transformer", one);
        assert_memory_equal(got.pixels, fp8.pixels, fp8.n);
        free(got.pixels);
    }
    done(env, "dequantize", one, (const char *const[]){"output", back, NULL}, NULL);
    const picture plain = draw(env, MODEL, "transformer", back);
    assert_true(psnr(&plain, &fp8) > 28); /* weights alone are rounded now */
    done(env, "quantize", back,
         (const char *const[]){"quantization", "int8", "output", again, "model", MODEL, NULL}, NULL);
    const picture int8 = draw(env, MODEL, "transformer", again);
    done(
        env, "quantize", one,
        (const char *const[]){"quantization", "int8", "output", again, "model", MODEL, "force", "true", NULL},
        NULL);
    const picture direct = draw(env, MODEL, "transformer", again);
    assert_true(psnr(&int8, &direct) > 40); /* through BF16, or from the codes' own values */
    free(plain.pixels);
    free(int8.pixels);
    free(direct.pixels);
    free(fp8.pixels);
    free(root);
}

/* What --dry-run tells is what is written then: bytes of the tensors, to the byte. */
static void test_dry_run_is_exact(void **state)
{
    static const char *const specs[][2] = {{"nvfp4", "modelopt"},
                                           {"{\"method\": \"gguf\", \"type\": \"Q4_K\"}", "gguf"},
                                           {"bitsandbytes", "bitsandbytes"}};
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-dry")), out[512];
    snprintf(out, sizeof out, "%s/out", root);
    for (size_t i = 0; i < 3; i++) {
        oq_json *dry = NULL, *wet = NULL;
        oq_ckpt *ckpt = NULL;
        size_t bytes = 0;
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", specs[i][0], "layout", specs[i][1], "dry-run", "true",
                                   NULL},
             &dry);
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"quantization", specs[i][0], "layout", specs[i][1], "output", out, "force",
                                   "true", NULL},
             &wet);
        oq_json *told = of_transformer(dry, "bytes"), *was = of_transformer(wet, "bytes");
        assert_int_equal(oq_ckpt_open_folder(env, out, NULL, &ckpt), OQ_OK);
        for (size_t t = 0; t < ckpt->n_tensors; t++) bytes += ckpt->tensors[t].bytes;
        assert_int_equal(oq_json_int(told, 0), (int64_t)bytes);
        assert_int_equal(oq_json_int(was, 0), (int64_t)bytes);
        oq_ckpt_close(ckpt);
        oq_json_free(told);
        oq_json_free(was);
        oq_json_free(dry);
        oq_json_free(wet);
    }
    free(root);
}

static void test_dry_run_and_choice(void **state)
{
    oq_env *env = *state;
    oq_json *json = NULL;
    done(env, "quantize", MODEL,
         (const char *const[]){"quantization",
                               "{\"transformer\": {\"method\": \"fp8\", \"ignored_layers\": [\"to_out\"]}}",
                               "dry-run", "true", NULL},
         &json);
    const oq_json *components = oq_json_get(json, "components");
    const oq_json *dit = oq_json_get(components, "transformer"),
                  *te = oq_json_get(components, "text_encoder");
    assert_int_equal(oq_json_size(oq_json_get(dit, "layers")), 84); /* 14 blocks without their to_out */
    assert_int_equal(oq_json_size(oq_json_get(te, "layers")), 0);
    assert_false(oq_json_bool(oq_json_get(json, "verified"), true));
    assert_int_equal(oq_json_type(oq_json_get(json, "output")), OQ_JSON_NULL);
    oq_json_free(json);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static size_t count_entries(oq_env *env, const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(oq_dir_list(env, dir, &names, &n), OQ_OK);
    for (size_t i = 0; i < n; i++) oq_free(env, names[i]);
    oq_free(env, names);
    return n;
}

static void test_refusals(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-refusals")), out[512], file[512];
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(file, sizeof file, "%s/out.safetensors", root);
    refused(env, TRANSFORMER, (const char *const[]){"output", out, NULL}, OQ_E_ARG,
            "quantize needs to know into what");
    refused(env, TRANSFORMER, (const char *const[]){"quantization", "fp8", NULL}, OQ_E_ARG,
            "quantize needs a place for its output: --output PATH");
    refused(env, TRANSFORMER,
            (const char *const[]){"quantization", "fp8", "output", out, "layout", "comfi", NULL}, OQ_E_ARG,
            "layout 'comfi' is unknown; did you mean 'comfy'?");
    refused(env, TRANSFORMER,
            (const char *const[]){"quantization", "int8", "output", out, "layout", "comfy", NULL},
            OQ_E_MISMATCH,
            "layout 'comfy' does not hold layer 'noise_refiner.0.attention.to_q' of [192, 192] as w: "
            "int8_channel a: int8 dynamic_token; it holds FP8 with one scale per tensor, NVFP4, MXFP8; "
            "this layer fits compressed-tensors, int8, quanto");
    refused(env, MODEL, (const char *const[]){"quantization", "fp8", "output", file, NULL}, OQ_E_ARG,
            "a whole model becomes a folder");
    refused(env, MODEL "/vae", (const char *const[]){"quantization", "fp8", "output", out, NULL}, OQ_E_CONFIG,
            "vae");
    refused(env, "no/such/model", (const char *const[]){"quantization", "fp8", "output", out, NULL},
            OQ_E_NOTFOUND, "no/such/model");
    refused(env, MODEL "/text_encoder/model.safetensors",
            (const char *const[]){"quantization", "fp8", "output", out, NULL}, OQ_E_ARG,
            "a weight file becomes a file: its name must end in .safetensors");
    refused(env, TRANSFORMER,
            (const char *const[]){"quantization", "{\"method\": \"fp8\", \"ignored_layers\": [\"to_outt\"]}",
                                  "output", out, NULL},
            OQ_E_CONFIG, "to_outt");
    refused(env, TRANSFORMER,
            (const char *const[]){"quantization", "fp8", "output", file, "layout", "gguf", NULL},
            OQ_E_MISMATCH, "layout 'gguf' does not hold layer 'noise_refiner.0.attention.to_q'");
    refused(env, TRANSFORMER, (const char *const[]){"quantization", "gguf", "output", file, NULL}, OQ_E_ARG,
            "layout 'gguf' is written into a gguf file, whose name ends in '.gguf'");
    scratch_text(root, "taken", "text");
    char taken[512];
    snprintf(taken, sizeof taken, "%s/taken", root);
    refused(env, TRANSFORMER, (const char *const[]){"quantization", "fp8", "output", taken, NULL}, OQ_E_ARG,
            "exists; --force replaces it");
    refused(env, TRANSFORMER,
            (const char *const[]){"quantization", "fp8", "output", taken, "force", "true", NULL}, OQ_E_ARG,
            "is a file, the output is a folder");
    assert_int_equal(count_entries(env, root), 1);
    free(root);
}

/* A disk that fills up: told at once, nothing new stands there, what stood there stands. */
static void test_full_disk(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "quantize-full")), out[512];
    struct rlimit before, tight;
    snprintf(out, sizeof out, "%s/out", root);
    done(env, "quantize", TRANSFORMER, (const char *const[]){"quantization", "int8", "output", out, NULL},
         NULL);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    tight = before;
    tight.rlim_cur = 1 << 20;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &tight), 0);
    refused(env, TRANSFORMER,
            (const char *const[]){"quantization", "fp8", "output", out, "force", "true", NULL}, OQ_E_IO,
            "no room for its");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(count_entries(env, root), 1);
    const picture kept = draw(env, MODEL, "transformer", out);
    const picture online = draw(env, MODEL, "quantization", "{\"transformer\": \"int8\"}");
    assert_memory_equal(kept.pixels, online.pixels, kept.n);
    free(kept.pixels);
    free(online.pixels);
    free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_layouts, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_torchao_versions, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_whole_model, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_single_files, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_dry_run_is_exact, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_dry_run_and_choice, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, env_setup, env_teardown),
    };
    return cmocka_run_group_tests_name("quantize", tests, NULL, NULL);
}
