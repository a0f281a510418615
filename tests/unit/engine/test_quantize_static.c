/* test_quantize_static.c -- static activation scales: measured by running prompts, written in every layout that has a place for
 * them, read back by our readers and used once; parts of one product have one scale; what cannot be calibrated is refused and
 * leaves nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/calibrate.h"

#include "support/env_setup.h"
#include "support/scratch.h"
#include "support/toybox_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPTS                                                                                              \
    "prompt", "a small blue star on a white background", "prompt", "a large striped green heart", "steps",   \
        "3", "width", "128", "height", "128"

/* ---- every layout with a place for them ---------------------------------------------------------------- */

typedef struct row {
    const char *quantization, *layout;
    const char *scale; /* how activations are read */
    double unit;       /* the largest code */
    double db;         /* the least PSNR beside the plain picture */
} row;

#define FP8_STATIC  "{\"method\": \"fp8\", \"activation_scheme\": \"static\"}"
#define FP8_CHANNEL "{\"method\": \"fp8\", \"weight_strategy\": \"channel\"}"

static const row rows[] = {
    {FP8_STATIC, "modelopt", "static_tensor", 448, 28},
    {"nvfp4", "modelopt", "static_nvfp4", 6 * 448, 14},
    {"fp8", "comfy", "static_tensor", 448, 28},
    {"nvfp4", "comfy", "static_nvfp4", 6 * 448, 14},
    {"fp8", "compressed-tensors", "static_tensor", 448, 28},
    {FP8_CHANNEL, "compressed-tensors", "static_tensor", 448, 28},
    {"int8", "compressed-tensors", "static_tensor", 127, 24},
    {"nvfp4", "compressed-tensors", "static_nvfp4", 6 * 448, 14},
    {"int8", "int8", "static_tensor", 127, 24},
    {FP8_STATIC, "fp8", "static_tensor", 448, 28},
    {FP8_CHANNEL, "fp8", "static_tensor", 448, 28},
    {"nvfp4", "torchao", "static_nvfp4", 6 * 448, 14},
};

static void quantize_row(oq_env *env, const row *r, const char *names, const char *out, oq_json **json)
{
    done(env, "quantize", TRANSFORMER,
         (const char *const[]){"model", MODEL, "quantization", r->quantization, "activation-scheme", "static",
                               "layout", r->layout, "names", names, "output", out, "force", "true", PROMPTS,
                               NULL},
         json);
}

/* The calibration that quantize has made. */
static oq_calibration *calibration(oq_env *env)
{
    const char *const pairs[] = {PROMPTS};
    const oq_calibration_source source = {.model = MODEL};
    oq_calibration *c = NULL;
    oq_options *o = NULL;
    assert_int_equal(oq_options_new(env, "quantize", &o), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(pairs); i += 2)
        assert_int_equal(oq_options_set(o, pairs[i], pairs[i + 1]), OQ_OK);
    assert_int_equal(oq_calibration_open(env, o, &source, false, &c), OQ_OK);
    assert_int_equal(oq_calibration_run(c), OQ_OK);
    oq_options_free(o);
    return c;
}

static void expect_scales(const oq_calibration *c, const oq_json *layers, double unit)
{
    for (size_t i = 0; i < oq_json_size(layers); i++) {
        const oq_json *l = oq_json_at(layers, i);
        const oq_calibration_layer *seen =
            oq_calibration_find(c, "transformer", oq_json_string(oq_json_get(l, "name")));
        assert_non_null(seen);
        const float want = seen->amax / (float)unit,
                    got = (float)oq_json_real(oq_json_get(l, "input_scale"), 0);
        assert_memory_equal(&want, &got, sizeof want);
    }
}

/* What a reader sees: each quantized layer's activations under such a scale. */
static void expect_inspected(oq_env *env, const char *out, const char *scale)
{
    oq_json *json = NULL;
    done(env, "inspect", out, (const char *const[]){NULL}, &json);
    const oq_json *layers = oq_json_get(oq_json_get(json, "quantization"), "layers");
    assert_int_equal(oq_json_size(layers), 98);
    for (size_t i = 0; i < oq_json_size(layers); i++)
        assert_string_equal(oq_json_string(oq_json_get(oq_json_at(layers, i), "act_scale")), scale);
    oq_json_free(json);
}

