/* family.h -- runs of a small folder of a family (support/golden_folder.h) against the stages that the original
 * implementation gave (tests/data/golden/FAMILY/golden.safetensors, make_family_golden.py). The first stage that diverges is
 * named; a golden stage that no run reached is an error. */
#ifndef OQ_TESTS_FAMILY_H
#define OQ_TESTS_FAMILY_H

#include "base/file.h"
#include "parity/network.h"
#include "pipelines/qwen_image_edit.h"
#include "support/golden_folder.h"
#include "support/scratch.h"

typedef struct family_fixture {
    oq_env *env;
    oq_ckpt *golden;
    oq_model *fp32, *bf16;
    char folder[500];
} family_fixture;

static inline oq_model *family_open(oq_env *env, const char *folder, const char *dtype)
{
    oq_options *options = NULL;
    oq_model *model = NULL;
    if (oq_options_new(env, "generate", &options) != OQ_OK || oq_options_set(options, "model", folder) != OQ_OK ||
        oq_options_set(options, "dtype", dtype) != OQ_OK ||
        parity_place(options) != OQ_OK ||
        oq_model_open(env, options, &model) != OQ_OK)
        fprintf(stderr, "%s\n", oq_env_error(env));
    oq_options_free(options);
    return model;
}

/* Pictures that are given come down to a few hundred pixels instead of 1024 x 1024, where a family brings them to an area. */
static inline void family_small_pictures(oq_model *model)
{
    if (!model || strncmp(model->type->name, "qwen-image-edit", 15) != 0) return;
    qwen_image_edit *e = model->self;
    e->area = 96 * 96;
    if (e->shown_area) e->shown_area = 160 * 160;
}

/* Its ids as prompts ("<71><1712>"), where the golden gives them, with the end of text that the tokenizer adds. */
static inline void family_ids_tokenizer(family_fixture *f, const char *folder)
{
    int32_t ids[1024];
    size_t n = 0;
    char path[600];
    snprintf(path, sizeof path, "%s/tokenizer/tokenizer.json", folder);
    if (oq_file_exists(path)) return; /* the family's data has a small one of its own */
    for (size_t i = 0; i < f->golden->n_tensors; i++) {
        const oq_ckpt_tensor *t = &f->golden->tensors[i];
        const size_t length = strlen(t->name);
        if (length < 4 || strcmp(t->name + length - 4, ".ids") != 0) continue;
        assert_true(n + (size_t)t->elems <= 1024);
        memcpy(ids + n, t->data, t->bytes);
        n += (size_t)t->elems;
    }
    snprintf(path, sizeof path, "%s/tokenizer", folder);
    if (n) golden_ids_tokenizer(f->env, path, ids, n, -1, 1);
}

/* `family` "wan2.2/t2v-a14b"; `use`: a word for this test program's folder. Both models read the float32 files: a BF16
 * run rounds what the original rounds, and keeps what it keeps. */
static inline int family_setup(void **state, const char *family, const char *use)
{
    family_fixture *f = calloc(1, sizeof *f);
    char path[512], *folder = NULL;
    if (!f || oq_env_new(NULL, &f->env) != OQ_OK) return -1;
    *state = f;
    folder = f->folder;
    snprintf(path, sizeof path, OMNIQ_SOURCE_DIR "/tests/data/golden/%s/golden.safetensors", family);
    if (oq_ckpt_open(f->env, path, &f->golden) != OQ_OK) return -1;
    snprintf(path, sizeof path, OMNIQ_SOURCE_DIR "/tests/data/golden/%s", family);
    snprintf(folder, sizeof f->folder, "%s", scratch_dir(OMNIQ_BINARY_DIR, use));
    golden_folder_make(f->env, path, folder, &oq_dtype_f32);
    family_ids_tokenizer(f, folder);
    f->fp32 = family_open(f->env, folder, "fp32");
    f->bf16 = family_open(f->env, folder, "bf16");
    return f->fp32 && f->bf16 ? 0 : -1;
}

static inline int family_teardown(void **state)
{
    family_fixture *f = *state;
    oq_model_close(f->bf16);
    oq_model_close(f->fp32);
    oq_ckpt_close(f->golden);
    oq_env_free(f->env);
    free(f);
    return 0;
}

/* ---- stages -------------------------------------------------------------------------------------------- */

