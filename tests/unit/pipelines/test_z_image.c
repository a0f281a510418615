/* test_z_image.c -- promises of the Z-Image family: what it refuses, that measured scratch is used scratch, that the
 * denoise loop allocates nothing, that batches are their items, that values which are not finite stop the run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/engine.h"
#include "modules/dit_zimage/dit_zimage.h"
#include "modules/te_qwen3/te_qwen3.h"
#include "modules/vae_kl/vae_kl.h"
#include "support/scratch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROMPT "a small blue star on a white background"
#define LONG_PROMPT                                                                                          \
    "two dotted purple rings to the right of a large striped green triangle on a gray background"

typedef struct fixture {
    oq_env *env;
    oq_model *model;
} fixture;

static oq_model *open_toybox(oq_env *env, const char *dtype)
{
    oq_options *options = NULL;
    oq_model *model = NULL;
    if (oq_options_new(env, "generate", &options) != OQ_OK ||
        oq_options_set(options, "model", OMNIQ_SOURCE_DIR "/models/toybox") != OQ_OK ||
        oq_options_set(options, "dtype", dtype) != OQ_OK || oq_model_open(env, options, &model) != OQ_OK)
        fprintf(stderr, "%s\n", oq_env_error(env));
    oq_options_free(options);
    return model;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (!f || oq_env_new(NULL, &f->env) != OQ_OK) return -1;
    *state = f;
    f->model = open_toybox(f->env, "bf16");
    return f->model ? 0 : -1;
}

static int teardown(void **state)
{
    fixture *f = *state;
    oq_model_close(f->model);
    oq_env_free(f->env);
    free(f);
    return 0;
}

static const char *const one_prompt[] = {PROMPT}, *const two_prompts[] = {PROMPT, LONG_PROMPT};

static oq_request small_request(void)
{
    return (oq_request){.prompts = one_prompt,
                        .n_prompts = 1,
                        .width = 64,
                        .height = 64,
                        .steps = 2,
                        .seed = 5,
                        .images_per_prompt = 1,
                        .max_sequence_length = 512,
                        .cfg_truncation = 1};
}

static oq_media *generate(fixture *f, const oq_request *request, const oq_run_hooks *hooks)
{
    oq_media *media = NULL;
    if (oq_generate_request(f->env, f->model, request, hooks, &media) != OQ_OK)
        fail_msg("%s", oq_env_error(f->env));
    return media;
}

static void assert_same_picture(const oq_media *a, int i, const oq_media *b, int j)
{
    const size_t n = (size_t)(oq_media_width(a) * oq_media_height(a) * 3);
    assert_int_equal(oq_media_width(a), oq_media_width(b));
    assert_memory_equal(oq_media_pixels(a, i), oq_media_pixels(b, j), n);
}

/* ---- what it refuses ----------------------------------------------------------------------------------- */

static void assert_refused(fixture *f, const oq_request *request, const char *text)
{
    const oq_status st = f->model->type->check(f->env, f->model->self, request);
    if (st != OQ_E_ARG || !strstr(oq_env_error(f->env), text))
        fail_msg("%s, '%s'; expected E_ARG, '%s'", oq_status_name(st), oq_env_error(f->env), text);
    oq_env_clear(f->env);
}

#define REFUSED(member, value, text)                                                                         \
    do {                                                                                                     \
        oq_request refused_ = small_request();                                                               \
        refused_.member = value;                                                                             \
        assert_refused(f, &refused_, text);                                                                  \
    } while (0)

