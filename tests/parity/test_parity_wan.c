/* test_parity_wan.c -- Wan 2.2 against the original implementation (diffusers, transformers; CPU), stage by stage in the
 * order of computation: text to video with two experts and a guidance scale each, without guidance, the 5B from text and
 * from a picture, the A14B from a picture. Prompts are given as ids. The autoencoders also go in pieces.
 *
 * Bounds: float32 stages 2e-5 relative (measured below 6e-6), schedules and noise 1e-6, frames within one level in 99.9 % of
 * the values; bfloat16 stages beside the original's bfloat16, frames at most 3 dB farther from float32 than its own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "modules/vae_wan/vae_wan.h"
#include "parity/family.h"

static const family_run
    A = {.name = "A.",
         .width = 64,
         .height = 48,
         .frames = 5,
         .steps = 4,
         .guidance = 4,
         .guidance_2 = 3,
         .seed = 42},
    A2 = {.name = "A2.", .width = 48, .height = 32, .frames = 9, .steps = 3, .guidance = 1, .seed = 7},
    B = {.name = "B.", .width = 96, .height = 64, .frames = 9, .steps = 3, .guidance = 5, .seed = 11},
    C = {.name = "C.",
         .width = 64,
         .height = 96,
         .frames = 5,
         .steps = 4,
         .guidance = 5,
         .seed = 12,
         .n_images = 1,
         .images = {{"image.C", 64, 96}}},
    D = {.name = "D.",
         .width = 64,
         .height = 48,
         .frames = 5,
         .steps = 4,
         .guidance = 3.5,
         .guidance_2 = 2.5,
         .seed = 21,
         .n_images = 1,
         .images = {{"image.D", 64, 48}}};

/* "<71><1712>" of the golden ids but for the end of text, which the tokenizer adds. "": the golden has none. */
static void prompt_of(const family_fixture *f, const char *run, const char *side, char *out, size_t size)
{
    char name[64];
    size_t n = 0;
    snprintf(name, sizeof name, "%s%s.ids", run, side);
    const oq_ckpt_tensor *t = oq_ckpt_find(f->golden, name);
    *out = '\0';
    for (int64_t i = 0; t && i + 1 < t->elems; i++) {
        int32_t id;
        memcpy(&id, t->data + (size_t)i * sizeof id, sizeof id);
        n += (size_t)snprintf(out + n, size - n, "<%d>", (int)id);
    }
}

static double bound_of(const char *key, bool bf16)
{
    if (strcmp(key, "noise") == 0 || strcmp(key, "sigmas") == 0 || strcmp(key, "timesteps") == 0) return 1e-6;
    return bf16 ? 4e-2 : 2e-5;
}

static void check_run(void **state, const family_run *c, bool bf16)
{
    family_fixture *f = *state;
    char prompt[512], negative[512];
    family_run run = *c;
    prompt_of(f, c->name, "text", prompt, sizeof prompt);
    prompt_of(f, c->name, "text_neg", negative, sizeof negative);
    run.prompt = prompt;
    run.negative = negative;
    family_check_run(f, &run, bf16, bound_of);
}

static void test_two_experts(void **state)
{
    check_run(state, &A, false);
}
static void test_two_experts_bf16(void **state)
{
    check_run(state, &A, true);
}
static void test_without_guidance(void **state)
{
    check_run(state, &A2, false);
}
static void test_without_guidance_bf16(void **state)
{
    check_run(state, &A2, true);
}
static void test_5b_text(void **state)
{
    check_run(state, &B, false);
}
static void test_5b_text_bf16(void **state)
{
    check_run(state, &B, true);
}
static void test_5b_picture(void **state)
{
    check_run(state, &C, false);
}
static void test_5b_picture_bf16(void **state)
{
    check_run(state, &C, true);
}
static void test_a14b_picture(void **state)
{
    check_run(state, &D, false);
}
static void test_a14b_picture_bf16(void **state)
{
    check_run(state, &D, true);
}

/* ---- the autoencoders alone, whole and in pieces ------------------------------------------------------- */

typedef struct vae_call {
    const oq_vae_wan *vae;
    int64_t frames, h, w, piece;
    const float *pixels; /* [frames h w, 3] */
    float *out;          /* [frames h w, 3], host: what decoding gave */
} vae_call;

static oq_status take(oq_exec *ex, void *user, oq_tensor frames, int64_t first, int64_t n)
{
    const vae_call *c = user;
    assert_int_equal(frames.rows, n * c->h * c->w);
    return oq_download(ex, c->out + first * c->h * c->w * 3, frames);
}

