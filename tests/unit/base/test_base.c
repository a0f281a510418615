/* test_base.c -- promises of src/base. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "base/names.h"
#include "base/pool.h"
#include "base/regex.h"
#include "base/strbuf.h"
#include "base/unicode.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

static void test_first_error_stays(void **state)
{
    oq_env *env = *state;
    assert_int_equal(oq_fail(env, OQ_E_FORMAT, "tensor '%s' has %d bytes", "a\x01\xff", 3), OQ_E_FORMAT);
    oq_fail(env, OQ_E_IO, "later");
    assert_string_equal(oq_env_error(env), "tensor 'a\?\?' has 3 bytes");
    oq_env_clear(env);
    assert_string_equal(oq_env_error(env), "");
}

static void test_json_rejects(void **state)
{
    oq_env *env = *state;
    static const char *const bad[] = {"{\"a\":1,\"a\":2}",         "{\"a\":1} x", "[1,",
                                      "{\"\\u0001real\":\"NaN\"}", "\"\xff\"",    ""};
    for (size_t i = 0; i < OQ_COUNT(bad); i++) {
        oq_json *json = NULL;
        assert_int_equal(oq_json_parse(env, bad[i], strlen(bad[i]), "text", &json), OQ_E_FORMAT);
        assert_null(json);
        assert_non_null(strstr(oq_env_error(env), "text: "));
        oq_env_clear(env);
    }
}

static void test_json_names_the_duplicate(void **state)
{
    oq_env *env = *state;
    static const char text[] =
        "{\"x\": \"a \\\" b\",\n \"a much longer key than twenty\": 1, \"a much longer key than twenty\": 2}";
    oq_json *json = NULL;
    assert_int_equal(oq_json_parse(env, text, sizeof text - 1, "text", &json), OQ_E_FORMAT);
    assert_string_equal(oq_env_error(env),
                        "text: duplicate key \"a much longer key than twenty\" at line 2, column 68");
    oq_env_clear(env);
}

static void test_json_next(void **state)
{
    oq_env *env = *state;
    oq_json *json = NULL;
    assert_int_equal(oq_json_parse(env, "{\"z\": 1, \"a\": 2}", 16, "text", &json), OQ_OK);
    void *at = NULL;
    const char *key = NULL;
    const oq_json *value = NULL;
    assert_true(oq_json_next(json, &at, &key, &value) && strcmp(key, "z") == 0 && oq_json_int(value, 0) == 1);
    assert_true(oq_json_next(json, &at, &key, &value) && strcmp(key, "a") == 0 && oq_json_int(value, 0) == 2);
    assert_false(oq_json_next(json, &at, &key, &value));
    at = NULL;
    assert_false(oq_json_next(value, &at, &key, &value));
    oq_json_free(json);
}

static void test_json_round_trip(void **state)
{
    oq_env *env = *state;
    oq_json *object = oq_json_new_object();
    assert_true(oq_json_set(object, "z", oq_json_new_real(0.1)));
    assert_true(oq_json_set(object, "a", oq_json_new_real(INFINITY)));
    assert_true(oq_json_set(object, "n", oq_json_new_real(NAN)));
    assert_true(oq_json_set(object, "s", oq_json_new_string("q\"\n\xff")));
    assert_true(oq_json_set(object, "one", oq_json_new_real(1)));
    char *text = NULL;
    assert_int_equal(oq_json_dump(env, object, OQ_JSON_SORT, &text), OQ_OK);
    assert_string_equal(
        text,
        "{\"a\": \"Infinity\", \"n\": \"NaN\", \"one\": 1.0, \"s\": \"q\\\"\\n\xef\xbf\xbd\", \"z\": 0.1}");
    oq_free(env, text);
    assert_int_equal(oq_json_dump(env, oq_json_get(object, "a"), OQ_JSON_LITERALS, &text), OQ_OK);
    assert_string_equal(text, "Infinity");
    oq_free(env, text);
    assert_true(isinf(oq_json_real(oq_json_get(object, "a"), 0)));
    oq_json_free(object);
}

static void test_names(void **state)
{
    (void)state;
    assert_true(oq_name_equal("Auto-Round", "auto_round"));
    assert_false(oq_name_equal("fp8", "fp80"));
    static const char *const names[] = {"fp8", "int8", "mxfp4"};
    assert_int_equal(oq_name_nearest("fp9", names, 3), 0);
    assert_int_equal(oq_name_nearest("intt8", names, 3), 1);
    assert_int_equal(oq_name_nearest("bitsandbytes", names, 3), -1);
    assert_true(oq_glob_match("layers.*.to_?", "layers.10.attention.to_q"));
    assert_true(oq_glob_match("*[0-4].w[!2]", "layers.3.w1"));
    assert_false(oq_glob_match("*[0-4].w[!2]", "layers.3.w2"));
    assert_true(oq_dotted_run("attn.to_q", "blocks.0.attn.to_q"));
    assert_false(oq_dotted_run("to_q", "blocks.0.attn.to_qkv"));
    assert_true(oq_dotted_prefix("transformer", "transformer.blocks"));
    assert_false(oq_dotted_prefix("transformer", "transformer_2.blocks"));
    assert_true(oq_csv_has("a, b ,c", "b"));
    assert_false(oq_csv_has("a, b ,c", ""));
}

enum { POOL_TASKS = 37 };

typedef struct pool_count { /* how often each task ran, and whether a worker's number was out of range */
    oq_pool *pool;
    int64_t n_tasks;
    atomic_int ran[POOL_TASKS], inner, strange;
} pool_count;

