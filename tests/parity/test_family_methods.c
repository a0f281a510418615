/* test_family_methods.c -- every method that quantizes while loading, in its main settings, on every tiny family: it runs, its
 * layers stand where the formats' arithmetic puts them, and the transformer's first output is as far from the plain run's as those layers
 * predict (of a text encoder with a vision tower: its states).
 *
 * Each quantized layer is measured by itself (the plain layer of that name on the same input). L layers with relative errors e_i
 * that add up like noise along a residual stream give between a third of their root mean square (a layer's error is a part of the
 * stream) and three times it: measured 0.4 to 2.2. A tower and the text encoder behind it are two streams, one after the other: their
 * noises are independent, add as squares, and both bounds become sqrt(2) times as large, 0.47 and 4.24: measured 2.9 to 3.6. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/compare.h"
#include "parity/family.h"

typedef struct family {
    const char *name, *prompt;
    int max_tokens;
    int frames; /* 0: of pictures */
    bool begins_with_image;
    const char *folder; /* NULL: made from tests/data/golden/NAME */
    /* Trained weights give outputs that stand out of noise, and inputs with columns that do: layers may lie so far beside. */
    double better_db, worse_db;
    const char *component; /* that is quantized; NULL: the transformer */
} family;

static const family families[] = {
    {"flux1", "a red circle on a white background", 45, 0, false, NULL, 0, 0, NULL},
    {"flux2-klein", "a teal ring in the top left corner on a charcoal background", 45, 0, false, NULL, 0, 0,
     NULL},
    {"flux2-dev", "a small red ball to the left of a blue star", 96, 0, false, NULL, 0, 0, NULL},
    {"qwen-image", "a red circle on a white background", 512, 0, false, NULL, 0, 0, NULL},
    {"wan2.2/t2v-a14b", "<71><1712>", 512, 5, false, NULL, 0, 0, NULL},
    {"wan2.2/i2v-a14b", "<71><1712>", 512, 5, true, NULL, 0, 0, NULL},
    {"wan2.2/ti2v-5b", "<71><1712>", 512, 5, false, NULL, 0, 0, NULL},
    {"qwen-image-edit", "make the ball blue", 1024, 0, true, NULL, 0, 0, NULL},
    {"qwen-image-edit-plus", "make the ball blue", 1024, 0, true, NULL, 0, 0, NULL},
    {"qwen-image-edit", "make the ball blue", 1024, 0, true, NULL, 3, 1, "text_encoder"},
    {"z-image", "a red ball", 512, 0, false, OMNIQ_SOURCE_DIR "/models/toybox", 12, 1, NULL},
};

/* Relative error of one layer's output: from the signal to noise ratio of the format for values without outliers, weights and
 * activations, with room for what a format's scales make of a few hundred columns. */
typedef struct method {
    const char *name, *spec; /* spec: what --quantization takes for the transformer */
    double least_db, most_db;
} method;

static const method methods[] = {
    {"fp8", "\"fp8\"", 26, 31},
    {"int8", "\"int8\"", 32, 44},
    {"mxfp8", "\"mxfp8\"", 27, 31},
    {"mxfp4", "\"mxfp4\"", 12, 17},
    {"mxfp4, two scales", "{\"method\":\"mxfp4_dualscale\",\"num_bf16_fallback_layers\":0}", 14, 19},
    {"nvfp4", "\"nvfp4\"", 18, 22},
    {"nvfp4, W4A4", "{\"method\":\"nvfp4\",\"activations\":\"dynamic\"}", 15.5, 19},
    {"nf4", "\"bitsandbytes\"", 19, 23},
    {"fp4", "{\"method\":\"bitsandbytes\",\"quant_type\":\"fp4\"}", 17.5, 22},
    {"w4a16", "\"w4a16\"", 21, 26},
    {"w8a16", "{\"method\":\"w4a16\",\"bits\":8}", 44, 51},
    {"gguf", "\"gguf\"", 46, 51},
    {"gguf Q4_K", "{\"method\":\"gguf\",\"type\":\"Q4_K\"}", 24, 29},
};

static oq_model *open_method(oq_env *env, const char *folder, const char *component, const char *quantization)
{
    oq_options *options = NULL;
    oq_model *model = NULL;
    char spec[160];
    snprintf(spec, sizeof spec, "{\"%s\":%s}", component ? component : "transformer",
             quantization ? quantization : "null");
    if (oq_options_new(env, "generate", &options) != OQ_OK ||
        oq_options_set(options, "model", folder) != OQ_OK ||
        oq_options_set(options, "dtype", "fp32") != OQ_OK || parity_place(options) != OQ_OK ||
        (quantization && oq_options_set(options, "quantization", spec) != OQ_OK) ||
        oq_model_open(env, options, &model) != OQ_OK)
        fail_msg("%s with %s: %s", folder, quantization ? quantization : "nothing", oq_env_error(env));
    family_small_pictures(model);
    oq_options_free(options);
    return model;
}

/* The transformer's first output; errors NULL: nothing is observed. */
static void first_output(oq_env *env, const oq_model *model, const family *f, oq_layer_errors *errors,
                         stages *kept)
{
    oq_image image = {0};
    if (f->begins_with_image) image = golden_picture("image", 64, 64);
    const oq_request request = {.prompts = &f->prompt,
                                .n_prompts = 1,
                                .images = &image,
                                .n_images = f->begins_with_image ? 1 : 0,
                                .width = 64,
                                .height = 64,
                                .frames = f->frames,
                                .guidance_2 = (double)NAN,
                                .steps = 1,
                                .guidance = 1,
                                .true_cfg = 1,
                                .seed = 3,
                                .images_per_prompt = 1,
                                .max_sequence_length = f->max_tokens,
                                .cfg_truncation = 1};
    const oq_run_hooks hooks = {.observer = errors ? oq_layer_errors_observe : NULL,
                                .observer_user = errors,
                                .trace = stages_keep,
                                .trace_user = kept};
    oq_media *media = NULL;
    if (oq_generate_request(env, model, &request, &hooks, &media) != OQ_OK)
        fail_msg("%s: %s", f->name, oq_env_error(env));
    oq_media_free(media);
    free(image.pixels);
}

