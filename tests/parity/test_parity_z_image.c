/* test_parity_z_image.c -- the shipped model against the original implementation (diffusers, transformers;
 * float32, CPU), stage by stage in the order of computation. The first stage that diverges is named.
 *
 * Bounds: stages of the first forward 2e-5 relative, latents of the last step 1e-3, pictures within one level
 * in 99.9 % of the values and never more than two; a bfloat16 run may be 3 dB farther from the float32
 * picture than the original's own bfloat16 run is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "modules/te_qwen3/te_qwen3.h"
#include "modules/vae_kl/vae_kl.h"
#include "parity/network.h"

#define DATA OMNIQ_SOURCE_DIR "/tests/data/parity/"

static const double STAGE_BOUND = 2e-5, LATENT_BOUND = 1e-3, BF16_STAGE_BOUND = 2e-2,
                    BF16_LATENT_BOUND = 6e-2;

typedef struct run_case {
    const char *name; /* prefix of its golden tensors */
    const char *prompts[2];
    int n_prompts;
    const char *negative;
    int64_t width, height;
    int steps;
    double guidance, cfg_normalization;
    uint64_t seed;
    double
        bf16_psnr; /* the original's own bfloat16 picture against its float32 picture, dB (make_golden.py) */
} run_case;

#define BALL "a large red ball to the left of a small blue star on a cream background"
#define RINGS                                                                                                \
    "two dotted purple rings \xe2\x80\x94 \xc3\xbc"                                                          \
    "ber a gray background, 3.5 times (na\xc3\xafve)"
#define TRIANGLE "a small striped green triangle above a large yellow heart on a white background"

static const run_case cases[] = {
    {"a.", {BALL}, 1, NULL, 256, 256, 8, 0, 0, 42, 52.533484412089365},
    {"b.", {TRIANGLE}, 1, "", 240, 208, 20, 3, 0, 7, 50.04065906669013},
    {"c.", {BALL, RINGS}, 2, NULL, 320, 128, 4, 0, 0, 123, 51.981021723624025},
    {"d.", {RINGS}, 1, "a red ball", 128, 192, 6, 2.5, 1, 1099511627781u, 45.45351144549225},
};

typedef struct fixture {
    oq_env *env;
    oq_ckpt *golden;
    oq_model *fp32, *bf16;
} fixture;

static oq_model *open_model(oq_env *env, const char *dtype)
{
    oq_options *options = NULL;
    oq_model *model = NULL;
    if (oq_options_new(env, "generate", &options) != OQ_OK ||
        oq_options_set(options, "model", OMNIQ_SOURCE_DIR "/models/toybox") != OQ_OK ||
        oq_options_set(options, "dtype", dtype) != OQ_OK || parity_place(options) != OQ_OK ||
        oq_model_open(env, options, &model) != OQ_OK)
        fprintf(stderr, "%s\n", oq_env_error(env));
    oq_options_free(options);
    return model;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f || oq_env_new(NULL, &f->env) != OQ_OK) return -1;
    *state = f;
    if (oq_ckpt_open(f->env, DATA "golden.safetensors", &f->golden) != OQ_OK) return -1;
    f->fp32 = open_model(f->env, "fp32");
    f->bf16 = open_model(f->env, "bf16");
    return f->fp32 && f->bf16 ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    oq_model_close(f->bf16);
    oq_model_close(f->fp32);
    oq_ckpt_close(f->golden);
    oq_env_free(f->env);
    free(f);
    return 0;
}

