/* test_vision_patches.c -- promises of the image processor: sizes are those of transformers' smart_resize, both files of a folder
 * are read, what would change a picture and is not done here is refused. Values are test_parity_qwen_image_edit's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "pipelines/vision_patches.h"
#include "support/scratch.h"

#include <stdio.h>
#include <string.h>

static void test_sizes(void **state)
{
    static const int64_t rows[][5] = {
        /* width, height, most pixels, to */
        {384, 384, 12845056, 392, 392},       {1024, 1024, 12845056, 1036, 1036},
        {1024, 1024, 1003520, 980, 980},      {416, 352, 12845056, 420, 364},
        {160, 160, 12845056, 168, 168},       {288, 512, 1003520, 280, 504},
        {32, 5000, 12845056, 28, 5012},       {14, 14, 12845056, 56, 56},
        {10000, 10000, 12845056, 3556, 3556}, {10000, 10000, 1003520, 980, 980},
        {70, 42, 12845056, 56, 56},           {1408, 736, 1003520, 1372, 700},
    };
    (void)state;
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const oq_vision_patches p = {
            .patch = 14, .merge = 2, .least_pixels = 3136, .most_pixels = rows[i][2]};
        int64_t w = 0, h = 0;
        assert_true(oq_vision_patches_size(&p, rows[i][0], rows[i][1], &w, &h));
        assert_int_equal(w, rows[i][3]);
        assert_int_equal(h, rows[i][4]);
    }
}

static void test_long_pictures_have_no_size(void **state)
{
    const oq_vision_patches p = {.patch = 14, .merge = 2, .least_pixels = 3136, .most_pixels = 12845056};
    int64_t w, h;
    (void)state;
    assert_false(oq_vision_patches_size(&p, 32, 6432, &w, &h));
    assert_false(oq_vision_patches_size(&p, 6432, 32, &w, &h));
    assert_false(oq_vision_patches_size(&p, 400, 2, &w, &h) && h == 0);
}

static void test_configurations(void **state)
{
    static const struct {
        const char *file, *text; /* NULL: no file */
        oq_status status;
        const char *error;
    } rows[] = {
        {"preprocessor_config.json", "{\"min_pixels\":3136,\"max_pixels\":12845056}", OQ_OK, ""},
        {"processor_config.json",
         "{\"image_processor\":{\"size\":{\"shortest_edge\":3136,\"longest_edge\":12845056}}}", OQ_OK, ""},
        {NULL, NULL, OQ_E_NOTFOUND, "/processor/preprocessor_config.json is missing"},
        {"preprocessor_config.json", "{\"resample\":2}", OQ_E_UNSUPPORTED,
         "'resample' is 2, only 3 is supported"},
        {"preprocessor_config.json", "{\"do_normalize\":false}", OQ_E_UNSUPPORTED, "'do_normalize' is false"},
        {"preprocessor_config.json", "{\"image_processor_type\":\"CLIPImageProcessor\"}", OQ_E_UNSUPPORTED,
         "'image_processor_type' is 'CLIPImageProcessor', only Qwen2VLImageProcessor is supported"},
        {"preprocessor_config.json", "{\"image_mean\":[0.5,0.5]}", OQ_E_FORMAT,
         "'image_mean' must be three finite numbers"},
        {"preprocessor_config.json", "{\"image_std\":[0.5,0,0.5]}", OQ_E_FORMAT,
         "'image_std' must be above 0"},
        {"preprocessor_config.json", "{\"min_pixels\":4000,\"max_pixels\":3000}", OQ_E_FORMAT,
         "pictures of 4000 to 3000 pixels in states of 784"},
        {"preprocessor_config.json", "{\"pad_to\":9}", OQ_E_UNSUPPORTED,
         "'pad_to' is 9, which is not known here"},
        {"preprocessor_config.json", "[]", OQ_E_FORMAT, "an object is needed"},
    };
    oq_env *env = NULL;
    (void)state;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char folder[500], processor[600];
        oq_vision_patches p;
        snprintf(folder, sizeof folder, "%s", scratch_dir(OMNIQ_BINARY_DIR, "vision_patches"));
        scratch_subdir(folder, "processor");
        snprintf(processor, sizeof processor, "%s/processor", folder);
        if (rows[i].file) scratch_text(processor, rows[i].file, rows[i].text);
        const oq_status st = oq_vision_patches_read(env, folder, false, &p);
        if (st != rows[i].status || !strstr(st == OQ_OK ? "" : oq_env_error(env), rows[i].error))
            fail_msg("row %zu: %s, '%s'", i, oq_status_name(st), oq_env_error(env));
        if (st == OQ_OK) assert_int_equal(p.most_pixels, 12845056);
        oq_env_clear(env);
        if (!rows[i].file) { /* weights without a file need none of the others */
            assert_int_equal(oq_vision_patches_read(env, folder, true, &p), OQ_OK);
            assert_int_equal(p.patch, 14);
            assert_int_equal(p.most_pixels, 28 * 28 * 1280);
        }
    }
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_long_pictures_have_no_size),
        cmocka_unit_test(test_configurations),
    };
    return cmocka_run_group_tests_name("vision patches", tests, NULL, NULL);
}