static void test_requests_are_refused(void **state)
{
    fixture *f = *state;
    const char *const no_prompt[] = {NULL};
    REFUSED(width, 250, "a picture of 250 x 64 pixels: both sides must be multiples of 16");
    REFUSED(height, 0, "a picture of 64 x 0 pixels: both sides must be multiples of 16");
    REFUSED(height, -16, "a picture of 64 x -16 pixels");
    REFUSED(width, 160000,
            "a picture of 160000 x 64 pixels: a side may have 16384 at most (decoding this one would take "
            "about 2 GiB)");
    REFUSED(steps, 0, "0 steps: 1 to 1000 are possible");
    REFUSED(steps, 1001, "1001 steps: 1 to 1000 are possible");
    REFUSED(guidance, NAN, "guidance scale nan: it must be a number of 0 (off) or more");
    REFUSED(guidance, -1, "guidance scale -1: it must be a number of 0 (off) or more");
    REFUSED(guidance, INFINITY, "guidance scale inf");
    REFUSED(cfg_normalization, -2, "cfg normalization -2: it must be a number of 0 (off) or more");
    REFUSED(cfg_truncation, NAN, "cfg truncation is not a number");
    REFUSED(n_prompts, 0, "0 prompts with 1 pictures each: 1 to 4096 pictures are possible");
    REFUSED(images_per_prompt, 5000, "1 prompts with 5000 pictures each");
    REFUSED(prompts, no_prompt, "prompt 1 is missing");
    REFUSED(max_sequence_length, 0, "max sequence length 0: the text encoder takes 1 to 1024 tokens");
    REFUSED(max_sequence_length, 1025, "max sequence length 1025");
}

static void test_sigmas_are_refused(void **state)
{
    fixture *f = *state;
    const float beyond[] = {1.5f, 0.5f}, nan_sigma[] = {1, NAN}, zero[] = {1, 0};
    oq_request r = small_request();
    r.n_sigmas = 2;
    r.sigmas = beyond;
    assert_refused(f, &r, "sigma 1 is 1.5: sigmas are above 0 and at most 1");
    r.sigmas = nan_sigma;
    assert_refused(f, &r, "sigma 2 is nan");
    r.sigmas = zero;
    assert_refused(f, &r, "sigma 2 is 0");
    r.steps = 3;
    assert_refused(f, &r, "2 sigmas are given for 3 steps");
}

/* ---- scratch ------------------------------------------------------------------------------------------- */

static void assert_measured_is_used(fixture *f, const oq_request *request)
{
    oq_exec ex = {.env = f->env,
                  .backend = f->model->backend,
                  .device = f->model->device,
                  .ops = f->model->backend->ops(f->model->device),
                  .compute = f->model->plan->compute};
    const size_t pixels = (size_t)(request->width * request->height * 3) * (size_t)request->n_prompts;
    oq_output out = {.pixels = calloc(pixels, 1)};
    void *scratch = NULL;
    size_t phases[OQ_N_PHASES], most = 0;
    assert_int_equal(oq_request_measure(f->env, f->model, request, &ex.size, phases), OQ_OK);
    for (int i = 0; i < OQ_N_PHASES; i++) {
        assert_true(i == OQ_PHASE_OTHER || phases[i] > 0);
        if (phases[i] > most) most = phases[i];
    }
    assert_int_equal(most, ex.size);
    assert_int_equal(ex.backend->buffer_new(f->env, ex.device, ex.size, &scratch), OQ_OK);
    ex.base = scratch;
    if (f->model->type->run(&ex, f->model->self, request, &out) != OQ_OK)
        fail_msg("%s", oq_env_error(f->env));
    assert_int_equal(ex.peak, ex.size);
    assert_int_equal(ex.used, 0);
    ex.backend->buffer_free(f->env, ex.device, scratch);
    free(out.pixels);
}

static void test_measured_scratch_is_used_scratch(void **state)
{
    fixture *f = *state;
    oq_request r = small_request();
    r.steps = 1;
    assert_measured_is_used(f, &r);
    r.width = 176;
    r.guidance = 2;
    assert_measured_is_used(f, &r);
    r.height = 208;
    r.prompts = two_prompts;
    r.n_prompts = 2;
    assert_measured_is_used(f, &r);
}

typedef struct alloc_count {
    oq_env *env;
    size_t after_first, after_last;
} alloc_count;

static oq_status count_allocs(void *user, const char *key, const oq_dtype *dtype, const void *data,
                              const int64_t *shape, int n_dims)
{
    (void)dtype, (void)data, (void)shape, (void)n_dims;
    alloc_count *c = user;
    if (strcmp(key, "step.0.latents") == 0) c->after_first = c->env->n_allocs;
    if (strcmp(key, "step.4.latents") == 0) c->after_last = c->env->n_allocs;
    return OQ_OK;
}

