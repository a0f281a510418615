/* test_trace.c -- a trace keeps keys and patterns whole, whatever their length: two that share their first letters stay two. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cpu/cpu.h"
#include "engine/engine.h"
#include "nn/nn.h"
#include "support/scratch.h"

#include <stdio.h>
#include <string.h>

enum { LONG = 700 };

static void test_long_keys(void **state)
{
    char stem[LONG + 1], globs[2 * LONG + 16], path[1100], *text = NULL;
    size_t n = 0;
    float value[2] = {1, 2};
    oq_env *env = NULL;
    oq_trace *trace = NULL;
    oq_exec ex = {.backend = &oq_backend_cpu};
    (void)state;
    memset(stem, 'k', LONG);
    stem[LONG] = '\0';
    snprintf(globs, sizeof globs, "none, %s.1 ,%s.2", stem, stem);
    snprintf(path, sizeof path, "%s/long.safetensors", scratch_dir(OMNIQ_BINARY_DIR, "trace"));
    assert_int_equal(oq_env_new(NULL, &env), OQ_OK);
    assert_int_equal(oq_backend_cpu.open(env, 0, "ref", &ex.device), OQ_OK);
    assert_int_equal(oq_trace_new(env, globs, &trace), OQ_OK);
    ex.env = env;
    ex.trace = oq_trace_sink_put;
    ex.trace_user = trace;
    for (int i = 0; i < 3; i++) /* .0 is not asked for */
        assert_int_equal(
            oq_trace_put(&ex, oq_tensor_make(value, &oq_dtype_f32, 1, 2), NULL, 0, "%s.%d", stem, i), OQ_OK);
    assert_int_equal(oq_trace_write(trace, path), OQ_OK);
    assert_int_equal(oq_file_read(env, path, 1 << 20, &text, &n), OQ_OK);
    oq_json *header = NULL;
    assert_int_equal(oq_json_parse(env, text + 8, n - 8 - 2 * sizeof value, path, &header), OQ_OK);
    assert_int_equal(oq_json_size(header), 2);
    for (int i = 1; i < 3; i++) {
        char key[LONG + 8];
        snprintf(key, sizeof key, "%s.%d", stem, i);
        assert_non_null(oq_json_get(header, key));
    }
    oq_json_free(header);
    oq_free(env, text);
    oq_trace_free(trace);
    oq_backend_cpu.close(env, ex.device);
    oq_env_free(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_long_keys)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
