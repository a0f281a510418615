/* test_parity_flux2_dev.c -- FLUX.2-dev against the original implementation (diffusers 0.42, transformers 5; CPU), stage by stage:
 * Mistral 3 with pads in front of the prompt, the embedded guidance scale, a reference picture, a prompt that holds the mark
 * of a picture.
 *
 * Bounds: float32 stages 5e-5 relative, schedules and noise 1e-6, ids exact, pictures within one level in 99.9 % of the values; bfloat16
 * pictures at most 3 dB farther from float32 than the original's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "parity/family.h"

static const family_run cases[] = {
    {.name = "A.",
     .prompt = "a small red ball to the left of a blue star",
     .width = 64,
     .height = 64,
     .steps = 3,
     .guidance = 4,
     .seed = 42},
    {.name = "B.",
     .prompt = "a teal ring on a [IMG]charcoal background",
     .width = 112,
     .height = 80,
     .steps = 2,
     .max_tokens = 96,
     .guidance = 2.5,
     .seed = 7},
    {.name = "E.",
     .prompt = "make the ball green",
     .width = 64,
     .height = 64,
     .steps = 2,
     .max_tokens = 96,
     .guidance = 4,
     .seed = 9,
     .n_images = 1,
     .images = {{"image.ref0", 80, 64}}},
};

static int setup(void **state)
{
    return family_setup(state, "flux2-dev", "parity_flux2_dev");
}

static double bound_of(const char *key, bool bf16)
{
    if (strcmp(key, "noise") == 0 || strcmp(key, "sigmas") == 0 || strcmp(key, "timesteps") == 0) return 1e-6;
    if (strstr(key, ".ids")) return 0;
    if (bf16) return strncmp(key, "vae.", 4) == 0 ? 6e-2 : 3e-2;
    return 5e-5;
}

static void test_square(void **state)
{
    family_check_run(*state, &cases[0], false, bound_of);
}
static void test_square_bf16(void **state)
{
    family_check_run(*state, &cases[0], true, bound_of);
}
static void test_mark_of_a_picture(void **state)
{
    family_check_run(*state, &cases[1], false, bound_of);
}
static void test_mark_of_a_picture_bf16(void **state)
{
    family_check_run(*state, &cases[1], true, bound_of);
}
static void test_reference(void **state)
{
    family_check_run(*state, &cases[2], false, bound_of);
}
static void test_reference_bf16(void **state)
{
    family_check_run(*state, &cases[2], true, bound_of);
}

static void test_negative_prompt_is_refused(void **state)
{
    family_fixture *f = *state;
    const char *prompt = "a cat";
    const oq_request request = {
        .prompts = &prompt, .n_prompts = 1, .negative = "blurry", .width = 64, .height = 64, .steps = 1};
    assert_int_equal(f->fp32->type->check(f->env, f->fp32->self, &request), OQ_E_ARG);
    assert_string_equal(oq_env_error(f->env),
                        "a negative prompt has no effect: FLUX.2-dev embeds its guidance");
    oq_env_clear(f->env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_square),
                                       cmocka_unit_test(test_square_bf16),
                                       cmocka_unit_test(test_mark_of_a_picture),
                                       cmocka_unit_test(test_mark_of_a_picture_bf16),
                                       cmocka_unit_test(test_reference),
                                       cmocka_unit_test(test_reference_bf16),
                                       cmocka_unit_test(test_negative_prompt_is_refused)};
    return cmocka_run_group_tests_name("parity of FLUX.2-dev", tests, setup, family_teardown);
}