static oq_media *generate(fixture *f, const oq_model *model, const run_case *c, stages *kept)
{
    const oq_request request = {.prompts = c->prompts,
                                .n_prompts = c->n_prompts,
                                .negative = c->negative,
                                .width = c->width,
                                .height = c->height,
                                .steps = c->steps,
                                .guidance = c->guidance,
                                .seed = c->seed,
                                .images_per_prompt = 1,
                                .shared_noise = true,
                                .max_sequence_length = 512,
                                .cfg_normalization = c->cfg_normalization,
                                .cfg_truncation = 1};
    const oq_run_hooks hooks = {.trace = stages_keep, .trace_user = kept};
    oq_media *media = NULL;
    if (oq_generate_request(f->env, model, &request, &hooks, &media) != OQ_OK)
        fail_msg("run %s: %s", c->name, oq_env_error(f->env));
    return media;
}

/* ---- stages -------------------------------------------------------------------------------------------- */

/* The bound of a stage: what comes after the first forward has gone through every step. */
static double bound_of(const char *key, bool fp32)
{
    if (strncmp(key, "step.", 5) == 0 && strncmp(key, "step.0.", 7) != 0)
        return fp32 ? LATENT_BOUND : BF16_LATENT_BOUND;
    if (strncmp(key, "vae.", 4) == 0) return fp32 ? LATENT_BOUND : BF16_LATENT_BOUND;
    if (strcmp(key, "noise") == 0) return 1e-6;
    if (strcmp(key, "sigmas") == 0 || strcmp(key, "timesteps") == 0 || strcmp(key, "model_t") == 0)
        return 1e-7;
    return fp32 ? STAGE_BOUND : BF16_STAGE_BOUND;
}

/* Golden stages of a run that generation reaches; the text encoder's last layer is not computed. */
static size_t expected_stages(const oq_ckpt *golden, const char *run)
{
    size_t n = 0;
    for (size_t i = 0; i < golden->n_tensors; i++) {
        const char *name = golden->tensors[i].name;
        n += strncmp(name, run, strlen(run)) == 0 && !strstr(name, "#rows") && !strstr(name, ".hidden.3");
    }
    return n;
}