static void test_denoising_allocates_nothing(void **state)
{
    fixture *f = *state;
    alloc_count c = {.env = f->env};
    const oq_run_hooks hooks = {.trace = count_allocs, .trace_user = &c};
    oq_request r = small_request();
    r.steps = 5;
    r.guidance = 1.5;
    r.cfg_normalization = 1;
    oq_media_free(generate(f, &r, &hooks));
    assert_true(c.after_first > 0);
    assert_int_equal(c.after_first, c.after_last);
}

static oq_status count_layers(void *user, const oq_linear *layer, oq_tensor x, oq_tensor y)
{
    int *const seen = user;
    assert_int_equal(x.cols, layer->spec.k);
    assert_int_equal(y.cols, layer->spec.n);
    (*seen)++;
    return OQ_OK;
}

/* Who is watched runs operation by operation: each product is seen as it is, and the picture stays bit for bit. */
static void test_fused_is_one_by_one(void **state)
{
    fixture *f = *state;
    int seen = 0;
    const oq_run_hooks hooks = {.observer = count_layers, .observer_user = &seen};
    oq_request r = small_request();
    oq_media *fused = generate(f, &r, NULL), *watched = generate(f, &r, &hooks);
    /* Two steps of 54 layers; 16 once for all steps; 5 for the caption; 8 in the text encoder, 2 in the decoder. */
    assert_int_equal(seen, 2 * 54 + 16 + 5 + 8 + 2);
    assert_same_picture(fused, 0, watched, 0);
    oq_media_free(fused);
    oq_media_free(watched);
}

/* ---- batches ------------------------------------------------------------------------------------------- */

/* Pictures of one call are the pictures of single calls with their own seeds. */
static void test_a_batch_is_its_items(void **state)
{
    fixture *f = *state;
    oq_request r = small_request(), alone = small_request();
    r.prompts = two_prompts;
    r.n_prompts = 2;
    r.images_per_prompt = 2;
    r.guidance = alone.guidance = 2;
    r.negative = alone.negative = "a red ball";
    oq_media *batch = generate(f, &r, NULL);
    assert_int_equal(oq_media_count(batch), 4);
    for (int i = 0; i < 4; i++) {
        alone.prompts = &two_prompts[i / 2];
        alone.seed = r.seed + (uint64_t)i;
        oq_media *one = generate(f, &alone, NULL);
        assert_int_equal(oq_media_seed(batch, i), alone.seed);
        assert_same_picture(batch, i, one, 0);
        oq_media_free(one);
    }
    oq_media_free(batch);
}

/* ---- guidance and schedule ----------------------------------------------------------------------------- */

static void test_negative_prompt_needs_guidance(void **state)
{
    fixture *f = *state;
    oq_request r = small_request();
    oq_media *plain = generate(f, &r, NULL);
    r.negative = "a red ball";
    oq_media *still_plain = generate(f, &r, NULL);
    assert_same_picture(plain, 0, still_plain, 0);
    r.guidance = 2;
    oq_media *guided = generate(f, &r, NULL);
    assert_memory_not_equal(oq_media_pixels(plain, 0), oq_media_pixels(guided, 0), 64 * 64 * 3);
    r.cfg_truncation = -1; /* every step is beyond it: no guidance at all */
    oq_media *truncated = generate(f, &r, NULL);
    assert_same_picture(plain, 0, truncated, 0);
    oq_media_free(truncated);
    oq_media_free(guided);
    oq_media_free(still_plain);
    oq_media_free(plain);
}

typedef struct row_count {
    int rows[8];
} row_count;

static oq_status count_rows(void *user, const char *key, const oq_dtype *dtype, const void *data,
                            const int64_t *shape, int n_dims)
{
    (void)dtype, (void)data, (void)shape, (void)n_dims;
    row_count *c = user;
    int step = -1;
    if (sscanf(key, "step.%d.model_out", &step) == 1 && strstr(key, "model_out")) c->rows[step]++;
    return OQ_OK;
}