static oq_status encode_decode(oq_exec *ex, void *user)
{
    vae_call *c = user;
    const int64_t scale = oq_vae_wan_scale(c->vae), h = c->h / scale, w = c->w / scale, z = c->vae->z_dim;
    const int64_t n = oq_vae_wan_latent_frames(c->vae, c->frames);
    const oq_vae_wan_args in = {.frames = c->frames, .h = c->h, .w = c->w, .piece = c->piece},
                          back = {.frames = n, .h = h, .w = w, .piece = c->piece};
    oq_tensor x, moments, mean;
    OQ_TRY(oq_tmp(ex, c->frames * c->h * c->w, 3, &x));
    OQ_TRY(oq_tmp(ex, n * h * w, 2 * z, &moments));
    OQ_TRY(oq_tmp(ex, n * h * w, z, &mean));
    OQ_TRY(oq_upload(ex, x, c->pixels));
    OQ_TRY(oq_vae_wan_encode(ex, c->vae, &in, x, moments));
    OQ_TRY(network_trace_planes(ex, oq_tensor_cols(moments, 0, z), "encode.mean"));
    OQ_TRY(network_trace_planes(ex, oq_tensor_cols(moments, z, z), "encode.logvar"));
    OQ_TRY(oq_copy_forward(ex, mean, oq_tensor_cols(moments, 0, z)));
    return oq_vae_wan_decode(ex, c->vae, &back, mean, take, c);
}

/* Runs the call and keeps the frames as stage "decode.out": planes, clipped as the original's. */
static void run_vae(const network_part *part, vae_call *c, stages *kept)
{
    const int64_t n = c->frames * c->h * c->w;
    c->out = calloc((size_t)(3 * n), sizeof *c->out);
    float *planes = malloc((size_t)(3 * n) * sizeof *planes);
    if (!c->out || !planes) abort();
    network_part_run(part, encode_decode, c, kept);
    for (int64_t i = 0; i < 3 * n; i++) planes[i % 3 * n + i / 3] = fminf(fmaxf(c->out[i], -1), 1);
    stages_keep(kept, "decode.out", &oq_dtype_f32, planes, (int64_t[]){3, n}, 2);
    free(planes);
    free(c->out);
}

static double stage_distance(const stage *a, const stage *b)
{
    distance d = {0};
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++) distance_add(&d, (double)a->values[i], (double)b->values[i]);
    return distance_relative(&d);
}

/* 9 frames as the golden has them, and 17: pieces of one, two and three latent frames equal the whole. */
static void check_vae(void **state, int64_t frames, int64_t h, int64_t w, bool golden)
{
    family_fixture *f = *state;
    const int64_t n = frames * h * w;
    float *planes = malloc((size_t)(3 * n) * sizeof *planes),
          *pixels = malloc((size_t)(3 * n) * sizeof *pixels);
    if (!planes || !pixels) abort();
    golden_uniform("image", 1, planes, 3 * n);
    for (int64_t i = 0; i < 3 * n; i++) pixels[i / n + i % n * 3] = planes[i];
    network_part part;
    network_part_open(&part, f->env, f->folder, "vae", "AutoencoderKLWan");
    vae_call call = {.vae = part.self, .frames = frames, .h = h, .w = w, .pixels = pixels};
    stages whole = {0};
    run_vae(&part, &call, &whole);
    assert_int_equal(whole.n, 3);
    for (size_t i = 0; golden && i < whole.n; i++) {
        distance d;
        assert_true(stage_compare(f->golden, "V.", &whole.at[i], &d));
        printf("%s: %.2e\n", whole.at[i].key, distance_relative(&d));
        assert_true(d.n > 0 && distance_relative(&d) <= 2e-5);
    }
    for (call.piece = 1; call.piece <= 3; call.piece++) {
        stages pieces = {0};
        run_vae(&part, &call, &pieces);
        for (size_t i = 0; i < whole.n; i++) {
            const double apart = stage_distance(&pieces.at[i], &whole.at[i]);
            printf("%lld frames in pieces of %lld, %s: %.1e\n", (long long)frames, (long long)call.piece,
                   whole.at[i].key, apart);
            assert_true(apart <= 1e-5);
        }
        stages_free(&pieces);
    }
    stages_free(&whole);
    network_part_close(&part);
    free(pixels);
    free(planes);
}

static void test_autoencoder(void **state)
{
    check_vae(state, 9, 32, 48, true);
    check_vae(state, 17, 16, 24, false);
}
static void test_autoencoder_5b(void **state)
{
    check_vae(state, 9, 32, 64, true);
    check_vae(state, 17, 16, 32, false);
}

/* ---- less memory --------------------------------------------------------------------------------------- */