/* Golden stages of a run: its tensors but for pictures and those of the BF16 run (which end in "_bf16"). */
static inline bool family_is_stage(const char *name, const char *run, bool bf16)
{
    const char *mark = strstr(name, "_bf16"), *picture = strstr(name, ".image"), *ids = strstr(name, ".ids");
    const bool prompt = ids && !strstr(name, ".pos.") && !strstr(name, ".neg."); /* not a stage "text.pos.0.ids" */
    return strncmp(name, run, strlen(run)) == 0 && !picture && !prompt && (mark != NULL) == bf16;
}

static inline size_t family_expected(const oq_ckpt *golden, const char *run, bool bf16)
{
    size_t n = 0;
    for (size_t i = 0; i < golden->n_tensors; i++) n += family_is_stage(golden->tensors[i].name, run, bf16);
    return n;
}

typedef double (*family_bound)(const char *key, bool bf16);

/* run: "A."; stages of a BF16 run are compared with the original's own BF16 run. */
static inline void family_check_stages(const family_fixture *f, const char *run, stages *kept, bool bf16,
                                       family_bound bound_of)
{
    size_t compared = 0;
    char first[96] = "";
    double first_error = 0, worst = 0;
    for (size_t i = 0; i < kept->n; i++) {
        stage *s = &kept->at[i];
        distance d;
        char plain[96];
        snprintf(plain, sizeof plain, "%s", s->key);
        if (bf16) snprintf(s->key, sizeof s->key, "%.88s_bf16", plain);
        if (!stage_compare(f->golden, run, s, &d)) continue;
        const double error = distance_relative(&d), bound = parity_bound(bound_of(plain, bf16), !bf16);
        compared++;
        if (getenv("OMNIQ_PARITY_TABLE")) printf("%s%-36s %8lld values  %.3e\n", run, s->key, (long long)d.n, error);
        if (error > worst) worst = error;
        if (first[0] || (d.n > 0 && error <= bound)) continue;
        snprintf(first, sizeof first, "%s", plain);
        first_error = error;
    }
    if (first[0]) fail_msg("run %s diverges first at '%s': relative error %.3e", run, first, first_error);
    assert_int_equal(compared, family_expected(f->golden, run, bf16));
    printf("run %s %s: %zu stages, worst %.2e\n", run, bf16 ? "bfloat16" : "float32", compared, worst);
}

/* ---- pictures ------------------------------------------------------------------------------------------ */

typedef struct family_distance {
    double squares;
    int64_t n, beyond_one;
    int largest;
} family_distance;

static inline double family_psnr(const family_distance *d)
{
    return d->squares > 0 ? 10 * log10(255.0 * 255.0 * (double)d->n / d->squares) : (double)INFINITY;
}

/* Bytes of "RUN.KEY" or "RUN.KEY@N"; *every is N. */
static inline const oq_ckpt_tensor *family_picture(const oq_ckpt *golden, const char *run, const char *key,
                                                   int64_t *every)
{
    char name[96];
    const size_t n = (size_t)snprintf(name, sizeof name, "%s%s", run, key);
    for (size_t i = 0; i < golden->n_tensors; i++) {
        const char *have = golden->tensors[i].name;
        if (strncmp(have, name, n) != 0 || (have[n] != '\0' && have[n] != '@')) continue;
        *every = have[n] ? atoll(have + n + 1) : 1;
        return &golden->tensors[i];
    }
    fail_msg("no golden picture '%s'", name);
    return NULL;
}

static inline family_distance family_compare_bytes(const uint8_t *a, int64_t a_step, const uint8_t *b, int64_t n)
{
    family_distance d = {.n = n};
    for (int64_t i = 0; i < n; i++) {
        const int difference = abs((int)a[i * a_step] - (int)b[i]);
        d.squares += (double)difference * difference;
        d.beyond_one += difference > 1;
        if (difference > d.largest) d.largest = difference;
    }
    return d;
}

/* FP32: within one level in 99.9 % of the values. BF16: at most 3 dB farther from the original's float32 picture than
 * the original's own bfloat16 picture is. */
