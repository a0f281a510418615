/* test_parity_qwen_image.c -- Qwen-Image against the original implementation (diffusers, transformers; CPU), stage by
 * stage in the order of computation: square and odd sizes, a negative prompt, a seed beyond 32 bits, items of a batch, a
 * picture of another size to begin with.
 *
 * Bounds: float32 stages 2e-5 relative (measured below 3e-6), schedules and noise 1e-6, pictures within one level in 99.9 %
 * of the values; bfloat16 stages beside the original's bfloat16, pictures at most 3 dB farther from float32 than its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "modules/vae_wan/vae_wan.h"
#include "parity/family.h"

#define APPLE                                                                                                \
    "\xe4\xb8\x80\xe5\x8f\xaa\xe7\xba\xa2\xe8\x89\xb2\xe7\x9a\x84\xe8\x8b\xb9\xe6\x9e\x9c\xe6\x94\xbe\xe5"   \
    "\x9c\xa8"                                                                                               \
    "\xe6\x9c\xa8\xe6\xa1\x8c\xe4\xb8\x8a\xef\xbc\x8c\xe8\x83\x8c\xe6\x99\xaf\xe6\xa8\xa1\xe7\xb3\x8a; two " \
    "\xe2\x80\x9cquotes\xe2\x80\x9d and 3.14"

static const family_run cases[] = {
    {.name = "A.",
     .prompt = "a red circle on a white background",
     .width = 64,
     .height = 64,
     .steps = 4,
     .guidance = 4,
     .seed = 42},
    {.name = "B.", .prompt = APPLE, .width = 112, .height = 80, .steps = 3, .guidance = 4, .seed = 7},
    {.name = "C.",
     .prompt = "a coffee shop entrance with a sign that reads: Qwen Coffee $2",
     .negative = "blurry, low quality",
     .width = 80,
     .height = 48,
     .steps = 5,
     .guidance = 4,
     .seed = 8589934603u},
    {.name = "E.",
     .prompt = "a coffee shop entrance with a sign that reads: Qwen Coffee $2",
     .negative = "blurry, low quality",
     .width = 80,
     .height = 48,
     .steps = 6,
     .guidance = 4,
     .seed = 11,
     .strength = 0.6,
     .n_images = 1,
     .images = {{"image.ref0", 96, 80}}},
};

/* The batch of two: each item is a run of its own here. */
static const family_run items[] = {
    {.name = "D.",
     .prompt = "a cat",
     .negative = " ",
     .width = 48,
     .height = 64,
     .steps = 2,
     .guidance = 2.5,
     .seed = 3},
    {.name = "D.",
     .prompt = "an oil painting of a lighthouse on a cliff at dusk, waves below",
     .negative = "text, watermark, extra fingers",
     .width = 48,
     .height = 64,
     .steps = 2,
     .guidance = 2.5,
     .seed = 4},
};

static int setup(void **state)
{
    return family_setup(state, "qwen-image", "parity_qwen_image");
}

static double bound_of(const char *key, bool bf16)
{
    if (bf16 && strcmp(key, "noise") == 0) return 5e-3; /* a picture went through the autoencoder in BF16 */
    if (strcmp(key, "noise") == 0 || strcmp(key, "sigmas") == 0 || strcmp(key, "timesteps") == 0) return 1e-6;
    if (bf16) return strncmp(key, "step.", 5) == 0 && strncmp(key, "step.0.", 7) != 0 ? 4e-2 : 2e-2;
    return 2e-5;
}

static void check_run(void **state, const family_run *c, bool bf16)
{
    family_check_run(*state, c, bf16, bound_of);
}

static void test_square(void **state)
{
    check_run(state, &cases[0], false);
}
static void test_square_bf16(void **state)
{
    check_run(state, &cases[0], true);
}
static void test_odd_grid(void **state)
{
    check_run(state, &cases[1], false);
}
static void test_odd_grid_bf16(void **state)
{
    check_run(state, &cases[1], true);
}
static void test_guided(void **state)
{
    check_run(state, &cases[2], false);
}
static void test_guided_bf16(void **state)
{
    check_run(state, &cases[2], true);
}

static void test_from_image(void **state)
{
    check_run(state, &cases[3], false);
}
static void test_from_image_bf16(void **state)
{
    check_run(state, &cases[3], true);
}

static void test_items_of_a_batch(void **state)
{
    family_check_items(*state, items, OQ_COUNT(items));
}

/* ---- the autoencoder alone ----------------------------------------------------------------------------- */