/* Progress grows from 0: with truncation at one half the later steps run without their negative half. */
static void test_truncation_drops_the_negative_half(void **state)
{
    fixture *f = *state;
    row_count c = {{0}};
    const oq_run_hooks hooks = {.trace = count_rows, .trace_user = &c};
    oq_request r = small_request();
    r.steps = 4; /* progress with shift 3: 0, 0.1, 0.25, 0.5 */
    r.guidance = 2;
    r.cfg_truncation = 0.2;
    oq_media_free(generate(f, &r, &hooks));
    const int expected[4] = {2, 2, 1, 1};
    assert_memory_equal(c.rows, expected, sizeof expected);
}

static void test_custom_sigmas_equal_the_default_ones(void **state)
{
    fixture *f = *state;
    const float ramp[] = {1.0f, 0.75f, 0.5f, 0.25f};
    oq_request r = small_request();
    r.steps = 4;
    oq_media *own = generate(f, &r, NULL);
    r.sigmas = ramp;
    r.n_sigmas = 4;
    oq_media *custom = generate(f, &r, NULL);
    assert_same_picture(own, 0, custom, 0);
    oq_media_free(custom);
    oq_media_free(own);
}

/* ---- texts --------------------------------------------------------------------------------------------- */

static void remember_warning(void *user, oq_log_level level, const char *message)
{
    if (level == OQ_LOG_WARN) snprintf(user, 256, "%s", message);
}

static void test_long_prompts_are_cut_with_a_warning(void **state)
{
    fixture *f = *state;
    char warning[256] = "";
    char *text = malloc(60001);
    assert_non_null(text);
    for (int i = 0; i < 10000; i++) memcpy(text + 6 * i, "words ", 7);
    const char *const prompts[] = {text};
    oq_request r = small_request();
    r.prompts = prompts;
    r.max_sequence_length = 64;
    f->env->params.log = remember_warning;
    f->env->params.log_user = warning;
    oq_media_free(generate(f, &r, NULL));
    f->env->params.log = NULL;
    assert_non_null(strstr(warning, "prompt 1 has "));
    assert_non_null(strstr(warning, " tokens; those after the first 64 are dropped"));
    free(text);
}

/* ---- stops --------------------------------------------------------------------------------------------- */

static void *module_of(const oq_model *model, const char *component)
{
    return oq_plan_find(model->plan, component)->self;
}

static void assert_numeric(fixture *f, const oq_request *request, const char *text)
{
    oq_media *media = NULL;
    const oq_status st = oq_generate_request(f->env, f->model, request, NULL, &media);
    if (st != OQ_E_NUMERIC || strcmp(oq_env_error(f->env), text) != 0)
        fail_msg("%s, '%s'; expected E_NUMERIC, '%s'", oq_status_name(st), oq_env_error(f->env), text);
    assert_null(media);
    oq_env_clear(f->env);
}

/* Weights of a host backend are ordinary memory: one of them becomes NaN for a while. */
static void spoil(const float *value, float with, float *before)
{
    float *writable = (float *)(uintptr_t)value;
    if (before) *before = *writable;
    *writable = with;
}

static void test_non_finite_values_stop_and_name_the_layer(void **state)
{
    fixture *f = *state;
    oq_dit_zimage *dit = module_of(f->model, "transformer");
    oq_te_qwen3 *encoder = module_of(f->model, "text_encoder");
    const oq_request r = small_request();
    float before;
    spoil(&dit->layers[5].ffn_norm1.data[3], NAN, &before);
    assert_numeric(f, &r,
                   "step 1 of 2: non-finite values, first in the input of transformer layer "
                   "'layers.5.feed_forward.w13'");
    spoil(&dit->layers[5].ffn_norm1.data[3], before, NULL);
    spoil(&dit->x_embedder.bias[0], INFINITY, &before);
    assert_numeric(f, &r,
                   "step 1 of 2: non-finite values, first in the output of transformer layer "
                   "'all_x_embedder.2-1'");
    spoil(&dit->x_embedder.bias[0], before, NULL);
    spoil(&dit->layers[3].modulation.bias[1], NAN, &before);
    assert_numeric(f, &r,
                   "step 1 of 2: non-finite values, first in the output of transformer layer "
                   "'layers.3.adaLN_modulation.0'");
    spoil(&dit->layers[3].modulation.bias[1], before, NULL);
    spoil(&encoder->layers[1].norm2.data[0], NAN, &before);
    assert_numeric(f, &r,
                   "prompt 1: non-finite values, first in the input of text_encoder layer "
                   "'layers.1.mlp.gate_up_proj'");
    spoil(&encoder->layers[1].norm2.data[0], before, NULL);
    const oq_vae_kl *vae = module_of(f->model, "vae");
    spoil(&vae->decoder.conv_out.bias[0], NAN, &before);
    assert_numeric(f, &r, "decoding picture 1 of 1: non-finite values");
    spoil(&vae->decoder.conv_out.bias[0], before, NULL);
    oq_media_free(generate(f, &r, NULL));
}