static void test_layouts(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "static-layouts")), out[512], back[512];
    oq_calibration *c = calibration(env);
    const picture plain = draw(env, MODEL, NULL, NULL);
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(back, sizeof back, "%s/back", root);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_json *json = NULL;
        quantize_row(env, &rows[i], "source", out, &json);
        const oq_json *layers =
            oq_json_get(oq_json_get(oq_json_get(json, "components"), "transformer"), "layers");
        const oq_json *by = oq_json_get(json, "calibration");
        assert_int_equal(oq_json_size(layers), 98);
        assert_int_equal(oq_json_int(oq_json_get(by, "prompts"), 0), 2);
        assert_int_equal(oq_json_int(oq_json_get(by, "static_scales"), 0), 98);
        assert_int_equal(oq_json_int(oq_json_get(by, "seed"), 0), 42);
        expect_scales(c, layers, rows[i].unit);
        expect_inspected(env, out, rows[i].scale);
        expect_plain_again(env, out, back, layers);
        const picture got = draw(env, MODEL, "transformer", out);
        const double db = psnr(&plain, &got);
        if (!(db >= rows[i].db && db < 90))
            fail_msg("%s in %s: %.1f dB", rows[i].quantization, rows[i].layout, db);
        free(got.pixels);
        oq_json_free(json);
    }
    free(plain.pixels);
    oq_calibration_close(c);
    free(root);
}

/* One of a product that the first release holds as one is the one of its parts. */
static void test_original_names(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "static-names")), out[512], own[512];
    oq_json *joined = NULL, *apart = NULL;
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(own, sizeof own, "%s/own", root);
    quantize_row(env, &rows[2], "original", out, &joined);
    quantize_row(env, &rows[2], "source", own, &apart);
    oq_json *a = of_transformer(joined, "layers"), *b = of_transformer(apart, "layers");
    int seen = 0;
    for (size_t i = 0; i < oq_json_size(a); i++)
        for (size_t j = 0; j < oq_json_size(b); j++) {
            if (strcmp(oq_json_string(oq_json_get(oq_json_at(a, i), "name")), "layers.3.attention.qkv") !=
                    0 ||
                strncmp(oq_json_string(oq_json_get(oq_json_at(b, j), "name")), "layers.3.attention.to_",
                        22) != 0 ||
                strstr(oq_json_string(oq_json_get(oq_json_at(b, j), "name")), "to_out"))
                continue;
            assert_true(oq_json_equal(oq_json_get(oq_json_at(a, i), "input_scale"),
                                      oq_json_get(oq_json_at(b, j), "input_scale")));
            seen++;
        }
    assert_int_equal(seen, 3);
    const picture one = draw(env, MODEL, "transformer", out), three = draw(env, MODEL, "transformer", own);
    assert_true(psnr(&one, &three) > 28); /* a scale of the weights for three, or one each */
    free(one.pixels);
    free(three.pixels);
    oq_json_free(a);
    oq_json_free(b);
    oq_json_free(joined);
    oq_json_free(apart);
    free(root);
}

/* A whole model, one file, the same bytes twice; and a file that is quantized already runs as it is. */
static void test_sources(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "static-sources")), out[3][512];
    char *bytes[2];
    size_t n[2];
    for (int i = 0; i < 2; i++) {
        snprintf(out[i], sizeof out[i], "%s/%d.safetensors", root, i);
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"model", MODEL, "quantization", FP8_STATIC, "layout", "comfy", "output",
                                   out[i], PROMPTS, NULL},
             NULL);
        assert_int_equal(oq_file_read(env, out[i], (size_t)1 << 30, &bytes[i], &n[i]), OQ_OK);
    }
    assert_int_equal(n[0], n[1]);
    assert_memory_equal(bytes[0], bytes[1], n[0]);
    for (int i = 0; i < 2; i++) oq_free(env, bytes[i]);
    snprintf(out[2], sizeof out[2], "%s/model", root);
    done(env, "quantize", MODEL,
         (const char *const[]){"quantization", FP8_STATIC, "ignored-layers", "text_encoder.layers.2",
                               "output", out[2], PROMPTS, NULL},
         NULL);
    const picture plain = draw(env, MODEL, NULL, NULL), model = draw(env, out[2], NULL, NULL);
    assert_true(psnr(&plain, &model) > 26);
    done(env, "quantize", out[0],
         (const char *const[]){"model", MODEL, "quantization", "int8", "activation-scheme", "static",
                               "output", out[1], "force", "true", PROMPTS, NULL},
         NULL);
    const picture again = draw(env, MODEL, "transformer", out[1]);
    assert_true(psnr(&plain, &again) > 22);
    free(plain.pixels);
    free(model.pixels);
    free(again.pixels);
    free(root);
}

/* ---- dry runs and refusals ----------------------------------------------------------------------------- */

