/* test_unipc.c -- UniPC over flow sigmas equals diffusers' scheduler: sigmas, whole timesteps, every state before and after
 * the corrector, with float32 and bfloat16 predictions. Wrong configurations are refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "ckpt/ckpt.h"
#include "load/load.h"
#include "sched/unipc.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Trajectories of 48 values by the original (diffusers 0.40.dev, torch 2.15): x_0 = 2 u("sample"), the prediction of step i
 * is u("model_output.i") whatever x is; u is the rule of dummy weights. "CASE.rows": the steps that were kept. */
#define DATA OMNIQ_SOURCE_DIR "/tests/data/sched/unipc.safetensors"
enum { N = 48 };

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

static const float *values_of(const oq_ckpt *data, const char *name, const char *key, int64_t *n)
{
    char full[96];
    snprintf(full, sizeof full, "%s.%s", name, key);
    const oq_ckpt_tensor *t = oq_ckpt_find(data, full);
    if (!t) fail_msg("no '%s'", full);
    *n = t->elems;
    float *copy = malloc((size_t)t->elems * sizeof *copy); /* the file's alignment is its own affair */
    if (!copy) abort();
    memcpy(copy, t->data, t->bytes);
    return copy;
}

static double relative(const float *a, const float *b)
{
    double d = 0, l = 0;
    for (int i = 0; i < N; i++) {
        d += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        l += (double)b[i] * (double)b[i];
    }
    return sqrt(d / l);
}

static void round_values(const oq_dtype *dtype, float *x)
{
    uint16_t narrow[N];
    if (dtype == &oq_dtype_f32) return;
    dtype->from_f32(narrow, x, N);
    dtype->to_f32(x, narrow, N);
}

typedef struct trajectory {
    float x[N], v[N], corrected[N], clean[3][N], last[N];
    oq_unipc_state state;
} trajectory;

static void start(trajectory *t)
{
    oq_dummy_fill_as(t->x, "sample", N, 2, 0);
    t->state =
        (oq_unipc_state){.elems = N, .clean = {t->clean[0], t->clean[1], t->clean[2]}, .last = t->last};
}

static void check_case(oq_env *env, const oq_ckpt *data, const char *name, double shift, int n,
                       const oq_dtype *dtype)
{
    char config[160];
    oq_json *json = NULL;
    oq_unipc s;
    snprintf(config, sizeof config,
             "{\"prediction_type\":\"flow_prediction\",\"use_flow_sigmas\":true,\"flow_shift\":%g}", shift);
    assert_int_equal(oq_json_parse(env, config, strlen(config), name, &json), OQ_OK);
    if (oq_unipc_parse(env, json, &s) != OQ_OK) fail_msg("%s", oq_env_error(env));
    oq_json_free(json);
    float sigmas[64], timesteps[64];
    oq_unipc_sigmas(&s, n, NULL, sigmas, timesteps);
    int64_t n_sigmas, n_times, n_rows, n_x, n_corrected;
    const float *want = values_of(data, name, "sigmas", &n_sigmas),
                *times = values_of(data, name, "timesteps", &n_times);
    const float *rows = values_of(data, name, "rows", &n_rows), *x = values_of(data, name, "x", &n_x);
    const float *corrected = values_of(data, name, "corrected", &n_corrected);
    assert_int_equal(n_sigmas, n + 1);
    assert_int_equal(n_x, n_rows * N);
    for (int i = 0; i <= n; i++) assert_true(fabs((double)sigmas[i] - (double)want[i]) <= 1e-6);
    for (int i = 0; i < n; i++) assert_true(timesteps[i] == times[i]);
    trajectory t;
    double worst = 0;
    start(&t);
    for (int i = 0, row = 0; i < n; i++) {
        char key[32];
        snprintf(key, sizeof key, "model_output.%d", i);
        oq_dummy_fill_as(t.v, key, N, 1, 0);
        round_values(dtype, t.v);
        oq_unipc_step(&s, &t.state, n, sigmas, dtype, t.v, t.x, t.corrected);
        if (row == n_rows || (int)rows[row] != i) continue;
        const double a = relative(t.x, x + (int64_t)row * N),
                     b = relative(t.corrected, corrected + (int64_t)row * N);
        worst = fmax(worst, fmax(a, b));
        row++;
    }
    printf("%-22s worst state %.1e\n", name, worst);
    assert_true(worst <= (n > 20 ? 1e-4 : 1e-5));
    free((void *)(uintptr_t)want);
    free((void *)(uintptr_t)times);
    free((void *)(uintptr_t)rows);
    free((void *)(uintptr_t)x);
    free((void *)(uintptr_t)corrected);
}

