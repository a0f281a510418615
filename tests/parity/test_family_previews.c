/* test_family_previews.c -- previews on every family's small model: after step k stands the picture of a run that ends there
 * (the same noise levels, cut off), and the result is that of a run at which nobody looked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "parity/family.h"

typedef struct family_case {
    const char *data, *width, *height, *frames; /* frames NULL: pictures */
    int step;                                   /* after which the preview is compared */
    const char *cut; /* levels of the run that ends there; NULL: the result itself */
    double bound_db;
} family_case;

/* FLUX.2's shift depends on the number of steps, so its run that ends early has other levels. Qwen-Image's schedule stretches
 * to 0.02 at its last step, whatever it is: what stands before that step is the result but for 0.02 of a prediction. */
static const family_case cases[] = {
    {"flux1", "64", "64", NULL, 2, "1,0.75", 50},  {"flux2-klein", "64", "64", NULL, 2, "1,0.75", 28},
    {"qwen-image", "64", "64", NULL, 3, NULL, 30}, {"wan2.2/t2v-a14b", "64", "48", "5", 2, "1,0.75", 50},
    {NULL, "64", "64", NULL, 2, "1,0.75", 50}, /* toybox: Z-Image */
};

enum { STEPS = 4 };

typedef struct seen { /* by the preview callback */
    int step;         /* wanted */
    uint8_t *pixels;  /* after it */
    size_t n;
    int calls, steps[STEPS];
} seen;

static void look(void *user, const oq_preview *preview)
{
    seen *s = user;
    const oq_media *m = preview->media;
    assert_true(s->calls < STEPS);
    assert_int_equal(preview->steps, STEPS);
    assert_int_equal(oq_media_count(m), 1);
    s->steps[s->calls++] = preview->step;
    if (preview->step != s->step) return;
    s->n = (size_t)(oq_media_frames(m) * oq_media_width(m) * oq_media_height(m) * 3);
    s->pixels = malloc(s->n);
    assert_non_null(s->pixels);
    memcpy(s->pixels, oq_media_pixels(m, 0), s->n);
}

static void folder_of(oq_env *env, const family_case *c, char folder[static 500])
{
    char data[512], use[64];
    family_fixture f = {.env = env};
    snprintf(folder, 500, OMNIQ_SOURCE_DIR "/models/toybox");
    if (!c->data) return;
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", c->data);
    snprintf(use, sizeof use, "previews-%s", c->data);
    for (char *at = use; *at; at++)
        if (*at == '/') *at = '-';
    snprintf(folder, 500, "%s", scratch_dir(OMNIQ_BINARY_DIR, use));
    golden_folder_make(env, data, folder, &oq_dtype_f32);
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s/golden.safetensors", c->data);
    assert_int_equal(oq_ckpt_open(env, data, &f.golden), OQ_OK);
    family_ids_tokenizer(&f, folder);
    oq_ckpt_close(f.golden);
}

static void set(oq_options *options, const char *name, const char *value)
{
    if (value && oq_options_set(options, name, value) != OQ_OK)
        fail_msg("%s %s: %s", name, value, oq_env_error(oq_options_env(options)));
}

static oq_media *generate(oq_env *env, const family_case *c, const char *folder, const char *sigmas,
                          const char *previews)
{
    oq_options *options = NULL;
    oq_model *model = NULL;
    oq_media *media = NULL;
    assert_int_equal(oq_options_new(env, "generate", &options), OQ_OK);
    assert_int_equal(parity_place(options), OQ_OK);
    set(options, "model", folder);
    set(options, "dtype", "fp32");
    set(options, "width", c->width);
    set(options, "height", c->height);
    set(options, "num-frames", c->frames);
    set(options, "sigmas", sigmas);
    set(options, "seed", "5");
    set(options, "prompt", "");
    set(options, "previews", previews);
    if (oq_model_open(env, options, &model) != OQ_OK || oq_generate(env, model, options, &media) != OQ_OK)
        fail_msg("%s: %s", folder, oq_env_error(env));
    oq_model_close(model);
    oq_options_free(options);
    return media;
}

static void test_previews(void **state)
{
    (void)state;
    for (size_t i = 0; i < OQ_COUNT(cases); i++) {
        const family_case *c = &cases[i];
        seen s = {.step = c->step};
        oq_env *env = NULL;
        char folder[500];
        oq_env_params params = OQ_ENV_PARAMS_INIT;
        params.preview = look;
        params.preview_user = &s;
        assert_int_equal(oq_env_new(&params, &env), OQ_OK);
        folder_of(env, c, folder);
        oq_media *plain = generate(env, c, folder, "1,0.75,0.5,0.25", NULL);
        assert_int_equal(s.calls, 0);
        oq_media *looked = generate(env, c, folder, "1,0.75,0.5,0.25", "3");
        assert_int_equal(s.calls, 3);
        for (int k = 0; k < 3; k++) assert_int_equal(s.steps[k], k + 1);
        assert_memory_equal(oq_media_pixels(plain, 0), oq_media_pixels(looked, 0), s.n);
        oq_media *cut = c->cut ? generate(env, c, folder, c->cut, NULL) : NULL;
        const family_distance d =
            family_compare_bytes(oq_media_pixels(cut ? cut : plain, 0), 1, s.pixels, (int64_t)s.n);
        printf("%s: after step %d %.1f dB from %s\n", c->data ? c->data : "toybox", c->step, family_psnr(&d),
               cut ? "the run that ends there" : "the result");
        assert_true(family_psnr(&d) >= c->bound_db);
        assert_true(!cut || memcmp(oq_media_pixels(plain, 0), s.pixels, s.n) != 0);
        oq_media_free(plain), oq_media_free(looked), oq_media_free(cut);
        oq_env_free(env);
        free(s.pixels);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_previews)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
