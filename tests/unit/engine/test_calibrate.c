/* test_calibrate.c -- what a calibration keeps of each layer's input is what an observer with all rows at hand finds; the same
 * bits with any number of threads; what cannot be calibrated is refused in a sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/calibrate.h"

#include "support/scratch.h"
#include "support/toybox_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static oq_env *new_env(int threads)
{
    oq_env *env = NULL;
    const oq_env_params params = {.size = sizeof params, .n_threads = threads};
    assert_int_equal(oq_env_new(&params, &env), OQ_OK);
    return env;
}

/* Two prompts of two small steps. */
static oq_options *options(oq_env *env)
{
    static const char *const pairs[] = {
        "prompt", "a small blue star", "prompt", "a large red ball", "steps", "2", "width", "64", "height",
        "64"};
    oq_options *o = NULL;
    assert_int_equal(oq_options_new(env, "quantize", &o), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(pairs); i += 2)
        assert_int_equal(oq_options_set(o, pairs[i], pairs[i + 1]), OQ_OK);
    return o;
}

static oq_calibration *open_toybox(oq_env *env)
{
    oq_calibration *c = NULL;
    oq_options *o = options(env);
    const oq_calibration_source source = {.model = MODEL};
    if (oq_calibration_open(env, o, &source, false, &c) != OQ_OK) fail_msg("%s", oq_env_error(env));
    oq_options_free(o);
    return c;
}

/* ---- against an observer that keeps all ---------------------------------------------------------------- */

typedef struct witness { /* of one layer */
    const char *name;
    int64_t k, rows;
    float *column_amax;
    double *products;
} witness;

static oq_status see(void *user, const oq_linear *linear, oq_tensor x, oq_tensor y)
{
    witness *w = user;
    (void)y;
    if (strcmp(linear->name, w->name) != 0) return OQ_OK;
    float *row = calloc((size_t)x.cols, sizeof *row);
    if (!w->products) {
        w->k = x.cols;
        w->column_amax = calloc((size_t)w->k, sizeof *w->column_amax);
        w->products = calloc((size_t)(w->k * w->k), sizeof *w->products);
    }
    for (int64_t r = 0; r < x.rows; r++, w->rows++) {
        x.dtype->to_f32(row, oq_tensor_rows(x, r, 1).data, (size_t)x.cols);
        for (int64_t i = 0; i < w->k; i++) {
            w->column_amax[i] = fmaxf(w->column_amax[i], fabsf(row[i]));
            for (int64_t j = 0; j < w->k; j++) w->products[i * w->k + j] += (double)row[i] * (double)row[j];
        }
    }
    free(row);
    return OQ_OK;
}

static void expect_layer(oq_calibration *c, oq_model *model, const char *component, const char *part)
{
    oq_calibration_layer *layer = oq_calibration_find(c, component, part);
    assert_non_null(layer);
    witness w = {.name = layer->linear->name};
    assert_int_equal(oq_observe(model, oq_calibration_request(c), see, &w), OQ_OK);
    assert_int_equal(w.k, layer->k);
    assert_int_equal(w.rows, layer->rows);
    assert_memory_equal(w.column_amax, layer->column_amax, (size_t)w.k * sizeof *w.column_amax);
    float most = 0;
    for (int64_t i = 0; i < w.k; i++) most = fmaxf(most, w.column_amax[i]);
    assert_memory_equal(&most, &layer->amax, sizeof most);
    assert_int_equal(oq_calibration_products(c, &layer, 1), OQ_OK);
    assert_int_equal(w.rows, layer->product_rows);
    double worst = 0;
    for (int64_t i = 0; i < w.k; i++)
        for (int64_t j = 0; j < w.k; j++) {
            const double scale = sqrt(w.products[i * w.k + i] * w.products[j * w.k + j]);
            const double d = fabs((double)layer->products[i * w.k + j] - w.products[i * w.k + j]);
            worst = fmax(worst, scale > 0 ? d / scale : d);
        }
    if (!(worst < 1e-6)) fail_msg("%s: products differ by %.3g", part, worst);
    free(w.column_amax);
    free(w.products);
}

static void test_statistics(void **state)
{
    oq_env *env = new_env(2);
    oq_calibration *c = open_toybox(env);
    oq_options *o = NULL;
    oq_model *model = NULL;
    (void)state;
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    assert_int_equal(oq_options_set(o, "model", MODEL), OQ_OK);
    assert_int_equal(oq_model_open(env, o, &model), OQ_OK);
    assert_int_equal(oq_calibration_run(c), OQ_OK);
    assert_ptr_equal(oq_calibration_find(c, "transformer", "layers.1.attention.to_q"),
                     oq_calibration_find(c, "transformer", "layers.1.attention.to_v"));
    assert_null(oq_calibration_find(c, "transformer", "layers.1.attention"));
    expect_layer(c, model, "transformer", "layers.1.attention.to_k");
    expect_layer(c, model, "transformer", "layers.0.feed_forward.w2");
    expect_layer(c, model, "text_encoder", "layers.0.mlp.down_proj");
    oq_model_close(model);
    oq_options_free(o);
    oq_calibration_close(c);
    oq_env_free(env);
}

