/* test_family_attention.c -- runtime attention quantization on every family's small model: it runs, changes the result by
 * what its precision adds and no more, leaves plain steps plain, and never reaches cross-attention. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "parity/family.h"

typedef struct family_case {
    const char *data, *width, *height, *frames; /* frames NULL: pictures */
    const char *component;
    const char *kept; /* a layer that the plan keeps plain for a reason of its own; NULL: none */
} family_case;

static const family_case cases[] = {
    {"flux1", "64", "64", NULL, "transformer", NULL},
    {"flux2-klein", "64", "64", NULL, "transformer", NULL},
    {"qwen-image", "64", "64", NULL, "transformer", NULL},
    {"wan2.2/t2v-a14b", "64", "48", "5", "transformer_2", "attn2"},
};

/* The folder of a case, made once. */
static const char *folder_of(oq_env *env, const family_case *c, char folder[static 500])
{
    char data[512], use[64];
    family_fixture f = {.env = env};
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", c->data);
    snprintf(use, sizeof use, "attention-%s", c->data);
    for (char *at = use; *at; at++)
        if (*at == '/') *at = '-';
    snprintf(folder, 500, "%s", scratch_dir(OMNIQ_BINARY_DIR, use));
    golden_folder_make(env, data, folder, &oq_dtype_f32);
    snprintf(data, sizeof data, OMNIQ_SOURCE_DIR "/tests/data/golden/%s/golden.safetensors", c->data);
    assert_int_equal(oq_ckpt_open(env, data, &f.golden), OQ_OK);
    family_ids_tokenizer(&f, folder);
    oq_ckpt_close(f.golden);
    return folder;
}

static void set(oq_options *options, const char *name, const char *value)
{
    if (value && oq_options_set(options, name, value) != OQ_OK)
        fail_msg("%s %s: %s", name, value, oq_env_error(oq_options_env(options)));
}

static oq_options *options_of(oq_env *env, const family_case *c, const char *folder, const char *precision,
                              const char *skip_steps)
{
    oq_options *options = NULL;
    assert_int_equal(oq_options_new(env, "generate", &options), OQ_OK);
    assert_int_equal(parity_place(options), OQ_OK);
    set(options, "model", folder);
    set(options, "dtype", "fp32");
    set(options, "width", c->width);
    set(options, "height", c->height);
    set(options, "num-frames", c->frames);
    set(options, "steps", "3");
    set(options, "seed", "5");
    set(options, "prompt", "");
    set(options, "attention-quantization", precision);
    set(options, "attention-skip-steps", skip_steps);
    return options;
}

static oq_media *generate(oq_env *env, const family_case *c, const char *folder, const char *precision,
                          const char *skip_steps)
{
    oq_options *options = options_of(env, c, folder, precision, skip_steps);
    oq_model *model = NULL;
    oq_media *media = NULL;
    if (oq_model_open(env, options, &model) != OQ_OK || oq_generate(env, model, options, &media) != OQ_OK)
        fail_msg("%s, %s: %s", c->data, precision, oq_env_error(env));
    oq_model_close(model);
    oq_options_free(options);
    return media;
}

static double psnr(const oq_media *a, const oq_media *b)
{
    const int64_t n = oq_media_width(a) * oq_media_height(a) * 3;
    const family_distance d = family_compare_bytes(oq_media_pixels(a, 0), 1, oq_media_pixels(b, 0), n);
    return family_psnr(&d);
}

static void test_runs(void **state)
{
    (void)state;
    for (size_t i = 0; i < OQ_COUNT(cases); i++) {
        oq_env *env = NULL;
        char folder[500];
        assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
        folder_of(env, &cases[i], folder);
        oq_media *plain = generate(env, &cases[i], folder, "none", NULL),
                 *fp8 = generate(env, &cases[i], folder, "fp8", NULL),
                 *mxfp4 = generate(env, &cases[i], folder, "mxfp4", NULL),
                 *kept = generate(env, &cases[i], folder, "mxfp4", "0-2");
        printf("%s: fp8 %.1f dB, mxfp4 %.1f dB\n", cases[i].data, psnr(plain, fp8), psnr(plain, mxfp4));
        assert_true(psnr(plain, fp8) >= 35 && psnr(plain, mxfp4) >= 20);
        assert_true(psnr(plain, mxfp4) < 100); /* something was quantized */
        assert_true(psnr(plain, fp8) >= psnr(plain, mxfp4));
        assert_true(psnr(plain, kept) > 1e9);
        oq_media_free(plain), oq_media_free(fp8), oq_media_free(mxfp4), oq_media_free(kept);
        oq_env_free(env);
    }
}

/* Every attention of the transformers is reached or says why not; a text encoder's never is. */
static void test_plans(void **state)
{
    (void)state;
    for (size_t i = 0; i < OQ_COUNT(cases); i++) {
        oq_env *env = NULL;
        oq_model *model = NULL;
        char folder[500];
        assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
        folder_of(env, &cases[i], folder);
        oq_options *options = options_of(env, &cases[i], folder, "fp8", NULL);
        if (oq_model_prepare(env, options, &model) != OQ_OK)
            fail_msg("%s: %s", cases[i].data, oq_env_error(env));
        const oq_plan_component *c = oq_plan_find(model->plan, cases[i].component);
        assert_non_null(c);
        assert_true(c->n_attentions > 0);
        for (size_t a = 0; a < c->n_attentions; a++) {
            const oq_plan_attention *row = &c->attentions[a];
            const bool kept = cases[i].kept && strstr(row->attention->name, cases[i].kept);
            assert_int_equal(row->attention->modes, kept ? 0 : OQ_MODE_QUANTIZED);
            assert_true(kept ? row->plain != NULL : row->index >= 0);
        }
        const oq_plan_component *encoder = oq_plan_find(model->plan, "text_encoder");
        for (size_t a = 0; a < encoder->n_attentions; a++)
            assert_int_equal(encoder->attentions[a].attention->modes, 0);
        oq_model_close(model);
        oq_options_free(options);
        oq_env_free(env);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_runs), cmocka_unit_test(test_plans)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
