/* test_sched.c -- schedules equal diffusers' to the bit, noise equals torch's draws, wrong configs are
 * refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "sched/flow_euler.h"
#include "sched/noise.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DATA OMNIQ_SOURCE_DIR "/tests/data/sched/"

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

static float value_at(const oq_json *list, size_t i)
{
    return (float)oq_json_real(oq_json_at(list, i), NAN);
}

static uint32_t bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static void check_schedule(oq_env *env, const oq_json *c)
{
    enum { MAX_STEPS = 64 };
    const char *name = oq_json_string(oq_json_get(c, "name")), *ramp = oq_json_string(oq_json_get(c, "ramp"));
    const oq_json *sigmas = oq_json_get(c, "sigmas"), *timesteps = oq_json_get(c, "timesteps");
    const int n = (int)oq_json_int(oq_json_get(c, "steps"), 0);
    oq_flow_euler s;
    assert_int_equal(oq_flow_euler_parse(env, oq_json_get(c, "config"), &s), OQ_OK);
    assert_true(n >= 1 && n <= MAX_STEPS);
    assert_int_equal(oq_json_size(sigmas), n + 1);
    assert_int_equal(oq_json_size(timesteps), n);

    float custom[MAX_STEPS] = {1.0f, 0.75f, 0.3f, 0.05f}, got[MAX_STEPS + 1], t[MAX_STEPS];
    if (strcmp(ramp, "torch") == 0) oq_flow_euler_ramp(n, custom);
    oq_flow_euler_sigmas(&s, n, strcmp(ramp, "numpy") == 0 ? NULL : custom,
                         oq_json_real(oq_json_get(c, "mu"), NAN), got, t);
    for (int i = 0; i <= n; i++)
        if (bits(got[i]) != bits(value_at(sigmas, (size_t)i)))
            fail_msg("%s: sigma %d is %.9g, diffusers has %.9g", name, i, got[i],
                     value_at(sigmas, (size_t)i));
    for (int i = 0; i < n; i++)
        if (bits(t[i]) != bits(value_at(timesteps, (size_t)i)))
            fail_msg("%s: timestep %d is %.9g, diffusers has %.9g", name, i, t[i],
                     value_at(timesteps, (size_t)i));
}

static void test_schedules(void **state)
{
    oq_env *env = *state;
    oq_json *data = NULL;
    assert_int_equal(oq_json_parse_file(env, DATA "schedules.json", 1 << 20, &data), OQ_OK);
    const oq_json *cases = oq_json_get(data, "cases");
    assert_true(oq_json_size(cases) >= 40);
    for (size_t i = 0; i < oq_json_size(cases); i++) check_schedule(env, oq_json_at(cases, i));
    oq_json_free(data);
}

static void test_mu(void **state)
{
    oq_env *env = *state;
    oq_flow_euler s;
    assert_int_equal(oq_flow_euler_parse(env, NULL, &s), OQ_OK);
    assert_true(fabs(oq_flow_euler_mu(&s, 256) - 0.5) < 1e-15);
    assert_true(fabs(oq_flow_euler_mu(&s, 1024) - 0.63) < 1e-15);
    assert_true(fabs(oq_flow_euler_mu(&s, 4096) - 1.15) < 1e-15);
    assert_true(fabs(oq_flow_euler_mu(&s, 6889) - 1.6227734375) < 1e-12);
}

/* compute_empirical_mu of diffusers; the branch changes above 4300 tokens. */
static void test_empirical_mu(void **state)
{
    static const struct {
        int64_t tokens;
        int steps;
        double mu;
    } cases[] = {
        {16, 4, 1.9452163656143495},    {256, 1, 1.9879993152056084}, {256, 50, 1.6216074698534737},
        {1024, 28, 1.8591765771805644}, {4096, 4, 2.291179894115571}, {4300, 28, 2.170851489658105},
        {4301, 1, 1.18469693},          {4301, 50, 1.18469693},       {8160, 28, 1.8379098600000001}};
    (void)state;
    for (size_t i = 0; i < OQ_COUNT(cases); i++)
        assert_true(fabs(oq_flow_euler_empirical_mu(cases[i].tokens, cases[i].steps) - cases[i].mu) < 1e-12);
}