static void count_inner(void *user, int64_t i, int worker)
{
    pool_count *c = user;
    atomic_fetch_add(&c->inner, (int)i + 1);
    if (worker != 0 && c->n_tasks > 1) atomic_fetch_add(&c->strange, 1); /* a run in a run is serial */
}

static void count_task(void *user, int64_t i, int worker)
{
    pool_count *c = user;
    atomic_fetch_add(&c->ran[i], 1);
    if (worker < 0 || worker >= oq_pool_threads(c->pool)) atomic_fetch_add(&c->strange, 1);
    if (i % 16 == 0) oq_pool_run(c->pool, 3, count_inner, c);
}

static void pool_round(oq_pool *pool, int64_t n_tasks)
{
    pool_count c = {.pool = pool, .n_tasks = n_tasks};
    oq_pool_run(pool, n_tasks, count_task, &c);
    for (int64_t i = 0; i < POOL_TASKS; i++) assert_int_equal(atomic_load(&c.ran[i]), i < n_tasks);
    assert_int_equal(atomic_load(&c.inner), 6 * ((n_tasks + 15) / 16));
    assert_int_equal(atomic_load(&c.strange), 0);
}

/* Runs of every size, asleep and awake, with pauses in which workers fall asleep on the way. */
static void test_pool(void **state)
{
    oq_env *env = *state;
    static const int threads[] = {1, 2, 4, 33};
    for (size_t t = 0; t < OQ_COUNT(threads); t++) {
        oq_pool *pool = NULL;
        assert_int_equal(oq_pool_new(env, threads[t], &pool), OQ_OK);
        for (int round = 0; round < 500; round++) {
            if (round % 100 == 50) oq_pool_hot_begin(pool);
            pool_round(pool, 1 + round % POOL_TASKS);
            if (round % 50 == 7) {
                const double start = oq_now_s();
                while (oq_now_s() - start < 1e-4) continue;
            }
            if (round % 100 == 99) oq_pool_hot_end(pool);
        }
        oq_pool_free(env, pool);
    }
    oq_pool *none = NULL;
    oq_pool_hot_begin(none), oq_pool_hot_end(none);
    assert_int_equal(oq_pool_threads(none), 1);
    assert_int_equal(oq_pool_new(env, 100000, &none), OQ_E_ARG);
}

static void keep_message(void *user, oq_log_level level, const char *message)
{
    (void)level;
    snprintf(user, 256, "%s", message);
}

/* An environment that does not come to be says why to its log; as many threads as an option may ask for are possible. */
static void test_env_fails_in_words(void **state)
{
    (void)state;
    char message[256] = "";
    oq_env *env = NULL;
    oq_env_params params = OQ_ENV_PARAMS_INIT;
    params.log = keep_message, params.log_user = message, params.n_threads = 1025;
    assert_int_equal(oq_env_new(&params, &env), OQ_E_ARG);
    assert_null(env);
    assert_string_equal(message, "1025 threads asked for, 1 to 1024 are possible");
    params.n_threads = 300;
    assert_int_equal(oq_env_new(&params, &env), OQ_OK);
    oq_env_free(env);
}