static void test_trajectories(void **state)
{
    oq_env *env = *state;
    oq_ckpt *data = NULL;
    static const int steps[] = {4, 8, 20, 50}, shifts[] = {3, 5, 12};
    if (oq_ckpt_open(env, DATA, &data) != OQ_OK) fail_msg("%s", oq_env_error(env));
    for (size_t i = 0; i < OQ_COUNT(steps); i++)
        for (size_t j = 0; j < OQ_COUNT(shifts); j++) {
            char name[32];
            snprintf(name, sizeof name, "unipc.shift%d.n%d", shifts[j], steps[i]);
            check_case(env, data, name, shifts[j], steps[i], &oq_dtype_f32);
        }
    check_case(env, data, "unipc.shift3.n1", 3, 1, &oq_dtype_f32);
    check_case(env, data, "unipc.shift3.n2", 3, 2, &oq_dtype_f32);
    check_case(env, data, "unipc_bf16.shift3.n8", 3, 8, &oq_dtype_bf16);
    oq_ckpt_close(data);
}

#define FLOW "\"prediction_type\":\"flow_prediction\",\"use_flow_sigmas\":true"
static void test_configurations_are_refused(void **state)
{
    oq_env *env = *state;
    static const struct {
        const char *config;
        oq_status status;
        const char *text;
    } rows[] = {
        {"{\"prediction_type\":\"flow_prediction\"}", OQ_E_UNSUPPORTED, "'use_flow_sigmas' must be true"},
        {"{\"use_flow_sigmas\":true}", OQ_E_UNSUPPORTED,
         "'prediction_type' is 'null', only 'flow_prediction' is supported"},
        {"{" FLOW ",\"solver_type\":\"bh1\"}", OQ_E_UNSUPPORTED,
         "'solver_type' is 'bh1', only 'bh2' is supported"},
        {"{" FLOW ",\"solver_order\":3}", OQ_E_UNSUPPORTED, "'solver_order' is 3, 1 and 2 are supported"},
        {"{" FLOW ",\"flow_shift\":0}", OQ_E_CONFIG,
         "'flow_shift' is 0, it must be a number between 1e-06 and 1e+06"},
        {"{" FLOW ",\"flow_shift\":\"3\"}", OQ_E_CONFIG, "'flow_shift' is nan"},
        {"{" FLOW ",\"predict_x0\":false}", OQ_E_UNSUPPORTED, "'predict_x0' must be true"},
        {"{" FLOW ",\"disable_corrector\":[0]}", OQ_E_UNSUPPORTED, "'disable_corrector' is not supported"},
        {"{" FLOW ",\"use_karras_sigmas\":true}", OQ_E_UNSUPPORTED, "'use_karras_sigmas' is not supported"},
        {"{" FLOW ",\"flow_shfit\":3}", OQ_E_CONFIG,
         "'flow_shfit' is not an option of UniPCMultistepScheduler"},
        {"[]", OQ_E_CONFIG, "scheduler_config.json: a list, an object is needed"},
    };
    for (size_t i = 0; i < OQ_COUNT(rows); i++) {
        oq_json *json = NULL;
        oq_unipc s;
        assert_int_equal(oq_json_parse(env, rows[i].config, strlen(rows[i].config), "x", &json), OQ_OK);
        const oq_status st = oq_unipc_parse(env, json, &s);
        if (st != rows[i].status || !strstr(oq_env_error(env), rows[i].text))
            fail_msg("%s: %s, '%s'; expected '%s'", rows[i].config, oq_status_name(st), oq_env_error(env),
                     rows[i].text);
        oq_env_clear(env);
        oq_json_free(json);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trajectories),
                                       cmocka_unit_test(test_configurations_are_refused)};
    return cmocka_run_group_tests_name("unipc", tests, setup, teardown);
}
