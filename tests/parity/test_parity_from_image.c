/* test_parity_from_image.c -- Z-Image (the shipped model) from an image, against the original implementation (diffusers;
 * float32, CPU; make_image_golden.py): the picture in latents, where denoising begins, where it ends, the result within one level
 * in 99.9 % of the values. An image of another size is resized to the request's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "parity/stages.h"
#include "support/golden_folder.h"

static void compare(const oq_ckpt *golden, const stages *kept, const char *key, const char *golden_key,
                    double bound)
{
    const stage *s = stages_find(kept, key);
    const oq_ckpt_tensor *g = oq_ckpt_find(golden, golden_key);
    distance d = {0};
    assert_non_null(s);
    assert_int_equal(s->n, g->elems);
    compare_whole(s, g, &d);
    printf("%s: %.2e\n", key, distance_relative(&d));
    assert_true(d.n > 0 && distance_relative(&d) <= bound);
}

static void check_picture(const oq_ckpt *golden, const uint8_t *pixels)
{
    const oq_ckpt_tensor *g = oq_ckpt_find(golden, "image");
    int64_t beyond = 0, largest = 0;
    for (int64_t i = 0; i < g->elems; i++) {
        const int64_t difference = labs((long)pixels[i] - (long)g->data[i]);
        beyond += difference > 1;
        largest = difference > largest ? difference : largest;
    }
    printf("picture: largest difference %lld, %lld of %lld beyond one\n", (long long)largest,
           (long long)beyond, (long long)g->elems);
    assert_true((double)beyond <= 0.001 * (double)g->elems);
}

static void test_z_image(void **state)
{
    enum { W = 96, H = 80 };
    static const char *const prompt =
        "a large red ball to the left of a small blue star on a cream background";
    const oq_image image = golden_picture("image.ref0", W, H);
    oq_env *env = NULL;
    oq_options *options = NULL;
    oq_model *model = NULL;
    oq_ckpt *golden = NULL;
    oq_media *media = NULL;
    stages kept = {0};
    (void)state;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    assert_int_equal(oq_ckpt_open(env, OMNIQ_SOURCE_DIR "/tests/data/parity/from_image.safetensors", &golden),
                     OQ_OK);
    assert_int_equal(oq_options_new(env, "generate", &options), OQ_OK);
    assert_int_equal(oq_options_set(options, "model", OMNIQ_SOURCE_DIR "/models/toybox"), OQ_OK);
    assert_int_equal(oq_options_set(options, "dtype", "fp32"), OQ_OK);
    if (parity_place(options) != OQ_OK || oq_model_open(env, options, &model) != OQ_OK)
        fail_msg("%s", oq_env_error(env));
    const oq_request request = {.prompts = &prompt,
                                .n_prompts = 1,
                                .width = 144,
                                .height = 112,
                                .steps = 6,
                                .seed = 11,
                                .images_per_prompt = 1,
                                .images = &image,
                                .n_images = 1,
                                .strength = 0.7,
                                .true_cfg = 1,
                                .max_sequence_length = 512,
                                .cfg_truncation = 1};
    const oq_run_hooks hooks = {.trace = stages_keep, .trace_user = &kept};
    if (oq_generate_request(env, model, &request, &hooks, &media) != OQ_OK) fail_msg("%s", oq_env_error(env));
    compare(golden, &kept, "input.0.latents", "input.0.latents", 2e-5);
    compare(golden, &kept, "noise", "noise", 2e-5);
    compare(golden, &kept, "step.5.latents", "latents", 1e-3);
    check_picture(golden, oq_media_pixels(media, 0));
    oq_media_free(media);
    stages_free(&kept);
    oq_model_close(model);
    oq_options_free(options);
    oq_ckpt_close(golden);
    oq_env_free(env);
    free(image.pixels);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_z_image)};
    return cmocka_run_group_tests_name("Z-Image from an image", tests, NULL, NULL);
}