static void test_unicode(void **state)
{
    oq_env *env = *state;
    assert_true(oq_utf8_valid("h\xc3\xa9", 3));
    assert_false(oq_utf8_valid("\xed\xa0\x80", 3));
    size_t n = 0;
    char *fixed = oq_utf8_repair(env, "a\xf0\x9f\x98z\xed\xa0\x80", 8, &n);
    assert_string_equal(fixed,
                        "a\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"); /* as Python replaces them */
    oq_free(env, fixed);
    char *nfc = NULL;
    assert_int_equal(oq_utf8_nfc(env, "e\xcc\x81", 3, &nfc, &n), OQ_OK);
    assert_string_equal(nfc, "\xc3\xa9");
    oq_free(env, nfc);
}

static void test_regex(void **state)
{
    oq_env *env = *state;
    oq_regex *r = NULL;
    assert_int_equal(oq_regex_new(env, "lay(ers", &r), OQ_E_CONFIG);
    oq_env_clear(env);
    assert_int_equal(oq_regex_new(env, "layers\\.\\d+", &r), OQ_OK);
    assert_true(oq_regex_matches_start(r, "layers.3.w1"));
    assert_false(oq_regex_matches_start(r, "x.layers.3"));
    oq_regex_free(env, r);
}

static bool count_bytes(void *user, size_t begin, size_t end)
{
    *(size_t *)user += end - begin;
    return true;
}

static void test_regex_each(void **state)
{
    oq_env *env = *state;
    oq_regex *r = NULL;
    static const char text[] = "12 caf\xc3\xa9 345";
    size_t digits = 0;
    assert_int_equal(oq_regex_new(env, "\\d*", &r), OQ_OK); /* matches the empty text between, too */
    assert_int_equal(oq_regex_each(env, r, text, strlen(text), count_bytes, &digits), OQ_OK);
    assert_int_equal(digits, 5);
    oq_regex_free(env, r);
    assert_true(oq_utf8_is_space("\xe3\x80\x80", 3) && !oq_utf8_is_space("\xe1\xa0\x8e", 3) &&
                !oq_utf8_is_space("a", 1));
    assert_true(oq_utf8_is_word("\xc3\xa9", 2) && oq_utf8_is_word("_", 1) && !oq_utf8_is_word("-", 1));
}

static void test_path_folder(void **state)
{
    static const char *const rows[][2] = {{"a/b/c", "a/b"}, {"c", "."}, {"/c", "/"}, {"a/", "a"}, {"", "."}};
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        char *folder = oq_path_folder(*state, rows[i][0]);
        assert_string_equal(folder, rows[i][1]);
        oq_free(*state, folder);
    }
}

static void test_file_replaced_whole(void **state)
{
    oq_env *env = *state;
    const char *path = OMNIQ_BINARY_DIR "/test_base.txt";
    assert_int_equal(oq_file_write_all(env, path, "old", 3), OQ_OK);
    oq_file_writer *w = NULL;
    assert_int_equal(oq_file_create(env, path, &w), OQ_OK);
    assert_int_equal(oq_file_write(w, "new text", 8), OQ_OK);
    oq_file_abort(w);
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(oq_file_read(env, path, 100, &text, &n), OQ_OK);
    assert_string_equal(text, "old");
    oq_free(env, text);
    assert_int_equal(oq_file_read(env, path, 2, &text, &n), OQ_E_FORMAT);
    oq_env_clear(env);
    assert_int_equal(oq_file_create(env, "/nonexistent/x", &w), OQ_E_NOTFOUND);
    oq_env_clear(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_error_stays),
        cmocka_unit_test(test_json_rejects),
        cmocka_unit_test(test_json_names_the_duplicate),
        cmocka_unit_test(test_json_next),
        cmocka_unit_test(test_json_round_trip),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_env_fails_in_words),
        cmocka_unit_test(test_unicode),
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_regex_each),
        cmocka_unit_test(test_path_folder),
        cmocka_unit_test(test_file_replaced_whole),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