typedef struct layers {
    size_t n;
    double rms, least_db, most_db; /* relative error over all layers; the worst layer and the best */
} layers;

static layers summarize(const oq_layer_errors *errors)
{
    oq_json *json = oq_layer_errors_json(errors);
    layers l = {.least_db = INFINITY, .most_db = -INFINITY};
    for (size_t i = 0; i < oq_json_size(json); i++) {
        const double db = oq_json_real(oq_json_get(oq_json_at(json, i), "snr_db"), NAN);
        if (isnan(db)) continue;
        l.n++;
        l.rms += pow(10, -db / 10);
        l.least_db = fmin(l.least_db, db);
        l.most_db = fmax(l.most_db, db);
    }
    oq_json_free(json);
    l.rms = sqrt(l.rms / (double)l.n);
    return l;
}

/* Of what the quantized component gives. */
static double relative(const family *f, const stages *a, const stages *b)
{
    const char *key = f->component ? "text.pos.0.embeds" : "step.0.model_out.0";
    const stage *x = stages_find(a, key), *y = stages_find(b, key);
    distance d = {0};
    assert_non_null(x);
    assert_non_null(y);
    assert_int_equal(x->n, y->n);
    for (int64_t i = 0; i < x->n; i++) distance_add(&d, (double)x->values[i], (double)y->values[i]);
    return distance_relative(&d);
}

static void check_method(oq_env *env, const char *folder, const family *f, const oq_model *plain,
                         const stages *want, const method *m)
{
    oq_model *model = open_method(env, folder, f->component, m->spec);
    oq_layer_errors *errors = NULL;
    stages got = {0};
    assert_int_equal(oq_layer_errors_new(env, plain, model, &errors), OQ_OK);
    first_output(env, model, f, errors, &got);
    const layers l = summarize(errors);
    const double error = relative(f, &got, want);
    printf("%-15s %-12s %-17s %3zu layers %5.1f to %5.1f dB, rms error %.4f; output %.4f\n", f->name,
           f->component ? f->component : "transformer", m->name, l.n, l.least_db, l.most_db, l.rms, error);
    assert_true(l.n >= 8);
    assert_true(l.least_db >= m->least_db - f->worse_db && l.most_db <= m->most_db + f->better_db);
    const double predicted = f->component ? l.rms * sqrt(2) : l.rms; /* two streams: tower and encoder */
    assert_true(error >= predicted / 3 && error <= predicted * 3);
    oq_layer_errors_free(errors);
    stages_free(&got);
    oq_model_close(model);
}

static void make_folder(oq_env *env, const family *f, char *folder, size_t size)
{
    static const int32_t ids[] = {1, 71, 1712};
    char data[512];
    snprintf(folder, size, "%s", f->folder ? f->folder : scratch_dir(OMNIQ_BINARY_DIR, "family-methods"));
    if (f->folder) return;
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", f->name);
    golden_folder_make(env, data, folder, &oq_dtype_f32);
    if (f->frames) golden_ids_tokenizer(env, scratch_path(folder, "tokenizer"), ids, OQ_COUNT(ids), -1, 1);
}

static void check_family(const family *f)
{
    oq_env *env = NULL;
    char folder[512];
    stages want = {0};
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    make_folder(env, f, folder, sizeof folder);
    oq_model *plain = open_method(env, folder, NULL, NULL);
    first_output(env, plain, f, NULL, &want);
    for (size_t i = 0; i < OQ_COUNT(methods); i++) check_method(env, folder, f, plain, &want, &methods[i]);
    oq_model_close(plain);
    stages_free(&want);
    oq_env_free(env);
}

static void test_flux1(void **state)
{
    (void)state;
    check_family(&families[0]);
}
static void test_flux2(void **state)
{
    (void)state;
    check_family(&families[1]);
}
static void test_flux2_dev(void **state)
{
    (void)state;
    check_family(&families[2]);
}
static void test_qwen_image(void **state)
{
    (void)state;
    check_family(&families[3]);
}
static void test_wan_experts(void **state)
{
    (void)state;
    check_family(&families[4]);
}
static void test_wan_from_image(void **state)
{
    (void)state;
    check_family(&families[5]);
}
static void test_wan_5b(void **state)
{
    (void)state;
    check_family(&families[6]);
}
static void test_qwen_image_edit(void **state)
{
    (void)state;
    check_family(&families[7]);
}
static void test_qwen_image_edit_plus(void **state)
{
    (void)state;
    check_family(&families[8]);
}
static void test_vision_tower(void **state)
{
    (void)state;
    check_family(&families[9]);
}
static void test_z_image(void **state)
{
    (void)state;
    check_family(&families[10]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_flux1),
                                       cmocka_unit_test(test_flux2),
                                       cmocka_unit_test(test_flux2_dev),
                                       cmocka_unit_test(test_qwen_image),
                                       cmocka_unit_test(test_wan_experts),
                                       cmocka_unit_test(test_wan_from_image),
                                       cmocka_unit_test(test_wan_5b),
                                       cmocka_unit_test(test_qwen_image_edit),
                                       cmocka_unit_test(test_qwen_image_edit_plus),
                                       cmocka_unit_test(test_vision_tower),
                                       cmocka_unit_test(test_z_image)};
    return cmocka_run_group_tests_name("methods on families", tests, NULL, NULL);
}