/* Frames in tiles beside the whole ones; a different number of latent frames at a time gives the same bytes. */
static void test_tiles_and_pieces(void **state)
{
    family_fixture *f = *state;
    static const char *const prompts[] = {""};
    oq_request request = {.prompts = prompts,
                          .n_prompts = 1,
                          .width = 192,
                          .height = 256,
                          .frames = 9,
                          .steps = 1,
                          .guidance = 1,
                          .guidance_2 = (double)NAN,
                          .seed = 5,
                          .images_per_prompt = 1,
                          .max_sequence_length = 512,
                          .cfg_truncation = 1};
    const oq_run_hooks hooks = {0};
    oq_media *whole = NULL, *pieces = NULL, *tiles = NULL;
    const int64_t n = request.frames * request.width * request.height * 3;
    assert_int_equal(oq_generate_request(f->env, f->fp32, &request, &hooks, &whole), OQ_OK);
    request.vae_piece = 2;
    assert_int_equal(oq_generate_request(f->env, f->fp32, &request, &hooks, &pieces), OQ_OK);
    const family_distance apart =
        family_compare_bytes(oq_media_pixels(whole, 0), 1, oq_media_pixels(pieces, 0), n);
    /* a device multiplies pieces of another size by another product: sums in another order */
    assert_true(apart.largest <= (getenv("OMNIQ_PARITY_DEVICE") ? 1 : 0));
    request.vae_tile = 128;
    assert_int_equal(oq_generate_request(f->env, f->fp32, &request, &hooks, &tiles), OQ_OK);
    const family_distance d =
        family_compare_bytes(oq_media_pixels(tiles, 0), 1, oq_media_pixels(whole, 0), n);
    printf("tiles of 128 pixels: %.2f dB\n", family_psnr(&d));
    assert_true(family_psnr(&d) >= 40 && d.squares > 0);
    oq_media_free(whole);
    oq_media_free(pieces);
    oq_media_free(tiles);
}

/* ---- what is refused ----------------------------------------------------------------------------------- */

static void assert_refused(family_fixture *f, const oq_request *request, const char *text)
{
    const oq_status st = f->fp32->type->check(f->env, f->fp32->self, request);
    if (st != OQ_E_ARG || !strstr(oq_env_error(f->env), text))
        fail_msg("%s, '%s'; expected E_ARG, '%s'", oq_status_name(st), oq_env_error(f->env), text);
    oq_env_clear(f->env);
}

#define REFUSED(member, value, text)                                                                         \
    do {                                                                                                     \
        static const char *const prompts_[] = {""};                                                          \
        oq_request refused_ = {.prompts = prompts_,                                                          \
                               .n_prompts = 1,                                                               \
                               .width = 64,                                                                  \
                               .height = 48,                                                                 \
                               .frames = 5,                                                                  \
                               .steps = 2,                                                                   \
                               .guidance_2 = (double)NAN,                                                    \
                               .images_per_prompt = 1,                                                       \
                               .max_sequence_length = 512,                                                   \
                               .cfg_truncation = 1};                                                         \
        refused_.member = value;                                                                             \
        assert_refused(f, &refused_, text);                                                                  \
    } while (0)

static void test_requests_are_refused(void **state)
{
    family_fixture *f = *state;
    REFUSED(frames, 6, "a video of 6 frames: 1 + a multiple of 4 are possible, 4096 at most");
    REFUSED(frames, 0, "a video of 0 frames");
    REFUSED(frames, 8193, "a video of 8193 frames");
    REFUSED(width, 40, "a picture of 40 x 48 pixels: both sides must be multiples of 16");
    REFUSED(n_images, 1, "a picture is given, but this model makes videos from text alone");
    REFUSED(n_images, 2, "2 pictures are given, a video begins with one");
    REFUSED(guidance_2, -1, "guidance scale 2 is -1: it must be a number of 0 or more");
    REFUSED(flow_shift, -3, "flow shift -3: it must be between 0 (the schedule's own) and 1e6");
    REFUSED(cfg_normalization, 1, "cfg normalization 1: Wan does not take it");
    REFUSED(max_sequence_length, 1025, "max sequence length 1025: the text encoder takes 1 to 1024 tokens");
}

static int setup_t2v(void **state)
{
    return family_setup(state, "wan2.2/t2v-a14b", "parity_wan_t2v");
}
static int setup_5b(void **state)
{
    return family_setup(state, "wan2.2/ti2v-5b", "parity_wan_5b");
}
static int setup_i2v(void **state)
{
    return family_setup(state, "wan2.2/i2v-a14b", "parity_wan_i2v");
}

int main(void)
{
    const struct CMUnitTest t2v[] = {
        cmocka_unit_test(test_two_experts),      cmocka_unit_test(test_two_experts_bf16),
        cmocka_unit_test(test_without_guidance), cmocka_unit_test(test_without_guidance_bf16),
        cmocka_unit_test(test_autoencoder),      cmocka_unit_test(test_requests_are_refused),
        cmocka_unit_test(test_tiles_and_pieces),
    };
    const struct CMUnitTest ti2v[] = {
        cmocka_unit_test(test_5b_text),        cmocka_unit_test(test_5b_text_bf16),
        cmocka_unit_test(test_5b_picture),     cmocka_unit_test(test_5b_picture_bf16),
        cmocka_unit_test(test_autoencoder_5b),
    };
    const struct CMUnitTest i2v[] = {cmocka_unit_test(test_a14b_picture),
                                     cmocka_unit_test(test_a14b_picture_bf16)};
    int failed = cmocka_run_group_tests_name("parity of Wan T2V-A14B", t2v, setup_t2v, family_teardown);
    failed += cmocka_run_group_tests_name("parity of Wan TI2V-5B", ti2v, setup_5b, family_teardown);
    failed += cmocka_run_group_tests_name("parity of Wan I2V-A14B", i2v, setup_i2v, family_teardown);
    return failed;
}
