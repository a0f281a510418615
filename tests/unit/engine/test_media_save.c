/* test_media_save.c -- media of the public interface on disk: pictures and videos as the name's ending says, and what a name
 * cannot say is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "support/quality_families.h"

#include "base/file.h"

#include <stdio.h>
#include <string.h>

static oq_media *media_of(oq_env *env, const char *pipeline)
{
    char folder[500];
    oq_model *model = NULL;
    oq_media *media = NULL;
    const quality_family *f = quality_families;
    while (f->name && strcmp(f->pipeline, pipeline) != 0) f++;
    assert_non_null(f->name);
    quality_family_folder(env, f, folder);
    oq_options *o = quality_family_options(env, f, folder, NULL, 0);
    assert_int_equal(oq_options_set(o, "steps", "2"), OQ_OK);
    if (oq_model_open(env, o, &model) != OQ_OK || oq_generate(env, model, o, &media) != OQ_OK)
        fail_msg("%s", oq_env_error(env));
    oq_model_close(model);
    oq_options_free(o);
    return media;
}

/* The file exists and has `magic` at `offset`. */
static void check_saved(oq_env *env, const oq_media *media, const char *name, size_t offset,
                        const char *magic)
{
    char path[500], *bytes = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, OMNIQ_BINARY_DIR "/media-save%s", name);
    if (oq_media_save(env, media, 0, path) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_int_equal(oq_file_read(env, path, (size_t)1 << 26, &bytes, &n), OQ_OK);
    assert_true(n > offset + strlen(magic));
    assert_memory_equal(bytes + offset, magic, strlen(magic));
    oq_free(env, bytes);
    remove(path);
}

static void check_refused(oq_env *env, const oq_media *media, int index, const char *path, const char *words)
{
    assert_int_equal(oq_media_save(env, media, index, path), OQ_E_ARG);
    if (!strstr(oq_env_error(env), words)) fail_msg("'%s' lacks '%s'", oq_env_error(env), words);
    oq_env_clear(env);
}

static void test_pictures(void **state)
{
    (void)state;
    oq_env *env = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_media *media = media_of(env, "z-image");
    assert_true(oq_media_fps(media) == 0);
    check_saved(env, media, ".png", 1, "PNG");
    check_refused(env, media, 1, "x.png", "item 1 was asked for, there are 1");
    check_refused(env, media, -1, "x.png", "item -1");
    check_refused(env, media, 0, "", "needs the name of a file");
    check_refused(env, media, 0, "x.xyz", "this build writes pictures as .png");
    check_refused(env, media, 0, "x.mp4", "this build writes pictures as .png");
    check_refused(env, media, 0, "x", "the name has no ending");
    oq_media_free(media);
    oq_env_free(env);
}

static void test_videos(void **state)
{
    (void)state;
    oq_env *env = NULL;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_media *media = media_of(env, "wan");
    assert_true(oq_media_fps(media) == 16 && oq_media_frames(media) > 1);
    check_saved(env, media, ".y4m", 0, "YUV4MPEG2");
    check_refused(env, media, 0, "x.png",
                  "this build writes videos as"); /* one frame would pass for the video */
    check_refused(env, media, 0, "x.xyz", "or a folder of pictures (no ending), not '.xyz'");
    oq_media_free(media);
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pictures), cmocka_unit_test(test_videos)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
