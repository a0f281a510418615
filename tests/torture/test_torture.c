/* test_torture.c -- the n-th allocation fails, for many n, over opening a model and generating one step; then
 * files of the model folder end early. Every failure is a status and a sentence; nothing leaks (run it under
 * a leak checker). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "omniq/omniq.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL OMNIQ_SOURCE_DIR "/models/toybox"

/* ---- allocations --------------------------------------------------------------------------------------- */

typedef struct counter {
    _Atomic long count, fail_at, live; /* fail_at 0: never */
} counter;

static void *counted_allocate(void *user, size_t bytes)
{
    counter *c = user;
    if (++c->count == c->fail_at) return NULL;
    void *p = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (p) c->live++;
    return p;
}

static void counted_release(void *user, void *ptr)
{
    ((counter *)user)->live--;
    free(ptr);
}

static oq_status fill(oq_options *o, const char *model)
{
    static const char *const pairs[][2] = {
        {"prompt", "a small blue star"}, {"width", "64"}, {"height", "64"}, {"steps", "1"},
        {"quantization", "fp8"},         {"seed", "1"}};
    oq_status st = oq_options_set(o, "model", model);
    for (size_t i = 0; st == OQ_OK && i < sizeof pairs / sizeof pairs[0]; i++)
        st = oq_options_set(o, pairs[i][0], pairs[i][1]);
    return st;
}

/* Opens, generates, frees; the env's error text goes to `error`. */
static oq_status whole_run(oq_env *env, const char *model)
{
    oq_options *o = NULL;
    oq_model *m = NULL;
    oq_media *media = NULL;
    oq_status st = oq_options_new(env, "generate", &o);
    if (st == OQ_OK) st = fill(o, model);
    if (st == OQ_OK) st = oq_model_open(env, o, &m);
    if (st == OQ_OK) st = oq_generate(env, m, o, &media);
    if (st == OQ_OK) assert_int_equal(oq_media_count(media), 1);
    oq_media_free(media);
    oq_model_close(m);
    oq_options_free(o);
    return st;
}

static oq_status counted_run(counter *c, char error[512])
{
    oq_env_params params = OQ_ENV_PARAMS_INIT;
    params.allocate = counted_allocate;
    params.release = counted_release;
    params.alloc_user = c;
    params.n_threads = 2;
    oq_env *env = NULL;
    oq_status st = oq_env_new(&params, &env);
    snprintf(error, 512, "no environment");
    if (st == OQ_OK) {
        st = whole_run(env, MODEL);
        snprintf(error, 512, "%s", oq_env_error(env));
    }
    oq_env_free(env);
    return st;
}

static void test_each_allocation_may_fail(void **state)
{
    (void)state;
    char error[512];
    counter c = {0};
    assert_int_equal(counted_run(&c, error), OQ_OK);
    assert_int_equal(c.live, 0);
    const long total = c.count;
    /* All of the first ones (options, files, configuration), then an even sample: the rest repeats layer by
     * layer. */
    const long step = total / 160 + 1;
    for (long n = 1; n <= total; n += n < 120 ? 1 : step) {
        c = (counter){.fail_at = n};
        const oq_status st = counted_run(&c, error);
        if (c.live != 0) fail_msg("allocation %ld of %ld fails: %ld blocks leak", n, total, (long)c.live);
        if (st == OQ_OK && c.count >= n) continue; /* a cache that can be done without */
        if (st != OQ_E_NOMEM || !error[0])
            fail_msg("allocation %ld of %ld: %s '%s'", n, total, oq_status_name(st), error);
    }
}

/* ---- files that end early ------------------------------------------------------------------------------ */

static void link_tree(const char *from, const char *to, const char *except)
{
    DIR *dir = opendir(from);
    assert_non_null(dir);
    mkdir(to, 0777);
    for (struct dirent *e; (e = readdir(dir));) {
        char a[1024], b[1024];
        struct stat st;
        if (e->d_name[0] == '.') continue;
        snprintf(a, sizeof a, "%s/%s", from, e->d_name);
        snprintf(b, sizeof b, "%s/%s", to, e->d_name);
        assert_int_equal(stat(a, &st), 0);
        unlink(b);
        if (S_ISDIR(st.st_mode))
            link_tree(a, b, except);
        else if (strcmp(a, except) != 0)
            assert_int_equal(symlink(a, b), 0);
    }
    closedir(dir);
}

static void copy_part(const char *from, const char *to, long percent)
{
    FILE *in = fopen(from, "rb"), *out = fopen(to, "wb");
    assert_true(in && out);
    fseek(in, 0, SEEK_END);
    const long n = ftell(in) * percent / 100;
    char *bytes = malloc((size_t)n + 1);
    assert_non_null(bytes);
    rewind(in);
    assert_int_equal(fread(bytes, 1, (size_t)n, in), n);
    assert_int_equal(fwrite(bytes, 1, (size_t)n, out), n);
    fclose(in);
    assert_int_equal(fclose(out), 0);
    free(bytes);
}

static void test_files_that_end_early(void **state)
{
    (void)state;
    static const char *const files[] = {"model_index.json",
                                        "scheduler/scheduler_config.json",
                                        "text_encoder/config.json",
                                        "text_encoder/model.safetensors",
                                        "tokenizer/tokenizer.json",
                                        "transformer/config.json",
                                        "transformer/diffusion_pytorch_model.safetensors.index.json",
                                        "transformer/diffusion_pytorch_model-00002-of-00002.safetensors",
                                        "vae/diffusion_pytorch_model.safetensors"};
    static const long percents[] = {0, 1, 50, 99};
    const char *copy = OMNIQ_BINARY_DIR "/torture-model";
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        for (size_t j = 0; j < sizeof percents / sizeof percents[0]; j++) {
            char from[1024], to[1024];
            snprintf(from, sizeof from, "%s/%s", MODEL, files[i]);
            snprintf(to, sizeof to, "%s/%s", copy, files[i]);
            link_tree(MODEL, copy, from);
            copy_part(from, to, percents[j]);
            oq_env *env = NULL;
            assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
            const oq_status st = whole_run(env, copy);
            const char *leaf = strrchr(files[i], '/') ? strrchr(files[i], '/') + 1 : files[i];
            if (st == OQ_OK || !strstr(oq_env_error(env), leaf))
                fail_msg("%s cut to %ld %%: %s '%s'", files[i], percents[j], oq_status_name(st),
                         oq_env_error(env));
            oq_env_free(env);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_allocation_may_fail),
                                       cmocka_unit_test(test_files_that_end_early)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
