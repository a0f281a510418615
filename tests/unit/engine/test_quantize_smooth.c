/* test_quantize_smooth.c -- SmoothQuant's factors: made of what the prompts show and of all weights that meet the same x, stored
 * where a layout has a place for them, divided out of the weights, read back and run; refused elsewhere. */
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

static float *values_of(const oq_ckpt *ckpt, const char *name, const char *suffix, int64_t *n)
{
    char full[256];
    snprintf(full, sizeof full, "%s.%s", name, suffix);
    const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, full);
    if (!t) fail_msg("'%s' is missing", full);
    float *x = malloc((size_t)t->elems * sizeof *x);
    assert_non_null(x);
    t->dtype->to_f32(x, t->data, (size_t)t->elems);
    *n = t->elems;
    return x;
}

/* The factors of layers that share x, from their plain weights. */
static void expect_factors(const oq_calibration *c, const oq_ckpt *plain, const oq_ckpt *written,
                           const char *const *names, int count, double alpha)
{
    const oq_calibration_layer *seen = oq_calibration_find(c, "transformer", names[0]);
    const int64_t k = seen->k;
    float *most = calloc((size_t)k, sizeof *most), largest = 0;
    for (int i = 0; i < count; i++) {
        int64_t n;
        float *w = values_of(plain, names[i], "weight", &n);
        for (int64_t j = 0; j < n; j++) most[j % k] = fmaxf(most[j % k], fabsf(w[j]));
        free(w);
    }
    for (int i = 0; i < count; i++) {
        int64_t n, one;
        float *p = values_of(written, names[i], "pre_quant_scale", &n),
              *scale = values_of(written, names[i], "input_scale", &one);
        assert_int_equal(n, k);
        assert_int_equal(one, 1);
        largest = 0;
        for (int64_t j = 0; j < k; j++) {
            const double want = pow((double)most[j], 1 - alpha) / pow((double)seen->column_amax[j], alpha);
            if (!(fabs((double)p[j] / want - 1) < 1.0 / 250)) /* half a step of bf16 */
                fail_msg("%s: factor %d is %g, not %g", names[i], (int)j, (double)p[j], want);
            largest = fmaxf(largest, seen->column_amax[j] * p[j]);
        }
        assert_true(fabs((double)scale[0] * 127 / (double)largest - 1) < 1e-6);
        free(scale);
        free(p);
    }
    free(most);
}

/* Codes of the divided weights, each the nearest. */
static void expect_codes(const oq_ckpt *plain, const oq_ckpt *written, const char *name)
{
    int64_t n, k, rows;
    float *w = values_of(plain, name, "weight", &n), *q = values_of(written, name, "weight", &n),
          *p = values_of(written, name, "pre_quant_scale", &k),
          *s = values_of(written, name, "weight_scale", &rows);
    assert_int_equal(rows * k, n);
    for (int64_t i = 0; i < n; i++) {
        const double code = (double)w[i] / (double)p[i % k] / (double)s[i / k];
        if (!(fabs(code - (double)q[i]) <= 0.5001))
            fail_msg("%s [%d]: %g as %g", name, (int)i, code, (double)q[i]);
    }
    free(s);
    free(p);
    free(q);
    free(w);
}

/* Decoded, the factors are back in the weights: within half a code of what they were. */
static void expect_decoded(oq_env *env, const oq_ckpt *plain, const oq_ckpt *written, const char *out,
                           const char *back, const char *name)
{
    oq_ckpt *decoded = NULL;
    int64_t n, k, rows;
    done(env, "dequantize", out, (const char *const[]){"output", back, "dtype", "f32", "force", "true", NULL},
         NULL);
    assert_int_equal(oq_ckpt_open_folder(env, back, NULL, &decoded), OQ_OK);
    float *w = values_of(plain, name, "weight", &n), *got = values_of(decoded, name, "weight", &n),
          *p = values_of(written, name, "pre_quant_scale", &k),
          *s = values_of(written, name, "weight_scale", &rows);
    for (int64_t i = 0; i < n; i++)
        assert_true(fabs((double)w[i] - (double)got[i]) <= 0.5001 * (double)s[i / k] * (double)p[i % k]);
    free(s);
    free(p);
    free(got);
    free(w);
    oq_ckpt_close(decoded);
}