static void check_stages(const fixture *f, const run_case *c, const stages *kept, bool fp32)
{
    size_t compared = 0;
    const char *first = NULL;
    double first_error = 0, worst = 0;
    for (size_t i = 0; i < kept->n; i++) {
        const stage *s = &kept->at[i];
        distance d;
        if (!stage_compare(f->golden, c->name, s, &d)) continue;
        const double error = distance_relative(&d),
                     bound = s->whole_numbers ? 0 : parity_bound(bound_of(s->key, fp32), fp32);
        compared++;
        if (getenv("OMNIQ_PARITY_TABLE"))
            printf("%s%-36s %10lld values  %.3e\n", c->name, s->key, (long long)d.n, error);
        if (error > worst) worst = error;
        if (first || (d.n > 0 && error <= bound)) continue;
        first = s->key;
        first_error = error;
    }
    if (first) fail_msg("run %s diverges first at '%s': relative error %.3e", c->name, first, first_error);
    assert_int_equal(compared, expected_stages(f->golden, c->name));
    printf("run %s %s: %zu stages, worst %.2e\n", c->name, fp32 ? "float32" : "bfloat16", compared, worst);
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

typedef struct picture_distance {
    double squares;
    int64_t n, beyond_one;
    int largest;
} picture_distance;

static void add_picture(fixture *f, const run_case *c, const oq_media *media, int index, picture_distance *d)
{
    char path[512];
    oq_image golden = {0};
    snprintf(path, sizeof path, DATA "%c_%d.png", c->name[0], index);
    if (oq_png_read(f->env, path, &golden) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    assert_int_equal(golden.width, oq_media_width(media));
    assert_int_equal(golden.height, oq_media_height(media));
    const uint8_t *pixels = oq_media_pixels(media, index);
    for (int64_t i = 0; i < golden.width * golden.height * 3; i++) {
        const int difference = abs((int)pixels[i] - (int)golden.pixels[i]);
        d->squares += (double)difference * difference;
        d->n++;
        if (difference > 1) d->beyond_one++;
        if (difference > d->largest) d->largest = difference;
    }
    oq_image_deinit(f->env, &golden);
}

static picture_distance compare_pictures(fixture *f, const run_case *c, const oq_media *media)
{
    picture_distance d = {0};
    assert_int_equal(oq_media_count(media), c->n_prompts);
    for (int i = 0; i < c->n_prompts; i++) add_picture(f, c, media, i, &d);
    return d;
}

static double psnr(const picture_distance *d)
{
    return d->squares > 0 ? 10 * log10(255.0 * 255.0 * (double)d->n / d->squares) : INFINITY;
}

/* ---- the four runs ------------------------------------------------------------------------------------- */

static void check_run(void **state, const run_case *c, bool fp32)
{
    fixture *f = *state;
    stages kept = {0};
    oq_media *media = generate(f, fp32 ? f->fp32 : f->bf16, c, &kept);
    const picture_distance d = compare_pictures(f, c, media);
    printf("run %s %s: picture %.2f dB, largest difference %d, %lld of %lld values beyond one\n", c->name,
           fp32 ? "float32" : "bfloat16", psnr(&d), d.largest, (long long)d.beyond_one, (long long)d.n);
    check_stages(f, c, &kept, fp32);
    if (fp32) {
        assert_true(d.largest <= 2);
        assert_true((double)d.beyond_one <= 0.001 * (double)d.n);
    } else {
        assert_true(psnr(&d) >= c->bf16_psnr - 3);
    }
    oq_media_free(media);
    stages_free(&kept);
}

static void test_a_fp32(void **state)
{
    check_run(state, &cases[0], true);
}
static void test_b_fp32(void **state)
{
    check_run(state, &cases[1], true);
}
static void test_c_fp32(void **state)
{
    check_run(state, &cases[2], true);
}
static void test_d_fp32(void **state)
{
    check_run(state, &cases[3], true);
}
static void test_a_bf16(void **state)
{
    check_run(state, &cases[0], false);
}
static void test_b_bf16(void **state)
{
    check_run(state, &cases[1], false);
}
static void test_c_bf16(void **state)
{
    check_run(state, &cases[2], false);
}
static void test_d_bf16(void **state)
{
    check_run(state, &cases[3], false);
}

/* ---- single networks ----------------------------------------------------------------------------------- */

static void *module_of(const oq_model *model, const char *component)
{
    const oq_plan_component *c = oq_plan_find(model->plan, component);
    assert_non_null(c);
    return c->self;
}

typedef struct text_call {
    const oq_te_qwen3 *encoder;
    int32_t ids[64];
    int64_t n;
} text_call;

static oq_status whole_encoder(oq_exec *ex, void *user)
{
    const text_call *c = user;
    const oq_te_qwen3_args args = {.ids = c->ids,
                                   .n = c->n,
                                   .n_layers = c->encoder->n_layers,
                                   .final_norm = true,
                                   .trace = "text.pos.0"};
    oq_tensor y;
    OQ_TRY(oq_tmp(ex, c->n, c->encoder->hidden_size, &y));
    return oq_te_qwen3_forward(ex, c->encoder, &args, y);
}

/* The last layer and the last norm, which generation leaves out and does not load. */
static void test_encoder_to_its_end(void **state)
{
    fixture *f = *state;
    network_part part;
    network_part_open(&part, f->env, OMNIQ_SOURCE_DIR "/models/toybox", "text_encoder", "Qwen3Model");
    text_call c = {.encoder = part.self};
    const oq_ckpt_tensor *ids = oq_ckpt_find(f->golden, "a.text.pos.0.ids");
    assert_non_null(ids);
    c.n = ids->elems;
    for (int64_t i = 0; i < c.n; i++) c.ids[i] = (int32_t)golden_value(ids, i);
    stages kept = {0};
    network_part_run(&part, whole_encoder, &c, &kept);
    assert_int_equal(kept.n, 4);
    for (size_t i = 0; i < kept.n; i++) {
        distance d;
        assert_true(stage_compare(f->golden, "a.", &kept.at[i], &d));
        if (!(distance_relative(&d) <= parity_bound(STAGE_BOUND, true)))
            fail_msg("'%s': relative error %.3e", kept.at[i].key, distance_relative(&d));
    }
    stages_free(&kept);
    network_part_close(&part);
}

typedef struct vae_call {
    const oq_vae_kl *vae;
    int64_t h, w, band;
    void *pixels; /* [h w, 3] in [-1, 1], of the compute type */
} vae_call;

/* picture -> mean and log variance -> decode(mean), traced as NCHW planes */
static oq_status encode_decode(oq_exec *ex, void *user)
{
    const vae_call *c = user;
    const int64_t scale = oq_vae_kl_scale(c->vae), h = c->h / scale, w = c->w / scale,
                  L = c->vae->latent_channels;
    oq_tensor x, moments, z, y, planes, picture;
    OQ_TRY(oq_tmp(ex, c->h * c->w, 3, &x));
    OQ_TRY(oq_tmp(ex, h * w, 2 * L, &moments));
    OQ_TRY(oq_tmp(ex, h * w, L, &z));
    OQ_TRY(oq_tmp(ex, c->h * c->w, 3, &y));
    OQ_TRY(oq_tmp(ex, 2 * L, h * w, &planes));
    OQ_TRY(oq_tmp(ex, 3, c->h * c->w, &picture));
    OQ_TRY(oq_upload(ex, x, c->pixels));
    OQ_TRY(oq_vae_kl_encode(ex, c->vae, x, c->h, c->w, c->band, moments));
    OQ_TRY(oq_copy_forward(ex, z, oq_tensor_cols(moments, 0, L)));
    const int64_t dim[6] = {1, 1, 1, 1, 2 * L, h * w}, to[6] = {0, 0, 0, 0, h * w, 1},
                  from[6] = {0, 0, 0, 0, 1, 2 * L};
    OQ_TRY(oq_permute_forward(ex, planes, moments, dim, to, from));
    const int64_t shape[4] = {1, L, h, w};
    OQ_TRY(oq_trace_put(ex, oq_tensor_rows(planes, 0, L), shape, 4, "mean"));
    OQ_TRY(oq_trace_put(ex, oq_tensor_rows(planes, L, L), shape, 4, "logvar"));
    OQ_TRY(oq_vae_kl_decode(ex, c->vae, z, h, w, c->band, y, NULL));
    const int64_t pixels = c->h * c->w, full[4] = {1, 3, c->h, c->w};
    const int64_t dim2[6] = {1, 1, 1, 1, 3, pixels}, to2[6] = {0, 0, 0, 0, pixels, 1},
                  from2[6] = {0, 0, 0, 0, 1, 3};
    OQ_TRY(oq_permute_forward(ex, picture, y, dim2, to2, from2));
    return oq_trace_put(ex, picture, full, 4, "decoded");
}

static void test_autoencoder_there_and_back(void **state)
{
    fixture *f = *state;
    oq_image image = {0};
    if (oq_png_read(f->env, DATA "a_0.png", &image) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    const int64_t n = image.width * image.height * 3;
    vae_call c = {.vae = module_of(f->fp32, "vae"), .h = image.height, .w = image.width};
    float *const pixels = malloc((size_t)n * sizeof(float));
    assert_non_null(pixels);
    for (int64_t i = 0; i < n; i++) pixels[i] = (float)image.pixels[i] / 127.5f - 1.0f;
    c.pixels = pixels;
    stages kept = {0};
    network_run(f->env, f->fp32, encode_decode, &c, &kept);
    assert_int_equal(kept.n, 3);
    for (size_t i = 0; i < kept.n; i++) {
        distance d;
        assert_true(stage_compare(f->golden, "vae_encode.", &kept.at[i], &d));
        printf("vae_encode.%s: %.2e\n", kept.at[i].key, distance_relative(&d));
        if (!(d.n > 0 && distance_relative(&d) <= parity_bound(STAGE_BOUND, true)))
            fail_msg("'%s': relative error %.3e", kept.at[i].key, distance_relative(&d));
    }
    stages_free(&kept);
    free(c.pixels);
    oq_image_deinit(f->env, &image);
}

/* Peak of a squared wave of 2 above the mean squared difference. */
static double decibels(const stage *got, const stage *want)
{
    double squares = 0;
    for (int64_t i = 0; i < got->n; i++) {
        const double d = (double)got->values[i] - (double)want->values[i];
        squares += d * d;
    }
    return squares > 0 ? 10 * log10(4 * (double)got->n / squares) : INFINITY;
}

/* Heights that bands divide and do not divide; of the decoder's stages one, two, three or all in bands. A device sums norms in
 * another order over bands: a bfloat16 run then rounds some values the other way, as any other order of sums would. Log
 * variances lie about -15, where a step of bfloat16 is 0.06: a root mean square of a fifth of it is 44 dB. */
static void bands_equal_whole(fixture *f, const oq_model *model, int64_t h, int64_t w, double least_db)
{
    static const int64_t bands[] = {16, 24, 40, 100, 128};
    vae_call c = {.vae = module_of(model, "vae"), .h = h, .w = w};
    if (getenv("OMNIQ_PARITY_DEVICE")) least_db = least_db > 100 ? 90 : 40;
    const size_t bytes = model->plan->compute->bytes, n = (size_t)(h * w * 3);
    float *const values = malloc(n * sizeof *values);
    c.pixels = malloc(n * bytes);
    assert_true(values && c.pixels);
    for (size_t i = 0; i < n; i++)
        values[i] = 0.8f * sinf((float)(i / 3 % (size_t)w) * 0.07f + (float)(i % 3)) *
                    cosf((float)(i / 3 / (size_t)w) * 0.05f);
    model->plan->compute->from_f32(c.pixels, values, n);
    stages whole = {0};
    network_run(f->env, model, encode_decode, &c, &whole);
    for (size_t b = 0; b < OQ_COUNT(bands); b++) {
        stages kept = {0};
        c.band = bands[b];
        network_run(f->env, model, encode_decode, &c, &kept);
        assert_int_equal(kept.n, 3);
        for (size_t i = 0; i < 3; i++) {
            const double db = decibels(&kept.at[i], &whole.at[i]);
            printf("%lld x %lld in bands of %lld, %s: %.1f dB\n", (long long)h, (long long)w,
                   (long long)bands[b], kept.at[i].key, db);
            if (!(db >= least_db))
                fail_msg("bands of %lld, '%s': %.1f dB", (long long)bands[b], kept.at[i].key, db);
        }
        stages_free(&kept);
    }
    stages_free(&whole);
    free(values);
    free(c.pixels);
}

static void test_bands_equal_whole(void **state)
{
    fixture *f = *state;
    bands_equal_whole(f, f->fp32, 256, 256, 110);
    bands_equal_whole(f, f->fp32, 200, 136, 110);
    bands_equal_whole(f, f->bf16, 256, 256, 60);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_encoder_to_its_end),
        cmocka_unit_test(test_bands_equal_whole),
        cmocka_unit_test(test_autoencoder_there_and_back),
        cmocka_unit_test(test_a_fp32),
        cmocka_unit_test(test_b_fp32),
        cmocka_unit_test(test_c_fp32),
        cmocka_unit_test(test_d_fp32),
        cmocka_unit_test(test_a_bf16),
        cmocka_unit_test(test_b_bf16),
        cmocka_unit_test(test_c_bf16),
        cmocka_unit_test(test_d_bf16),
    };
    return cmocka_run_group_tests_name("parity with diffusers: Z-Image", tests, setup, teardown);
}
