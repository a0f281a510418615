/* test_quality.c -- is a quantized picture as close to the original as the method's arithmetic allows? The wanted mean
 * PSNR of each method comes from an emulation of its arithmetic in torch over the same six prompts (transformer alone,
 * everything else in f32). A run may differ by 4 dB: six pictures scatter by that much. Better than that is as
 * suspicious as worse: a layer may have stayed unquantized. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/engine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_PROMPTS = 6 };
static const char *const prompts[N_PROMPTS] = {
    "a large red ball to the left of a small blue star on a cream background",
    "a small striped green triangle above a large yellow heart on a white background",
    "a large dotted orange square to the right of a small teal ring on a navy background",
    "a small pink diamond below a large gray cross on a mint background",
    "a large purple heart to the left of a small yellow ball on a white background",
    "a small black star above a large striped red square on a gray background",
};
static const char *const seeds[N_PROMPTS] = {"42", "7", "1", "2", "3", "4"};

static oq_options *make_options(oq_env *env, const char *quantization, int prompt)
{
    oq_options *o = NULL;
    assert_int_equal(oq_options_new(env, "generate", &o), OQ_OK);
    assert_int_equal(oq_options_set(o, "model", OMNIQ_SOURCE_DIR "/models/toybox"), OQ_OK);
    assert_int_equal(oq_options_set(o, "dtype", "fp32"), OQ_OK);
    assert_int_equal(oq_options_set(o, "prompt", prompts[prompt]), OQ_OK);
    assert_int_equal(oq_options_set(o, "seed", seeds[prompt]), OQ_OK);
    if (quantization) assert_int_equal(oq_options_set(o, "quantization", quantization), OQ_OK);
    return o;
}

/* The six pictures of one configuration. */
static oq_media **generate_all(oq_env *env, const char *quantization)
{
    oq_model *model = NULL;
    oq_media **media = calloc(N_PROMPTS, sizeof *media);
    assert_non_null(media);
    for (int i = 0; i < N_PROMPTS; i++) {
        oq_options *o = make_options(env, quantization, i);
        if (!model && oq_model_open(env, o, &model) != OQ_OK) fail_msg("%s", oq_env_error(env));
        if (oq_generate(env, model, o, &media[i]) != OQ_OK) fail_msg("%s", oq_env_error(env));
        oq_options_free(o);
    }
    oq_model_close(model);
    return media;
}

static void free_all(oq_media **media)
{
    for (int i = 0; i < N_PROMPTS; i++) oq_media_free(media[i]);
    free(media);
}

static double mean_psnr(oq_media *const *a, oq_media *const *b)
{
    double sum = 0;
    for (int i = 0; i < N_PROMPTS; i++) {
        const size_t n = (size_t)(oq_media_width(a[i]) * oq_media_height(a[i]) * 3);
        oq_metrics m;
        oq_metrics_u8(oq_media_pixels(a[i], 0), oq_media_pixels(b[i], 0), n, &m);
        sum += m.psnr_db;
    }
    return sum / N_PROMPTS;
}

static void test_methods_cost_what_their_arithmetic_costs(void **state)
{
    (void)state;
#ifdef OMNIQ_SANITIZED
    skip(); /* thirty whole pictures; the same code runs in shorter tests */
#endif
    static const struct {
        const char *name, *quantization;
        double psnr_db;
    } methods[] = {
        {"fp8 per tensor", "{\"transformer\":{\"method\":\"fp8\"}}", 44.05},
        {"fp8 per channel", "{\"transformer\":{\"method\":\"fp8\",\"weight_strategy\":\"channel\"}}", 40.05},
        {"fp8 per block", "{\"transformer\":{\"method\":\"fp8\",\"weight_strategy\":\"block\"}}", 40.86},
        {"int8", "{\"transformer\":{\"method\":\"int8\"}}", 50.88},
        {"mxfp8", "{\"transformer\":{\"method\":\"mxfp8\"}}", 39.94},
        {"mxfp4", "{\"transformer\":{\"method\":\"mxfp4\"}}", 29.87},
        {"nf4", "{\"transformer\":{\"method\":\"bitsandbytes\",\"compress_statistics\":false}}", 34.2},
        {"nf4, nested scales", "{\"transformer\":{\"method\":\"bitsandbytes\"}}", 34.2},
    };
    oq_env *env = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_media **plain = generate_all(env, NULL);
    int missed = 0;
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        oq_media **quantized = generate_all(env, methods[i].quantization);
        const double psnr = mean_psnr(plain, quantized);
        print_message("%-16s mean PSNR %.2f dB, its arithmetic gives %.2f\n", methods[i].name, psnr,
                      methods[i].psnr_db);
        missed += !(fabs(psnr - methods[i].psnr_db) <= 4.0);
        free_all(quantized);
    }
    free_all(plain);
    oq_env_free(env);
    assert_int_equal(missed, 0);
}