static void test_factors(void **state)
{
    static const char *const qkv[] = {"layers.2.attention.to_q", "layers.2.attention.to_k",
                                      "layers.2.attention.to_v"};
    static const char *const one[] = {"layers.5.feed_forward.w2"};
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "smooth")), out[512], back[512];
    oq_calibration *c = calibration(env);
    oq_ckpt *plain = NULL, *written = NULL;
    const picture was = draw(env, MODEL, NULL, NULL);
    assert_int_equal(oq_ckpt_open_folder(env, TRANSFORMER, NULL, &plain), OQ_OK);
    snprintf(out, sizeof out, "%s/out", root);
    snprintf(back, sizeof back, "%s/back", root);
    for (int i = 0; i < 2; i++) {
        oq_json *json = NULL;
        done(env, "quantize", TRANSFORMER,
             (const char *const[]){"model", MODEL, "quantization", "int8", "smoothquant", "true", "output",
                                   out, "force", "true", PROMPTS, i ? "smoothquant-alpha" : NULL, "0.75",
                                   NULL},
             &json);
        oq_json *layers = of_transformer(json, "layers"), *layout = of_transformer(json, "layout");
        assert_string_equal(oq_json_string(layout), "modelopt");
        assert_int_equal(oq_json_int(oq_json_get(oq_json_get(json, "calibration"), "smoothed_layers"), 0),
                         98);
        for (size_t l = 0; l < oq_json_size(layers); l++) {
            assert_string_equal(oq_json_string(oq_json_get(oq_json_at(layers, l), "scheme")),
                                "w: int8_channel a: int8 static_tensor smoothed");
            assert_true(oq_json_real(oq_json_get(oq_json_at(layers, l), "snr_db"), 0) >
                        (i ? 15 : 28)); /* more of x's size in the weights costs them */
        }
        assert_int_equal(oq_ckpt_open_folder(env, out, NULL, &written), OQ_OK);
        expect_factors(c, plain, written, qkv, 3, i ? 0.75 : 0.5);
        expect_factors(c, plain, written, one, 1, i ? 0.75 : 0.5);
        expect_codes(plain, written, qkv[1]);
        expect_codes(plain, written, one[0]);
        expect_decoded(env, plain, written, out, back, one[0]);
        const picture got = draw(env, MODEL, "transformer", out);
        if (!(psnr(&was, &got) > 28)) fail_msg("%.1f dB", psnr(&was, &got));
        free(got.pixels);
        oq_ckpt_close(written);
        oq_json_free(layout);
        oq_json_free(layers);
        oq_json_free(json);
    }
    free(was.pixels);
    oq_ckpt_close(plain);
    oq_calibration_close(c);
    free(root);
}

/* Of a mixture INT8 alone is smoothed; the layout holds both. */
static void test_mixture(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "smooth-mixture")), out[512];
    oq_json *json = NULL;
    snprintf(out, sizeof out, "%s/out", root);
    done(env, "quantize", TRANSFORMER,
         (const char *const[]){"model", MODEL, "quantization",
                               "{\"transformer\": \"int8\", \"transformer.layers.1\": {\"method\": \"fp8\", "
                               "\"activation_scheme\": \"static\"}}",
                               "smoothquant", "true", "output", out, PROMPTS, NULL},
         &json);
    const oq_json *by = oq_json_get(json, "calibration");
    assert_int_equal(oq_json_int(oq_json_get(by, "static_scales"), 0), 98);
    assert_int_equal(oq_json_int(oq_json_get(by, "smoothed_layers"), 0), 91); /* a block has seven */
    const picture was = draw(env, MODEL, NULL, NULL), got = draw(env, MODEL, "transformer", out);
    assert_true(psnr(&was, &got) > 26);
    free(was.pixels);
    free(got.pixels);
    oq_json_free(json);
    free(root);
}

static void test_refusals(void **state)
{
    oq_env *env = *state;
    char *root = strdup(scratch_dir(OMNIQ_BINARY_DIR, "smooth-refusals")), out[512];
    snprintf(out, sizeof out, "%s/out", root);
#define WITH "output", out, PROMPTS
    static const char *const layouts[] = {"compressed-tensors", "int8", "quanto", "torchao"};
    for (size_t i = 0; i < OQ_COUNT(layouts); i++) {
        char text[128];
        snprintf(text, sizeof text, "layout '%s' does not hold layer", layouts[i]);
        refused(env, MODEL,
                (const char *const[]){"quantization", "int8", "smoothquant", "true", "layout", layouts[i],
                                      WITH, NULL},
                OQ_E_MISMATCH, text);
        refused(env, MODEL,
                (const char *const[]){"quantization", "int8", "smoothquant", "true", "layout", layouts[i],
                                      WITH, "dry-run", "true", NULL},
                OQ_E_MISMATCH, "smoothed; it holds");
    }
    refused(
        env, MODEL,
        (const char *const[]){"quantization", "int8", "smoothquant", "true", "layout", "int8", WITH, NULL},
        OQ_E_MISMATCH, "this layer fits modelopt");
    refused(env, MODEL, (const char *const[]){"quantization", "fp8", "smoothquant", "true", WITH, NULL},
            OQ_E_CONFIG, "--smoothquant smooths layers of method int8, and there are none");
    refused(env, MODEL, (const char *const[]){"quantization", "int8", "smoothquant-alpha", "0.3", WITH, NULL},
            OQ_E_ARG, "'smoothquant-alpha' is given without --smoothquant");
    refused(env, MODEL,
            (const char *const[]){"quantization", "int8", "smoothquant", "true", "output", out, NULL},
            OQ_E_ARG, "give some with --prompt or --prompt-file");
#undef WITH
    assert_false(oq_file_exists(out));
    free(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_factors, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_mixture, env_setup, env_teardown),
        cmocka_unit_test_setup_teardown(test_refusals, env_setup, env_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