static oq_status cancel_here(void *user, const char *key, const oq_dtype *dtype, const void *data,
                             const int64_t *shape, int n_dims)
{
    (void)dtype, (void)data, (void)shape, (void)n_dims;
    if (strcmp(key, "step.0.latents") == 0) oq_env_cancel(user);
    assert_string_not_equal(key, "step.1.latents");
    return OQ_OK;
}

static void test_cancel_stops_at_the_next_step(void **state)
{
    fixture *f = *state;
    const oq_run_hooks hooks = {.trace = cancel_here, .trace_user = f->env};
    const oq_request r = small_request();
    oq_media *media = NULL;
    assert_int_equal(oq_generate_request(f->env, f->model, &r, &hooks, &media), OQ_E_CANCELED);
    assert_null(media);
    oq_env_clear(f->env);
}

/* ---- the published sizes, without weights -------------------------------------------------------------- */

/* Writes dir/name as a copy of a file, with the first `from` replaced by `to` (from NULL: as it is). */
static void copy_file(oq_env *env, const char *file, const char *dir, const char *name, const char *from,
                      const char *to)
{
    char path[512], *text = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, OMNIQ_SOURCE_DIR "%s", file);
    if (oq_file_read(env, path, 1 << 20, &text, &n) != OQ_OK) fail_msg("%s", oq_env_error(env));
    const char *at = from ? strstr(text, from) : NULL;
    if (from) assert_non_null(at);
    oq_strbuf copy;
    oq_strbuf_init(&copy, env);
    oq_strbuf_add(&copy, text, at ? (size_t)(at - text) : n);
    if (at) oq_strbuf_printf(&copy, "%s%s", to, at + strlen(from));
    scratch_write(dir, name, oq_strbuf_text(&copy), copy.size);
    oq_strbuf_deinit(&copy);
    oq_free(env, text);
}

typedef struct edit { /* one change to one of the published configurations */
    const char *component, *from, *to;
} edit;

/* A folder of the published configurations and nothing else, with one change; its path lasts until the next call. */
static const char *published_folder(oq_env *env, const edit *change)
{
    static const char *const parts[][3] = {
        {"transformer", "/tests/data/modules/z_image_transformer.json", "config.json"},
        {"text_encoder", "/tests/data/modules/qwen3_4b.json", "config.json"},
        {"vae", "/tests/data/modules/flux_vae.json", "config.json"},
        {"scheduler", "/models/toybox/scheduler/scheduler_config.json", "scheduler_config.json"},
        {"", "/models/toybox/model_index.json", "model_index.json"}};
    static char root[512];
    char folder[600];
    snprintf(root, sizeof root, "%s", scratch_dir(OMNIQ_BINARY_DIR, "published"));
    for (size_t i = 0; i < OQ_COUNT(parts); i++) {
        const bool changed = change && strcmp(change->component, parts[i][0]) == 0;
        if (parts[i][0][0]) scratch_subdir(root, parts[i][0]);
        snprintf(folder, sizeof folder, "%s/%s", root, parts[i][0]);
        copy_file(env, parts[i][1], folder, parts[i][2], changed ? change->from : NULL,
                  changed ? change->to : NULL);
    }
    return root;
}

