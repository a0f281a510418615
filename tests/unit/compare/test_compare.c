/* test_compare.c -- metrics equal their formulas, policies judge by them, wrong policies are refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/file.h"
#include "compare/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-12 * fmax(1, fabs(want)))) fail_msg("got %.17g, want %.17g", got, want);
}

static void test_small_case(void **state)
{
    (void)state;
    static const uint8_t a[] = {10, 20, 30, 40}, b[] = {12, 18, 33, 40};
    oq_metrics m;
    oq_metrics_u8(a, b, 4, &m);
    near(m.mse, 4.25);
    near(m.rmse, 2.0615528128088303);
    near(m.mae, 1.75);
    near(m.max_abs, 3);
    near(m.l2, 4.123105625617661);
    near(m.relative_l2, 4.123105625617661 / sqrt(3000.0));
    near(m.cosine_similarity, 3070.0 / (sqrt(3000.0) * sqrt(3157.0)));
    near(m.psnr_db, 20 * log10(255.0) - 10 * log10(4.25));
    assert_true(fabs(m.relative_l2 - .0752773) < 1e-7);
    assert_true(fabs(m.cosine_similarity - .9975633) < 1e-7);
    assert_true(fabs(m.psnr_db - 41.846914) < 1e-6);
}

static void test_zeros(void **state)
{
    (void)state;
    static const uint8_t zero[300], one[300] = {1};
    uint8_t ones[300];
    oq_metrics m;
    memset(ones, 1, sizeof ones);
    oq_metrics_u8(zero, ones, 300, &m);
    near(m.mae, 1);
    near(m.mse, 1);
    assert_true(fabs(m.psnr_db - 48.1308) < 1e-4);
    assert_true(isinf(m.relative_l2) && m.relative_l2 > 0);
    near(m.cosine_similarity, 0);
    oq_metrics_u8(ones, zero, 300, &m);
    near(m.relative_l2, 1);
    near(m.cosine_similarity, 0);
    oq_metrics_u8(zero, zero, 300, &m);
    near(m.relative_l2, 0);
    near(m.cosine_similarity, 1);
    assert_true(isinf(m.psnr_db) && m.psnr_db > 0);
    oq_metrics_u8(one, one, 0, &m);
    near(m.mse, 0);
}

/* Against the formulas, summed one by one, over lengths around the blocks and over the extremes. */
static void test_formulas(void **state)
{
    (void)state;
    static const size_t lengths[] = {1, 7, 32767, 32768, 32769, 200000};
    uint8_t *a = malloc(200000), *b = malloc(200000);
    assert_true(a && b);
    uint32_t seed = 3;
    for (size_t i = 0; i < 200000; i++) {
        a[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24);
        b[i] = i % 5 ? (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24) : (uint8_t)(255 - a[i]);
    }
    for (size_t k = 0; k < OQ_COUNT(lengths); k++) {
        const size_t n = lengths[k];
        double dd = 0, d = 0, most = 0, aa = 0, bb = 0, ab = 0;
        for (size_t i = 0; i < n; i++) {
            const double x = a[i], y = b[i], e = fabs(y - x);
            dd += e * e, d += e, most = fmax(most, e), aa += x * x, bb += y * y, ab += x * y;
        }
        oq_metrics m;
        oq_metrics_u8(a, b, n, &m);
        near(m.mse, dd / (double)n);
        near(m.rmse, sqrt(dd / (double)n));
        near(m.mae, d / (double)n);
        near(m.max_abs, most);
        near(m.l2, sqrt(dd));
        near(m.relative_l2, sqrt(dd) / sqrt(aa));
        near(m.cosine_similarity, ab / (sqrt(aa) * sqrt(bb)));
        near(m.psnr_db, 20 * log10(255.0) - 10 * log10(dd / (double)n));
        oq_metrics_u8(a, a, n, &m);
        assert_true(m.cosine_similarity >= 1 && m.cosine_similarity <= 1);
        assert_true(isinf(m.psnr_db));
    }
    memset(a, 255, 200000), memset(b, 0, 200000);
    oq_metrics m;
    oq_metrics_u8(a, b, 200000, &m);
    near(m.mse, 65025);
    near(m.psnr_db, 0);
    free(a);
    free(b);
}

static void test_json(void **state)
{
    oq_env *env = *state;
    static const uint8_t a[] = {10, 20};
    oq_metrics m;
    oq_metrics_u8(a, a, 2, &m);
    oq_json *json = oq_metrics_to_json(&m);
    char *text = NULL;
    assert_int_equal(oq_json_dump(env, json, OQ_JSON_SORT, &text), OQ_OK);
    assert_string_equal(
        text, "{\"cosine_similarity\": 1.0, \"l2\": 0.0, \"mae\": 0.0, \"max_abs\": 0.0, \"mse\": 0.0, "
              "\"psnr_db\": \"Infinity\", \"relative_l2\": 0.0, \"rmse\": 0.0}");
    oq_free(env, text);
    oq_json_free(json);
}

static char *judge(oq_env *env, const oq_policy *policy, const oq_metrics *m, bool want)
{
    bool passed = !want;
    char *text = NULL;
    oq_json *json = oq_policy_judge(policy, m, &passed);
    assert_int_equal(passed, want);
    assert_int_equal(oq_json_dump(env, json, OQ_JSON_COMPACT, &text), OQ_OK);
    oq_json_free(json);
    return text;
}

