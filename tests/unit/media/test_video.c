/* test_video.c -- promises of the video writers: what the file's name asks for, frames that come back, nothing half-written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "media/video.h"
#include "support/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { W = 16, H = 12, F = 5 };

static int setup(void **state)
{
    oq_env *env = NULL;
    if (oq_env_new(NULL, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int teardown(void **state)
{
    oq_env_free(*state);
    return 0;
}

static uint8_t pixels[F * W * H * 3];
static oq_video make_video(void)
{
    for (int i = 0; i < F * W * H * 3; i++) pixels[i] = (uint8_t)(i * 7 + i / 91);
    return (oq_video){.width = W, .height = H, .frames = F, .fps = 12.5, .pixels = pixels};
}

static void test_a_folder_of_pictures(void **state)
{
    oq_env *env = *state;
    const oq_video video = make_video();
    const oq_video_type *type = NULL;
    const oq_image_text text = {"parameters", "a prompt"};
    char *path = oq_path_join(env, scratch_dir(OMNIQ_BINARY_DIR, "video_folder"), "frames/");
    assert_int_equal(oq_video_find(env, path, &type), OQ_OK);
    assert_string_equal(type->name, "folder");
    if (type->write(env, path, &video, &text, 1) != OQ_OK) fail_msg("%s", oq_env_error(env));
    for (int i = 0; i < F; i++) {
        char name[64], *words = NULL;
        oq_image image = {0};
        snprintf(name, sizeof name, "frame_%05d.png", i + 1);
        char *file = oq_path_join(env, path, name);
        if (oq_png_read(env, file, &image) != OQ_OK) fail_msg("%s", oq_env_error(env));
        assert_memory_equal(image.pixels, pixels + i * W * H * 3, W * H * 3);
        assert_int_equal(oq_png_read_text(env, file, "parameters", &words), OQ_OK);
        assert_string_equal(words, "a prompt");
        oq_free(env, words);
        oq_image_deinit(env, &image);
        oq_free(env, file);
    }
    /* a folder that is there and not empty is not overwritten, and nothing is left beside it */
    assert_int_equal(type->write(env, path, &video, NULL, 0), OQ_E_IO);
    oq_env_clear(env);
    path[strlen(path) - 1] = '\0';
    char *part = oq_path_join(env, path, "");
    part[strlen(part) - 1] = '\0';
    oq_free(env, part);
    char beside[4096];
    snprintf(beside, sizeof beside, "%s.part", path);
    assert_false(oq_file_exists(beside));
    oq_free(env, path);
}

/* Header, then "FRAME" and three planes for each; gray stays gray. */
static void test_y4m(void **state)
{
    oq_env *env = *state;
    oq_video video = make_video();
    const oq_video_type *type = NULL;
    char *path = oq_path_join(env, scratch_dir(OMNIQ_BINARY_DIR, "video_y4m"), "x.y4m"), *bytes = NULL;
    size_t n = 0;
    memset(pixels, 255, W * H * 3);           /* white */
    memset(pixels + W * H * 3, 0, W * H * 3); /* black */
    assert_int_equal(oq_video_find(env, path, &type), OQ_OK);
    if (type->write(env, path, &video, NULL, 0) != OQ_OK) fail_msg("%s", oq_env_error(env));
    assert_int_equal(oq_file_read(env, path, 1 << 20, &bytes, &n), OQ_OK);
    const char header[] = "YUV4MPEG2 W16 H12 F12500:1000 Ip A1:1 C444 XCOLORRANGE=LIMITED\n";
    const size_t h = sizeof header - 1, frame = 6 + W * H * 3;
    assert_int_equal(n, h + F * frame);
    assert_memory_equal(bytes, header, h);
    for (int i = 0; i < 2; i++) {
        const unsigned char *at = (const unsigned char *)bytes + h + (size_t)i * frame;
        assert_memory_equal(at, "FRAME\n", 6);
        assert_int_equal(at[6], i ? 16 : 235);
        assert_int_equal(at[6 + W * H], 128);
        assert_int_equal(at[6 + 2 * W * H], 128);
    }
    oq_free(env, bytes);
    oq_free(env, path);
}

static void test_names(void **state)
{
    oq_env *env = *state;
    const oq_video_type *type = NULL;
    assert_int_equal(oq_video_find(env, "-", &type), OQ_OK);
    assert_string_equal(type->name, "Y4M");
    assert_int_equal(oq_video_find(env, "a.Y4M", &type), OQ_OK);
    assert_int_equal(oq_video_find(env, "some.dir/frames", &type), OQ_OK);
    assert_string_equal(type->name, "folder");
    assert_int_equal(oq_video_find(env, "x.gif", &type), OQ_E_ARG);
    assert_non_null(strstr(oq_env_error(env), "output 'x.gif': this build writes videos as "));
    assert_non_null(strstr(oq_env_error(env), "or a folder of pictures (no ending), not '.gif'"));
    oq_env_clear(env);
    assert_int_equal(oq_video_find(env, oq_video_ending(), &type),
                     OQ_OK); /* a bare ".mp4" is a folder's name */
    for (size_t i = 0; oq_video_list[i]; i++) assert_non_null(oq_video_list[i]->write);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_folder_of_pictures),
                                       cmocka_unit_test(test_y4m), cmocka_unit_test(test_names)};
    return cmocka_run_group_tests_name("video", tests, setup, teardown);
}
