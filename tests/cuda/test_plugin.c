/* test_plugin.c -- plugins are found where the manual says, and each refusal names its reason. */
#include "backend/plugin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLUGINS OMNIQ_BINARY_DIR "/tests/plugins"

static void found_on_path(void **state)
{
    (void)state;
    char why[1024] = "";
    setenv("OMNIQ_PLUGIN_PATH", "/nowhere::" PLUGINS, 1);
    const oq_backend *b = oq_plugin_open("good", why, sizeof why);
    assert_non_null(b);
    assert_string_equal(b->name, "good");
    assert_int_equal(b->count(), 0);
    assert_ptr_equal(oq_plugin_open("good", why, sizeof why), b);
}

static void missing(void **state)
{
    (void)state;
    char why[1024] = "";
    setenv("OMNIQ_PLUGIN_PATH", PLUGINS, 1);
    assert_null(oq_plugin_open("none", why, sizeof why));
    assert_string_equal(why, "plugin 'omniq-none.so' was not found beside omniq or in OMNIQ_PLUGIN_PATH");
    unsetenv("OMNIQ_PLUGIN_PATH");
    assert_null(oq_plugin_open("good", why, sizeof why));
}

static void other_version(void **state)
{
    (void)state;
    char why[1024] = "", want[1024];
    setenv("OMNIQ_PLUGIN_PATH", PLUGINS, 1);
    assert_null(oq_plugin_open("other", why, sizeof why));
    snprintf(
        want, sizeof want,
        "plugin '%s/omniq-other.so' was built for another version of omniq: this one speaks interface %u",
        PLUGINS, OQ_BACKEND_ABI);
    assert_string_equal(why, want);
}

static void no_object(void **state)
{
    (void)state;
    char why[1024] = "";
    FILE *f = fopen(PLUGINS "/omniq-junk.so", "w");
    assert_non_null(f);
    fputs("not an object", f);
    fclose(f);
    setenv("OMNIQ_PLUGIN_PATH", PLUGINS, 1);
    assert_null(oq_plugin_open("junk", why, sizeof why));
    assert_non_null(strstr(why, "plugin '" PLUGINS "/omniq-junk.so' cannot be opened: "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(found_on_path),
        cmocka_unit_test(missing),
        cmocka_unit_test(other_version),
        cmocka_unit_test(no_object),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