static void test_dry_run(void **state)
{
    oq_env *env = *state;
    oq_json *json = NULL;
    done(env, "quantize", TRANSFORMER,
         (const char *const[]){"model", MODEL, "quantization", "fp8", "activation-scheme", "static", "layout",
                               "modelopt", "dry-run", "true", PROMPTS, NULL},
         &json);
    oq_json *layers = of_transformer(json, "layers");
    assert_int_equal(oq_json_int(oq_json_get(oq_json_get(json, "calibration"), "static_scales"), 0), 98);
    assert_null(oq_json_get(oq_json_at(layers, 0), "input_scale")); /* nothing was measured */
    assert_string_equal(oq_json_string(oq_json_get(oq_json_at(layers, 0), "scheme")),
                        "w: fp8_e4m3_tensor a: fp8_e4m3 static_tensor");
    oq_json_free(layers);
    oq_json_free(json);
}

/* Nothing stands there afterwards. `dry`: a dry run refuses it too. */
static void refuse(oq_env *env, const char *root, const char *source, const char *const *pairs, bool dry,
                   oq_status status, const char *text)
{
    const char *with[64] = {"output", scratch_path(root, "out")};
    size_t n = 2;
    char **names = NULL;
    size_t entries = 0;
    for (; *pairs; pairs++) with[n++] = *pairs;
    refused(env, source, with, status, text);
    with[n++] = "dry-run", with[n++] = "true";
    if (dry) refused(env, source, with, status, text);
    assert_int_equal(oq_dir_list(env, root, &names, &entries), OQ_OK);
    for (size_t i = 0; i < entries; i++) oq_free(env, names[i]);
    oq_free(env, names);
    assert_int_equal(entries, 1); /* empty.txt */
}

#define STATIC "activation-scheme", "static"

static void test_refusals(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "static-refusals")), empty[512];
    scratch_text(root, "empty.txt", "\n\n");
    snprintf(empty, sizeof empty, "%s/empty.txt", root);
    refuse(env, root, MODEL, (const char *const[]){"quantization", FP8_STATIC, NULL}, true, OQ_E_ARG,
           "calibration runs the model on prompts: give some with --prompt or --prompt-file");
    refuse(env, root, MODEL, (const char *const[]){"quantization", FP8_STATIC, "prompt-file", empty, NULL},
           true, OQ_E_ARG, "empty.txt: holds no prompt");
    refuse(env, root, MODEL, (const char *const[]){"quantization", "fp8", PROMPTS, NULL}, true, OQ_E_ARG,
           "'prompt' is given, but nothing that is asked for is calibrated");
    refuse(env, root, MODEL, (const char *const[]){"quantization", "fp8", "device", "cpu", NULL}, true,
           OQ_E_ARG, "'device' is given, but nothing that is asked for is calibrated");
    refuse(env, root, TRANSFORMER, (const char *const[]){"quantization", "fp8", STATIC, PROMPTS, NULL}, true,
           OQ_E_ARG, "name its folder with -m DIR");
    refuse(env, root, MODEL, (const char *const[]){"quantization", "mxfp8", STATIC, PROMPTS, NULL}, true,
           OQ_E_CONFIG, "no layer's method has static activations");
    refuse(env, root, MODEL,
           (const char *const[]){
               "quantization",
               "{\"method\": \"fp8\", \"activation_scheme\": \"static\", \"weight_strategy\": \"block\"}",
               PROMPTS, NULL},
           true, OQ_E_CONFIG, "weight_strategy 'block' goes with dynamic activations alone");
    refuse(env, root, MODEL,
           (const char *const[]){"quantization", "int8", STATIC, "layout", "quanto", PROMPTS, NULL}, true,
           OQ_E_MISMATCH,
           "a: int8 static_tensor; it holds INT8 or FP8 per row, activations plain; this layer fits "
           "compressed-tensors, int8");
    refuse(env, root, MODEL,
           (const char *const[]){"quantization", FP8_STATIC, "layout", "torchao", PROMPTS, NULL}, true,
           OQ_E_MISMATCH, "layout 'torchao' does not hold layer");
    refuse(env, root, MODEL, (const char *const[]){"quantization", FP8_STATIC, PROMPTS, NULL}, false,
           OQ_E_UNSUPPORTED,
           "text_encoder: layer 'layers.2.self_attn.q_proj' and others did not run in the 2 calibration "
           "prompts");
    refuse(env, root, TRANSFORMER,
           (const char *const[]){"model", MODEL, "quantization", FP8_STATIC, "prompt", "x", "width", "100",
                                 NULL},
           true, OQ_E_ARG, "100");
    refuse(env, root, MODEL "/vae",
           (const char *const[]){"model", MODEL, "quantization", FP8_STATIC, PROMPTS, NULL}, true,
           OQ_E_CONFIG, "vae");
    free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_layouts, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_original_names, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_sources, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_dry_run, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, env_setup, env_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