/* One step from the sigma 1 cannot be stretched to a terminal: it stays a usable schedule instead of NaN. */
static void test_terminal_of_one_step(void **state)
{
    oq_env *env = *state;
    oq_flow_euler s;
    float sigmas[2], timesteps[1];
    oq_json *config = NULL;
    const char *text = "{\"shift_terminal\": 0.02, \"use_dynamic_shifting\": true}";
    assert_int_equal(oq_json_parse(env, text, strlen(text), "text", &config), OQ_OK);
    assert_int_equal(oq_flow_euler_parse(env, config, &s), OQ_OK);
    oq_flow_euler_sigmas(&s, 1, NULL, 0.5, sigmas, timesteps);
    assert_true(bits(sigmas[0]) == bits(1.0f) && bits(sigmas[1]) == bits(0.0f) &&
                bits(timesteps[0]) == bits(1000.0f));
    oq_json_free(config);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *config;
        oq_status status;
        const char *text;
    } cases[] = {
        {"{\"use_karras_sigmas\": true}", OQ_E_UNSUPPORTED,
         "scheduler_config.json: 'use_karras_sigmas' is not supported"},
        {"{\"invert_sigmas\": true}", OQ_E_UNSUPPORTED,
         "scheduler_config.json: 'invert_sigmas' is not supported"},
        {"{\"stochastic_sampling\": true}", OQ_E_UNSUPPORTED,
         "scheduler_config.json: 'stochastic_sampling' is not supported"},
        {"{\"use_beta_sigmas\": 1}", OQ_E_CONFIG,
         "scheduler_config.json: 'use_beta_sigmas' is a whole number, true or false is needed"},
        {"{\"shift\": \"3\"}", OQ_E_CONFIG, "scheduler_config.json: 'shift' is a string, a number is needed"},
        {"{\"shift\": 0}", OQ_E_CONFIG,
         "scheduler_config.json: 'shift' is 0, it must be between 1e-06 and 1e+06"},
        {"{\"shift_terminal\": 1}", OQ_E_CONFIG,
         "scheduler_config.json: 'shift_terminal' is 1, it must be below 1"},
        {"{\"time_shift_type\": \"cubic\"}", OQ_E_CONFIG,
         "scheduler_config.json: 'time_shift_type' is 'cubic', it must be 'exponential' or 'linear'"},
        {"{\"max_image_seq_len\": 256}", OQ_E_CONFIG,
         "scheduler_config.json: 'max_image_seq_len' 256 is not above 'base_image_seq_len' 256"},
        {"{\"shfit\": 3}", OQ_E_CONFIG,
         "scheduler_config.json: 'shfit' is not an option of FlowMatchEulerDiscreteScheduler"},
        {"[]", OQ_E_CONFIG, "scheduler_config.json: a list, an object is needed"},
    };
    oq_env *env = *state;
    for (size_t i = 0; i < OQ_COUNT(cases); i++) {
        oq_json *config = NULL;
        oq_flow_euler s;
        assert_int_equal(oq_json_parse(env, cases[i].config, strlen(cases[i].config), "text", &config),
                         OQ_OK);
        assert_int_equal(oq_flow_euler_parse(env, config, &s), cases[i].status);
        assert_string_equal(oq_env_error(env), cases[i].text);
        oq_env_clear(env);
        oq_json_free(config);
    }
}

static void check_stream(const oq_json *stream)
{
    const oq_json *draws = oq_json_get(stream, "draws");
    const char *seed = oq_json_string(oq_json_get(stream, "seed"));
    oq_rng rng;
    oq_rng_seed(&rng, strtoull(seed, NULL, 10));
    for (size_t i = 0; i < oq_json_size(draws); i++) {
        const oq_json *draw = oq_json_at(draws, i), *values = oq_json_get(draw, "values");
        const size_t n = (size_t)oq_json_int(oq_json_get(draw, "n"), 0);
        const size_t stride = (size_t)oq_json_int(oq_json_get(draw, "stride"), 0);
        float *got = malloc(n * sizeof *got);
        assert_non_null(got);
        oq_rng_normal(&rng, got, n);
        assert_int_equal(oq_json_size(values), (n + stride - 1) / stride);
        for (size_t k = 0; k < oq_json_size(values); k++)
            if (!(fabsf(got[k * stride] - value_at(values, k)) <= 5e-7f))
                fail_msg("seed %s, draw %zu of %zu: value %zu is %.9g, torch has %.9g", seed, i, n,
                         k * stride, got[k * stride], value_at(values, k));
        free(got);
    }
}

static void test_noise(void **state)
{
    oq_env *env = *state;
    oq_json *data = NULL;
    assert_int_equal(oq_json_parse_file(env, DATA "noise.json", 1 << 20, &data), OQ_OK);
    const oq_json *streams = oq_json_get(data, "streams");
    assert_int_equal(oq_json_size(streams), 8);
    for (size_t i = 0; i < oq_json_size(streams); i++) check_stream(oq_json_at(streams, i));
    oq_json_free(data);
}

/* mt19937's published check: the 10000th word of seed 5489. */
static void test_words(void **state)
{
    (void)state;
    oq_rng rng;
    uint32_t word = 0;
    oq_rng_seed(&rng, 5489);
    for (int i = 0; i < 10000; i++) word = oq_rng_u32(&rng);
    assert_int_equal(word, 4123659995u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),    cmocka_unit_test(test_mu),
        cmocka_unit_test(test_empirical_mu), cmocka_unit_test(test_terminal_of_one_step),
        cmocka_unit_test(test_refusals),     cmocka_unit_test(test_noise),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
