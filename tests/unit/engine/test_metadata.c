/* test_metadata.c -- a picture's options are taken from it as far as pictures remember any: a stranger's names no file that is
 * written or read as text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "engine/command.h"
#include "media/image.h"
#include "support/scratch.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static oq_status restore(oq_env *env, const char *members, oq_options **options)
{
    static const uint8_t pixels[3];
    char path[1100], text[512];
    oq_json *remembered = NULL;
    snprintf(path, sizeof path, "%s/stranger.png", scratch_dir(OMNIQ_BINARY_DIR, "metadata"));
    snprintf(text, sizeof text, "{\"options\": {%s}}", members);
    const oq_image_text entry = {"omniq", text};
    oq_env_clear(env);
    assert_int_equal(oq_image_write(env, path, 1, 1, pixels, &entry, 1), OQ_OK);
    assert_int_equal(oq_options_new(env, "generate", options), OQ_OK);
    const oq_status st = oq_metadata_restore(env, path, *options, &remembered);
    oq_json_free(remembered);
    return st;
}

/* Names as pictures remember them. */
static void test_names(void **state)
{
    static const struct {
        const char *path, *name;
    } rows[] = {
        {"models/toybox", "models/toybox"},
        {"toybox", "toybox"},
        {"some/box", "some/box"},
        {"/home/somebody/models/toybox", "toybox"},
        {"/home/somebody/models/toybox//", "toybox"},
        {"../somebody/toybox", "toybox"},
        {"models/../../toybox", "toybox"},
        {"a..b/c", "a..b/c"},
        {"/cache/hub/models--some--box/snapshots/0123456789abcdef", "some/box"},
        {"/cache/hub/models--some--box/snapshots/0123456789abcdef/", "some/box"},
        {"/cache/hub/models--some--box--two/snapshots/0123456789abcdef", "some/box--two"},
        {"/cache/hub/models--some--box/snapshots/0123456789abcdef/vae/x.safetensors", "x.safetensors"},
        {"/cache/models--box/snapshots/1", "1"},
        {"/tmp/..", ""}, /* the root has no name */
    };
    oq_env *env = NULL;
    oq_arena arena;
    (void)state;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    oq_arena_init(&arena, env);
    for (size_t i = 0; i < OQ_COUNT(rows); i++)
        assert_string_equal(oq_remembered_name(&arena, rows[i].path, false), rows[i].name);
    const char *here = oq_remembered_name(&arena, ".", false); /* the folder has a name */
    assert_non_null(here);
    assert_null(strchr(here, '/'));
    assert_string_not_equal(here, ".");
    /* bare: no folder of this machine; what is no file here is a name in the cache */
    assert_string_equal(oq_remembered_name(&arena, "some/box", true), "some/box");
    assert_string_equal(oq_remembered_name(&arena, "models/toybox", true), "toybox");
    assert_string_equal(oq_remembered_name(&arena, "models/toybox", false), "models/toybox");
    oq_arena_deinit(&arena);
    oq_env_free(env);
}

static void test_only_what_pictures_remember(void **state)
{
    static const struct {
        const char *members, *text;
    } rows[] = {
        {"\"prompt\": [\"x\"], \"output\": \"/somewhere/else.png\"",
         "its 'omniq' text has the option 'output', which no picture remembers"},
        {"\"o\": \"/somewhere/else.png\"", "the option 'o', which no picture remembers"},
        {"\"prompt_file\": \"/somewhere/else.txt\"", "the option 'prompt_file', which no picture remembers"},
        {"\"trace\": \"/somewhere/else.safetensors\"", "the option 'trace'"},
        {"\"quantization\": \"@/somewhere/else.json\"",
         "its 'omniq' text names a file for 'quantization', where pictures hold the text"},
        {"\"quantization_config\": \"" OMNIQ_SOURCE_DIR "/README.md\"",
         "names a file for 'quantization-config'"},
        {"\"recipe\": \"" OMNIQ_SOURCE_DIR "/README.md\"", "names a file for 'recipe'"},
        {"\"recipe\": \"README.md\"", "names a file for 'recipe'"}, /* of the working folder: see main */
        {"\"recipe\": \"nowhere\"", "names a file for 'recipe'"},
        {"\"component\": [\"vae=fp8\", \"transformer=@/somewhere/else.json\"]",
         "names a file for 'component'"},
    };
    oq_env *env = NULL;
    oq_options *options = NULL;
    (void)state;
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        assert_int_equal(restore(env, rows[i].members, &options), OQ_E_FORMAT);
        if (!strstr(oq_env_error(env), rows[i].text)) fail_msg("%zu: %s", i, oq_env_error(env));
        oq_options_free(options);
    }
    assert_int_equal(restore(env, "\"prompt\": [\"@x\"], \"negative-prompt\": \"@y\", \"seed\": 3", &options),
                     OQ_OK);
    assert_string_equal(oq_options_text(options, "negative-prompt", ""), "@y");
    oq_options_free(options);
    assert_int_equal(restore(env, "\"recipe\": \"careful8\"", &options), OQ_OK); /* a family's own */
    oq_options_free(options);
    oq_env_free(env);
}

int main(void)
{
    if (chdir(OMNIQ_SOURCE_DIR) != 0) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names),
                                       cmocka_unit_test(test_only_what_pictures_remember)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