static void test_built_in(void **state)
{
    oq_env *env = *state;
    const oq_policy *policy = NULL;
    oq_policy_storage *storage = NULL;
    oq_metrics m = {.psnr_db = 25, .mae = 6, .cosine_similarity = .995, .relative_l2 = .08};
    assert_int_equal(oq_policy_open(env, "Strict", &policy, &storage), OQ_OK);
    assert_null(storage);
    char *text = judge(env, policy, &m, true);
    assert_string_equal(text, "{\"name\": \"strict\", \"passed\": true, \"failed\": []}");
    oq_free(env, text);
    m.psnr_db = 24.5, m.mae = 6.25;
    text = judge(env, policy, &m, false);
    assert_string_equal(
        text, "{\"name\": \"strict\", \"passed\": false, \"failed\": [{\"metric\": \"psnr_db\", \"value\": "
              "24.5, \"min\": 25.0}, {\"metric\": \"mae\", \"value\": 6.25, \"max\": 6.0}]}");
    oq_free(env, text);
    assert_int_equal(oq_policy_open(env, "smoke", &policy, &storage), OQ_OK);
    oq_free(env, judge(env, policy, &m, true));
    m.cosine_similarity = NAN;
    oq_free(env, judge(env, policy, &m, false));
}

/* Every rule of every built-in policy names a metric and bounds it. */
static void test_list(void **state)
{
    (void)state;
    for (size_t i = 0; oq_policy_list[i]; i++) {
        assert_true(oq_policy_list[i]->n_rules == 4);
        for (size_t k = 0; k < oq_policy_list[i]->n_rules; k++) {
            const oq_policy_rule *rule = &oq_policy_list[i]->rules[k];
            const oq_metric_info *info = oq_metric_list;
            while (info->name && strcmp(info->name, rule->metric) != 0) info++;
            assert_non_null(info->name);
            assert_true(isfinite(rule->min) != isfinite(rule->max));
        }
    }
}

static void policy_path(char *path, size_t n)
{
    snprintf(path, n, "%s/policy-test-%ld.json", OMNIQ_BINARY_DIR, (long)getpid());
}

static void test_file(void **state)
{
    oq_env *env = *state;
    const oq_policy *policy = NULL;
    oq_policy_storage *storage = NULL;
    char path[512];
    static const char json[] = "{\"psnr_db\": {\"min\": 30, \"max\": 99}, \"max_abs\": {\"max\": 8.5}}";
    policy_path(path, sizeof path);
    assert_int_equal(oq_file_write_all(env, path, json, strlen(json)), OQ_OK);
    assert_int_equal(oq_policy_open(env, path, &policy, &storage), OQ_OK);
    assert_string_equal(policy->name, path);
    oq_metrics m = {.psnr_db = 100, .max_abs = 8};
    char *text = judge(env, policy, &m, false);
    assert_non_null(strstr(text, "\"failed\": [{\"metric\": \"psnr_db\", \"value\": 100.0, \"max\": 99.0}]"));
    oq_free(env, text);
    m.psnr_db = 99;
    oq_free(env, judge(env, policy, &m, true));
    oq_policy_close(env, storage);
    unlink(path);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *json, *text;
    } cases[] = {
        {"{\"psnr_bd\": {\"min\": 1}}", ": there is no metric 'psnr_bd', did you mean 'psnr_db'"},
        {"{\"beauty_of_it_all\": {\"min\": 1}}", ": there is no metric 'beauty_of_it_all'"},
        {"{\"mae\": 3}", ": 'mae' needs an object with 'min', 'max' or both"},
        {"{\"mae\": {}}", ": 'mae' needs an object with 'min', 'max' or both"},
        {"{\"mae\": {\"most\": 3}}", ": 'most' of 'mae' is unknown, bounds are 'min' and 'max'"},
        {"{\"mae\": {\"max\": \"3\"}}", ": 'max' of 'mae' is a string, a number is needed"},
        {"{\"mae\": {\"min\": 3, \"max\": 2}}", ": 'mae' cannot be at least 3 and at most 2"},
        {"{}", ": a policy is an object with a member per metric"},
        {"[1]", ": a policy is an object with a member per metric"},
    };
    oq_env *env = *state;
    const oq_policy *policy = NULL;
    oq_policy_storage *storage = NULL;
    char path[512];
    policy_path(path, sizeof path);
    for (size_t i = 0; i < OQ_COUNT(cases); i++) {
        assert_int_equal(oq_file_write_all(env, path, cases[i].json, strlen(cases[i].json)), OQ_OK);
        assert_int_equal(oq_policy_open(env, path, &policy, &storage), OQ_E_CONFIG);
        assert_string_equal(oq_env_error(env) + strlen(path), cases[i].text);
        assert_null(storage);
        oq_env_clear(env);
    }
    unlink(path);
    assert_int_equal(oq_policy_open(env, "strcit", &policy, &storage), OQ_E_ARG);
    assert_string_equal(oq_env_error(env), "policy 'strcit' is neither 'smoke' nor 'strict' nor a file");
    oq_env_clear(env);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_case), cmocka_unit_test(test_zeros),    cmocka_unit_test(test_formulas),
        cmocka_unit_test(test_json),       cmocka_unit_test(test_built_in), cmocka_unit_test(test_list),
        cmocka_unit_test(test_file),       cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