static oq_status prepare_published(oq_env *env, const edit *change, oq_model **out)
{
    oq_options *options = NULL;
    assert_int_equal(oq_options_new(env, "generate", &options), OQ_OK);
    assert_int_equal(oq_options_set(options, "model", published_folder(env, change)), OQ_OK);
    assert_int_equal(oq_options_set(options, "load-format", "dummy"), OQ_OK);
    assert_int_equal(oq_options_set(options, "quantization", "fp8"), OQ_OK);
    assert_int_equal(oq_options_set(options, "width", "256"), OQ_OK);
    assert_int_equal(oq_options_set(options, "height", "256"), OQ_OK);
    const oq_status st = oq_model_prepare(env, options, out);
    oq_options_free(options);
    return st;
}

/* Configuration files alone: planned with dummy weights, byte for byte. */
static void test_published_size_is_planned(void **state)
{
    fixture *f = *state;
    oq_model *model = NULL;
    if (prepare_published(f->env, NULL, &model) != OQ_OK) fail_msg("%s", oq_env_error(f->env));
    const oq_plan_component *dit = oq_plan_find(model->plan, "transformer");
    assert_int_equal(dit->params, 6154908736);
    assert_int_equal(dit->n_tensors, 521);
    assert_int_equal(oq_plan_find(model->plan, "text_encoder")->params, 4022468096);
    assert_int_equal(oq_plan_find(model->plan, "vae")->params, 83819683);
    /* 34 blocks of 4 D^2 + 3 D F weights at one byte each; all the rest is less than 6 % more. */
    const double quantized = 34.0 * (4.0 * 3840 * 3840 + 3.0 * 3840 * 10240);
    assert_true((double)dit->bytes > quantized && (double)dit->bytes < 1.06 * quantized);
    oq_model_close(model);
}

/* Components that do not belong together are refused before anything is loaded. */
static void test_components_must_fit(void **state)
{
    fixture *f = *state;
    static const struct {
        edit change;
        oq_status status;
        const char *text;
    } rows[] = {
        {{"text_encoder", "\"hidden_size\": 2560", "\"hidden_size\": 2048"},
         OQ_E_FORMAT,
         "the text encoder's hidden size is 2048, the transformer takes 2560"},
        {{"vae", "\"latent_channels\": 16", "\"latent_channels\": 4"},
         OQ_E_FORMAT,
         "the autoencoder has 4 latent channels, the transformer 16"},
        {{"vae", "\"out_channels\": 3", "\"out_channels\": 4"},
         OQ_E_UNSUPPORTED,
         "the autoencoder gives 4 channels, pictures have 3"},
        {{"", "FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler"},
         OQ_E_UNSUPPORTED,
         "scheduler 'UniPCMultistepScheduler' is not supported; Z-Image runs with "
         "FlowMatchEulerDiscreteScheduler"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_model *model = NULL;
        const oq_status st = prepare_published(f->env, &rows[i].change, &model);
        if (st != rows[i].status || strcmp(oq_env_error(f->env), rows[i].text) != 0)
            fail_msg("%s, '%s'; expected '%s'", oq_status_name(st), oq_env_error(f->env), rows[i].text);
        assert_null(model);
        oq_env_clear(f->env);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_are_refused),
        cmocka_unit_test(test_sigmas_are_refused),
        cmocka_unit_test(test_measured_scratch_is_used_scratch),
        cmocka_unit_test(test_denoising_allocates_nothing),
        cmocka_unit_test(test_fused_is_one_by_one),
        cmocka_unit_test(test_a_batch_is_its_items),
        cmocka_unit_test(test_negative_prompt_needs_guidance),
        cmocka_unit_test(test_truncation_drops_the_negative_half),
        cmocka_unit_test(test_custom_sigmas_equal_the_default_ones),
        cmocka_unit_test(test_long_prompts_are_cut_with_a_warning),
        cmocka_unit_test(test_non_finite_values_stop_and_name_the_layer),
        cmocka_unit_test(test_cancel_stops_at_the_next_step),
        cmocka_unit_test(test_published_size_is_planned),
        cmocka_unit_test(test_components_must_fit),
    };
    return cmocka_run_group_tests_name("Z-Image", tests, setup, teardown);
}
