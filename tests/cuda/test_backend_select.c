/* test_backend_select.c -- which backend each word of `--device` means, and the sentence of every refusal. */
#include "engine/backend_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char log_text[4096];

static void keep_log(void *user, oq_log_level level, const char *message)
{
    (void)user, (void)level;
    const size_t n = strlen(log_text);
    snprintf(log_text + n, sizeof log_text - n, "%s\n", message);
}

static int start(void **state)
{
    const oq_env_params params = {.size = sizeof params, .log = keep_log};
    oq_env *env = NULL;
    log_text[0] = '\0';
    setenv("OMNIQ_PLUGIN_PATH", "/nowhere", 1);
    if (oq_env_new(&params, &env) != OQ_OK) return -1;
    *state = env;
    return 0;
}

static int stop(void **state)
{
    oq_env_free(*state);
    return 0;
}

static void cpu_by_name(void **state)
{
    const oq_backend *backend = NULL;
    int index = -1;
    assert_int_equal(oq_backend_select(*state, "cpu", &backend, &index), OQ_OK);
    assert_string_equal(backend->name, "cpu");
    assert_int_equal(index, 0);
}

static void auto_falls_back_and_says_so(void **state)
{
    const char *const words[] = {"auto", NULL};
    for (size_t i = 0; i < OQ_COUNT(words); i++) {
        const oq_backend *backend = NULL;
        int index = -1;
        log_text[0] = '\0';
        assert_int_equal(oq_backend_select(*state, words[i], &backend, &index), OQ_OK);
        assert_string_equal(backend->name, "cpu");
        assert_string_equal(log_text,
                            "device auto: not cuda: plugin 'omniq-cuda.so' was not found beside omniq or "
                            "in OMNIQ_PLUGIN_PATH\ndevice auto: running on cpu\n");
    }
    assert_string_equal(oq_env_error(*state), "");
}

static void refusals(void **state)
{
    static const struct {
        const char *device;
        oq_status status;
        const char *text;
    } rows[] = {
        {"cuda", OQ_E_UNSUPPORTED,
         "device 'cuda': plugin 'omniq-cuda.so' was not found beside omniq or in OMNIQ_PLUGIN_PATH"},
        {"cuda:2", OQ_E_UNSUPPORTED,
         "device 'cuda:2': plugin 'omniq-cuda.so' was not found beside omniq or in OMNIQ_PLUGIN_PATH"},
        {"cuda:", OQ_E_ARG, "device 'cuda:': want auto, cpu, cuda or cuda:N"},
        {"cuda:-1", OQ_E_ARG, "device 'cuda:-1': want auto, cpu, cuda or cuda:N"},
        {"cuda:1x", OQ_E_ARG, "device 'cuda:1x': want auto, cpu, cuda or cuda:N"},
        {"cuda:99999999999", OQ_E_ARG, "device 'cuda:99999999999': want auto, cpu, cuda or cuda:N"},
        {"cpu:0", OQ_E_ARG, "device 'cpu:0': want auto, cpu, cuda or cuda:N"},
        {"gpu", OQ_E_ARG, "device 'gpu': want auto, cpu, cuda or cuda:N"},
        {"", OQ_E_ARG, "device '': want auto, cpu, cuda or cuda:N"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        const oq_backend *backend = NULL;
        int index = -1;
        oq_env_clear(*state);
        assert_int_equal(oq_backend_select(*state, rows[i].device, &backend, &index), rows[i].status);
        assert_string_equal(oq_env_error(*state), rows[i].text);
        assert_null(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(cpu_by_name, start, stop),
        cmocka_unit_test_setup_teardown(auto_falls_back_and_says_so, start, stop),
        cmocka_unit_test_setup_teardown(refusals, start, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