typedef struct vae_call {
    const oq_vae_wan *vae;
    int64_t h, w;
    const float *pixels; /* [h w, 3] */
} vae_call;

static oq_status take(oq_exec *ex, void *user, oq_tensor frames, int64_t first, int64_t n)
{
    (void)user;
    (void)first;
    (void)n;
    return network_trace_planes(ex, frames, "decode.raw");
}

static oq_status encode_decode(oq_exec *ex, void *user)
{
    const vae_call *c = user;
    const int64_t scale = oq_vae_wan_scale(c->vae), h = c->h / scale, w = c->w / scale, z = c->vae->z_dim;
    const oq_vae_wan_args in = {.frames = 1, .h = c->h, .w = c->w}, back = {.frames = 1, .h = h, .w = w};
    oq_tensor x, moments, mean;
    OQ_TRY(oq_tmp(ex, c->h * c->w, 3, &x));
    OQ_TRY(oq_tmp(ex, h * w, 2 * z, &moments));
    OQ_TRY(oq_tmp(ex, h * w, z, &mean));
    OQ_TRY(oq_upload(ex, x, c->pixels));
    OQ_TRY(oq_vae_wan_encode(ex, c->vae, &in, x, moments));
    OQ_TRY(network_trace_planes(ex, oq_tensor_cols(moments, 0, z), "encode.mean"));
    OQ_TRY(network_trace_planes(ex, oq_tensor_cols(moments, z, z), "encode.logvar"));
    OQ_TRY(oq_copy_forward(ex, mean, oq_tensor_cols(moments, 0, z)));
    return oq_vae_wan_decode(ex, c->vae, &back, mean, take, NULL);
}

static void test_autoencoder_there_and_back(void **state)
{
    family_fixture *f = *state;
    enum { H = 48, W = 64 };
    static float planes[3 * H * W], pixels[3 * H * W];
    golden_uniform("image", 1, planes, 3 * H * W);
    for (size_t i = 0; i < H * W; i++)
        for (size_t c = 0; c < 3; c++) pixels[i * 3 + c] = planes[c * H * W + i];
    vae_call call = {.vae = oq_plan_find(f->fp32->plan, "vae")->self, .h = H, .w = W, .pixels = pixels};
    stages kept = {0};
    network_run(f->env, f->fp32, encode_decode, &call, &kept);
    assert_int_equal(kept.n, 3);
    for (size_t i = 0; i < kept.n; i++) {
        distance d;
        assert_true(stage_compare(f->golden, "V.", &kept.at[i], &d));
        printf("%s: %.2e\n", kept.at[i].key, distance_relative(&d));
        assert_true(d.n > 0 && distance_relative(&d) <= 2e-5);
    }
    stages_free(&kept);
}

static void test_tiles(void **state)
{
    family_fixture *f = *state;
    static const char *const prompts[] = {"a lighthouse"};
    oq_request request = {.prompts = prompts,
                          .n_prompts = 1,
                          .width = 384,
                          .height = 256,
                          .steps = 1,
                          .guidance = 1,
                          .seed = 5,
                          .images_per_prompt = 1,
                          .max_sequence_length = 512,
                          .cfg_truncation = 1};
    const oq_run_hooks hooks = {0};
    oq_media *whole = NULL, *tiles = NULL;
    const int64_t n = request.width * request.height * 3;
    assert_int_equal(oq_generate_request(f->env, f->fp32, &request, &hooks, &whole), OQ_OK);
    request.vae_tile = 160;
    assert_int_equal(oq_generate_request(f->env, f->fp32, &request, &hooks, &tiles), OQ_OK);
    const family_distance d =
        family_compare_bytes(oq_media_pixels(tiles, 0), 1, oq_media_pixels(whole, 0), n);
    printf("tiles of 160 pixels: %.2f dB\n", family_psnr(&d));
    assert_true(family_psnr(&d) >= 40 && d.squares > 0);
    oq_media_free(whole);
    oq_media_free(tiles);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_square),
        cmocka_unit_test(test_square_bf16),
        cmocka_unit_test(test_odd_grid),
        cmocka_unit_test(test_odd_grid_bf16),
        cmocka_unit_test(test_guided),
        cmocka_unit_test(test_guided_bf16),
        cmocka_unit_test(test_from_image),
        cmocka_unit_test(test_from_image_bf16),
        cmocka_unit_test(test_items_of_a_batch),
        cmocka_unit_test(test_autoencoder_there_and_back),
        cmocka_unit_test(test_tiles),
    };
    return cmocka_run_group_tests_name("parity of Qwen-Image", tests, setup, family_teardown);
}
