/* test_parity_qwen_image_edit.c -- Qwen-Image-Edit and Qwen-Image-Edit-Plus against the original implementation (diffusers,
 * transformers; CPU), stage by stage in the order of computation: one picture and two of different shapes, the modulation of
 * timestep 0 (Plus), a negative prompt, windows cut off by the picture's edge; pictures of the published area and small ones.
 *
 * Bounds: float32 stages 2e-5 relative (measured below 4e-6), schedules and noise 1e-6, ids and positions equal, pictures within
 * one level in 99.9 % of the values; bfloat16 stages beside the original's bfloat16, pictures at most 3 dB farther from float32
 * than its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "parity/family.h"

#define CHANGE "make the ball blue and turn the scene into a rainy night"

typedef struct edit_case {
    family_run run;
    bool small; /* family_small_pictures; else the published areas */
} edit_case;

static const edit_case one[] = {
    {.run = {.name = "A.",
             .prompt = CHANGE,
             .negative = "blurry, low quality",
             .width = 80,
             .height = 48,
             .steps = 3,
             .guidance = 4,
             .seed = 11,
             .max_tokens = 1024,
             .n_images = 1,
             .images = {{"image.ref0", 96, 80}}},
     .small = true},
    {.run = {.name = "B.",
             .prompt = CHANGE,
             .width = 64,
             .height = 64,
             .steps = 2,
             .guidance = 1,
             .seed = 5,
             .max_tokens = 1024,
             .n_images = 1,
             .images = {{"image.ref1", 100, 120}}}},
};

static const edit_case several[] = {
    {.run = {.name = "A.",
             .prompt = CHANGE,
             .negative = "blurry, low quality",
             .width = 48,
             .height = 80,
             .steps = 3,
             .guidance = 4,
             .seed = 12,
             .max_tokens = 1024,
             .n_images = 2,
             .images = {{"image.ref0", 96, 80}, {"image.ref1", 100, 200}}},
     .small = true},
    {.run = {.name = "B.",
             .prompt = CHANGE,
             .negative = " ",
             .width = 64,
             .height = 64,
             .steps = 2,
             .guidance = 2.5,
             .seed = 6,
             .max_tokens = 1024,
             .n_images = 1,
             .images = {{"image.ref1", 100, 120}}}},
};

static double bound_of(const char *key, bool bf16)
{
    if (strstr(key, ".ids") || strstr(key, ".positions")) return 0;
    if (strcmp(key, "noise") == 0 || strcmp(key, "sigmas") == 0 || strcmp(key, "timesteps") == 0) return 1e-6;
    if (bf16) return strncmp(key, "step.", 5) == 0 && strncmp(key, "step.0.", 7) != 0 ? 5e-2 : 3e-2;
    return 2e-5;
}

static void check_case(void **state, const edit_case *c, bool bf16)
{
    family_fixture *f = *state;
#ifdef OMNIQ_SANITIZED
    if (!c->small) skip(); /* minutes */
#endif
    oq_model *model = bf16 ? f->bf16 : f->fp32;
    qwen_image_edit *e = model->self;
    const qwen_image_edit own = *e;
    if (c->small) family_small_pictures(model);
    family_check_run(f, &c->run, bf16, bound_of);
    *e = own;
}

static int setup_one(void **state)
{
    return family_setup(state, "qwen-image-edit", "parity_qwen_image_edit");
}
static int setup_several(void **state)
{
    return family_setup(state, "qwen-image-edit-plus", "parity_qwen_image_edit");
}

static void test_one_small(void **state)
{
    check_case(state, &one[0], false);
}
static void test_one_small_bf16(void **state)
{
    check_case(state, &one[0], true);
}
static void test_one(void **state)
{
    check_case(state, &one[1], false);
}
static void test_one_bf16(void **state)
{
    check_case(state, &one[1], true);
}
static void test_two_small(void **state)
{
    check_case(state, &several[0], false);
}
static void test_two_small_bf16(void **state)
{
    check_case(state, &several[0], true);
}
static void test_plus(void **state)
{
    check_case(state, &several[1], false);
}
static void test_plus_bf16(void **state)
{
    check_case(state, &several[1], true);
}