/* ---- layers: for the same operands the fast kernels lose what the reference kernel loses --------------- */

static oq_model *open_model(oq_env *env, const char *quantization, const char *cpu)
{
    oq_options *o = make_options(env, quantization, 0);
    oq_model *model = NULL;
    assert_int_equal(oq_options_set(o, "cpu", cpu), OQ_OK);
    if (oq_model_open(env, o, &model) != OQ_OK) fail_msg("%s", oq_env_error(env));
    oq_options_free(o);
    return model;
}

typedef struct layer_watch {
    const oq_model *plain, *slow; /* the same network unquantized; quantized, on reference kernels */
    double worst_db;
    int n;
    char name[128];
} layer_watch;

static const oq_linear *same_layer(const oq_model *m, const char *name)
{
    for (size_t c = 0; c < m->plan->n_components; c++)
        for (size_t i = 0; i < m->plan->components[c].n_layers; i++)
            if (strcmp(m->plan->components[c].layers[i].linear->name, name) == 0)
                return m->plan->components[c].layers[i].linear;
    return NULL;
}

static float *product(const oq_model *m, const char *name, oq_tensor x)
{
    const oq_linear *l = same_layer(m, name);
    assert_non_null(l);
    float *y = malloc((size_t)(x.rows * l->spec.n) * sizeof *y);
    void *scratch = aligned_alloc(64, (l->kernel->scratch_bytes(&l->spec, x.rows) + 64) / 64 * 64);
    assert_true(y && scratch);
    const oq_linear_args args = {.spec = &l->spec,
                                 .packed = l->packed,
                                 .bias = l->bias,
                                 .scratch = scratch,
                                 .x = x,
                                 .y = oq_tensor_make(y, &oq_dtype_f32, x.rows, l->spec.n)};
    l->kernel->run(m->device, &args);
    free(scratch);
    return y;
}

static double snr_db(const float *reference, const float *y, int64_t rows, int64_t cols, int64_t ld)
{
    double signal = 0, noise = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) {
            const double a = reference[r * cols + c], d = a - y[r * ld + c];
            signal += a * a;
            noise += d * d;
        }
    return 10 * log10(signal / noise);
}

static oq_status watch(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    layer_watch *w = user;
    if (!(layer->spec.scheme.weight->planes & 1u << OQ_PLANE_SCALE)) return OQ_OK; /* not quantized */
    float *plain = product(w->plain, layer->name, x), *slow = product(w->slow, layer->name, x);
    const double fast_db = snr_db(plain, y.data, y.rows, y.cols, y.ld);
    const double slow_db = snr_db(plain, slow, y.rows, y.cols, y.cols);
    if (!(fabs(fast_db - slow_db) <= w->worst_db)) {
        w->worst_db = fabs(fast_db - slow_db);
        snprintf(w->name, sizeof w->name, "%s", layer->name);
    }
    w->n++;
    free(slow);
    free(plain);
    return OQ_OK;
}

static void test_layers_lose_what_the_reference_loses(void **state)
{
    (void)state;
    static const char *const methods[] = {"fp8",
                                          "{\"method\":\"fp8\",\"weight_strategy\":\"channel\"}",
                                          "{\"method\":\"fp8\",\"weight_strategy\":\"block\"}",
                                          "int8",
                                          "mxfp8",
                                          "mxfp4",
                                          "bitsandbytes"};
    oq_env *env = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_model *plain = open_model(env, NULL, "auto");
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        oq_model *fast = open_model(env, methods[i], "auto"), *slow = open_model(env, methods[i], "ref");
        layer_watch w = {.plain = plain, .slow = slow};
        const oq_run_hooks hooks = {.observer = watch, .observer_user = &w};
        const char *prompt = prompts[0];
        const oq_request request = {.prompts = &prompt,
                                    .n_prompts = 1,
                                    .width = 64,
                                    .height = 64,
                                    .steps = 1,
                                    .seed = 42,
                                    .images_per_prompt = 1,
                                    .max_sequence_length = 512,
                                    .cfg_truncation = 1};
        oq_media *media = NULL;
        if (oq_generate_request(env, fast, &request, &hooks, &media) != OQ_OK)
            fail_msg("%s", oq_env_error(env));
        print_message("%s: %d products, at most %.7f dB from the reference kernel (%s)\n", methods[i], w.n,
                      w.worst_db, w.name);
        assert_true(w.n >= 60 && w.worst_db <= 0.3);
        oq_media_free(media);
        oq_model_close(slow);
        oq_model_close(fast);
    }
    oq_model_close(plain);
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_methods_cost_what_their_arithmetic_costs),
                                       cmocka_unit_test(test_layers_lose_what_the_reference_loses)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