/* ---- threads, and what is kept ------------------------------------------------------------------------- */

static void test_threads(void **state)
{
    oq_env *env[2] = {new_env(1), new_env(3)};
    oq_calibration *c[2];
    oq_calibration_layer *some[2][2];
    (void)state;
    for (int i = 0; i < 2; i++) {
        c[i] = open_toybox(env[i]);
        some[i][0] = oq_calibration_find(c[i], "transformer", "layers.0.attention.to_q");
        some[i][1] = oq_calibration_find(c[i], "transformer", "layers.0.feed_forward.w2");
        assert_int_equal(oq_calibration_run(c[i]), OQ_OK);
        assert_int_equal(oq_calibration_products(c[i], some[i], 2), OQ_OK);
    }
    for (int l = 0; l < 2; l++) {
        const oq_calibration_layer *a = some[0][l], *b = some[1][l];
        assert_memory_equal(a->column_amax, b->column_amax, (size_t)a->k * sizeof(float));
        assert_memory_equal(a->products, b->products, (size_t)(a->k * a->k) * sizeof(float));
    }
    /* The next call's layers take the place of the last one's. */
    assert_int_equal(oq_calibration_products(c[0], &some[0][1], 1), OQ_OK);
    assert_null(some[0][0]->products);
    assert_non_null(some[0][1]->products);
    for (int i = 0; i < 2; i++) {
        oq_calibration_close(c[i]);
        oq_env_free(env[i]);
    }
}

static void test_fit(void **state)
{
    oq_calibration_layer a = {.k = 10}, b = {.k = 20}, huge = {.k = INT64_C(1) << 33};
    oq_calibration_layer *layers[] = {&a, &a, &b, &huge};
    (void)state;
    assert_int_equal(oq_calibration_fit(layers, 4, 399), 1); /* at least one, however large */
    assert_int_equal(oq_calibration_fit(layers, 4, 400), 2); /* the second is the first */
    assert_int_equal(oq_calibration_fit(layers, 4, 1999), 2);
    assert_int_equal(oq_calibration_fit(layers, 4, 2000), 3);
    assert_int_equal(oq_calibration_fit(layers, 4, SIZE_MAX), 3);
    assert_int_equal(oq_calibration_fit(layers, 0, 1), 0);
}

/* ---- refusals ------------------------------------------------------------------------------------------ */

static void test_refusals(void **state)
{
    const char *root = scratch_dir(OMNIQ_BINARY_DIR, "calibrate"), *empty = scratch_path(root, "empty.txt");
    const struct {
        oq_calibration_source source;
        const char *option, *value;
        oq_status status;
        const char *text;
    } refusals[] = {
        {{.model = MODEL}, "prompt-file", empty, OQ_E_ARG, "holds no prompt"},
        {{.model = MODEL}, "prompt-file", "/nowhere/prompts", OQ_E_NOTFOUND, "/nowhere/prompts"},
        {{.model = "/nowhere"}, "prompt", "x", OQ_E_NOTFOUND, "/nowhere"},
        {{.model = MODEL}, "width", "63", OQ_E_ARG, "63"},
        {{.model = MODEL, .component = "vision_tower", .file = "x.safetensors"},
         "prompt",
         "x",
         OQ_E_UNSUPPORTED,
         "no model runs with another vision_tower"},
        {{.model = MODEL}, NULL, NULL, OQ_E_ARG, "give some with --prompt or --prompt-file"},
    };
    (void)state;
    scratch_text(root, "empty.txt", "\n\r\n");
    for (size_t i = 0; i < OQ_COUNT(refusals); i++)
        for (int dry = 0; dry < 2; dry++) {
            oq_env *env = new_env(1);
            oq_calibration *c = NULL;
            oq_options *o = NULL;
            assert_int_equal(oq_options_new(env, "quantize", &o), OQ_OK);
            if (refusals[i].option)
                assert_int_equal(oq_options_set(o, refusals[i].option, refusals[i].value), OQ_OK);
            if (refusals[i].option && strncmp(refusals[i].option, "prompt", 6) != 0)
                assert_int_equal(oq_options_set(o, "prompt", "x"), OQ_OK);
            const oq_status st = oq_calibration_open(env, o, &refusals[i].source, dry, &c);
            if (st != refusals[i].status || !strstr(oq_env_error(env), refusals[i].text))
                fail_msg("row %zu: %d, %s", i, (int)st, oq_env_error(env));
            assert_null(c);
            oq_options_free(o);
            oq_env_free(env);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
