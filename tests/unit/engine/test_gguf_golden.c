/* test_gguf_golden.c -- GGUF files of the format's own tool (gguf 0.19.0 with ggml): `inspect --tensor` and, for blocks,
 * `inspect --layer` show the values that the tool itself decodes, bit for bit. rows.json tells which rows of which
 * tensors are kept beside each file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "ckpt/ckpt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA OMNIQ_SOURCE_DIR "/tests/data/quant/gguf/"

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

/* All values of a tensor (or layer), as `inspect --json` prints them. */
static oq_json *inspected(oq_env *env, const char *path, const char *option, const char *name)
{
    oq_options *o = NULL;
    oq_report *report = NULL;
    oq_json *json = NULL;
    assert_int_equal(oq_options_new(env, "inspect", &o), OQ_OK);
    assert_int_equal(oq_options_add_argument(o, path), OQ_OK);
    assert_int_equal(oq_options_set(o, option, name), OQ_OK);
    assert_int_equal(oq_options_set(o, "limit", "1000000"), OQ_OK);
    if (oq_run(o, &report) != OQ_OK) fail_msg("%s", oq_env_error(env));
    const char *text = oq_report_json(report);
    assert_int_equal(oq_json_parse(env, text, strlen(text), "report", &json), OQ_OK);
    oq_report_free(report);
    oq_options_free(o);
    return json;
}

static void check_rows(const oq_json *json, const oq_ckpt_tensor *expected, const oq_json *rows,
                       const char *name)
{
    const oq_json *values = oq_json_get(json, "values");
    const int64_t k = expected->dim[1];
    assert_int_equal(oq_json_size(rows), expected->dim[0]);
    for (int64_t r = 0; r < expected->dim[0]; r++)
        for (int64_t c = 0; c < k; c++) {
            const size_t at = (size_t)(oq_json_int(oq_json_at(rows, (size_t)r), -1) * k + c);
            const float is = (float)oq_json_real(oq_json_at(values, at), 1e30);
            float wanted;
            memcpy(&wanted, expected->data + 4 * (r * k + c), sizeof wanted);
            if (is < wanted || is > wanted)
                fail_msg("%s: value %d is %.9g, the producer has %.9g", name, (int)at, (double)is,
                         (double)wanted);
        }
}

static void check_file(oq_env *env, const char *file, const oq_json *tensors)
{
    char path[1024];
    oq_ckpt *expected = NULL, *ckpt = NULL;
    void *at = NULL;
    const char *name;
    const oq_json *rows;
    snprintf(path, sizeof path, DATA "%s.expected.safetensors", file);
    assert_int_equal(oq_ckpt_open(env, path, &expected), OQ_OK);
    snprintf(path, sizeof path, DATA "%s.gguf", file);
    assert_int_equal(oq_ckpt_open(env, path, &ckpt), OQ_OK);
    while (oq_json_next(tensors, &at, &name, &rows)) {
        char key[512], layer[512];
        snprintf(key, sizeof key, "%s.dequant_rows", name);
        const oq_ckpt_tensor *t = oq_ckpt_find(ckpt, name), *e = oq_ckpt_find(expected, key);
        if (!t || !e) fail_msg("%s: %s is missing", file, name);
        oq_json *json = inspected(env, path, "tensor", name);
        check_rows(json, e, rows, name);
        oq_json_free(json);
        if (!t->format) continue;
        snprintf(layer, sizeof layer, "%.*s", (int)(strlen(name) - strlen(".weight")), name);
        json = inspected(env, path, "layer", layer);
        check_rows(json, e, rows, layer);
        oq_json_free(json);
    }
    oq_ckpt_close(ckpt);
    oq_ckpt_close(expected);
}

static void test_values_of_the_producer(void **state)
{
    void *at = NULL;
    const char *file;
    const oq_json *tensors;
    oq_json *index = NULL;
    int n = 0;
    assert_int_equal(oq_json_parse_file(*state, DATA "rows.json", 1 << 20, &index), OQ_OK);
    for (; oq_json_next(index, &at, &file, &tensors); n++) check_file(*state, file, tensors);
    assert_int_equal(n, 3);
    oq_json_free(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values_of_the_producer)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