/* ---- requests that cannot run -------------------------------------------------------------------------- */

typedef struct refusal {
    const char *prompt, *negative;
    int n_images;
    int64_t width, height; /* of the pictures */
    const char *text;
} refusal;

/* Where no picture is given, the run says so: plans are made without. */
static void check_refusals(const family_fixture *f, const refusal *rows, size_t n)
{
    static uint8_t pixels[3 * 4096];
    oq_image images[17];
    for (size_t i = 0; i < n; i++) {
        const refusal *r = &rows[i];
        for (int k = 0; k < r->n_images; k++)
            images[k] = (oq_image){.width = r->width, .height = r->height, .pixels = pixels};
        const oq_request request = {.prompts = &r->prompt,
                                    .n_prompts = 1,
                                    .negative = r->negative,
                                    .width = 64,
                                    .height = 64,
                                    .steps = 1,
                                    .guidance = 1,
                                    .images_per_prompt = 1,
                                    .images = images,
                                    .n_images = r->n_images,
                                    .max_sequence_length = 512,
                                    .cfg_truncation = 1};
        const oq_run_hooks hooks = {0};
        oq_media *media = NULL;
        oq_status st = f->fp32->type->check(f->env, f->fp32->self, &request);
        if (st == OQ_OK) st = oq_generate_request(f->env, f->fp32, &request, &hooks, &media);
        if (st != OQ_E_ARG || !strstr(oq_env_error(f->env), r->text))
            fail_msg("row %zu: %s, '%s'", i, oq_status_name(st), oq_env_error(f->env));
        oq_env_clear(f->env);
    }
}

static void test_refusals_of_one(void **state)
{
    static const refusal rows[] = {
        {CHANGE, NULL, 0, 0, 0, "Qwen-Image-Edit needs a picture to begin with"},
        {CHANGE, NULL, 2, 64, 64,
         "2 pictures are given, Qwen-Image-Edit takes 1; those of 2509 and 2511 take several"},
        {CHANGE, NULL, 1, 4096, 1, "picture 1 has 4096 x 1 pixels: one side is too short beside the other"},
        {CHANGE, NULL, 1, 1, 300, "picture 1 has 1 x 300 pixels: one side is too short beside the other"},
        {"a <|image_pad|> b", NULL, 1, 64, 64, "prompt 1 holds '<|image_pad|>', which stands for a picture"},
        {CHANGE, "<|image_pad|>", 1, 64, 64, "the negative prompt holds '<|image_pad|>'"},
    };
    check_refusals(*state, rows, OQ_COUNT(rows));
}

static void test_refusals_of_several(void **state)
{
    static const refusal rows[] = {
        {CHANGE, NULL, 0, 0, 0, "Qwen-Image-Edit-Plus needs a picture to begin with"},
        {CHANGE, NULL, 17, 64, 64, "17 pictures are given, Qwen-Image-Edit-Plus takes 16 at most"},
        {CHANGE, NULL, 2, 4, 1000, "picture 1 has 4 x 1000 pixels: one side is too short beside the other"},
    };
    check_refusals(*state, rows, OQ_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest edit[] = {
        cmocka_unit_test(test_one_small), cmocka_unit_test(test_one_small_bf16),  cmocka_unit_test(test_one),
        cmocka_unit_test(test_one_bf16),  cmocka_unit_test(test_refusals_of_one),
    };
    const struct CMUnitTest plus[] = {
        cmocka_unit_test(test_two_small),
        cmocka_unit_test(test_two_small_bf16),
        cmocka_unit_test(test_plus),
        cmocka_unit_test(test_plus_bf16),
        cmocka_unit_test(test_refusals_of_several),
    };
    const int failed =
        cmocka_run_group_tests_name("parity of Qwen-Image-Edit", edit, setup_one, family_teardown);
    return failed + cmocka_run_group_tests_name("parity of Qwen-Image-Edit-Plus", plus, setup_several,
                                                family_teardown);
}