static inline void family_check_picture(const family_fixture *f, const char *run, const uint8_t *pixels, int64_t n,
                                        bool bf16)
{
    int64_t every = 1, other = 1;
    const oq_ckpt_tensor *golden = family_picture(f->golden, run, "image", &every);
    const oq_ckpt_tensor *theirs = family_picture(f->golden, run, "image_bf16", &other);
    assert_int_equal(golden->elems, (n + every - 1) / every);
    assert_int_equal(every, other);
    const family_distance d = family_compare_bytes(pixels, every, golden->data, golden->elems);
    const family_distance own = family_compare_bytes(theirs->data, 1, golden->data, golden->elems);
    printf("run %s %s: picture %.2f dB, largest difference %d, %lld of %lld beyond one; the original's bfloat16 %.2f dB\n",
           run, bf16 ? "bfloat16" : "float32", family_psnr(&d), d.largest, (long long)d.beyond_one, (long long)d.n,
           family_psnr(&own));
    if (bf16)
        assert_true(family_psnr(&d) >= family_psnr(&own) - 3);
    else
        assert_true((double)d.beyond_one <= 0.001 * (double)d.n);
}

/* ---- runs ---------------------------------------------------------------------------------------------- */

typedef struct family_run {
    const char *name;             /* prefix of its golden tensors */
    const char *prompt, *negative;
    int64_t width, height, frames; /* frames 0: a picture */
    int steps, max_tokens;        /* max_tokens 0: 512 */
    double guidance, guidance_2, true_cfg; /* the latter two 0: the same, and off */
    uint64_t seed;
    double strength;
    int n_images;
    struct {
        const char *name; /* of its formula */
        int64_t width, height;
    } images[2];
} family_run;

static inline oq_media *family_generate(family_fixture *f, const family_run *c, bool bf16, stages *kept)
{
    oq_image images[2] = {0};
    for (int i = 0; i < c->n_images; i++)
        images[i] = golden_picture(c->images[i].name, c->images[i].width, c->images[i].height);
    const oq_request request = {.prompts = &c->prompt,
                                .n_prompts = 1,
                                .negative = c->negative,
                                .width = c->width,
                                .height = c->height,
                                .frames = c->frames,
                                .steps = c->steps,
                                .guidance = c->guidance,
                                .guidance_2 = c->guidance_2 > 0 ? c->guidance_2 : (double)NAN,
                                .true_cfg = c->true_cfg > 0 ? c->true_cfg : 1,
                                .seed = c->seed,
                                .images_per_prompt = 1,
                                .images = images,
                                .n_images = c->n_images,
                                .strength = c->strength,
                                .max_sequence_length = c->max_tokens ? c->max_tokens : 512,
                                .cfg_truncation = 1};
    const oq_run_hooks hooks = {.trace = stages_keep, .trace_user = kept};
    const oq_model *model = bf16 ? f->bf16 : f->fp32;
    oq_media *media = NULL;
    if (model->type->check(f->env, model->self, &request) != OQ_OK ||
        oq_generate_request(f->env, model, &request, &hooks, &media) != OQ_OK)
        fail_msg("run %s: %s", c->name, oq_env_error(f->env));
    for (int i = 0; i < c->n_images; i++) free(images[i].pixels);
    return media;
}

/* Stages and pixels of a run against the golden ones. */
static inline void family_check_run(family_fixture *f, const family_run *c, bool bf16, family_bound bound_of)
{
    stages kept = {0};
    oq_media *media = family_generate(f, c, bf16, &kept);
    const int64_t frames = c->frames ? c->frames : 1;
    assert_int_equal(oq_media_frames(media), frames);
    family_check_stages(f, c->name, &kept, bf16, bound_of);
    family_check_picture(f, c->name, oq_media_pixels(media, 0), frames * c->width * c->height * 3, bf16);
    oq_media_free(media);
    stages_free(&kept);
}

/* A batch was one run of the original; each item is a run of its own here and gives its pixels of the golden batch. */
static inline void family_check_items(family_fixture *f, const family_run *items, int64_t n_items)
{
    int64_t every = 1;
    const oq_ckpt_tensor *golden = family_picture(f->golden, items[0].name, "image", &every);
    assert_int_equal(every, 1);
    for (int64_t i = 0; i < n_items; i++) {
        stages kept = {0};
        oq_media *media = family_generate(f, &items[i], false, &kept);
        const int64_t n = items[i].width * items[i].height * 3;
        const family_distance d = family_compare_bytes(oq_media_pixels(media, 0), 1, golden->data + i * n, n);
        printf("item %lld: %.2f dB, %lld of %lld beyond one\n", (long long)i, family_psnr(&d), (long long)d.beyond_one,
               (long long)d.n);
        assert_true((double)d.beyond_one <= 0.001 * (double)n);
        oq_media_free(media);
        stages_free(&kept);
    }
}

#endif
